"""Checks and data that the tests of all reproductions share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from rankfall.reporting.charts import save
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
        assert all(len(row) in (0, len(sheet.head)) for row in sheet.rows)
    assert report.plots
    assert all(plot.startswith(name) and panels_of(report, plot) for plot in report.plots)
    assert json.dumps(report.results)


def panels_of(report: Report, name: str) -> list[str]:
    """The names of the panels of a figure."""
    return [panel.name for panel in report.plots[name].panels]


def points_of(report: Report, name: str, series: str) -> int:
    """The number of points of a series in a figure."""
    figure = report.plots[name]
    (fill,) = (key.color for key in figure.legend if key.name == series)
    return sum(
        part.count(f'fill="{fill}"')
        for one in figure.panels
        for strip in one.strips
        for part in strip.parts
        if part.startswith("<circle")
    )


def check_figures(report: Report, directory: Path) -> None:
    """Check that the first figure can be drawn."""
    png, svg, *_ = save(report.plots, directory)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
