"""Pictures of what came out, as PNG and SVG: dots, lines, heat maps and searches.

A plot is plain records and a few words; Altair turns it into a picture (``pip install altair vl-convert-python``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rankfall._files import new_content
from rankfall.reporting.html import flow
from rankfall.studies.compare import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Record = dict[str, Any]

INSTALL = "pip install altair vl-convert-python"
ENDINGS = (".png", ".svg")
_INK, _PALE = "#1f2933", "#9aa5b1"
_DASHES = [[1, 0], [5, 4]]
_COLOURS = ["#0b6fa4", "#d1495b", "#2a9d8f", "#edae49", "#7b5ea7", "#5c6b73", "#8c564b", "#17a2b8", "#b5bd00"]
_COLOURS += ["#e377c2", "#393b79", "#637939"]
_MANY = 40  # points of a line, above which they are small


class MissingExtraError(ImportError):
    """The libraries that draw are not installed."""


class Plot(Protocol):
    """Something to be drawn."""

    @property
    def rows(self) -> Sequence[Record]:
        """The numbers in the picture."""
        ...

    def chart(self) -> Any:
        """The picture, as an Altair chart."""
        ...


def save(plots: Mapping[str, Plot], out: Path) -> list[Path]:
    """Draw each plot into ``NAME.png`` and ``NAME.svg``; returns the files."""
    _altair()
    files = []
    for name, plot in plots.items():
        chart = _styled(plot.chart())
        for ending in ENDINGS:
            file = out / f"{name}{ending}"
            with new_content(file) as temporary:
                chart.save(str(temporary), format=ending[1:], **({"ppi": 144} if ending == ".png" else {}))
            files.append(file)
    return files


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401 (what Altair draws with)
    except ImportError as error:
        raise MissingExtraError(f"no plots: {error.name} is not installed; {INSTALL} brings it") from None
    return altair


def _styled(chart: Any) -> Any:
    return (
        chart.configure(font="Helvetica, Arial, sans-serif", background="white", padding=14)
        .configure_view(stroke="#d5dbe1")
        .configure_axis(labelColor=_INK, titleColor=_INK, gridColor="#eef1f4", labelLimit=240, titleFontWeight="normal")
        .configure_legend(labelLimit=240, titleFontWeight="normal", symbolStrokeWidth=2)
        .configure_header(labelFontSize=12, titleFontSize=12, labelColor=_INK)
        .configure_title(anchor="start", fontSize=14, subtitleColor="#52606d", offset=12)
    )


def _title(title: str, subtitle: str) -> Any:
    return _altair().Title(title, subtitle=subtitle.split("\n") if subtitle else [])


@dataclass(frozen=True)
class Dots:
    """One panel for each metric and source: what every method got there, in the order of the paper.

    A row has method, source, metric, value, and low and high where an interval is known.
    """

    rows: Sequence[Record]
    title: str
    subtitle: str = ""

    def chart(self) -> Any:
        """Sources below each other and metrics side by side, if there are several; each panel on its own scale."""
        alt = _altair()
        sources = list(dict.fromkeys(row["source"] for row in self.rows))
        metrics = list(dict.fromkeys(row["metric"] for row in self.rows))
        known = {(row["source"], row["metric"]) for row in self.rows}
        panels = [
            self._panel(source, metric, self.methods(source), labelled=metric == metrics[0])
            for source in sources
            for metric in metrics
            if (source, metric) in known
        ]
        grid = alt.concat(*panels, columns=max(2, len(metrics)), spacing=18)
        lines = any("low" in row for row in self.rows)
        marks = "red: the best of a panel" + "; lines: 95 % confidence intervals" * lines
        return grid.properties(title=_title(self.title, "\n".join(filter(None, [self.subtitle, marks]))))

    def methods(self, source: str) -> list[str]:
        """The lines of the panels of a source, the same for all metrics, in the order of all methods."""
        there = {row["method"] for row in self.rows if row["source"] == source}
        return [method for method in dict.fromkeys(row["method"] for row in self.rows) if method in there]

    def _panel(self, source: str, metric: str, methods: list[str], *, labelled: bool) -> Any:
        alt = _altair()
        rows = [row for row in self.rows if row["source"] == source and row["metric"] == metric]
        higher = higher_is_better(metric)
        best = (max if higher else min)((row["value"] for row in rows), default=None)
        rows = [{**row, "best": len(rows) > 1 and row["value"] == best} for row in rows]
        base = alt.Chart(alt.Data(values=rows))
        axis = alt.Axis(labels=labelled, ticks=False, grid=True)
        y = alt.Y("method:N", title=None, axis=axis, scale=alt.Scale(domain=methods))
        scale = alt.Scale(zero=False, nice=False, padding=8)
        x = alt.X("value:Q", title=None, scale=scale, axis=alt.Axis(tickCount=4, format=".3~f"))
        dots = base.mark_circle(size=70, opacity=1).encode(
            x=x, y=y, color=alt.condition("datum.best", alt.value(_COLOURS[1]), alt.value(_COLOURS[0]))
        )
        bars = base.mark_rule(color=_PALE, strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y)
        name = metric if higher else f"{metric} (lower is better)"
        heading = alt.Title(f"{name} · {source}" if labelled else name, fontSize=12, offset=4, anchor="start")
        layers = (bars, dots) if any("low" in row for row in rows) else (dots,)
        return alt.layer(*layers).properties(width=170, height=18 * len(methods), title=heading)


@dataclass(frozen=True)
class Lines:
    """A line for each series through points (x, y), with a band from low to high where those are known.

    A row has series, x, y and what `dashed` names, if anything. Rows with a panel are drawn apart from those with
    others, on a scale of their own.
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

    def chart(self) -> Any:
        """All series in one panel, or panels side by side."""
        title = _title(self.title, self.subtitle)
        panels = list(dict.fromkeys(row.get("panel") for row in self.rows))
        if len(panels) == 1:
            return self._panel(self.rows).properties(width=460, height=300, title=title)
        charts = [
            self._panel([row for row in self.rows if row.get("panel") == panel]).properties(
                width=330, height=260, title=_altair().Title(panel, fontSize=12, offset=4, anchor="start")
            )
            for panel in panels
        ]
        return _altair().hconcat(*charts, spacing=18).properties(title=title)

    def _panel(self, rows: Sequence[Record]) -> Any:
        alt = _altair()
        names = list(dict.fromkeys(row["series"] for row in self.rows))
        axis = (
            alt.Axis(values=list(self.ticks), labelExpr="format(datum.value, '~g')", labelOverlap=True)
            if self.ticks
            else alt.Axis(tickMinStep=1)
        )
        x = alt.X("x:Q", title=self.x, scale=_scale(self.log_x), axis=axis)
        y = alt.Y("y:Q", title=self.y, scale=_scale(self.log_y))
        scale = alt.Scale(domain=names, range=[_COLOURS[i % len(_COLOURS)] for i in range(len(names))])
        legend = alt.Legend(symbolOpacity=1) if len(names) > 1 else None  # bands are pale
        colour = alt.Color("series:N", title=self.series, scale=scale, legend=legend)
        base = alt.Chart(alt.Data(values=list(rows))).encode(x=x)
        line = base.mark_line(strokeWidth=2, strokeJoin="round").encode(y=y, color=colour)
        if self.dashed:
            kinds = list(dict.fromkeys(row[self.dashed] for row in rows))
            dash = alt.Scale(domain=kinds, range=_DASHES[: len(kinds)])
            legend = alt.Legend(symbolType="stroke", symbolSize=400)
            line = line.encode(strokeDash=alt.StrokeDash(f"{self.dashed}:N", title=None, scale=dash, legend=legend))
        size = 36 if len(rows) <= _MANY * len(names) else 8
        layers = [line, base.mark_circle(size=size, opacity=1).encode(y=y, color=colour)]
        if any("low" in row for row in rows):
            band = base.mark_area(opacity=0.15).encode(
                y=alt.Y("low:Q", title=self.y, scale=_scale(self.log_y)), y2="high:Q"
            )
            layers.insert(0, band.encode(color=colour))
        if self.span is not None:
            shade = alt.Chart(alt.Data(values=[{"from": self.span[0], "to": self.span[1]}])).mark_rect(color="#f3e3b3")
            layers.insert(
                0, shade.encode(x=alt.X("from:Q", scale=_scale(self.log_x), title=self.x, axis=axis), x2="to:Q")
            )
        return alt.layer(*layers)


@dataclass(frozen=True)
class HeatMaps:
    """A map for each panel: rows (what was trained) against columns (what is tested), values as number and colour.

    A row has panel, row, column, value. The colour is the distance to the best of the column: columns cannot be
    compared with each other, the question is which training is best for each test.
    """

    rows: Sequence[Record]
    title: str
    row: str
    column: str
    subtitle: str = ""

    def chart(self) -> Any:
        """Panels side by side; the best of a column has a frame."""
        alt = _altair()
        best: dict[tuple[str, str], float] = {}
        for row in self.rows:
            key = (row["panel"], row["column"])
            best[key] = max(best.get(key, row["value"]), row["value"])
        cells = [{**row, "gap": row["value"] - best[row["panel"], row["column"]]} for row in self.rows]
        panels = list(dict.fromkeys(row["panel"] for row in self.rows))
        maps = [self._panel(panel, cells, first=panel == panels[0]) for panel in panels]
        return alt.hconcat(*maps, spacing=18).properties(title=_title(self.title, self.subtitle))

    def _panel(self, panel: str, cells: list[Record], *, first: bool) -> Any:
        alt = _altair()
        order = {key: list(dict.fromkeys(cell[key] for cell in cells)) for key in ("row", "column")}
        lowest = min(-1e-6, *(cell["gap"] for cell in cells))
        base = alt.Chart(alt.Data(values=[cell for cell in cells if cell["panel"] == panel])).encode(
            x=alt.X("column:N", sort=order["column"], title=self.column, axis=alt.Axis(labelAngle=0)),
            y=alt.Y(
                "row:N", sort=order["row"], title=self.row if first else None, axis=alt.Axis(labels=first, ticks=first)
            ),
        )
        legend = alt.Legend(title=["below the best", "of the column"], format=".3f")
        scale = alt.Scale(scheme="blues", domain=[lowest, 0])
        colours = base.mark_rect().encode(color=alt.Color("gap:Q", scale=scale, legend=legend))
        frame = base.transform_filter("datum.gap == 0").mark_rect(filled=False, stroke=_COLOURS[1], strokeWidth=2)
        words = base.mark_text(fontSize=11).encode(
            text=alt.Text("value:Q", format=".3f"),
            color=alt.condition(f"datum.gap > {lowest / 2}", alt.value("white"), alt.value(_INK)),
        )
        heading = alt.Title(panel, fontSize=12, frame="group", offset=6)
        width, height = 58 * len(order["column"]), 34 * len(order["row"])
        return alt.layer(colours, frame, words).properties(width=width, height=height, title=heading)


@dataclass(frozen=True)
class SearchHistory:
    """What the trials of a search have reached one after the other, and by the value of each setting.

    A row is a trial with trial, state, value and settings, as in ``trials.json``; those without a value are left out.
    `logarithmic` names the settings whose orders of magnitude were drawn.
    """

    rows: Sequence[Record]
    title: str
    metric: str
    higher_is_better: bool
    logarithmic: Sequence[str] = ()
    subtitle: str = ""

    def chart(self) -> Any:
        """The history above, a panel for each setting below, all with the same axis of values."""
        alt = _altair()
        points = self.points()
        keys = list(dict.fromkeys(key for row in self.rows for key in row["settings"]))
        slices = [self._slice(key, [{**row, "setting": row["settings"].get(key)} for row in points]) for key in keys]
        below = alt.concat(*slices, columns=3, spacing=18)
        chart = alt.vconcat(self._history(points), below, spacing=22).resolve_scale(color="shared")
        return chart.properties(title=_title(self.title, self.subtitle))

    def points(self) -> list[Record]:
        """Trials with a value, their kind, and the best that was known after each."""
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

    def _history(self, points: list[Record]) -> Any:
        alt = _altair()
        base = alt.Chart(alt.Data(values=points))
        x = alt.X("trial:Q", title="trial", scale=_scale(False), axis=alt.Axis(tickMinStep=1, format="d"))
        line = base.mark_line(interpolate="step-after", color=_PALE, strokeWidth=2).encode(
            x=x, y=alt.Y("best:Q", title=self.metric, scale=_scale(False))
        )
        return alt.layer(line, self._dots(base, x)).properties(width=540, height=200)

    def _slice(self, key: str, points: list[Record]) -> Any:
        alt = _altair()
        if all(type(one["setting"]) in (int, float) for one in points):
            ticks = {"values": round_powers([one["setting"] for one in points])} if key in self.logarithmic else {}
            axis = alt.Axis(tickCount=4, format="~g", **ticks)
            x = alt.X("setting:Q", title=key, scale=_scale(key in self.logarithmic), axis=axis)
        else:
            points = [{**one, "setting": flow(one["setting"])} for one in points]
            x = alt.X("setting:N", title=key, axis=alt.Axis(labelAngle=-20, labelLimit=150))
        points = sorted(points, key=lambda one: one["kind"] == "best")  # which lies on top
        return self._dots(alt.Chart(alt.Data(values=points)), x).properties(width=160, height=150)

    def _dots(self, base: Any, x: Any) -> Any:
        alt = _altair()
        scale = alt.Scale(domain=["complete", "ended early", "best"], range=[_COLOURS[0], _PALE, _COLOURS[1]])
        colour = alt.Color("kind:N", title="trial", scale=scale)
        y = alt.Y("value:Q", title=self.metric, scale=_scale(False))
        return base.mark_circle(size=55, opacity=0.9).encode(x=x, y=y, color=colour)


def round_powers(values: Sequence[float]) -> list[float]:
    """Where a logarithmic axis over these values has its marks: powers of ten, or numbers between if those are few.

    >>> round_powers([0.0002, 0.08]), round_powers([0.14, 6.7])
    ([0.001, 0.01], [0.2, 0.5, 1.0, 2.0, 5.0])
    """
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    for factors in ((1,), (1, 2, 5)):
        marks = [float(f"{factor}e{power}") for power in powers for factor in factors]
        inside = [mark for mark in marks if min(values) <= mark <= max(values)]
        if len(inside) > 1:
            return inside
    return sorted(set(values))


def _scale(logarithmic: bool) -> Any:
    alt = _altair()
    return alt.Scale(type="log", nice=False, padding=6) if logarithmic else alt.Scale(zero=False, nice=False, padding=6)
