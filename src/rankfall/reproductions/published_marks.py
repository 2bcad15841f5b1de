"""Marks of significance: those that a paper prints, and those of the same test here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.task import Sheet
from rankfall.studies.compare import LEAST_SEEDS, LEVEL
from rankfall.training.config.component_checks import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.reproductions.paper_schema import Marks, Method, PublishedTable
    from rankfall.studies.results import ComparisonResult, Verdict

BETTER, WORSE, BOLD, NONE, UNKNOWN = "^", "v", "b", ".", "?"


def reference_of(published: PublishedTable, methods: Sequence[Method]) -> str | None:
    """Return the method that the paper tests all others against, None if that is the best one of each column."""
    if published.marks is None:
        return None
    return next((one.name for one in methods if (one.row or one.name) == published.marks.against), None)


def marks_sheet(published: PublishedTable, comparison: ComparisonResult, methods: Sequence[Method]) -> list[Sheet]:
    """Return the marks of each method here beside the printed ones, or nothing if the paper prints none."""
    marks = published.marks
    if marks is None:
        return []
    rows = {method.name: method.row or method.name for method in methods}
    trained = [method.name for method in comparison.methods]
    found = [
        [
            name,
            *(
                _shown([mark(comparison, marks, name, metric, over_seeds=over_seeds) for metric in published.metrics])
                for over_seeds in (False, True)
            ),
            *(_shown(printed.get(rows.get(name, name), "")) for printed in marks.values.values()),
        ]
        for name in trained
    ]
    meaning = "b: best or not worse" if marks.against == "best" else f"^ better, v worse than {marks.against}"
    meaning += "; ? too few seeds, no claim" if len(comparison.seeds) < LEAST_SEEDS else ""
    return [
        Sheet(
            f"marks of significance, for {', '.join(published.metrics)} ({meaning}); the paper: {marks.test}",
            ["method", "over queries", "over seeds and queries", *(f"printed, {data}" for data in marks.values)],
            found,
        )
    ]


def mark(comparison: ComparisonResult, marks: Marks, method: str, metric: str, *, over_seeds: bool) -> str:
    """Return the mark of a method on a metric.

    Args:
        comparison: Our comparison.
        marks: The printed marks, which say what is tested.
        method: Name of the method.
        metric: Name of the metric.
        over_seeds: False for the paper's test over queries, at 5 % without correction; True for our verdict, over seeds
            and queries with Holm's correction.
    """
    verdict = next((one for one in comparison.verdicts if (one.method, one.metric) == (method, metric)), None)
    if verdict is None:
        return UNKNOWN
    if over_seeds:
        outcome: str = verdict.outcome
    elif marks.against == "best":
        outcome = "worse" if _is_worse_over_queries(comparison, method, metric) else "not distinguishable"
    else:
        outcome = _outcome_over_queries(verdict)
    if outcome == "no claim":
        return UNKNOWN
    if marks.against == "best":
        return NONE if outcome == "worse" else BOLD
    return {"better": BETTER, "worse": WORSE}.get(outcome, NONE)


def _is_worse_over_queries(comparison: ComparisonResult, method: str, metric: str) -> bool:
    """One-sided, as in PiRank."""
    return any(test.p_value < LEVEL for test in comparison.tests if (test.method, test.metric) == (method, metric))


def _outcome_over_queries(verdict: Verdict) -> str:
    test = verdict.over_queries
    if verdict.method == verdict.against or not test.p_value < LEVEL:
        return "not distinguishable"
    return "better" if (test.difference > 0) == higher_is_better(verdict.metric) else "worse"


def _shown(marks: Sequence[str]) -> str:
    return " ".join(marks)
