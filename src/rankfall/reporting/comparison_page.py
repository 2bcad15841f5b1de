"""The page of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting import charts
from rankfall.reporting.charts import Bar
from rankfall.reporting.comparison_table import chance_levels, repetitions, rows, short, why_incomplete
from rankfall.reporting.page import Cell, Table, decimal, flow, metric_cell, render, words
from rankfall.reporting.verdicts import (
    caption,
    main_metric,
    makes_claims,
    named_reference,
    tests_head,
    tests_rows,
    tests_title,
    verdicts_on,
)
from rankfall.training.cascade_metrics import JOINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from rankfall.studies.results import ComparisonResult, MethodTable, RunFailure


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
    content = method_sections(result, main_metric(result))
    content["settings"] = _settings_table(result)
    return render("comparison.html", title, about=about, config=config, command=command, **content)


def method_sections(result: MethodTable, metric: str) -> dict[str, Any]:
    """Return the parts of a page that comparisons and streams share, for the template."""
    return {
        "metric": metric,
        "finding": _finding(result, metric),
        "methods": _methods_table(result),
        "intervals": _intervals(result, metric),
        "losses": _losses(result),
        "tests": _tests_table(result, metric),
        "tests_title": tests_title(result, metric) if verdicts_on(result, metric) else "",
        "failures": failure_table(result.failed),
        "settings": None,
    }


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
        best = f"has the best {metric}" + " with this seed" * (not makes_claims(result))
        role = f"is the reference, with {metric}" if named_reference(result) else f"{best},"
        sentences.append(f"{reference} {role} {figures}")
    if not makes_claims(result):
        sentences.append(caption(result, best=""))
    over = f"over seeds and {result.unit}"
    groups = {
        "better": f"Better {over}",
        "worse": f"Worse {over}",
        "not distinguishable": "Not distinguishable from it",
    }
    for outcome, heading in groups.items():
        names = [name for name, verdict in verdicts.items() if verdict.outcome == outcome]
        sentences += [f"{heading}: {_joined(names)}."] * bool(names)
    failures = {failure.method for failure in result.failed}
    failed = [name for name in result.incomplete if name in failures]
    sentences += [f"Failed: {_joined(failed)}."] * bool(failed)
    return " ".join(sentences)


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
        caption=f"Mean over {result.unit}{spread}. {caption(result, best='Bold: best mean')}",
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


def _tests_table(result: MethodTable, metric: str) -> Table | None:
    body = tests_rows(result, metric)
    return Table(tests_head(result), body) if body else None


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
