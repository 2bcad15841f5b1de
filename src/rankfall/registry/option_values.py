"""Types of the values that a configuration may give for an option, from its annotation."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter

from rankfall import option_types

if TYPE_CHECKING:
    from rankfall.registry.signatures import Option

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_PLAIN = (int, float, bool, str, type(None))


class _Tensor:
    """Stands for a tensor, which a configuration writes as a number."""


_NAMESPACE: dict[str, Any] = {
    **{name: getattr(option_types, name) for name in option_types.__all__},
    **{name: getattr(typing, name) for name in ("Annotated", "Any", "Literal", "Optional", "Union")},
    **{name: getattr(collections.abc, name) for name in ("Iterable", "Mapping", "Sequence")},
    "Tensor": _Tensor,
}


def expected_type(option: Option) -> Any:
    """Return the type that the value of an option must have in a configuration.

    Tensors are written as numbers, and sequences as lists. Types that no configuration can write accept everything, as
    do annotations that cannot be read.

    Args:
        option: An option of :func:`rankfall.registry.options`.
    """
    annotation = option.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, dict(_NAMESPACE | dict(option.namespace)))  # the text of a signature
        except (NameError, AttributeError, SyntaxError, TypeError):  # a name that only a type checker sees
            return Any
    return _in_configurations(annotation)


def check_value(option: Option, value: Any) -> None:
    """Check the value that a configuration gives to an option.

    Args:
        option: An option of :func:`rankfall.registry.options`.
        value: The value. Numbers must be finite, and nothing is converted: ``"1"`` is no number.

    Raises:
        pydantic.ValidationError: If the value is not of the type of the option.
    """
    TypeAdapter(expected_type(option), config=_STRICT).validate_python(value)


def _in_configurations(annotation: Any) -> Any:
    """Return what stands for a type in a configuration."""
    if annotation is None or annotation in _PLAIN:
        return annotation
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        return _union(inner)
    if origin is Annotated:
        return _annotated(_in_configurations(inner[0]), inner[1:])
    if origin in (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable):
        elements = [_in_configurations(one) for one in inner if one is not Ellipsis]
        return list[_union(elements)] if elements else list  # type: ignore[misc]
    if annotation in (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable):
        return list
    if origin in (dict, collections.abc.Mapping) or annotation in (dict, collections.abc.Mapping):
        return dict
    if _is_tensor(annotation):
        return float
    return Any


def _union(members: typing.Iterable[Any]) -> Any:
    """Return a union without tensors, for which the numbers beside them stand."""
    members = list(members)
    known = [one for one in members if not _is_tensor(one)] or members
    return Union[tuple(_in_configurations(one) for one in known)]  # noqa: UP007  # of a list


def _annotated(base: Any, marks: tuple[Any, ...]) -> Any:
    if any(isinstance(mark, option_types.OrName) for mark in marks):
        base, marks = base | str, tuple(mark for mark in marks if not isinstance(mark, option_types.OrName))
    return Annotated[(base, *marks)] if marks else base


def _is_tensor(annotation: Any) -> bool:
    return annotation is _Tensor or (getattr(annotation, "__module__", ""), getattr(annotation, "__name__", "")) == (
        "torch",
        "Tensor",
    )
