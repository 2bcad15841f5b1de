"""Losses trained for one Recall@m'@k' and evaluated on another Recall@m@k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import HeatMaps
from rankfall.reproductions.paper_schema import fill
from rankfall.reproductions.protocols import LIST_RATES, list_config, method_sections, oracle, run_comparison
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.reproductions.paper_schema import CutoffTransfer
    from rankfall.reproductions.task import Task

    Cell = dict[str, Any]  # panel (the loss), row (trained for), column (evaluated at) and value


def run(reproduction: CutoffTransfer, task: Task) -> Report:
    """Train every loss for every pair of cut-offs and evaluate each on all pairs."""
    data = task.lists(reproduction.protocol)
    cutoffs = {f"{one.m}@{one.k}": one.model_dump() for one in pick_points(reproduction.cutoffs, task.size.points)}
    metrics = {name: fill(reproduction.metric, one) for name, one in cutoffs.items()}
    sections = {
        f"{loss} {name}": section
        for name, one in cutoffs.items()
        for loss, section in method_sections(reproduction.methods, LIST_RATES, tune=False, variables=one).items()
    }
    config = list_config(reproduction.protocol, task, data, sections, metrics=list(metrics.values()))
    comparison = run_comparison(task, config)
    means = {method.name: method.metrics for method in comparison.methods}
    cells: list[Cell] = [
        {"panel": loss.name, "row": name, "column": column, "value": means[f"{loss.name} {name}"][metric].mean}
        for loss in reproduction.methods
        for name in cutoffs
        if f"{loss.name} {name}" in means
        for column, metric in metrics.items()
    ]
    figure = HeatMaps(
        cells,
        title="Recall@m@k, trained for one pair of cut-offs and evaluated on another",
        subtitle=f"{data.name}; framed: the best training for each evaluation",
        row="trained for m'@k'",
        column="evaluated at m@k",
    )
    losses = list(dict.fromkeys(cell["panel"] for cell in cells))
    best_on_diagonal = {loss: _best_on_diagonal(loss, cells) for loss in losses}
    return Report(
        sheets=[_sheet(loss, cells, list(metrics)) for loss in losses],
        plots={reproduction.id: figure},
        results={
            "comparison": comparison.to_json(),
            "cells": cells,
            "on_the_diagonal": best_on_diagonal,
            "published": None,
            "oracle": oracle(data, list(metrics.values())),
            "data": data.summary(),
        },
        notes=[
            *(
                f"{loss}: training for the evaluated cut-offs is best in {count} of {len(cutoffs)} columns."
                for loss, count in best_on_diagonal.items()
            ),
            *reproduction.notes,
        ],
    )


def _best_row(loss: str, column: str, cells: Sequence[Cell]) -> str:
    of_column = [cell for cell in cells if (cell["panel"], cell["column"]) == (loss, column)]
    row: str = max(of_column, key=lambda cell: cell["value"])["row"]
    return row


def _best_on_diagonal(loss: str, cells: Sequence[Cell]) -> int:
    columns = dict.fromkeys(cell["column"] for cell in cells)
    return sum(_best_row(loss, column, cells) == column for column in columns)


def _sheet(loss: str, cells: Sequence[Cell], cutoffs: Sequence[str]) -> Sheet:
    values = {(cell["row"], cell["column"]): cell["value"] for cell in cells if cell["panel"] == loss}
    best = {column: _best_row(loss, column, cells) for column in cutoffs}
    rows = [
        [row, *(f"{format_value(values[row, column])}{' <' * (best[column] == row)}" for column in cutoffs)]
        for row in cutoffs
        if (row, cutoffs[0]) in values
    ]
    return Sheet(f"{loss}: recall by training (rows) and evaluation (columns)", ["trained for", *cutoffs], rows)
