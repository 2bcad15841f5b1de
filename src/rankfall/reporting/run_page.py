"""The page of a run: its metrics, where relevant items are lost, its worst lists, and the course of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from rankfall.metrics.named import parse
from rankfall.reporting import charts
from rankfall.reporting.charts import Bar
from rankfall.reporting.comparison_table import short
from rankfall.reporting.page import Cell, Table, decimal, flow, render, words
from rankfall.studies.results import SplitEvaluation
from rankfall.training.cascade_metrics import JOINT
from rankfall.training.methods import method_of
from rankfall.training.per_list_table import CHANCE
from rankfall.training.run_directory import CONFIG, DAYS, is_finished, read_config, read_lines, read_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from markupsafe import Markup

    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.methods import Funnel

    Points = dict[str, list[tuple[float, float]]]

WORST = 10  # lists that are shown
BINS = 10


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
class _FunnelChart:
    """The chart of relevant items left after each stage."""

    about: str
    chart: Markup
    note: str


def run_page(run: Path) -> str:
    """Return the page of a run directory as HTML."""
    config, lines = read_config(run), read_lines(run)
    evaluated = _load_evaluation(run)
    return render(
        "run.html",
        f"Run {run.name}",
        about=_about_table(run, config, lines),
        config=(run / CONFIG).read_text(encoding="utf-8"),
        config_name=CONFIG,
        **_training_parts(config, lines),
        **(_without_evaluation(run) if evaluated is None else _evaluation_parts(config, evaluated)),
    )


# --- evaluation ---------------------------------------------------------------------------------------------------


def _load_evaluation(run: Path) -> _Evaluated | None:
    """Return the evaluation of the test data, or else of another split."""
    found = sorted(run.glob("evaluation*.json"), key=lambda path: (path.name != "evaluation.json", path.name))
    for path in found:
        values = path.with_name(path.name.replace("evaluation", "values", 1)).with_suffix(".parquet")
        if values.is_file():
            return _Evaluated(SplitEvaluation.load(path), pq.read_table(values))
    return None


def _without_evaluation(run: Path) -> dict[str, Any]:
    parts = dict.fromkeys(("metric", "metrics", "funnel", "histogram", "quantiles", "worst"))
    if (run / DAYS).is_dir():
        text = "This is a run of a stream: 'validation' is measured on each day before the run is trained on it."
        return {**parts, "summary": text, "evaluate_command": ""}
    text = "This run has not been evaluated yet."
    return {**parts, "summary": text, "evaluate_command": f"rankfall evaluate {run}"}


def _evaluation_parts(config: TrainConfig, evaluated: _Evaluated) -> dict[str, Any]:
    method = method_of(config)
    metric = _main_metric(method.main_metric, evaluated)
    histogram, quantiles = _distribution(evaluated, metric)
    return {
        "metric": metric,
        "summary": _summary(method.funnel, evaluated, metric),
        "evaluate_command": "",
        "metrics": _metrics_table(evaluated),
        "funnel": _funnel_chart(method.funnel, evaluated) if method.funnel else None,
        "histogram": histogram,
        "quantiles": quantiles,
        "worst": _worst_table(evaluated, metric),
    }


def _main_metric(wanted: str, evaluated: _Evaluated) -> str:
    """Return the metric whose distribution and worst lists are shown."""
    return wanted if wanted in evaluated.summary.metrics else next(iter(evaluated.summary.metrics))


def _summary(funnel: Funnel | None, evaluated: _Evaluated, metric: str) -> str:
    """Return the outcome in a sentence or two."""
    summary = evaluated.summary
    mean, chance = decimal(summary.metrics[metric]), decimal(summary.chance[metric])
    text = f"{metric} is {mean} on {summary.split}; chance is {chance}."
    if funnel:
        lost = {stage: summary.metrics[f"{stage}/lost"] for stage in funnel.quotas}
        worst = max(lost, key=lambda name: lost[name])
        text += f" Most relevant items are lost at {worst}: {decimal(lost[worst])} of all."
    return text


def _metrics_table(evaluated: _Evaluated) -> Table:
    summary = evaluated.summary
    undefined = max(summary.undefined.values())
    caption = f"Means over {summary.impressions:,} {evaluated.lists} of {summary.split}."
    if undefined:
        caption += f" Lists without a relevant item, at most {undefined:,}, are excluded from the means."
    body = [
        [name, decimal(value), decimal(summary.chance[name]), _difference(value - summary.chance[name])]
        for name, value in summary.metrics.items()
    ]
    return Table(["metric", "mean", "chance", "difference"], body, caption=caption)


def _difference(value: float) -> str:
    return "none" if np.isnan(value) else f"{value:+z.4f}"


def _funnel_chart(funnel: Funnel, evaluated: _Evaluated) -> _FunnelChart:
    """Return the share of relevant items left after each stage, beside that of chance and of a perfect cascade."""
    lost, by_chance = evaluated.summary.metrics, evaluated.summary.chance
    left = chance = 1.0
    rows = []
    for number, (stage, quota) in enumerate(funnel.quotas.items(), 1):
        before = left
        left, chance = left - lost[f"{stage}/lost"], chance - by_chance[f"{stage}/lost"]
        name = f"{stage} keeps {quota}: {short(left)} left, {short(before - left)} lost"
        rows.append(Bar(name, [(left, 0), (before - left, number)], [chance]))
    legend = {
        "left": 0,
        **{f"lost at {stage}": number for number, stage in enumerate(funnel.quotas, 1)},
        "left by chance": None,
    }
    best = min(1.0, min(funnel.quotas.values()) / funnel.relevant)
    ideal = "all of them" if best == 1 else f"{short(best)} of them, as a quota is smaller than their number"
    label = "Share of the relevant items that is left after each stage: " + "; ".join(row.name for row in rows)
    return _FunnelChart(
        about=f"Shares of the relevant items. A perfect cascade would keep {ideal}.",
        chart=charts.bars(rows, legend, label=label),
        note=" ".join(
            f"{count:,} lists with a relevant item are not longer than the quota of {stage}, which drops none of their "
            "items."
            for stage, count in (evaluated.summary.kept_whole or {}).items()
            if count
        ),
    )


def _distribution(evaluated: _Evaluated, metric: str) -> tuple[Markup | None, Table | None]:
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
        label=f"Share of {lists} by their {metric}: " + ", ".join(f"{name} {share:.2f}" for name, share in shares),
        caption=f"{metric} of single {lists}, each counted at the nearest of {BINS + 1} values.",
    )
    return histogram, Table(["quantile", "5 %", "25 %", "50 %", "75 %", "95 %"], [[metric, *map(short, quantiles)]])


def _worst_table(evaluated: _Evaluated, metric: str) -> Table | None:
    """Return the lists with the worst values; of equal values, those with the best chance level come first."""
    values, chance = evaluated.column(metric), evaluated.column(CHANCE + metric)
    sign = 1 if metric == JOINT or parse(metric).higher_is_better else -1
    order = np.lexsort((-sign * chance, sign * values))[: int((~np.isnan(values)).sum())]  # NaN is last
    if not len(order):
        return None
    stages = [name for name in evaluated.summary.metrics if name.endswith("/lost")]
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
    return Table(["request" if stages else "query", metric, "chance", *stages], body, staged=bool(stages))


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
    losses, metrics = _losses(epochs), _validation(config.training.metric, epochs)
    if len(epochs) == 1:
        values = {**losses, **{f"validation {name}": points for name, points in metrics.items()}}
        body = [[name, decimal(points[0][1])] for name, points in values.items()]
        return parts | {"single_epoch": Table([f"after one {step}", ""], body)}
    speed = epochs[-1].get("impressions_per_second") or epochs[-1].get("lists_per_second")
    last = "on the last day" if step == "day" else "in the last epoch"
    drawn = {f"Training loss by {step}": losses, f"Validation by {step}": metrics}
    return parts | {
        "curves": [_curve(title, series) for title, series in drawn.items() if series],
        "training_note": f"{speed:,.0f} lists per second {last}." if speed else "",
    }


def _losses(epochs: Sequence[Mapping[str, Any]]) -> Points:
    points: Points = {}
    for line in epochs:
        for name, value in {"loss": line["loss"], **line.get("parts", {})}.items():
            points.setdefault(name, []).append((line["epoch"], value))
    return {"loss": points["loss"]} if len(points) == 2 else points  # a single term is the loss


def _validation(metric: str, epochs: Sequence[Mapping[str, Any]]) -> Points:
    points: Points = {}
    for line in epochs:
        values = line["validation"] if "validation" in line else {metric: line["metric"]}
        for name in (name for name in values if name == metric or name.endswith("/recall")):
            points.setdefault(name, []).append((line["epoch"], values[name]))
    return points


def _curve(title: str, series: Points) -> Markup:
    ends = (f"{name} from {decimal(points[0][1])} to {decimal(points[-1][1])}" for name, points in series.items())
    return charts.curves(series, label=f"{title}: {', '.join(ends)}", caption=f"{title}.")
