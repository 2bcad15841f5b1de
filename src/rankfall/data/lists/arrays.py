"""Ranking lists from arrays and data frames in memory, with the checks that prepared files had before."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.arrays import Moments
from rankfall.data.lists.ranking_data import RankingSplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        raise RankfallError(f"{where}: found values that are not numbers, expected numbers") from None
    raise RankfallError(f"{where}: found {array.dtype}, expected numbers")


def check_finite(values: NDArray[Any], where: str, names: Sequence[str]) -> None:
    """Raise an error that names the first row and column with NaN or an infinite number."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise RankfallError(
            f"{where}: found {values[row, column]} in row {row}, column {names[column]!r} ({int(bad.sum()):,} in all), "
            "expected finite numbers"
        )


def to_float32(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Convert numbers. Raises an error for those that float32 cannot represent."""
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(found).all():
        raise RankfallError(f"{where}: found {np.abs(values).max():g}, expected numbers that float32 can represent")
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
        raise RankfallError(f"{where}: found shape {array.shape}, expected one value per row of X ({rows:,})")
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise RankfallError(
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
        raise RankfallError(
            f"{where}group: found {found}, expected one of them: {where}group has the sizes of consecutive lists, "
            f"{where}qid (or a column {QID!r} of the data frame) the query of each row"
        )
    if group is not None:
        sizes, name = to_array(group, where=f"{where}group"), f"{where}group"
        if sizes.ndim != 1 or not len(sizes):
            raise RankfallError(f"{name}: found shape {sizes.shape}, expected the size of each list")
        bad = (sizes < 1) | (sizes != np.floor(sizes))
        if bad.any():
            raise RankfallError(f"{name}: found {sizes[bad.argmax()]:g}, expected whole numbers of at least 1")
        if (total := int(sizes.sum())) != rows:
            raise RankfallError(
                f"{name}: found sizes that add up to {total:,}, expected {rows:,}, the number of rows of X"
            )
        sizes = sizes.astype(np.int64)
        return np.concatenate([[0], np.cumsum(sizes)]), [str(number) for number in range(len(sizes))]
    names = np.asarray(qid.to_numpy() if hasattr(qid, "to_numpy") else qid)
    if names.shape != (rows,):
        raise RankfallError(f"{where}qid: found shape {names.shape}, expected one value per row of X ({rows:,})")
    starts = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]])) if rows else np.empty(0, np.int64)
    kept = [str(name) for name in names[starts].tolist()]
    if len(set(kept)) < len(kept):
        twice = next(name for number, name in enumerate(kept) if name in kept[:number])
        raise RankfallError(
            f"{where}qid: found rows of {twice} in different places, expected the rows of a query next to each other; "
            "sort all arguments by qid"
        )
    return np.concatenate([starts, [rows]]), kept


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
        raise RankfallError(f"eval_set: found {' and '.join(given)}, expected eval_set, or eval_X and eval_y")
    if eval_set is not None:
        return [eval_set] if isinstance(eval_set, tuple) else list(eval_set)
    if features is None:
        return []
    if isinstance(features, tuple) != isinstance(labels, tuple):
        raise RankfallError("eval_X: found a tuple for only one of eval_X and eval_y, expected it for both or none")
    if not isinstance(features, tuple):
        return [(features, labels)]
    if len(features) != len(labels):
        raise RankfallError(f"eval_y: found {len(labels)} sets, expected {len(features)} as in eval_X")
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
        raise RankfallError(f"{where}: found {len(values)}, expected one for each of the {count} sets of eval_set")
    return list(values)


MOST_CATEGORIES = 255
"""Largest number of different texts of a column that become features, as many as LightGBM has bins."""

_TEXT_TYPES = ("category", "categorical", "enum", "str", "string")  # of pandas and polars, in lower case


@dataclass(frozen=True, slots=True)
class Column:
    """How the values of a column become features.

    Attributes:
        name: Name of the column; its number for an array.
        mean: Mean of its numbers, which replaces missing ones. None: the column has texts.
        missing: Whether a second feature says which numbers are missing.
        categories: Texts that have a feature each, 1 where a row has the text; None among them stands for missing
            values. All other texts have 0 in every feature. None: the column has numbers.
    """

    name: str
    mean: float | None = None
    missing: bool = False
    categories: tuple[str | None, ...] | None = None

    @classmethod
    def fit(cls, name: str, values: NDArray[Any], where: str) -> Column:
        """Return the column of training values."""
        if values.dtype != object:
            missing = np.isnan(values)
            mean = float(values[~missing].mean(dtype=np.float64)) if not missing.all() else 0.0
            return cls(name, mean, missing=bool(missing.any()))
        counts = Counter(values.tolist())
        kept = sorted(counts, key=lambda text: (-counts[text], str(text)))[:MOST_CATEGORIES]
        if len(counts) > len(kept):
            warnings.warn(
                f"{where}, column {name!r} has {len(counts):,} different texts: the {len(kept)} most frequent ones are "
                "features, all others count as unknown",
                stacklevel=5,
            )
        return cls(name, categories=tuple(sorted(kept, key=lambda text: (text is None, str(text)))))

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 + self.missing if self.categories is None else len(self.categories)

    def encode(self, values: NDArray[Any], where: str) -> NDArray[Any]:
        """Return the features ``(rows,)`` or ``(rows, width)`` of values."""
        has_text = values.dtype == object
        missing = np.array([value is None for value in values]) if has_text else np.isnan(values)
        if has_text != (self.categories is not None):
            kinds = ("text", "numbers") if has_text else ("numbers", "text")
            if not missing.all():
                raise RankfallError(f"{where}, column {self.name!r}: found {kinds[0]}, expected {kinds[1]} as in fit")
            values = np.full(len(values), None if self.categories is not None else np.nan)
        if self.categories is not None:
            places = {text: place for place, text in enumerate(self.categories)}
            found = np.array([places.get(text, -1) for text in values.tolist()])
            one_hot: NDArray[np.float32] = (found[:, None] == np.arange(len(places))).astype(np.float32)
            return one_hot
        assert self.mean is not None  # the column has numbers
        known = np.where(missing, self.mean, values) if missing.any() else values
        return np.column_stack([known, missing]) if self.missing else known


@dataclass(frozen=True)
class TableEncoding:
    """How a table becomes features, as fitted on a training table.

    Attributes:
        columns: One entry per column.
        named: Whether the training table was a data frame, whose columns have names.
    """

    columns: list[Column]
    named: bool

    @classmethod
    def fit(cls, table: Any, *, where: str = "X") -> tuple[TableEncoding, NDArray[np.float32]]:
        """Return the encoding of a training table, and its features ``(rows, features)``.

        Args:
            table: NumPy array, torch tensor, pandas or polars data frame, or nested lists.
            where: Name of the argument for error messages.

        Raises:
            ValueError: If values are neither numbers nor text, are infinite, or do not have two dimensions.
        """
        names, values = _read(table, where)
        if not len(values[0]):
            raise RankfallError(f"{where}: found no rows, expected at least one list")
        found = cls([Column.fit(*one, where) for one in zip(names, values, strict=True)], hasattr(table, "columns"))
        return found, found._features(values, where)

    @classmethod
    def load(cls, content: Sequence[Mapping[str, Any]], *, named: bool) -> TableEncoding:
        """Return the encoding that :meth:`to_json` described."""
        return cls(
            [Column(**{**one, "categories": one["categories"] and tuple(one["categories"])}) for one in content], named
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return the columns for a file."""
        return [asdict(column) for column in self.columns]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(column.width for column in self.columns)

    def encode(self, table: Any, *, where: str = "X") -> NDArray[np.float32]:
        """Return the features ``(rows, features)`` of another table with the same columns.

        Raises:
            ValueError: If the columns are others than in fit, or in another order.
        """
        names, values = _read(table, where)
        if hasattr(table, "columns") and self.named and names != self.names:
            other = [name for name in [*names, *self.names] if (name in names) != (name in self.names)]
            raise RankfallError(
                f"{where}: found the columns {', '.join(names)}, expected those of fit in their order"
                + (f"; only one of both has {', '.join(other)}" if other else "")
            )
        if len(values) != len(self.columns):
            raise RankfallError(f"{where}: found {len(values)} features, expected {len(self.columns)} as in fit")
        return self._features(values, where)

    def _features(self, values: Sequence[NDArray[Any]] | NDArray[Any], where: str) -> NDArray[np.float32]:
        is_plain = all(column.categories is None and not column.missing for column in self.columns)
        if isinstance(values, np.ndarray) and is_plain and not np.isnan(values).any():
            stacked = values.T
        else:
            encoded = (column.encode(one, where) for column, one in zip(self.columns, values, strict=True))
            stacked = np.column_stack(list(encoded))
        check_finite(stacked, where, [column.name for column in self.columns for _ in range(column.width)])
        return to_float32(stacked, where)


def _read(table: Any, where: str) -> tuple[list[str], Sequence[NDArray[Any]] | NDArray[Any]]:
    """Return the names of the columns of a table and their values: numbers, or texts in an array of objects."""
    if hasattr(table, "columns"):
        labels = {str(label): label for label in table.columns if str(label) != QID}
        if not labels:
            raise RankfallError(f"{where}: found no feature column, expected at least one")
        if len(labels) < len([label for label in table.columns if str(label) != QID]):
            raise RankfallError(
                f"{where}: found a column twice in {', '.join(map(str, table.columns))}, expected it once"
            )
        return list(labels), [_values(table[label], f"{where}, column {name!r}") for name, label in labels.items()]
    if hasattr(table, "toarray"):
        raise RankfallError(f"{where}: found a sparse matrix, expected a dense one; {where}.toarray() makes it dense")
    values = to_array(table, where=where)
    if values.ndim != 2 or not values.shape[1]:
        raise RankfallError(f"{where}: found shape {values.shape}, expected (rows, features)")
    return [str(number) for number in range(values.shape[1])], values.T


def _values(column: Any, where: str) -> NDArray[Any]:
    """Return numbers, NaN where they are missing, or texts, None where they are missing."""
    kind = str(getattr(column, "dtype", "")).lower()
    if kind == "category":
        column = column.astype(object)  # numbers as categories stay what they are beside missing ones
    array = np.asarray(column.to_numpy())
    if array.ndim != 1 or array.dtype.kind not in "biufOUT":
        raise RankfallError(f"{where}: found {column.dtype}, expected numbers, text or categories")
    if array.dtype.kind in "biuf":
        return array
    values = [None if _is_missing(value) else value for value in array.tolist()]
    if kind == "category":  # whole numbers are floats beside missing ones
        values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    texts = [isinstance(value, str) for value in values if value is not None]
    if kind.partition("[")[0].partition("(")[0] in _TEXT_TYPES or (texts and all(texts)):
        return np.array([None if value is None else str(value) for value in values], dtype=object)
    if any(texts):
        raise RankfallError(f"{where}: found text and numbers, expected one of them")
    try:
        return np.array([np.nan if value is None else float(value) for value in values])
    except (TypeError, ValueError):
        raise RankfallError(f"{where}: found values that are neither numbers nor text, expected one of them") from None


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or one of pandas' own marks, without importing pandas."""
    return (
        value is None or type(value).__name__ == "NAType" or (isinstance(value, float | np.floating) and value != value)
    )
