"""Built-in components, found in the sources of their packages without importing them.

Importing torch takes seconds. The registry therefore reads names, signatures and doc strings of built-in components
with :mod:`ast`: everything in the packages below that has a decorator of :mod:`rankfall.register`.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rankfall.register import Kind, snake_case
from rankfall.registry.signatures import parameters_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankfall.registry.signatures import Parameter

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
        raise ValueError(f"{kind}: {twice!r} is registered twice: by {' and by '.join(places)}")
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
