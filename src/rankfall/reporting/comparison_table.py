"""The table of a comparison: methods by metrics, for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, NamedTuple

from rankfall.studies.results import ComparisonResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from rankfall.studies.results import MethodTable, MethodTest, MetricSummary

FEW_QUERIES = 300  # below this number a difference of .01 is within the noise, and intervals are shown

_COLUMNS = ("mean", "std", "low", "high", "chance", "queries")
_TEST_COLUMNS = ("best", "difference", "p_value", "adjusted_p_value", "significantly_worse")


class Cell(NamedTuple):
    """A metric of a method, as text."""

    number: str
    interval: str  # empty if there are many queries
    best: bool
    close: bool  # not the best, but not significantly worse


def terminal_table(result: MethodTable) -> RenderableType:
    """Return the table for the terminal, folded to its width. Besides bold text, marks show the best values."""
    from rich.console import Group
    from rich.text import Text

    from rankfall.reporting.folding import FoldedTable, plain_table

    table = plain_table()
    table.add_column("method", style="cyan", no_wrap=True)
    for metric in result.metrics:
        table.add_column(metric.replace("/", "/\n"), no_wrap=True)  # the stage above the metric
    for name, cells in rows(result):
        table.add_row(name, *map(terminal_cell, cells))
    for name in result.incomplete:
        table.add_row(name, why_incomplete(result, name), style="red")
    table.add_section()
    table.add_row("chance", *chance_levels(result), style="dim")
    runs = " x ".join(count for count in repetitions(result) if not count.startswith("1 "))
    spread = f"±standard deviation over {runs}" if runs else ""
    marks = f"< best   {caption(result.unit)}" + "\n[ ] 95 % confidence interval of the mean" * has_few_queries(result)
    stages = [metric.rpartition("/")[0] for metric in result.metrics]
    return Group(
        Text(f"test {result.unit}, mean{spread}", style="italic"),
        FoldedTable(table, groups=stages, repeat_single=True),
        Text(marks, style="dim italic"),
    )


def markdown_table(result: MethodTable) -> str:
    """Return the table as Markdown, with the best values in bold."""
    lines = [["method", *result.metrics], ["---"] * (1 + len(result.metrics))]
    lines += [[name, *map(markdown_cell, cells)] for name, cells in rows(result)]
    lines += [[name, why_incomplete(result, name)] for name in result.incomplete]
    lines.append(["chance", *chance_levels(result)])
    below = f"**best** {markdown_caption(result.unit)}; mean ± standard deviation over runs"
    below += ", [95 % confidence interval]." if has_few_queries(result) else "."
    return f"{markdown_lines(lines)}\n\n{below}\n"


def markdown_lines(lines: list[list[str]]) -> str:
    """Return rows of cells as the lines of a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def csv_table(result: MethodTable) -> str:
    """Return one line per method and metric, with its test."""
    tests = _tests(result)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "metric", *_COLUMNS, *_TEST_COLUMNS])
    for method in result.methods:
        for metric, summary in method.metrics.items():
            test = tests[metric, method.name]
            row = [getattr(summary, column) for column in _COLUMNS] + [
                getattr(test, column) for column in _TEST_COLUMNS
            ]
            writer.writerow([method.name, metric, *row])
    return text.getvalue()


# --- parts that all tables of methods share -----------------------------------------------------------------------


def rows(result: MethodTable) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the name of each method and a cell for each metric."""
    tests, few = _tests(result), has_few_queries(result)
    for method in result.methods:
        yield method.name, [cell(method.metrics[name], tests[name, method.name], few) for name in result.metrics]


def cell(summary: MetricSummary, test: MethodTest, few_queries: bool) -> Cell:
    """Return the cell of one metric of one method."""
    best = test.method == test.best
    return Cell(
        # a single run has no standard deviation
        number=short(summary.mean) + (f"±{short(summary.std)}" if len(summary.values) > 1 else ""),
        interval=f"[{short(summary.low)}, {short(summary.high)}]" if few_queries else "",
        best=best,
        close=not best and not test.significantly_worse,
    )


def terminal_cell(cell: Cell) -> str:
    """Return a cell with the markup of rich."""
    number = f"[bold]{cell.number} <[/]" if cell.best else f"{cell.number} *" if cell.close else cell.number
    return f"{number}\n\\{cell.interval}" if cell.interval else number  # rich reads an unescaped bracket as markup


def markdown_cell(cell: Cell) -> str:
    """Return a cell as Markdown."""
    number = f"**{cell.number}**" if cell.best else f"{cell.number} \\*" if cell.close else cell.number
    return f"{number} {cell.interval}".rstrip()


def short(number: float) -> str:
    """Return a number with three decimals and no leading zero, for narrow columns."""
    text = f"{number:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def chance_levels(result: MethodTable) -> list[str]:
    """Return the chance level of each metric; none if no method has results."""
    return [short(result.methods[0].metrics[name].chance) for name in result.metrics] if result.methods else []


def why_incomplete(result: MethodTable, method: str) -> str:
    """Return the text in place of the metrics of a method: a stream may still continue, a comparison has failed."""
    failed = any(failure.method == method for failure in result.failed)
    return "failed" if failed or result.unit == "queries" else "not finished"


def repetitions(result: MethodTable) -> list[str]:
    """Return how often methods were trained, such as ``["5 folds", "1 seed"]``; a stream has no folds."""
    counts = {"folds": len(result.folds)} if isinstance(result, ComparisonResult) else {}
    counts["seeds"] = len(result.seeds)
    return [f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items()]


def caption(unit: str) -> str:
    """Return the explanation of the star."""
    return f"* not significantly worse than the best (one-sided paired t-test over {unit}, Holm, 5 %)"


def markdown_caption(unit: str) -> str:
    """Return the explanation of the star as Markdown."""
    return caption(unit).replace("*", "\\*")


def has_few_queries(result: MethodTable) -> bool:
    """Whether confidence intervals are shown. Over days they are not: the curves show how days differ."""
    if result.unit == "days":
        return False
    counts = [summary.queries for method in result.methods for summary in method.metrics.values()]
    return bool(counts) and min(counts) < FEW_QUERIES


def _tests(result: MethodTable) -> dict[tuple[str, str], MethodTest]:
    return {(test.metric, test.method): test for test in result.tests}
