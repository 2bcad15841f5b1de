"""One rule per kind of feature, each on an array of one type without missing values.

============== ============================================= ======================================
rule           input                                         output
============== ============================================= ======================================
NumberedIds    int64                                         ids
HashedIds      int64 or Arrow strings                        ids
VocabularyIds  int64 or strings in Arrow, as its values are  ids
TimePart       local time, int64 milliseconds since 1970     ids
Buckets        float64, NaN for missing                      ids
Numbers        float64 (n,) or (n, size), NaN for missing    float32 of the same shape, or (n, 2 size)
============== ============================================= ======================================

Manifests of bundles store rules as JSON (`to_json`, :func:`rule_from_json`). The `rows` of a rule are those of the
embedding table of its ids. A trained model may have fewer of them than a log that was prepared later: values beyond
its table are unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from rankfall.encoding.hashing import hash_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall.encoding.lookup import Lookup

    Ids = NDArray[np.int64]
    Floats = NDArray[np.float64]

MISSING = 0  # the id of missing values and of padding
UNSEEN = 1  # the id of all values without an id when ids were assigned
FIRST_KNOWN = 2

_HOUR, _DAY = 3_600_000, 86_400_000  # milliseconds
_THURSDAY = 3  # the weekday of 1970-01-01


class BadValueError(ValueError):
    """A value that a feature does not accept; `position` is its index among the given values."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


# --- categories ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumberedIds:
    """Integers from 0 on, each with its own id; those beyond the table are unseen."""

    rows: int

    def ids(self, numbers: NDArray[np.int64]) -> Ids:
        """Return the ids of integers; raise :class:`BadValueError` for a negative one."""
        return number_ids(numbers, self.rows - FIRST_KNOWN)

    def to_json(self) -> dict[str, Any]:
        """Return the rule as stored in manifests."""
        return {"kind": "categorical", "rows": self.rows, "ids": "numbers"}


def number_ids(numbers: NDArray[np.int64], count: int | NDArray[np.int64]) -> Ids:
    """Return the ids of integers; those below `count`, which broadcasts, have distinct ids, the others are unseen."""
    known = numbers.view(np.uint64) < np.asarray(count, np.uint64)  # negative numbers are the largest as unsigned ones
    if known.all():
        return numbers + FIRST_KNOWN
    if (negative := numbers < 0).any():
        position = int(negative.argmax())
        raise BadValueError(f"found {numbers.flat[position]}, expected at least 0", position)
    return np.where(known, numbers + FIRST_KNOWN, UNSEEN)


@dataclass(frozen=True, slots=True)
class HashedIds:
    """Integers or strings hashed into the rows of a table; several may share an id.

    7 and "7" have different hashes. `text` is what the log had: True for strings, None if it is unknown.
    """

    rows: int
    text: bool | None = None

    def ids(self, values: NDArray[np.int64] | pa.Array) -> Ids:
        """Return the ids of integers or strings."""
        return FIRST_KNOWN + (hash_array(values) % np.uint64(self.rows - FIRST_KNOWN)).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return the rule as stored in manifests."""
        return {"kind": "categorical", "rows": self.rows, "ids": "hash", "text": self.text}


@dataclass(frozen=True, slots=True)
class VocabularyIds:
    """Values of a vocabulary, with ids in its order; others are unseen."""

    rows: int
    table: str  # of embeddings, which names the vocabulary
    known: Lookup

    def ids(self, values: pa.Array) -> Ids:
        """Return the ids of integers or strings."""
        places = self.known.find(values)
        return np.where((places >= 0) & (places < self.rows - FIRST_KNOWN), places + FIRST_KNOWN, UNSEEN)

    def to_json(self) -> dict[str, Any]:
        """Return the rule as stored in manifests."""
        ids = {"ids": "vocabulary", "vocabulary": self.table, "text": self.known.is_text}
        return {"kind": "categorical", "rows": self.rows, **ids}


# --- times --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimePart:
    """The month, weekday (0 is Monday), hour or minute of a time in a time zone.

    `unit` (s, ms, us) is that of times given as integers, None if they are not accepted. With `of_request` the time is
    that of the request.
    """

    rows: int
    part: str
    unit: Literal["s", "ms", "us"] | None
    zone: str
    of_request: bool

    def ids(self, local: NDArray[np.int64]) -> Ids:
        """Return the ids of local times, in milliseconds since 1970 in the zone."""
        match self.part:
            case "month":
                parts = local.view("M8[ms]").astype("M8[M]").view(np.int64) % 12
            case "weekday":
                parts = (local // _DAY + _THURSDAY) % 7
            case "hour":
                parts = local // _HOUR % 24
            case _:
                parts = local // 60_000 % 60
        return parts + FIRST_KNOWN

    def to_json(self) -> dict[str, Any]:
        """Return the rule as stored in manifests."""
        time = {"part": self.part, "unit": self.unit, "zone": self.zone, "of_request": self.of_request}
        return {"kind": "time", "rows": self.rows, **time}


# --- numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Numbers, or vectors of `size` numbers: sign(v) log(1 + abs(v)) if `log1p`, then `missing`, then the scaling.

    Infinite numbers count as missing. Missing numbers are an error if `missing` is None. With `indicator` a model also
    receives, after the numbers, as many indicators, which are 1 where a number is missing and 0 elsewhere.
    """

    size: int
    log1p: bool
    missing: float | None
    mean: Floats | None = None
    deviation: Floats | None = None
    indicator: bool = False
    rows: ClassVar[int] = 0  # numbers have no embedding table

    def encode(self, numbers: Floats) -> NDArray[np.float32]:
        """Return the numbers that a model receives."""
        encoded = self.filled(numbers)
        if self.mean is not None and self.deviation is not None:
            encoded = (encoded - self.mean) / self.deviation
        if self.indicator:
            columns = encoded.reshape(len(numbers), -1), self.is_missing(numbers).reshape(len(numbers), -1)
            encoded = np.concatenate(columns, axis=1)
        return encoded.astype(np.float32)

    def is_missing(self, numbers: Floats) -> NDArray[np.bool_]:
        """Return which numbers are missing."""
        return ~np.isfinite(numbers)

    def filled(self, numbers: Floats) -> Floats:
        """Return the numbers after `log1p` and `missing`, to which scalings and buckets are fitted."""
        if self.log1p:
            numbers = np.copysign(np.log1p(np.abs(numbers)), numbers)
        finite = np.isfinite(numbers)
        if finite.all():
            return numbers
        if self.missing is None:
            position = int((~finite).reshape(len(numbers), -1).any(axis=1).argmax())
            raise BadValueError("found no finite number", position)
        return np.where(finite, numbers, self.missing)

    def to_json(self) -> dict[str, Any]:
        """Return the rule as stored in manifests."""
        return self.with_edges(self.rows, None)

    def with_edges(self, rows: int, edges: list[float] | None) -> dict[str, Any]:
        """Return the entry of a dense feature in manifests; edges make it one with ids."""
        mean, deviation = (None if of is None else of.tolist() for of in (self.mean, self.deviation))
        values = {"size": self.size, "log1p": self.log1p, "missing": self.missing, "edges": edges}
        indicator = {"indicator": True} if self.indicator else {}
        return {"kind": "dense", "rows": rows, **values, **indicator, "mean": mean, "deviation": deviation}


@dataclass(frozen=True, slots=True)
class Buckets:
    """Numbers between edges: a bucket includes its lower edge. With an indicator, missing numbers have their own id."""

    rows: int
    numbers: Numbers
    edges: list[float]

    def ids(self, numbers: Floats) -> Ids:
        """Return the ids of the buckets of numbers."""
        ids = FIRST_KNOWN + np.searchsorted(np.array(self.edges), self.numbers.filled(numbers), side="right")
        return np.where(self.numbers.is_missing(numbers), MISSING, ids) if self.numbers.indicator else ids

    def to_json(self) -> dict[str, Any]:
        """Return the rule as stored in manifests."""
        return self.numbers.with_edges(self.rows, self.edges)


IdRule = NumberedIds | HashedIds | VocabularyIds | TimePart | Buckets
Rule = IdRule | Numbers


def rule_from_json(content: Mapping[str, Any], vocabularies: Mapping[str, Lookup]) -> Rule:
    """Return the rule of an entry of a manifest.

    Args:
        content: The entry, as `to_json` returns it.
        vocabularies: The values of vocabularies by embedding table.
    """
    rows: int = content["rows"]
    if content["kind"] == "time":
        return TimePart(rows, content["part"], content["unit"], content["zone"], content["of_request"])
    if content["kind"] == "categorical":
        if content["ids"] == "vocabulary":
            return VocabularyIds(rows, content["vocabulary"], vocabularies[content["vocabulary"]])
        return HashedIds(rows, content["text"]) if content["ids"] == "hash" else NumberedIds(rows)
    mean, deviation = (None if content[key] is None else np.array(content[key]) for key in ("mean", "deviation"))
    indicator = content.get("indicator", False)
    numbers = Numbers(content["size"], content["log1p"], content["missing"], mean, deviation, indicator)
    return numbers if content["edges"] is None else Buckets(rows, numbers, content["edges"])
