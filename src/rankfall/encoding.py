"""Rules that encode raw values as ids of embedding rows or as numbers.

Preparing a log and answering a request use the same rules, so a value has the same id in both:

- :mod:`rankfall.data.impressions.encoding` applies them to the columns of a log;
- :mod:`rankfall.serving.value_encoders` applies them to the values of a request, after checking each of them.

This module needs numpy and pyarrow alone: a bundle answers without polars, pydantic and torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall._errors import RankfallError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Ids = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Places = NDArray[np.int32]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0xD6E8FEB86659FD93)  # odd, so that its powers never vanish


def hash_array(values: NDArray[np.int64] | pa.Array, seed: int = 0) -> Hashes:
    """Return the hashes of integers, or of an Arrow array of integers or strings, without nulls."""
    if not isinstance(values, pa.Array):
        return hash_numbers(values, seed)
    if is_text(values):
        return hash_strings(values, seed)
    return hash_numbers(values.cast(pa.int64()).to_numpy(zero_copy_only=False), seed)


def is_text(values: pa.Array) -> bool:
    """Return whether an Arrow array holds strings."""
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def hash_numbers(values: NDArray[np.int64], seed: int = 0) -> Hashes:
    """Return the hashes of integers; different integers have different hashes."""
    return combine(np.full(len(values), seed, np.uint64), values.view(np.uint64))


def hash_strings(values: pa.Array, seed: int = 0) -> Hashes:
    """Return the hashes of an Arrow array of strings."""
    return combine(np.full(len(values), seed, np.uint64), _fold_strings(values.cast(pa.large_string())))


def combine(*parts: NDArray[Any] | np.uint64) -> Hashes:
    """Combine several hashes into one, which depends on their order."""
    mixed = np.uint64(0)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
        for part in parts:
            mixed = _mix(mixed ^ np.asarray(part, np.uint64))
    hashes: Hashes = np.asarray(mixed)
    return hashes


def _mix(bits: Any) -> Any:
    """Spread every bit over all others (the finalizer of splitmix64, Steele et al. 2014)."""
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _fold_strings(strings: Any) -> Hashes:
    """Evaluate the bytes of each string as a polynomial modulo 2^64, for all strings at once."""
    _, offsets, data = strings.buffers()
    edges = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    first, last = int(edges[0]), int(edges[-1])
    content = np.frombuffer(data, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)
    lengths = np.diff(edges)
    places = np.arange(last - first) - np.repeat(edges[:-1] - first, lengths)
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _BASE))
        terms = (content.astype(np.uint64) + np.uint64(1)) * powers[places]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
        folded: Hashes = sums[edges[1:] - first] - sums[edges[:-1] - first]
    return folded


MISSING = 0  # the id of missing values and of padding
UNSEEN = 1  # the id of all values without an id when ids were assigned
FIRST_KNOWN = 2

_HOUR, _DAY = 3_600_000, 86_400_000  # milliseconds
_THURSDAY = 3  # the weekday of 1970-01-01


class BadValueError(RankfallError):
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


NOWHERE = -1
_MANY = 1024  # queries from which on a hash table may be built,
_PER_QUERY = 16  # if it has at most this number of values per query


class Lookup:
    """Index of the positions of distinct values.

    Args:
        values: Integers or strings without duplicates.
        hashes: Their sorted hashes, and
        places: the position in `values` of each hash; by default both are computed when they are first needed.
    """

    def __init__(self, values: pa.Array, hashes: Hashes | None = None, places: Places | None = None) -> None:
        self.values = values
        self._sorted = None if hashes is None or places is None else (hashes, places)

    @classmethod
    def of(cls, values: pa.Array, *, name: str) -> Lookup:
        """Build the index of values and check that they are distinct.

        Args:
            values: Integers or strings.
            name: Name of the values in error messages.

        Raises:
            ValueError: A value occurs twice, or two values have the same hash.
        """
        hashes, places = _sort_hashes(values)
        if (same := np.flatnonzero(hashes[1:] == hashes[:-1])).size:
            one, other = (values[int(places[place])].as_py() for place in (same[0], same[0] + 1))
            what = "occurs twice" if one == other else f"and {other!r} have the same hash"
            raise RankfallError(f"{name}: {one!r} {what}")
        return cls(values, hashes, places)

    @property
    def is_text(self) -> bool:
        """Whether the values are strings."""
        return is_text(self.values)

    def columns(self) -> dict[str, Any]:
        """Return the sorted hashes and their positions as columns to store beside the values."""
        hashes, places = self._hashes()
        return {"hash": hashes, "place": places}

    def find(self, queries: pa.Array) -> NDArray[np.int64]:
        """Return the position of each query, -1 for those that are not among the values.

        Args:
            queries: Integers or strings as the values are, without nulls.
        """
        if not len(self.values):
            return np.full(len(queries), NOWHERE)
        if len(queries) >= max(_MANY, len(self.values) // _PER_QUERY):
            found = pc.index_in(queries, value_set=self.values.cast(queries.type))
            return np.asarray(found.fill_null(NOWHERE)).astype(np.int64)
        hashes, places = self._hashes()
        at = np.searchsorted(hashes, hash_array(queries))
        candidates = places[np.minimum(at, len(places) - 1)].astype(np.int64)
        # cast the values, not the queries: a query may exceed the range of the values' type
        same = pc.equal(self.values.take(pa.array(candidates)).cast(queries.type), queries)
        return np.where(same.to_numpy(zero_copy_only=False), candidates, NOWHERE)

    def _hashes(self) -> tuple[Hashes, Places]:
        if self._sorted is None:
            self._sorted = _sort_hashes(self.values)
        return self._sorted


def _sort_hashes(values: pa.Array) -> tuple[Hashes, Places]:
    hashes = hash_array(values)
    places = np.argsort(hashes, kind="stable").astype(np.int32)
    return hashes[places], places


def plain_values(values: pa.Array) -> pa.Array:
    """Return integers and booleans as int64, everything else as strings."""
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.large_string())
