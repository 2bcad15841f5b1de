"""Notebooks of docs/notebooks/ as pages, with the outputs that they were saved with.

``python -m docs_site.notebooks`` executes all of them and saves their outputs.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from docs_site.markdown import page

DIRECTORY = Path(__file__).parents[1] / "docs" / "notebooks"


def pages() -> dict[str, str]:
    """Return the pages of all notebooks by their paths."""
    return {f"notebooks/{path.stem}.md": notebook_page(path) for path in sorted(DIRECTORY.glob("*.ipynb"))}


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: its text, its code and its outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    link = f"This page is a [notebook]({path.name}) that tests execute."
    return page(*(part for cell in cells for part in _cell(cell)), link)


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *(_output(output) for output in cell.get("outputs", []))]


def _output(output: dict[str, Any]) -> str:
    """Return an output in the richest form that a page can show."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    for form in ("image/svg+xml", "text/html"):
        if form in data:
            return f'<div style="overflow-x: auto">\n{"".join(data[form])}\n</div>'
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    return f"```text\n{''.join(data['text/plain'])}\n```"


def executed(path: Path, directory: Path) -> Any:
    """Return a notebook with the outputs of an execution in a directory.

    Raises:
        CellExecutionError: If a cell raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": directory}}).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # times of the execution
    notebook.metadata.pop("language_info", None)  # names the version of Python
    return notebook


def main() -> None:
    """Execute all notebooks and save their outputs."""
    for path in sorted(DIRECTORY.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as directory:
            nbformat.write(executed(path, Path(directory)), path)


if __name__ == "__main__":
    main()
