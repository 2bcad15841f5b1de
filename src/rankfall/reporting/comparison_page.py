"""The page of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting import charts
from rankfall.reporting.comparison_table import chance_levels, repetitions, rows, short, why_incomplete
from rankfall.reporting.funnel_chart import funnel_panels, has_funnel, method_steps, steps_of
from rankfall.reporting.page import (
    ARROWS,
    Cell,
    Table,
    decimal,
    directions,
    flow,
    metric_cell,
    render,
    sentences,
    words,
)
from rankfall.reporting.verdicts import (
    caption,
    findings,
    joined,
    main_metric,
    makes_claims,
    named_reference,
    tests_head,
    tests_rows,
    tests_title,
)
from rankfall.training.config.component_checks import higher_is_better, shown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reporting.advice import Advice
    from rankfall.reporting.chart import Chart
    from rankfall.studies.results import ComparisonResult, EvaluationSummary, MethodResult, MethodTable, RunFailure
    from rankfall.training.cascade_metrics import StageFigures

PRODUCTION = "production"


def comparison_page(
    result: ComparisonResult,
    *,
    title: str,
    about: str = "",
    config: str = "",
    command: str = "",
    measured: Sequence[EvaluationSummary] = (),
    advice: Advice | None = None,
) -> str:
    """Return the page of a comparison as HTML.

    Args:
        result: the result.
        title: title of the page.
        about: a sentence about what was compared.
        config: the configuration as YAML.
        command: a command that repeats the comparison.
        measured: evaluations of the runs, for quotas and the funnel of production.
        advice: what to do next, for the end of the page.
    """
    content = comparison_content(result, measured)
    return render("comparison.html", title, about=about, config=config, command=command, advice=advice, **content)


def comparison_content(result: ComparisonResult, measured: Sequence[EvaluationSummary] = ()) -> dict[str, Any]:
    """Return the parts of the page of a comparison that show its result, for the template."""
    metric = main_metric(result)
    return {
        **method_sections(result, metric),
        "funnels": _funnels(result, metric, measured),
        "warnings": sentences(result.warnings),
        "settings": _settings_table(result),
    }


def method_sections(result: MethodTable, metric: str) -> dict[str, Any]:
    """Return the parts of a page that comparisons and streams share, for the template."""
    return {
        "metric": shown_name(metric),
        "finding": _finding(result, metric),
        "methods": _methods_table(result, metric),
        "intervals": intervals_chart(result, metric),
        "tests": _tests_table(result, metric),
        "failures": failure_table(result.failed),
    }


def method_funnels(
    methods: Sequence[MethodResult],
    metric: str,
    *,
    quotas: Mapping[str, int] | None = None,
    production: Sequence[StageFigures] | None = None,
    caption: str = "",
) -> Chart | None:
    """Return the funnels of all methods side by side, and that of production; None if there is no cascade."""
    if not methods or not has_funnel(list(methods[0].metrics)):
        return None
    funnels = {method.name: method_steps(method.metrics, quotas) for method in methods}
    notes = {method.name: f"{shown_name(metric)} {short(method.metrics[metric].mean)}" for method in methods}
    if production:
        funnels[PRODUCTION] = steps_of(production)
        notes[PRODUCTION] = "the system that wrote the log"
    return funnel_panels(funnels, notes, caption=caption)


def failure_table(failures: Sequence[RunFailure]) -> Table | None:
    """Return the table of failed runs, if there are any."""
    body: list[list[str | Cell]] = [
        [failure.method, words(f"{failure.run}: {failure.message}")] for failure in failures
    ]
    return Table(["method", "run"], body) if body else None


def _finding(result: MethodTable, metric: str) -> str:
    """Return the outcome in words."""
    means = {method.name: method.metrics[metric] for method in result.methods}
    if not means:
        return "No method finished."
    verdicts = {verdict.method: verdict for verdict in result.verdicts if verdict.metric == metric}
    sentences = []
    if verdicts:
        reference = next(iter(verdicts.values())).against
        figures = f"{short(means[reference].mean)}; chance is {short(means[reference].chance)}."
        best = f"has the best {shown_name(metric)}" + " with these weights" * (not makes_claims(result))
        role = f"is the reference, with {shown_name(metric)}" if named_reference(result) else f"{best},"
        sentences.append(f"{reference} {role} {figures}")
    if not makes_claims(result):
        sentences.append(caption(result, best=""))
    sentences += findings(result, metric)
    failures = {failure.method for failure in result.failed}
    failed = [name for name in result.incomplete if name in failures]
    sentences += [f"Failed: {joined(failed)}."] * bool(failed)
    return " ".join(sentences)


def _funnels(result: ComparisonResult, metric: str, measured: Sequence[EvaluationSummary]) -> Chart | None:
    first = next((one for one in measured if one.funnel), None)
    quotas = {one.stage: one.quota for one in first.funnel or ()} if first else None
    about = f"Shares of the relevant items, means over {result.unit}."
    return method_funnels(
        result.methods, metric, quotas=quotas, production=first.production if first else None, caption=about
    )


def _methods_table(result: MethodTable, metric: str) -> Table:
    names = [metric, *(name for name in result.metrics if name != metric)]
    body: list[list[str | Cell]] = [[name, *map(metric_cell, cells)] for name, cells in rows(result, names)]
    body += [[name, why_incomplete(result, name)] for name in result.incomplete]
    runs = " x ".join(count for count in reversed(repetitions(result)) if not count.startswith("1 "))
    spread = f" ± standard deviation over {runs}" if runs else ""
    marks = f" {caption(result, best='Bold: best mean')}." if makes_claims(result) else ""
    return Table(
        ["method", *map(shown_name, names)],
        body,
        soft=[["chance", *chance_levels(result, names)]] if result.methods else [],
        caption=f"Mean over {result.unit}{spread}.{marks} {ARROWS}",
        staged=True,
        better=directions(names),
    )


def intervals_chart(result: MethodTable, metric: str) -> Chart | None:
    """Return the mean of each method with its interval, the best one first."""
    if not result.methods or result.unit == "days":  # days differ because training continues
        return None
    ordered = sorted(
        ((method.name, method.metrics[metric]) for method in result.methods),
        key=lambda one: one[1].mean,
        reverse=higher_is_better(metric),
    )
    title = f"{shown_name(metric)} of each method"
    label = f"{title}: " + ", ".join(f"{name} {short(one.mean)}" for name, one in ordered)
    better = "higher" if higher_is_better(metric) else "lower"
    return charts.intervals(
        [(name, one.low, one.mean, one.high) for name, one in ordered],
        label=label,
        title=title,
        caption=f"Means with 95 % confidence intervals over {result.unit}, the best first; {better} is better. The "
        "axis does not start at 0.",
    )


def _tests_table(result: MethodTable, metric: str) -> Table | None:
    body = tests_rows(result, metric)
    return Table(tests_head(result), body, caption=f"{tests_title(result, metric)}.") if body else None


def _settings_table(result: ComparisonResult) -> Table | None:
    """Return the chosen settings by method and fold with their validation metric, if there was a choice."""
    if not any(settings for method in result.methods for settings in (method.settings or {}).values()):
        return None
    body: list[list[str | Cell]] = []
    for method in result.methods:
        for fold, settings in (method.settings or {}).items():
            runs = [run for run in method.runs or [] if run.fold == fold]
            values = [run.validation for run in runs if run.validation is not None]
            name = method.name if len(result.folds) == 1 else f"{method.name}, {fold}"
            mean = decimal(sum(values) / len(values)) if values else "none"
            body.append([name, words(flow(settings) or "nothing to choose"), mean])
    return Table(["method", "settings", "validation"], body)
