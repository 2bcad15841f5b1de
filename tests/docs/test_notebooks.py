"""Notebooks run from top to bottom, and were saved with the outputs of such a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from docs_site.notebooks import DIRECTORY, executed

if TYPE_CHECKING:
    from pathlib import Path

NOTEBOOKS = sorted(DIRECTORY.glob("*.ipynb"))


def kinds(notebook: Any) -> list[list[list[str]]]:
    """The media types of every output of every cell; values may differ in their last digits."""
    return [
        [sorted(output.get("data", {output.output_type: ""})) for output in cell.get("outputs", [])]
        for cell in notebook.cells
    ]


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_its_outputs(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    assert kinds(executed(path, tmp_path)) == kinds(stored)
    assert not any("stderr" in str(output.get("name")) for cell in stored.cells for output in cell.get("outputs", []))


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 2
