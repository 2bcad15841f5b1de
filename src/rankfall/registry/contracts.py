"""What a component of each kind must look like, and errors that say what one of a user lacks."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING, Any

from rankfall.register import KINDS, registered
from rankfall.registry.references import UnresolvedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rankfall.register import Kind

CONTRACTS: dict[Kind, str] = {
    "operator": "a function f(scores, k, *, mask=None, ...options)",
    "loss": "a function f(scores, labels, *, mask=None, weight=None, ...options), or a class of torch.nn.Module whose "
    "forward takes (scores, labels, *, mask=None, weight=None)",
    "objective": "a subclass of rankfall.objectives.Objective with terms(batch)",
    "model": "a class of torch.nn.Module, built from (features, ...options), with forward(batch)",
    "metric": "a function f(scores, labels, *, mask=None, empty=..., ...cutoffs)",
    "source": "a function f(...options) that yields tables of rows",
}
"""The forms of components, for messages."""

_EMPTY = inspect.Parameter.empty


def check_component(kind: Kind, name: str, component: object) -> Callable[..., Any]:
    """Return a component if it can be used as one of its kind.

    Args:
        kind: Kind that is expected.
        name: Name or reference in the configuration, for messages.
        component: What the name stands for.

    Raises:
        UnresolvedError: If it is another kind of object, or its signature does not fit.
    """
    if not callable(component) or not _may_be(kind, component):
        raise UnresolvedError(_refuse(kind, name, f"is {_described(component)}"))
    if kind == "objective":
        _check_objective(name, component)
    _check_signature(kind, name, component)
    return component


def _may_be(kind: Kind, component: object) -> bool:
    """Return whether a component has the form of a kind: a function, or a class of modules."""
    is_module = _has_base(component, "torch.nn.modules.module", "Module")
    match kind:
        case "objective" | "model":
            return is_module
        case "loss":
            return is_module or not inspect.isclass(component)
        case _:
            return not inspect.isclass(component)


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
    if callable(component) and "empty" in _names(component):
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


def _names(component: Callable[..., Any]) -> Iterable[str]:
    try:
        return inspect.signature(component).parameters
    except (TypeError, ValueError):
        return ()


def _check_objective(name: str, component: object) -> None:
    bases = component.__mro__ if inspect.isclass(component) else ()
    own = list(itertools.takewhile(lambda base: not _is(base, "rankfall.objectives._stages", "Objective"), bases))
    if len(own) == len(bases):
        raise UnresolvedError(_refuse("objective", name, f"is {_described(component)}"))
    if all("terms" not in vars(base) for base in own):
        raise UnresolvedError(_refuse("objective", name, "has no method terms(batch)"))


def _check_signature(kind: Kind, name: str, component: Callable[..., Any]) -> None:
    match kind:
        case "operator":
            _check_call(kind, name, component, positional=1, keywords=("k", "mask"))
        case "loss" if inspect.isclass(component):
            forward: Any = getattr(component, "forward", None)
            _check_call(kind, name, forward, positional=3, keywords=("mask",), options=False)  # with self
        case "loss":
            _check_call(kind, name, component, positional=2, keywords=("mask",), hidden=("reduction", "generator"))
        case "metric":
            _check_call(kind, name, component, positional=2, keywords=("mask",))
        case "model":
            _check_call(kind, name, component, positional=1, keywords=())
        case _:
            _signature(kind, name, component)


def _check_call(
    kind: Kind,
    name: str,
    function: Callable[..., Any],
    *,
    positional: int,
    keywords: tuple[str, ...],
    hidden: tuple[str, ...] = (),
    options: bool = True,
) -> None:
    """Check that a function takes a number of positional arguments and some keyword arguments.

    Args:
        kind: Kind of the component.
        name: Name in the configuration.
        function: The function that is called.
        positional: Number of arguments that are passed by position.
        keywords: Names of arguments that are passed by name.
        hidden: Names that a configuration cannot give, and that are not passed.
        options: Whether a configuration gives the other parameters.
    """
    parameters = _signature(kind, name, function)
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    by_position = [one for one in by_position if one.name not in keywords]
    any_position = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if len(by_position) < positional and not any_position:
        raise UnresolvedError(
            _refuse(kind, name, f"takes {len(by_position)} positional arguments besides {_listed(keywords)}")
            if keywords
            else _refuse(kind, name, f"takes {len(by_position)} positional arguments")
        )
    any_keyword = any(one.kind is one.VAR_KEYWORD for one in parameters)
    by_keyword = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
    for keyword in keywords:
        if keyword not in by_keyword and not any_keyword:
            raise UnresolvedError(_refuse(kind, name, f"lacks the parameter {keyword!r}"))
    for one in by_position[positional:]:
        if one.kind is one.POSITIONAL_ONLY and one.default is _EMPTY:
            raise UnresolvedError(
                _refuse(kind, name, f"has the positional-only parameter {one.name!r}, which cannot be supplied")
            )
    supplied = {one.name for one in by_position[:positional]} | set(keywords)
    for one in parameters:
        needed = one.default is _EMPTY and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if needed and one.name not in supplied and (one.name in hidden or not options):
            raise UnresolvedError(_refuse(kind, name, f"needs the parameter {one.name!r}, which cannot be supplied"))


def _signature(kind: Kind, name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UnresolvedError(_refuse(kind, name, "has no signature that Python can read")) from None


def _has_base(component: object, module: str, name: str) -> bool:
    """Return whether a class has a base class, which need not be imported for the check."""
    return inspect.isclass(component) and any(_is(base, module, name) for base in component.__mro__)


def _is(one: type, module: str, name: str) -> bool:
    return (one.__module__, one.__name__) == (module, name)


def _described(component: object) -> str:
    if inspect.isclass(component):
        return f"the class {component.__name__}"
    if inspect.isroutine(component):
        return f"the function {component.__name__}"
    return "a module" if inspect.ismodule(component) else f"of type {type(component).__name__}"


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(names)


def _refuse(kind: Kind, name: str, found: str) -> str:
    return f"found {name!r}, which {found}; expected {CONTRACTS[kind]}"
