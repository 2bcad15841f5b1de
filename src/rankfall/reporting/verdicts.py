"""Verdicts of comparisons and streams as text: marks in tables, their captions, and the table of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.studies.results import ComparisonResult
from rankfall.training.cascade_metrics import JOINT
from rankfall.training.config.cascade_metric_names import measured_name, shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.studies.results import MethodTable, TestFigures, Verdict

SMALLEST_P = 1e-99  # smaller p-values are shown as smaller than this

_MARKS = {"not distinguishable": "*"}
_MARKS_AGAINST = {"reference": "=", "better": "+", "worse": "-"}


def main_metric(result: MethodTable) -> str:
    """Return the metric whose tests are shown: that of the training runs, or joint recall, or else the first one."""
    wanted = measured_name(result.metric or "")
    if wanted in result.metrics:
        return wanted
    return JOINT if JOINT in result.metrics else result.metrics[0]


def named_reference(result: MethodTable) -> str | None:
    """Return the method that the user named as the reference; a stream has none."""
    return result.against if isinstance(result, ComparisonResult) else None


def makes_claims(result: MethodTable) -> bool:
    """Whether there are tests over seeds. A single seed says nothing about methods."""
    return any(verdict.over_both is not None for verdict in result.verdicts)


def mark(verdict: Verdict | None, reference: str | None) -> str:
    """Return the mark after a number; `reference` is the one that the user named."""
    if verdict is None:
        return ""
    return (_MARKS if reference is None else _MARKS_AGAINST).get(verdict.outcome, "")


def caption(result: MethodTable, *, best: str, star: str = "*", unit: str | None = None) -> str:
    """Return the explanation of the marks.

    Args:
        result: The result.
        best: How the table shows the best mean.
        star: The star, escaped as the text needs it.
        unit: Unit of the table, if it is not that of the result.
    """
    unit = unit or result.unit
    if not result.verdicts:
        return "No tests over seeds in this file: run the same command again, finished runs are not repeated."
    if not makes_claims(result):
        return (
            f"NO CLAIM about which is better: one seed. Another seed may change the order; tests over {unit} hold for "
            "these weights only. Use several seeds."
        )
    reference = named_reference(result)
    test = f"two-sided test over seeds and {unit}, 5 %, Holm"
    few = ". Two seeds tell little about their spread: use five" if len(result.seeds) == 2 else ""
    if reference is not None:
        return f"= reference, {reference}; + better; - worse; no mark: not distinguishable ({test}){few}"
    return f"{best}; {star} not distinguishable from it; no mark: worse ({test} over all pairs){few}"


# --- the table of tests -------------------------------------------------------------------------------------------


def verdicts_on(result: MethodTable, metric: str) -> list[Verdict]:
    """Return the verdicts on a metric, without that on the reference itself."""
    return [one for one in result.verdicts if one.metric == metric and one.method != one.against]


def tests_title(result: MethodTable, metric: str) -> str:
    """Return the title of the table of tests."""
    reference = verdicts_on(result, metric)[0].against
    these = "" if makes_claims(result) else ", with these weights only"
    return f"{shown_name(metric)}, difference to {reference}{these}; p-values are two-sided, after Holm"


def tests_head(result: MethodTable) -> list[str]:
    """Return the headings of the table of tests."""
    head = ["method", "difference", "95 % interval"]
    if makes_claims(result):
        head += [f"p, seeds and {result.unit}", "p, seeds"]
    return [*head, f"p, {result.unit}"]


def tests_rows(result: MethodTable, metric: str) -> list[list[str]]:
    """Return a row per method: the difference, its interval, and the p-values."""
    return [_tests_row(verdict) for verdict in verdicts_on(result, metric)]


def _tests_row(verdict: Verdict) -> list[str]:
    tests = [test for test in (verdict.over_both, verdict.over_seeds, verdict.over_queries) if test is not None]
    first: TestFigures = tests[0]
    interval = f"[{first.low:+z.4f}, {first.high:+z.4f}]"
    return [verdict.method, f"{first.difference:+z.4f}", interval, *_p_values(tests)]


def _p_values(tests: Sequence[TestFigures]) -> list[str]:
    values = [test.adjusted_p_value for test in tests]
    return [f"{value:.2g}" if value >= SMALLEST_P else f"<{SMALLEST_P:.0e}" for value in values]
