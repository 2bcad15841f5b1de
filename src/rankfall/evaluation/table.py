"""One table of a comparison, for the terminal, for Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

FEW_QUERIES = 300  # below this many, a difference of .01 is within the noise, and intervals are shown

CAPTION = "* not significantly worse than the best (one-sided paired t-test over queries, Holm, 5 %)"
_COLUMNS = ("mean", "std", "low", "high", "chance", "queries")
_TEST_COLUMNS = ("best", "difference", "p_value", "adjusted_p_value", "significantly_worse")


class Cell(NamedTuple):
    """What a table says of one method and metric."""

    number: str
    interval: str  # empty if there are many queries
    best: bool
    close: bool  # not the best, but not significantly worse


def terminal_table(result: dict[str, Any]) -> Table:
    """The table in colour; what is bold has a mark as well, for files and pipes."""
    from rich import box
    from rich.table import Table

    runs = " x ".join(f"{len(result[of])} {of if len(result[of]) > 1 else of[:-1]}" for of in ("folds", "seeds"))
    title = f"test queries, mean±standard deviation over {runs}"
    caption = f"< best   {CAPTION}" + ("\n[ ] 95 % confidence interval of the mean" if _few(result) else "")
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    table.show_edge, table.pad_edge, table.padding = False, False, (0, 1, 0, 0)
    table.add_column("method", style="cyan", no_wrap=True)
    for metric in _metrics(result):
        table.add_column(metric.replace("/", "/\n"), no_wrap=True)  # a stage, and what is measured of it
    for name, cells in rows(result):
        table.add_row(name, *(_terminal_cell(cell) for cell in cells))
    for name in result["incomplete"]:
        table.add_row(name, "failed", style="red")
    table.add_section()
    table.add_row("chance", *_chance(result), style="dim")
    if result.get("oracle"):  # of generated data
        table.add_row("oracle", *(short(result["oracle"][metric]) for metric in _metrics(result)), style="dim")
    return table


def markdown_table(result: dict[str, Any]) -> str:
    """The table as Markdown, best values in bold."""
    lines = [["method", *_metrics(result)], ["---"] * (1 + len(_metrics(result)))]
    lines += [[name, *(_markdown_cell(cell) for cell in cells)] for name, cells in rows(result)]
    lines += [[name, "failed"] for name in result["incomplete"]]
    lines.append(["chance", *_chance(result)])
    caption = f"**best** {CAPTION.replace('*', chr(92) + '*')}; mean ± standard deviation over runs"
    caption += ", [95 % confidence interval]." if _few(result) else "."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{caption}\n"


def csv_table(result: dict[str, Any]) -> str:
    """A line for each method and metric."""
    tests = _tests(result)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "metric", *_COLUMNS, *_TEST_COLUMNS])
    for method in result["methods"]:
        for metric, figures in method["metrics"].items():
            test = tests[metric, method["name"]]
            row = [figures[column] for column in _COLUMNS] + [test[column] for column in _TEST_COLUMNS]
            writer.writerow([method["name"], metric, *row])
    return text.getvalue()


def rows(result: dict[str, Any]) -> Iterator[tuple[str, list[Cell]]]:
    """The methods and what the table says of them."""
    tests, few = _tests(result), _few(result)
    for method in result["methods"]:
        name = method["name"]
        yield name, [_cell(figures, tests[metric, name], few) for metric, figures in method["metrics"].items()]


def _cell(figures: dict[str, Any], test: dict[str, Any], few: bool) -> Cell:
    best = test["method"] == test["best"]
    return Cell(
        # a single run has no spread
        number=short(figures["mean"]) + (f"±{short(figures['std'])}" if len(figures["values"]) > 1 else ""),
        interval=f"[{short(figures['low'])}, {short(figures['high'])}]" if few else "",
        best=best,
        close=not best and not test["significantly_worse"],
    )


def _terminal_cell(cell: Cell) -> str:
    number = f"[bold]{cell.number} <[/]" if cell.best else f"{cell.number} *" if cell.close else cell.number
    return f"{number}\n\\{cell.interval}" if cell.interval else number  # rich takes a bare bracket for a style


def _markdown_cell(cell: Cell) -> str:
    number = f"**{cell.number}**" if cell.best else f"{cell.number} \\*" if cell.close else cell.number
    return f"{number} {cell.interval}".rstrip()


def short(number: float) -> str:
    """Three decimals, without the zero before the point: seven metrics fit a terminal."""
    text = f"{number:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _metrics(result: dict[str, Any]) -> list[str]:
    return list(result["metrics"])


def _chance(result: dict[str, Any]) -> list[str]:
    if not result["methods"]:
        return []
    return [short(figures["chance"]) for figures in result["methods"][0]["metrics"].values()]


def _tests(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(test["metric"], test["method"]): test for test in result["tests"]}


def _few(result: dict[str, Any]) -> bool:
    counts = [figures["queries"] for method in result["methods"] for figures in method["metrics"].values()]
    return bool(counts) and min(counts) < FEW_QUERIES
