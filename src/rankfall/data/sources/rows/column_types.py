"""One type for each column, whatever files its values come from.

Files disagree: one stores an id as int32, the next as a float because some are missing, a third is text. Whole numbers
become Int64, other numbers Float64, everything else String, and the type is that of all files together, so it
does not matter how a log was split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rankfall.data.impressions.encoding import to_times

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rankfall.data.sources.rows.columns import Role

_ORDER: list[pl.DataType] = [pl.Null(), pl.Boolean(), pl.Int64(), pl.Float64(), pl.String()]  # each can become the next
_TRUTH_VALUES = ["true", "false", "True", "False"]
_EXACT = 2**53  # whole numbers below this are exact as floats
TIME = pl.Datetime("ms", "UTC")


# --- what files have --------------------------------------------------------------------------------------------


def plain_type(kind: pl.DataType) -> pl.DataType:
    """The one type that stands for all types of its sort."""
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
    """The narrowest type of these strings and those before, which were of the type `known`.

    >>> text_type(pl.Series(["1", "2.5"]), pl.Int64(), {"number"})
    Float64
    """
    values = values.drop_nulls()
    if len(values) == 0:
        return known
    return next(kind for kind in _ORDER[1:] if _can_become(known, kind) and _all_are(values, kind, roles))


def joint_text_type(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """The narrowest type of strings of which some are of the one type and the rest of the other.

    >>> joint_text_type(pl.Int64(), pl.Float64()), joint_text_type(pl.Int64(), pl.Boolean())
    (Float64, String)
    """
    narrow, wide = sorted((one, other), key=_ORDER.index)
    return wide if _can_become(narrow, wide) else pl.String()


def _can_become(known: pl.DataType, kind: pl.DataType) -> bool:
    if known == pl.Boolean() and kind in (pl.Int64(), pl.Float64()):
        return False  # true and false, then 0 and 1, are neither
    return _ORDER.index(known) <= _ORDER.index(kind)


def _all_are(values: pl.Series, kind: pl.DataType, roles: Collection[Role]) -> bool:
    if kind == pl.String():
        return True
    if kind == pl.Boolean():
        return values.is_in(_TRUTH_VALUES).all()
    if "id" not in roles and "day" not in roles:
        return not values.cast(kind, strict=False).has_nulls()
    # whole numbers as a program writes them, and as it writes them if it took them for floats; 007 is text
    digits = values.str.strip_suffix(".0") if kind == pl.Float64() else values
    return (digits.cast(pl.Int64, strict=False).cast(pl.String) == digits).fill_null(False).all()


# --- what all files together have -------------------------------------------------------------------------------


def joint_type(kinds: Iterable[pl.DataType]) -> pl.DataType:
    """The type that can hold values of all these."""
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
    """The type of the elements of lists, or of the values themselves."""
    if not isinstance(kind, pl.List | pl.Array):
        return kind
    return kind.inner() if isinstance(kind.inner, type) else kind.inner


def used_type(kind: pl.DataType, roles: Collection[Role]) -> pl.DataType:
    """The type in which values of a type are used for these purposes."""
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


# --- getting there ----------------------------------------------------------------------------------------------


def to_type(values: pl.Series, kind: pl.DataType, zone: str) -> pl.Series:
    """The values in the type that was decided on; an error says which value is none of it."""
    if values.dtype in (kind, pl.Null()):
        return values.cast(kind)
    if kind == TIME:
        return to_times(values, None, zone).dt.convert_time_zone("UTC")
    if kind == pl.String() and isinstance(values.dtype, pl.Date | pl.Datetime):
        return to_times(values, None, zone).dt.strftime("%Y-%m-%d")
    if values.dtype == pl.String and kind != pl.String() and values.is_in(_TRUTH_VALUES).any():
        values = values.replace({"true": "1", "True": "1", "false": "0", "False": "0"})
    if kind == pl.Int64() and not values.dtype.is_integer():
        return _to_whole(values)
    changed = values.cast(kind, strict=False)
    if changed.null_count() != values.null_count():
        raise _bad_value(values, changed, _WORDS.get(kind, str(kind)))
    return changed


_WORDS: dict[pl.DataType, str] = {pl.Float64(): "a number", pl.Int64(): "a whole number below 2^63"}


def _to_whole(values: pl.Series) -> pl.Series:
    """Whole numbers, of which some may be written as floats."""
    if values.dtype == pl.String:
        whole = values.str.strip_suffix(".0").cast(pl.Int64, strict=False)
    else:
        numbers = values.cast(pl.Float64)
        values = numbers.fill_nan(None)
        exact = (numbers == numbers.floor()) & (numbers.abs() < _EXACT)
        whole = pl.select(pl.when(exact).then(numbers)).to_series().cast(pl.Int64)
    if whole.null_count() != values.null_count():
        raise _bad_value(values, whole, "a whole number")
    return whole.alias(values.name)


def _bad_value(values: pl.Series, changed: pl.Series, expected: str) -> ValueError:
    bad = values.filter(changed.is_null() & values.is_not_null())[0]
    return ValueError(f"column {values.name!r}: found {bad!r}, expected {expected}")
