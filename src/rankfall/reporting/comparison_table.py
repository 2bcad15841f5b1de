"""The table of a comparison: methods by metrics, for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, NamedTuple

from rankfall.reporting.evaluation_table import DOWN, UP
from rankfall.reporting.verdicts import (
    caption,
    findings,
    main_metric,
    makes_claims,
    mark,
    named_reference,
    tests_head,
    tests_rows,
    tests_title,
)
from rankfall.studies.results import ComparisonResult
from rankfall.training.config.component_checks import higher_is_better, shown_name, split_stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from rankfall.studies.results import MethodTable, MethodTest, MetricSummary, Verdict

FEW_QUERIES = 300  # below this number a difference of .01 is within the noise, and intervals are shown

_COLUMNS = ("mean", "std", "low", "high", "chance", "queries")
_TEST_COLUMNS = ("best", "difference", "p_value", "adjusted_p_value", "significantly_worse")
_TESTS = ("over_both", "over_seeds", "over_queries")
_FIGURES = ("difference", "low", "high", "p_value", "adjusted_p_value")
_VERDICT_COLUMNS = ("against", "outcome", *(f"{test}_{figure}" for test in _TESTS for figure in _FIGURES))


class Cell(NamedTuple):
    """A metric of a method, as text."""

    number: str
    interval: str  # empty if there are many queries
    best: bool  # has the best mean, in a table that makes claims
    mark: str  # the verdict, see :func:`rankfall.reporting.verdicts.caption`


def terminal_table(result: MethodTable) -> RenderableType:
    """Return the table for the terminal, folded to its width. Besides bold text, marks show the best values."""
    from rich.console import Group
    from rich.text import Text

    from rankfall.reporting.folding import FoldedTable, plain_table

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

    from rankfall.reporting.folding import FoldedTable, plain_table

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


def rows(result: MethodTable, metrics: Sequence[str] | None = None) -> Iterator[tuple[str, list[Cell]]]:
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


def cell(summary: MetricSummary, verdict: Verdict | None, few_queries: bool, reference: str | None = None) -> Cell:
    """Return the cell of one metric of one method; `reference` is a method that the user named."""
    return Cell(
        # a single run has no standard deviation
        number=short(summary.mean) + (f"±{short(summary.std)}" if len(summary.values) > 1 else ""),
        interval=f"[{short(summary.low)}, {short(summary.high)}]" if few_queries else "",
        best=reference is None and verdict is not None and verdict.outcome == "reference",
        mark=mark(verdict, reference),
    )


def terminal_cell(cell: Cell) -> str:
    """Return a cell with the markup of rich."""
    number = f"[bold]{cell.number} <[/]" if cell.best else f"{cell.number} {cell.mark}".rstrip()
    return f"{number}\n\\{cell.interval}" if cell.interval else number  # rich reads an unescaped bracket as markup


def markdown_cell(cell: Cell) -> str:
    """Return a cell as Markdown."""
    number = f"**{cell.number}**" if cell.best else cell.number
    return " ".join(filter(None, [number, cell.mark.replace("*", "\\*"), cell.interval]))


def short(number: float) -> str:
    """Return a number with three decimals and no leading zero, for narrow columns."""
    text = f"{number:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def estimate(value: float, low: float, high: float) -> str:
    """Return a figure with its interval."""
    return f"{short(value)} [{short(low)}, {short(high)}]"


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
