"""Signatures of components: which parameters are options, with their annotations and defaults.

The signature of a built-in component is read from its source, that of any other component from the object itself.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rankfall.register import Kind

REQUIRED = inspect.Parameter.empty
"""The default of an option that has none."""

Part = Literal["sort", "topk", "loss"]
"""What an option that is itself a component takes: a soft sort, any operator as a soft top-k, or a loss."""

_PARTS: dict[str, Part] = {"SoftSort": "sort", "TopK": "topk", "Module": "loss"}

# Leading parameters that the caller passes by position, for functions and for classes.
_POSITIONAL: dict[Kind, tuple[int, int]] = {
    "operator": (1, 1),
    "loss": (2, 0),
    "objective": (0, 0),
    "model": (1, 1),
    "metric": (2, 2),
    "source": (0, 0),
}

# Parameters that the caller passes by name: the training loop, or other sections of the configuration.
_BY_NAME: dict[Kind, frozenset[str]] = {
    "operator": frozenset({"k", "mask", "generator"}),
    "loss": frozenset({"mask", "weight", "reduction", "generator"}),
    "objective": frozenset({"relevant", "stages"}),
    "model": frozenset({"tables"}),
    "metric": frozenset({"mask", "empty"}),
    "source": frozenset(),
}

# Parameters without a default that the caller supplies unless the configuration gives them.
_OVERRIDABLE: dict[Kind, frozenset[str]] = {"objective": frozenset({"quotas"})}  # those of the stages


@dataclass(frozen=True, slots=True)
class Deferred:
    """A default that is no literal, such as a function. Reading it imports the component."""

    module: str
    attribute: str
    parameter: str

    def value(self) -> Any:
        """Import the component and return the default of its parameter."""
        component = getattr(import_module(self.module), self.attribute)
        return inspect.signature(component).parameters[self.parameter].default


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a component.

    Attributes:
        name: Name of the parameter.
        annotation: A type, or its text.
        given: The default, :data:`REQUIRED`, or a :class:`Deferred` default.
        kind: Kind of the parameter, as in :class:`inspect.Parameter`.
        text: Source text of a deferred default.
    """

    name: str
    annotation: Any
    given: Any
    kind: inspect._ParameterKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a component.

    Attributes:
        name: Name of the parameter.
        annotation: Type of the option: a type, or its text where annotations are postponed.
        given: The default, or :data:`REQUIRED`, or a :class:`Deferred` default.
        namespace: Names that the text of the annotation may use.
        text: Source text of a deferred default.
    """

    name: str
    annotation: Any
    given: Any
    namespace: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False, hash=False)
    text: str = ""

    @property
    def default(self) -> Any:
        """Default in the signature, a Python value, or :data:`REQUIRED`."""
        return self.given.value() if isinstance(self.given, Deferred) else self.given

    @property
    def required(self) -> bool:
        """Whether a configuration must give this option."""
        return self.given is REQUIRED

    @property
    def part(self) -> Part | None:
        """The kind of component that the option takes by name, or None if it takes a plain value.

        The annotation decides. An option without one that has the usual name of a component takes this component.
        """
        if self.annotation is REQUIRED:
            return next((part for part in get_args(Part) if part == self.name), None)
        return part_of(self.annotation)


def part_of(annotation: Any) -> Part | None:
    """Return the kind of component that an annotation stands for.

    >>> part_of("rf.ops.TopK | None"), part_of("Optional[SoftSort]"), part_of("int")
    ('topk', 'sort', None)
    """
    if isinstance(annotation, str):
        members = re.split(r"[|,\[\]]", annotation) if "Literal" not in annotation else []
    else:
        members = [
            getattr(one, "__forward_arg__", None) or getattr(one, "__name__", "")
            for one in get_args(annotation) or (annotation,)
        ]
    names = [one.strip().rpartition(".")[2] for one in members]
    return next((_PARTS[name] for name in names if name in _PARTS), None)


def options_of(
    kind: Kind, parameters: Iterable[Parameter], *, is_class: bool, namespace: Mapping[str, Any]
) -> dict[str, Option]:
    """Return the parameters that a configuration can give, in the order of the signature.

    Args:
        kind: Kind of the component.
        parameters: All parameters.
        is_class: Whether the component is a class, so that the parameters are those of its constructor.
        namespace: Names that annotations may use.
    """
    hidden = frozenset({"reduction"}) if kind == "loss" and is_class else _BY_NAME[kind]
    overridable = _OVERRIDABLE.get(kind, frozenset())
    return {
        one.name: Option(
            one.name,
            one.annotation,
            None if one.name in overridable and one.given is REQUIRED else one.given,
            namespace,
            one.text,
        )
        for one in [*parameters][_POSITIONAL[kind][is_class] :]
        if one.name not in hidden and one.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }


def parameters_of(component: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a function, or of the constructor of a class."""
    return [
        Parameter(one.name, one.annotation, one.default, one.kind)
        for one in inspect.signature(component).parameters.values()
    ]


def namespace_of(component: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the names that the annotations of a component may use: those of its module."""
    inner: Any = component
    while isinstance(inner, partial):
        inner = inner.func
    if inspect.isclass(inner):
        inner = inner.__init__
    return getattr(inspect.unwrap(inner), "__globals__", {})


# --- sources ------------------------------------------------------------------------------------------------------


def parameters_in(node: ast.FunctionDef, module: str, attribute: str, *, method: bool) -> list[Parameter]:
    """Return the parameters in the source of a function.

    Args:
        node: The function.
        module: Module of the component, from which defaults that are no literals are imported.
        attribute: Name of the component in the module.
        method: Whether the first parameter is ``self``.
    """
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    named: list[tuple[ast.arg, ast.expr | None, Any]] = [
        *(
            (one, default, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for one, default in zip(plain, defaults, strict=True)
        ),
        *(
            (one, default, inspect.Parameter.KEYWORD_ONLY)
            for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
    ]
    if arguments.kwarg:
        named.append((arguments.kwarg, None, inspect.Parameter.VAR_KEYWORD))
    return [
        Parameter(
            one.arg,
            ast.unparse(one.annotation) if one.annotation else REQUIRED,
            _default(default, Deferred(module, attribute, one.arg)),
            kind,
            ast.unparse(default) if default is not None else "",
        )
        for one, default, kind in named[1 if method else 0 :]
    ]


def _default(node: ast.expr | None, deferred: Deferred) -> Any:
    if node is None:
        return REQUIRED
    try:
        return ast.literal_eval(node)
    except ValueError:
        return deferred
