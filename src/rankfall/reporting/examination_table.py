"""The examination curve of a log as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rankfall.examination import ExaminationCurve


def terminal_examination(curve: ExaminationCurve) -> RenderableType:
    """Return the positions with their shows, the naive and the estimated examination, and notes."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("position", "shows", "clicks", "naive", "estimate", "95 % interval"):
        table.add_column(heading, justify="right", style="cyan" if heading == "position" else None)
    for point in curve.points:
        table.add_row(
            str(point.position),
            f"{point.shows:,}",
            f"{point.clicks:,}",
            f"{point.naive:.3f}",
            f"{point.examination:.3f}",
            "" if point.position == 0 else f"{point.low:.3f} to {point.high:.3f}",
        )
    given = f" given {', '.join(curve.given)}" if curve.given else ""
    lines = [
        f"Rates are relative to the first position. Estimated by {curve.method}{given}; intervals from "
        f"{curve.resamples} bootstrap samples of {curve.resampled}.",
        *(f"note: {note}" for note in curve.notes),
    ]
    headline = Text(f"{curve.log}: examination of positions, by {curve.feedback} of {curve.requests:,} requests")
    return Group(headline, table, *map(Text, lines))
