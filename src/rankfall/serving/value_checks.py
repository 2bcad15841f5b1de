"""Convert the values of requests to typed arrays, and name those that cannot be converted."""

from __future__ import annotations

import re
from array import array
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.encoding import BadValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.encoding.lookup import Lookup

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
