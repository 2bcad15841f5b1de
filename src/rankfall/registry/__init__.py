"""Operators, losses, objectives, models, metrics and data sources by the names that configurations use.

The registry maps a kind and a name to a function or class, and reads the options of a component from its signature.
It builds nothing. A name is, in this order,

1. that of a built-in component, found in the sources of rankfall without importing torch,
2. that of a component that an imported module has registered (:mod:`rankfall.register`),
3. that of an entry point of the group ``rankfall``, such as ``"loss.focal" = "my_package.losses:focal"``, or
4. a reference: ``"module.path:attribute"`` or ``"./file.py:attribute"`` (:mod:`rankfall.registry.references`).

>>> names("model")
('din', 'mlp', 'two_tower')
>>> list(options("operator", "sparse_topk"))
['tau', 'p', 'variant']
>>> check_options("loss", "ranknet_loss", ["sigm"])
Traceback (most recent call last):
rankfall.RankfallError: ranknet_loss has no option 'sigm', did you mean 'sigma'; its options are sigma
"""

from __future__ import annotations

import inspect
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rankfall._errors import RankfallError, did_you_mean
from rankfall.register import KINDS as KINDS
from rankfall.register import Kind as Kind
from rankfall.register import registered
from rankfall.registry.references import check_component, entry_point, entry_points, is_reference, resolve
from rankfall.registry.signatures import REQUIRED as REQUIRED
from rankfall.registry.signatures import Option as Option
from rankfall.registry.signatures import Parameter, namespace_of, options_of, parameters_of
from rankfall.registry.signatures import builtins as builtins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def sorts() -> tuple[str, ...]:
    """Return the built-in operators that return rows of a soft permutation. The others return probabilities.

    >>> sorts()
    ('diff_sort', 'neural_sort', 'pirank_sort', 'soft_sort')
    """
    return tuple(name for name, one in builtins("operator").items() if "k n" in one.returns)


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names of all components of one kind, without importing them.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"``, ``"model"``, ``"metric"`` or ``"source"``.

    Returns:
        Built-in components in alphabetical order, then those that imported modules have registered, then those of
        entry points.
    """
    own = [name for name, one in registered(kind).items() if not one.is_builtin]
    return tuple(dict.fromkeys([*builtins(kind), *own, *entry_points(kind)]))


def is_known(kind: Kind, name: object) -> bool:
    """Return whether a name is built in, registered or an entry point. References are not looked at."""
    if not isinstance(name, str):
        return False
    return name in builtins(kind) or name in registered(kind) or name in entry_points(kind)


def is_builtin(kind: Kind, name: str) -> bool:
    """Return whether a name is that of a built-in component."""
    return name in builtins(kind)


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
    if name in builtins(kind):
        return _get_builtin(kind, name)
    if is_reference(name):
        return check_component(kind, name, resolve(kind, name))
    if name in registered(kind):
        return check_component(kind, name, registered(kind)[name].component)
    if reference := entry_point(kind, name):
        return check_component(kind, name, resolve(kind, reference, installed=True))
    raise RankfallError(f"{kind}: {unknown(kind, name)}")


@cache
def _get_builtin(kind: Kind, name: str) -> Callable[..., Any]:
    found = builtins(kind)[name]
    component: Callable[..., Any] = getattr(import_module(found.module), found.attribute)
    return component


def unknown(kind: Kind, name: object) -> str:
    """Return the message for a name that no component of a kind has."""
    allowed = names(kind)
    return f"found {name!r}{did_you_mean(name, allowed)}; allowed are {', '.join(allowed)}"


def options(kind: Kind, name: str) -> Mapping[str, Option]:
    """Return the options that a configuration can give to a component, by name and in the order of the signature.

    Parameters that the training loop or other sections of the configuration supply (scores, mask, the features of the
    log, the number of stages, ...) are not options. The options of a built-in component are known without importing it.

    Args:
        kind: ``"operator"``, ``"loss"``, ``"objective"``, ``"model"``, ``"metric"`` or ``"source"``.
        name: Name in configurations: one of :func:`names`, or a reference.

    Raises:
        ValueError: If no component of this kind has the name.
    """
    if name in builtins(kind):
        return _builtin_options(kind, name)
    component = get(kind, name)
    found = options_of(
        kind, parameters_of(component), is_class=inspect.isclass(component), namespace=namespace_of(component)
    )
    return MappingProxyType(found)


@cache
def _builtin_options(kind: Kind, name: str) -> Mapping[str, Option]:
    found = builtins(kind)[name]
    return MappingProxyType(options_of(kind, found.parameters, is_class=found.is_class, namespace={}))


def takes_any_option(kind: Kind, name: str) -> bool:
    """Return whether the signature of a component has ``**options``, so that a configuration can give any name."""
    found = builtins(kind).get(name)
    parameters: Iterable[Parameter] = found.parameters if found else parameters_of(get(kind, name))
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def doc(kind: Kind, name: str) -> str:
    """Return the doc string of a component. That of a built-in component is known without importing it.

    Raises:
        ValueError: If no component of this kind has the name.
    """
    found = builtins(kind).get(name)
    return found.doc if found else get(kind, name).__doc__ or ""


def python_name(kind: Kind, name: str) -> str:
    """Return the name of a component in Python, such as ``"LCRON"`` for the objective ``"lcron"``."""
    found = builtins(kind).get(name)
    return found.attribute if found else str(getattr(get(kind, name), "__name__", name))


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
    for option in given:
        if option not in allowed and not takes_any_option(kind, name):
            hint = did_you_mean(option, list(allowed))
            raise RankfallError(
                f"{name} has no option {option!r}{hint}; its options are {', '.join(allowed) or 'none'}"
            )
    for required in (one.name for one in allowed.values() if one.required):
        if required not in given:
            raise RankfallError(f"{name} needs the option {required!r}")


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


def written_default(option: Option) -> Any:
    """Return the default of an option as a configuration writes it, without importing a built-in component.

    >>> written_default(options("loss", "relax_loss")["sort"])
    'neural_sort'
    """
    if option.text in builtins("operator"):
        return option.text
    return config_value(option.default)


def explicit_operator(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's name and options with the defaults filled in.

    >>> explicit_operator("soft_sort")
    {'name': 'soft_sort', 'tau': 1.0, 'power': 1}
    """
    given = {"name": value} if isinstance(value, str) else dict(value)
    defaults = {
        one.name: written_default(one) for one in options("operator", given["name"]).values() if not one.required
    }
    return given | {name: default for name, default in defaults.items() if name not in given}
