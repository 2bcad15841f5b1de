"""Means, deviations, chance levels, confidence intervals and tests of methods from their values per query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankfall.metrics import compare, paired_test
from rankfall.metrics.named import parse
from rankfall.studies.results import MethodResult, MethodTest, MetricSummary
from rankfall.training import cascade_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """Values of every method on every query, one fold after the other."""

    values: Mapping[str, Mapping[str, Float[Tensor, "seeds queries"]]]
    """By method and metric; NaN where a metric is undefined."""
    chance: Mapping[str, Float[Tensor, " queries"]]
    """By metric."""
    higher_is_better: Mapping[str, bool]
    """By metric."""
    folds: Sequence[int]
    """Number of queries of each fold."""


@dataclass(frozen=True)
class Summary:
    """Summary of an :class:`Outcome`."""

    methods: list[MethodResult]
    tests: list[MethodTest]
    """Tests of each method against the best, by metric."""


def summarise(outcome: Outcome) -> Summary:
    """Summarise the values of all methods, and test each method against the best.

    The mean is taken over queries, the standard deviation over runs (seeds x folds). The confidence interval is
    Student's (1908), over queries.
    """
    return Summary(
        methods=[
            MethodResult(name, {metric: _metric_summary(values, metric, outcome) for metric, values in metrics.items()})
            for name, metrics in outcome.values.items()
        ],
        tests=[test for metric in outcome.chance for test in _tests(metric, outcome)],
    )


def higher_is_better(metric: str) -> bool:
    """Whether higher values of a metric are better, for metrics of rankers and of cascades."""
    if metric == cascade_metrics.JOINT or "/" in metric:  # of a cascade
        return cascade_metrics.higher_is_better(metric)
    return parse(metric).higher_is_better


def _metric_summary(values: Tensor, metric: str, outcome: Outcome) -> MetricSummary:
    runs = torch.stack([fold.nanmean(-1) for fold in values.split(list(outcome.folds), -1)], -1).flatten()
    defined = runs[~runs.isnan()]
    by_query = values.mean(0)
    interval = paired_test(by_query, torch.zeros_like(by_query))
    return MetricSummary(
        mean=interval.difference,
        std=defined.std().item() if len(defined) > 1 else 0.0,
        chance=outcome.chance[metric].nanmean().item(),
        low=interval.low,
        high=interval.high,
        queries=interval.count,
        values=runs.tolist(),
    )


def _tests(metric: str, outcome: Outcome) -> list[MethodTest]:
    """Test whether methods are worse than the best one, paired over queries, with means over the seeds."""
    by_query = {name: metrics[metric].mean(0) for name, metrics in outcome.values.items()}
    rows = compare(by_query, higher_is_better=outcome.higher_is_better[metric])
    best = next(row.name for row in rows if row.best)
    tests = []
    for row in rows:
        interval = paired_test(by_query[row.name], by_query[best])
        tests.append(
            MethodTest(
                metric=metric,
                method=row.name,
                best=best,
                difference=row.difference,
                low=interval.low,
                high=interval.high,
                p_value=row.p_value,
                adjusted_p_value=row.adjusted_p_value,
                significantly_worse=row.significantly_worse,
            )
        )
    return tests
