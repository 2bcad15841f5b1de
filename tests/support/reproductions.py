"""Checks and data that the tests of all reproductions share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from rankfall.reporting.figures import save
from rankfall.reproductions.catalogue import find_reproduction

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.reproductions.paper_schema import Reproduction
    from rankfall.reproductions.task import Report

Model = TypeVar("Model", bound="Reproduction")


def load(model: type[Model], name: str) -> Model:
    """Load a reproduction of a known driver."""
    found = find_reproduction(name)
    assert isinstance(found, model)
    return found


def check_report(report: Report, name: str) -> None:
    """Check that tables are rectangular, and that figures are named after the reproduction and not empty."""
    assert report.sheets
    for sheet in report.sheets:
        assert all(len(row) in (0, len(sheet.columns)) for row in sheet.rows)
    assert report.plots
    assert all(plot.startswith(name) and report.plots[plot].rows for plot in report.plots)
    assert json.dumps(report.results)


def check_figures(report: Report, directory: Path) -> None:
    """Check that the first figure can be drawn."""
    png, svg, *_ = save(report.plots, directory)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
