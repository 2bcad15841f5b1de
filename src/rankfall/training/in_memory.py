"""Training on lists in memory, for :class:`rankfall.Ranker`: weights of rows and any number of evaluation sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rankfall._tensor_file import read_checkpoint
from rankfall.data.lists.list_loader import Lists
from rankfall.training.device import moved
from rankfall.training.distributed.group import ALONE
from rankfall.training.divergence_hints import divergence_hints
from rankfall.training.loop import Loop
from rankfall.training.run_directory import TrainingError
from rankfall.training.scoring import measure, score
from rankfall.training.train_ranker import RankerLearner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankfall.data.lists.list_loader import ListBatch
    from rankfall.data.lists.ranking_data import RankingSplit
    from rankfall.metrics.named import NamedMetric
    from rankfall.training.build_ranker import Ranker
    from rankfall.training.config.ranker_config import RankerConfig
    from rankfall.training.learner import Position
    from rankfall.training.temperatures import Temperature
    from rankfall.training.train_ranker import Epoch

    BuiltLoss = tuple[nn.Module, list[Temperature]]


class ListLearner(RankerLearner):
    """Learner of lists in memory, with weights of rows and any number of evaluation sets."""

    def __init__(
        self,
        config: RankerConfig,
        out: Path,
        model: Ranker,
        built: BuiltLoss,
        lists: Lists,
        evaluated: Mapping[str, RankingSplit],
        metrics: Sequence[NamedMetric],
        weights: Tensor | None,
    ) -> None:
        self.evaluated = {name: Lists([split]) for name, split in evaluated.items()}
        super().__init__(config, out, model, built, lists, next(iter(self.evaluated.values()), lists), ALONE)
        self.weights = weights
        self.metrics = metrics
        self.results: dict[str, dict[str, list[float]]] = {
            name: {metric.name: [] for metric in metrics} for name in self.evaluated
        }
        self.losses: list[float] = []

    def terms(self, batch: ListBatch, position: Position) -> Any:
        """Compute the loss of a batch."""
        if self.weights is not None:
            padded = batch.pad(self.weights[torch.from_numpy(batch.rows)])
            self.loss.weight = moved(padded.pin_memory() if self.placement.pins else padded, self.placement.device)
        return super().terms(batch, position)

    def validate(self) -> dict[str, float]:
        """Measure all evaluation sets, and return the metric that decides: NaN without a set, so that the last wins."""
        for name, lists in self.evaluated.items():
            measured = measure(score(self.model, lists), lists, self.metrics)
            for metric, values in measured.items():
                self.results[name][metric].append(mean_over_lists(values, metric, f"eval_set, {name}"))
        first = next(iter(self.results.values()), {self.metric: [float("nan")]})
        return {self.metric: first[self.metric][-1]}

    def line(self, position: Position) -> Epoch:
        """Return the results of an epoch."""
        self.losses.append(position.parts["loss"])
        return super().line(position)

    def diverged(self, what: str, batch: ListBatch, position: Position) -> TrainingError:
        """Return the error for a batch, with its lists and hints."""
        hints = divergence_hints(self.config.optimizer, "loss", self.config.loss.options)
        return TrainingError(
            f"{self.config.loss.name}: {what} became NaN, infinite or too large in {self._where(position)} "
            f"({self._named(batch)}). Try {', '.join(hints)}"
        )

    def load_best(self, path: Path) -> None:
        """Load the weights of the best epoch."""
        tensors, _ = read_checkpoint(path, lambda name: name.startswith("model."))
        self.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})


class ListLoop(Loop["ListBatch"]):
    """The loop of a fit. It keeps the best weights and writes no checkpoints, because a fit cannot be resumed."""

    def save(self) -> None:
        """Do nothing instead of writing a checkpoint."""


class WeightedLoss(nn.Module):
    """A loss that is called with the weights of the rows of the current batch, which the learner sets."""

    weight: Tensor

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
        value: Tensor = self.loss(scores, labels, mask=mask, weight=self.weight)
        return value


class LossFunction(nn.Module):
    """A function of the user as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, scores: Tensor, labels: Tensor, **options: Tensor) -> Tensor:
        return self.function(scores, labels, **options)


def mean_over_lists(values: Tensor, metric: str, where: str) -> float:
    """Return the mean of a metric over the lists on which it is defined.

    Args:
        values: One value per list; NaN where the metric is undefined.
        metric: Name of the metric.
        where: What the lists are, for the error message.

    Raises:
        ValueError: If the metric is undefined on all lists.
    """
    mean = float(values.nanmean())
    if np.isnan(mean):
        raise ValueError(f"{where}: {metric} is undefined on every list: none has a relevant row")
    return mean
