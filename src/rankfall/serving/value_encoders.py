"""From the raw values of a request to what a model sees, by the rules with which the log of its training was made.

The rules are those of :mod:`rankfall.data.impressions.encoding`, which works on whole columns of a log and needs
polars. Here values come from anybody, a few at a time: each is checked, and what is wrong is named.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np

from rankfall._ids import FIRST_KNOWN, MISSING, UNSEEN, hash_numbers, hash_strings
from rankfall.serving.value_checks import (
    BadValueError,
    as_text,
    ids_like,
    is_number,
    is_number_type,
    is_whole,
    number,
    overflows,
    strings,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from rankfall.serving.lookup import Lookup

    Rule = Mapping[str, Any]  # of a feature, as manifests keep it

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}  # microseconds


class Encoder(Protocol):
    """What makes ids or numbers of the values of one feature."""

    @property
    def expected(self) -> str:
        """In words, what it takes."""

    def __call__(self, values: Sequence[object]) -> NDArray[Any]:
        """Ids (n,) int32, or numbers, (n,) or (n, size) float32."""


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
    count = rule["rows"] - FIRST_KNOWN
    return Hashed(count, rule.get("text")) if rule["ids"] == "hash" else Numbered(count)


class Encoders:
    """The encoders of several features, whose values come as columns of one length."""

    def __init__(self, rules: Mapping[str, Rule], vocabularies: Mapping[str, Lookup]) -> None:
        self._each = {name: make_encoder(rule, vocabularies) for name, rule in rules.items()}
        counts = {name: rule["rows"] - FIRST_KNOWN for name, rule in rules.items() if rule.get("ids") == "numbers"}
        self._numbered = list(counts)
        self._counts = np.array(list(counts.values()), np.int64)[:, None]

    @property
    def names(self) -> Collection[str]:
        """The features."""
        return self._each.keys()

    def __call__(
        self, columns: Mapping[str, list[Any]], wrong: Callable[[str, BadValueError], Exception]
    ) -> dict[str, NDArray[Any]]:
        """The ids or numbers of all features; `wrong` makes the error of a value that cannot be taken."""
        found = self._together([columns[name] for name in self._numbered])
        for name, encode in self._each.items():
            if name not in found:
                try:
                    found[name] = encode(columns[name])
                except BadValueError as error:
                    raise wrong(name, error) from None
        return found

    def _together(self, columns: Sequence[list[Any]]) -> dict[str, NDArray[Any]]:
        """The ids of whole numbers, in a few steps for all features; nothing if there is anything else among them."""
        if not columns:
            return {}
        try:
            numbers = np.asarray(array("q", list(chain.from_iterable(columns)))).reshape(len(columns), -1)
        except (TypeError, OverflowError):
            return {}
        known = numbers.view(np.uint64) < self._counts.view(np.uint64)  # as such, negative ones are the largest
        if known.all():
            ids = numbers + FIRST_KNOWN
        elif (numbers >= 0).all():
            ids = np.where(known, numbers + FIRST_KNOWN, UNSEEN)
        else:
            return {}
        return dict(zip(self._numbered, ids.astype(np.int32), strict=True))


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
        if set(value) != {"id"} or not is_whole(number) or not 0 <= number < self._rows:
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
    """Whole numbers or text, hashed into `count` ids.

    7 and "7" have different hashes. If it is known which of them the log had, the other is taken for it.
    """

    count: int
    text: bool | None  # what the log had
    takes_nothing = False

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        return "a whole number" if self.text is False else "a whole number or text"

    def __call__(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """Different ones may share an id."""
        if self.text is None:
            hashes = self._as_they_are(values)
        elif self.text:
            hashes = hash_strings(as_text(values, self.expected))
        else:
            hashes = hash_numbers(whole_numbers([number(value) for value in values], self.expected))
        return FIRST_KNOWN + (hashes % np.uint64(self.count)).astype(np.int64)

    def _as_they_are(self, values: Sequence[Any]) -> NDArray[np.uint64]:
        hashes = np.empty(len(values), np.uint64)
        text = [place for place, value in enumerate(values) if isinstance(value, str)]
        other = [place for place, value in enumerate(values) if not isinstance(value, str)]
        if other:
            hashes[other] = hash_numbers(
                _at(other, lambda: whole_numbers([values[place] for place in other], self.expected))
            )
        if text:
            hashes[text] = _at(text, lambda: hash_strings(strings([values[place] for place in text], self.expected)))
        return hashes


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
            if self.unit is not None and is_whole(value):
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
        if not all(kind is type(None) or is_number_type(kind) for kind in kinds):
            place = next(i for i, value in enumerate(values) if value is not None and not is_number(value))
            raise BadValueError(place, values[place], self.expected)
        try:
            numbers = np.array(values, np.float64)
        except OverflowError:
            place = next(i for i, value in enumerate(values) if overflows(value))
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
