"""Time and memory of operators and of training steps, beside published ones; all methods of a table run in turns."""

from __future__ import annotations

import math
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rankfall.benchmarks.operators import OPERATORS
from rankfall.benchmarks.timing import (
    MAX_BYTES,
    Shape,
    cpu_seconds,
    cpu_spread,
    growth_exponent,
    peak_bytes,
    time_in_turns,
)
from rankfall.losses import pirank_ndcg_loss
from rankfall.models import MLP, FeatureScaling
from rankfall.ops import pirank_sort
from rankfall.reporting.charts import Chart, curves
from rankfall.reproductions import textbook
from rankfall.reproductions.protocols import CASCADE_RATES, LIST_RATE, cascade_config, method_sections
from rankfall.reproductions.published import values_chart
from rankfall.reproductions.task import Report, sheet
from rankfall.studies.comparison_plan import make_plan
from rankfall.training.build import classifies, make_loss, make_optimizer, with_depths
from rankfall.training.cascade_loaders import load_log
from rankfall.training.checks import make_ranker
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.ranker_config import validate
from rankfall.training.device import seeded
from rankfall.training.distributed.group import ALONE
from rankfall.training.learner import Position
from rankfall.training.train_cascade import CascadeLearner
from rankfall.training.train_ranker import load_data, load_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.benchmarks.timing import Step
    from rankfall.reporting.blocks import Table
    from rankfall.reproductions.data import ListData, LogData
    from rankfall.reproductions.paper_schema import (
        LossCost,
        Number,
        ObjectiveRuntime,
        SortRuntime,
        TopkRuntime,
        TrainingCost,
        TrainingSteps,
    )
    from rankfall.reproductions.task import Task

    Content = dict[str, Any]  # a training configuration
    Loss = Callable[[Tensor, Tensor], Tensor]  # scores and labels of some lists to one value per list
    Seconds = Mapping[str, Sequence[float]]  # for each length, by name of the operator
    Times = Mapping[str, Mapping[Number, float]]  # milliseconds for each operator and length

# --- training steps -----------------------------------------------------------------------------------------------


def _cost_report(
    reproduction: TrainingCost,
    data: ListData | LogData,
    what: str,
    columns: tuple[str, str],
    costs: Mapping[str, Mapping[str, float]],
    more: Mapping[str, Mapping[str, str]],
    results: Mapping[str, Any],
) -> Report:
    """Report the time and the memory of each method, which are named by `columns`, beside the published ones."""
    return Report(
        sheets=[
            _cost_sheet(
                f"{reproduction.title} here: {what} ({data.name})", columns, costs, reproduction.baseline, more
            ),
            published_costs(reproduction),
        ],
        plots={reproduction.id: cost_figure(reproduction, data.name, columns, costs)},
        results={
            **results,
            "published": {"title": reproduction.title, "figures": reproduction.published.only[1]},
            "data": data.summary(),
        },
        notes=reproduction.notes,
    )


def published_costs(reproduction: TrainingCost) -> Table:
    """Return the printed costs with their ratios."""
    source, costs = reproduction.published.only
    time, memory = reproduction.published.metrics
    more = {"complexity": reproduction.complexity} if reproduction.complexity else {}
    return _cost_sheet(f"published: {reproduction.title}, {source}", (time, memory), costs, reproduction.baseline, more)


def _cost_sheet(
    title: str,
    columns: tuple[str, str],
    costs: Mapping[str, Mapping[str, float]],
    baseline: str,
    more: Mapping[str, Mapping[str, str]],
) -> Table:
    """Return a row per method: time, its ratio, the columns of `more`, memory, its ratio."""
    form = ".3g" if more and "complexity" not in more else "g"

    def cells(row: Mapping[str, float], column: str) -> list[str]:
        if column not in row:
            return ["-", "-"]
        return [f"{row[column]:{form}}", f"{_ratio(row[column], costs[baseline][column]):.2f}"]

    time, memory = columns
    rows = [
        [name, *cells(row, time), *(of[name] for of in more.values()), *cells(row, memory)]
        for name, row in costs.items()
    ]
    return sheet(title, ["method", time, f"time / {baseline}", *more, memory, f"memory / {baseline}"], rows)


def _ratio(cost: float, baseline: float) -> float:
    """Return a relative cost; the memory of a small step may fit into what the process has already."""
    return cost / baseline if baseline else math.nan


def cost_figure(
    reproduction: TrainingCost, here: str, columns: tuple[str, str], costs: Mapping[str, Mapping[str, float]]
) -> Chart:
    """Draw time and memory relative to the baseline, which do not depend on the machine."""
    source, figures = reproduction.published.only

    def relative(found: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        base, named = found[reproduction.baseline], dict(zip(("time", "memory"), columns, strict=True))
        return {
            name: {metric: (_ratio(row[column], base[column]),) for metric, column in named.items() if column in row}
            for name, row in found.items()
        }

    printed = relative(figures, reproduction.published.metrics)
    return values_chart(
        {here: relative(costs, columns), f"published, {source}": printed},
        title=f"{reproduction.title}: cost of training relative to {reproduction.baseline}",
        costs=True,
    )


# --- losses on ranking lists --------------------------------------------------------------------------------------

QUICK_DOCUMENTS = 2000  # per batch, if the run is a quick one
WARM_UP_DOCUMENTS = 200  # in the step before the one whose memory is measured
GROWTH_LENGTHS, GROWTH_LISTS = (200, 400, 800), 8  # lists on which the growth of the time is measured
GRADES = 5
SECONDS = 1.0  # of each measurement
STEP_TIME, LOSS_TIME, LOSS_GROWTH, MEMORY = "step s/epoch", "loss s/epoch", "loss grows like", "peak MB"


def loss_cost(reproduction: LossCost, task: Task) -> Report:
    """Measure a step with every loss, and the loss alone, in which methods differ.

    A step gathers a batch of documents, computes scores, loss and gradients, and updates the network of the paper.
    """
    data = task.lists(reproduction.protocol)
    documents = QUICK_DOCUMENTS if task.quick else reproduction.documents
    base = {
        "data": {"path": str(data.path), **next(iter(data.folds.values()))},
        "model": reproduction.protocol.network,
        "optimizer": {"lr": LIST_RATE},
    }
    contents: dict[str, Content] = {method.name: {**base, **method.config} for method in reproduction.methods}
    task.progress("times", 0, len(contents) + 1)
    lengths = [length for length in GROWTH_LENGTHS if length <= task.size.longest]
    measured = _times(contents, documents, lengths, SECONDS / 10 if task.quick else SECONDS)
    for number, (name, content) in enumerate(contents.items(), 1):
        task.progress(f"memory of {name}", number, len(contents) + 1)
        full, small = (content, documents), (content, WARM_UP_DOCUMENTS)
        measured[name][MEMORY] = peak_bytes(training_step, small=small, full=full) / 2**20
    more = {
        LOSS_TIME: {name: f"{costs[LOSS_TIME]:.3f}" for name, costs in measured.items()},
        LOSS_GROWTH: {
            name: f"n^{costs[LOSS_GROWTH]:.1f}" if LOSS_GROWTH in costs else "-" for name, costs in measured.items()
        },
    }
    what = f"CPU time of one thread, batches of {documents:,} documents, epochs of all training lists"
    results = {"measured": measured, "documents_per_batch": documents}
    return _cost_report(reproduction, data, what, (STEP_TIME, MEMORY), measured, more, results)


class Training:
    """A model with its loss and optimizer, and one batch."""

    def __init__(self, content: Content, documents: int) -> None:
        config = validate(content)
        data = load_data(config.data)
        self._lists = load_lists(data, config.data, "train")
        self._batch = self._lists.batch(np.arange(self._count(documents)))
        grades = int(self._lists.labels.max()) + 1 if classifies(config.loss) else None
        self._model = make_ranker(config.model, FeatureScaling.identity(data.features, log1p=False), grades)
        self._loss, _ = make_loss(config.loss)
        self._optimizer = make_optimizer(config.optimizer, self._model.parameters(), self._loss.parameters())

    def _count(self, documents: int) -> int:
        """Return the number of first lists that have at least `documents` documents together, or of all lists."""
        totals: list[int] = list(accumulate(self._lists.lengths.tolist()))
        return min(len(totals), 1 + sum(total < documents for total in totals))

    @property
    def batches(self) -> float:
        """Batches per epoch."""
        return self._lists.rows / len(self._batch.rows)

    def parameters(self) -> list[Tensor]:
        """Return all weights that are trained."""
        return [*self._model.parameters(), *self._loss.parameters()]

    def step(self) -> None:
        """Train on the batch once."""
        self._optimizer.zero_grad()
        self._loss_of(self._model(self._lists.gather(self._batch.rows))).backward()
        self._optimizer.step()

    def loss_alone(self) -> Step:
        """Return a step that computes the loss and its gradient by the scores."""
        with torch.no_grad():
            scores = self._model(self._lists.gather(self._batch.rows))
        return partial(_forward_backward, self._loss_of, scores.requires_grad_())

    def _loss_of(self, scores: Tensor) -> Tensor:
        batch = self._batch
        value: Tensor = self._loss(batch.pad(scores), batch.labels, mask=batch.mask)
        return value


def training_step(content: Content, documents: int) -> Step:
    """Return a training step on a batch of the configured data."""
    torch.manual_seed(0)
    return Training(content, documents).step


def _forward_backward(loss: Any, scores: Tensor) -> None:
    torch.autograd.grad(loss(scores), scores)


def _times(
    contents: Mapping[str, Content], documents: int, lengths: Sequence[int], seconds: float
) -> dict[str, dict[str, float]]:
    """Seconds per epoch of the step and of the loss alone, and the exponent of the growth of the latter."""
    torch.manual_seed(0)
    found: dict[str, dict[str, float]] = {name: {} for name in contents}
    trainings = {name: Training(content, documents) for name, content in contents.items()}
    for column, steps in (
        (STEP_TIME, {name: training.step for name, training in trainings.items()}),
        (LOSS_TIME, {name: training.loss_alone() for name, training in trainings.items()}),
    ):
        for name, clock in time_in_turns(steps, seconds=seconds).items():
            found[name][column] = cpu_seconds(clock) * trainings[name].batches
    by_length = [_loss_times(contents, length, seconds) for length in lengths]
    for name in contents if len(lengths) > 1 else ():
        found[name][LOSS_GROWTH] = growth_exponent(lengths, [times[name] for times in by_length])
    return found


def _loss_times(contents: Mapping[str, Content], length: int, seconds: float) -> dict[str, float]:
    """Seconds of each loss on random lists of a length."""
    generator = torch.Generator().manual_seed(length)
    labels = torch.randint(GRADES, (GROWTH_LISTS, length), generator=generator).float()
    steps: dict[str, Step] = {}
    for name, content in contents.items():
        config = validate(content).loss
        shape = (GROWTH_LISTS, length, GRADES) if classifies(config) else (GROWTH_LISTS, length)
        scores = torch.randn(shape, generator=generator).requires_grad_()
        steps[name] = partial(_forward_backward, partial(_on_labels, make_loss(config)[0], labels), scores)
    return {name: cpu_seconds(clock) for name, clock in time_in_turns(steps, seconds=seconds / 4).items()}


def _on_labels(loss: nn.Module, labels: Tensor, scores: Tensor) -> Tensor:
    value: Tensor = loss(scores, labels, mask=torch.ones_like(labels, dtype=torch.bool))
    return value


# --- objectives of a cascade --------------------------------------------------------------------------------------

STEP_SECONDS, QUICK_STEP_SECONDS = 3.0, 0.2  # for each objective
BATCH, QUICK_BATCH = 1024, 256  # impressions per step, at most
SMALL = 4  # impressions of the step that loads libraries


def objective_runtime(reproduction: ObjectiveRuntime, task: Task) -> Report:
    """Measure a training step with every objective: scores of all stages, objective, backward pass and optimizer.

    Times are taken in turns, so that other load of the machine affects all objectives; then the memory is measured.
    """
    data = task.log(reproduction.protocol.platform)
    batch = min(reproduction.protocol.batch, QUICK_BATCH if task.quick else BATCH, data.train_impressions)
    sections = method_sections(reproduction.methods, CASCADE_RATES, tune=False)
    plan = make_plan(cascade_config(reproduction.protocol, data, sections, seeds=[task.seed]), task.out)
    configs = {method: run.config.model_dump_json() for (method, _), (run,) in plan.trials().items()}
    task.progress(f"steps of {batch} impressions", 0, len(configs) + 1)
    steps = {name: cascade_step(config, batch) for name, config in configs.items()}
    clocks = time_in_turns(steps, seconds=QUICK_STEP_SECONDS if task.quick else STEP_SECONDS)
    time, memory = "s per 1,000 impressions", "MiB added by a step"
    costs, results, spreads = {}, {}, {}
    for number, (name, config) in enumerate(configs.items(), 1):
        task.progress(f"memory of {name}", number, len(configs) + 1)
        peak = peak_bytes(cascade_step, small=(config, min(SMALL, batch)), full=(config, batch))
        seconds, spread = 1000 * cpu_seconds(clocks[name]) / batch, cpu_spread(clocks[name])
        costs[name] = {time: seconds, memory: peak / 2**20}
        spreads[name] = "" if spread is None else f"{spread:.0%}"
        results[name] = {"seconds_per_1000_impressions": seconds, "spread": spread, "peak_bytes": peak}
    what = f"CPU seconds of one thread, steps of {batch} impressions"
    found = {"batch": batch, "costs": results}
    return _cost_report(reproduction, data, what, (time, memory), costs, {"spread": spreads}, found)


def cascade_step(config: str, batch: int) -> Step:
    """Return a step that trains the models of a configuration on one batch, on the CPU."""
    content = CascadeConfig.model_validate_json(config)
    training = content.training.model_copy(update={"batch": batch, "device": "cpu"})
    content = content.model_copy(update={"training": training})
    log = load_log(content.data)
    content = with_depths(content, log.spec.stage_names)
    with seeded(content.training.seed, content.training.threads):
        learner = CascadeLearner(content, Path(), log, ALONE)
    return partial(learner.step, next(iter(learner.loader)), Position())


# --- soft sorts by length -----------------------------------------------------------------------------------------

TEXTBOOK, ONE, TREE = "depth 1, textbook (n x n)", "depth 1, rankfall (k rows)", "depth 3, rankfall (tree)"
PUBLISHED_AS = {TEXTBOOK: "depth 1", ONE: "depth 1", TREE: "depth 3"}
LISTS = 64  # timed at once, so that the overhead of calls does not count
MATRIX_ITEMS = 1_000_000  # entries of all n x n matrices at once; long lists are processed in smaller batches
# the highest label of generated lists


def sort_runtime(reproduction: SortRuntime, task: Task) -> Report:
    """Time forward and backward of one row (k = 1), and whole training steps, for every length."""
    lengths = [length for length in reproduction.lengths if length <= task.size.longest]
    per_turn = 0.2 if task.quick else 1.0
    sort_times(2**3, 0.0, task.seed)  # the first call loads libraries
    alone: dict[str, list[float]] = {name: [] for name in PUBLISHED_AS}
    ks = reproduction.training.ks[: 1 if task.quick else None]
    training: dict[int, dict[str, list[float]]] = {k: {name: [] for name in PUBLISHED_AS} for k in ks}
    for number, length in enumerate(lengths):
        task.progress(f"lists of {length}", number, len(lengths))
        _append(alone, sort_times(length, per_turn, task.seed))
        for k, seconds in training.items():
            _append(seconds, step_times(reproduction.training, length, k, per_turn, task.seed))
    sheets = [_sheet(reproduction, lengths, alone, 1000, "milliseconds per list, forward + backward, k = 1")]
    steps = reproduction.training.steps
    what = f"seconds for {steps} training steps of {reproduction.training.queries} queries"
    sheets += [_sheet(reproduction, lengths, seconds, steps, f"{what}, k = {k}") for k, seconds in training.items()]
    return Report(
        sheets=sheets,
        plots={
            reproduction.id: curves(
                {
                    "seconds": {
                        name: zip(lengths, [steps * value for value in of], strict=True)
                        for name, of in training[ks[0]].items()
                    }
                },
                title="Training with a soft sort computed at once or in a tree",
                caption=f"{what}, k = {ks[0]}, one thread (CPU time)",
                x="list size L",
                log_x=True,
                log_y=True,
                ticks=lengths,
            )
        },
        results={
            "sizes": lengths,
            "k": 1,
            "seconds_a_list": alone,
            "growth": _growth(lengths, alone),
            "seconds_a_step": {str(k): seconds for k, seconds in training.items()},
            "growth_of_steps": {str(k): _growth(lengths, seconds) for k, seconds in training.items()},
            "published": {"sizes": reproduction.lengths, "growth": reproduction.growth},
        },
        notes=[*_notes(alone, training[ks[0]], _growth(lengths, alone)), *reproduction.notes],
    )


def _append(columns: dict[str, list[float]], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        columns[name].append(value)


# --- the sort alone -----------------------------------------------------------------------------------------------


def sort_times(length: int, seconds: float, seed: int) -> dict[str, float]:
    """Seconds per list."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(LISTS, length, generator=generator)
    lists = dict.fromkeys(PUBLISHED_AS, LISTS) | {TEXTBOOK: _lists_at_once(length, LISTS)}
    sorts: dict[str, Callable[[Tensor], Tensor]] = {
        TEXTBOOK: lambda s: textbook.neural_sort(s)[..., :1, :],
        ONE: partial(pirank_sort, k=1, depth=1),
        TREE: partial(pirank_sort, k=1, depth=3),
    }
    steps = {
        name: partial(_sort_runtime_forward_backward, sort, scores[: lists[name]].clone().requires_grad_())
        for name, sort in sorts.items()
    }
    clocks = time_in_turns(steps, seconds=seconds)
    return {name: cpu_seconds(clock) / lists[name] for name, clock in clocks.items()}


def _lists_at_once(length: int, lists: int) -> int:
    return max(1, min(lists, MATRIX_ITEMS // length**2))


def _sort_runtime_forward_backward(sort: Callable[[Tensor], Tensor], scores: Tensor) -> None:
    torch.autograd.grad(sort(scores)[..., 0].sum(), scores)


# --- training steps -----------------------------------------------------------------------------------------------


def generate_queries(
    lists: int, length: int, query_features: int, document_features: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Generate lists whose labels are a linear function of some features, with weights that differ between queries.

    The features of a document are the weights of its query, then normally distributed ones. Its label is the weighted
    sum of `query_features` of the latter, rounded down and limited to 0 to 5.

    Returns:
        Features ``(lists, length, query_features + document_features)`` and labels ``(lists, length)``.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = -torch.rand(lists, 1, query_features, generator=generator).log()  # exponential, that is gamma(1, 1)
    documents = torch.randn(lists, length, document_features, generator=generator)
    chosen = torch.rand(lists, document_features, generator=generator).argsort(-1)[:, None, :query_features]
    relevance = (weights * documents.gather(-1, chosen.expand(-1, length, -1))).sum(-1)
    features = torch.cat([weights.expand(-1, length, -1), documents], -1)
    return features, relevance.floor().clamp(0, GRADES)


def step_times(training: TrainingSteps, length: int, k: int, seconds: float, seed: int) -> dict[str, float]:
    """Seconds per training step, with a network of its own for each operator."""
    features, labels = generate_queries(
        training.queries, length, training.query_features, training.document_features, seed
    )
    losses: dict[str, Loss] = {
        TEXTBOOK: partial(textbook.pirank_ndcg_loss, k=k),
        ONE: partial(pirank_ndcg_loss, k=k, sort=partial(pirank_sort, depth=1), reduction="none"),
        TREE: partial(pirank_ndcg_loss, k=k, sort=partial(pirank_sort, depth=3), reduction="none"),
    }
    at_once = dict.fromkeys(losses, training.queries) | {TEXTBOOK: _lists_at_once(length, training.queries)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = {name: MLP(features.shape[-1], training.hidden, batch_norm=False) for name in losses}
    steps = {name: network_step(networks[name], loss, features, labels, at_once[name]) for name, loss in losses.items()}
    return {name: cpu_seconds(clock) for name, clock in time_in_turns(steps, seconds=seconds).items()}


def network_step(network: nn.Module, loss: Loss, features: Tensor, labels: Tensor, at_once: int) -> Callable[[], None]:
    """Return a step of Adam. The loss is computed for some lists at once, to bound the memory of its matrices."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        scores = network(features.flatten(0, 1)).unflatten(0, labels.shape)
        leaf = scores.detach().requires_grad_()
        for part, grades in zip(leaf.split(at_once), labels.split(at_once), strict=True):
            (loss(part, grades).sum() / len(labels)).backward()
        scores.backward(leaf.grad)
        optimizer.step()

    return step


# --- reporting ----------------------------------------------------------------------------------------------------


def _growth(lengths: Sequence[int], seconds: Seconds) -> dict[str, float]:
    return {name: growth_exponent(lengths, values) for name, values in seconds.items()}


def _sheet(reproduction: SortRuntime, lengths: Sequence[int], seconds: Seconds, factor: float, what: str) -> Table:
    growth = _growth(lengths, seconds)
    rows = [
        [f"{length:,}", *(f"{factor * seconds[name][i]:,.3f}" for name in PUBLISHED_AS)]
        for i, length in enumerate(lengths)
    ]
    rows += [
        [],
        ["grows like", *(f"L^{growth[name]:.2f}" for name in PUBLISHED_AS)],
        ["published", *(f"L^{reproduction.growth[name]:.2f}" for name in PUBLISHED_AS.values())],
    ]
    return sheet(f"{what}, one thread (CPU time)", ["list size L", *PUBLISHED_AS], rows)


def _notes(alone: Seconds, steps: Seconds, growth: Mapping[str, float]) -> list[str]:
    last = {name: values[-1] for name, values in alone.items()}
    whole = {name: values[-1] for name, values in steps.items()}
    return [
        f"On the longest lists, the sort of depth 3 is {last[TEXTBOOK] / last[TREE]:.0f} times as fast as the n x n "
        f"form, which grows like L^{growth[TEXTBOOK]:.2f}, and a training step {whole[TEXTBOOK] / whole[TREE]:.1f} "
        "times. This is what the figure of the paper shows.",
        f"It takes {last[TREE] / last[ONE]:.1f} times as long as our depth 1, which computes its one row from a sort "
        f"and prefix sums, without the matrix that a tree avoids. In a training step, {whole[TREE] / whole[ONE]:.2f} "
        "times as long, the network takes most of the time.",
    ]


OUR_CODE, TEXTBOOK_CODE = "rankfall", "textbook"
CASES = {OUR_CODE: OPERATORS, TEXTBOOK_CODE: textbook.CASES}
FORWARD, BOTH = "forward", "forward + backward"
FASTEST_GROWTH = 4  # no operator grows faster than n^4, so that a pass that would take too long can be left out
PUBLISHED = "milliseconds"


def topk_runtime(reproduction: TopkRuntime, task: Task) -> Report:
    """Time forward, and forward and backward, of every operator at every length."""
    lengths = [int(length) for length in reproduction.published.points if length <= task.size.longest]
    (hardware,) = reproduction.published.values
    published = reproduction.published.figures(hardware, PUBLISHED)
    times: dict[str, dict[str, dict[Number, float]]] = {
        f"{code}, {what}": {row: {} for row in reproduction.operators} for code in CASES for what in (FORWARD, BOTH)
    }
    for number, length in enumerate(lengths):
        task.progress(f"lists of {length}", number, len(lengths))
        for key, row, value in _measure(reproduction, length, times, task):
            times[key][row][length] = value
    title = f"milliseconds for {reproduction.lists} lists, k = n/2, CPU time of one thread"
    sheets = [
        _topk_runtime_sheet(f"{BOTH}: {title}", BOTH, lengths, times, {f"published, {hardware}": published}),
        _topk_runtime_sheet(f"{FORWARD}: {title}", FORWARD, lengths, times, {}),
    ]
    panels = {f"here, {code}": times[f"{code}, {BOTH}"] for code in CASES} | {f"published, {hardware}": published}
    return Report(
        sheets=sheets,
        plots={
            reproduction.id: curves(
                {panel: {row: curve.items() for row, curve in of.items()} for panel, of in panels.items()},
                title=f"{reproduction.title}: a forward and backward pass by length",
                caption="milliseconds; k = n/2",
                x="items per list",
                log_x=True,
                log_y=True,
                ticks=lengths,
            )
        },
        results={
            "lists": reproduction.lists,
            "lengths": lengths,
            "milliseconds": times,
            "published": {
                "hardware": hardware,
                "milliseconds": {row: dict(curve) for row, curve in published.items()},
            },
            "fastest": {key: fastest(times[f"{key}, {BOTH}"], lengths) for key in CASES},
        },
        notes=[*_topk_runtime_notes(times, published, lengths), *reproduction.notes],
    )


# --- measuring ------------------------------------------------------------------------------------------------------


def _measure(
    reproduction: TopkRuntime, length: int, before: Mapping[str, Times], task: Task
) -> list[tuple[str, str, float]]:
    """Return the table, the operator and the milliseconds of every pass that is not left out."""
    seconds, longest_pass = (0.03, 4.0) if task.quick else (0.3, 120.0)
    shape = Shape(reproduction.lists, length, length // 2)
    steps: dict[str, Step] = {}
    measured: dict[str, tuple[str, str]] = {}
    for code, table in CASES.items():
        for row, name in reproduction.operators.items():
            case, keys = table[name], [f"{code}, {what}" for what in (FORWARD, BOTH)]
            if case.bytes(shape) <= MAX_BYTES and _expected(before[keys[1]][row], length) <= longest_pass:
                for key, step in zip(keys, passes(case.run, shape, task.seed), strict=True):
                    steps[f"{key}: {row}"], measured[f"{key}: {row}"] = step, (key, row)
    clocks = time_in_turns(steps, seconds=seconds)
    return [(*measured[name], 1000 * cpu_seconds(clock)) for name, clock in clocks.items()]


def _expected(before: Mapping[Number, float], length: int) -> float:
    """Return the largest number of seconds that a pass may take, by the lengths that were timed before it."""
    if not before:
        return 0.0
    last = max(before)
    seconds: float = before[last] / 1000 * (length / last) ** FASTEST_GROWTH
    return seconds


def passes(operator: Callable[[Tensor, Tensor, int], Tensor], shape: Shape, seed: int) -> tuple[Step, Step]:
    """Return a forward pass, and a forward and backward pass, of an operator on random lists."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape.lists, shape.n, generator=generator).requires_grad_()
    direction = torch.randn(shape.lists, shape.n, generator=generator)
    forward = partial(operator, scores, scores.detach(), shape.k)
    return forward, lambda: torch.autograd.grad(forward(), scores, direction)


# --- the report -----------------------------------------------------------------------------------------------------


def fastest(times: Times, lengths: Sequence[Number]) -> dict[str, str]:
    """Return the fastest operator at each length.

    >>> fastest({"a": {5: 1.0, 10: 4.0}, "b": {5: 2.0, 10: 3.0}}, [5, 10])
    {'5': 'a', '10': 'b'}
    """
    return {
        f"{length}": min((row for row in times if length in times[row]), key=lambda row: times[row][length])
        for length in lengths
    }


def _topk_runtime_sheet(
    title: str, what: str, lengths: Sequence[int], times: Mapping[str, Times], published: Mapping[str, Times]
) -> Table:
    rows: list[list[str]] = []
    for source, values in {**{code: times[f"{code}, {what}"] for code in CASES}, **published}.items():
        rows += [[]] if rows else []
        rows += [
            [f"{row}, {source}", *(f"{curve[length]:,.2f}" if length in curve else "-" for length in lengths)]
            for row, curve in values.items()
        ]
    return sheet(title, ["operator", *(f"n = {length}" for length in lengths)], rows)


def _topk_runtime_notes(times: Mapping[str, Times], published: Times, lengths: Sequence[int]) -> list[str]:
    winner = fastest(published, lengths)[f"{lengths[-1]}"]
    first = {code: list(fastest(times[f"{code}, {BOTH}"], lengths).values()).count(winner) for code in CASES}
    skipped = [
        f"{row} ({code}) from n = {next(n for n in lengths if n not in curve)} on"
        for code in CASES
        for row, curve in times[f"{code}, {BOTH}"].items()
        if len(curve) < len(lengths)
    ]
    notes = [
        f"Forward and backward of {winner} is the fastest in print at "
        f"{list(fastest(published, lengths).values()).count(winner)} of {len(lengths)} lengths, here at "
        f"{first[OUR_CODE]} (code of rankfall) and at {first[TEXTBOOK_CODE]} (textbook code)."
    ]
    return notes + (
        [f"Left out, because a pass would take too long or too much memory: {', '.join(skipped)}."] if skipped else []
    )
