"""What a training loop trains, and how far that has come."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from rankfall.training.distributed.group import ALONE, Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rankfall.training.checkpoint import State
    from rankfall.training.run_directory import TrainingError


class Sized(Protocol):
    """A batch, as far as the loop looks at it."""

    def __len__(self) -> int:
        """The number of lists or impressions."""


Batch = TypeVar("Batch", bound=Sized)
Given = TypeVar("Given", bound=Sized, covariant=True)


class Optimizer(Protocol):
    """One of torch, or several as one."""

    def zero_grad(self) -> None:
        """Forget all gradients."""

    def step(self) -> object:
        """Change all weights."""

    def state_dict(self) -> dict[str, Any]:
        """Mappings and lists of plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Become what another one was."""


class Loader(Protocol[Given]):
    """Batches in an order that the number of the epoch decides, and that can begin behind any of them."""

    def __len__(self) -> int:
        """The number of batches of an epoch."""

    def __iter__(self) -> Iterator[Given]:
        """The batches of an epoch, or what was left of them when its state was saved."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch; the first is 0."""

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was received."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go to a position."""


@dataclass(slots=True)
class Position:
    """How far a training has come, and what has come of it so far; plain values."""

    step: int = 0  # batches in all
    epoch: int = 1  # the one that is being trained
    batch: int = 0  # how many of it are done
    seen: int = 0  # lists or impressions of these
    sums: dict[str, float] = field(default_factory=dict)  # of the terms of the loss over those
    seconds: float = 0.0  # of work, interruptions not counted
    epoch_seconds: float = 0.0  # of these, for the batches of this epoch
    validation: dict[str, float] = field(default_factory=dict)  # of the epoch before
    best_epoch: int = 0
    best: float = math.nan  # or nothing yet
    best_weights: str = ""  # their checksum
    lines: list[dict[str, Any]] = field(default_factory=list)  # of metrics.jsonl

    @property
    def parts(self) -> dict[str, float]:
        """The mean terms of the loss in this epoch."""
        return {name: total / self.seen for name, total in self.sums.items()}

    @property
    def per_second(self) -> float:
        """Lists or impressions, in this epoch."""
        return self.seen / self.epoch_seconds

    def next_epoch(self) -> None:
        """Begin the next one."""
        self.epoch += 1
        self.batch, self.seen, self.sums, self.epoch_seconds = 0, 0, {}, 0.0


@dataclass(frozen=True, slots=True)
class Taken:
    """What a batch came to, that of all processes together."""

    count: int  # lists or impressions
    sums: dict[str, float]  # of the terms of the loss over these


class Learner(ABC, Generic[Batch]):
    """What a loop trains. What its state leaves out must follow from the configuration and the data."""

    group: Group = ALONE  # with whom
    metric: str  # what validation looks at
    modules: dict[str, nn.Module]
    network: nn.Module  # all of them in one, through whose `forward` they are trained
    optimizer: Optimizer
    clip: float | None  # largest norm of a gradient
    loader: Loader[Batch]

    @abstractmethod
    def terms(self, batch: Batch, position: Position) -> tuple[dict[str, Tensor], str]:
        """The terms of the loss by name, each a mean over the lists of a batch or of this process's share of it.

        And what is NaN or infinite already, if anything is; then only the names of the terms matter.
        """

    @abstractmethod
    def diverged(self, what: str, batch: Batch, position: Position) -> TrainingError:
        """What to say if something becomes NaN or infinite in a batch."""

    def step(self, batch: Batch, position: Position) -> Taken:
        """Change the weights by one batch."""
        self.optimizer.zero_grad()
        terms, bad = self.terms(batch, position)
        own = [math.nan if bad else float(term.detach()) * len(batch) for term in terms.values()]
        count, *sums = self.group.totals([len(batch), *own])
        if not all(map(math.isfinite, sums)):  # which all processes see
            with self.group.together():
                if not all(map(math.isfinite, own)):
                    raise self.diverged(bad or "the loss", batch, position)
        # What is added up over the processes is divided by their number, and their shares may differ.
        weight = len(batch) * self.group.world / count
        (torch.stack(list(terms.values())).sum() * weight).backward()
        if not clip_gradients(self.trained, self.clip).isfinite():
            with self.group.together():
                raise self.diverged("the gradient", batch, position)
        self.optimizer.step()
        return Taken(int(count), dict(zip(terms, sums, strict=True)))

    @property
    def trained(self) -> list[nn.Parameter]:
        """All weights, those of the loss or objective too."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """The metrics of the weights as they are."""

    @abstractmethod
    def line(self, position: Position) -> Any:
        """What is known after an epoch: a data class, one line of ``metrics.jsonl``."""

    @abstractmethod
    def save(self, path: Path, position: Position) -> None:
        """Write the weights alone, for those who score."""

    @abstractmethod
    def parameters(self) -> int:
        """How many numbers are trained."""

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value of the metric is better than another."""
        return value > than

    def state_dict(self) -> State:
        """All that decides what the next batches do, but for the position."""
        return {
            # with the parameters themselves, of which some may be shared
            "modules": {name: dict(module.state_dict(keep_vars=True)) for name, module in self.modules.items()},
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: State) -> None:
        """Become what another learner of the same configuration and data was."""
        for name, module in self.modules.items():
            module.load_state_dict(state["modules"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"])


def clip_gradients(parameters: Iterable[Tensor], most: float | None) -> Tensor:
    """The norm of the gradients of all parameters together, which are then scaled to have at most this one.

    Of a sparse gradient only what it holds is looked at.
    """
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # or a row that was met twice would count as two
        found.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    norm = nn.utils.get_total_norm(found)
    if most is not None:
        torch._foreach_mul_(found, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm
