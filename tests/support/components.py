"""Options of built-in components for tests that run over all of them, so that a new one needs no entry."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from rankfall import registry

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.registry import Kind

_VALUES: dict[str, Any] = {"m": 5, "k": 3, "topk": "dftopk", "sort": "neural_sort", "loss": "ranknet_loss"}


def required_options(kind: Kind, name: str) -> dict[str, Any]:
    """Values for the options of a component that have no default."""
    return {one.name: _VALUES[one.name] for one in registry.options(kind, name).values() if one.required}


def tables_of_files(folder: Path, table: str) -> dict[str, Any]:
    """The entries of a table in the test files of single components, ``test_NAME.py`` beside the common tests.

    A file ``tests/losses/test_hinge_loss.py`` with ``FORMULAS = {"hinge_loss": ...}`` adds its loss to all tests of
    losses. A file may lack a table, and may have a set of names instead.
    """
    found: dict[str, Any] = {}
    for kind in registry.KINDS:
        for name in registry.builtins(kind):
            file = folder / f"test_{name}.py"
            if file.is_file():
                spec = importlib.util.spec_from_file_location(f"table_of_{name}", file)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                entries = getattr(module, table, {})
                found |= entries if isinstance(entries, dict) else dict.fromkeys(entries)
    return found
