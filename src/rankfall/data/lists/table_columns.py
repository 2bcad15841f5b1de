"""Columns of data frames and arrays as features: missing numbers, text and categories."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.data.lists.arrays import QID, check_finite, to_array, to_float32

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

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
                raise ValueError(f"{where}, column {self.name!r}: found {kinds[0]}, expected {kinds[1]} as in fit")
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
            raise ValueError(f"{where}: found no rows, expected at least one list")
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
            raise ValueError(
                f"{where}: found the columns {', '.join(names)}, expected those of fit in their order"
                + (f"; only one of both has {', '.join(other)}" if other else "")
            )
        if len(values) != len(self.columns):
            raise ValueError(f"{where}: found {len(values)} features, expected {len(self.columns)} as in fit")
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
            raise ValueError(f"{where}: found no feature column, expected at least one")
        if len(labels) < len([label for label in table.columns if str(label) != QID]):
            raise ValueError(f"{where}: found a column twice in {', '.join(map(str, table.columns))}, expected it once")
        return list(labels), [_values(table[label], f"{where}, column {name!r}") for name, label in labels.items()]
    if hasattr(table, "toarray"):
        raise ValueError(f"{where}: found a sparse matrix, expected a dense one; {where}.toarray() makes it dense")
    values = to_array(table, where=where)
    if values.ndim != 2 or not values.shape[1]:
        raise ValueError(f"{where}: found shape {values.shape}, expected (rows, features)")
    return [str(number) for number in range(values.shape[1])], values.T


def _values(column: Any, where: str) -> NDArray[Any]:
    """Return numbers, NaN where they are missing, or texts, None where they are missing."""
    kind = str(getattr(column, "dtype", "")).lower()
    if kind == "category":
        column = column.astype(object)  # numbers as categories stay what they are beside missing ones
    array = np.asarray(column.to_numpy())
    if array.ndim != 1 or array.dtype.kind not in "biufOUT":
        raise ValueError(f"{where}: found {column.dtype}, expected numbers, text or categories")
    if array.dtype.kind in "biuf":
        return array
    values = [None if _is_missing(value) else value for value in array.tolist()]
    if kind == "category":  # whole numbers are floats beside missing ones
        values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    texts = [isinstance(value, str) for value in values if value is not None]
    if kind.partition("[")[0].partition("(")[0] in _TEXT_TYPES or (texts and all(texts)):
        return np.array([None if value is None else str(value) for value in values], dtype=object)
    if any(texts):
        raise ValueError(f"{where}: found text and numbers, expected one of them")
    try:
        return np.array([np.nan if value is None else float(value) for value in values])
    except (TypeError, ValueError):
        raise ValueError(f"{where}: found values that are neither numbers nor text, expected one of them") from None


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or one of pandas' own marks, without importing pandas."""
    return (
        value is None or type(value).__name__ == "NAType" or (isinstance(value, float | np.floating) and value != value)
    )
