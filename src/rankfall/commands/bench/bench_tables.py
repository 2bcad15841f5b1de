"""Tables of benchmark results."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.benchmarks.claims import Claim

T = TypeVar("T")


def line_table(lines: Mapping[str, str]) -> Table:
    """Return a table with one line per name and value."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for what, value in lines.items():
        table.add_row(what, value)
    return table


def column_table(rows: Sequence[T], columns: dict[str, Callable[[T], str]]) -> Table:
    """Return a table of the rows, without columns that are empty."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    cells = {heading: [cell(row) for row in rows] for heading, cell in columns.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True, header_style="dim")
    for line in zip(*shown.values(), strict=True):
        table.add_row(*line)
    return table


def setting_table(first: str, *headings: str) -> Table:
    """Return an empty table: a first column that names the setting, and columns of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, header_style="dim")
    return table


def claims_table(claims: list[Claim], setting: str) -> Table:
    """Return a table of claims with their targets and measured values."""
    table = Table(title=f"\nclaims: {setting}", title_justify="left")
    for column in ("claim", "target", "measured", ""):
        table.add_column(column)
    for claim in claims:
        table.add_row(claim.claim, claim.target, claim.measured, "[green]met[/]" if claim.met else "[red]not met[/]")
    return table


def format_number(value: float | None, unit: str = "") -> str:
    """Format with three digits and without an exponent."""
    if value is None:
        return ""
    digits = f"{value:,.0f}" if value >= 99.95 else f"{value:.2f}" if value >= 0.995 else f"{value:.3f}"
    return digits + unit


def format_megabytes(value: float | None) -> str:
    """Format megabytes; less than one is below the resolution of the measurement."""
    return "<1" if value is not None and value < 1 else format_number(value)


def format_share(value: float | None) -> str:
    """Format as a percentage."""
    return "" if value is None else f"{value:.1%}"


def format_time(value: float | None) -> str:
    """Format a time in milliseconds with three digits and without an exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"
