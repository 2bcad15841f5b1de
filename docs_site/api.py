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
    return {
        f"reference/api/{module.rpartition('.')[2]}.md": _page(module, title)
        for module, title in MODULES.items()
        if _file(module).exists()
    }


def _file(module: str) -> Path:
    path = SOURCE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _page(module: str, title: str) -> str:
    elsewhere = {one.identifier.rpartition(".")[2]: one for one in methods.all_methods() if _owns(module, one)}
    members = [name for name in _public_names(module) if name not in elsewhere]
    shown = "".join(f"        - {name}\n" for name in members)
    return page(
        f"# {title}",
        f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
        f"      members:\n{shown}" + ("" if members else "        []\n"),
        *_list(module, elsewhere),
    )


def _owns(module: str, method: methods.Method) -> bool:
    return method.identifier.rpartition(".")[0] == module


def _list(module: str, elsewhere: dict[str, methods.Method]) -> list[str]:
    if not elsewhere:
        return []
    lines = [f"- [`{name}`](../../{method.path})" for name, method in elsewhere.items()]
    return ["## Methods with pages of their own", "\n".join(lines)]


def _public_names(module: str) -> list[str]:
    """Return the names of ``__all__``, or the public functions and classes of the file."""
    tree = ast.parse(_file(module).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return list(ast.literal_eval(node.value))
    definitions = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, definitions) and not node.name.startswith("_")]
