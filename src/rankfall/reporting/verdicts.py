"""Verdicts of comparisons and streams as text: marks in tables, their captions, and the table of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.studies.compare import LEVEL, decide
from rankfall.studies.results import ComparisonResult
from rankfall.training.config.component_checks import JOINT, higher_is_better, shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.studies.results import MethodTable, TestFigures, Verdict

SMALLEST_P = 1e-99  # smaller p-values are shown as smaller than this
NAMED = 3  # methods of a sentence

_MARKS = {"not distinguishable": "*"}
_MARKS_AGAINST = {"reference": "=", "better": "+", "worse": "-"}


def main_metric(result: MethodTable) -> str:
    """Return the metric whose tests are shown: that of the training runs, or joint recall, or else the first one."""
    if result.metric in result.metrics:
        return result.metric
    return JOINT if JOINT in result.metrics else result.metrics[0]


def named_reference(result: MethodTable) -> str | None:
    """Return the method that the user named as the reference; a stream has none."""
    return result.against if isinstance(result, ComparisonResult) else None


def makes_claims(result: MethodTable) -> bool:
    """Whether there are tests over seeds. One or two seeds say nothing about methods."""
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
        few = "one seed is" if len(result.seeds) == 1 else "two seeds are"
        return (
            f"NO CLAIM about which is better: {few} too few for a statement over seeds. Another seed may change the "
            f"order; tests over {unit} hold for these weights only. Use five seeds."
        )
    reference = named_reference(result)
    test = f"two-sided test over seeds and {unit}, 5 %, Holm"
    if reference is not None:
        return f"= reference, {reference}; + better; - worse; no mark: not distinguishable ({test})"
    return f"{best}; {star} not distinguishable from it; no mark: worse ({test} over all pairs)"


# --- the table of tests -------------------------------------------------------------------------------------------


def verdicts_on(result: MethodTable, metric: str) -> list[Verdict]:
    """Return the verdicts on a metric, without that on the reference itself."""
    return [one for one in result.verdicts if one.metric == metric and one.method != one.against]


def tests_title(result: MethodTable, metric: str) -> str:
    """Return the title of the table of tests."""
    reference = verdicts_on(result, metric)[0].against
    these = "" if makes_claims(result) else ", with these weights only"
    return f"{shown_name(metric)}, difference to {reference}{these}; intervals and two-sided p-values after Holm"


def tests_head(result: MethodTable) -> list[str]:
    """Return the headings of the table of tests."""
    head = ["method", "difference", "95 % interval"]
    if makes_claims(result):
        head += [f"p, seeds and {result.unit}", "p, seeds"]
    return [*head, f"p, {result.unit}"]


def tests_rows(result: MethodTable, metric: str) -> list[list[str]]:
    """Return a row per method: the difference, its interval, and the p-values."""
    return [_tests_row(verdict) for verdict in verdicts_on(result, metric)]


def findings(result: MethodTable, metric: str) -> list[str]:
    """Return what the tests say about the methods, in sentences, with the best methods first."""
    sign = 1 if higher_is_better(metric) else -1
    groups: dict[str, list[Verdict]] = {"better": [], "worse": [], "not distinguishable": []}
    reference = ""
    for one in sorted(verdicts_on(result, metric), key=lambda one: -sign * one.shown.difference):
        reference = one.against
        groups[decide(one.shown, sign) if one.outcome == "no claim" else one.outcome].append(one)
    these = "" if makes_claims(result) else "With these weights, "
    sentences = []
    for outcome, found in groups.items():
        said = f"significantly {outcome}" if outcome in ("better", "worse") else f"{outcome} from {reference}"
        p_values = [_said_p_value(one.shown) for one in found]
        if len(found) == 1:
            sentences.append(f"{these}{found[0].method} is {said} ({p_values[0]}).")
        elif found:
            named = [f"{one.method} ({p_value})" for one, p_value in zip(found, p_values, strict=True)]
            sentences.append(f"{these}{joined(named)} are {said}.")
    return sentences


def joined(names: Sequence[str]) -> str:
    """Return names as a list; names may contain commas. Of many names, the first few and a count."""
    shown = names if len(names) <= NAMED + 1 else names[:NAMED]
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return ("; " if any("," in name for name in shown) else ", ").join(shown) + more


def _tests_row(verdict: Verdict) -> list[str]:
    tests = [test for test in (verdict.over_both, verdict.over_seeds, verdict.over_queries) if test is not None]
    first = verdict.shown
    interval = f"[{_signed(first.low)}, {_signed(first.high)}]"
    return [verdict.method, f"{first.difference:+z.4f}", interval, *(_p_value(test) for test in tests)]


def _signed(value: float) -> str:
    """Return a bound of an interval; one that is not 0 is not printed as 0."""
    text = f"{value:+z.4f}"
    return f"{value:+.0e}" if value != 0 and float(text) == 0 else text


def _p_value(test: TestFigures) -> str:
    """Return the p-value with two digits, or as many as show on which side of the level it is."""
    value = test.adjusted_p_value
    if value < SMALLEST_P:
        return f"<{SMALLEST_P:.0e}"
    texts = (f"{value:.{digits}g}" for digits in range(2, 18))
    return next(text for text in texts if (float(text) < LEVEL) == (value < LEVEL))


def _said_p_value(test: TestFigures) -> str:
    """Return the p-value as in ``p = .0009``."""
    text = _p_value(test)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text.removeprefix('0') if '.' in text else text}"
