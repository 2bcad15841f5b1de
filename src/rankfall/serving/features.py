"""From the raw values of a request to what a model sees, by the rules with which the log of its training was made.

The rules are those of :mod:`rankfall.data.encoding`, which works on whole columns of a log and needs polars. Here
values come from anybody, a few at a time: each is checked, and what is wrong is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from rankfall._ids import FIRST_KNOWN, MISSING, UNSEEN, hash_numbers, hash_strings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.serving.lookup import Lookup

    Rule = Mapping[str, Any]  # of a feature, as manifests keep it

_LONGEST = 512  # bits of a whole number that stands for text
EXACT = 2**53  # whole numbers below this are exact as floats
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}  # microseconds


class BadValueError(ValueError):
    """A value that a feature cannot take, at a place among those that were given."""

    def __init__(self, place: int, found: object, expected: str) -> None:
        super().__init__(f"found {shown(found)}, expected {expected}")
        self.place = place


class Encoder(Protocol):
    """What makes ids or numbers of the values of one feature."""

    @property
    def expected(self) -> str:
        """In words, what it takes."""

    def __call__(self, values: Sequence[object]) -> NDArray[Any]:
        """Ids (n,) int32, or numbers, (n,) or (n, size) float32."""


def shown(value: object) -> str:
    """A value as messages quote it."""
    try:
        text = "nothing" if value is None else repr(value)
    except (ValueError, RecursionError):  # Python writes out neither numbers of 5,000 digits nor endless lists
        text = f"{type(value).__name__} that is too long to write out"
    return text if len(text) <= 60 else f"{text[:57]}..."


def make_encoder(rule: Rule, vocabularies: Mapping[str, Lookup]) -> Encoder:
    """The encoder of a rule."""
    if rule["kind"] == "time":
        return IdEncoder(Times(rule["part"], rule["unit"], rule["zone"]), rule["rows"])
    if rule["kind"] == "categorical":
        return IdEncoder(_known_values(rule, vocabularies), rule["rows"])
    numbers = Numbers(rule["size"], rule["log1p"], rule["missing"], rule["mean"], rule["deviation"])
    return numbers if rule["edges"] is None else IdEncoder(Buckets(numbers, rule["edges"]), rule["rows"])


def _known_values(rule: Rule, vocabularies: Mapping[str, Lookup]) -> Values:
    if rule["ids"] == "vocabulary":
        return Vocabulary(vocabularies[rule["vocabulary"]], rule["rows"] - FIRST_KNOWN)
    made: Callable[[int], Values] = Hashed if rule["ids"] == "hash" else Numbered
    return made(rule["rows"] - FIRST_KNOWN)


# --- ids ----------------------------------------------------------------------------------------------------------


class Values(Protocol):
    """What gives ids to values that are there."""

    @property
    def expected(self) -> str:
        """In words, what it takes."""

    @property
    def takes_nothing(self) -> bool:
        """Whether it has ids of its own for what is missing."""

    def __call__(self, values: Sequence[Any]) -> NDArray[Any]:
        """The ids of values."""


class IdEncoder:
    """Ids of values. Nothing has the id 0, and ``{"id": 7}`` is an id already."""

    def __init__(self, values: Values, rows: int) -> None:
        self._values = values
        self._rows = rows

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        return self._values.expected

    def __call__(self, values: Sequence[object]) -> NDArray[np.int32]:
        """The ids of values."""
        kinds = set(map(type, values))
        if type(None) not in kinds and not any(issubclass(kind, Mapping) for kind in kinds):
            return self._values(values).astype(np.int32, copy=False)
        ids = np.full(len(values), MISSING, np.int32)
        plain: list[int] = []
        for place, value in enumerate(values):
            if isinstance(value, Mapping):
                ids[place] = self._given(place, value)
            elif value is not None or self._values.takes_nothing:
                plain.append(place)
        if plain:
            ids[plain] = _at(plain, lambda: self._values([values[place] for place in plain]))
        return ids

    def _given(self, place: int, value: Mapping[Any, Any]) -> int:
        number: Any = value.get("id")
        if set(value) != {"id"} or not _is_whole(number) or not 0 <= number < self._rows:
            raise BadValueError(place, value, f'{self.expected}, or {{"id": 0 to {self._rows - 1}}}')
        return int(number)


def _at(places: Sequence[int], encode: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Encode some of several values; what is wrong is named by its place among all of them."""
    try:
        return encode()
    except BadValueError as error:
        error.place = places[error.place]
        raise


@dataclass(frozen=True)
class Numbered:
    """Whole numbers below `count`."""

    count: int
    takes_nothing = False

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        return "a whole number from 0 on"

    def __call__(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """Larger ones were never seen."""
        numbers = whole_numbers(values, self.expected)
        if (numbers < 0).any():
            place = int((numbers < 0).argmax())
            raise BadValueError(place, values[place], self.expected)
        return np.where(numbers < self.count, numbers + FIRST_KNOWN, UNSEEN)


@dataclass(frozen=True)
class Hashed:
    """Whole numbers or text, hashed into `count` ids."""

    count: int
    expected = "a whole number or text"
    takes_nothing = False

    def __call__(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """Different ones may share an id."""
        hashes = np.empty(len(values), np.uint64)
        text = [place for place, value in enumerate(values) if isinstance(value, str)]
        if len(text) == len(values):
            hashes[:] = hash_strings(strings(values, self.expected))
        else:
            other = [place for place, value in enumerate(values) if not isinstance(value, str)]
            hashes[other] = hash_numbers(
                _at(other, lambda: whole_numbers([values[place] for place in other], self.expected))
            )
            if text:
                hashes[text] = _at(
                    text, lambda: hash_strings(strings([values[place] for place in text], self.expected))
                )
        return FIRST_KNOWN + (hashes % np.uint64(self.count)).astype(np.int64)


@dataclass(frozen=True)
class Vocabulary:
    """The first `count` values of a list."""

    known: Lookup
    count: int
    takes_nothing = False

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        return "text" if self.known.is_text else "a whole number"

    def __call__(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """Others were never seen."""
        places = self.known.find(ids_like(self.known, values, self.expected))
        return np.where((places >= 0) & (places < self.count), places + FIRST_KNOWN, UNSEEN)


@dataclass(frozen=True)
class Times:
    """A part of points in time, in a time zone."""

    part: str
    unit: str | None
    zone: str
    takes_nothing = False

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        number = "" if self.unit is None else f", or a whole number of {self.unit} since 1970"
        return f"a time such as 2024-01-13T08:30:00{number}"

    def __call__(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """Parts are counted from 0, and Monday is the first day of a week."""
        moments = self.moments(values)
        match self.part:
            case "month":
                parts = [moment.month - 1 for moment in moments]
            case "weekday":
                parts = [moment.weekday() for moment in moments]
            case "hour":
                parts = [moment.hour for moment in moments]
            case _:
                parts = [moment.minute for moment in moments]
        return np.array(parts, np.int64) + FIRST_KNOWN

    def moments(self, values: Sequence[Any]) -> list[datetime]:
        """Points in time, in the zone."""
        zone = ZoneInfo(self.zone)
        return [self._moment(place, value, zone) for place, value in enumerate(values)]

    def _moment(self, place: int, value: Any, zone: ZoneInfo) -> datetime:
        try:
            if isinstance(value, str | datetime):
                return _local(datetime.fromisoformat(value.strip()) if isinstance(value, str) else value, zone)
            if self.unit is not None and _is_whole(value):
                return (_EPOCH + timedelta(microseconds=int(value) * _UNITS[self.unit])).astimezone(zone)
        except (ValueError, OverflowError):
            pass
        raise BadValueError(place, value, self.expected)


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    """A time in the zone; one without a zone is the zone's own."""
    if moment.tzinfo is not None:
        return moment.astimezone(zone)
    local = moment.replace(tzinfo=zone)
    if local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != moment:
        raise ValueError("the clocks were put forward over that time")
    return local


@dataclass(frozen=True)
class Buckets:
    """Between which edges numbers fall."""

    numbers: Numbers
    edges: Sequence[float]
    takes_nothing = True  # what stands for it falls between edges, too

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        return self.numbers.expected

    def __call__(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """A bucket starts with its edge."""
        return FIRST_KNOWN + np.searchsorted(np.array(self.edges), self.numbers.raw(values), side="right")


# --- numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """A number, or a vector of them, after a logarithm, what stands for nothing, and a scaling."""

    size: int
    log1p: bool
    missing: float | None
    mean: Sequence[float] | None
    deviation: Sequence[float] | None

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        return "a finite number" if self.size == 1 else f"a list of {self.size} finite numbers"

    def __call__(self, values: Sequence[object]) -> NDArray[np.float32]:
        """The numbers that a model sees, which are finite."""
        numbers = self.raw(values)
        if self.mean is not None:
            numbers = (numbers - np.array(self.mean)) / np.array(self.deviation)
        with np.errstate(over="ignore"):
            scaled = numbers.astype(np.float32)
        self._refuse(values, ~np.isfinite(scaled), "a number that is not so large")
        return scaled

    def raw(self, values: Sequence[object]) -> NDArray[np.float64]:
        """The numbers before anything that is fitted."""
        numbers = self._vectors(values) if self.size > 1 else self._singles(values)
        self._refuse(values, np.isinf(numbers), self.expected)
        if self.log1p:
            numbers = np.copysign(np.log1p(np.abs(numbers)), numbers)
        if np.isnan(numbers).any():  # nothing
            if self.missing is None:
                place = int(np.isnan(numbers).reshape(len(values), -1).any(axis=1).argmax())
                raise BadValueError(place, values[place], self.expected)
            numbers = np.where(np.isnan(numbers), self.missing, numbers)
        return numbers

    def _singles(self, values: Sequence[Any]) -> NDArray[np.float64]:
        """One number each, NaN for nothing; NaN itself is refused."""
        kinds = set(map(type, values))
        if not all(kind is type(None) or _is_number_type(kind) for kind in kinds):
            place = next(i for i, value in enumerate(values) if value is not None and not _is_number(value))
            raise BadValueError(place, values[place], self.expected)
        try:
            numbers = np.array(values, np.float64)
        except OverflowError:
            place = next(i for i, value in enumerate(values) if _overflows(value))
            raise BadValueError(place, values[place], self.expected) from None
        for place in np.flatnonzero(np.isnan(numbers)).tolist():
            if values[place] is not None:
                raise BadValueError(place, values[place], self.expected)
        return numbers

    def _vectors(self, values: Sequence[Any]) -> NDArray[np.float64]:
        lists = [[None] * self.size if value is None else value for value in values]
        for place, value in enumerate(lists):
            if not isinstance(value, list | tuple | np.ndarray) or len(value) != self.size:
                raise BadValueError(place, value, self.expected)
        try:
            return self._singles(list(chain.from_iterable(lists))).reshape(len(values), self.size)
        except BadValueError as error:
            place = error.place // self.size
            raise BadValueError(place, values[place], self.expected) from None

    def _refuse(self, values: Sequence[object], bad: NDArray[np.bool_], expected: str) -> None:
        if bad.any():
            place = int(bad.reshape(len(values), -1).any(axis=1).argmax())
            raise BadValueError(place, values[place], expected)


# --- kinds of values ----------------------------------------------------------------------------------------------


def ids_like(known: Lookup, values: Sequence[Any], expected: str) -> pa.Array:
    """Values of the sort of known ones: text, for which whole numbers are written out, or whole numbers."""
    if not known.is_text:
        return pa.array(whole_numbers(values, expected))
    if all(kind is str for kind in set(map(type, values))):
        return strings(values, expected)
    return strings([_written(place, value, expected) for place, value in enumerate(values)], expected)


def _written(place: int, value: Any, expected: str) -> str:
    """Text, or the text that a log makes of a boolean or a whole number."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if not _is_whole(value) or int(value).bit_length() > _LONGEST:
        raise BadValueError(place, value, expected)
    return str(int(value))


def strings(values: Sequence[Any], expected: str) -> pa.Array:
    """Text as Arrow keeps it."""
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        place = next(i for i, value in enumerate(values) if any("\ud800" <= sign <= "\udfff" for sign in value))
        raise BadValueError(place, values[place], expected) from None


def whole_numbers(values: Sequence[Any], expected: str) -> NDArray[np.int64]:
    """Whole numbers below 2^63, of which some may be written as floats."""
    if all(issubclass(kind, int) for kind in set(map(type, values))):
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    for place, value in enumerate(values):
        if not _is_whole(value) or not -(2**63) <= int(value) < 2**63:
            raise BadValueError(place, value, expected)
    return np.array([int(value) for value in values], np.int64)


def _is_whole(value: Any) -> bool:
    if isinstance(value, int | np.integer | np.bool_):
        return True
    return isinstance(value, float | np.floating) and abs(float(value)) < EXACT and float(value).is_integer()


def _is_number_type(kind: type) -> bool:
    return issubclass(kind, int | float | np.integer | np.floating | np.bool_)


def _is_number(value: object) -> bool:
    return _is_number_type(type(value))


def _overflows(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]  # a number or nothing
    except OverflowError:
        return True
    except TypeError:
        return False
    return False
