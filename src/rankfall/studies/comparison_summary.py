"""From per-query values to what a comparison says: means, spread, chance levels, intervals, tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankfall.metrics import compare, paired_test

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """The values of every method on every query; queries of the folds stand one fold after the other."""

    values: Mapping[str, Mapping[str, Float[Tensor, "seeds queries"]]]
    """Of each method, of each metric; NaN where a metric is undefined."""
    chance: Mapping[str, Float[Tensor, " queries"]]
    """Of each metric."""
    higher_is_better: Mapping[str, bool]
    """Of each metric."""
    folds: Sequence[int]
    """The number of queries of each fold."""


def summarise(outcome: Outcome) -> dict[str, Any]:
    """The methods' figures and the tests of each against the best (``comparison.json``).

    The mean is taken over queries, the standard deviation over runs (seeds x folds), whose means are
    `values`: all folds of the first seed, then of the second. The interval from `low` to `high` holds the mean
    over queries of this kind with 95 % confidence (Student 1908).
    """
    return {
        "methods": [
            {
                "name": name,
                "metrics": {metric: _figures(values, metric, outcome) for metric, values in of.items()},
            }
            for name, of in outcome.values.items()
        ],
        "tests": [test for metric in outcome.chance for test in _tests(metric, outcome)],
    }


def _figures(values: Tensor, metric: str, outcome: Outcome) -> dict[str, Any]:
    runs = torch.stack([fold.nanmean(-1) for fold in values.split(list(outcome.folds), -1)], -1).flatten()
    known = runs[~runs.isnan()]
    by_query = values.mean(0)
    interval = paired_test(by_query, torch.zeros_like(by_query))
    return {
        "mean": interval.difference,
        "std": known.std().item() if len(known) > 1 else 0.0,
        "chance": outcome.chance[metric].nanmean().item(),
        "low": interval.low,
        "high": interval.high,
        "queries": interval.count,
        "values": [None if math.isnan(value) else value for value in runs.tolist()],
    }


def _tests(metric: str, outcome: Outcome) -> list[dict[str, Any]]:
    """Is a method worse than the best one? Paired over queries, with means over the seeds."""
    by_query = {name: of[metric].mean(0) for name, of in outcome.values.items()}
    rows = compare(by_query, higher_is_better=outcome.higher_is_better[metric])
    best = next(row.name for row in rows if row.best)
    tests = []
    for row in rows:
        interval = paired_test(by_query[row.name], by_query[best])
        tests.append(
            {
                "metric": metric,
                "method": row.name,
                "best": best,
                "difference": row.difference,
                "low": interval.low,
                "high": interval.high,
                "p_value": row.p_value,
                "adjusted_p_value": row.adjusted_p_value,
                "significantly_worse": row.significantly_worse,
            }
        )
    return tests
