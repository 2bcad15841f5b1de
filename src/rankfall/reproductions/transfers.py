"""Methods that are trained in one setting and tested in others: cut-offs, lengths of lists, epochs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.data import RankingData
from rankfall.losses import pirank_ndcg_loss
from rankfall.metrics import ndcg
from rankfall.metrics.named import parse
from rankfall.reporting.charts import curves, heat_maps
from rankfall.reproductions.paper_schema import fill
from rankfall.reproductions.protocols import deviations, list_config, oracle, train_methods
from rankfall.reproductions.published import format_value, pick_points
from rankfall.reproductions.task import Report, few_seeds_note, sheet
from rankfall.studies.compare import LEAST_SEEDS
from rankfall.training.build import Temperature, scheduled
from rankfall.training.config.ranker_config import validate
from rankfall.training.measured_lists import score
from rankfall.training.methods import train
from rankfall.training.train_ranker import load_lists, load_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankfall.data.lists.list_loader import Lists
    from rankfall.reporting.blocks import Table
    from rankfall.reporting.charts import Chart
    from rankfall.reproductions.data import ListData
    from rankfall.reproductions.paper_schema import CutoffTransfer, LengthTransfer, Number, Options, TrainingCurves
    from rankfall.reproductions.task import Task
    from rankfall.training.checks import Ranker
    from rankfall.training.config.ranker_config import RankerConfig

    Map = Mapping[tuple[str, str], float]  # values by the cut-offs in training and those in the evaluation
    Tau = Number | Options  # a temperature, or its schedule

MEAN, DIAGONAL = "mean of the map", "mean of the diagonal"
BEHIND = "best - diagonal"  # of a column; 0 if training for the evaluated cut-offs is best
RANGE = "best - worst"  # of a column: how much depends on the cut-offs in training
ON_DIAGONAL = "best on the diagonal"


def cutoff_transfer(reproduction: CutoffTransfer, task: Task) -> Report:
    """Train every loss for every pair of cut-offs and evaluate each on all pairs."""
    cutoffs = {f"{one.m}@{one.k}": one.model_dump() for one in pick_points(reproduction.cutoffs, task.size.points)}
    metrics = {name: fill(reproduction.metric, one) for name, one in cutoffs.items()}
    variants = [
        loss.filled(one, f"{loss.name} {name}") for name, one in cutoffs.items() for loss in reproduction.methods
    ]
    trained = train_methods(reproduction.protocol, task, variants, tune=False, metrics=list(metrics.values()))
    data, comparison = trained.data, trained.comparison
    means = {method.name: method.metrics for method in comparison.methods}
    maps: dict[str, Map] = {
        loss.name: {
            (name, column): means[f"{loss.name} {name}"][metric].mean
            for name in cutoffs
            if f"{loss.name} {name}" in means
            for column, metric in metrics.items()
        }
        for loss in reproduction.methods
    }
    maps = {loss: values for loss, values in maps.items() if values}
    summary = {loss: summary_of(values) for loss, values in maps.items()}
    claims = len(comparison.seeds) >= LEAST_SEEDS
    return Report(
        sheets=[
            *(_sheet(loss, values, list(metrics), claims=claims) for loss, values in maps.items()),
            _summary_sheet(summary, len(cutoffs)),
        ],
        plots={
            reproduction.id: heat_maps(
                maps,
                title="Recall@m@k, trained for one pair of cut-offs and evaluated on another",
                caption=f"{data.name}; rows: trained for m'@k', columns: evaluated at m@k; framed: the best training "
                "for each evaluation, with which the colours of a column are compared",
                by_column=True,
            )
        },
        results={
            "comparison": comparison.to_json(),
            "cells": [
                {"panel": loss, "row": row, "column": column, "value": value}
                for loss, values in maps.items()
                for (row, column), value in values.items()
            ],
            "summary": summary,
            "on_the_diagonal": {loss: one[ON_DIAGONAL] for loss, one in summary.items()},
            "published": {"data": reproduction.data_set, "claim": reproduction.claim},
            "oracle": oracle(data, list(metrics.values())),
            "data": data.summary(),
        },
        notes=[
            f"The paper, on {reproduction.data_set}: {reproduction.claim}",
            *few_seeds_note(comparison.seeds),
            *trained.deviations,
            *reproduction.notes,
        ],
    )


def summary_of(values: Map) -> dict[str, float]:
    """Return the level of a map, how well training and evaluation agree, and how much the training matters."""
    by_column = _columns(values)
    ends = [(max(of.values()), min(of.values()), of[column]) for column, of in by_column.items()]
    return {
        MEAN: mean(values.values()),
        DIAGONAL: mean(own for _, _, own in ends),
        BEHIND: mean(best - own for best, _, own in ends),
        RANGE: mean(best - worst for best, worst, _ in ends),
        ON_DIAGONAL: sum(_best_row(of) == column for column, of in by_column.items()),
    }


def _columns(values: Map) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (row, column), value in values.items():
        found.setdefault(column, {})[row] = value
    return found


def _best_row(column: Mapping[str, float]) -> str:
    return max(column, key=lambda row: column[row])


def _summary_sheet(summary: Mapping[str, Mapping[str, float]], columns: int) -> Table:
    names = (MEAN, DIAGONAL, BEHIND, RANGE)
    rows = [
        [loss, *(format_value(one[name]) for name in names), f"{one[ON_DIAGONAL]} of {columns}"]
        for loss, one in summary.items()
    ]
    return sheet("the maps in numbers", ["loss", *names, ON_DIAGONAL], rows)


def _sheet(loss: str, values: Map, cutoffs: Sequence[str], *, claims: bool) -> Table:
    best = {column: _best_row(of) for column, of in _columns(values).items()}
    rows = [
        [row, *(f"{format_value(values[row, column])}{' <' * (claims and best[column] == row)}" for column in cutoffs)]
        for row in cutoffs
        if (row, cutoffs[0]) in values
    ]
    return sheet(f"{loss}: recall by training (rows) and evaluation (columns)", ["trained for", *cutoffs], rows)


Values = dict[tuple[str, int, int], float]  # by metric, length of training lists and length of test lists


def length_transfer(reproduction: LengthTransfer, task: Task) -> Report:
    """Train on samples of each length from every list, and test on samples of each length."""
    lengths, metrics, method = (
        pick_points(reproduction.lengths, task.size.points),
        reproduction.metrics,
        reproduction.method,
    )
    variants = [method.filled({"length": length}, _label(length)) for length in lengths]
    found = train_methods(reproduction.protocol, task, variants, tune=False, metrics=metrics)
    data, comparison = found.data, found.comparison
    of_length = {_label(length): length for length in lengths}
    stored = RankingData.load(data.path)
    values: Values = {}
    for summary in comparison.methods:
        parts: dict[tuple[str, int, int], list[torch.Tensor]] = {}
        for one in summary.runs or []:
            run, model = load_run(task.out / "comparison" / one.directory)
            lists = load_lists(stored, run.data, "test")
            scores = score(model, lists)
            for length in lengths:  # of the test lists, with the same documents for all trainings
                for metric, of_lists in measure_samples(scores, lists, length, metrics, task.seed).items():
                    parts.setdefault((metric, of_length[summary.name], length), []).append(of_lists)
        values |= {key: float(torch.cat(of).double().nanmean()) for key, of in parts.items()}
    trained = [of_length[summary.name] for summary in comparison.methods]
    gained = gains(values, lengths[0])
    patterns = find_patterns(values, gained, lengths) if trained == lengths else []
    return Report(
        sheets=[_length_transfer_sheet(values, gained, metrics, trained, lengths), *_pattern_sheet(patterns)],
        plots={reproduction.id: _length_transfer_figure(reproduction, data.name, gained, lengths)},
        results={
            "comparison": comparison.to_json(),
            "cells": [
                {"metric": metric, "trained": train, "tested": test, "value": value, "gain": gained.get(key)}
                for key, value in values.items()
                for metric, train, test in [key]
            ],
            "patterns": [{"claim": one.claim, "holds": one.holds, "of": one.of} for one in patterns],
            "published": {"sizes": reproduction.lengths, "claims": [one.claim for one in patterns]},
            "data": data.summary(),
        },
        notes=[
            *few_seeds_note(comparison.seeds),
            *found.deviations,
            *reproduction.notes,
        ],
    )


# --- what the paper claims ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pattern:
    """A claim about pairs of neighbouring cells, the number of pairs for which it holds here, and of all pairs."""

    claim: str
    holds: int
    of: int


def gains(values: Values, shortest: int) -> Values:
    """Return the relative improvement over training on the shortest lists; positive is better for every metric.

    >>> gains({("ndcg@1", 10, 20): 0.4, ("ndcg@1", 40, 20): 0.5, ("arp", 10, 20): 8.0, ("arp", 40, 20): 6.0}, 10)
    {('ndcg@1', 10, 20): 0.0, ('ndcg@1', 40, 20): 0.25, ('arp', 10, 20): 0.0, ('arp', 40, 20): 0.25}
    """
    found = {}
    for (metric, trained, test), value in values.items():
        base = values.get((metric, shortest, test))
        if base:
            sign = 1 if parse(metric).higher_is_better else -1
            found[metric, trained, test] = round(sign * (value / base - 1), 12) + 0.0  # no -0.0
    return found


def find_patterns(values: Values, gained: Values, lengths: Sequence[int]) -> list[Pattern]:
    """Count the pairs of neighbouring cells for which the claims of PiRank, section 4.2, hold."""
    metrics = list(dict.fromkeys(metric for metric, _, _ in values))
    cutoffs = [metric for metric in metrics if metric.startswith("ndcg@")]
    longer = lengths[1:]

    def longer_trains_better(chosen: Iterable[str]) -> list[bool]:
        return [
            gained[metric, long, test] > gained[metric, short, test]
            for metric, test in product(chosen, lengths)
            for short, long in pairwise(lengths)
        ]

    less_at_larger_k = [
        gained[large, train, test] < gained[small, train, test]
        for small, large in pairwise(cutoffs)
        for train, test in product(longer, lengths)
    ]
    more_on_longer_tests = [
        gained[metric, train, long] > gained[metric, train, short]
        for metric, train in product(cutoffs, longer)
        for short, long in pairwise(lengths)
    ]
    found = [
        ("a longer training list is better, at every test length and k", longer_trains_better(cutoffs)),
        ("the gain decreases with k", less_at_larger_k),
        ("the gain increases with the test length (the paper: except for lists of 20 at k = 1)", more_on_longer_tests),
    ]
    if cutoffs:
        in_cutoffs = {key: value for key, value in gained.items() if key[0] in cutoffs}
        largest = max(in_cutoffs, key=lambda key: in_cutoffs[key])
        corner = (cutoffs[0], lengths[-1], lengths[-1])
        found.append(
            (
                "the gain is largest for the longest lists at the smallest k",
                [largest == corner],
            )
        )
    published = {"mrr": "always", "opa": "not always", "arp": "not always"}
    found += [
        (f"{metric.upper()}: a longer training list is better (the paper: {often})", longer_trains_better([metric]))
        for metric, often in published.items()
        if metric in metrics
    ]
    return [Pattern(claim, sum(holds), len(holds)) for claim, holds in found if holds]


def _pattern_sheet(patterns: Sequence[Pattern]) -> list[Table]:
    rows = [[one.claim, f"{one.holds} of {one.of}"] for one in patterns]
    return [sheet("claims of the paper: pairs of neighbouring cells for which they hold here", ["", "here"], rows)]


def _label(length: int) -> str:
    return f"lists of {length}"


def measure_samples(
    scores: torch.Tensor, lists: Lists, length: int, metrics: Sequence[str], seed: int
) -> dict[str, torch.Tensor]:
    """Return the metrics of every list, cut to a random sample of `length` documents."""
    batch: Any = lists.batch(np.arange(len(lists)), max_list=length, rng=np.random.default_rng([seed, length]))
    padded = batch.pad(scores[torch.from_numpy(batch.rows)])
    return {name: parse(name)(padded, batch.labels, batch.mask) for name in metrics}


# --- reporting ----------------------------------------------------------------------------------------------------


def _length_transfer_sheet(
    values: Values, gained: Values, metrics: Sequence[str], trained: Sequence[int], lengths: Sequence[int]
) -> Table:
    def cell(metric: str, train: int, test: int) -> str:
        key = (metric, train, test)
        gain = f" ({100 * gained[key]:+.1f} %)" if train != lengths[0] and key in gained else ""
        return f"{format_value(values[key])}{gain}"

    rows: list[list[str]] = []
    for metric in metrics:
        rows += [[]] if rows else []
        rows += [
            [f"{metric}, trained on {train}", *(cell(metric, train, test) for test in lengths)] for train in trained
        ]
    title = f"by length of test lists, with the gain over training on lists of {lengths[0]}"
    return sheet(title, ["", *(f"tested on {length}" for length in lengths)], rows)


def _length_transfer_figure(reproduction: LengthTransfer, data: str, gained: Values, lengths: Sequence[int]) -> Chart:
    shown = [metric for metric in reproduction.metrics if metric.startswith("ndcg")] or reproduction.metrics
    panels: dict[str, dict[str, list[tuple[float, ...]]]] = {metric: {} for metric in shown}
    for (metric, trained, test), gain in gained.items():
        if metric in panels:
            panels[metric].setdefault(_label(trained), []).append((test, 100 * gain))
    return curves(
        panels,
        title=f"{reproduction.method.name}: gain in percent over training on lists of {lengths[0]}",
        caption=f"{data}; all metrics are in results.json",
        x="documents in a test list",
        log_x=True,
        ticks=lengths,
    )


RELAXED, HARD, GRADIENT = "relaxed", "hard", "gradient"


def training_curves(reproduction: TrainingCurves, task: Task) -> Report:
    """Train at each temperature on the first fold and measure both metrics on validation lists after every epoch."""
    data = task.lists(reproduction.protocol)
    metric = f"NDCG@{reproduction.k}"
    taus: list[Tau] = [*pick_points(reproduction.taus, task.size.points), *reproduction.others]
    measured: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for number, tau in enumerate(taus):
        name = _training_curves_label(tau)
        task.progress(name, number, len(taus))
        measured[name] = _curves(reproduction, task, data, tau)
    summaries = {name: _summary([values for _, values in of]) for name, of in measured.items()}
    columns = ["", "relaxed", "hard", "relaxed - hard", "best hard", "first epoch", "gradient norm, first epoch"]
    rows = [
        [
            name,
            *(format_value(one[key]) for key in ("relaxed", "hard")),
            f"{one['relaxed'] - one['hard']:+.3f}",
            *(format_value(one[key]) for key in ("best", "first")),
            f"{one['gradient']:.2g}",
        ]
        for name, one in summaries.items()
    ]
    title = f"{metric} on {data.name}, validation lists; gradient of the loss by the scores of a list"
    figure = curves(
        {
            name: {metric: [(epoch, values[metric]) for epoch, values in of] for metric in (RELAXED, HARD)}
            for name, of in measured.items()
        },
        title=f"{metric} over training: relaxed at tau, and hard",
        caption=f"{data.name}, validation lists",
        x="epoch",
    )
    return Report(
        sheets=[sheet(title, columns, rows)],
        plots={reproduction.id: figure},
        results={
            "curves": [
                {"series": name, "metric": metric, "x": epoch, "y": value}
                for name, of in measured.items()
                for epoch, values in of
                for metric, value in values.items()
            ],
            "gap_after_the_last_epoch": {name: one["relaxed"] - one["hard"] for name, one in summaries.items()},
            "summaries": summaries,
            "published": {"taus": reproduction.taus},
            "data": data.summary(),
        },
        notes=[*deviations(reproduction.protocol, task, data), *reproduction.notes],
    )


def _training_curves_label(tau: Tau) -> str:
    if isinstance(tau, dict):
        return f"tau = {tau['start']:g} to {tau['end']:g}, {tau.get('schedule', 'exponential')}"
    return f"tau = {tau:g}"


def _summary(epochs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the values after the last epoch, the best one, and those after the first epoch."""
    return {
        "relaxed": epochs[-1][RELAXED],
        "hard": epochs[-1][HARD],
        "best": max(values[HARD] for values in epochs),
        "first": epochs[0][HARD],
        "gradient": epochs[0][GRADIENT],
    }


def _curves(reproduction: TrainingCurves, task: Task, data: ListData, tau: Tau) -> list[tuple[int, dict[str, float]]]:
    """Train at a temperature, and return what is measured after each epoch."""
    config = _config(reproduction, task, data, tau)
    lists = load_lists(RankingData.load(data.path), config.data, "valid")
    found = []

    def measure(epoch: Any, learner: Any) -> None:
        now = tau_at(tau, epoch.epoch / config.training.epochs)
        found.append((epoch.epoch, relaxed_and_hard_ndcg(learner.model, lists, k=reproduction.k, tau=now)))

    name = _training_curves_label(tau).replace("tau = ", "tau-").replace(" ", "-").replace(",", "")
    train(config, task.out / "training" / name, force=True, on_epoch=measure)
    return found


def tau_at(tau: Tau, share: float) -> float:
    """Return the temperature after a share of training.

    >>> round(tau_at({"start": 100, "end": 1, "schedule": "exponential"}, 0.5), 6)
    10.0
    """
    temperatures: list[Temperature] = []
    now = scheduled("tau", tau, temperatures)
    for temperature in temperatures:
        temperature.set(share)
    return float(now)


def _config(reproduction: TrainingCurves, task: Task, data: ListData, tau: Tau) -> RankerConfig:
    comparison = list_config(reproduction.protocol, task, data, {"pirank": {}})
    content = {
        "data": {**comparison.data, **next(iter(data.folds.values()))},
        "model": comparison.model,
        "loss": {"name": "pirank_ndcg_loss", "k": reproduction.k, "tau": tau},
        "optimizer": comparison.optimizer,
        "training": {**comparison.training, "patience": None, "seed": task.seed},
    }
    return validate(content)


def relaxed_and_hard_ndcg(model: Ranker, lists: Lists, *, k: int, tau: float) -> dict[str, float]:
    """Return the means of both metrics, and of the norm of the gradient, over the lists with a relevant document."""
    scores = score(model, lists)
    values: dict[str, list[torch.Tensor]] = {RELAXED: [], HARD: [], GRADIENT: []}
    for batch in lists.by_length():
        padded = batch.pad(scores[torch.from_numpy(batch.rows)]).requires_grad_()
        hard = ndcg(padded.detach(), batch.labels, k=k, mask=batch.mask, empty=float("nan"))
        loss = pirank_ndcg_loss(padded, batch.labels, mask=batch.mask, k=k, tau=tau, reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), padded)
        values[HARD].append(hard)
        values[RELAXED].append((1 - loss.detach()).masked_fill(hard.isnan(), float("nan")))
        values[GRADIENT].append(gradient.norm(dim=-1).masked_fill(hard.isnan(), float("nan")))
    return {metric: float(torch.cat(parts).double().nanmean()) for metric, parts in values.items()}
