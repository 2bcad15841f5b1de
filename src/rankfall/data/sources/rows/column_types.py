"""One type per column over all files of a log.

Files may disagree: one stores an id as int32, the next as float because some are missing, a third is text. Whole
numbers become Int64, other numbers Float64, everything else String. The type is decided over all files together, so it
does not depend on how a log is split into files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall.data.impressions.encoding import BadValueError, expected_times, parse_times, to_times

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rankfall.data.impressions.spec import Unit
    from rankfall.data.sources.rows.columns import Role

_ORDER: list[pl.DataType] = [pl.Null(), pl.Boolean(), pl.Int64(), pl.Float64(), pl.String()]  # from narrow to wide
_TRUTH_VALUES = ["true", "false", "True", "False"]
_EXACT = 2**53  # floats represent whole numbers below this exactly
TIME = pl.Datetime("ms", "UTC")


# --- types of one file -------------------------------------------------------------------------------------------


def plain_type(kind: pl.DataType) -> pl.DataType:
    """Return the type that represents all types of a kind, such as Int64 for integers."""
    if kind.is_integer():
        return pl.Int64()
    if kind.is_float() or kind.is_decimal():
        return pl.Float64()
    if isinstance(kind, pl.Categorical | pl.Enum):
        return pl.String()
    if isinstance(kind, pl.Date | pl.Datetime):
        return TIME
    if isinstance(kind, pl.List | pl.Array):
        return pl.List(plain_type(element_type(kind)))
    if kind not in _ORDER:
        raise ValueError(f"found {kind}, expected numbers, text, times or lists of them")
    return kind


def text_type(values: pl.Series, known: pl.DataType, roles: Collection[Role]) -> pl.DataType:
    """Return the narrowest type of strings.

    Args:
        values: The strings.
        known: The narrowest type of the strings before these.
        roles: The uses of the column.

    >>> text_type(pl.Series(["1", "2.5"]), pl.Int64(), {"number"})
    Float64
    """
    values = values.drop_nulls()
    if len(values) == 0:
        return known
    return next(kind for kind in _ORDER[1:] if _can_become(known, kind) and _all_are(values, kind, roles))


def joint_text_type(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """Return the narrowest type of strings of which some have the one type and the rest the other.

    >>> joint_text_type(pl.Int64(), pl.Float64()), joint_text_type(pl.Int64(), pl.Boolean())
    (Float64, String)
    """
    narrow, wide = sorted((one, other), key=_ORDER.index)
    return wide if _can_become(narrow, wide) else pl.String()


def _can_become(known: pl.DataType, kind: pl.DataType) -> bool:
    if known == pl.Boolean() and kind in (pl.Int64(), pl.Float64()):
        return False  # a column with both true/false and 0/1 is text
    return _ORDER.index(known) <= _ORDER.index(kind)


def _all_are(values: pl.Series, kind: pl.DataType, roles: Collection[Role]) -> bool:
    if kind == pl.String():
        return True
    if kind == pl.Boolean():
        return values.is_in(_TRUTH_VALUES).all()
    if "id" not in roles and "day" not in roles:
        return not values.cast(kind, strict=False).has_nulls()
    # canonical whole numbers, for Float64 also with a trailing .0, as programs write them as floats; 007 is text
    digits = values.str.strip_suffix(".0") if kind == pl.Float64() else values
    return (digits.cast(pl.Int64, strict=False).cast(pl.String) == digits).fill_null(False).all()


# --- types of all files together ---------------------------------------------------------------------------------


def joint_type(kinds: Iterable[pl.DataType]) -> pl.DataType:
    """Return the type that can represent values of all these types."""
    joint: pl.DataType = pl.Null()
    for kind in kinds:
        joint = _join(joint, kind)
    return joint


def _join(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    if one == other or other == pl.Null():
        return one
    if one == pl.Null():
        return other
    if one in _ORDER and other in _ORDER:
        return max(one, other, key=_ORDER.index)
    if isinstance(one, pl.List) and isinstance(other, pl.List):
        return pl.List(_join(element_type(one), element_type(other)))
    if {one, other} == {TIME, pl.String()}:
        return TIME
    raise ValueError(f"found {one} and {other}, expected one type in all files")


def element_type(kind: pl.DataType) -> pl.DataType:
    """Return the type of the elements of lists, or the type itself if it is not a list."""
    if not isinstance(kind, pl.List | pl.Array):
        return kind
    return kind.inner() if isinstance(kind.inner, type) else kind.inner


def used_type(kind: pl.DataType, roles: Collection[Role]) -> pl.DataType:
    """Return the type in which a column is used.

    Args:
        kind: The joint type of its files.
        roles: The uses of the column.

    Raises:
        ValueError: If the type does not fit the roles.
    """
    if "sequence" in roles:
        if kind != pl.Null() and (not isinstance(kind, pl.List) or element_type(kind) == pl.Float64()):
            raise ValueError(f"found {kind}, expected lists of whole numbers or of text")
        return pl.List(pl.Int64()) if element_type(kind) == pl.Null() else kind
    if "vector" in roles:
        return pl.List(pl.Float64())
    if isinstance(kind, pl.List):
        raise ValueError(f"found {kind}, expected single values")
    if "id" in roles or "day" in roles:
        if kind == TIME:
            if "day" in roles:
                return pl.String()
            raise ValueError("found times, expected whole numbers or text")
        return pl.String() if kind == pl.String() else pl.Int64()
    if "whole" in roles:
        return pl.Int64()
    if "number" in roles:
        return pl.Int64() if kind in (pl.Boolean(), pl.Int64()) else pl.Float64()
    return pl.Int64() if kind == pl.Int64() else TIME


# --- conversion --------------------------------------------------------------------------------------------------


class Converted(NamedTuple):
    """Values in the type of their column, with nulls in place of values that cannot be converted."""

    values: pl.Series
    expected: str  # what the others are, for messages


def to_type(values: pl.Series, kind: pl.DataType, zone: str, unit: Unit | None = None) -> pl.Series:
    """Convert values to the type of their column.

    Args:
        values: The values.
        kind: The type.
        zone: The time zone of times without one.
        unit: The unit of times that are whole numbers.

    Raises:
        BadValueError: If a value cannot be converted; the message shows it.
        ValueError: If no value of this type can be converted.
    """
    changed, expected = convert(values, kind, zone, unit)
    if (bad := is_lost(values, changed)).any():
        position = int(bad.arg_max() or 0)
        message = f"column {values.name!r}: found {values[position]!r}, expected {expected}"
        raise BadValueError(message, position)
    return changed


def is_lost(values: pl.Series, changed: pl.Series) -> pl.Series:
    """Return which values have become null; NaN is none."""
    if changed.null_count() == values.null_count():
        return pl.zeros(len(values), pl.Boolean, eager=True)
    missing = values.is_null() | values.is_nan() if values.dtype.is_float() else values.is_null()
    return changed.is_null() & ~missing


def convert(values: pl.Series, kind: pl.DataType, zone: str, unit: Unit | None = None) -> Converted:
    """Convert values to the type of their column, as far as they can be converted.

    Args:
        values: The values.
        kind: The type.
        zone: The time zone of times without one.
        unit: The unit of times that are whole numbers.

    Raises:
        ValueError: If no value of this type can be converted.
    """
    if values.dtype in (kind, pl.Null()):
        return Converted(values.cast(kind), "")
    if kind == TIME:
        return _to_times(values, zone, unit)
    if kind == pl.String() and isinstance(values.dtype, pl.Date | pl.Datetime):
        return Converted(to_times(values, None, zone).dt.strftime("%Y-%m-%d"), "")
    if values.dtype == pl.String and kind != pl.String() and values.is_in(_TRUTH_VALUES).any():
        values = values.replace({"true": "1", "True": "1", "false": "0", "False": "0"})
    if kind == pl.Int64() and not values.dtype.is_integer():
        return Converted(_to_whole(values), "a whole number")
    return Converted(values.cast(kind, strict=False), _WORDS.get(kind, str(kind)))


_WORDS: dict[pl.DataType, str] = {pl.Float64(): "a number", pl.Int64(): "a whole number below 2^63"}


def _to_times(values: pl.Series, zone: str, unit: Unit | None) -> Converted:
    times = parse_times(values, None, zone).dt.convert_time_zone("UTC")
    if unit is None or values.dtype != pl.String:
        return Converted(times, expected_times(zone))
    # one value that is no time makes a column of numbers one of text
    numbers = values.cast(pl.Int64, strict=False)
    counted = parse_times(numbers, unit, zone).dt.convert_time_zone("UTC")
    return Converted(times.zip_with(numbers.is_null(), counted), f"whole numbers of {unit} or {expected_times(zone)}")


def _to_whole(values: pl.Series) -> pl.Series:
    """Convert to whole numbers; some may be written as floats."""
    if values.dtype == pl.String:
        return values.str.strip_suffix(".0").cast(pl.Int64, strict=False)
    numbers = values.cast(pl.Float64)
    exact = (numbers == numbers.floor()) & (numbers.abs() < _EXACT)
    return pl.select(pl.when(exact).then(numbers)).to_series().cast(pl.Int64).alias(values.name)
