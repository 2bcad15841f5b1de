"""Decorators that register components, so that configurations can name them.

``@rf.register.loss`` stores a function under its own name, ``@rf.register.loss("focal")`` under another one. A class
without a given name is stored in snake case: ``PairTower`` becomes ``pair_tower``. The decorators return what they
decorate unchanged. The built-in components of rankfall carry the same decorators. This module does not import torch.

A module that registers components must be imported before a configuration can use their names: by the program itself,
by an entry point of the group ``rankfall``, or because the configuration names something in it by a reference such as
``"./my_losses.py:focal"``.

Examples:
    >>> import rankfall as rf
    >>> @rf.register.loss
    ... def squared_loss(scores, labels, *, mask=None, weight=None, margin: float = 0.0):
    ...     return ((scores - labels).abs() - margin).clamp(min=0).square().mean()
    >>> from rankfall import registry
    >>> "squared_loss" in registry.names("loss")
    True
    >>> list(registry.options("loss", "squared_loss"))
    ['margin']
    >>> rf.register.unregister("loss", "squared_loss")
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from rankfall._errors import RankfallError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["loss", "metric", "model", "objective", "operator", "source", "unregister"]

Kind = Literal["operator", "loss", "objective", "model", "metric", "source"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Component = TypeVar("Component", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class Registered:
    """A component that a decorator has stored.

    Attributes:
        kind: Kind of the component.
        name: Name in configurations.
        component: The function or class.
        higher_is_better: For metrics, whether larger values are better.
        options: For metrics, arguments that the name fixes.
    """

    kind: Kind
    name: str
    component: Callable[..., Any]
    higher_is_better: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """The file that defines the component, or None for code without a file, such as that of a Python prompt."""
        code = getattr(inspect.unwrap(self.component), "__code__", None)
        if code is not None:
            return str(code.co_filename)
        try:
            return inspect.getsourcefile(self.component)
        except (TypeError, OSError):
            return None

    @property
    def place(self) -> str:
        """The place of the definition, for messages."""
        name = getattr(self.component, "__qualname__", repr(self.component))
        code = getattr(inspect.unwrap(self.component), "__code__", None)
        line = f":{code.co_firstlineno}" if code is not None else ""
        return f"{_module(self.component)}.{name} ({self.file or 'no file'}{line})"

    @property
    def is_builtin(self) -> bool:
        """Whether rankfall itself defines the component."""
        return _is_builtin(self.component)


_PACKAGES = tuple(f"rankfall.{name}." for name in ("ops", "losses", "objectives", "models", "metrics", "data"))
_TABLE: dict[Kind, dict[str, Registered]] = {kind: {} for kind in KINDS}


def registered(kind: Kind) -> Mapping[str, Registered]:
    """Return the components of one kind that imported modules have registered, by name."""
    return _TABLE[kind]


@overload
def operator(component: Component, /) -> Component: ...
@overload
def operator(name: str, /) -> Callable[[Component], Component]: ...
def operator(component: Any, /) -> Any:
    """Register an operator: ``f(scores, k, *, mask=None, **options)``.

    It returns inclusion probabilities ``(..., n)`` or the first k rows of a soft permutation ``(..., k, n)``.

    Args:
        component: The function, or the name under which the decorated function is registered.
    """
    return _decorate("operator", component)


@overload
def loss(component: Component, /) -> Component: ...
@overload
def loss(name: str, /) -> Callable[[Component], Component]: ...
def loss(component: Any, /) -> Any:
    """Register a loss: ``f(scores, labels, *, mask=None, weight=None, **options)``, or a module class with options.

    Args:
        component: The function or class, or the name under which what is decorated is registered.
    """
    return _decorate("loss", component)


@overload
def objective(component: Component, /) -> Component: ...
@overload
def objective(name: str, /) -> Callable[[Component], Component]: ...
def objective(component: Any, /) -> Any:
    """Register an objective: a subclass of :class:`rankfall.objectives.Objective`.

    Args:
        component: The class, or the name under which the decorated class is registered.
    """
    return _decorate("objective", component)


@overload
def model(component: Component, /) -> Component: ...
@overload
def model(name: str, /) -> Callable[[Component], Component]: ...
def model(component: Any, /) -> Any:
    """Register a model: a module class built from ``(features, **options)``.

    Args:
        component: The class, or the name under which the decorated class is registered.
    """
    return _decorate("model", component)


@overload
def metric(component: Component, /) -> Component: ...
@overload
def metric(
    name: str | None = None, /, *, higher_is_better: bool = True, options: Mapping[str, Any] | None = None
) -> Callable[[Component], Component]: ...
def metric(component: Any = None, /, *, higher_is_better: bool = True, options: Mapping[str, Any] | None = None) -> Any:
    """Register a metric: ``f(scores, labels, *, mask=None, empty=..., **cutoffs)``, which returns one value per list.

    Args:
        component: The function, or the name under which the decorated function is registered.
        higher_is_better: Whether larger values are better.
        options: Arguments that this name fixes. They are no cutoffs.
    """
    return _decorate("metric", component, higher_is_better=higher_is_better, options=options or {})


@overload
def source(component: Component, /) -> Component: ...
@overload
def source(name: str, /) -> Callable[[Component], Component]: ...
def source(component: Any, /) -> Any:
    """Register a data source: ``f(**options)``, which yields pyarrow tables or polars frames of rows.

    Args:
        component: The function, or the name under which the decorated function is registered.
    """
    return _decorate("source", component)


def unregister(kind: Kind, name: str) -> None:
    """Forget a component, so that another one can have its name.

    Args:
        kind: Kind of the component.
        name: Its name in configurations.
    """
    del _TABLE[kind][name]


def _decorate(kind: Kind, component: Any, **details: Any) -> Any:
    if component is None or isinstance(component, str):
        return lambda decorated: _store(kind, decorated, component, **details)
    return _store(kind, component, None, **details)


def _store(kind: Kind, component: Component, name: str | None, **details: Any) -> Component:
    if not callable(component):
        raise TypeError(f"register.{kind}: found {component!r}, expected a function or a class")
    name = default_name(component) if name is None else name
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        raise RankfallError(
            f"register.{kind}: found the name {name!r}, expected letters, digits, '_', '-' and '.', a letter first"
        )
    new = Registered(kind, name, component, **details)
    if not new.is_builtin:
        _check_unused(new)
    _TABLE[kind][name] = new
    return component


def _check_unused(new: Registered) -> None:
    if builtin := _builtin_place(new.kind, new.name):
        raise RankfallError(f"register.{new.kind}: {new.name!r} is built in: {builtin}; {new.place} needs another name")
    old = _TABLE[new.kind].get(new.name)
    # the same definition is registered again if a cell of a notebook runs twice or a changed file is read again
    if old is not None and _definition(old) != _definition(new):
        raise RankfallError(f"register.{new.kind}: {new.name!r} is registered twice: by {old.place} and by {new.place}")


def _definition(one: Registered) -> tuple[str, str]:
    return one.file or _module(one.component), getattr(one.component, "__qualname__", repr(one.component))


def _builtin_place(kind: Kind, name: str) -> str | None:
    """Return the place of a built-in component, which may not have been imported."""
    place: str | None = import_module("rankfall.registry.builtin").BUILTINS[kind].get(name)
    return place and place.replace(":", ".")


def default_name(component: Callable[..., Any]) -> str:
    """Return the name of a function, or that of a class in snake case."""
    if inspect.isclass(component):
        return snake_case(component.__name__)
    if not hasattr(component, "__name__"):
        raise RankfallError(
            f"register: found {component!r}, which has no name; give it one, as in register.loss('name')"
        )
    return str(component.__name__)


def snake_case(name: str) -> str:
    """Return the name of a class in snake case.

    >>> snake_case("PairMLP"), snake_case("DCNv2")
    ('pair_mlp', 'dcnv2')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", "_", name).lower()


def _is_builtin(component: Callable[..., Any]) -> bool:
    return _module(component).startswith(_PACKAGES)


def _module(component: Callable[..., Any]) -> str:
    """Return the module of a component. Code that is executed from a text may have none."""
    return getattr(component, "__module__", None) or "__main__"
