"""The evaluation of a run as tables for the terminal: the funnel first, then all metrics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rankfall.training.config.component_checks import ALONE, SHOWN, higher_is_better, shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from rankfall.reporting.folding import FoldedTable
    from rankfall.studies.results import EvaluationSummary, StageFigures
    from rankfall.training.cascade_metrics import Estimate

UP, DOWN = "↑", "↓"  # higher is better, lower is better


def terminal_evaluation(summary: EvaluationSummary, title: str) -> RenderableType:
    """Return the funnel, the metrics with intervals and chance levels, and notes about lists that do not count."""
    from rich.console import Group
    from rich.text import Text

    lists = "lists" if summary.funnel is None else "impressions"
    headline = Text(f"{title}: {summary.impressions:,} {lists}")
    warnings = [Text(f"warning: {text}", style="yellow") for text in summary.warnings]
    return Group(headline, *warnings, *_tables(summary), *map(Text, _notes(summary)))


def _tables(summary: EvaluationSummary) -> Iterator[FoldedTable]:
    names = list(summary.metrics)
    if summary.funnel is None:
        yield _metrics_table(summary, names, "")
        return
    yield _funnel_table(summary.funnel, summary.production, counted(summary))
    alone = [name for name in names if f"/{ALONE}/" in name]
    in_funnel = {f"{stage.stage}/{figure}" for stage in summary.funnel for figure in ("lost", "survived")}
    last = f"{summary.funnel[-1].stage}/"  # what is left after the last stage is that of the whole cascade
    shown = [name for name in names if f"/{SHOWN}/" in name]
    joint = [name for name in names if name not in (*alone, *in_funnel, *shown) and not name.startswith(last)]
    yield _metrics_table(summary, joint, "the whole cascade, and what is left after each stage")
    if alone:
        yield _metrics_table(summary, alone, "each stage alone, over the whole list")
    if shown:
        yield _metrics_table(summary, shown, "each stage alone, within the items that were shown")


def counted(summary: EvaluationSummary) -> int:
    """Return the number of impressions that count: those with a relevant item."""
    return summary.impressions - summary.undefined["joint_recall"]


def _funnel_table(
    figures: Sequence[StageFigures], production: Sequence[StageFigures] | None, count: int
) -> FoldedTable:
    table = _table(f"what each stage keeps of the relevant items that arrive, n = {count:,}", "stage")
    of_production = {one.stage: one for one in production or ()}
    headings = ["keeps", "arrived", f"kept {UP} [95 %]", "chance", f"lost {DOWN}", "of all\nlosses"]
    for heading in (*headings, *([f"production\nkept {UP}"] if of_production else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in figures:
        row = [f"{one.quota:,}", f"{one.entered:,.1f}", f"{_share(one.kept.value)}{_interval(one.kept)}"]
        row += [_share(one.chance), _share(one.lost.value), _percent(one.loss_share.value)]
        if of_production:
            row.append(_share(of_production[one.stage].kept.value) if one.stage in of_production else "")
        table.add_row(one.stage, *row)
    return _folded(table)


def _metrics_table(summary: EvaluationSummary, names: Sequence[str], title: str) -> FoldedTable:
    table = _table(title, "metric")
    for heading in ("mean", "95 % interval", "chance", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        low, high = summary.intervals.get(name, (math.nan, math.nan))
        table.add_row(
            f"{shown_name(name)} {UP if higher_is_better(name) else DOWN}",
            _number(summary.metrics[name]),
            "" if math.isnan(low) else f"{low:.4f} to {high:.4f}",
            _number(summary.chance[name]),
            f"{summary.impressions - summary.undefined[name]:,}",
        )
    return _folded(table)


def _table(title: str, first: str) -> Table:
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="italic")
    table.add_column(first, style="cyan", no_wrap=True)
    return table


def _folded(table: Table) -> FoldedTable:
    """Return a table that continues below where the line ends, so that no number is cut."""
    from rankfall.reporting.folding import FoldedTable

    return FoldedTable(table)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _share(value: float) -> str:
    """Return a share with three digits; without a zero before the point the table fits into 80 columns."""
    return "" if math.isnan(value) else f"{value:.3f}".removeprefix("0")


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"


def _interval(estimate: Estimate) -> str:
    return "" if math.isnan(estimate.low) else f" [{_share(estimate.low)}, {_share(estimate.high)}]"


def _needs_a_relevant_item(metric: str) -> bool:
    """Return whether a metric is undefined exactly on lists without a relevant item: not pairs, value or feedback."""
    return metric == "joint_recall" or ("/" not in metric and not metric.startswith(("opa", "joint")))


def _notes(summary: EvaluationSummary) -> Iterator[str]:
    what = "document" if summary.funnel is None else "item"
    without = max((count for name, count in summary.undefined.items() if _needs_a_relevant_item(name)), default=0)
    if without:
        yield f"{without:,} of {summary.impressions:,} have no relevant {what} and are excluded from the means"
    if len(set(summary.undefined.values())) > 1:
        yield "n: on how many of them a metric is defined"
    for stage, whole in (summary.kept_whole or {}).items():
        if whole:
            yield (
                f"{whole:,} of {counted(summary):,} that count are not longer than the quota of {stage}, which drops "
                "none of their items"
            )
    if any(not math.isnan(low) for low, _ in summary.intervals.values()):
        unit = "lists" if summary.funnel is None else summary.resampled
        yield f"{UP} higher is better, {DOWN} lower is better; intervals: bootstrap over {unit}"
    if summary.production_note:
        yield f"production: {summary.production_note}"
