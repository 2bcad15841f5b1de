"""What all reproductions have, whatever they run on."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import save

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.reproductions.task import Report


def module(name: str) -> Any:
    """The module of an experiment by its name, or the name of its file."""
    return importlib.import_module(f"rankfall.reproductions.{name.replace('-', '_')}")


def check_report(report: Report, name: str) -> None:
    """A report has tables with rows as long as their heads, and pictures that are named after it and hold something."""
    assert report.sheets
    for sheet in report.sheets:
        assert all(len(row) in (0, len(sheet.columns)) for row in sheet.rows)
    assert report.plots
    assert all(plot.startswith(name) and report.plots[plot].rows for plot in report.plots)
    assert json.dumps(report.results)


def check_pictures(report: Report, directory: Path) -> None:
    """The first picture can be drawn."""
    png, svg, *_ = save(report.plots, directory)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
