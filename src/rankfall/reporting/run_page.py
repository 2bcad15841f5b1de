"""The page of a run: what was trained, what it reached, how training went, where it does badly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from rankfall.metrics.named import parse
from rankfall.reporting import html as page
from rankfall.reporting.comparison_table import short
from rankfall.reporting.html import Bar, Cell
from rankfall.training.cascade_metrics import JOINT
from rankfall.training.methods import method_of
from rankfall.training.run_directory import CONFIG, DAYS, is_finished, read_config, read_json, read_lines, read_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.methods import Funnel

WORST = 10  # lists that are shown
BINS = 10


@dataclass(frozen=True)
class _Measured:
    """An evaluation as it stands in the directory of a run."""

    split: str
    summary: dict[str, Any]
    values: pa.Table

    @property
    def lists(self) -> str:
        """What lists are called."""
        return "impressions" if JOINT in self.summary["metrics"] else "lists"

    def of(self, metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One value a list."""
        column: np.ndarray[Any, np.dtype[np.float64]] = self.values[metric].to_numpy().astype(np.float64)
        return column


def run_report(run: Path) -> str:
    """The page of a run: what was trained, what it reached, how training went, where it does badly."""
    config = read_config(run)
    measured = _measured(run)
    return page.page(
        f"Run {run.name}",
        *(_not_measured(run) if measured is None else _results(config, measured)),
        page.section("What was trained", _about(run, config)),
        page.section("Training", _curves(config, read_lines(run))),
        page.section("Configuration", page.folded(CONFIG, page.code((run / CONFIG).read_text(encoding="utf-8")))),
    )


def _not_measured(run: Path) -> list[str]:
    if (run / DAYS).is_dir():
        return [page.paragraph("A run of a stream: 'validation' is what it got on each day before it learned from it.")]
    return [page.paragraph("It has not been evaluated yet."), page.code(f"rankfall evaluate {run}")]


def _results(config: TrainConfig, measured: _Measured) -> list[str]:
    method = method_of(config)
    metric = _main_metric(method.main_metric, measured)
    return [
        page.paragraph(_reached(method.funnel, measured, metric)),
        page.section("Metrics", _metrics(measured)),
        page.section("Where the relevant items are lost", _funnel(method.funnel, measured)) if method.funnel else "",
        page.section(f"How {metric} is spread", _spread(measured, metric)),
        page.section("Where it does worst", _worst(measured, metric)),
    ]


def _main_metric(wanted: str, measured: _Measured) -> str:
    """What the page looks at more closely."""
    return wanted if wanted in measured.summary["metrics"] else next(iter(measured.summary["metrics"]))


def _measured(run: Path) -> _Measured | None:
    """What was measured on the test data, or else on whatever was measured."""
    found = sorted(run.glob("evaluation*.json"), key=lambda path: (path.name != "evaluation.json", path.name))
    for path in found:
        values = path.with_name(path.name.replace("evaluation", "values", 1)).with_suffix(".parquet")
        if values.is_file():
            summary = read_json(path)
            return _Measured(summary["split"], summary, pq.read_table(values))
    return None


def _reached(funnel: Funnel | None, measured: _Measured, metric: str) -> str:
    """The outcome in a sentence or two."""
    mean, chance = measured.summary["metrics"][metric], measured.summary["chance"][metric]
    text = f"{metric} is {page.figure(mean)} on {measured.split}, where chance is {page.figure(chance)}."
    if funnel:
        lost = {stage: measured.summary["metrics"][f"{stage}/lost"] for stage in funnel.quotas}
        worst = max(lost, key=lambda name: lost[name])
        text += f" Of the relevant items that are missing, {worst} loses most: {page.figure(lost[worst])} of all."
    return text


def _about(run: Path, config: TrainConfig) -> str:
    parts = method_of(config).describe()
    told = {
        **{name: ": ".join(filter(None, (text, page.flow(options)))) for name, (text, options) in parts.items()},
        "data": config.data.path,
        **_parts(config, _days(read_lines(run))),
        "optimizer": page.flow(config.optimizer.model_dump()),
        "seed": str(config.training.seed),
        "result": _outcome(run, config),
    }
    return page.table([], [[name, Cell(text, "words")] for name, text in told.items()])


def _parts(config: TrainConfig, days: Sequence[str]) -> dict[str, str]:
    """What of the data was learned from; a stream may have learned from fewer days than it was told."""
    if days:
        return {"learned from": f"{days[0]} to {days[-1]}, {len(days)} days" if len(days) > 1 else days[0]}
    return {"trained on": ", ".join(config.data.train), "validated on": ", ".join(config.data.valid)}


def _outcome(run: Path, config: TrainConfig) -> str:
    if not is_finished(run):
        return "training has not finished"
    result = read_result(run)
    when = f"on day {result.best_epoch}" if _days(read_lines(run)) else f"in epoch {result.best_epoch}"
    return (
        f"validation {config.training.metric} {page.figure(result.best_metric)} {when} of {result.epochs}, "
        f"{result.parameters:,} parameters, {result.seconds:,.1f} s"
    )


def _days(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those that a stream has learned from, one after the other; other trainings have epochs."""
    return [line["day"] for line in lines if "day" in line]


def _metrics(measured: _Measured) -> str:
    summary = measured.summary
    undefined = set(summary["undefined"].values())
    caption = f"Means over {summary['impressions']:,} {measured.lists} of {measured.split}."
    if undefined != {0}:
        caption += f" Lists without a relevant item, at most {max(undefined):,}, count in no mean."
    body = [
        [name, page.figure(value), page.figure(summary["chance"][name]), _difference(value, summary["chance"][name])]
        for name, value in summary["metrics"].items()
    ]
    return page.table(["metric", "mean", "chance", "difference"], body, caption=caption)


def _funnel(funnel: Funnel, measured: _Measured) -> str:
    """What is left of the relevant items after each stage, beside what chance and a perfect cascade leave."""
    lost, by_chance = (measured.summary[of] for of in ("metrics", "chance"))
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
    ideal = "all of them" if best == 1 else f"{short(best)} of them, as the quota is smaller than their number"
    label = "Share of the relevant items that is left after each stage: " + "; ".join(row.name for row in rows)
    return (
        page.paragraph(f"Shares of the relevant items. A perfect cascade would leave {ideal}.")
        + page.bars(rows, legend, label=label)
        + page.paragraph(_whole(measured), soft=True)
    )


def _whole(measured: _Measured) -> str:
    counts = {stage: count for stage, count in measured.summary.get("kept_whole", {}).items() if count}
    return " ".join(
        f"{count:,} of the lists that count are not longer than the quota of {stage}, which drops nothing of them."
        for stage, count in counts.items()
    )


def _spread(measured: _Measured, metric: str) -> str:
    """A histogram and quantiles of the lists' values."""
    values = measured.of(metric)
    values = values[~np.isnan(values)]
    if not len(values):
        return ""
    low, high = (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else (values.min(), values.max())
    step = (high - low) / BINS or 1.0
    counts = np.bincount(np.rint((values - low) / step).astype(int), minlength=BINS + 1)
    shares = [(f"{low + place * step:.3g}", count / len(values)) for place, count in enumerate(counts)]
    quantiles = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    lists = measured.lists
    picture = page.columns(
        shares,
        label=f"Share of {lists} by their {metric}: " + ", ".join(f"{name} {share:.2f}" for name, share in shares),
        caption=f"{metric} of single {lists}, each counted at the nearest of {BINS + 1} values.",
    )
    return picture + page.table(["quantile", "5 %", "25 %", "50 %", "75 %", "95 %"], [[metric, *map(short, quantiles)]])


def _worst(measured: _Measured, metric: str) -> str:
    """The lists with the worst values; of equal ones, those that were easiest by chance."""
    values, chance = measured.of(metric), measured.of(f"chance {metric}")
    sign = 1 if metric == JOINT or parse(metric).higher_is_better else -1
    order = np.lexsort((-sign * chance, sign * values))[: int((~np.isnan(values)).sum())]  # NaN is last
    if not len(order):
        return ""
    stages = [name for name in measured.summary["metrics"] if name.endswith("/lost")]
    qids = measured.values["qid"]
    body = [
        [
            str(qids[int(number)]),
            page.figure(values[number]),
            page.figure(chance[number]),
            *(page.figure(measured.of(stage)[number]) for stage in stages),
        ]
        for number in order[:WORST]
    ]
    return page.table(["request" if stages else "query", metric, "chance", *stages], body, staged=bool(stages))


def _curves(config: TrainConfig, epochs: Sequence[Mapping[str, Any]]) -> str:
    """The loss and its terms, and what validation measured, epoch by epoch."""
    if not epochs:
        return page.paragraph("No epoch has been finished.", soft=True)
    metric, step = config.training.metric, "day" if _days(epochs) else "epoch"
    parts: dict[str, list[tuple[float, float]]] = {}
    reached: dict[str, list[tuple[float, float]]] = {}
    for line in epochs:
        for name, value in {"loss": line["loss"], **line.get("parts", {})}.items():
            parts.setdefault(name, []).append((line["epoch"], value))
        validation = line["validation"] if "validation" in line else {metric: line["metric"]}
        for name in (name for name in validation if name == metric or name.endswith("/recall")):
            reached.setdefault(name, []).append((line["epoch"], validation[name]))
    if len(parts) == 2:  # the loss is its only term
        parts = {"loss": parts["loss"]}
    if len(epochs) == 1:
        figures = {**parts, **{f"validation {name}": points for name, points in reached.items()}}
        return page.table(
            [f"after one {step}", ""], [[name, page.figure(points[0][1])] for name, points in figures.items()]
        )
    speed = epochs[-1].get("impressions_per_second") or epochs[-1].get("lists_per_second")
    last = "on the last day" if step == "day" else "in the last epoch"
    return (
        _drawn(f"Training loss by {step}", parts)
        + _drawn(f"Validation by {step}", reached)
        + page.paragraph(f"{speed:,.0f} lists a second {last}." if speed else "", soft=True)
    )


def _drawn(what: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    if not series:  # days on which nothing could be measured
        return ""
    ends = (
        f"{name} from {page.figure(points[0][1])} to {page.figure(points[-1][1])}" for name, points in series.items()
    )
    return page.curves(series, label=f"{what}: {', '.join(ends)}", caption=f"{what}.")


def _difference(value: float | None, chance: float | None) -> str:
    return "none" if value is None or chance is None else f"{value - chance:+z.4f}"
