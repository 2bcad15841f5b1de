"""The tables of a stream, for the terminal and for Markdown: all days, the curve of each method, day by day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting.comparison_table import (
    GAP,
    Cell,
    caption,
    markdown_cell,
    markdown_table,
    rows,
    short,
    terminal_cell,
    terminal_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

BLOCKS = "▁▂▃▄▅▆▇█"
CURVE = 60  # characters at most
SHOWN = 60  # days of a table, the last ones


def curves(result: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """The mean of the stream's metric on each day, by the number of the day, for each method."""
    numbers = {day: number for number, day in enumerate(result["learned"], 1)}
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in result["days"]:
        for method in entry["methods"]:
            point = numbers[entry["day"]], method["metrics"][result["metric"]]["mean"]
            found.setdefault(method["name"], []).append(point)
    return found


def day_rows(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Cell], str]]:
    """Of each day its name, what the table says of the methods that were measured, and chance."""
    metric = result["metric"]
    for entry in result["days"]:
        part = {**entry, "metrics": [metric]}
        part["methods"] = [{**one, "metrics": {metric: one["metrics"][metric]}} for one in entry["methods"]]
        cells = {name: cell for name, (cell,) in rows(part)}
        chance = short(entry["methods"][0]["metrics"][metric]["chance"]) if entry["methods"] else ""
        yield entry["day"], cells, chance


def markdown_tables(result: dict[str, Any]) -> str:
    """The mean over days, then the days."""
    names = _methods(result)
    lines = [["day", *names, "chance"], ["---"] * (2 + len(names))]
    for day, cells, chance in day_rows(result):
        said = [markdown_cell(cells[name]._replace(interval="")) if name in cells else "" for name in names]
        lines.append([day, *said, chance])
    if not names:
        return markdown_table(result)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    stars = caption({"unit": "impressions"}).replace("*", "\\*")
    below = f"{result['metric']} of each day by what was learned before it; **best** {stars}."
    return f"{markdown_table(result)}\n{table}\n\n{below}\n"


# --- the terminal -------------------------------------------------------------------------------------------------


def terminal_stream(result: dict[str, Any]) -> RenderableType:
    """All days, the curve of each method, day by day; columns go on below where the line ends."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if result["methods"] and result["unit"] == "days":
        parts += [terminal_table(result), Text()]
    if curves(result):  # on a day with few relevant items nothing is measured
        parts += [_curves(result), Text(), _Days(result)]
    return Group(*parts)


def _curves(result: dict[str, Any]) -> RenderableType:
    """A line for each method, all on one scale."""
    from rich.console import Group
    from rich.text import Text

    found = curves(result)
    values = [value for points in found.values() for _, value in points]
    low, high = min(values), max(values)
    table = _plain()
    for heading in ("method", "", "first", "last"):
        table.add_column(heading, no_wrap=True, style="cyan" if heading == "method" else None)
    last = len(result["learned"])
    for name, points in found.items():
        known = dict(points)
        line = [known.get(number) for number in range(2, last + 1)]
        table.add_row(name, sparkline(line, low, high), short(points[0][1]), short(points[-1][1]))
    about = f"{result['metric']} day by day, from {short(low)} (lowest) to {short(high)} (highest)"
    return Group(Text(about, style="italic"), table)


def sparkline(values: Sequence[float | None], low: float, high: float, *, width: int = CURVE) -> str:
    """A character for each value, or for the mean of some neighbours where there are too many.

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


class _Days:
    """A row a day, a column a method."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        days = list(day_rows(self.result))
        left_out = len(days) - SHOWN
        about = f"{self.result['metric']} of each day by what was learned before it"
        yield Text(f"{about}; {left_out} earlier days are in stream.json" if left_out > 0 else about, style="italic")
        for names in self._groups(days, options.max_width):
            table = _plain()
            for heading in ("day", *names, "chance"):
                table.add_column(heading, no_wrap=heading == "day", style="cyan" if heading == "day" else None)
            for day, cells, chance in days[-SHOWN:]:
                said = (terminal_cell(cells[name]._replace(interval="")) if name in cells else "" for name in names)
                table.add_row(day, *said, f"[dim]{chance}[/]")
            yield table
        yield Text(f"< best   {caption({'unit': 'impressions'})}", style="dim italic")

    def _groups(self, days: Sequence[tuple[str, dict[str, Cell], str]], width: int) -> list[list[str]]:
        """The methods in groups that fit the width."""
        room = width - max(len(day) for day, _, _ in days) - GAP - len("chance")
        groups: list[list[str]] = [[]]
        left = room
        for name in _methods(self.result):
            cells = [len(cells[name].number) + 2 for _, cells, _ in days if name in cells]
            wide = GAP + max([*map(len, name.split()), *cells])
            if groups[-1] and wide > left:
                groups.append([])
                left = room
            groups[-1].append(name)
            left -= wide
        return groups


def _methods(result: dict[str, Any]) -> list[str]:
    """Those of which anything was measured, in the order of the stream."""
    there = {method["name"] for entry in result["days"] for method in entry["methods"]}
    return [name for name in dict.fromkeys(run["method"] for run in result["runs"]) if name in there]


def _plain() -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.show_edge, table.pad_edge, table.padding = False, False, (0, GAP - 1, 0, 0)
    return table
