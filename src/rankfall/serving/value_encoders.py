"""Encode the raw values of requests as models receive them.

The rules are those of :mod:`rankfall.encoding`, which the log of the training run was prepared with. Requests come from
anywhere, so each value is checked first, and an error names the one that is wrong.
"""

from __future__ import annotations

import re
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
from rankfall.option_types import LARGEST

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
        values = [_text(position, value, expected) for position, value in enumerate(values)]
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


def _text(position: int, value: Any, expected: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if not is_integer(value) or int(value).bit_length() > _MAX_BITS:
        raise bad_value(position, value, expected)
    return str(int(value))


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
    except OverflowError:
        position = next(i for i, value in enumerate(values) if _overflows(value))
        raise bad_value(position, values[position], expected) from None
    for position in np.flatnonzero(~np.isfinite(numbers)).tolist():
        if values[position] is not None:
            raise bad_value(position, values[position], expected)
    return numbers


def _is_number_type(kind: type) -> bool:
    return issubclass(kind, int | float | np.integer | np.floating | np.bool_)


def _overflows(value: Any) -> bool:
    """Return whether a number, or None, is too large for a float."""
    try:
        float(0 if value is None else value)
    except OverflowError:
        return True
    return False


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()
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
        encoded = self._encode_numbered([columns[name] for name in self._numbered])
        for name, encoder in self._encoders.items():
            if name not in encoded:
                try:
                    encoded[name] = encoder.encode(columns[name])
                except BadValueError as error:
                    raise error_for(name, error) from None
        return encoded

    def _encode_numbered(self, columns: Sequence[list[Any]]) -> dict[str, NDArray[Any]]:
        """Encode all features with numbered ids at once, or none of them if a value needs a closer look."""
        if not columns:
            return {}
        try:
            numbers = np.asarray(array("q", list(chain.from_iterable(columns)))).reshape(len(columns), -1)
            ids = number_ids(numbers, self._counts)
        except (TypeError, OverflowError, BadValueError):
            return {}
        return dict(zip(self._numbered, ids.astype(np.int32), strict=True))


def make_encoder(rule: Rule) -> NumberEncoder | IdEncoder:
    """Return the encoder of a rule."""
    match rule:
        case Numbers():
            return NumberEncoder(rule)
        case Buckets():
            return _id_encoder(
                rule, partial(finite_numbers, size=rule.numbers.size), _expected_number(rule.numbers.size)
            )
        case NumberedIds():
            return _id_encoder(rule, integers, "a whole number from 0 on")
        case VocabularyIds():
            return _id_encoder(
                rule, partial(values_like, rule.known), "text" if rule.known.is_text else "a whole number"
            )
        case TimePart():
            times = Times(rule.unit, rule.zone)
            return _id_encoder(rule, lambda values, expected: times.local_milliseconds(values), times.expected)
        case HashedIds(text=False):
            return _id_encoder(rule, integers_or_their_text, "a whole number")
        case HashedIds(text=True):
            return _id_encoder(rule, texts, "a whole number or text")
        case HashedIds():
            expected = "a whole number or text"
            return IdEncoder(partial(_mixed_hash_ids, rule, expected), rule.rows, expected)


def _id_encoder(rule: IdRule, read: Read, expected: str) -> IdEncoder:
    # the rule for buckets has a number that replaces missing ones
    return IdEncoder(partial(_apply, rule, read, expected), rule.rows, expected, accepts_none=isinstance(rule, Buckets))


def _apply(rule: Any, read: Read, expected: str, values: Sequence[Any]) -> Ids:
    """Return the ids of values that are read first."""
    array = read(values, expected)
    try:
        ids: Ids = rule.ids(array)
    except BadValueError as error:
        raise bad_value(error.position, values[error.position], expected) from None
    return ids


# --- ids ----------------------------------------------------------------------------------------------------------


class IdEncoder:
    """Encoder of values as ids. None has the id 0, and ``{"id": 7}`` gives an id itself.

    Args:
        ids: Returns the ids of values.
        rows: The number of ids.
        expected: The accepted values, in words.
        accepts_none: Whether `ids` accepts None.
    """

    def __init__(
        self, ids: Callable[[Sequence[Any]], Ids], rows: int, expected: str, *, accepts_none: bool = False
    ) -> None:
        self._ids = ids
        self._rows = rows
        self._expected = expected
        self._accepts_none = accepts_none

    def encode(self, values: Sequence[Any]) -> NDArray[np.int32]:
        """Return the ids of values."""
        kinds = set(map(type, values))
        if type(None) not in kinds and not any(issubclass(kind, Mapping) for kind in kinds):
            return self._ids(values).astype(np.int32, copy=False)
        ids = np.full(len(values), MISSING, np.int32)
        plain: list[int] = []
        for position, value in enumerate(values):
            if isinstance(value, Mapping):
                ids[position] = self._given_id(position, value)
            elif value is not None or self._accepts_none:
                plain.append(position)
        if plain:
            ids[plain] = _encode_some(plain, values, self._ids)
        return ids

    def _given_id(self, position: int, value: Mapping[Any, Any]) -> int:
        number: Any = value.get("id")
        if set(value) != {"id"} or not is_integer(number) or not 0 <= number < self._rows:
            raise bad_value(position, value, f'{self._expected}, or {{"id": 0 to {self._rows - 1}}}')
        return int(number)


def _mixed_hash_ids(rule: HashedIds, expected: str, values: Sequence[Any]) -> Ids:
    """Return the ids of integers and text, of which it is unknown which the log had."""
    ids = np.empty(len(values), np.int64)
    is_text = np.array([isinstance(value, str) for value in values], np.bool_)
    for positions, read in ((np.flatnonzero(~is_text), integers), (np.flatnonzero(is_text), text_array)):
        if len(positions):
            ids[positions] = _encode_some(positions.tolist(), values, partial(_apply, rule, read, expected))
    return ids


def _encode_some(positions: Sequence[int], values: Sequence[Any], encode: Callable[[Sequence[Any]], Ids]) -> Ids:
    """Encode the values at some positions; the position of an error is that among all values."""
    try:
        return encode([values[position] for position in positions])
    except BadValueError as error:
        raise BadValueError(str(error), positions[error.position]) from None


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
        return np.array([_local_milliseconds(moment) for moment in self.read(values)], np.int64)

    def milliseconds(self, values: Sequence[Any]) -> list[int]:
        """Return times in milliseconds since 1970."""
        return [(moment - _EPOCH) // _MILLISECOND for moment in self.read(values)]

    def read(self, values: Sequence[Any]) -> list[datetime]:
        """Return times in the zone."""
        return [self._read(position, value) for position, value in enumerate(values)]

    def _read(self, position: int, value: Any) -> datetime:
        try:
            if isinstance(value, str | datetime):
                return self._local(datetime.fromisoformat(value.strip()) if isinstance(value, str) else value)
            if self._unit is not None and is_integer(value):
                since = timedelta(microseconds=int(value) * _MICROSECONDS[self._unit])
                return (_EPOCH + since).astimezone(self._zone)
        except (ValueError, OverflowError):
            pass
        raise bad_value(position, value, self.expected)

    def _local(self, moment: datetime) -> datetime:
        if moment.tzinfo is not None:
            return moment.astimezone(self._zone)
        local = moment.replace(tzinfo=self._zone)
        if local.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) != moment:
            raise RankfallError("the clocks were put forward over that time")
        return local


def _local_milliseconds(moment: datetime) -> int:
    minutes = ((moment.toordinal() - _EPOCH_DAY) * 24 + moment.hour) * 60 + moment.minute
    return (minutes * 60 + moment.second) * 1000 + moment.microsecond // 1000


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
        """Return the numbers that a model receives, which are at most `LARGEST` in absolute value."""
        numbers = finite_numbers(values, self._expected, size=self._rule.size)
        try:
            with np.errstate(over="ignore"):
                encoded = self._rule.encode(numbers)
        except BadValueError as error:
            raise bad_value(error.position, values[error.position], self._expected) from None
        if not (within := np.abs(encoded) <= LARGEST).all():
            position = int((~within).reshape(len(values), -1).any(axis=1).argmax())
            raise bad_value(position, values[position], "a smaller number")
        return encoded
