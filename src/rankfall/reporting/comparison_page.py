"""The page of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting import charts
from rankfall.reporting.charts import Bar
from rankfall.reporting.comparison_table import caption, chance_levels, repetitions, rows, short, why_incomplete
from rankfall.reporting.page import Cell, Table, decimal, flow, metric_cell, render, words
from rankfall.training.cascade_metrics import JOINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from rankfall.studies.results import ComparisonResult, MethodTable, MethodTest, RunFailure

SMALLEST_P = 1e-99  # smaller p-values are not told apart


def comparison_page(
    result: ComparisonResult, *, title: str, about: str = "", config: str = "", command: str = ""
) -> str:
    """Return the page of a comparison as HTML.

    Args:
        result: the result.
        title: title of the page.
        about: a sentence about what was compared.
        config: the configuration as YAML.
        command: a command that repeats the comparison.
    """
    metric = JOINT if JOINT in result.metrics else result.metrics[0]
    content = method_sections(result, metric)
    content["settings"] = _settings_table(result)
    return render("comparison.html", title, about=about, config=config, command=command, **content)


def method_sections(result: MethodTable, metric: str) -> dict[str, Any]:
    """Return the parts of a page that comparisons and streams share, for the template."""
    tests = [test for test in result.tests if test.metric == metric]
    return {
        "metric": metric,
        "finding": _finding(result, metric, tests),
        "methods": _methods_table(result),
        "intervals": _intervals(result, metric),
        "losses": _losses(result),
        "best": tests[0].best if tests else "",
        "tests": _tests_table(metric, tests),
        "failures": failure_table(result.failed),
        "settings": None,
    }


def failure_table(failures: Sequence[RunFailure]) -> Table | None:
    """Return the table of failed runs, if there are any."""
    body: list[list[str | Cell]] = [
        [failure.method, words(f"{failure.run}: {failure.message}")] for failure in failures
    ]
    return Table(["method", "run"], body) if body else None


def _finding(result: MethodTable, metric: str, tests: Sequence[MethodTest]) -> str:
    """Return the outcome in words."""
    if not tests:
        return "No method finished."
    best = tests[0].best
    summary = next(method.metrics[metric] for method in result.methods if method.name == best)
    worse = [test.method for test in tests if test.significantly_worse]
    close = [test.method for test in tests if test.method not in (best, *worse)]
    failures = {failure.method for failure in result.failed}
    failed = [name for name in result.incomplete if name in failures]
    text = f"{best} has the best {metric}, {short(summary.mean)}; chance is {short(summary.chance)}."
    for heading, names in (("Significantly worse", worse), ("Not significantly worse", close), ("Failed", failed)):
        if names:
            text += f" {heading}: {_joined(names)}."
    return text


def _joined(names: Sequence[str]) -> str:
    """Return names as a list; names may contain commas."""
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _methods_table(result: MethodTable) -> Table:
    body: list[list[str | Cell]] = [[name, *map(metric_cell, cells)] for name, cells in rows(result)]
    body += [[name, why_incomplete(result, name)] for name in result.incomplete]
    runs = " x ".join(count for count in reversed(repetitions(result)) if not count.startswith("1 "))
    spread = f" ± standard deviation over {runs}" if runs else ""
    return Table(
        ["method", *result.metrics],
        body,
        soft=[["chance", *chance_levels(result)]] if result.methods else [],
        caption=f"Mean over {result.unit}{spread}. Bold: best. {caption(result.unit)}",
        staged=True,
    )


def _intervals(result: MethodTable, metric: str) -> Markup | None:
    summaries = {method.name: method.metrics[metric] for method in result.methods}
    if not summaries or result.unit == "days":  # days differ because training continues
        return None
    label = f"{metric} of each method: " + ", ".join(f"{name} {short(one.mean)}" for name, one in summaries.items())
    return charts.intervals([(name, one.low, one.mean, one.high) for name, one in summaries.items()], label=label)


def _losses(result: MethodTable) -> Markup | None:
    """Return a bar per method: the share of relevant items in the result, and the shares lost at each stage."""
    stages = [metric.removesuffix("/lost") for metric in result.metrics if metric.endswith("/lost")]
    if not stages or not result.methods:
        return None
    names = [JOINT, *(f"{stage}/lost" for stage in stages)]
    shares = [(method.name, [method.metrics[name].mean for name in names]) for method in result.methods]
    shares.append(("chance", [result.methods[0].metrics[name].chance for name in names]))
    drawn = [
        Bar(f"{name}: {', '.join(map(short, pieces))}", [(share, number) for number, share in enumerate(pieces)])
        for name, pieces in shares
    ]
    legend: dict[str, int | None] = {"in the result": 0}
    legend |= {f"lost at {stage}": number for number, stage in enumerate(stages, 1)}
    label = f"Shares of the relevant items, {', '.join(legend)}: " + "; ".join(bar.name for bar in drawn)
    return charts.bars(drawn, legend, label=label)


def _tests_table(metric: str, tests: Sequence[MethodTest]) -> Table | None:
    body = [
        [
            test.method,
            f"{test.difference:+z.4f}",
            f"[{test.low:+z.4f}, {test.high:+z.4f}]",
            _p_value(test.adjusted_p_value),
        ]
        for test in tests
        if test.method != test.best
    ]
    head = ["method", f"{metric}, difference", "95 % interval, two-sided", "p, one-sided (Holm)"]
    return Table(head, body) if body else None


def _p_value(value: float) -> str:
    return f"{value:.2g}" if value >= SMALLEST_P else f"<{SMALLEST_P:.0e}"


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
