"""Pages of the Python reference: one per public module, whose doc strings mkdocstrings renders."""

from __future__ import annotations

import ast
from pathlib import Path

from docs_site import methods
from docs_site.markdown import page

SOURCE = Path(__file__).parents[1] / "src"

# Public modules and what their pages are called. Methods have pages of their own.
MODULES = {
    "rankfall.api": "rankfall: commands as functions",
    "rankfall.ranker": "rankfall.Ranker",
    "rankfall.cascade": "rankfall.Cascade and Stage",
    "rankfall.ops": "rankfall.ops",
    "rankfall.losses": "rankfall.losses",
    "rankfall.objectives": "rankfall.objectives",
    "rankfall.metrics": "rankfall.metrics",
    "rankfall.models": "rankfall.models",
    "rankfall.data": "rankfall.data",
    "rankfall.serving": "rankfall.serving",
    "rankfall.register": "rankfall.register",
    "rankfall.option_types": "rankfall.option_types",
}


def pages() -> dict[str, str]:
    """Return the pages of all public modules by their paths."""
    return {f"reference/api/{module.rpartition('.')[2]}.md": _page(module, title) for module, title in MODULES.items()}


def _file(module: str) -> Path:
    path = SOURCE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _page(module: str, title: str) -> str:
    elsewhere = {one.python: one for one in methods.all_methods() if _owns(module, one)}
    shown = [name for name in public_names(module) if name not in elsewhere]
    return page(
        f"# {title}",
        f"::: {module}\n    options: {{show_root_heading: false, show_root_toc_entry: false, members: false}}",
        *(f"::: {_path(module, name)}" for name in sorted(shown, key=lambda name: (name[0].isupper(), name))),
        *_list(elsewhere),
    )


def _path(module: str, name: str) -> str:
    """Return the path of a public name: that of its definition if a submodule has the same name."""
    directory = _file(module).parent
    is_package = _file(module).name == "__init__.py"
    same = is_package and ((directory / f"{name}.py").exists() or (directory / name).is_dir())
    return f"{module}.{name}.{name}" if same else f"{module}.{name}"


def _owns(module: str, method: methods.Method) -> bool:
    return method.identifier.rpartition(".")[0] == module


def _list(elsewhere: dict[str, methods.Method]) -> list[str]:
    if not elsewhere:
        return []
    lines = [f"- [`{name}`](../../{method.path})" for name, method in elsewhere.items()]
    return ["## Methods with pages of their own", "\n".join(lines)]


def public_names(module: str) -> list[str]:
    """Return the names of ``__all__``, or the public functions and classes of the file."""
    tree = ast.parse(_file(module).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return list(ast.literal_eval(node.value))
    definitions = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, definitions) and not node.name.startswith("_")]
