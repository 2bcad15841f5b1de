"""Means, deviations, chance levels, confidence intervals and tests of methods from their values per query."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from rankfall.metrics import compare, crossed_test, holm, paired_test
from rankfall.metrics.student import student_quantile
from rankfall.studies.results import MethodResult, MethodTest, MetricSummary, PairTest, TestFigures, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from rankfall.metrics import TestResult

    Over = Literal["both", "seeds", "queries"]
    Pair = tuple[str, str]

LEVEL = 0.05  # of adjusted p-values
LEAST_SEEDS = 3  # two say too little about their spread for a statement about other seeds


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
    """Tests of each method against the best over queries, by metric."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Tests of each method against the reference over queries, seeds and both, by metric."""
    pairs: list[PairTest] = field(default_factory=list)
    """Tests of all pairs of methods over seeds and queries, by metric; none with fewer than three seeds."""


def summarise(outcome: Outcome, *, against: str | None = None) -> Summary:
    """Summarise the values of all methods, and test each method against a reference.

    The mean is taken over queries, the standard deviation over runs (seeds x folds). The confidence interval is
    Student's (1908), over queries.

    Args:
        outcome: The values.
        against: The reference of the verdicts. Default: the method with the best mean of each metric. The data then
            choose the reference, so p-values are corrected for the number of all pairs.
    """
    tests = {metric: _pair_tests(metric, outcome) for metric in outcome.chance}
    return Summary(
        methods=[
            MethodResult(name, {metric: _metric_summary(values, metric, outcome) for metric, values in metrics.items()})
            for name, metrics in outcome.values.items()
        ],
        tests=[test for metric in outcome.chance for test in _tests(metric, outcome)],
        verdicts=[verdict for metric, found in tests.items() for verdict in _verdicts(metric, outcome, found, against)],
        pairs=[
            PairTest(metric, *pair, **vars(test))
            for metric, found in tests.items()
            for pair, test in _adjusted(found.get("both", {})).items()
        ],
    )


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
        # two-sided at twice the level: one end is the bound of the one-sided test
        level = 2 * LEVEL * _share(row.p_value, row.adjusted_p_value, len(rows) - 1)
        interval = paired_test(by_query[row.name], by_query[best], confidence=1 - level)
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


# --- verdicts -----------------------------------------------------------------------------------------------------


def _pair_tests(metric: str, outcome: Outcome) -> dict[Over, dict[Pair, TestResult]]:
    """Test all pairs of methods, two-sided; with fewer than three seeds over queries only."""
    values = {name: metrics[metric] for name, metrics in outcome.values.items()}
    repeated = all(len(runs) >= LEAST_SEEDS for runs in values.values())
    ways: tuple[Over, ...] = ("queries", "seeds", "both") if repeated else ("queries",)
    return {
        over: {
            (first, second): crossed_test(values[first], values[second], over=over, folds=outcome.folds)
            for first, second in itertools.combinations(values, 2)
        }
        for over in ways
    }


def _adjusted(tests: Mapping[Pair, TestResult]) -> dict[Pair, TestFigures]:
    """Correct p-values and intervals for the number of tests.

    Each interval has the level at which Holm's procedure tests its pair, so that it excludes 0 exactly if the adjusted
    p-value is below 5 %.
    """
    adjusted = holm([test.p_value for test in tests.values()]).tolist()
    figures = {}
    for (pair, test), p_value in zip(tests.items(), adjusted, strict=True):
        margin = (test.high - test.low) / 2
        if margin > 0:
            level = LEVEL * _share(test.p_value, p_value, len(tests))
            margin *= student_quantile(level / 2, test.freedom) / student_quantile(LEVEL / 2, test.freedom)
        low, high = test.difference - margin, test.difference + margin
        figures[pair] = TestFigures(test.difference, low, high, test.p_value, p_value)
    return figures


def _share(p_value: float, adjusted: float, tests: int) -> float:
    """Return the share of the level that Holm's procedure leaves to one of several tests."""
    return p_value / adjusted if 0 < adjusted < 1 else 1 / max(tests, 1)


def _verdicts(
    metric: str, outcome: Outcome, tests: Mapping[Over, Mapping[Pair, TestResult]], against: str | None
) -> list[Verdict]:
    """Compare every method with the reference."""
    reference = against or _best(metric, outcome)
    figures: dict[str, dict[Over, TestFigures]] = {name: {} for name in outcome.values}
    for over, found in tests.items():
        # A reference that was named beforehand leaves one test per method. The best one is found by all pairs.
        family = {pair: test for pair, test in found.items() if against is None or against in pair}
        for (first, second), test in _adjusted(family).items():
            if first == reference:
                figures[second][over] = _turned(test)
            elif second == reference:
                figures[first][over] = test
        figures[reference][over] = TestFigures(0.0, 0.0, 0.0, 1.0, 1.0)
    sign = 1 if outcome.higher_is_better[metric] else -1
    return [
        Verdict(
            metric=metric,
            method=name,
            against=reference,
            outcome=_outcome(name == reference, of.get("both"), sign),
            over_queries=of["queries"],
            over_seeds=of.get("seeds"),
            over_both=of.get("both"),
        )
        for name, of in figures.items()
    ]


def _outcome(
    is_reference: bool, test: TestFigures | None, sign: int
) -> Literal["better", "worse", "not distinguishable", "no claim", "reference"]:
    if test is None:
        return "no claim"
    return "reference" if is_reference else decide(test, sign)


def decide(test: TestFigures, sign: int) -> Literal["better", "worse", "not distinguishable"]:
    """Return what a test says about a method; `sign` is 1 if higher values are better, else -1."""
    if test.adjusted_p_value >= LEVEL:
        return "not distinguishable"
    return "better" if sign * test.difference > 0 else "worse"


def _turned(test: TestFigures) -> TestFigures:
    """Return the test of the opposite difference."""
    return TestFigures(-test.difference, -test.high, -test.low, test.p_value, test.adjusted_p_value)


def _best(metric: str, outcome: Outcome) -> str:
    """Return the method with the best mean, the first of several."""
    sign = 1 if outcome.higher_is_better[metric] else -1
    return max(outcome.values, key=lambda name: sign * float(outcome.values[name][metric].mean(0).nanmean()))
