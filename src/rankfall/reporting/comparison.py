"""Comparisons and streams: blocks for terminals and pages, Markdown, CSV and figures."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Literal

from rankfall.reporting import charts
from rankfall.reporting.blocks import (
    ARROWS,
    Block,
    Cell,
    Code,
    Columns,
    Details,
    Row,
    Section,
    Table,
    Text,
    decimal,
    directions,
    flow,
    warned,
    words,
)
from rankfall.reporting.charts import short
from rankfall.reporting.diagnosis import advice_blocks
from rankfall.reporting.funnel import funnel_panels, has_funnel, method_steps, stages_in, steps_of
from rankfall.studies.compare import LEVEL, decide
from rankfall.studies.comparison_plan import point_name, value_text
from rankfall.studies.results import ComparisonResult
from rankfall.training.config.component_checks import JOINT, higher_is_better, shown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reporting.charts import Chart
    from rankfall.reporting.diagnosis import Advice
    from rankfall.studies.results import (
        EvaluationSummary,
        MethodResult,
        MethodTable,
        MetricSummary,
        RunFailure,
        StreamResult,
        TestFigures,
        Verdict,
    )
    from rankfall.training.cascade_metrics import StageFigures

FEW_QUERIES = 300  # below this number a difference of .01 is within the noise, and intervals are shown
SMALLEST_P = 1e-99  # smaller p-values are shown as smaller than this
NAMED = 3  # methods of a sentence
SHOWN = 14  # days of a table, the last ones; a page folds earlier days
BLOCKS = "▁▂▃▄▅▆▇█"
CURVE = 60  # characters of a curve, at most
PRODUCTION = "production"
LOGARITHMIC = 20  # ratio of the largest to the smallest swept value, from which on an axis is logarithmic

_MARKS = {"not distinguishable": "*"}
_MARKS_AGAINST = {"reference": "=", "better": "+", "worse": "-"}
_COLUMNS = ("mean", "std", "low", "high", "chance", "queries")
_SHOWN_INTERVALS = 2  # methods of a table of days with intervals, which leave no room for more
_TEST_COLUMNS = ("best", "difference", "p_value", "adjusted_p_value", "significantly_worse")
_TESTS = ("over_both", "over_seeds", "over_queries")
_FIGURES = ("difference", "low", "high", "p_value", "adjusted_p_value")
_VERDICT_COLUMNS = ("against", "outcome", *(f"{test}_{figure}" for test in _TESTS for figure in _FIGURES))


# --- comparisons --------------------------------------------------------------------------------------------------


def comparison_blocks(result: MethodTable) -> list[Block]:
    """Return the table of methods, the tests of the main metric, and the outcome in words."""
    metric = main_metric(result)
    claims = [] if makes_claims(result) else [Text(marks(result), style="bold")]
    tests = _tests_table(result, metric)
    pivot = [pivot_table(result, metric)] if swept_keys(result) else []
    return [_methods_table(result), *claims, *pivot, *([tests] if tests else []), Text(finding(result, metric))]


def comparison_page_blocks(
    result: ComparisonResult,
    *,
    about: str = "",
    config: str = "",
    command: str = "",
    measured: Mapping[str, EvaluationSummary] | None = None,
    advice: Advice | None = None,
) -> list[Block]:
    """Return the blocks of the page of a comparison.

    Args:
        result: the result.
        about: a sentence about what was compared.
        config: the configuration as YAML.
        command: a command that repeats the comparison.
        measured: the evaluation of a run of each method, for quotas and the funnel of production.
        advice: what to do next, for the end of the page.
    """
    measured = measured or {}
    quotas = {name: {one.stage: one.quota for one in found.funnel or ()} for name, found in measured.items()}
    production = next((found.production for found in measured.values() if found.funnel), None)
    caption = f"Shares of the relevant items, means over {result.unit}."
    funnels = _method_funnels(
        result.methods, main_metric(result), quotas=quotas, production=production, caption=caption
    )
    further: list[Block] = [Section("What to do next", advice_blocks(advice))] if advice else []
    return [
        *([Text(about, "soft")] if about else []),
        *_page_blocks(result, funnels, [], _settings_table(result)),
        *further,
        *_how_to_repeat(command, config),
    ]


def _page_blocks(
    result: ComparisonResult | StreamResult, funnels: Chart | None, days: Sequence[Block], settings: Table | None = None
) -> list[Block]:
    """Return the blocks that pages of comparisons and streams share, with those of the days of a stream."""
    metric, warnings = main_metric(result), warned(result.warnings)
    claims = "" if makes_claims(result) else f" {marks(result)}"
    intervals, tests = intervals_chart(result, metric), _tests_table(result, metric)
    failed = failure_table(result.failed)
    drawn: list[Block] = [funnels] if funnels else []
    if drawn and swept_keys(result):
        drawn = [Details("Funnels of all points", drawn)]
    below: list[list[Block]] = [
        [Section(heading, [table])]
        for heading, table in (("Settings chosen on validation data", settings), ("Failed runs", failed))
        if table
    ]
    return [
        Text(f"{finding(result, metric)}{claims}", "lead"),
        *([Section("Funnels", [*drawn, *warnings])] if drawn else warnings),
        *([Section(shown_name(metric), [intervals])] if intervals else []),
        *sweep_sections(result),
        *days,
        Section("All metrics", [_methods_table(result)]),
        *([Section("Tests", [tests])] if tests else []),
        *([Columns(below)] if below else []),
    ]


def _how_to_repeat(command: str, config: str) -> list[Block]:
    found: list[Block] = [Code(command)] if command else []
    found += [Code(config, name="configuration")] if config else []
    return [Section("How to repeat it", found)] if found else []


def _methods_table(result: MethodTable) -> Table:
    """Return methods by metrics, the main metric first."""
    metric = main_metric(result)
    names = [metric, *(name for name in result.metrics if name != metric)]
    runs = " x ".join(count for count in repetitions(result) if not count.startswith("1 "))
    spread = f" ± standard deviation over {runs}" * bool(runs)
    meaning = f" {marks(result, best='Bold: best mean').rstrip('.')}." * makes_claims(result)
    intervals = " In brackets: 95 % confidence intervals." * (has_few_queries(result) and not runs)
    incomplete: list[Row] = [[name, Cell(why_incomplete(result, name), "failed")] for name in result.incomplete]
    return Table(
        ["method", *map(shown_name, names)],
        [*method_rows(result, names), *incomplete],
        soft=[["chance", *chance_levels(result, names)]] if result.methods else [],
        caption=f"Mean over {result.unit}{spread}.{meaning} {ARROWS}{intervals}",
        staged=True,
        better=directions(names),
        framed=False,
    )


def method_rows(result: MethodTable, metrics: Sequence[str]) -> list[Row]:
    """Return the name of each method and a cell for each metric."""
    verdicts = {(one.metric, one.method): one for one in result.verdicts}
    reference, few = named_reference(result), has_few_queries(result)
    return [
        [
            method.name,
            *(metric_cell(method.metrics[name], verdicts.get((name, method.name)), few, reference) for name in metrics),
        ]
        for method in result.methods
    ]


def metric_cell(
    summary: MetricSummary, verdict: Verdict | None, few_queries: bool, reference: str | None = None
) -> Cell:
    """Return one metric of one method; `reference` is a method that the user named. A single run has no spread."""
    best = reference is None and verdict is not None and verdict.outcome == "reference"
    return Cell(
        short(summary.mean),
        "best" if best else "",
        mark="" if verdict is None else (_MARKS if reference is None else _MARKS_AGAINST).get(verdict.outcome, ""),
        spread=f"±{short(summary.std)}" if len(summary.values) > 1 else "",
        ends=(short(summary.low), short(summary.high)) if few_queries else None,
    )


def chance_levels(result: MethodTable, metrics: Sequence[str]) -> list[str]:
    """Return the chance level of each metric; none if no method has results.

    What a stage loses has none: a random cascade loses little at a late stage, because little arrives there.
    """
    if not result.methods:
        return []
    return ["" if name.endswith("/lost") else _chance_of(result.methods, name) for name in metrics]


def _chance_of(methods: Sequence[MethodResult], metric: str) -> str:
    """Return the chance level; its range if methods have other ones, for instance with other quotas."""
    levels = [short(level) for level in sorted(method.metrics[metric].chance for method in methods)]
    return levels[0] if levels[0] == levels[-1] else f"{levels[0]} to {levels[-1]}"


def why_incomplete(result: MethodTable, method: str) -> str:
    """Return the text in place of the metrics of a method: a stream may still continue, a comparison has failed."""
    failed = any(failure.method == method for failure in result.failed)
    return "failed" if failed or result.unit == "queries" else "not finished"


def repetitions(result: MethodTable) -> list[str]:
    """Return how often methods were trained, such as ``["5 folds", "1 seed"]``; a stream has no folds."""
    counts = {"folds": len(result.folds)} if isinstance(result, ComparisonResult) else {}
    counts["seeds"] = len(result.seeds)
    return [f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items()]


def has_few_queries(result: MethodTable) -> bool:
    """Whether confidence intervals are shown. Over days they are not: the curves show how days differ."""
    if result.unit == "days":
        return False
    counts = [summary.queries for method in result.methods for summary in method.metrics.values()]
    return bool(counts) and min(counts) < FEW_QUERIES


def failure_table(failures: Sequence[RunFailure]) -> Table | None:
    """Return the table of failed runs, if there are any."""
    rows: list[Row] = [[failure.method, words(f"{failure.run}: {failure.message}")] for failure in failures]
    return Table(["method", "run"], rows) if rows else None


def _settings_table(result: ComparisonResult) -> Table | None:
    """Return the chosen settings by method and fold with their validation metric, if there was a choice."""
    if not any(settings for method in result.methods for settings in (method.settings or {}).values()):
        return None
    body: list[Row] = []
    for method in result.methods:
        for fold, settings in (method.settings or {}).items():
            runs = [run for run in method.runs or [] if run.fold == fold]
            values = [run.validation for run in runs if run.validation is not None]
            name = method.name if len(result.folds) == 1 else f"{method.name}, {fold}"
            mean = decimal(sum(values) / len(values)) if values else "none"
            body.append([name, words(flow(settings) or "nothing to choose"), mean])
    return Table(["method", "settings", "validation"], body)


def _method_funnels(
    methods: Sequence[MethodResult],
    metric: str,
    *,
    quotas: Mapping[str, Mapping[str, int]] | None = None,
    production: Sequence[StageFigures] | None = None,
    caption: str = "",
) -> Chart | None:
    """Return the funnels of all methods side by side, and that of production; None if there is no cascade."""
    if not methods or not has_funnel(list(methods[0].metrics)):
        return None
    funnels = {method.name: method_steps(method.metrics, (quotas or {}).get(method.name)) for method in methods}
    notes = {method.name: f"{shown_name(metric)} {short(method.metrics[metric].mean)}" for method in methods}
    if production:
        funnels[PRODUCTION] = steps_of(production)
        notes[PRODUCTION] = "the system that wrote the log"
    return funnel_panels(funnels, notes, caption=caption)


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
    better = "higher" if higher_is_better(metric) else "lower"
    return charts.dots(
        {"": {name: (one.mean, one.low, one.high) for name, one in ordered}},
        numbers=True,
        label=f"{title}: " + ", ".join(f"{name} {short(one.mean)}" for name, one in ordered),
        title=title,
        caption=f"Means with 95 % confidence intervals over {result.unit}, the best first; {better} is better. The "
        "axis does not start at 0.",
    )


# --- sweeps -------------------------------------------------------------------------------------------------------


def swept_keys(result: MethodTable) -> list[str]:
    """Return the keys of the sweep of a comparison, none without a sweep."""
    return result.swept if isinstance(result, ComparisonResult) else []


def pivot_table(result: MethodTable, metric: str) -> Table:
    """Return a metric with a column for each value of the last swept key, and a row for each method and other value.

    A method without a sweep has the same value in every column.
    """
    *others, last = swept_keys(result)
    verdicts = {one.method: one for one in result.verdicts if one.metric == metric}
    reference = named_reference(result)
    rows: dict[str, dict[str, Cell]] = {}
    chance: dict[str, set[str]] = {}
    swept = [one for one in result.methods if one.point]
    columns = list(dict.fromkeys(value_text(one.point[last]) for one in swept if one.point and last in one.point))
    for one in result.methods:
        point = one.point or {}
        row = rows.setdefault(point_name(one.of or one.name, {key: point[key] for key in others if key in point}), {})
        for column in [value_text(point[last])] if last in point else columns:
            row[column] = metric_cell(one.metrics[metric], verdicts.get(one.name), False, reference)
            chance.setdefault(column, set()).add(short(one.metrics[metric].chance))
    known = not metric.endswith("/lost") and all(len(levels) == 1 for levels in chance.values())
    return Table(
        ["method", *columns],
        [[name, *(row.get(column, "") for column in columns)] for name, row in rows.items()],
        soft=[["chance", *(min(chance[column]) for column in columns)]] if known else [],
        title=f"{shown_name(metric)} by {last}",
        framed=False,
    )


def sweep_sections(result: MethodTable) -> list[Block]:
    """Return the part of a page about a sweep: a chart and the table of the main metric; other tables are folded."""
    keys, metric = swept_keys(result), main_metric(result)
    if not keys:
        return []
    chart = sweep_chart(result, metric)
    others = [Details(f"{shown_name(one)}", [pivot_table(result, one)]) for one in result.metrics if one != metric]
    heading = f"{shown_name(metric)} by {joined(keys)}"
    return [Section(heading, [*([chart] if chart else []), pivot_table(result, metric), *others])]


def sweep_chart(result: MethodTable, metric: str) -> Chart | None:
    """Return a curve for each method over one numeric key, or a heat map for each method over two keys."""
    keys = swept_keys(result)
    methods = {one.name: (one.of or one.name, one.point or {}, one.metrics[metric]) for one in result.methods}
    title = f"{shown_name(metric)} by {joined(keys)}"
    better = "higher" if higher_is_better(metric) else "lower"
    label = f"{title}: " + ", ".join(f"{name} {short(summary.mean)}" for name, (*_, summary) in methods.items())
    if len(keys) == 1:
        values = sorted({point[keys[0]] for _, point, _ in methods.values() if _is_number(point.get(keys[0]))})
        if not values or any(point and not _is_number(point.get(keys[0])) for _, point, _ in methods.values()):
            return None
        lines: dict[str, list[tuple[float, ...]]] = {}
        for of, point, one in methods.values():
            for x in [point[keys[0]]] if point else values:
                ends = (one.low, one.high) if point else ()  # those of a method without a sweep would cover the others
                lines.setdefault(of, []).append((x, one.mean, *ends))
        return charts.curves(
            {"": lines},
            title=title,
            label=label,
            caption=f"Means with 95 % confidence intervals over {result.unit}; {better} is better.",
            ticks=values,
            log_x=0 < LOGARITHMIC * values[0] <= values[-1],
        )
    *others, row, column = keys
    maps: dict[str, dict[tuple[str, str], float]] = {}
    for of, point, one in methods.values():
        if row in point and column in point:
            name = point_name(of, {key: point[key] for key in others if key in point})
            maps.setdefault(name, {})[value_text(point[row]), value_text(point[column])] = one.mean
    return charts.heat_maps(
        maps,
        title=title,
        label=label,
        caption=f"Rows: {row}; columns: {column}. The darkest is the best; {better} is better.",
        higher_is_better=higher_is_better(metric),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- verdicts -----------------------------------------------------------------------------------------------------


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


def marks(result: MethodTable, *, best: str = "", star: str = "*", unit: str | None = None) -> str:
    """Return the explanation of the marks, or why there are none.

    Args:
        result: The result.
        best: How the table shows the best mean.
        star: The star, escaped as the text needs it.
        unit: Unit of the table, if it is not that of the result.
    """
    unit = unit or result.unit
    if len(result.methods) == 1:
        return "One method: nothing is compared"
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


def finding(result: MethodTable, metric: str) -> str:
    """Return the outcome in words."""
    means = {method.name: method.metrics[metric] for method in result.methods}
    if not means:
        return "No method finished."
    sentences = []
    reference = next((verdict.against for verdict in result.verdicts if verdict.metric == metric), None)
    if reference is not None:
        figures = f"{short(means[reference].mean)}; chance is {short(means[reference].chance)}."
        best = "has the best" if len(means) > 1 else "has"
        best = f"{best} {shown_name(metric)}" + " with these weights" * (not makes_claims(result))
        role = f"is the reference, with {shown_name(metric)}" if named_reference(result) else f"{best},"
        sentences.append(f"{reference} {role} {figures}")
    sentences += findings(result, metric)
    failures = {failure.method for failure in result.failed}
    failed = [name for name in result.incomplete if name in failures]
    return " ".join([*sentences, *([f"Failed: {joined(failed)}."] if failed else [])])


def _tests_table(result: MethodTable, metric: str) -> Table | None:
    """Return a row per method with its difference to the reference, the interval, and the p-values."""
    verdicts = verdicts_on(result, metric)
    if not verdicts:
        return None
    rows: list[Row] = []
    for one in verdicts:
        tests = [test for test in (one.over_both, one.over_seeds, one.over_queries) if test is not None]
        interval = f"[{_signed(one.shown.low)}, {_signed(one.shown.high)}]"
        rows.append([one.method, f"{one.shown.difference:+z.4f}", interval, *map(_p_value, tests)])
    over_seeds = [f"p, seeds and {result.unit}", "p, seeds"] if makes_claims(result) else []
    these = "" if makes_claims(result) else ", with these weights only"
    title = f"{shown_name(metric)}, difference to {verdicts[0].against}{these}"
    head = ["method", "difference", "95 % interval", *over_seeds, f"p, {result.unit}"]
    return Table(head, rows, title=f"{title}; intervals and two-sided p-values after Holm", framed=False)


def verdicts_on(result: MethodTable, metric: str) -> list[Verdict]:
    """Return the verdicts on a metric, without that on the reference itself."""
    return [one for one in result.verdicts if one.metric == metric and one.method != one.against]


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


# --- files --------------------------------------------------------------------------------------------------------


def markdown_table(result: MethodTable) -> str:
    """Return the table as Markdown, with the best values in bold."""
    metric = main_metric(result)
    rows: list[Row] = [*method_rows(result, result.metrics)]
    rows += [[name, why_incomplete(result, name)] for name in result.incomplete]
    rows.append(["chance", *chance_levels(result, result.metrics)])
    text = _markdown(["method", *map(shown_name, result.metrics)], rows)
    text += f"\n\n{_markdown_caption(result)}\nMean ± standard deviation over runs"
    text += ", [95 % confidence interval].\n" if has_few_queries(result) else ".\n"
    if swept_keys(result):
        pivot = pivot_table(result, metric)
        text += f"\n{pivot.title}:\n\n{_markdown(pivot.head, [*pivot.rows, *pivot.soft])}\n"
    if tests := _tests_table(result, metric):
        text += f"\n{tests.title}:\n\n{_markdown(tests.head, tests.rows)}\n\n{' '.join(findings(result, metric))}\n"
    return text


def markdown_tables(result: StreamResult) -> str:
    """Return the table of all days of a stream together, then that of the single days."""
    names = _measured_methods(result)
    if not names:
        return markdown_table(result)
    days = _markdown(["day", *names, "chance"], _day_rows(result, missing=""))
    below = f"{_day_title(result)}. {_markdown_caption(result, 'impressions')}"
    warnings = "".join(f"\nWarning: {text}.\n" for text in result.warnings)
    return f"{markdown_table(result)}\n{days}\n\n{below}\n{warnings}"


def _markdown(head: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a Markdown table, whatever names of methods contain."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_markdown_text, row))} |" for row in lines)


def _markdown_text(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return " ".join(cell.replace("\\", r"\\").replace("|", r"\|").splitlines())
    number = f"**{cell.text}{cell.spread}**" if cell.kind == "best" else f"{cell.text}{cell.spread}"
    interval = f"[{', '.join(cell.ends)}]" if cell.ends else ""
    return " ".join(filter(None, [number, cell.mark.replace("*", "\\*"), interval]))


def _markdown_caption(result: MethodTable, unit: str | None = None) -> str:
    text = marks(result, best="**best mean**", star="\\*", unit=unit)
    return f"{text.rstrip('.')}."


def csv_table(result: MethodTable) -> str:
    """Return one line per method and metric, with its test over queries and its verdict."""
    tests = {(test.metric, test.method): test for test in result.tests}
    verdicts = {(one.metric, one.method): one for one in result.verdicts}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = swept_keys(result)
    writer.writerow(
        ["method", *(["of", *keys] if keys else []), "metric", *_COLUMNS, *_TEST_COLUMNS, *_VERDICT_COLUMNS]
    )
    for method in result.methods:
        for metric, summary in method.metrics.items():
            test = tests[metric, method.name]
            row = [getattr(summary, column) for column in _COLUMNS] + [
                getattr(test, column) for column in _TEST_COLUMNS
            ]
            point = method.point or {}
            swept = [method.of, *(value_text(point[key]) if key in point else "" for key in keys)] if keys else []
            row = [method.name, *swept, metric, *row, *_verdict_columns(verdicts.get((metric, method.name)))]
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


# --- streams ------------------------------------------------------------------------------------------------------


def stream_blocks(result: StreamResult) -> list[Block]:
    """Return the table of all days together, a curve per method on one scale, and the table of the last days."""
    blocks = comparison_blocks(result) if result.methods and result.unit == "days" else []
    points = curves(result)
    if not points:  # days with too few relevant items are not measured
        return blocks
    points = {**points, "chance": chance_curve(result)}
    values = [value for of in points.values() for _, value in of]
    low, high = min(values), max(values)
    drawn: list[Row] = []
    for name, of in points.items():
        curve = [dict(of).get(number) for number in range(2, len(result.learned) + 1)]
        drawn.append([name, sparkline(curve, low, high), short(of[0][1]), short(of[-1][1])])
    title = f"{result.metric} day by day, from {short(low)} (lowest) to {short(high)} (highest)"
    return [*blocks, Table(["method", "", "first", "last"], drawn, title=title, framed=False), *_days(result)]


def stream_page_blocks(result: StreamResult, *, config: str = "", command: str = "") -> list[Block]:
    """Return the blocks of the page of a stream, with the funnels of the last measured day."""
    measured = [entry for entry in result.days if entry.methods]
    last = measured[-1] if measured else None
    funnels = last and _method_funnels(
        last.methods,
        main_metric(result),
        caption=f"The last measured day, {last.day}, before it was trained on: means over {last.impressions:,} "
        "impressions.",
    )
    chart, refused = curves_chart(result), failure_table(result.refused)
    days: list[Block] = [chart, *_days(result)] if chart else [Text("No day has been measured yet.", "soft")]
    below = [Section("Bundles that were not written", [refused])] if refused else []
    return [
        Text(_about(result), "soft"),
        *_page_blocks(result, funnels or None, [Section("Day by day", days), *below]),
        *_how_to_repeat(command, config),
    ]


def _days(result: StreamResult) -> list[Block]:
    """Return the table of the last days, and that of the days before them."""
    last, *earlier = day_tables(result)
    if not earlier:
        return [last] if last.rows else []
    count = len(earlier[0].rows)
    return [
        last,
        Text(f"{count} earlier days are in stream.json.", only="terminal"),
        Details(f"{count} earlier day{'s' * (count > 1)}", earlier),
    ]


def day_tables(result: StreamResult) -> list[Table]:
    """Return the table of the last days, and that of the days before them if there are any."""
    rows = _day_rows(result)
    head, last, earlier = ["day", *_measured_methods(result), "chance"], rows[-SHOWN:], rows[:-SHOWN]
    meaning = marks(result, best="Bold: best mean", unit="impressions")
    intervals = " [95 % confidence interval]" * (len(_measured_methods(result)) <= _SHOWN_INTERVALS)
    caption = f"Mean{intervals} over impressions." + f" {meaning}." * makes_claims(result)
    tables = [Table(head, last, title=_day_title(result), caption=caption, framed=False)]
    return tables + ([Table(head, earlier)] if earlier else [])


def _day_rows(result: StreamResult, missing: str = "none") -> list[Row]:
    """Return each day with a cell for each measured method, and the chance level."""
    metric, names = result.metric, _measured_methods(result)
    rows: list[Row] = []
    for entry in result.days:
        verdicts = {verdict.method: verdict for verdict in entry.verdicts if verdict.metric == metric}
        found = {method.name: method.metrics[metric] for method in entry.methods}
        cells = [
            metric_cell(found[name], verdicts.get(name), few_queries=len(names) <= _SHOWN_INTERVALS)
            if name in found
            else missing
            for name in names
        ]
        rows.append([entry.day, *cells, short(next(iter(found.values())).chance) if found else ""])
    return rows


def _day_title(result: StreamResult) -> str:
    return f"{result.metric} of each day, with the weights before it"


def curves_chart(result: StreamResult) -> Chart | None:
    """Return the metric of the stream, the lead over its first method, and what each stage lost, day by day."""
    found = curves(result)
    if not found:
        return None
    metric, seeds, days = shown_name(result.metric), len(result.seeds), result.learned
    of_metric: charts.Curves = {**found, "chance": chance_curve(result)}
    if seeds > 1:
        stds = {name: dict(points) for name, points in curves(result, figure="std").items()}
        bands = {name: [(x, y, y - stds[name][x], y + stds[name][x]) for x, y in of] for name, of in found.items()}
        of_metric = {**bands, "chance": chance_curve(result)}
    first = result.methods[0].name if len(result.methods) > 1 else ""
    base = dict(found.get(first, ()))
    leads = {name: [(x, y - base[x]) for x, y in points if x in base] for name, points in found.items()}
    stages = stages_in(result.metrics)
    panels = {metric: of_metric} | ({f"{metric}, ahead of {first}": leads} if base else {})
    panels |= {f"lost at {stage}": curves(result, f"{stage}/lost") for stage in stages}
    ends = ", ".join(f"{name} from {short(points[0][1])} to {short(points[-1][1])}" for name, points in found.items())
    arrow = "higher" if higher_is_better(result.metric) else "lower"
    caption = f"By number of the day; the first, {days[0]}, is not measured. {metric}: {arrow} is better"
    caption += f", bands of one standard deviation over {seeds} seeds" * (seeds > 1)
    caption += "; lost, as a share of the relevant items: lower is better." if stages else "."
    label = f"{metric} of each day, with the weights before it: {ends}"
    return charts.curves(panels, label=label, caption=caption, title="Day by day")


def curves(
    result: StreamResult, metric: str | None = None, figure: Literal["mean", "std"] = "mean"
) -> dict[str, list[tuple[int, float]]]:
    """Return a figure of a metric, by default that of the stream, by the number of the day, for each method."""
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    points: dict[str, list[tuple[int, float]]] = {}
    for entry in result.days:
        for method in entry.methods:
            value = getattr(method.metrics[metric or result.metric], figure)
            points.setdefault(method.name, []).append((numbers[entry.day], value))
    return points


def chance_curve(result: StreamResult) -> list[tuple[int, float]]:
    """Return the chance level of the metric of the stream by the number of the day."""
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    measured = [entry for entry in result.days if entry.methods]
    return [(numbers[entry.day], entry.methods[0].metrics[result.metric].chance) for entry in measured]


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


def _measured_methods(result: StreamResult) -> list[str]:
    """Return the methods that were measured on any day, in the order of the stream."""
    measured = {method.name for entry in result.days for method in entry.methods}
    return [name for name in dict.fromkeys(run.method for run in result.runs) if name in measured]


def _about(result: StreamResult) -> str:
    days = result.learned
    if len(days) == 1:
        return f"One day, {days[0]}, has been trained on. Later days are measured before they are trained on."
    span = f"{len(days)} days, {days[0]} to {days[-1]}"
    return f"{span}. Each day was measured with the weights before it, then trained on once."
