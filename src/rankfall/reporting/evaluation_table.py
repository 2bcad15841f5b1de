"""The evaluation of a run as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from rankfall.studies.results import EvaluationSummary


def terminal_evaluation(summary: EvaluationSummary, title: str) -> RenderableType:
    """Return the metrics beside their chance levels, and notes about lists that do not count."""
    from rich.console import Group
    from rich.text import Text

    lists = "lists" if summary.kept_whole is None else "impressions"
    headline = Text(f"{title}: {summary.impressions:,} {lists}")
    return Group(headline, _table(summary), *map(Text, _notes(summary)))


def _table(summary: EvaluationSummary) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("metric", style="cyan")
    counts_differ = len(set(summary.undefined.values())) > 1
    for heading in ("mean", "chance", *(["undefined on"] if counts_differ else [])):
        table.add_column(heading, justify="right")
    for name, value in summary.metrics.items():
        row = [f"{value:.4f}", f"{summary.chance[name]:.4f}"]
        table.add_row(name, *row, *([f"{summary.undefined[name]:,}"] if counts_differ else []))
    return table


def _notes(summary: EvaluationSummary) -> Iterator[str]:
    undefined = set(summary.undefined.values())
    if len(undefined) == 1 and undefined != {0}:
        what = "document" if summary.kept_whole is None else "item"
        yield f"{undefined.pop():,} of {summary.impressions:,} have no relevant {what} and are excluded from the means"
    for stage, count in (summary.kept_whole or {}).items():
        if count:
            counted = summary.impressions - summary.undefined[f"{stage}/recall"]
            yield (
                f"{count:,} of {counted:,} that count are not longer than the quota of {stage}, which drops none of "
                "their items"
            )
