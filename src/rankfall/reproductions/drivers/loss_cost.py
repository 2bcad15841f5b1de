"""CPU time and peak memory of a training step with each loss, side by side.

A step gathers a batch of documents, computes scores, loss and gradients, and updates the network of the paper. The loss
alone is timed too, on given scores: it is the part in which methods differ.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.benchmarks.timing import cpu_seconds, growth_exponent, peak_bytes, time_in_turns
from rankfall.models import FeatureScaling
from rankfall.reporting.figures import Dots
from rankfall.reproductions.protocols import LIST_RATE
from rankfall.reproductions.task import Report, Sheet
from rankfall.training.build import classifies, make_loss, make_optimizer
from rankfall.training.checks import make_ranker
from rankfall.training.config.ranker_config import validate
from rankfall.training.train_ranker import load_data, load_lists

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from rankfall.benchmarks.timing import Step
    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.paper_schema import LossCost
    from rankfall.reproductions.task import Task

    Content = dict[str, Any]  # a training configuration

QUICK_DOCUMENTS = 2000  # per batch, if the run is a quick one
WARM_UP_DOCUMENTS = 200  # in the step before the one whose memory is measured
GROWTH_LENGTHS, GROWTH_LISTS = (200, 400, 800), 8  # lists on which the growth of the time is measured
GRADES = 5
SECONDS = 1.0  # of each measurement
EPOCH, ALONE, GROWTH, MEMORY = "step s/epoch", "loss s/epoch", "loss grows like", "peak MB"


def run(reproduction: LossCost, task: Task) -> Report:
    """Measure a step with every loss; times of all losses are taken in turns."""
    data = task.lists(reproduction.protocol)
    documents = QUICK_DOCUMENTS if task.quick else reproduction.documents
    contents = {method.name: _content(reproduction, data, method.config) for method in reproduction.methods}
    task.progress("times", 0, len(contents) + 1)
    lengths = [length for length in GROWTH_LENGTHS if length <= task.size.longest]
    measured = _times(contents, documents, lengths, SECONDS / 10 if task.quick else SECONDS)
    for number, (name, content) in enumerate(contents.items(), 1):
        task.progress(f"memory of {name}", number, len(contents) + 1)
        full, small = (content, documents), (content, WARM_UP_DOCUMENTS)
        measured[name][MEMORY] = peak_bytes(training_step, small=small, full=full) / 2**20
    return Report(
        sheets=[_here(reproduction, measured), _published(reproduction)],
        plots={reproduction.id: _figure(reproduction, measured, data.name)},
        results={
            "measured": measured,
            "documents_per_batch": documents,
            "published": {row: cells for rows in reproduction.published.values.values() for row, cells in rows.items()},
            "data": data.summary(),
        },
        notes=[
            f"Batches of {documents:,} documents, CPU time of one thread; an epoch has the documents of all training "
            "lists.",
            *reproduction.notes,
        ],
    )


def _content(reproduction: LossCost, data: ListData, method: Mapping[str, Any]) -> Content:
    return {
        "data": {"path": str(data.path), **next(iter(data.folds.values()))},
        "model": reproduction.protocol.network,
        "optimizer": {"lr": LIST_RATE},
        **method,
    }


# --- steps --------------------------------------------------------------------------------------------------------


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
        (EPOCH, {name: training.step for name, training in trainings.items()}),
        (ALONE, {name: training.loss_alone() for name, training in trainings.items()}),
    ):
        for name, clock in time_in_turns(steps, seconds=seconds).items():
            found[name][column] = cpu_seconds(clock) * trainings[name].batches
    by_length = [_loss_times(contents, length, seconds) for length in lengths]
    for name in contents if len(lengths) > 1 else ():
        found[name][GROWTH] = growth_exponent(lengths, [times[name] for times in by_length])
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


# --- tables -------------------------------------------------------------------------------------------------------


def _here(reproduction: LossCost, measured: Mapping[str, Mapping[str, float]]) -> Sheet:
    first = next(iter(measured.values()))
    rows = [
        [
            name,
            f"{costs[EPOCH]:.2f}",
            f"{costs[EPOCH] / first[EPOCH]:.2f}",
            f"{costs[ALONE]:.3f}",
            f"n^{costs[GROWTH]:.1f}" if GROWTH in costs else "-",
            f"{costs[MEMORY]:.0f}",
            f"{costs[MEMORY] / first[MEMORY]:.2f}",
        ]
        for name, costs in measured.items()
    ]
    return Sheet(f"{reproduction.title}: here", ["method", EPOCH, "ratio", ALONE, GROWTH, MEMORY, "ratio"], rows)


def _published(reproduction: LossCost) -> Sheet:
    published = reproduction.published
    ((source, _),) = published.values.items()
    figures = published.figures(source)
    time, memory = published.metrics
    first = next(iter(figures.values()))
    rows = [
        [
            name,
            f"{costs[time]:g}",
            f"{costs[time] / first[time]:.2f}",
            reproduction.complexity[name],
            f"{costs[memory]:g}",
            f"{costs[memory] / first[memory]:.2f}",
        ]
        for name, costs in figures.items()
    ]
    return Sheet(
        f"published: {reproduction.title}, {source}",
        ["method", time, "ratio", "complexity", memory, "ratio"],
        rows,
    )


def _figure(reproduction: LossCost, measured: Mapping[str, Mapping[str, float]], here: str) -> Dots:
    """Time and memory relative to those of the first method."""
    published = reproduction.published
    ((source, _),) = published.values.items()
    time, memory = published.metrics
    sources = {
        here: {name: (costs[EPOCH], costs[MEMORY]) for name, costs in measured.items()},
        f"published, {source}": {name: (row[time], row[memory]) for name, row in published.figures(source).items()},
    }
    records = [
        {"method": name, "source": title, "metric": metric, "value": value / base}
        for title, rows in sources.items()
        for name, costs in rows.items()
        for metric, value, base in zip(("time", "memory"), costs, next(iter(rows.values())), strict=True)
    ]
    return Dots(records, title=f"{reproduction.title}: time and memory relative to the first method", costs=True)
