"""Values that anybody may send: text and numbers as they are needed, and which of them are wrong."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.serving.lookup import Lookup

WRITTEN = re.compile("0|-?[1-9][0-9]{0,17}")  # whole numbers as text
_LONGEST = 512  # bits of a whole number that stands for text
EXACT = 2**53  # whole numbers below this are exact as floats


class BadValueError(ValueError):
    """A value that a feature cannot take, at a place among those that were given."""

    def __init__(self, place: int, found: object, expected: str) -> None:
        super().__init__(f"found {shown(found)}, expected {expected}")
        self.place = place


def shown(value: object) -> str:
    """A value as messages quote it."""
    try:
        text = "nothing" if value is None else repr(value)
    except (ValueError, RecursionError):  # Python writes out neither numbers of 5,000 digits nor endless lists
        text = f"{type(value).__name__} that is too long to write out"
    return text if len(text) <= 60 else f"{text[:57]}..."


def field_of(where: str, key: object) -> str:
    """What an error of a name is about: the name, if it could be one of ours; others may hold anything."""
    return f"{where}.{key}" if isinstance(key, str) and key.isidentifier() and len(key) <= 60 else where


def ids_like(known: Lookup, values: Sequence[Any], expected: str) -> pa.Array:
    """Values of the sort of known ones: text, for which whole numbers are written out, or whole numbers."""
    return as_text(values, expected) if known.is_text else pa.array(whole_numbers(values, expected))


def as_text(values: Sequence[Any], expected: str) -> pa.Array:
    """Text, for which whole numbers are written out."""
    if all(kind is str for kind in set(map(type, values))):
        return strings(values, expected)
    return strings([_written(place, value, expected) for place, value in enumerate(values)], expected)


def number(value: Any) -> Any:
    """The whole number that a text writes out as programs do; anything else as it is."""
    return int(value) if isinstance(value, str) and WRITTEN.fullmatch(value) else value


def _written(place: int, value: Any, expected: str) -> str:
    """Text, or the text that a log makes of a boolean or a whole number."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if not is_whole(value) or int(value).bit_length() > _LONGEST:
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
    try:
        return np.asarray(array("q", values))  # which takes nothing else
    except (TypeError, OverflowError):
        pass
    for place, value in enumerate(values):
        if not is_whole(value) or not -(2**63) <= int(value) < 2**63:
            is_large = is_number(value) and abs(value) >= EXACT
            raise BadValueError(place, value, f"{expected}, below 2^63" if is_large else expected)
    return np.array([int(value) for value in values], np.int64)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, which may be written as a float."""
    if isinstance(value, int | np.integer | np.bool_):
        return True
    return isinstance(value, float | np.floating) and abs(float(value)) < EXACT and float(value).is_integer()


def is_number_type(kind: type) -> bool:
    """Whether values of a type are numbers."""
    return issubclass(kind, int | float | np.integer | np.floating | np.bool_)


def is_number(value: object) -> bool:
    """Whether a value is a number."""
    return is_number_type(type(value))


def overflows(value: object) -> bool:
    """Whether a number is too large for floats."""
    try:
        float(value)  # type: ignore[arg-type]  # a number or nothing
    except OverflowError:
        return True
    except TypeError:
        return False
    return False
