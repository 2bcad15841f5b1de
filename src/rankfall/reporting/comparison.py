"""The table of a comparison: methods by metrics, for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from rankfall.reporting import charts
from rankfall.reporting.blocks import (
    ARROWS,
    DOWN,
    UP,
    Cell,
    Table,
    decimal,
    directions,
    flow,
    metric_cell,
    sentences,
    short,
    words,
)
from rankfall.reporting.charts import whole_ticks
from rankfall.reporting.figures import Lines
from rankfall.reporting.funnel import funnel_panels, has_funnel, method_steps, stages_in, steps_of
from rankfall.reporting.html import render
from rankfall.studies.compare import LEVEL, decide
from rankfall.studies.results import ComparisonResult
from rankfall.training.config.component_checks import JOINT, higher_is_better, shown_name, split_stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from rankfall.reporting.charts import Chart
    from rankfall.reporting.diagnosis import Advice
    from rankfall.reporting.figures import Record
    from rankfall.studies.results import (
        DayResult,
        EvaluationSummary,
        MethodResult,
        MethodTable,
        MethodTest,
        MetricSummary,
        RunFailure,
        StreamResult,
        TestFigures,
        Verdict,
    )
    from rankfall.training.cascade_metrics import StageFigures


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


FEW_QUERIES = 300  # below this number a difference of .01 is within the noise, and intervals are shown

_COLUMNS = ("mean", "std", "low", "high", "chance", "queries")
_TEST_COLUMNS = ("best", "difference", "p_value", "adjusted_p_value", "significantly_worse")
_TESTS = ("over_both", "over_seeds", "over_queries")
_FIGURES = ("difference", "low", "high", "p_value", "adjusted_p_value")
_VERDICT_COLUMNS = ("against", "outcome", *(f"{test}_{figure}" for test in _TESTS for figure in _FIGURES))


class MetricCell(NamedTuple):
    """A metric of a method, as text."""

    number: str
    interval: str  # empty if there are many queries
    best: bool  # has the best mean, in a table that makes claims
    mark: str  # the verdict, see :func:`rankfall.reporting.comparison.caption`


def terminal_table(result: MethodTable) -> RenderableType:
    """Return the table for the terminal, folded to its width. Besides bold text, marks show the best values."""
    from rich.console import Group
    from rich.text import Text

    from rankfall.reporting.terminal import FoldedTable, plain_table

    table = plain_table()
    table.add_column("method", style="cyan", no_wrap=True)
    for metric in result.metrics:
        heading = shown_name(metric).replace("/", "/\n")  # the stage above the metric
        table.add_column(f"{heading} {UP if higher_is_better(metric) else DOWN}", no_wrap=True)
    for name, cells in rows(result):
        table.add_row(name, *map(terminal_cell, cells))
    for name in result.incomplete:
        table.add_row(name, why_incomplete(result, name), style="red")
    table.add_section()
    table.add_row("chance", *chance_levels(result), style="dim")
    runs = " x ".join(count for count in repetitions(result) if not count.startswith("1 "))
    spread = f"±standard deviation over {runs}" if runs else ""
    marks = caption(result, best="< best mean").removesuffix(".") + f". {UP} higher is better, {DOWN} lower is better"
    marks += "\n[ ] 95 % confidence interval of the mean" * has_few_queries(result)
    stages = [split_stage(metric)[0] for metric in result.metrics]
    return Group(
        Text(f"test {result.unit}, mean{spread}", style="italic"),
        FoldedTable(table, groups=stages, repeat_single=True),
        Text(marks, style=caption_style(result)),
        *_terminal_tests(result),
    )


def _terminal_tests(result: MethodTable) -> Iterator[RenderableType]:
    """Yield the tests of the main metric, if there are any."""
    from rich.markup import escape
    from rich.text import Text

    from rankfall.reporting.terminal import FoldedTable, plain_table

    metric = main_metric(result)
    lines = tests_rows(result, metric)
    if not lines:
        return
    table = plain_table()
    for heading in tests_head(result):
        table.add_column(heading, no_wrap=True, style="cyan" if heading == "method" else None)
    for line in lines:
        table.add_row(*(escape(text) for text in line))
    yield Text(f"\n{tests_title(result, metric)}", style="italic")
    yield FoldedTable(table)
    yield Text(" ".join(findings(result, metric)))


def caption_style(result: MethodTable) -> str:
    """Return the style of the caption in a terminal: bold if there is no claim."""
    return "dim italic" if makes_claims(result) else "bold"


def markdown_table(result: MethodTable) -> str:
    """Return the table as Markdown, with the best values in bold."""
    lines = [["method", *map(shown_name, result.metrics)], ["---"] * (1 + len(result.metrics))]
    lines += [[name, *map(markdown_cell, cells)] for name, cells in rows(result)]
    lines += [[name, why_incomplete(result, name)] for name in result.incomplete]
    lines.append(["chance", *chance_levels(result)])
    below = f"{markdown_caption(result)}\nMean ± standard deviation over runs"
    below += ", [95 % confidence interval]." if has_few_queries(result) else "."
    return f"{markdown_lines(lines)}\n\n{below}\n{_markdown_tests(result)}"


def _markdown_tests(result: MethodTable) -> str:
    metric = main_metric(result)
    lines, head = tests_rows(result, metric), tests_head(result)
    if not lines:
        return ""
    table = markdown_lines([head, ["---"] * len(head), *lines])
    return f"\n{tests_title(result, metric)}:\n\n{table}\n\n{' '.join(findings(result, metric))}\n"


def markdown_lines(lines: list[list[str]]) -> str:
    """Return rows of cells as the lines of a Markdown table, whatever names of methods contain."""
    cells = ([" ".join(text.replace("\\", r"\\").replace("|", r"\|").splitlines()) for text in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def csv_table(result: MethodTable) -> str:
    """Return one line per method and metric, with its test over queries and its verdict."""
    tests, verdicts = _tests(result), verdicts_by_method(result)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "metric", *_COLUMNS, *_TEST_COLUMNS, *_VERDICT_COLUMNS])
    for method in result.methods:
        for metric, summary in method.metrics.items():
            test = tests[metric, method.name]
            row = [getattr(summary, column) for column in _COLUMNS] + [
                getattr(test, column) for column in _TEST_COLUMNS
            ]
            row = [method.name, metric, *row, *_verdict_columns(verdicts.get((metric, method.name)))]
            writer.writerow([_plain(value) if isinstance(value, str) else value for value in row])
    return text.getvalue()


def _plain(text: str) -> str:
    """Return a text that spreadsheets do not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _verdict_columns(verdict: Verdict | None) -> list[str | float]:
    if verdict is None:
        return [""] * len(_VERDICT_COLUMNS)
    cells: list[str | float] = [verdict.against, verdict.outcome]
    for name in _TESTS:
        test = getattr(verdict, name)
        cells += ["" if test is None else getattr(test, figure) for figure in _FIGURES]
    return cells


# --- parts that all tables of methods share -----------------------------------------------------------------------


def rows(result: MethodTable, metrics: Sequence[str] | None = None) -> Iterator[tuple[str, list[MetricCell]]]:
    """Yield the name of each method and a cell for each metric, of all metrics by default."""
    verdicts, reference, few = verdicts_by_method(result), named_reference(result), has_few_queries(result)
    for method in result.methods:
        cells = [
            cell(method.metrics[name], verdicts.get((name, method.name)), few, reference)
            for name in metrics or result.metrics
        ]
        yield method.name, cells


def verdicts_by_method(result: MethodTable) -> dict[tuple[str, str], Verdict]:
    """Return the verdicts by metric and method."""
    return {(one.metric, one.method): one for one in result.verdicts}


def cell(
    summary: MetricSummary, verdict: Verdict | None, few_queries: bool, reference: str | None = None
) -> MetricCell:
    """Return the cell of one metric of one method; `reference` is a method that the user named."""
    return MetricCell(
        # a single run has no standard deviation
        number=short(summary.mean) + (f"±{short(summary.std)}" if len(summary.values) > 1 else ""),
        interval=f"[{short(summary.low)}, {short(summary.high)}]" if few_queries else "",
        best=reference is None and verdict is not None and verdict.outcome == "reference",
        mark=mark(verdict, reference),
    )


def terminal_cell(cell: MetricCell) -> str:
    """Return a cell with the markup of rich."""
    number = f"[bold]{cell.number} <[/]" if cell.best else f"{cell.number} {cell.mark}".rstrip()
    return f"{number}\n\\{cell.interval}" if cell.interval else number  # rich reads an unescaped bracket as markup


def markdown_cell(cell: MetricCell) -> str:
    """Return a cell as Markdown."""
    number = f"**{cell.number}**" if cell.best else cell.number
    return " ".join(filter(None, [number, cell.mark.replace("*", "\\*"), cell.interval]))


def chance_levels(result: MethodTable, metrics: Sequence[str] | None = None) -> list[str]:
    """Return the chance level of each metric; none if no method has results.

    What a stage loses has none: a random cascade loses little at a late stage, because little arrives there.
    """
    if not result.methods:
        return []
    levels = result.methods[0].metrics
    return ["" if name.endswith("/lost") else short(levels[name].chance) for name in metrics or result.metrics]


def why_incomplete(result: MethodTable, method: str) -> str:
    """Return the text in place of the metrics of a method: a stream may still continue, a comparison has failed."""
    failed = any(failure.method == method for failure in result.failed)
    return "failed" if failed or result.unit == "queries" else "not finished"


def repetitions(result: MethodTable) -> list[str]:
    """Return how often methods were trained, such as ``["5 folds", "1 seed"]``; a stream has no folds."""
    counts = {"folds": len(result.folds)} if isinstance(result, ComparisonResult) else {}
    counts["seeds"] = len(result.seeds)
    return [f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items()]


def markdown_caption(result: MethodTable, unit: str | None = None) -> str:
    """Return the explanation of the marks as Markdown."""
    text = caption(result, best="**best mean**", star="\\*", unit=unit)
    return f"{text.rstrip('.')}."


def has_few_queries(result: MethodTable) -> bool:
    """Whether confidence intervals are shown. Over days they are not: the curves show how days differ."""
    if result.unit == "days":
        return False
    counts = [summary.queries for method in result.methods for summary in method.metrics.values()]
    return bool(counts) and min(counts) < FEW_QUERIES


def _tests(result: MethodTable) -> dict[tuple[str, str], MethodTest]:
    return {(test.metric, test.method): test for test in result.tests}


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


BLOCKS = "▁▂▃▄▅▆▇█"
CURVE = 60  # characters of a curve, at most
SHOWN = 60  # days of a table, the last ones


def curves(result: StreamResult, metric: str | None = None) -> dict[str, list[tuple[int, float]]]:
    """Return the mean of a metric, by default that of the stream, by the number of the day, for each method."""
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    points: dict[str, list[tuple[int, float]]] = {}
    for entry in result.days:
        for method in entry.methods:
            mean = method.metrics[metric or result.metric].mean
            points.setdefault(method.name, []).append((numbers[entry.day], mean))
    return points


def chance_curve(result: StreamResult) -> list[tuple[int, float]]:
    """Return the chance level of the metric of the stream by the number of the day."""
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    measured = [entry for entry in result.days if entry.methods]
    return [(numbers[entry.day], entry.methods[0].metrics[result.metric].chance) for entry in measured]


def day_rows(result: StreamResult) -> Iterator[tuple[str, dict[str, MetricCell], str]]:
    """Yield the name of each day, a cell for each measured method, and the chance level."""
    metric = result.metric
    for entry in result.days:
        verdicts = {verdict.method: verdict for verdict in entry.verdicts if verdict.metric == metric}
        summaries = {method.name: method.metrics[metric] for method in entry.methods}
        cells = {name: cell(summary, verdicts.get(name), few_queries=False) for name, summary in summaries.items()}
        yield entry.day, cells, short(next(iter(summaries.values())).chance) if summaries else ""


def markdown_tables(result: StreamResult) -> str:
    """Return the table of all days together, then that of the single days."""
    names = _measured_methods(result)
    if not names:
        return markdown_table(result)
    lines = [["day", *names, "chance"], ["---"] * (2 + len(names))]
    for day, cells, chance in day_rows(result):
        texts = [markdown_cell(cells[name]) if name in cells else "" for name in names]
        lines.append([day, *texts, chance])
    below = f"{_day_title(result)}. {markdown_caption(result, 'impressions')}"
    warnings = "".join(f"\nWarning: {text}.\n" for text in result.warnings)
    return f"{markdown_table(result)}\n{markdown_lines(lines)}\n\n{below}\n{warnings}"


# --- the terminal -------------------------------------------------------------------------------------------------


def terminal_stream(result: StreamResult) -> RenderableType:
    """Return the table of all days together, the curves, and the table of the single days."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if result.methods and result.unit == "days":
        parts += [terminal_table(result), Text()]
    if curves(result):  # days with too few relevant items are not measured
        parts += [_terminal_curves(result), Text(), _terminal_days(result)]
    return Group(*parts)


def _terminal_curves(result: StreamResult) -> RenderableType:
    """Return a line per method, all on one scale."""
    from rich.console import Group
    from rich.text import Text

    from rankfall.reporting.terminal import plain_table

    found = {**curves(result), "chance": chance_curve(result)}
    values = [value for points in found.values() for _, value in points]
    low, high = min(values), max(values)
    table = plain_table()
    for heading in ("method", "", "first", "last"):
        table.add_column(heading, no_wrap=True, style="cyan" if heading == "method" else None)
    for name, points in found.items():
        by_day = dict(points)
        curve = [by_day.get(number) for number in range(2, len(result.learned) + 1)]
        table.add_row(name, sparkline(curve, low, high), short(points[0][1]), short(points[-1][1]))
    title = f"{result.metric} day by day, from {short(low)} (lowest) to {short(high)} (highest)"
    return Group(Text(title, style="italic"), table)


def sparkline(values: Sequence[float | None], low: float, high: float, *, width: int = CURVE) -> str:
    """Return one character per value, or per mean of neighbours if there are too many.

    >>> sparkline([0.1, 0.5, None, 0.9], 0.1, 0.9)
    '▁▅ █'
    """
    size = -(-len(values) // width) or 1
    groups = [[one for one in values[i : i + size] if one is not None] for i in range(0, len(values), size)]
    spread = (high - low) or 1.0
    return "".join(
        BLOCKS[min(int((sum(group) / len(group) - low) / spread * len(BLOCKS)), len(BLOCKS) - 1)] if group else " "
        for group in groups
    )


def _terminal_days(result: StreamResult) -> RenderableType:
    """Return one row per day and one column per method, folded to the width of the terminal."""
    from rich.console import Group
    from rich.text import Text

    from rankfall.reporting.terminal import FoldedTable, plain_table

    days, names = list(day_rows(result)), _measured_methods(result)
    left_out = len(days) - SHOWN
    title = _day_title(result) + (f"; {left_out} earlier days are in stream.json" if left_out > 0 else "")
    table = plain_table()
    table.add_column("day", no_wrap=True, style="cyan")
    for name in names:
        table.add_column(_wrapped(name, [cells[name].number for _, cells, _ in days if name in cells]))
    table.add_column("chance", style="dim")
    for day, cells, chance in days[-SHOWN:]:
        texts = (terminal_cell(cells[name]) if name in cells else "" for name in names)
        table.add_row(day, *texts, chance)
    marks = Text(caption(result, best="< best mean", unit="impressions"), style=caption_style(result))
    return Group(Text(title, style="italic"), FoldedTable(table), marks)


def _wrapped(name: str, numbers: Sequence[str]) -> str:
    """Return a heading that is not wider than its column, if its words allow."""
    width = max([*map(len, name.split()), *(len(number) + 2 for number in numbers)])
    return textwrap.fill(name, width, break_long_words=False, break_on_hyphens=False)


def _day_title(result: StreamResult) -> str:
    return f"{result.metric} of each day, with the weights before it"


def _measured_methods(result: StreamResult) -> list[str]:
    """Return the methods that were measured on any day, in the order of the stream."""
    measured = {method.name for entry in result.days for method in entry.methods}
    return [name for name in dict.fromkeys(run.method for run in result.runs) if name in measured]


PAGE_DAYS = 14  # days of the table, the last ones; earlier days are folded


def stream_page(result: StreamResult, *, title: str, config: str = "", command: str = "") -> str:
    """Return the page of a stream as HTML; `command` repeats the stream."""
    return render("stream.html", title, config=config, command=command, advice=None, **stream_content(result))


def stream_content(result: StreamResult) -> dict[str, Any]:
    """Return the parts of the page of a stream that show its result, for the template."""
    days, earlier = _day_tables(result)
    metric = main_metric(result)
    return {
        **method_sections(result, metric),
        "about": _about(result),
        "funnels": _day_funnels(result, metric),
        "warnings": sentences(result.warnings),
        "settings": None,
        "curves": _curves(result),
        "days": days,
        "earlier_days": earlier,
        "refused": failure_table(result.refused),
    }


def stream_figure(result: StreamResult) -> Lines:
    """Return the stream's metric on each day, with bands of one standard deviation, and the lead over the first."""
    metric, seeds, days = result.metric, len(result.seeds), result.learned
    first = result.methods[0].name if len(result.methods) > 1 else None
    rows: list[Record] = []
    for entry in result.days:
        number = days.index(entry.day) + 1
        rows += _points(entry, number, metric, seeds)
        rows += _leads(entry, number, metric, first) if first else []
    rows += [{"series": "chance", "x": number, "y": level, "panel": metric} for number, level in chance_curve(result)]
    bands = f", bands of one standard deviation over {seeds} seeds" if seeds > 1 else ""
    return Lines(
        rows=sorted(rows, key=lambda row: row["panel"] != metric),
        title=f"{metric} of each day, with the weights before it",
        subtitle=f"{len(days)} days, first {days[0]}{bands}",
        x="day",
        y=metric,
        series="method",
        ticks=whole_ticks([row["x"] for row in rows]),
    )


def _about(result: StreamResult) -> str:
    days = result.learned
    if len(days) == 1:
        return f"One day, {days[0]}, has been trained on. Later days are measured before they are trained on."
    span = f"{len(days)} days, {days[0]} to {days[-1]}"
    return f"{span}. Each day was measured with the weights before it, then trained on once."


def _day_funnels(result: StreamResult, metric: str) -> Chart | None:
    """Return the funnels of the last day that was measured."""
    measured = [entry for entry in result.days if entry.methods]
    if not measured:
        return None
    last = measured[-1]
    about = f"The last measured day, {last.day}, before it was trained on: means over {last.impressions:,} impressions."
    return method_funnels(last.methods, metric, caption=about)


def _curves(result: StreamResult) -> Chart | None:
    """Return the metric of the stream and what each stage lost, day by day."""
    found = curves(result)
    if not found:
        return None
    stages = stages_in(result.metrics)
    metric = shown_name(result.metric)
    panels = {metric: {**found, "chance": chance_curve(result)}} | {
        f"lost at {stage}": curves(result, f"{stage}/lost") for stage in stages
    }
    ends = ", ".join(f"{name} from {short(points[0][1])} to {short(points[-1][1])}" for name, points in found.items())
    label = f"{metric} of each day, with the weights before it: {ends}"
    arrow = "higher" if higher_is_better(result.metric) else "lower"
    caption = f"By number of the day; the first, {result.learned[0]}, is not measured. {metric}: {arrow} is better"
    caption += "; lost, as a share of the relevant items: lower is better." if stages else "."
    return charts.curve_panels(panels, label=label, caption=caption, title="Day by day")


def _day_tables(result: StreamResult) -> tuple[Table | None, Table | None]:
    """Return the tables of the last days and of the days before them."""
    names = list(curves(result))
    body: list[list[str | Cell]] = [
        [day, *(metric_cell(cells[name]) if name in cells else "none" for name in names), chance]
        for day, cells, chance in day_rows(result)
    ]
    head = ["day", *names, "chance"]
    marks = f" {caption(result, best='Bold: best mean', unit='impressions')}." if makes_claims(result) else ""
    below = f"{shown_name(result.metric)}, mean over impressions.{marks}"
    last, earlier = body[-PAGE_DAYS:], body[:-PAGE_DAYS]
    return Table(head, last, caption=below) if last else None, Table(head, earlier) if earlier else None


def _points(entry: DayResult, number: int, metric: str, seeds: int) -> list[Record]:
    points: list[Record] = []
    for method in entry.methods:
        summary = method.metrics[metric]
        point = {"series": method.name, "x": number, "y": summary.mean, "panel": metric}
        ends = {"low": summary.mean - summary.std, "high": summary.mean + summary.std} if seeds > 1 else {}
        points.append(point | ends)
    return points


def _leads(entry: DayResult, number: int, metric: str, first: str) -> list[Record]:
    """Return how far methods are ahead of the first on a day."""
    means = {method.name: method.metrics[metric].mean for method in entry.methods}
    if first not in means:
        return []
    panel = f"ahead of {first}"
    return [{"series": name, "x": number, "y": mean - means[first], "panel": panel} for name, mean in means.items()]
