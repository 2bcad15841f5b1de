"""Operators, losses, objectives, models, metrics and data sources by the names that configurations use.

The registry maps a kind and a name to a function or class, and reads the options of a component from its signature.
It builds nothing. A name is, in this order,

1. that of a built-in component (:mod:`rankfall.registry.builtin`),
2. that of a component that an imported module has registered (:mod:`rankfall.register`),
3. that of an entry point of the group ``rankfall``, such as ``"loss.focal" = "my_package.losses:focal"``, or
4. a reference: ``"module.path:attribute"`` or ``"./file.py:attribute"`` (:mod:`rankfall.registry.references`).

Names are known without importing torch. Options are known once the component is imported.

The signature of a function, or of the constructor of a class, is the only schema: what a caller passes is bound to it,
and the parameters that are left are the options. Their annotations are the types of the values.

>>> names("model")
('din', 'mlp', 'two_tower')
>>> list(options("operator", "sparse_topk"))
['tau', 'p', 'variant']
>>> check_options("loss", "ranknet_loss", ["sigm"])
Traceback (most recent call last):
rankfall.RankfallError: ranknet_loss has no option 'sigm', did you mean 'sigma'; its options are sigma
"""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
import typing
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter

from rankfall import option_types
from rankfall._errors import RankfallError, did_you_mean
from rankfall.register import KINDS as KINDS
from rankfall.register import Kind as Kind
from rankfall.register import registered
from rankfall.registry.builtin import BUILTINS
from rankfall.registry.builtin import SORTS as SORTS
from rankfall.registry.references import UnresolvedError, entry_point, entry_points, is_reference, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

REQUIRED = inspect.Parameter.empty
"""The default of an option that has none."""

Part = Literal["sort", "topk", "loss"]
"""What an option that is itself a component takes: a soft sort, any operator as a soft top-k, or a loss."""


# --- names --------------------------------------------------------------------------------------------------------


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names of all components of one kind, without importing them.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"``, ``"model"``, ``"metric"`` or ``"source"``.

    Returns:
        Built-in components in alphabetical order, then those that imported modules have registered, then those of
        entry points.
    """
    own = [name for name, one in registered(kind).items() if not one.is_builtin]
    return tuple(dict.fromkeys([*BUILTINS[kind], *own, *entry_points(kind)]))


def builtins(kind: Kind) -> Mapping[str, str]:
    """Return the places of the built-in components of one kind by name."""
    return BUILTINS[kind]


def is_builtin(kind: Kind, name: str) -> bool:
    """Return whether a name is that of a built-in component."""
    return name in BUILTINS[kind]


def is_own(kind: Kind, name: object) -> bool:
    """Return whether a name is that of a component of a user: registered, an entry point, or a reference."""
    return isinstance(name, str) and name not in BUILTINS[kind] and (is_reference(name) or name in names(kind))


def get(kind: Kind, name: str) -> Callable[..., Any]:
    """Return a component by its name.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"``, ``"model"``, ``"metric"`` or ``"source"``.
        name: Name in configurations: one of :func:`names`, or a reference.

    Returns:
        A function for operators, metrics, sources and most losses, a class for objectives, models and the losses with
        trained weights (``arf``, ``arf_v2``).

    Raises:
        ValueError: If no component of this kind has the name, or what the name stands for is no such component.
    """
    if place := BUILTINS[kind].get(name):
        module, _, attribute = place.partition(":")
        component: Callable[..., Any] = getattr(import_module(module), attribute)
        return component
    if is_reference(name):
        return check_component(kind, name, resolve(kind, name))
    if name in registered(kind):
        return check_component(kind, name, registered(kind)[name].component)
    if reference := entry_point(kind, name):
        return check_component(kind, name, resolve(kind, reference, installed=True))
    allowed = names(kind)
    raise RankfallError(f"{kind}: found {name!r}{did_you_mean(name, allowed)}; allowed are {', '.join(allowed)}")


def python_name(kind: Kind, name: str) -> str:
    """Return the name of a component in Python, such as ``"LCRON"`` for the objective ``"lcron"``."""
    place = BUILTINS[kind].get(name)
    return place.partition(":")[2] if place else str(getattr(get(kind, name), "__name__", name))


# --- forms --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """How components of a kind are called."""

    contract: str  # for messages
    positional: int = 0  # number of arguments that are passed by position
    keywords: tuple[str, ...] = ()  # arguments that are passed by name
    hidden: tuple[str, ...] = ()  # parameters that are no options: the caller may supply them


_FORMS: dict[Kind, _Form] = {
    "operator": _Form("a function f(scores, k, *, mask=None, ...options)", 1, ("k", "mask"), ("generator",)),
    "loss": _Form(
        "a function f(scores, labels, *, mask=None, weight=None, ...options), or a class of torch.nn.Module whose "
        "forward takes (scores, labels, *, mask=None, weight=None)",
        2,
        ("mask",),
        ("weight", "reduction", "generator"),
    ),
    "objective": _Form("a subclass of rankfall.objectives.Objective with terms(batch)", hidden=("relevant", "stages")),
    "model": _Form(
        "a class of torch.nn.Module, built from (features, ...options), with forward(batch)", 1, hidden=("tables",)
    ),
    "metric": _Form("a function f(scores, labels, *, mask=None, empty=..., ...cutoffs)", 2, ("mask",), ("empty",)),
    "source": _Form("a function f(...options) that yields tables of rows"),
}
_LOSS_CLASS = _Form("", hidden=("reduction",))  # its constructor

CONTRACTS: dict[Kind, str] = {kind: form.contract for kind, form in _FORMS.items()}
"""The forms of components, for messages."""


def check_component(kind: Kind, name: str, component: object) -> Callable[..., Any]:
    """Return a component if it can be used as one of its kind.

    Args:
        kind: Kind that is expected.
        name: Name or reference in the configuration, for messages.
        component: What the name stands for.

    Raises:
        UnresolvedError: If it is another kind of object, or its signature does not fit.
    """
    found = ""
    is_class, is_module = inspect.isclass(component), _is_subclass(component, "torch.nn", "Module")
    needs_module = kind in ("objective", "model")
    fits = is_module if needs_module else not is_class or (kind == "loss" and is_module)
    if kind == "objective" and fits:
        fits = _is_subclass(component, "rankfall.objectives", "Objective")
        if fits and getattr(component, "terms", None) is sys.modules["rankfall.objectives"].Objective.terms:
            found = "has no method terms(batch)"
    if not callable(component) or not fits:
        found = f"is {_described(component)}"
    elif not found and kind == "loss" and is_class:
        form = _FORMS["loss"]
        left = _left(component.forward, _Form("", 3, form.keywords))  # type: ignore[attr-defined]  # of a module
        found = left if isinstance(left, str) else _unsupplied(left, [one.name for one in left])
    elif not found:
        left = _left(component, _FORMS[kind])
        found = left if isinstance(left, str) else _unsupplied(left, ("reduction", "generator"))
    if found:
        raise UnresolvedError(f"found {name!r}, which {found}; expected {_FORMS[kind].contract}")
    return component  # type: ignore[return-value]  # it is callable


def _left(function: Callable[..., Any], form: _Form) -> list[inspect.Parameter] | str:
    """Return the parameters that a call leaves, or why it cannot be called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "has no signature that Python can read"
    try:
        bound = signature.bind_partial(*[None] * form.positional, **dict.fromkeys(form.keywords))
    except TypeError as error:
        return f"does not take these arguments ({error})"
    return [
        one
        for one in signature.parameters.values()
        if one.name not in bound.arguments and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def _unsupplied(left: Iterable[inspect.Parameter], hidden: Iterable[str]) -> str:
    for one in left:
        if one.default is REQUIRED and (one.name in hidden or one.kind is one.POSITIONAL_ONLY):
            return f"needs the parameter {one.name!r}, which cannot be supplied"
    return ""


def guess_kind(name: str, component: object) -> Kind:
    """Return the kind of a component: the one it is registered as, or the one that its signature fits.

    Args:
        name: Name or reference, for messages.
        component: The function or class.

    Raises:
        UnresolvedError: If it fits no kind.
    """
    for kind in KINDS:
        if any(one.component is component for one in registered(kind).values()):
            return kind
    order: tuple[Kind, ...] = ("objective", "loss", "model") if inspect.isclass(component) else ("operator", "loss")
    if inspect.isfunction(component) and "empty" in inspect.signature(component).parameters:
        order = ("metric",)
    for kind in order:
        try:
            check_component(kind, name, component)
        except UnresolvedError:
            continue
        return kind
    raise UnresolvedError(
        f"found {name!r}, which is {_described(component)}; expected one of: {'; '.join(CONTRACTS.values())}"
    )


def _is_subclass(component: object, module: str, name: str) -> bool:
    """Return whether a class has a base class, which has been imported if it has."""
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and inspect.isclass(component) and issubclass(component, base)


def _described(component: object) -> str:
    if inspect.isclass(component):
        return f"the class {component.__name__}"
    if inspect.isroutine(component):
        return f"the function {component.__name__}"
    return "a module" if inspect.ismodule(component) else f"of type {type(component).__name__}"


# --- options ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a component.

    Attributes:
        name: Name of the parameter.
        default: Default in the signature, a Python value, or :data:`REQUIRED`.
        annotation: The evaluated annotation. REQUIRED without one, Any if only a type checker can read it.
    """

    name: str
    default: Any
    annotation: Any = REQUIRED

    @property
    def required(self) -> bool:
        """Whether a configuration must give this option."""
        return self.default is REQUIRED

    @property
    def optional(self) -> bool:
        """Whether a configuration may leave this option empty."""
        return self.default is None or type(None) in get_args(self.annotation)

    @property
    def part(self) -> Part | None:
        """The kind of component that the option takes by name, or None if it takes a plain value.

        The annotation decides. An option without one that has the usual name of a component takes this component.
        """
        if self.annotation is REQUIRED:
            return next((part for part in get_args(Part) if part == self.name), None)
        parts: dict[str, Part] = {"SoftSort": "sort", "TopK": "topk", "Module": "loss"}
        members = [getattr(one, "__name__", "") for one in (get_args(self.annotation) or (self.annotation,))]
        return next((parts[name] for name in members if name in parts), None)

    @property
    def type(self) -> Any:
        """The type of the value in a configuration.

        Tensors are written as numbers, and sequences as lists. Types that no configuration can write accept
        everything.
        """
        return _in_configurations(self.annotation)

    def check(self, value: Any) -> None:
        """Check a value. Numbers must be finite, and nothing is converted: ``"1"`` is not a number.

        Raises:
            pydantic.ValidationError: If the value is not of the type of the option.
        """
        TypeAdapter(self.type, config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)


def options(kind: Kind, name: str) -> Mapping[str, Option]:
    """Return the options that a configuration can give to a component, by name and in the order of the signature.

    Parameters that the training loop or other sections of the configuration supply (scores, mask, the features of the
    log, the number of stages, ...) are not options.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"``, ``"model"``, ``"metric"`` or ``"source"``.
        name: Name in configurations: one of :func:`names`, or a reference.

    Raises:
        ValueError: If no component of this kind has the name.
    """
    return _options(kind, get(kind, name))


@cache
def _options(kind: Kind, component: Callable[..., Any]) -> Mapping[str, Option]:
    form = _LOSS_CLASS if kind == "loss" and inspect.isclass(component) else _FORMS[kind]
    left = _left(component, form)
    assert not isinstance(left, str)  # it was checked when it was found
    namespace = _namespace(kind, component)
    found = {
        one.name: Option(one.name, one.default, _evaluated(one.annotation, namespace))
        for one in left
        if one.name not in form.hidden
    }
    if kind == "objective" and "quotas" in found and found["quotas"].required:
        found["quotas"] = Option("quotas", None, found["quotas"].annotation)  # the stages have some
    return MappingProxyType(found)


def check_options(kind: Kind, name: str, given: Iterable[str]) -> None:
    """Check the names of the options that a configuration gives to a component; values are not checked.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"``, ``"model"``, ``"metric"`` or ``"source"``.
        name: Name in configurations: one of :func:`names`, or a reference.
        given: Names of the options that are given.

    Raises:
        ValueError: If the component is unknown, has no option of a given name, or lacks a required one.
    """
    allowed, given = options(kind, name), list(given)
    unknown = next((option for option in given if option not in allowed), None)
    parameters = inspect.signature(get(kind, name)).parameters.values() if unknown is not None else ()
    if unknown is not None and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        hint = did_you_mean(unknown, list(allowed))
        raise RankfallError(f"{name} has no option {unknown!r}{hint}; its options are {', '.join(allowed) or 'none'}")
    for required in (one.name for one in allowed.values() if one.required):
        if required not in given:
            raise RankfallError(f"{name} needs the option {required!r}")


_NAMES: dict[str, Any] = {
    **{name: getattr(option_types, name) for name in option_types.__all__},
    **{name: getattr(typing, name) for name in ("Annotated", "Any", "Literal", "Optional", "Union")},
    **{name: getattr(collections.abc, name) for name in ("Iterable", "Mapping", "Sequence")},
}


def _namespace(kind: Kind, component: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that the annotations of a component may use, also those that only a type checker imports."""
    inner: Any = component
    while isinstance(inner, partial):
        inner = inner.func
    if inspect.isclass(inner):
        inner = inner.__init__
    known = dict(_NAMES)
    if kind != "source":  # sources need no torch
        torch, ops = import_module("torch"), import_module("rankfall.ops")
        known |= {"Tensor": torch.Tensor, "nn": torch.nn, "TopK": ops.TopK, "SoftSort": ops.SoftSort}
    return known | getattr(inspect.unwrap(inner), "__globals__", {})


def _evaluated(annotation: Any, namespace: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        found = eval(annotation, namespace)  # postponed annotations are code
        return eval(found, namespace) if isinstance(found, str) else found  # one in quotes
    except (NameError, AttributeError, SyntaxError, TypeError):  # a name that only a type checker sees
        return Any


_SEQUENCES = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)


def _in_configurations(annotation: Any) -> Any:
    """Return what stands for a type in a configuration."""
    origin, inner = get_origin(annotation), get_args(annotation)
    base = origin or annotation
    if annotation in (None, int, float, bool, str, type(None)) or origin is Literal:
        return annotation
    if origin is Annotated:
        found = _in_configurations(inner[0])
        if any(isinstance(mark, option_types.OrName) for mark in inner[1:]):
            found = found | str
        marks = [mark for mark in inner[1:] if not isinstance(mark, option_types.OrName)]
        return Annotated[(found, *marks)] if marks else found
    if origin in (Union, types.UnionType):
        return _union([one for one in inner if not _is_tensor(one)] or inner)  # numbers stand for tensors
    if base in _SEQUENCES:
        elements = [one for one in inner if one is not Ellipsis]
        return list[_union(elements)] if elements else list  # type: ignore[misc]
    if base in (dict, collections.abc.Mapping):
        return dict
    return float if _is_tensor(annotation) else Any


def _union(members: Iterable[Any]) -> Any:
    return Union[tuple(_in_configurations(one) for one in members)]  # noqa: UP007  # of a list


def _is_tensor(annotation: Any) -> bool:
    place = getattr(annotation, "__module__", ""), getattr(annotation, "__name__", "")
    return place == ("torch", "Tensor")


# --- values as configurations write them --------------------------------------------------------------------------


def config_value(value: Any) -> Any:
    """Return a default as a configuration writes it.

    Functions become their names, operators a mapping of their name and all their options, tuples become lists. A
    temperature with a schedule (a tensor) becomes None, since another option of the configuration describes it.

    >>> config_value(get("loss", "relax_loss"))
    'relax_loss'
    """
    if type(value).__module__ == "rankfall.ops.inclusion":  # an operator with options
        if any(type(option).__module__.startswith("torch") for option in value.options.values()):
            return None
        return explicit_operator({"name": value.name, **value.options})
    if isinstance(value, partial):
        return explicit_operator({"name": value.func.__name__, **value.keywords})
    if inspect.isfunction(value):
        return value.__name__
    return [config_value(one) for one in value] if isinstance(value, list | tuple) else value


def defaults(kind: Kind, name: str) -> dict[str, Any]:
    """Return the defaults of the options of a component, as a configuration writes them.

    >>> defaults("loss", "relax_loss")["sort"]
    'neural_sort'
    """
    return {one.name: config_value(one.default) for one in options(kind, name).values() if not one.required}


def explicit_operator(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's name and options with the defaults filled in.

    >>> explicit_operator("soft_sort")
    {'name': 'soft_sort', 'tau': 1.0, 'power': 1}
    """
    given = {"name": value} if isinstance(value, str) else dict(value)
    return given | {key: one for key, one in defaults("operator", given["name"]).items() if key not in given}
