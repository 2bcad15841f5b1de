"""From the values of impressions, day by day, to what a stream says: figures and tests of every day and of all.

Of a day, a method is tested on its impressions, as in a comparison. Of all days together the unit is the day: all its
impressions are measured by the same weights, so its mean is one number that says how well these do. Memory holds one
metric of one day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import torch

from rankfall.studies.comparison_summary import Outcome, summarise
from rankfall.studies.stream.day_learner import values_file
from rankfall.training.cascade_metrics import higher_is_better
from rankfall.training.per_list_table import CHANCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    Entry = dict[str, Any]  # what is said of a day
    Directories = Mapping[str, Sequence[Path]]  # of the runs of each method, one a seed


def day_entry(day: str, directories: Directories, metrics: Sequence[str]) -> Entry:
    """Figures and tests of a day, of the methods whose runs have all measured it."""
    there = measured(day, directories)
    entry: Entry = {"day": day, "impressions": 0, "methods": [], "tests": []}
    if not there:
        return entry
    by_method: dict[str, dict[str, Any]] = {method: {} for method in there}
    tests: list[dict[str, Any]] = []
    for metric in metrics:
        values = {method: _values(day, directories[method], metric) for method in there}
        chance = _values(day, directories[there[0]][:1], CHANCE + metric)[0]
        entry["impressions"] = len(chance)
        if int((~chance.isnan()).sum()) < 2:  # too few have a relevant item to say anything
            return entry
        part = _summarised({metric: values}, {metric: chance})
        for method in part["methods"]:
            by_method[method["name"]] |= method["metrics"]
        tests += part["tests"]
    return entry | {"methods": [{"name": name, "metrics": of} for name, of in by_method.items()], "tests": tests}


def overall(entries: Sequence[Entry], directories: Directories, metrics: Sequence[str]) -> dict[str, Any]:
    """Figures over all days and tests with days as the unit, of the methods that have measured all of them.

    With a single day its own are all there is. `unit` says what was tested on.
    """
    used = [entry for entry in entries if entry["methods"]]
    figures = {(entry["day"], method["name"]): method["metrics"] for entry in used for method in entry["methods"]}
    complete = [method for method in directories if all((entry["day"], method) in figures for entry in used)]
    if not used or not complete:
        return {"unit": "days", "methods": [], "tests": []}
    if len(used) == 1:
        return {"unit": "impressions", "methods": used[0]["methods"], "tests": used[0]["tests"]}

    def over_days(metric: str, method: str) -> Tensor:
        values = [figures[entry["day"], method][metric]["values"] for entry in used]
        return torch.tensor(values, dtype=torch.double).T

    def chance_over_days(metric: str) -> Tensor:
        return torch.tensor(
            [figures[entry["day"], complete[0]][metric]["chance"] for entry in used], dtype=torch.double
        )

    chance = {metric: chance_over_days(metric) for metric in metrics}
    values = {metric: {method: over_days(metric, method) for method in complete} for metric in metrics}
    return {"unit": "days", **_summarised(values, chance)}


def measured(day: str, directories: Directories) -> list[str]:
    """The methods whose runs have all measured a day."""
    return [method for method, runs in directories.items() if all(values_file(run, day).is_file() for run in runs)]


def _summarised(values: Mapping[str, Mapping[str, Tensor]], chance: Mapping[str, Tensor]) -> dict[str, Any]:
    """Of the values (seeds, units) of each metric and method."""
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
    """A column of the values of a day, a row a run."""
    columns = [pq.read_table(values_file(run, day), columns=[column])[column].to_numpy() for run in runs]
    return torch.from_numpy(np.stack(columns).astype(np.float64))
