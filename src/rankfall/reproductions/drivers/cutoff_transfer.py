"""Losses trained for one Recall@m'@k' and evaluated on another Recall@m@k."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import HeatMaps
from rankfall.reproductions.paper_schema import fill
from rankfall.reproductions.protocols import (
    LIST_RATES,
    deviations,
    list_config,
    method_sections,
    oracle,
    run_comparison,
)
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet, few_seeds_note
from rankfall.studies.compare import LEAST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.paper_schema import CutoffTransfer
    from rankfall.reproductions.task import Task

    Cell = dict[str, Any]  # panel (the loss), row (trained for), column (evaluated at) and value

MEAN, DIAGONAL = "mean of the map", "mean of the diagonal"
BEHIND = "best - diagonal"  # of a column; 0 if training for the evaluated cut-offs is best
RANGE = "best - worst"  # of a column: how much depends on the cut-offs in training
ON_DIAGONAL = "best on the diagonal"


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
    losses = list(dict.fromkeys(cell["panel"] for cell in cells))
    summary = {loss: summary_of(loss, cells) for loss in losses}
    return Report(
        sheets=[
            *(_sheet(loss, cells, list(metrics), claims=len(comparison.seeds) >= LEAST_SEEDS) for loss in losses),
            _summary_sheet(summary, len(cutoffs)),
        ],
        plots={reproduction.id: _figure(cells, data.name)},
        results={
            "comparison": comparison.to_json(),
            "cells": cells,
            "summary": summary,
            "on_the_diagonal": {loss: one[ON_DIAGONAL] for loss, one in summary.items()},
            "published": {"data": reproduction.data_set, "claim": reproduction.claim},
            "oracle": oracle(data, list(metrics.values())),
            "data": data.summary(),
        },
        notes=[
            f"The paper, on {reproduction.data_set}: {reproduction.claim}",
            *few_seeds_note(comparison.seeds),
            *deviations(reproduction.protocol, task, data),
            *reproduction.notes,
        ],
    )


def _figure(cells: list[Cell], data: str) -> HeatMaps:
    return HeatMaps(
        cells,
        title="Recall@m@k, trained for one pair of cut-offs and evaluated on another",
        subtitle=f"{data}; framed: the best training for each evaluation",
        row="trained for m'@k'",
        column="evaluated at m@k",
    )


def summary_of(loss: str, cells: Sequence[Cell]) -> dict[str, float]:
    """Return the level of a map, how well training and evaluation agree, and how much the training matters."""
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    of_loss = [cell for cell in cells if cell["panel"] == loss]
    by_column = [{cell["row"]: cell["value"] for cell in of_loss if cell["column"] == column} for column in columns]
    on_diagonal = [values[column] for column, values in zip(columns, by_column, strict=True)]
    return {
        MEAN: mean(cell["value"] for cell in of_loss),
        DIAGONAL: mean(on_diagonal),
        BEHIND: mean(max(values.values()) - own for values, own in zip(by_column, on_diagonal, strict=True)),
        RANGE: mean(max(values.values()) - min(values.values()) for values in by_column),
        ON_DIAGONAL: sum(_best_row(loss, column, cells) == column for column in columns),
    }


def _summary_sheet(summary: Mapping[str, Mapping[str, float]], columns: int) -> Sheet:
    names = (MEAN, DIAGONAL, BEHIND, RANGE)
    rows = [
        [loss, *(format_value(one[name]) for name in names), f"{one[ON_DIAGONAL]} of {columns}"]
        for loss, one in summary.items()
    ]
    return Sheet("the maps in numbers", ["loss", *names, ON_DIAGONAL], rows)


def _best_row(loss: str, column: str, cells: Sequence[Cell]) -> str:
    of_column = [cell for cell in cells if (cell["panel"], cell["column"]) == (loss, column)]
    row: str = max(of_column, key=lambda cell: cell["value"])["row"]
    return row


def _sheet(loss: str, cells: Sequence[Cell], cutoffs: Sequence[str], *, claims: bool) -> Sheet:
    values = {(cell["row"], cell["column"]): cell["value"] for cell in cells if cell["panel"] == loss}
    best = {column: _best_row(loss, column, cells) for column in cutoffs}
    rows = [
        [row, *(f"{format_value(values[row, column])}{' <' * (claims and best[column] == row)}" for column in cutoffs)]
        for row in cutoffs
        if (row, cutoffs[0]) in values
    ]
    return Sheet(f"{loss}: recall by training (rows) and evaluation (columns)", ["trained for", *cutoffs], rows)
