"""The evaluation of a run as tables for the terminal: the funnel first, then all metrics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rankfall.training.config.cascade_metric_names import higher_is_better, shown_name, with_one_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from rankfall.studies.results import EvaluationSummary, StageFigures
    from rankfall.training.stage_figures import Estimate

UP, DOWN = "↑", "↓"  # higher is better, lower is better


def terminal_evaluation(summary: EvaluationSummary, title: str) -> RenderableType:
    """Return the funnel, the metrics with intervals and chance levels, and notes about lists that do not count."""
    from rich.console import Group
    from rich.text import Text

    lists = "lists" if summary.funnel is None else "impressions"
    headline = Text(f"{title}: {summary.impressions:,} {lists}")
    warnings = [Text(f"warning: {text}", style="yellow") for text in summary.warnings]
    return Group(headline, *warnings, *_tables(summary), *map(Text, _notes(summary)))


def _tables(summary: EvaluationSummary) -> Iterator[Table]:
    names = list(with_one_name(summary.metrics))
    if summary.funnel is None:
        yield _metrics_table(summary, names, "")
        return
    yield _funnel_table(summary.funnel, summary.production, len_of(summary))
    alone = [name for name in names if shown_name(name) != name]
    in_funnel = {f"{stage.stage}/{figure}" for stage in summary.funnel for figure in ("lost", "survived")}
    last = f"{summary.funnel[-1].stage}/"  # what is left after the last stage is that of the whole cascade
    joint = [name for name in names if name not in (*alone, *in_funnel) and not name.startswith(last)]
    yield _metrics_table(summary, joint, "the whole cascade, and what is left after each stage")
    if alone:
        yield _metrics_table(summary, alone, "each stage alone, over the whole list")


def len_of(summary: EvaluationSummary) -> int:
    """Return the number of impressions that count: those with a relevant item."""
    return summary.impressions - summary.undefined["joint_recall"]


def _funnel_table(figures: Sequence[StageFigures], production: Sequence[StageFigures] | None, count: int) -> Table:
    from rich.table import Table

    table = Table(
        title=f"what each stage keeps of the relevant items that arrive, n = {count:,}",
        title_justify="left",
        title_style="italic",
    )
    table.add_column("stage", style="cyan", no_wrap=True)
    of_production = {one.stage: one for one in production or ()}
    headings = ["keeps", "arrived", f"kept {UP}", "95 % interval", "chance", f"lost {DOWN}", "of all losses"]
    for heading in (*headings, *([f"production kept {UP}"] if of_production else [])):
        table.add_column(heading, justify="right")
    for one in figures:
        row = [f"{one.quota:,}", f"{one.entered:,.1f}", _number(one.kept.value), _interval(one.kept)]
        row += [_number(one.chance), _number(one.lost.value), _percent(one.loss_share.value)]
        row += [_number(of_production[one.stage].kept.value) if one.stage in of_production else ""]
        table.add_row(one.stage, *row[: len(table.columns) - 1])
    return table


def _metrics_table(summary: EvaluationSummary, names: Sequence[str], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="italic")
    table.add_column("metric", style="cyan")
    for heading in ("mean", "95 % interval", "chance", "n"):
        table.add_column(heading, justify="right")
    for name in names:
        low, high = summary.intervals.get(name, (math.nan, math.nan))
        table.add_row(
            f"{shown_name(name)} {UP if _higher_is_better(name) else DOWN}",
            _number(summary.metrics[name]),
            _ends(low, high),
            _number(summary.chance[name]),
            f"{summary.impressions - summary.undefined[name]:,}",
        )
    return table


def _higher_is_better(metric: str) -> bool:
    """Return the direction of a metric of cascades or of lists."""
    return higher_is_better(f"/{metric}")


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"


def _interval(estimate: Estimate) -> str:
    return _ends(estimate.low, estimate.high)


def _ends(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"{low:.4f} to {high:.4f}"


def _notes(summary: EvaluationSummary) -> Iterator[str]:
    what = "document" if summary.funnel is None else "item"
    without = summary.undefined["joint_recall"] if summary.funnel else max(summary.undefined.values(), default=0)
    if summary.funnel or len(set(summary.undefined.values())) == 1:
        if without:
            yield f"{without:,} of {summary.impressions:,} have no relevant {what} and are excluded from the means"
    else:
        yield f"n: the number of lists on which a metric is defined, of {summary.impressions:,}"
    for stage, whole in (summary.kept_whole or {}).items():
        if whole:
            yield (
                f"{whole:,} of {len_of(summary):,} that count are not longer than the quota of {stage}, which drops "
                "none of their items"
            )
    if any(not math.isnan(low) for low, _ in summary.intervals.values()):
        unit = "lists" if summary.funnel is None else summary.resampled
        yield f"{UP} higher is better, {DOWN} lower is better; intervals: bootstrap over {unit}"
    if summary.production_note:
        yield f"production: {summary.production_note}"
