"""A run: its evaluation as blocks, and its page, with the funnel, what to do next, diagnosis, plan and training."""

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
    Block,
    Cell,
    Code,
    Columns,
    Row,
    Section,
    Table,
    Text,
    Tiles,
    decimal,
    directions,
    estimate_cell,
    flow,
    warned,
    words,
)
from rankfall.reporting.charts import estimate, interval, short
from rankfall.reporting.diagnosis import advice_blocks, advise, diagnosis_blocks, plan_blocks
from rankfall.reporting.funnel import funnel_of_summary, of_all_losses, stages_in, steps_of
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

    from rankfall.reporting.charts import Chart
    from rankfall.reporting.funnel import Step
    from rankfall.studies.results import EvaluationSummary
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.methods import Funnel

    Points = dict[str, list[tuple[float, float]]]
    Tile = tuple[str, str, str, Sequence[str]]

WORST = 10  # lists that are shown
BINS = 10
TILES = 8  # figures of the headline
_UNKNOWN = (math.nan, math.nan)  # interval

_R = TypeVar("_R", bound=Result)


# --- the evaluation -----------------------------------------------------------------------------------------------


def evaluation_blocks(summary: EvaluationSummary, title: str) -> list[Block]:
    """Return the funnel, the metrics with intervals and chance levels, and notes about lists that do not count."""
    lists = "lists" if summary.funnel is None else "impressions"
    warnings = [Text(f"warning: {text}", style="yellow") for text in summary.warnings]
    stages = [_stages_table(summary)] if summary.funnel else []
    return [Text(f"{title}: {summary.impressions:,} {lists}"), *warnings, *stages, *_metric_blocks(summary)]


def _counted(summary: EvaluationSummary) -> int:
    """Return the number of impressions that count: those with a relevant item."""
    return summary.impressions - summary.undefined["joint_recall"]


def _stages_table(summary: EvaluationSummary) -> Table:
    """Return what each stage keeps and loses, beside production if it is known."""
    funnel = summary.funnel or ()
    production = {one.stage: one for one in summary.production or ()}
    alone = any(one.alone for one in funnel)
    head = ["stage", "keeps", "arrived", "kept", "chance", "lost", "of all losses"]
    further = ["left", *(["alone: recall", "alone: chance"] if alone else [])]
    rows: list[Row] = []
    for one in funnel:
        row: list[str | Cell] = [one.stage, f"{one.quota:,}", f"{one.entered:,.1f}", estimate_cell(one.kept)]
        row += [short(one.chance), estimate_cell(one.lost), estimate_cell(one.loss_share, "{:.0%}".format)]
        row += [estimate_cell(one.survived)]
        if alone:
            row.append(estimate_cell(one.alone) if one.alone else "none")
            row.append("none" if one.alone_chance is None else short(one.alone_chance))
        if production:
            row.append(short(production[one.stage].kept.value) if one.stage in production else "none")
        rows.append(row)
    return Table(
        [*head, *further, *(["production: kept"] if production else [])],
        rows,
        title=f"What each stage keeps of the relevant items that arrive, n = {_counted(summary):,}",
        numbers_only=["lost", "of all losses"],
        caption="Arrived: items per request. Left and lost: shares of the ground truth. Chance: what a random stage "
        "would keep of what arrived." + " Alone: the stage by itself, over the whole list." * alone,
        better={"left": "up", "kept": "up", "lost": "down", "alone: recall": "up", "production: kept": "up"},
        page_only=further,
    )


def _metric_blocks(summary: EvaluationSummary) -> list[Block]:
    """Return all metrics but those of the funnel, and notes."""
    names = list(summary.metrics)
    if summary.funnel:
        apart = [[name for name in names if f"/{kind}/" in name] for kind in (ALONE, SHOWN)]
        drawn = {f"{stage.stage}/{figure}" for stage in summary.funnel for figure in ("lost", "survived")}
        last = f"{summary.funnel[-1].stage}/"  # what is left after the last stage is that of the whole cascade
        whole = [name for name in names if name not in drawn.union(*apart) and not name.startswith(last)]
        names = [*whole, *apart[0], *apart[1]]
    rows: list[Row] = []
    for name in names:
        value, chance = summary.metrics[name], summary.chance[name]
        low, high = summary.intervals.get(name, _UNKNOWN)
        interval = "none" if math.isnan(low) else f"{low:.4f} to {high:.4f}"
        difference = "none" if math.isnan(value - chance) else f"{value - chance:+z.4f}"
        defined = f"{summary.impressions - summary.undefined[name]:,}"
        rows.append([shown_name(name), decimal(value), interval, decimal(chance), defined, difference])
    head = ["metric", "mean", "95 % interval", "chance", "n", "difference"]
    table = Table(head, rows, better=directions(names), page_only=["difference"])
    return [table, *(Text(note, "soft") for note in _notes(summary))]


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
                f"{whole:,} of {_counted(summary):,} that count are not longer than the quota of {stage}, which drops "
                "none of their items"
            )
    if any(not math.isnan(low) for low, _ in summary.intervals.values()):
        unit = "lists" if summary.funnel is None else summary.resampled
        yield f"{ARROWS.rstrip('.')}; intervals: bootstrap over {unit}"
    if summary.production_note:
        yield f"production: {summary.production_note}"


# --- the page -----------------------------------------------------------------------------------------------------


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


def run_page_blocks(run: Path, measured: Path | None = None) -> tuple[str, list[Block]]:
    """Return the title and the blocks of the page of a run.

    Args:
        run: Run directory.
        measured: Directory of another evaluation of the run, with its diagnosis. Default: the run directory.
    """
    config, lines = read_config(run), read_lines(run)
    evaluated = _load_evaluation(measured or run)
    overrides = (evaluated.summary.overrides or []) if evaluated else []
    above, worst = (
        _evaluation_sections(run, measured or run, config, evaluated) if evaluated else (_without_evaluation(run), [])
    )
    about: list[Block] = [
        _about_table(run, config, lines),
        Code((run / CONFIG).read_text(encoding="utf-8"), name=CONFIG),
    ]
    below = Columns([*([worst] if worst else []), [Section("Configuration", about)]])
    return ", ".join([f"Run {run.name}", *overrides]), [*above, Section("Training", _training(config, lines)), below]


def _load_evaluation(run: Path) -> _Evaluated | None:
    """Return the evaluation of the test data, or else of another split."""
    found = sorted(run.glob("evaluation*.json"), key=lambda path: (path.name != "evaluation.json", path.name))
    for path in found:
        values = path.with_name(path.name.replace("evaluation", "values", 1)).with_suffix(".parquet")
        if values.is_file():
            return _Evaluated(SplitEvaluation.load(path), pq.read_table(values))
    return None


def _without_evaluation(run: Path) -> list[Block]:
    if (run / DAYS).is_dir():
        text = "This is a run of a stream: 'validation' is measured on each day before the run is trained on it."
        return [Text(text, "lead")]
    return [Text("This run has not been evaluated yet.", "lead"), Code(f"rankfall evaluate {run}")]


def _evaluation_sections(
    run: Path, measured: Path, config: TrainConfig, evaluated: _Evaluated
) -> tuple[list[Block], list[Block]]:
    """Return the sections above the training, and that of the worst lists, unless the diagnosis shows them."""
    summary, overrides = evaluated.summary, evaluated.summary.overrides or []
    method = method_of(with_evaluation_overrides(config, overrides))
    metric = method.main_metric if method.main_metric in summary.metrics else next(iter(summary.metrics))
    steps = steps_of(summary.funnel or ())
    diagnosis, plan = _load(measured / DIAGNOSIS, Diagnosis), _load(measured / PLAN, PlanResult)
    warnings, worst = warned(summary.warnings), _worst_table(evaluated, metric)
    blocks: list[Block] = [Text(_summary(steps, evaluated, metric), "lead")]
    if method.funnel and steps:
        about = Text(_about_funnel(method.funnel, summary))
        blocks.append(Section("Funnel", [about, funnel_of_summary(summary), *warnings]))
    else:
        blocks += warnings
    blocks.append(Section("Headline", [_headline(evaluated, metric), Text(_headline_note(evaluated), "soft")]))
    if steps:
        blocks.append(Section("What to do next", advice_blocks(advise(str(run), diagnosis, plan, overrides))))
    blocks += [Section("Diagnosis", diagnosis_blocks(diagnosis))] if diagnosis else []
    blocks += [Section("Plan", plan_blocks(plan, told=summary.warnings))] if plan else []
    blocks += [Section("Stages", [_stages_table(summary)])] if steps else []
    distribution = _distribution(evaluated, metric)
    metrics = [Section("Metrics", _metric_blocks(summary))]
    beside = [[Section(f"Distribution of {shown_name(metric)}", distribution)]] if distribution else []
    blocks.append(Columns([metrics, *beside]))
    if worst is None or (diagnosis and diagnosis.worst_requests):
        return blocks, []
    return blocks, [Section(f"Lists with the worst {shown_name(metric)}", [worst])]


def _load(path: Path, kind: type[_R]) -> _R | None:
    """Return a result in the run directory, None if it has not been computed."""
    return kind.load(path) if path.is_file() else None


def _summary(steps: Sequence[Step], evaluated: _Evaluated, metric: str) -> str:
    """Return the outcome in a sentence or two."""
    summary = evaluated.summary
    value = estimate(summary.metrics[metric], *summary.intervals.get(metric, _UNKNOWN))
    text = f"{shown_name(metric)} is {value} on {summary.split}; chance is {short(summary.chance[metric])}."
    if steps:
        worst = max(steps, key=lambda step: step.lost)
        all_lost = 1 - steps[-1].left
        share = of_all_losses(worst.lost / all_lost) if len(steps) > 1 and all_lost > 0 else ""
        text += f" Most relevant items are lost at {worst.stage}: {short(worst.lost)} of all{share}."
    return text


def _about_funnel(sizes: Funnel, summary: SplitEvaluation) -> str:
    best = min(1.0, min(sizes.quotas.values()) / sizes.relevant)
    ideal = "all of them" if best == 1 else f"{short(best)} of them, as a quota is smaller than their number"
    about = (
        f"Shares of the relevant items (the ground truth: at most {sizes.relevant:,} per request) that are left after "
        f"each stage. A perfect cascade would keep {ideal}. Kept and chance are shares of what arrived at the stage."
    )
    lists = summary.lists
    if lists is None:
        return about
    if lists.all_items:
        return f"{about} All {lists.catalogue:,} items were ranked for each request."
    return f"{about} Lists have {lists.mean_length:,.0f} items on average; the log has {lists.catalogue:,} items."


def _headline(evaluated: _Evaluated, metric: str) -> Tiles:
    """Return the figures of the whole cascade, or all metrics of a ranker, the main one first."""
    summary = evaluated.summary
    of_stages = tuple(f"{stage}/" for stage in stages_in(summary.metrics))
    names = [name for name in summary.metrics if name == metric or not name.startswith(of_stages or ("\0",))]
    names.sort(key=lambda name: name != metric)

    tiles: list[Tile] = []
    for name in names[:TILES]:
        shown, ends = shown_name(name), summary.intervals.get(name, _UNKNOWN)
        notes = _tile_notes(summary.chance[name], *ends)
        tiles.append((shown, short(summary.metrics[name]), directions([name])[shown], notes))
    for stage in summary.funnel or ():
        notes = _tile_notes(stage.chance, stage.kept.low, stage.kept.high)
        tiles.append((f"kept by {stage.stage}", short(stage.kept.value), "up", notes))
    return Tiles(tiles)


def _tile_notes(chance: float, low: float, high: float) -> list[str]:
    return [*filter(None, [interval(low, high)]), f"chance {short(chance)}"]


def _headline_note(evaluated: _Evaluated) -> str:
    summary = evaluated.summary
    text = f"Means over {summary.impressions:,} {evaluated.lists} of {summary.split}"
    text += "; kept: shares of the relevant items that arrived" * bool(summary.funnel)
    text += f"; in brackets: 95 % intervals, bootstrap over {summary.resampled}" * bool(summary.intervals)
    return f"{text}. {ARROWS}"


def _distribution(evaluated: _Evaluated, metric: str) -> list[Block]:
    """Return a histogram and quantiles of a metric over the lists."""
    values = evaluated.column(metric)
    values = values[~np.isnan(values)]
    if not len(values):
        return []
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
    return [histogram, Table(["quantile", "5 %", "25 %", "50 %", "75 %", "95 %"], [[metric, *map(short, quantiles)]])]


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
    body: list[Row] = [[name, words(text)] for name, text in about.items()]
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


def _training(config: TrainConfig, epochs: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the curves of the loss, its terms and the validation metrics; a table if there is one epoch."""
    if not epochs:
        return [Text("No epoch has been finished.", "soft")]
    step = "day" if _days(epochs) else "epoch"
    losses, metrics = _losses(config, epochs), _validation(config.training.metric, epochs)
    if len(epochs) == 1:
        values = {**losses, **{f"validation {name}": points for name, points in metrics.items()}}
        return [Table([f"after one {step}", ""], [[name, decimal(points[0][1])] for name, points in values.items()])]
    speed = epochs[-1].get("impressions_per_second") or epochs[-1].get("lists_per_second")
    last = "on the last day" if step == "day" else "in the last epoch"
    once = {name: points[0] for name, points in metrics.items() if len(points) == 1}  # one point is no curve
    notes = [f"Validation {name} {short(value)} in {step} {at:.0f}." for name, (at, value) in once.items()]
    notes += [f"{speed:,.0f} lists per second {last}."] if speed else []
    drawn = {f"Training loss by {step}": losses, f"Validation by {step}": {} if once else metrics}
    curves = Columns([[_curve(title, series)] for title, series in drawn.items() if series])
    return [curves, *([Text(" ".join(notes), "soft")] if notes else [])]


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
    return charts.curves({"": series}, label=f"{title}: {', '.join(ends)}", caption=f"{title}.", title=title)
