"""Figures as files, as SVG and PNG, and the dots of published tables.

SVG needs nothing else; PNG needs vl-convert (``rankfall[report]``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rankfall.reporting.charts import (
    GRID,
    INK,
    Scale,
    circle,
    color,
    document,
    line,
    panel,
    rect,
    text,
    text_at,
    text_width,
    tick_labels,
)
from rankfall.storage.files import write_file
from rankfall.training.config.component_checks import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Record = dict[str, Any]

INSTALL = "pip install 'rankfall[report]'"
PNG, SVG = ".png", ".svg"
_BEST = color(2)
_GAP, _LINE = 28, 18  # pixels: distance of panels, height of a line of text


class MissingExtraError(ImportError):
    """The library that writes PNG files is not installed."""


class Drawn(Protocol):
    """A figure."""

    def svg(self) -> str:
        """Return the figure as an SVG document."""
        ...


def save(plots: Mapping[str, Drawn], out: Path, *, formats: Sequence[str] = (PNG, SVG)) -> list[Path]:
    """Write each figure to ``NAME.png`` and ``NAME.svg``, and return the files.

    Raises:
        MissingExtraError: PNG is among the formats, and vl-convert is not installed. No file is written.
    """
    convert: Any = _vl_convert() if PNG in formats else None
    files = []
    for name, plot in plots.items():
        svg = plot.svg()
        for ending in formats:
            file = out / f"{name}{ending}"
            content = svg.encode() if ending == SVG else convert.svg_to_png(svg, ppi=144)
            write_file(file, content)
            files.append(file)
    return files


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError(f"no PNG: vl-convert-python is not installed: {INSTALL}") from None
    return vl_convert


@dataclass(frozen=True)
class DotPanel:
    """One panel of :class:`Dots`."""

    source: str
    metric: str
    methods: list[str]
    rows: list[Record]
    higher_is_better: bool
    claims: bool = True

    @property
    def best(self) -> set[str]:
        """Methods with the best value, if there are several methods and the panel makes claims."""
        if len(self.rows) < 2 or not self.claims:
            return set()
        best = (max if self.higher_is_better else min)(row["value"] for row in self.rows)
        return {row["method"] for row in self.rows if row["value"] == best}


@dataclass(frozen=True)
class Dots:
    """One panel per metric and source with the value of every method, in the order of the paper.

    A row has method, source, metric, value, and low and high if an interval is known. With `costs`, lower values of all
    metrics are better. A source with too few seeds (`few_seeds`) makes no claim, so its best values have no mark.
    """

    rows: Sequence[Record]
    title: str
    subtitle: str = ""
    costs: bool = False
    few_seeds: str | None = None

    def panels(self) -> list[DotPanel]:
        """Return the panels, source after source. The panels of a source have the same methods."""
        sources, metrics = self._unique("source"), self._unique("metric")
        found = []
        for source in sources:
            present = {row["method"] for row in self.rows if row["source"] == source}
            methods = [method for method in self._unique("method") if method in present]
            for metric in metrics:
                rows = [row for row in self.rows if row["source"] == source and row["metric"] == metric]
                higher = not self.costs and higher_is_better(metric)
                claims = source != self.few_seeds
                found += [DotPanel(source, metric, methods, rows, higher, claims)] if rows else []
        return found

    def svg(self) -> str:
        """Return sources below each other and metrics side by side, each panel on its own scale."""
        metrics = self._unique("metric")
        label = max((text_width(row["method"]) for row in self.rows), default=0) + 10
        width, top, parts = 180, 0.0, []
        for source in self._unique("source"):
            panels = {one.metric: one for one in self.panels() if one.source == source}
            height = 20 * len(next(iter(panels.values())).methods)
            parts.append(text_at(0, top + 12, source, fill=INK, size=13))
            top += 2 * _LINE + 6
            for number, method in enumerate(next(iter(panels.values())).methods):
                parts.append(text_at(label - 10, top + 20 * number + 14, method, anchor="end"))
            for number, metric in enumerate(metrics):
                if metric in panels:
                    x = label + number * (width + _GAP)
                    parts.append(panel(x, top, width, height, self._draw(panels[metric], height)))
            top += height + _LINE + _GAP
        lines_drawn = any("low" in row for row in self.rows)
        marks = "red: best of a panel" + "; lines: 95 % confidence intervals" * lines_drawn
        marks += f"; {self.few_seeds}: too few seeds, no claim which is best" if self.few_seeds else ""
        subtitle = "\n".join(filter(None, [self.subtitle, marks]))
        return document(self.title, subtitle, label + len(metrics) * (width + _GAP) - _GAP, top - _GAP, parts)

    def _draw(self, one: DotPanel, height: float) -> list[str]:
        values = [row[key] for row in one.rows for key in ("low", "value", "high") if key in row]
        scale = Scale.around(values)
        name = one.metric if one.higher_is_better else f"{one.metric} (lower is better)"
        parts = [text(0, -6, name, fill=INK)]
        ticks = scale.ticks(3)
        for tick, words in zip(ticks, tick_labels(ticks), strict=True):
            parts.append(line(scale(tick), 0, scale(tick), height, GRID, 1))
            parts.append(text(scale(tick), height + 16, words, anchor="middle"))
        parts.append(rect(0, 0, 100, height, "none", GRID))
        for row in one.rows:
            y = 20 * one.methods.index(row["method"]) + 10
            if "low" in row:
                parts.append(line(scale(row["low"]), y, scale(row["high"]), y, color(5), 2))
            parts.append(circle(scale(row["value"]), y, 4.5, _BEST if row["method"] in one.best else color(0)))
        return parts

    def _unique(self, key: str) -> list[str]:
        return list(dict.fromkeys(row[key] for row in self.rows))
