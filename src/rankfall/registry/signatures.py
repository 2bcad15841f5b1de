"""Signatures of components: which parameters are options, with their annotations and defaults.

The signature of a built-in component is read from its source, that of any other component from the object itself.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rankfall._errors import RankfallError
from rankfall.register import Kind, snake_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


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


PACKAGES: dict[Kind, str] = {
    "operator": "ops",
    "loss": "losses",
    "objective": "objectives",
    "model": "models",
    "metric": "metrics",
}
"""The package of each kind that has built-in components."""

_ROOT = Path(__file__).parent.parent
_MARK = "@register."


@dataclass(frozen=True, slots=True)
class Builtin:
    """A built-in component, as its source describes it.

    Attributes:
        kind: Kind of the component.
        name: Name in configurations.
        module: Module that defines it.
        attribute: Name in Python.
        is_class: Whether it is a class.
        parameters: Parameters of the function, or of the constructor of the class.
        doc: The doc string.
        returns: Text of the return annotation.
        higher_is_better: For metrics, whether larger values are better.
        options: For metrics, arguments that the name fixes.
    """

    kind: Kind
    name: str
    module: str
    attribute: str
    is_class: bool
    parameters: tuple[Parameter, ...]
    doc: str
    returns: str = ""
    higher_is_better: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


@cache
def builtins(kind: Kind) -> Mapping[str, Builtin]:
    """Return the built-in components of one kind by name, in alphabetical order."""
    if kind not in PACKAGES:
        return {}
    files = sorted((_ROOT / PACKAGES[kind]).rglob("*.py"))
    found = [one for file in files for one in _in_file(file) if one.kind == kind]
    by_name = {one.name: one for one in sorted(found, key=lambda one: one.name)}
    if len(by_name) < len(found):
        twice = next(one.name for one in found if [other.name for other in found].count(one.name) > 1)
        places = [f"{one.module}.{one.attribute}" for one in found if one.name == twice]
        raise RankfallError(f"{kind}: {twice!r} is registered twice: by {' and by '.join(places)}")
    return by_name


def place(kind: Kind, name: str) -> str | None:
    """Return the module and the name of a built-in component, or None if there is none of this name."""
    found = builtins(kind).get(name)
    return None if found is None else f"{found.module}.{found.attribute}"


def export_others(package: str, listed: list[str]) -> None:
    """Export the components of a package's files that its ``__init__`` does not import.

    So a new component needs nothing but its file. A package calls this function after its own imports.

    Args:
        package: Name of the package, such as ``"rankfall.losses"``.
        listed: Its ``__all__``, to which the names of the other components are added.
    """
    for name, module in _public_names(package):
        if name not in listed:
            component = getattr(import_module(module), name)
            setattr(sys.modules[package], name, component)  # not the module, which may have the same name
            listed.append(name)


def _public_names(package: str) -> list[tuple[str, str]]:
    """Return the names of registered components and of the loss modules beside them, each with its module."""
    found: dict[str, str] = {}
    for file in sorted((_ROOT / package.removeprefix("rankfall.")).glob("*.py")):
        for node in _definitions(file):
            if not node.name.startswith("_") and (list(_decorators(node)) or _is_loss_module(node)):
                found[node.name] = f"{package}.{file.stem}"
    return sorted(found.items())


def _is_loss_module(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "LossModule" for base in node.bases)


def _in_file(file: Path) -> Iterator[Builtin]:
    module = ".".join(("rankfall", *file.relative_to(_ROOT).with_suffix("").parts))
    for node in _definitions(file):
        for kind, call in _decorators(node):
            name, details = _arguments(node, call)
            yield Builtin(
                kind,
                name,
                module,
                node.name,
                isinstance(node, ast.ClassDef),
                tuple(_parameters(node, module)),
                ast.get_docstring(node, clean=False) or "",
                ast.unparse(node.returns) if isinstance(node, ast.FunctionDef) and node.returns else "",
                **details,
            )


@cache
def _definitions(file: Path) -> tuple[ast.FunctionDef | ast.ClassDef, ...]:
    """Return the functions and classes of a file that has a registered component."""
    text = file.read_text(encoding="utf-8")
    if _MARK not in text:
        return ()
    return tuple(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef))


def _decorators(node: ast.FunctionDef | ast.ClassDef) -> Iterator[tuple[Kind, ast.Call | None]]:
    for one in node.decorator_list:
        call = one if isinstance(one, ast.Call) else None
        target = call.func if call else one
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "register":
            (kind,) = (kind for kind in get_args(Kind) if kind == target.attr)
            yield kind, call


def _arguments(node: ast.FunctionDef | ast.ClassDef, call: ast.Call | None) -> tuple[str, dict[str, Any]]:
    """Return the name and the other arguments of a decorator."""
    default = snake_case(node.name) if isinstance(node, ast.ClassDef) else node.name
    if call is None:
        return default, {}
    name = ast.literal_eval(call.args[0]) if call.args else default
    return name, {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}


def _parameters(node: ast.FunctionDef | ast.ClassDef, module: str) -> list[Parameter]:
    if isinstance(node, ast.FunctionDef):
        return parameters_in(node, module, node.name, method=False)
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return parameters_in(one, module, node.name, method=True)
    raise TypeError(f"{module}.{node.name}: a registered class needs its own __init__, which declares its options")
