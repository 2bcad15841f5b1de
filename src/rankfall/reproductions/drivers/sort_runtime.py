"""CPU time of a soft sort by the length of lists, alone and in training steps: at once (depth 1) and in a tree.

Depth 1 of the paper is NeuralSort through its n x n matrix, with a cost of L^2; depth 3 costs L^(4/3). Our operators
compute only the k rows that are asked for, from prefix sums, so neither has the n x n matrix. The textbook form is
timed beside them, because it is what the figure is about.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankfall.benchmarks.timing import cpu_seconds, growth_exponent, time_in_turns
from rankfall.losses import pirank_ndcg_loss
from rankfall.models import MLP
from rankfall.ops import pirank_sort
from rankfall.reporting.figures import Lines
from rankfall.reproductions import textbook
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.reproductions.paper_schema import SortRuntime, TrainingSteps
    from rankfall.reproductions.task import Task

    Loss = Callable[[Tensor, Tensor], Tensor]  # scores and labels of some lists to one value per list
    Seconds = Mapping[str, Sequence[float]]  # for each length, by name of the operator

TEXTBOOK, ONE, TREE = "depth 1, textbook (n x n)", "depth 1, rankfall (k rows)", "depth 3, rankfall (tree)"
PUBLISHED_AS = {TEXTBOOK: "depth 1", ONE: "depth 1", TREE: "depth 3"}
LISTS = 64  # timed at once, so that the overhead of calls does not count
MATRIX_ITEMS = 1_000_000  # entries of all n x n matrices at once; long lists are processed in smaller batches
GRADES = 5  # the highest label of generated lists


def run(reproduction: SortRuntime, task: Task) -> Report:
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
        plots={reproduction.id: _figure(reproduction, lengths, training[ks[0]], f"{what}, k = {ks[0]}")},
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
        name: partial(_forward_backward, sort, scores[: lists[name]].clone().requires_grad_())
        for name, sort in sorts.items()
    }
    clocks = time_in_turns(steps, seconds=seconds)
    return {name: cpu_seconds(clock) / lists[name] for name, clock in clocks.items()}


def _lists_at_once(length: int, lists: int) -> int:
    return max(1, min(lists, MATRIX_ITEMS // length**2))


def _forward_backward(sort: Callable[[Tensor], Tensor], scores: Tensor) -> None:
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
    steps = {
        name: training_step(networks[name], loss, features, labels, at_once[name]) for name, loss in losses.items()
    }
    return {name: cpu_seconds(clock) for name, clock in time_in_turns(steps, seconds=seconds).items()}


def training_step(network: nn.Module, loss: Loss, features: Tensor, labels: Tensor, at_once: int) -> Callable[[], None]:
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


def _sheet(reproduction: SortRuntime, lengths: Sequence[int], seconds: Seconds, factor: float, what: str) -> Sheet:
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
    return Sheet(f"{what}, one thread (CPU time)", ["list size L", *PUBLISHED_AS], rows)


def _figure(reproduction: SortRuntime, lengths: Sequence[int], seconds: Seconds, what: str) -> Lines:
    steps = reproduction.training.steps
    points = [
        {"series": name, "x": length, "y": steps * value}
        for name, values in seconds.items()
        for length, value in zip(lengths, values, strict=True)
    ]
    return Lines(
        points,
        title="Training with a soft sort computed at once or in a tree",
        subtitle=f"{what}, one thread (CPU time)",
        x="list size L",
        y="seconds",
        series="operator",
        log_x=True,
        log_y=True,
        ticks=lengths,
    )


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
