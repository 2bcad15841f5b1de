"""The page of a run: its funnel, headline, what to do next, diagnosis and plan, then details and training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow.parquet as pq

from rankfall._config import Result
from rankfall.reporting import charts
from rankfall.reporting.blocks import (
    ARROWS,
    DOWN,
    UP,
    Cell,
    Table,
    Tile,
    decimal,
    directions,
    estimate_cell,
    flow,
    sentences,
    short,
    words,
)
from rankfall.reporting.diagnosis import advise, diagnosis_section, plan_section
from rankfall.reporting.funnel import funnel_chart, stages_in, steps_of
from rankfall.reporting.html import render
from rankfall.studies.diagnosis.diagnosis_result import DIAGNOSIS, Diagnosis
from rankfall.studies.plan.plan_result import PLAN, PlanResult
from rankfall.studies.results import SplitEvaluation
from rankfall.training.cascade_metrics import CHANCE
from rankfall.training.config.component_checks import ALONE, JOINT, SHOWN, higher_is_better, shown_name
from rankfall.training.config.load_config import with_evaluation_overrides
from rankfall.training.methods import method_of
from rankfall.training.run_directory import CONFIG, DAYS, is_finished, read_config, read_lines, read_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from rich.console import RenderableType
    from rich.table import Table as RichTable

    from rankfall.reporting.charts import Chart
    from rankfall.reporting.funnel import Step
    from rankfall.reporting.terminal import FoldedTable
    from rankfall.studies.results import EvaluationSummary
    from rankfall.training.cascade_metrics import Estimate, ListFigures, StageFigures
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.methods import Funnel

    Points = dict[str, list[tuple[float, float]]]


def terminal_evaluation(summary: EvaluationSummary, title: str) -> RenderableType:
    """Return the funnel, the metrics with intervals and chance levels, and notes about lists that do not count."""
    from rich.console import Group
    from rich.text import Text

    lists = "lists" if summary.funnel is None else "impressions"
    headline = Text(f"{title}: {summary.impressions:,} {lists}")
    warnings = [Text(f"warning: {text}", style="yellow") for text in summary.warnings]
    return Group(headline, *warnings, *_tables(summary), *map(Text, _notes(summary)))


def _tables(summary: EvaluationSummary) -> Iterator[FoldedTable]:
    names = list(summary.metrics)
    if summary.funnel is None:
        yield _metrics_table(summary, names, "")
        return
    yield _funnel_table(summary.funnel, summary.production, counted(summary))
    alone = [name for name in names if f"/{ALONE}/" in name]
    in_funnel = {f"{stage.stage}/{figure}" for stage in summary.funnel for figure in ("lost", "survived")}
    last = f"{summary.funnel[-1].stage}/"  # what is left after the last stage is that of the whole cascade
    shown = [name for name in names if f"/{SHOWN}/" in name]
    joint = [name for name in names if name not in (*alone, *in_funnel, *shown) and not name.startswith(last)]
    yield _metrics_table(summary, joint, "the whole cascade, and what is left after each stage")
    if alone:
        yield _metrics_table(summary, alone, "each stage alone, over the whole list")
    if shown:
        yield _metrics_table(summary, shown, "each stage alone, within the items that were shown")


def counted(summary: EvaluationSummary) -> int:
    """Return the number of impressions that count: those with a relevant item."""
    return summary.impressions - summary.undefined["joint_recall"]


def _funnel_table(
    figures: Sequence[StageFigures], production: Sequence[StageFigures] | None, count: int
) -> FoldedTable:
    table = _table(f"what each stage keeps of the relevant items that arrive, n = {count:,}", "stage")
    of_production = {one.stage: one for one in production or ()}
    headings = ["keeps", "arrived", f"kept {UP} [95 %]", "chance", f"lost {DOWN}", "of all\nlosses"]
    for heading in (*headings, *([f"production\nkept {UP}"] if of_production else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in figures:
        row = [f"{one.quota:,}", f"{one.entered:,.1f}", f"{_share(one.kept.value)}{_interval(one.kept)}"]
        row += [_share(one.chance), _share(one.lost.value), _percent(one.loss_share.value)]
        if of_production:
            row.append(_share(of_production[one.stage].kept.value) if one.stage in of_production else "")
        table.add_row(one.stage, *row)
    return _folded(table)


def _metrics_table(summary: EvaluationSummary, names: Sequence[str], title: str) -> FoldedTable:
    table = _table(title, "metric")
    for heading in ("mean", "95 % interval", "chance", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        low, high = summary.intervals.get(name, (math.nan, math.nan))
        table.add_row(
            f"{shown_name(name)} {UP if higher_is_better(name) else DOWN}",
            _number(summary.metrics[name]),
            "" if math.isnan(low) else f"{low:.4f} to {high:.4f}",
            _number(summary.chance[name]),
            f"{summary.impressions - summary.undefined[name]:,}",
        )
    return _folded(table)


def _table(title: str, first: str) -> RichTable:
    from rich.table import Table as RichTable

    table = RichTable(title=title or None, title_justify="left", title_style="italic")
    table.add_column(first, style="cyan", no_wrap=True)
    return table


def _folded(table: RichTable) -> FoldedTable:
    """Return a table that continues below where the line ends, so that no number is cut."""
    from rankfall.reporting.terminal import FoldedTable

    return FoldedTable(table)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _share(value: float) -> str:
    """Return a share with three digits; without a zero before the point the table fits into 80 columns."""
    return "" if math.isnan(value) else f"{value:.3f}".removeprefix("0")


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"


def _interval(estimate: Estimate) -> str:
    return "" if math.isnan(estimate.low) else f" [{_share(estimate.low)}, {_share(estimate.high)}]"


def _needs_a_relevant_item(metric: str) -> bool:
    """Return whether a metric is undefined exactly on lists without a relevant item: not pairs, value or feedback."""
    return metric == "joint_recall" or ("/" not in metric and not metric.startswith(("opa", "joint")))


def _notes(summary: EvaluationSummary) -> Iterator[str]:
    what = "document" if summary.funnel is None else "item"
    without = max((count for name, count in summary.undefined.items() if _needs_a_relevant_item(name)), default=0)
    if without:
        yield f"{without:,} of {summary.impressions:,} have no relevant {what} and are excluded from the means"
    if len(set(summary.undefined.values())) > 1:
        yield "n: on how many of them a metric is defined"
    for stage, whole in (summary.kept_whole or {}).items():
        if whole:
            yield (
                f"{whole:,} of {counted(summary):,} that count are not longer than the quota of {stage}, which drops "
                "none of their items"
            )
    if any(not math.isnan(low) for low, _ in summary.intervals.values()):
        unit = "lists" if summary.funnel is None else summary.resampled
        yield f"{UP} higher is better, {DOWN} lower is better; intervals: bootstrap over {unit}"
    if summary.production_note:
        yield f"production: {summary.production_note}"


WORST = 10  # lists that are shown
BINS = 10
TILES = 8  # figures of the headline

_R = TypeVar("_R", bound=Result)
_EVALUATION_PARTS = (
    *("metric", "funnel", "headline", "headline_note", "advice", "diagnosis", "plan", "stages", "metrics"),
    *("histogram", "quantiles", "worst"),
)


@dataclass(frozen=True)
class _Evaluated:
    """An evaluation in a run directory, with the values of every list."""

    summary: SplitEvaluation
    values: pa.Table

    @property
    def lists(self) -> str:
        """Name of a list in texts."""
        return "impressions" if JOINT in self.summary.metrics else "lists"

    def column(self, metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return one value per list."""
        column: np.ndarray[Any, np.dtype[np.float64]] = self.values[metric].to_numpy().astype(np.float64)
        return column


@dataclass(frozen=True)
class _Funnel:
    """The picture of the funnel with the text around it."""

    about: str
    chart: Chart
    notes: list[str]


def run_page(run: Path, measured: Path | None = None) -> str:
    """Return the page of a run as HTML.

    Args:
        run: Run directory.
        measured: Directory of another evaluation of the run, with its diagnosis. Default: the run directory.
    """
    return render("run.html", **run_content(run, measured))


def run_content(run: Path, measured: Path | None = None) -> dict[str, Any]:
    """Return the parts of the page of a run, for the template; see :func:`run_page`."""
    config, lines = read_config(run), read_lines(run)
    evaluated = _load_evaluation(measured or run)
    return {
        "title": ", ".join([f"Run {run.name}", *_overrides(evaluated)]),
        **(_evaluation_parts(run, measured or run, config, evaluated) if evaluated else _without_evaluation(run)),
        **_training_parts(config, lines),
        "about": _about_table(run, config, lines),
        "config": (run / CONFIG).read_text(encoding="utf-8"),
        "config_name": CONFIG,
    }


# --- evaluation ---------------------------------------------------------------------------------------------------


def _load_evaluation(run: Path) -> _Evaluated | None:
    """Return the evaluation of the test data, or else of another split."""
    found = sorted(run.glob("evaluation*.json"), key=lambda path: (path.name != "evaluation.json", path.name))
    for path in found:
        values = path.with_name(path.name.replace("evaluation", "values", 1)).with_suffix(".parquet")
        if values.is_file():
            return _Evaluated(SplitEvaluation.load(path), pq.read_table(values))
    return None


def _overrides(evaluated: _Evaluated | None) -> list[str]:
    """Return what an evaluation measured differently from the configuration of its run."""
    return (evaluated.summary.overrides or []) if evaluated else []


def _without_evaluation(run: Path) -> dict[str, Any]:
    parts: dict[str, Any] = dict.fromkeys(_EVALUATION_PARTS)
    if (run / DAYS).is_dir():
        text = "This is a run of a stream: 'validation' is measured on each day before the run is trained on it."
        return {**parts, "summary": text, "evaluate_command": "", "warnings": []}
    text = "This run has not been evaluated yet."
    return {**parts, "summary": text, "evaluate_command": f"rankfall evaluate {run}", "warnings": []}


def _evaluation_parts(run: Path, measured: Path, config: TrainConfig, evaluated: _Evaluated) -> dict[str, Any]:
    method, summary = method_of(with_evaluation_overrides(config, _overrides(evaluated))), evaluated.summary
    metric = _main_metric(method.main_metric, evaluated)
    steps = steps_of(summary.funnel or ())
    diagnosis, plan = _load(measured / DIAGNOSIS, Diagnosis), _load(measured / PLAN, PlanResult)
    histogram, quantiles = _distribution(evaluated, metric)
    return {
        "metric": shown_name(metric),
        "summary": _summary(steps, evaluated, metric),
        "evaluate_command": "",
        "funnel": _funnel(method.funnel, steps, evaluated) if method.funnel and steps else None,
        "warnings": sentences(summary.warnings),
        "headline": [*_headline(evaluated, metric), *map(_kept_tile, summary.funnel or ())],
        "headline_note": _headline_note(evaluated),
        "advice": advise(str(run), diagnosis, plan, _overrides(evaluated)) if steps else None,
        "diagnosis": diagnosis_section(diagnosis) if diagnosis else None,
        "plan": _plan_parts(plan, summary.warnings) if plan else None,
        "stages": _stages_table(summary.funnel) if summary.funnel else None,
        "metrics": _page_metrics(evaluated, hidden=steps),
        "histogram": histogram,
        "quantiles": quantiles,
        "worst": None if diagnosis and diagnosis.worst_requests else _worst_table(evaluated, metric),
    }


def _plan_parts(plan: PlanResult, told: Sequence[str]) -> dict[str, Any]:
    """Return the section of the plan without the warnings that the page has already."""
    return plan_section(plan) | {"warnings": sentences(text for text in plan.warnings if text not in told)}


def _load(path: Path, kind: type[_R]) -> _R | None:
    """Return a result in the run directory, None if it has not been computed."""
    return kind.load(path) if path.is_file() else None


def _main_metric(wanted: str, evaluated: _Evaluated) -> str:
    """Return the metric whose distribution and worst lists are shown."""
    return wanted if wanted in evaluated.summary.metrics else next(iter(evaluated.summary.metrics))


def _summary(steps: Sequence[Step], evaluated: _Evaluated, metric: str) -> str:
    """Return the outcome in a sentence or two."""
    summary = evaluated.summary
    ends = summary.intervals.get(metric)
    value = short(summary.metrics[metric]) + (f" [{short(ends[0])}, {short(ends[1])}]" if ends else "")
    text = f"{shown_name(metric)} is {value} on {summary.split}; chance is {short(summary.chance[metric])}."
    if steps:
        worst = max(steps, key=lambda step: step.lost)
        all_lost = 1 - steps[-1].left
        share = (
            f", {100 * worst.lost / all_lost:.0f}\N{NO-BREAK SPACE}% of all losses"
            if len(steps) > 1 and all_lost > 0
            else ""
        )
        text += f" Most relevant items are lost at {worst.stage}: {short(worst.lost)} of all{share}."
    return text


# --- the funnel ---------------------------------------------------------------------------------------------------


def _funnel(sizes: Funnel, steps: Sequence[Step], evaluated: _Evaluated) -> _Funnel:
    """Return the share of relevant items left after each stage, beside that of production if it is known."""
    summary = evaluated.summary
    best = min(1.0, min(sizes.quotas.values()) / sizes.relevant)
    ideal = "all of them" if best == 1 else f"{short(best)} of them, as a quota is smaller than their number"
    about = (
        f"Shares of the relevant items (the ground truth: at most {sizes.relevant:,} per request) that are left after "
        f"each stage. A perfect cascade would keep {ideal}. Kept and chance are shares of what arrived at the stage."
    )
    if summary.lists:
        about += f" {_lists(summary.lists)}"
    notes = [summary.production_note] if summary.production_note else []
    notes += [
        f"{count:,} lists with a relevant item are not longer than the quota of {stage}, which drops none of their "
        "items."
        for stage, count in (summary.kept_whole or {}).items()
        if count
    ]
    return _Funnel(about, funnel_chart(steps, steps_of(summary.production) if summary.production else None), notes)


def _lists(lists: ListFigures) -> str:
    if lists.all_items:
        return f"All {lists.catalogue:,} items were ranked for each request."
    return f"Lists have {lists.mean_length:,.0f} items on average; the log has {lists.catalogue:,} items."


def _stages_table(funnel: Sequence[StageFigures]) -> Table:
    """Return the figures of the funnel as a table."""
    alone = any(one.alone for one in funnel)
    head = ["stage", "keeps", "arrived", "left", "kept of what arrived", "chance", "lost", "share of losses"]
    body: list[list[str | Cell]] = []
    for one in funnel:
        row: list[str | Cell] = [one.stage, f"{one.quota:,}", f"{one.entered:,.1f}".removesuffix(".0")]
        row += [estimate_cell(one.survived, short), estimate_cell(one.kept, short), short(one.chance)]
        row += [estimate_cell(one.lost, short), estimate_cell(one.loss_share, short)]
        if alone:
            row.append(estimate_cell(one.alone, short) if one.alone else "none")
            row.append("none" if one.alone_chance is None else short(one.alone_chance))
        body.append(row)
    return Table(
        [*head, *(["alone: recall", "alone: chance"] if alone else [])],
        body,
        caption="Small: 95 % intervals. Arrived: items per request. Left and lost: shares of the ground truth. Chance: "
        "what a random stage would keep of what arrived." + " Alone: the stage by itself, over the whole list." * alone,
        better={"left": "up", "kept of what arrived": "up", "lost": "down", "alone: recall": "up"},
    )


# --- metrics ------------------------------------------------------------------------------------------------------


def _headline(evaluated: _Evaluated, metric: str) -> list[Tile]:
    """Return the figures of the whole cascade, or all metrics of a ranker, the main one first."""
    summary = evaluated.summary
    of_stages = tuple(f"{stage}/" for stage in stages_in(summary.metrics))
    names = [name for name in summary.metrics if name == metric or not name.startswith(of_stages or ("\0",))]
    names.sort(key=lambda name: name != metric)
    better = directions(names)
    return [
        Tile(shown_name(name), short(summary.metrics[name]), better[shown_name(name)], _tile_notes(summary, name))
        for name in names[:TILES]
    ]


def _kept_tile(one: StageFigures) -> Tile:
    ends = [] if math.isnan(one.kept.low) else [f"[{short(one.kept.low)}, {short(one.kept.high)}]"]
    return Tile(f"kept by {one.stage}", short(one.kept.value), "up", [*ends, f"chance {short(one.chance)}"])


def _tile_notes(summary: SplitEvaluation, name: str) -> list[str]:
    ends = summary.intervals.get(name)
    notes = [f"[{short(ends[0])}, {short(ends[1])}]"] if ends else []
    return [*notes, f"chance {short(summary.chance[name])}"]


def _headline_note(evaluated: _Evaluated) -> str:
    summary = evaluated.summary
    text = f"Means over {summary.impressions:,} {evaluated.lists} of {summary.split}"
    text += "; kept: shares of the relevant items that arrived" * bool(summary.funnel)
    text += f"; in brackets: 95 % intervals, bootstrap over {summary.resampled}" * bool(summary.intervals)
    return f"{text}. {ARROWS}"


def _page_metrics(evaluated: _Evaluated, hidden: Sequence[Step]) -> Table:
    """Return all metrics but those of the funnel, which the picture shows."""
    summary = evaluated.summary
    undefined = max(summary.undefined.values())
    caption = f"Means over {summary.impressions:,} {evaluated.lists} of {summary.split}."
    if undefined:
        caption += f" Lists on which a metric is undefined, at most {undefined:,}, are excluded from its mean."
    drawn = {f"{step.stage}/{what}" for step in hidden for what in ("lost", "survived")}
    names = [name for name in summary.metrics if name not in drawn]
    body: list[list[str | Cell]] = []
    for name in names:
        value, ends = summary.metrics[name], summary.intervals.get(name)
        interval = [f"{short(ends[0])} to {short(ends[1])}" if ends else "none"] if summary.intervals else []
        chance = summary.chance[name]
        body.append([shown_name(name), decimal(value), *interval, decimal(chance), _difference(value - chance)])
    interval = ["95 % interval"] if summary.intervals else []
    head = ["metric", "mean", *interval, "chance", "difference"]
    return Table(head, body, caption=caption, better=directions(names))


def _difference(value: float) -> str:
    return "none" if np.isnan(value) else f"{value:+z.4f}"


def _distribution(evaluated: _Evaluated, metric: str) -> tuple[Chart | None, Table | None]:
    """Return a histogram and quantiles of a metric over the lists."""
    values = evaluated.column(metric)
    values = values[~np.isnan(values)]
    if not len(values):
        return None, None
    low, high = (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else (values.min(), values.max())
    step = (high - low) / BINS or 1.0
    counts = np.bincount(np.rint((values - low) / step).astype(int), minlength=BINS + 1)
    shares = [(f"{low + place * step:.3g}", count / len(values)) for place, count in enumerate(counts)]
    quantiles = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    lists = evaluated.lists
    histogram = charts.columns(
        shares,
        title=f"Distribution of {shown_name(metric)}",
        label=f"Share of {lists} by their {metric}: " + ", ".join(f"{name} {share:.2f}" for name, share in shares),
        caption=f"{shown_name(metric)} of single {lists}, each counted at the nearest of {BINS + 1} values.",
    )
    return histogram, Table(["quantile", "5 %", "25 %", "50 %", "75 %", "95 %"], [[metric, *map(short, quantiles)]])


def _worst_table(evaluated: _Evaluated, metric: str) -> Table | None:
    """Return the lists with the worst values; of equal values, those with the best chance level come first."""
    values, chance = evaluated.column(metric), evaluated.column(CHANCE + metric)
    sign = 1 if higher_is_better(metric) else -1
    order = np.lexsort((-sign * chance, sign * values))[: int((~np.isnan(values)).sum())]  # NaN is last
    if not len(order):
        return None
    stages = [f"{stage}/lost" for stage in stages_in(evaluated.summary.metrics)]
    qids = evaluated.values["qid"]
    body = [
        [
            str(qids[int(number)]),
            decimal(values[number]),
            decimal(chance[number]),
            *(decimal(evaluated.column(stage)[number]) for stage in stages),
        ]
        for number in order[:WORST]
    ]
    head = ["request" if stages else "query", metric, "chance", *stages]
    return Table(head, body, staged=bool(stages), better=directions([metric, *stages]))


# --- training -----------------------------------------------------------------------------------------------------


def _about_table(run: Path, config: TrainConfig, lines: Sequence[Mapping[str, Any]]) -> Table:
    parts = method_of(config).describe()
    about = {
        **{name: ": ".join(filter(None, (text, flow(options)))) for name, (text, options) in parts.items()},
        "data": config.data.path,
        **_splits(config, _days(lines)),
        "optimizer": flow(config.optimizer.model_dump()),
        "seed": str(config.training.seed),
        "result": _outcome(run, config, lines),
    }
    body: list[list[str | Cell]] = [[name, words(text)] for name, text in about.items()]
    return Table([], body)


def _splits(config: TrainConfig, days: Sequence[str]) -> dict[str, str]:
    """Return the data that were trained on; a stream may not have reached all of its days."""
    if days:
        return {"trained on": f"{days[0]} to {days[-1]}, {len(days)} days" if len(days) > 1 else days[0]}
    return {"trained on": ", ".join(config.data.train), "validated on": ", ".join(config.data.valid)}


def _outcome(run: Path, config: TrainConfig, lines: Sequence[Mapping[str, Any]]) -> str:
    if not is_finished(run):
        return "training has not finished"
    result = read_result(run)
    when = f"on day {result.best_epoch}" if _days(lines) else f"in epoch {result.best_epoch}"
    return (
        f"validation {config.training.metric} {decimal(result.best_metric)} {when} of {result.epochs}, "
        f"{result.parameters:,} parameters, {result.seconds:,.1f} s"
    )


def _days(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the days that a stream was trained on; other runs have epochs."""
    return [line["day"] for line in lines if "day" in line]


def _training_parts(config: TrainConfig, epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the curves of the loss, its terms and the validation metrics; a table if there is one epoch."""
    parts: dict[str, Any] = {"curves": [], "single_epoch": None, "training_note": ""}
    if not epochs:
        return parts | {"training_note": "No epoch has been finished."}
    step = "day" if _days(epochs) else "epoch"
    losses, metrics = _losses(config, epochs), _validation(config.training.metric, epochs)
    if len(epochs) == 1:
        values = {**losses, **{f"validation {name}": points for name, points in metrics.items()}}
        body = [[name, decimal(points[0][1])] for name, points in values.items()]
        return parts | {"single_epoch": Table([f"after one {step}", ""], body)}
    speed = epochs[-1].get("impressions_per_second") or epochs[-1].get("lists_per_second")
    last = "on the last day" if step == "day" else "in the last epoch"
    once = {name: points[0] for name, points in metrics.items() if len(points) == 1}  # one point is no curve
    notes = [f"Validation {name} {short(value)} in {step} {at:.0f}." for name, (at, value) in once.items()]
    drawn = {f"Training loss by {step}": losses, f"Validation by {step}": {} if once else metrics}
    return parts | {
        "curves": [_curve(title, series) for title, series in drawn.items() if series],
        "training_note": " ".join([*notes, f"{speed:,.0f} lists per second {last}." if speed else ""]).strip(),
    }


def _losses(config: TrainConfig, epochs: Sequence[Mapping[str, Any]]) -> Points:
    """Return the loss and its terms; objectives number the stages, the curves have their names."""
    funnel = method_of(config).funnel
    stages = {f"stage{number}": stage for number, stage in enumerate(funnel.quotas if funnel else (), 1)}
    points: Points = {}
    for line in epochs:
        for name, value in {"loss": line["loss"], **line.get("parts", {})}.items():
            stage, slash, term = name.partition("/")
            points.setdefault(f"{stages.get(stage, stage)}{slash}{term}", []).append((line["epoch"], value))
    return {"loss": points["loss"]} if len(points) == 2 else points  # a single term is the loss


def _validation(metric: str, epochs: Sequence[Mapping[str, Any]]) -> Points:
    points: Points = {}
    for line in epochs:
        values = line["validation"] if "validation" in line else {metric: line["metric"]}
        for name in (name for name in values if name == metric or name.endswith("/recall")):
            points.setdefault(shown_name(name), []).append((line["epoch"], values[name]))
    return points


def _curve(title: str, series: Points) -> Chart:
    ends = (f"{name} from {decimal(points[0][1])} to {decimal(points[-1][1])}" for name, points in series.items())
    return charts.curves(series, label=f"{title}: {', '.join(ends)}", caption=f"{title}.", title=title)
