"""Summaries of a stream: metrics and tests of every day, and of all days together.

The methods of a day are tested on its impressions, as in a comparison. Over all days the unit is the day, because all
impressions of a day are measured with the same weights. Memory holds one metric of one day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import torch

from rankfall.studies.comparison_summary import Outcome, Summary, summarise
from rankfall.studies.results import DayResult, MethodResult
from rankfall.studies.stream.day_learner import LENGTH, RELEVANT, values_file
from rankfall.training.cascade_metrics import higher_is_better
from rankfall.training.config.cascade_metric_names import with_value
from rankfall.training.per_list_table import CHANCE
from rankfall.training.run_manifest import verify_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.studies.results import MethodTest, MetricSummary, Verdict

    Directories = Mapping[str, Sequence[Path]]  # run directories of each method, one per seed

CHANGED = 1.2  # ratio of the means of two days from which on the task has changed


def summarise_day(day: str, directories: Directories, metrics: Sequence[str]) -> DayResult:
    """Summarise a day for the methods whose runs have all measured it."""
    methods = measured_methods(day, directories)
    summaries: dict[str, dict[str, MetricSummary]] = {method: {} for method in methods}
    tests: list[MethodTest] = []
    verdicts: list[Verdict] = []
    impressions = 0
    for metric in metrics if methods else ():
        values = {method: _values(day, directories[method], metric) for method in methods}
        chance = _values(day, directories[methods[0]][:1], CHANCE + metric)[0]
        impressions = len(chance)
        if int((~chance.isnan()).sum()) < 2:  # too few impressions have a relevant item
            return DayResult(day, impressions, [], [])
        summary = _summarise({metric: values}, {metric: chance})
        for method in summary.methods:
            summaries[method.name] |= method.metrics
        tests += summary.tests
        verdicts += summary.verdicts
    found = [MethodResult(name, of) for name, of in summaries.items()]
    return DayResult(day, impressions, found, tests, verdicts, **_lists(day, directories, methods))


def changed_task(days: Sequence[DayResult], metric: str) -> list[str]:
    """Return warnings if the lists of the days differ so much that values of a metric are not comparable."""
    warnings = []
    for name, what in ((LENGTH, "items"), (RELEVANT, "relevant items")):
        known = [(value, entry.day, entry) for entry in days if entry.methods and (value := getattr(entry, name))]
        if known and max(known)[0] > CHANGED * min(known)[0]:
            first, last = sorted((min(known), max(known)), key=lambda one: one[1])
            levels = [entry.methods[0].metrics[metric].chance for *_, entry in (first, last)]
            warnings.append(
                f"the task changed: a list has {first[0]:,.1f} {what} on {first[1]} and {last[0]:,.1f} on {last[1]} "
                f"(chance {levels[0]:.3f} and {levels[1]:.3f}); compare {metric} with chance, not with other days"
            )
    return warnings


def _lists(day: str, directories: Directories, methods: Sequence[str]) -> dict[str, float]:
    """Return the mean length and the mean number of relevant items of the lists of a day, if its file has them."""
    if not methods:
        return {}
    metadata = pq.read_schema(values_file(directories[methods[0]][0], day)).metadata or {}
    return {name: float(metadata[name.encode()]) for name in (LENGTH, RELEVANT) if name.encode() in metadata}


def summarise_days(days: Sequence[DayResult], directories: Directories, metrics: Sequence[str]) -> tuple[str, Summary]:
    """Summarise all days for the methods that have measured all of them, with the day as the unit.

    Returns:
        The unit and the summary. A single day is returned as it is, with impressions as the unit.
    """
    used = [entry for entry in days if entry.methods]
    summaries = {(entry.day, method.name): method.metrics for entry in used for method in entry.methods}
    complete = [method for method in directories if all((entry.day, method) in summaries for entry in used)]
    if not used or not complete:
        return "days", Summary([], [])
    if len(used) == 1:
        return "impressions", Summary(used[0].methods, used[0].tests, used[0].verdicts)

    def over_days(metric: str, method: str) -> Tensor:
        return torch.tensor([summaries[entry.day, method][metric].values for entry in used], dtype=torch.double).T

    def chance_over_days(metric: str) -> Tensor:
        return torch.tensor([summaries[entry.day, complete[0]][metric].chance for entry in used], dtype=torch.double)

    values = {metric: {method: over_days(metric, method) for method in complete} for metric in metrics}
    return "days", _summarise(values, {metric: chance_over_days(metric) for metric in metrics})


def measured_methods(day: str, directories: Directories) -> list[str]:
    """Return the methods whose runs have all measured a day."""
    return [method for method, runs in directories.items() if all(values_file(run, day).is_file() for run in runs)]


def measured_metrics(days: Sequence[str], directories: Directories, metrics: Sequence[str]) -> list[str]:
    """Return the metrics of a stream, and ``joint_value`` if every measured day has it."""
    files = [values_file(run, day) for day in days for runs in directories.values() for run in runs]
    return with_value(metrics, (set(pq.read_schema(file).names) for file in files if file.is_file()))


def _summarise(values: Mapping[str, Mapping[str, Tensor]], chance: Mapping[str, Tensor]) -> Summary:
    """Summarise values (seeds, units) by metric and method."""
    methods = list(next(iter(values.values())))
    return summarise(
        Outcome(
            values={method: {metric: of[method] for metric, of in values.items()} for method in methods},
            chance=chance,
            higher_is_better={metric: higher_is_better(metric) for metric in values},
            folds=[len(next(iter(chance.values())))],
        )
    )


def _values(day: str, runs: Sequence[Path], column: str) -> Tensor:
    """Return a column of the values of a day, one row per run."""
    for run in runs:
        verify_run(run, values_file(run, day).relative_to(run).as_posix())
    # not pq.read_table: it takes a dot in a name, such as that of a file, for a nested column
    columns = [pq.ParquetFile(values_file(run, day)).read(columns=[column])[column].to_numpy() for run in runs]
    return torch.from_numpy(np.stack(columns).astype(np.float64))
