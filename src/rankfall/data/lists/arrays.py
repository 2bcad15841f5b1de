"""Ranking lists from arrays and data frames in memory, with the checks that prepared files had before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.lists.ranking_data import RankingSplit
from rankfall.data.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

QID = "qid"
"""The column of a data frame that has the query of each row and is never a feature, as in XGBoost."""


def to_array(values: Any, *, where: str) -> NDArray[Any]:
    """Return an array of numbers of any shape.

    Raises:
        ValueError: If values are not numbers.
    """
    if hasattr(values, "detach"):  # a tensor, on any device and with or without a gradient
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    try:
        array: NDArray[Any] = np.asarray(values)
        if array.dtype.kind in "biuf":
            return array
        if array.dtype.kind == "O":  # columns of whole numbers with missing values
            return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: found values that are no numbers, expected numbers") from None
    raise ValueError(f"{where}: found {array.dtype}, expected numbers")


def check_finite(values: NDArray[Any], where: str, names: Sequence[str]) -> None:
    """Raise an error that names the first row and column with NaN or an infinite number."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{where}: found {values[row, column]} in row {row}, column {names[column]!r} ({int(bad.sum()):,} in all), "
            "expected finite numbers"
        )


def to_float32(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Convert numbers. Raises an error for those that float32 cannot represent."""
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(found).all():
        raise ValueError(f"{where}: found {np.abs(values).max():g}, expected numbers that float32 can represent")
    return found


def to_column(values: Any, rows: int, *, where: str) -> NDArray[np.float32]:
    """Return one number of at least 0 per row, such as labels or weights.

    Args:
        values: NumPy array, tensor, series or list.
        rows: Expected number of values.
        where: Name of the argument for error messages.

    Raises:
        ValueError: If the number of values is wrong, or one is negative, NaN or infinite.
    """
    array = to_array(values, where=where)
    if array.shape == (rows, 1):
        array = array[:, 0]
    if array.shape != (rows,):
        raise ValueError(f"{where}: found shape {array.shape}, expected one value per row of X ({rows:,})")
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{where}: found {array[row]:g} in row {row} ({int(bad.sum()):,} in all), expected finite numbers from 0 on"
        )
    return to_float32(array, where)


def to_offsets(rows: int, *, group: Any, qid: Any, where: str = "") -> tuple[NDArray[np.int64], list[str]]:
    """Return where each list begins, and the names of the lists.

    Args:
        rows: Number of rows.
        group: Sizes of consecutive lists, in the order of the rows; or None.
        qid: Query of each row, with the rows of a query next to each other; or None.
        where: Prefix of the names of the arguments in error messages, such as ``"eval_"``.

    Returns:
        The first row of each list and the number of rows ``(lists + 1,)``, and one name per list.

    Raises:
        ValueError: If not exactly one of them is given, or it does not fit the rows.
    """
    if (group is None) == (qid is None):
        found = f"neither {where}group nor {where}qid" if group is None else f"both {where}group and {where}qid"
        raise ValueError(
            f"{where}group: found {found}, expected one of them: {where}group has the sizes of consecutive lists, "
            f"{where}qid (or a column {QID!r} of the data frame) the query of each row"
        )
    if group is not None:
        sizes = _sizes(group, rows, f"{where}group")
        return np.concatenate([[0], np.cumsum(sizes)]), [str(number) for number in range(len(sizes))]
    names = np.asarray(qid.to_numpy() if hasattr(qid, "to_numpy") else qid)
    if names.shape != (rows,):
        raise ValueError(f"{where}qid: found shape {names.shape}, expected one value per row of X ({rows:,})")
    starts = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]])) if rows else np.empty(0, np.int64)
    kept = [str(name) for name in names[starts].tolist()]
    if len(set(kept)) < len(kept):
        twice = next(name for number, name in enumerate(kept) if name in kept[:number])
        raise ValueError(
            f"{where}qid: found rows of {twice} in different places, expected the rows of a query next to each other; "
            "sort all arguments by qid"
        )
    return np.concatenate([starts, [rows]]), kept


def _sizes(group: Any, rows: int, where: str) -> NDArray[np.int64]:
    sizes = to_array(group, where=where)
    if sizes.ndim != 1 or not len(sizes):
        raise ValueError(f"{where}: found shape {sizes.shape}, expected the size of each list")
    bad = (sizes < 1) | (sizes != np.floor(sizes))
    if bad.any():
        raise ValueError(f"{where}: found {sizes[bad.argmax()]:g}, expected whole numbers of at least 1")
    if (total := int(sizes.sum())) != rows:
        raise ValueError(f"{where}: found sizes that add up to {total:,}, expected {rows:,}, the number of rows of X")
    return sizes.astype(np.int64)


def split_of(
    name: str,
    features: NDArray[np.float32],
    labels: NDArray[np.float32],
    offsets: NDArray[np.int64],
    qids: Sequence[str],
) -> RankingSplit:
    """Return lists in memory as a split of ranking data.

    Args:
        name: Name of the split.
        features: Features ``(rows, features)``.
        labels: Labels ``(rows,)``.
        offsets: First row of each list, and the number of rows ``(lists + 1,)``.
        qids: Name of each list.
    """
    names = pa.chunked_array([pa.array(qids, pa.string())])
    return RankingSplit(name, features, labels, offsets, names, docids=None, moments=Moments.of(features))


def eval_pairs(eval_set: Any, features: Any, labels: Any) -> list[Any]:
    """Return the pairs (X, y) to measure, from the older or the newer arguments of LightGBM.

    Args:
        eval_set: A pair, or a list of pairs.
        features: `eval_X`: features, or a tuple of them.
        labels: `eval_y`: labels, or a tuple of them.

    Raises:
        ValueError: If the arguments contradict each other.
    """
    if (features is None) != (labels is None) or (features is not None and eval_set is not None):
        given = [
            name
            for name, value in (("eval_set", eval_set), ("eval_X", features), ("eval_y", labels))
            if value is not None
        ]
        raise ValueError(f"eval_set: found {' and '.join(given)}, expected eval_set, or eval_X and eval_y")
    if eval_set is not None:
        return [eval_set] if isinstance(eval_set, tuple) else list(eval_set)
    if features is None:
        return []
    if isinstance(features, tuple) != isinstance(labels, tuple):
        raise ValueError("eval_X: found a tuple for only one of eval_X and eval_y, expected it for both or none")
    if not isinstance(features, tuple):
        return [(features, labels)]
    if len(features) != len(labels):
        raise ValueError(f"eval_y: found {len(labels)} sets, expected {len(features)} as in eval_X")
    return list(zip(features, labels, strict=True))


def per_set(values: Any, count: int, where: str) -> list[Any]:
    """Return the groups or queries of each evaluation set. A single set may have them without a list around.

    Args:
        values: `eval_group` or `eval_qid`.
        count: Number of evaluation sets.
        where: Name of the argument.
    """
    if values is None:
        return [None] * count
    if count == 1 and len(values) and np.ndim(values[0]) == 0:
        return [values]
    if len(values) != count:
        raise ValueError(f"{where}: found {len(values)}, expected one for each of the {count} sets of eval_set")
    return list(values)
