"""Figures as files: dots, lines, heat maps and searches, as SVG and PNG.

A figure is plain records and a few titles. SVG needs nothing else; PNG needs vl-convert (``rankfall[report]``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from rankfall.reporting.blocks import flow
from rankfall.reporting.charts import (
    GRID,
    INK,
    Axes,
    Scale,
    Series,
    circle,
    color,
    document,
    grid,
    line,
    lines,
    panel,
    rect,
    round_powers,
    text,
    text_at,
    text_width,
    tick_labels,
)
from rankfall.storage.files import write_file
from rankfall.training.config.component_checks import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Record = dict[str, Any]

INSTALL = "pip install 'rankfall[report]'"
PNG, SVG = ".png", ".svg"
_BEST = color(2)
_GAP, _LINE = 28, 18  # pixels: distance of panels, height of a line of text
_DASHES = ("", "5 5", "1 5")
_SHADE, _SHADES = "#f3e3b3", ((222, 235, 247), (8, 81, 156))  # a span of x; heat maps from the lowest to the best value


class MissingExtraError(ImportError):
    """The library that writes PNG files is not installed."""


class Drawn(Protocol):
    """A figure."""

    def svg(self) -> str:
        """Return the figure as an SVG document."""
        ...


class Plot(Drawn, Protocol):
    """A figure that is drawn from records."""

    @property
    def rows(self) -> Sequence[Record]:
        """The numbers of the figure."""
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


# --- layout -------------------------------------------------------------------------------------------------------


def _legend(x: float, y: float, title: str, entries: Mapping[str, str], dashes: Mapping[str, str]) -> list[str]:
    """Return names beside colours, then beside dashes, below each other."""
    parts = [text_at(x, y + 10, title, fill=INK)] if title else []
    for number, (name, fill) in enumerate([*entries.items(), *((name, "") for name in dashes)], bool(title)):
        middle = y + 6 + number * _LINE
        look = f'stroke="{fill or INK}" stroke-width="3" stroke-dasharray="{dashes.get(name, "")}"'
        parts.append(f'<line x1="{x:.0f}" y1="{middle:.0f}" x2="{x + 18:.0f}" y2="{middle:.0f}" {look}/>')
        parts.append(text_at(x + 24, middle + 4, name))
    return parts


def _legend_size(title: str, names: Sequence[str]) -> tuple[float, float]:
    return max([text_width(title), *(24 + text_width(name) for name in names)]), _LINE * (len(names) + bool(title))


def _x_axis(scale: Scale, ticks: Sequence[float], height: float) -> list[str]:
    """Return vertical grid lines with labels below."""
    parts = []
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        parts += [line(scale(tick), 0, scale(tick), height, GRID, 1)]
        parts += [text(scale(tick), height + 16, label, anchor="middle")]
    return parts


def _frame(height: float) -> str:
    return rect(0, 0, 100, height, "none", GRID).replace('stroke-width="2"', 'stroke-width="1"')


# --- figures ------------------------------------------------------------------------------------------------------


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
        parts = [text(0, -6, name, fill=INK), *_x_axis(scale, scale.ticks(3), height), _frame(height)]
        for row in one.rows:
            y = 20 * one.methods.index(row["method"]) + 10
            if "low" in row:
                parts.append(line(scale(row["low"]), y, scale(row["high"]), y, color(5), 2))
            parts.append(circle(scale(row["value"]), y, 4.5, _BEST if row["method"] in one.best else color(0)))
        return parts

    def _unique(self, key: str) -> list[str]:
        return list(dict.fromkeys(row[key] for row in self.rows))


@dataclass(frozen=True)
class Lines:
    """A line per series through points (x, y), with a band from low to high if those are known.

    A row has series, x, y and the field that `dashed` names, if any. Rows with different panels are drawn side by side,
    each panel on its own scale.
    """

    rows: Sequence[Record]
    title: str
    x: str
    y: str
    series: str
    subtitle: str = ""
    log_x: bool = False
    log_y: bool = False
    dashed: str | None = None  # field whose values differ in dashes
    span: tuple[float, float] | None = None  # a range of x to shade
    ticks: Sequence[float] | None = None

    def svg(self) -> str:
        """Return all series in one panel, or panels side by side, with a legend on the right."""
        panels = list(dict.fromkeys(row.get("panel") for row in self.rows))
        names = list(dict.fromkeys(row["series"] for row in self.rows))
        colors = {name: color(number) for number, name in enumerate(names)}
        width, height = (480, 300) if len(panels) == 1 else (340, 260)
        parts: list[str] = []
        for number, name in enumerate(panels):
            rows = [row for row in self.rows if row.get("panel") == name]
            title = self.y if name is None else str(name)
            parts.append(
                panel(number * (width + _GAP), _LINE + 4, width, height, self._draw(rows, title, colors, height))
            )
        right = len(panels) * (width + _GAP)
        kinds = self._dashes()
        legend, below = (0.0, 0.0)
        if len(names) > 1 or kinds:
            legend, below = _legend_size(self.series, [*colors, *kinds])
            parts += _legend(right, _LINE, self.series, colors, kinds)
        return document(self.title, self.subtitle, right + legend, max(height + 3.2 * _LINE, below + _LINE), parts)

    def _dashes(self) -> dict[str, str]:
        kinds = list(dict.fromkeys(row[self.dashed] for row in self.rows)) if self.dashed else []
        return {str(kind): _DASHES[number % len(_DASHES)] for number, kind in enumerate(kinds)}

    def _draw(self, rows: Sequence[Record], title: str, colors: Mapping[str, str], height: float) -> list[str]:
        heights = [row[key] for row in rows for key in ("low", "y", "high") if key in row]
        if self.log_y:
            heights = [value for value in heights if value > 0]
        along = Scale.around([*(row["x"] for row in rows), *(self.span or ())], edge=0.03, log=self.log_x)
        axes = Axes(along, Scale.around(heights, log=self.log_y), self._x_ticks(along), height=height)
        parts = [text(0, -8, title, fill=INK), text(50, height + 36, self.x, anchor="middle", fill=INK)]
        if self.span:
            left, right = map(axes.x, self.span)
            parts.append(rect(left, 0, right - left, height, _SHADE))
        return [*parts, *grid(axes), *lines(self._series(rows, colors), axes)]

    def _x_ticks(self, along: Scale) -> Sequence[float]:
        if self.ticks is None:
            return along.ticks(6)
        apart = -(-len(self.ticks) // 10)  # labels must not overlap
        return [tick for tick in self.ticks if 0 <= along(tick) <= 100][::apart]

    def _series(self, rows: Sequence[Record], colors: Mapping[str, str]) -> list[Series]:
        groups: dict[tuple[str, str], list[Record]] = {}
        for row in rows:
            groups.setdefault((row["series"], str(row[self.dashed]) if self.dashed else ""), []).append(row)
        dashes = self._dashes()
        return [
            Series(
                points=[(row["x"], row["y"]) for row in sorted(group, key=lambda row: row["x"])],
                color=colors[name],
                bands=[(row["x"], row["low"], row["high"]) for row in group if "low" in row],
                dash=dashes.get(kind, ""),
            )
            for (name, kind), group in groups.items()
        ]


@dataclass(frozen=True)
class HeatMaps:
    """A map per panel: rows (what was trained) against columns (what is tested), values as numbers and colours.

    A row has panel, row, column, value. The colour is the distance to the best value of the column: columns cannot be
    compared with each other, the question is which training run is best for each test.
    """

    rows: Sequence[Record]
    title: str
    row: str
    column: str
    subtitle: str = ""

    def svg(self) -> str:
        """Return panels side by side; the best of a column has a frame."""
        gaps = self.gaps()
        lowest = min(-1e-6, *gaps)
        names = {key: list(dict.fromkeys(row[key] for row in self.rows)) for key in ("panel", "row", "column")}
        wide, tall = max([58.0, *(text_width(name) + 12 for name in names["column"])]), 34
        width, height = wide * len(names["column"]), tall * len(names["row"])
        label = max([text_width(self.row), *map(text_width, names["row"])]) + 10
        parts = [text_at(label - 10, _LINE, self.row, anchor="end", fill=INK)]
        parts += [
            text_at(label - 10, _LINE + 8 + tall * (number + 0.5) + 4, name, anchor="end")
            for number, name in enumerate(names["row"])
        ]
        for number, name in enumerate(names["panel"]):
            cells = [(row, gap) for row, gap in zip(self.rows, gaps, strict=True) if row["panel"] == name]
            drawn = [text(50, -8, name, anchor="middle", fill=INK)]
            drawn += [part for row, gap in cells for part in self._cell(row, gap, lowest, names, tall)]
            share = 100 / len(names["column"])
            drawn += [
                text((place + 0.5) * share, height + 16, column, anchor="middle")
                for place, column in enumerate(names["column"])
            ]
            drawn.append(text(50, height + 36, self.column, anchor="middle", fill=INK))
            parts.append(panel(label + number * (width + _GAP), _LINE + 8, width, height, drawn))
        right = label + len(names["panel"]) * (width + _GAP)
        note = f"Dark: the best of the column (framed). Light: {-lowest:.3f} below it."
        subtitle = "\n".join(filter(None, [self.subtitle, note]))
        return document(self.title, subtitle, right - _GAP, height + 4 * _LINE, parts)

    def gaps(self) -> list[float]:
        """Return the distance of each row to the best of its column, at most 0."""
        best: dict[tuple[str, str], float] = {}
        for row in self.rows:
            key = (row["panel"], row["column"])
            best[key] = max(best.get(key, row["value"]), row["value"])
        return [row["value"] - best[row["panel"], row["column"]] for row in self.rows]

    def _cell(
        self, row: Record, gap: float, lowest: float, names: Mapping[str, list[str]], tall: float
    ) -> Iterable[str]:
        share, darkness = 100 / len(names["column"]), 1 - gap / lowest
        x, y = names["column"].index(row["column"]) * share, names["row"].index(row["row"]) * tall
        fill = "rgb({}, {}, {})".format(*(round(a + darkness * (b - a)) for a, b in zip(*_SHADES, strict=True)))
        yield rect(x, y, share, tall, fill)
        if gap == 0:
            yield rect(x + 0.04 * share, y + 1.5, 0.92 * share, tall - 3, "none", _BEST)
        ink = "#ffffff" if darkness > 0.5 else INK
        yield text(x + share / 2, y + tall / 2 + 4, f"{row['value']:.3f}", anchor="middle", fill=ink)


@dataclass(frozen=True)
class SearchHistory:
    """Values of the trials of a search one after the other, and by each setting.

    A row is a trial with trial, state, value and settings, as in ``trials.json``; trials without a value are left out.
    `logarithmic` names the settings that were drawn on a logarithmic scale.
    """

    rows: Sequence[Record]
    title: str
    metric: str
    higher_is_better: bool
    logarithmic: Sequence[str] = ()
    subtitle: str = ""

    def svg(self) -> str:
        """Return the history above, and a panel per setting below, all with the same vertical axis."""
        points = self.points()
        keys = list(dict.fromkeys(key for row in self.rows for key in row["settings"]))
        up = Scale.around([point["value"] for point in points])
        width, height, small = 600, 200, 150
        parts = [panel(0, _LINE, width, height, self._history(points, up, height))]
        parts += _legend(width + _GAP, _LINE, "trial", self._colors(), {})
        columns, top = 3, height + 5.0 * _LINE
        wide = (width - (columns - 1) * _GAP) / columns
        for begin in range(0, len(keys), columns):
            for number, key in enumerate(keys[begin : begin + columns]):
                drawn = self._slice(key, points, up, small)
                parts.append(panel(number * (wide + _GAP), top, wide, small, drawn))
            labels = max(1, *(len(self._choices(key, points)) for key in keys[begin : begin + columns]))
            top += small + (labels + 2.5) * _LINE
        right = width + _GAP + _legend_size("trial", list(self._colors()))[0]
        return document(self.title, self.subtitle, right, top - _LINE, parts)

    def points(self) -> list[Record]:
        """Return the trials with a value, their kind, and the best value after each."""
        points: list[Record] = []
        best: Record = {"value": None}
        for row in self.rows:
            if row["state"] == "complete" and (best["value"] is None or self._is_better(row["value"], best["value"])):
                best = row
            if row["value"] is not None:
                kind = "ended early" if row["state"] == "pruned" else "complete"
                points.append({**row, "best": best["value"], "kind": kind})
        return [{**point, "kind": "best"} if point["trial"] == best.get("trial") else point for point in points]

    def _is_better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than

    def _colors(self) -> dict[str, str]:
        return {"complete": color(0), "ended early": color(5), "best": _BEST}

    def _history(self, points: list[Record], up: Scale, height: float) -> list[str]:
        numbers = [point["trial"] for point in points]
        along = Scale.around(numbers, edge=0.03)
        ticks = [tick for tick in along.ticks(8) if tick == int(tick) and tick >= 0]
        axes = Axes(along, up, ticks, height=height, margin=8)
        parts = [text(0, -8, self.metric, fill=INK), text(50, height + 36, "trial", anchor="middle", fill=INK)]
        known = [point for point in points if point["best"] is not None]
        for one, after in pairwise(known):  # a step line
            y, next_y = axes.y(one["best"]), axes.y(after["best"])
            x, next_x = axes.x(one["trial"]), axes.x(after["trial"])
            parts += [line(x, y, next_x, y, GRID, 2), line(next_x, y, next_x, next_y, GRID, 2)]
        return [*parts, *grid(axes), *self._dots([(axes.x(one["trial"]), one) for one in points], axes)]

    def _choices(self, key: str, points: list[Record]) -> list[str]:
        """Return the values of a setting as text, none if all of them are numbers."""
        values = [point["settings"].get(key) for point in points]
        is_number = all(type(value) in (int, float) for value in values)
        return [] if is_number else list(dict.fromkeys(map(flow, values)))

    def _slice(self, key: str, points: list[Record], up: Scale, height: float) -> list[str]:
        values = [point["settings"].get(key) for point in points]
        names = self._choices(key, points)
        parts = [text(0, -8, key, fill=INK)]
        if not names:
            log = key in self.logarithmic
            along = Scale.around(values, log=log)
            axes = Axes(along, up, round_powers(values) if log else along.ticks(3), height, 180, 18)
            places = [(axes.x(value), point) for value, point in zip(values, points, strict=True)]
            return [*parts, *grid(axes), *self._dots(places, axes)]
        axes = Axes(Scale(-0.5, len(names) - 0.5), up, (), height=height, margin=18)
        places = [(axes.x(names.index(flow(value))), point) for value, point in zip(values, points, strict=True)]
        for number, name in enumerate(names):  # below each other, as names are long
            x = axes.x(number)
            parts += [line(x, height, x, height + number * _LINE + 6, GRID, 1)]
            anchor = "start" if x < 45 else "end" if x > 70 else "middle"
            parts += [text(x, height + number * _LINE + 18, name, anchor=anchor)]
        return [*parts, *grid(axes), *self._dots(places, axes)]

    def _dots(self, places: list[tuple[float, Record]], axes: Axes) -> list[str]:
        ordered = sorted(places, key=lambda place: place[1]["kind"] == "best")  # the best one is drawn last
        return [circle(x, axes.y(point["value"]), 4.2, self._colors()[point["kind"]]) for x, point in ordered]
