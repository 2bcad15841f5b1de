"""Time and memory of training a cascade with each objective, beside published ones.

A step is what training does with one batch: the scores of all stages, the objective, the backward pass and the
optimizer. All objectives get the same batch and take turns in one process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.benchmarks.timing import cpu_seconds, cpu_spread, peak_bytes, time_in_turns
from rankfall.reporting.figures import Dots
from rankfall.reproductions.protocols import CASCADE_RATES, cascade_config, method_sections
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.comparison_plan import make_plan
from rankfall.training.build import with_depths
from rankfall.training.cascade_loaders import load_log
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.device import seeded
from rankfall.training.distributed.group import ALONE
from rankfall.training.learner import Position
from rankfall.training.train_cascade import CascadeLearner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.benchmarks.timing import Step
    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import ObjectiveRuntime
    from rankfall.reproductions.task import Task

SECONDS, QUICK_SECONDS = 3.0, 0.2  # for each objective
BATCH, QUICK_BATCH = 1024, 256  # impressions per step, at most
SMALL = 4  # impressions of the step that loads libraries


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a training step.

    Attributes:
        seconds: Median CPU time on one thread.
        spread: Half the interquartile range as a share of the median, None for fewer than two turns.
        peak: Peak memory that the step adds in a fresh process, in bytes.
    """

    seconds: float
    spread: float | None
    peak: int

    def relative_peak(self, baseline: Cost) -> float:
        """Return the memory relative to a baseline; a small step may fit into memory that the process has already."""
        return self.peak / baseline.peak if baseline.peak else math.nan


def run(reproduction: ObjectiveRuntime, task: Task) -> Report:
    """Measure a training step with every objective."""
    data = task.log(reproduction.protocol.platform)
    batch = min(reproduction.protocol.batch, QUICK_BATCH if task.quick else BATCH, data.train_impressions)
    costs = _costs(_configs(reproduction, task, data), batch, task)
    return Report(
        sheets=[_measured(reproduction, data, costs, batch), _published(reproduction)],
        plots={reproduction.id: _figure(reproduction, data, costs)},
        results={
            "batch": batch,
            "costs": {
                name: {
                    "seconds_per_1000_impressions": 1000 * cost.seconds / batch,
                    "spread": cost.spread,
                    "peak_bytes": cost.peak,
                }
                for name, cost in costs.items()
            },
            "published": {"title": reproduction.title, "figures": _figures(reproduction)},
            "data": data.summary(),
        },
        notes=reproduction.notes,
    )


def _configs(reproduction: ObjectiveRuntime, task: Task, data: LogData) -> dict[str, str]:
    """Return the training configuration of every method as JSON text, which other processes can read."""
    sections = method_sections(reproduction.methods, CASCADE_RATES, tune=False)
    comparison = cascade_config(reproduction.protocol, data, sections, seeds=[task.seed])
    plan = make_plan(comparison, task.out)
    return {method: run.config.model_dump_json() for (method, _), (run,) in plan.trials().items()}


def _costs(configs: Mapping[str, str], batch: int, task: Task) -> dict[str, Cost]:
    """Measure the times in turns, so that other load of the machine affects all objectives, then the memory."""
    task.progress(f"steps of {batch} impressions", 0, len(configs) + 1)
    steps = {name: training_step(config, batch) for name, config in configs.items()}
    clocks = time_in_turns(steps, seconds=QUICK_SECONDS if task.quick else SECONDS)
    costs = {}
    for number, (name, config) in enumerate(configs.items(), 1):
        task.progress(f"memory of {name}", number, len(configs) + 1)
        peak = peak_bytes(training_step, small=(config, min(SMALL, batch)), full=(config, batch))
        costs[name] = Cost(cpu_seconds(clocks[name]), cpu_spread(clocks[name]), peak)
    return costs


def training_step(config: str, batch: int) -> Step:
    """Return a step that trains the models of a configuration on one batch, on the CPU."""
    content = CascadeConfig.model_validate_json(config)
    training = content.training.model_copy(update={"batch": batch, "device": "cpu"})
    content = content.model_copy(update={"training": training})
    log = load_log(content.data)
    content = with_depths(content, log.spec.stage_names)
    with seeded(content.training.seed, content.training.threads):
        learner = CascadeLearner(content, Path(), log, ALONE)
    return partial(learner.step, next(iter(learner.loader)), Position())


# --- the report ---------------------------------------------------------------------------------------------------


def _figures(reproduction: ObjectiveRuntime) -> dict[str, dict[str, float]]:
    (data,) = reproduction.published.values
    return reproduction.published.figures(data)


def _measured(reproduction: ObjectiveRuntime, data: LogData, costs: Mapping[str, Cost], batch: int) -> Sheet:
    baseline = costs[reproduction.baseline]
    rows = [
        [
            name,
            f"{1000 * cost.seconds / batch:.3g}",
            f"{cost.seconds / baseline.seconds:.2f}",
            "" if cost.spread is None else f"{cost.spread:.0%}",
            f"{cost.peak / 2**20:.1f}",
            f"{cost.relative_peak(baseline):.2f}",
        ]
        for name, cost in costs.items()
    ]
    title = f"{reproduction.title} here: CPU seconds of one thread, steps of {batch} impressions ({data.name})"
    own, other = f"time / {reproduction.baseline}", f"memory / {reproduction.baseline}"
    return Sheet(title, ["method", "s per 1,000 impressions", own, "spread", "MiB added by a step", other], rows)


def _published(reproduction: ObjectiveRuntime) -> Sheet:
    figures = _figures(reproduction)
    baseline = figures[reproduction.baseline]

    def cells(row: Mapping[str, float], column: str) -> list[str]:
        return [f"{row[column]:g}", f"{row[column] / baseline[column]:.2f}"] if column in row else ["-", "-"]

    (time, memory), other = reproduction.published.metrics, reproduction.baseline
    rows = [[name, *cells(row, time), *cells(row, memory)] for name, row in figures.items()]
    columns = ["method", time, f"time / {other}", memory, f"memory / {other}"]
    return Sheet(f"published: {reproduction.title}", columns, rows)


def _figure(reproduction: ObjectiveRuntime, data: LogData, costs: Mapping[str, Cost]) -> Dots:
    """Draw time and memory relative to the baseline, which do not depend on the machine."""
    figures, baseline = _figures(reproduction), costs[reproduction.baseline]
    printed = figures[reproduction.baseline]
    rows = []
    for name, cost in costs.items():
        ours = {"time": cost.seconds / baseline.seconds, "memory": cost.relative_peak(baseline)}
        rows += [{"method": name, "source": data.name, "metric": key, "value": value} for key, value in ours.items()]
    for name, row in figures.items():
        for key, column in zip(("time", "memory"), reproduction.published.metrics, strict=True):
            if column in row:
                ratio = row[column] / printed[column]
                rows.append({"method": name, "source": "published", "metric": key, "value": ratio})
    return Dots(rows, title=f"{reproduction.title}: cost of training relative to {reproduction.baseline}", costs=True)
