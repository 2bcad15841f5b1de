"""One table of a comparison, for the terminal, for Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

GAP = 2  # spaces between columns
FEW_QUERIES = 300  # below this many, a difference of .01 is within the noise, and intervals are shown

CAPTION = "* not significantly worse than the best (one-sided paired t-test over {}, Holm, 5 %)"
_COLUMNS = ("mean", "std", "low", "high", "chance", "queries")
_TEST_COLUMNS = ("best", "difference", "p_value", "adjusted_p_value", "significantly_worse")


class Cell(NamedTuple):
    """What a table says of one method and metric."""

    number: str
    interval: str  # empty if there are many queries
    best: bool
    close: bool  # not the best, but not significantly worse


def terminal_table(result: dict[str, Any]) -> RenderableType:
    """The table in colour, in as many parts as the terminal is too narrow for.

    What is bold has a mark as well, for files and pipes.
    """
    return _Folded(result)


class _Folded:
    """A table whose columns go on below where the line ends."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        result = self.result
        runs = " x ".join(some for some in repeats(result) if not some.startswith("1 "))
        spread = f"±standard deviation over {runs}" if runs else ""
        yield Text(f"test {unit(result)}, mean{spread}", style="italic")
        for number, metrics in enumerate(_groups(result, options.max_width)):
            if number:
                yield Text()
            yield _terminal_part(result, metrics)
        marks = f"< best   {caption(result)}" + ("\n[ ] 95 % confidence interval of the mean" if _few(result) else "")
        yield Text(marks, style="dim italic")


def _groups(result: dict[str, Any], width: int) -> list[list[str]]:
    """The metrics in groups that fit the width, those of a stage together if they can be."""
    cells = {metric: [metric.rpartition("/")[0] + "/", metric.rpartition("/")[2]] for metric in _metrics(result)}
    for _, row in rows(result):
        for metric, cell in zip(_metrics(result), row, strict=True):
            cells[metric] += [f"{cell.number} <", cell.interval]
    widths = {metric: GAP + max(map(len, of)) for metric, of in cells.items()}
    names = [method["name"] for method in result["methods"]] + list(result["incomplete"])
    room = width - max(map(len, ["method", *names]))
    groups: list[list[str]] = []
    for _, of_stage in groupby(_metrics(result), key=lambda metric: metric.rpartition("/")[0]):
        block = list(of_stage)
        fits = [*(groups[-1] if groups else []), *block]
        if groups and sum(widths[metric] for metric in fits) <= room:
            groups[-1] = fits
            continue
        groups.append([])
        for metric in block:
            if groups[-1] and sum(widths[one] for one in (*groups[-1], metric)) > room:
                groups.append([])
            groups[-1].append(metric)
    return groups


def _terminal_part(result: dict[str, Any], metrics: list[str]) -> Table:
    """All methods, some metrics."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.show_edge, table.pad_edge, table.padding = False, False, (0, 1, 0, 0)
    table.add_column("method", style="cyan", no_wrap=True)
    places = [_metrics(result).index(metric) for metric in metrics]
    for metric in metrics:
        table.add_column(metric.replace("/", "/\n"), no_wrap=True)  # a stage, and what is measured of it
    for name, cells in rows(result):
        table.add_row(name, *(terminal_cell(cells[place]) for place in places))
    for name in result["incomplete"]:
        table.add_row(name, why_incomplete(result, name), style="red")
    table.add_section()
    chance = _chance(result)
    table.add_row("chance", *(chance[place] for place in places if chance), style="dim")
    if result.get("oracle"):  # of generated data
        table.add_row("oracle", *(short(result["oracle"][metric]) for metric in metrics), style="dim")
    return table


def markdown_table(result: dict[str, Any]) -> str:
    """The table as Markdown, best values in bold."""
    lines = [["method", *_metrics(result)], ["---"] * (1 + len(_metrics(result)))]
    lines += [[name, *(markdown_cell(cell) for cell in cells)] for name, cells in rows(result)]
    lines += [[name, why_incomplete(result, name)] for name in result["incomplete"]]
    lines.append(["chance", *_chance(result)])
    below = f"**best** {caption(result).replace('*', chr(92) + '*')}; mean ± standard deviation over runs"
    below += ", [95 % confidence interval]." if _few(result) else "."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{below}\n"


def why_incomplete(result: dict[str, Any], method: str) -> str:
    """In place of a method's figures; what is missing in a comparison has failed, a stream may still go on."""
    failed = any(one["method"] == method for one in result["failed"])
    return "failed" if failed or unit(result) == "queries" else "not finished"


def repeats(result: dict[str, Any]) -> list[str]:
    """How often methods were trained: ``["5 folds", "1 seed"]``; a stream has no folds."""
    counts = {of: len(result[of]) for of in ("folds", "seeds") if of in result}
    return [f"{count} {of if count > 1 else of[:-1]}" for of, count in counts.items()]


def unit(result: dict[str, Any]) -> str:
    """On what methods were compared."""
    return str(result.get("unit", "queries"))


def caption(result: dict[str, Any]) -> str:
    """What a star means."""
    return CAPTION.format(unit(result))


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


def terminal_cell(cell: Cell) -> str:
    """In bold and with a mark if it is the best."""
    number = f"[bold]{cell.number} <[/]" if cell.best else f"{cell.number} *" if cell.close else cell.number
    return f"{number}\n\\{cell.interval}" if cell.interval else number  # rich takes a bare bracket for a style


def markdown_cell(cell: Cell) -> str:
    """In bold if it is the best."""
    number = f"**{cell.number}**" if cell.best else f"{cell.number} \\*" if cell.close else cell.number
    return f"{number} {cell.interval}".rstrip()


def short(number: float) -> str:
    """Three decimals, without the zero before the point: a narrow column for each metric."""
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
    """Whether intervals are of use; how days differ from each other is seen in their curve."""
    if unit(result) == "days":
        return False
    counts = [figures["queries"] for method in result["methods"] for figures in method["metrics"].values()]
    return bool(counts) and min(counts) < FEW_QUERIES
