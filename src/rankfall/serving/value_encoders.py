"""Encode the raw values of requests as models receive them.

The rules are those of :mod:`rankfall.encoding`, which the log of the training run was prepared with. Requests come from
anywhere, so each value is checked first, and an error names the one that is wrong.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.encoding import (
    FIRST_KNOWN,
    MISSING,
    BadValueError,
    Buckets,
    HashedIds,
    NumberedIds,
    Numbers,
    TimePart,
    VocabularyIds,
    number_ids,
)
from rankfall.option_types import LARGEST, MOST_DEVIATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from rankfall.encoding import IdRule, Lookup, Rule

    Ids = NDArray[np.int64]
    Read = Callable[[Sequence[Any], str], Any]  # values, and what is expected of them -> the array that a rule takes

INTEGER_TEXT = re.compile("0|-?[1-9][0-9]{0,17}")  # integers as programs write them
_MAX_BITS = 512  # of an integer that is given for text
_EXACT = 2**53  # integers below this are exact as floats


def bad_value(position: int, found: object, expected: str) -> BadValueError:
    """Return the error for a value at a position."""
    return BadValueError(f"found {shown(found)}, expected {expected}", position)


def shown(value: object) -> str:
    """Return a value as quoted in messages, cut off if it is long."""
    try:
        text = "nothing" if value is None else repr(value)
    except (ValueError, RecursionError):  # Python converts neither integers of 5,000 digits nor recursive lists
        text = f"{type(value).__name__} that is too long to write out"
    return text if len(text) <= 60 else f"{text[:57]}..."


def field_of(where: str, key: object) -> str:
    """Return the field that an error about a key names: the key itself if it is a short identifier, else its parent."""
    return f"{where}.{key}" if isinstance(key, str) and key.isidentifier() and len(key) <= 60 else where


# --- integers and text --------------------------------------------------------------------------------------------


def integers(values: Sequence[Any], expected: str) -> NDArray[np.int64]:
    """Return integers below 2^63, some of which may be given as floats."""
    try:
        return np.asarray(array("q", values))  # refuses everything but integers
    except (TypeError, OverflowError):
        pass
    for position, value in enumerate(values):
        if not is_integer(value) or not -(2**63) <= int(value) < 2**63:
            is_large = _is_number_type(type(value)) and abs(value) >= _EXACT
            raise bad_value(position, value, f"{expected}, below 2^63" if is_large else expected)
    return np.array([int(value) for value in values], np.int64)


def integers_or_their_text(values: Sequence[Any], expected: str) -> NDArray[np.int64]:
    """Return integers, some of which may be given as text."""
    parsed = [int(value) if isinstance(value, str) and INTEGER_TEXT.fullmatch(value) else value for value in values]
    return integers(parsed, expected)


def texts(values: Sequence[Any], expected: str) -> pa.Array:
    """Return text; integers and booleans are converted to the text that a log makes of them."""
    if any(kind is not str for kind in set(map(type, values))):
        converted = []
        for position, value in enumerate(values):
            if isinstance(value, bool | np.bool_):
                converted.append("true" if value else "false")
            elif not isinstance(value, str) and (not is_integer(value) or int(value).bit_length() > _MAX_BITS):
                raise bad_value(position, value, expected)
            else:
                converted.append(value if isinstance(value, str) else str(int(value)))
        values = converted
    return text_array(values, expected)


def text_array(values: Sequence[str], expected: str) -> pa.Array:
    """Return text as an Arrow array."""
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can express
        position = next(i for i, value in enumerate(values) if any("\ud800" <= sign <= "\udfff" for sign in value))
        raise bad_value(position, values[position], expected) from None


def values_like(known: Lookup, values: Sequence[Any], expected: str) -> pa.Array:
    """Return values of the type of known ones: text or integers."""
    return texts(values, expected) if known.is_text else pa.array(integers(values, expected))


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer, possibly given as a float."""
    if isinstance(value, int | np.integer | np.bool_):
        return True
    return isinstance(value, float | np.floating) and abs(float(value)) < _EXACT and float(value).is_integer()


# --- numbers ------------------------------------------------------------------------------------------------------


def finite_numbers(values: Sequence[Any], expected: str, *, size: int) -> NDArray[np.float64]:
    """Return finite numbers (n,), or vectors (n, size) if `size` is above 1; None becomes NaN, NaN is refused."""
    if size == 1:
        return _single_numbers(values, expected)
    lists = [[None] * size if value is None else value for value in values]
    for position, value in enumerate(lists):
        if not isinstance(value, list | tuple | np.ndarray) or len(value) != size:
            raise bad_value(position, value, expected)
    try:
        return _single_numbers(list(chain.from_iterable(lists)), expected).reshape(len(values), size)
    except BadValueError as error:
        position = error.position // size
        raise bad_value(position, values[position], expected) from None


def _single_numbers(values: Sequence[Any], expected: str) -> NDArray[np.float64]:
    if not all(kind is type(None) or _is_number_type(kind) for kind in set(map(type, values))):
        position = next(i for i, value in enumerate(values) if value is not None and not _is_number_type(type(value)))
        raise bad_value(position, values[position], expected)
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:  # of an integer, which no float is as large as
        position = next(
            i for i, value in enumerate(values) if isinstance(value, int) and abs(value) > sys.float_info.max
        )
        raise bad_value(position, values[position], expected) from None
    for position in np.flatnonzero(~np.isfinite(numbers)).tolist():
        if values[position] is not None:
            raise bad_value(position, values[position], expected)
    return numbers


def _is_number_type(kind: type) -> bool:
    return issubclass(kind, int | float | np.integer | np.floating | np.bool_)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class Encoders:
    """Encoders of several features whose values are given as columns of the same length.

    Args:
        rules: The rules by feature.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._encoders = {name: make_encoder(rule) for name, rule in rules.items()}
        numbered = {name: rule for name, rule in rules.items() if isinstance(rule, NumberedIds)}
        self._numbered = list(numbered)
        self._counts = np.array([[rule.rows - FIRST_KNOWN] for rule in numbered.values()], np.int64)

    @property
    def names(self) -> Collection[str]:
        """The names of the features."""
        return self._encoders.keys()

    def encode(
        self, columns: Mapping[str, list[Any]], error_for: Callable[[str, BadValueError], Exception]
    ) -> dict[str, NDArray[Any]]:
        """Encode the columns of all features.

        Args:
            columns: The values by feature.
            error_for: Returns the exception to raise for a value that a feature does not accept.
        """
        encoded: dict[str, NDArray[Any]] = {}
        if self._numbered:  # all of them at once, or none if a value needs a closer look
            try:
                flat = array("q", list(chain.from_iterable(columns[name] for name in self._numbered)))
                ids = number_ids(np.asarray(flat).reshape(len(self._numbered), -1), self._counts)
                encoded = dict(zip(self._numbered, ids.astype(np.int32), strict=True))
            except (TypeError, OverflowError, BadValueError):
                pass
        for name, encoder in self._encoders.items():
            if name not in encoded:
                try:
                    encoded[name] = encoder.encode(columns[name])
                except BadValueError as error:
                    raise error_for(name, error) from None
        return encoded


def make_encoder(rule: Rule) -> NumberEncoder | IdEncoder:
    """Return the encoder of a rule."""
    match rule:
        case Numbers():
            return NumberEncoder(rule)
        case Buckets():
            size = rule.numbers.size
            return IdEncoder(rule, partial(finite_numbers, size=size), _expected_number(size), accepts_none=True)
        case NumberedIds():
            return IdEncoder(rule, integers, "a whole number from 0 on")
        case VocabularyIds():
            return IdEncoder(rule, partial(values_like, rule.known), "text" if rule.known.is_text else "a whole number")
        case TimePart():
            times = Times(rule.unit, rule.zone)
            return IdEncoder(rule, lambda values, expected: times.local_milliseconds(values), times.expected)
        case HashedIds(text=False):
            return IdEncoder(rule, integers_or_their_text, "a whole number")
        case HashedIds(text=text):
            return IdEncoder(rule, texts if text else None, "a whole number or text")


# --- ids ----------------------------------------------------------------------------------------------------------


class IdEncoder:
    """Encoder of values as ids. None has the id 0, and ``{"id": 7}`` gives an id itself.

    Args:
        rule: The rule.
        read: Returns the array that the rule takes. None: integers and text, of which it is unknown which the log had.
        expected: The accepted values, in words.
        accepts_none: Whether the rule has an id for None, as that of buckets with a number that replaces missing ones.
    """

    def __init__(self, rule: IdRule, read: Read | None, expected: str, *, accepts_none: bool = False) -> None:
        self._rule: Any = rule
        self._read = read
        self._expected = expected
        self._accepts_none = accepts_none

    def encode(self, values: Sequence[Any]) -> NDArray[np.int32]:
        """Return the ids of values."""
        kinds = set(map(type, values))
        is_plain = type(None) not in kinds and not any(issubclass(kind, Mapping) for kind in kinds)
        if is_plain and self._read is not None:
            return self._ids(self._read, values).astype(np.int32, copy=False)
        ids = np.full(len(values), MISSING, np.int32)
        plain: list[int] = []
        for position, value in enumerate(values):
            if isinstance(value, Mapping):
                number: Any = value.get("id")
                if set(value) != {"id"} or not is_integer(number) or not 0 <= number < self._rule.rows:
                    raise bad_value(position, value, f'{self._expected}, or {{"id": 0 to {self._rule.rows - 1}}}')
                ids[position] = number
            elif value is not None or self._accepts_none:
                plain.append(position)
        parts: list[tuple[Read, list[int]]] = [(self._read or integers, plain)]
        if self._read is None:
            of_text = [position for position in plain if isinstance(values[position], str)]
            of_numbers = [position for position in plain if not isinstance(values[position], str)]
            parts = [(integers, of_numbers), (text_array, of_text)]
        for read, positions in parts:
            if positions:
                try:
                    ids[positions] = self._ids(read, [values[position] for position in positions])
                except BadValueError as error:
                    raise BadValueError(str(error), positions[error.position]) from None
        return ids

    def _ids(self, read: Read, values: Sequence[Any]) -> Ids:
        array = read(values, self._expected)
        try:
            ids: Ids = self._rule.ids(array)
        except BadValueError as error:
            raise bad_value(error.position, values[error.position], self._expected) from None
        return ids


# --- times --------------------------------------------------------------------------------------------------------


class Times:
    """Reader of times in ISO 8601 or, with a unit, as integers since 1970.

    Args:
        unit: Unit of integers (s, ms, us); None refuses them.
        zone: Time zone of times without one.
    """

    def __init__(self, unit: str | None, zone: str) -> None:
        self._unit = unit
        self._zone = ZoneInfo(zone)
        integers = "" if unit is None else f", or a whole number of {unit} since 1970"
        self.expected = f"a time such as 2024-01-13T08:30:00{integers}"

    def local_milliseconds(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """Return local times in milliseconds since 1970."""
        moments = [moment.replace(tzinfo=UTC) - _EPOCH for moment in self.read(values)]
        return np.array([moment // _MILLISECOND for moment in moments], np.int64)

    def milliseconds(self, values: Sequence[Any]) -> list[int]:
        """Return times in milliseconds since 1970."""
        return [(moment - _EPOCH) // _MILLISECOND for moment in self.read(values)]

    def read(self, values: Sequence[Any]) -> list[datetime]:
        """Return times in the zone."""
        moments = []
        for position, value in enumerate(values):
            try:
                if isinstance(value, str | datetime):
                    moments.append(
                        self._local(datetime.fromisoformat(value.strip()) if isinstance(value, str) else value)
                    )
                elif self._unit is not None and is_integer(value):
                    since = timedelta(microseconds=int(value) * _MICROSECONDS[self._unit])
                    moments.append((_EPOCH + since).astimezone(self._zone))
                else:
                    raise bad_value(position, value, self.expected)
            except (ValueError, OverflowError):
                raise bad_value(position, value, self.expected) from None
        return moments

    def _local(self, moment: datetime) -> datetime:
        if moment.tzinfo is not None:
            return moment.astimezone(self._zone)
        local = moment.replace(tzinfo=self._zone)
        if local.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) != moment:
            raise RankfallError("the clocks were put forward over that time")
        return local


# --- numbers ------------------------------------------------------------------------------------------------------


def _expected_number(size: int) -> str:
    return "a finite number" if size == 1 else f"a list of {size} finite numbers"


class NumberEncoder:
    """Encoder of numbers, or of vectors of numbers.

    Args:
        rule: The rule for numbers, which replaces None if it has a number for missing ones.
    """

    def __init__(self, rule: Numbers) -> None:
        self._rule = rule
        self._expected = _expected_number(rule.size)

    def encode(self, values: Sequence[Any]) -> NDArray[np.float32]:
        """Return the numbers that a model receives.

        Given ones are at most `MOST_DEVIATIONS` in absolute value if they are standardised, and `LARGEST` otherwise.
        """
        rule, numbers = self._rule, finite_numbers(values, self._expected, size=self._rule.size)
        try:
            with np.errstate(over="ignore"):
                encoded = rule.encode(numbers)
        except BadValueError as error:
            raise bad_value(error.position, values[error.position], self._expected) from None
        limit = LARGEST if rule.mean is None else MOST_DEVIATIONS
        is_beyond = ~(np.abs(encoded) <= limit)
        if is_beyond.any():  # without indicators and missing values
            is_missing = rule.is_missing(numbers).reshape(len(numbers), -1)
            is_beyond = is_beyond.reshape(len(numbers), -1)[:, : rule.size] & ~is_missing
        if is_beyond.any():
            position, place = np.argwhere(is_beyond)[0].tolist()
            of = "" if rule.size == 1 else f" at place {place + 1} of the list"
            raise bad_value(position, values[position], f"a number from {self._range(place, limit)}{of}")
        return encoded

    def _range(self, place: int, limit: float) -> str:
        """Return the accepted values of a number, before `log1p` and the scaling."""
        rule, ends = self._rule, np.array([-limit, limit])
        if rule.mean is not None and rule.deviation is not None:
            ends = rule.mean[place] + ends * rule.deviation[place]
        if rule.log1p:
            with np.errstate(over="ignore"):
                ends = np.copysign(np.expm1(np.abs(ends)), ends)
        low, high = np.clip(ends, -sys.float_info.max, sys.float_info.max)
        return f"{low:g} to {high:g}"
