"""`Learner`, the interface between the training loop and a model, and `Position`, the progress of a run."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import nn

from rankfall._checks import all_within
from rankfall.storage.disk import append
from rankfall.storage.files import write_file
from rankfall.training.build import divergence_hints, temperature_hints
from rankfall.training.device import CPU, Placement, placement_of
from rankfall.training.distributed.group import ALONE, Group
from rankfall.training.run_directory import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.training.build import Optimizers, Temperature
    from rankfall.training.checkpoint import State

    Epoch = Mapping[str, Any]


BatchT = TypeVar("BatchT", bound=Sized)
LoadedT = TypeVar("LoadedT", bound=Sized, covariant=True)


class Loader(Protocol[LoadedT]):
    """Batches in an order that depends on the epoch. Iteration can start after any batch."""

    def __len__(self) -> int:
        """Return the number of batches per epoch."""

    def __iter__(self) -> Iterator[LoadedT]:
        """Return the batches of an epoch, or those that were left when the loaded state was saved."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; the first is 0."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was received."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue from a position."""


@dataclass(slots=True)
class Position:
    """Position and results of a training run so far, as plain values.

    Attributes:
        step: Batches trained in all epochs.
        epoch: Current epoch; the first is 1.
        batch: Batches trained in this epoch.
        seen: Lists or impressions in these batches.
        sums: Sums of the terms of the loss over these.
        seconds: Working time of the run, without interruptions.
        epoch_seconds: Time of the batches of this epoch.
        validation: Metrics of the previous epoch.
        best_epoch: Epoch of the best validation metric, or 0.
        best: Best validation metric, or NaN.
        best_weights: Checksum of the best weights.
        lines: Content of ``metrics.jsonl``.
        gradients: Last epoch in which each part of the model had a gradient other than 0; 0 for none yet.
        constant: Terms of the loss that had one value in all batches of this epoch.
    """

    step: int = 0
    epoch: int = 1
    batch: int = 0
    seen: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    validation: dict[str, float] = field(default_factory=dict)
    best_epoch: int = 0
    best: float = math.nan
    best_weights: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    gradients: dict[str, int] = field(default_factory=dict)
    constant: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, float]:
        """Means of the terms of the loss in this epoch."""
        return {name: total / self.seen for name, total in self.sums.items()}

    @property
    def per_second(self) -> float:
        """Lists or impressions per second in this epoch."""
        return self.seen / self.epoch_seconds

    def add(self, result: StepResult, parts: Iterable[str]) -> None:
        """Add a batch and its result.

        Args:
            result: The result.
            parts: Names of all parts of the model.
        """
        self.note(result, parts)
        self.advance(result.count)

    def note(self, result: StepResult, parts: Iterable[str]) -> None:
        """Add the result of a batch, which may be read after later batches were trained.

        Args:
            result: The result.
            parts: Names of all parts of the model.
        """
        means = {name: total / max(1, result.count) for name, total in result.sums.items()}
        if not self.sums:  # the first result of an epoch
            self.gradients = dict.fromkeys(parts, 0) | self.gradients
            self.constant = means
        self.constant = {name: value for name, value in self.constant.items() if means.get(name) == value}
        self.gradients |= dict.fromkeys(result.moved, self.epoch)
        for name, value in result.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def advance(self, count: int) -> None:
        """Go to the next batch, after one with `count` lists or impressions."""
        self.step, self.batch, self.seen = self.step + 1, self.batch + 1, self.seen + count

    def next_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.epoch += 1
        self.batch, self.seen, self.sums, self.epoch_seconds = 0, 0, {}, 0.0
        self.constant = {}


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of training on one batch, over all processes.

    Attributes:
        count: Lists or impressions in the batch.
        sums: Sums of the terms of the loss over these.
        moved: Parts of the model with a gradient other than 0, of those that had none in this epoch before.
    """

    count: int
    sums: dict[str, float]
    moved: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class UnreadStep(Generic[BatchT]):
    """A batch whose results were not looked at yet, which on a device waits for it.

    Attributes:
        batch: The batch.
        number: Batches trained before it in its epoch.
        count: Lists or impressions in the batch, over all processes.
        terms: Names of the terms of the loss.
        checked: What must be finite.
        parts: Parts of the model whose gradient is looked at.
        values: Tensor on the device: terms, 1 for what is finite, the largest gradients of the parts, and the norm of
            all gradients.
    """

    batch: BatchT
    number: int
    count: int
    terms: list[str]
    checked: list[str]
    parts: list[str]
    values: Tensor


class Network(nn.Module, ABC):
    """Models and their loss or objective in one module. Losses are computed with float32.

    Args:
        placement: Precision and compilation of the models.
        dynamic: Whether shapes differ from batch to batch; see :meth:`Placement.compiled`.
    """

    def __init__(self, placement: Placement, *, dynamic: bool | None = None) -> None:
        super().__init__()
        self.placement = placement
        self._scores = placement.compiled(self._compute_scores, dynamic=dynamic)

    @abstractmethod
    def scores(self, *batch: Any) -> dict[str, Tensor]:
        """Compute the scores of a batch; the names are used in messages."""

    @abstractmethod
    def terms(self, scores: list[Tensor], *batch: Any) -> dict[str, Tensor]:
        """Compute the terms of the loss from the scores of a batch."""

    def forward(self, *batch: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the terms of the loss, and by name whether all scores are in the range that losses accept."""
        found = self._scores(*batch)
        finite = {name: all_within(one) for name, one in found.items()}
        scores, diverged = list(found.values()), ~torch.stack(list(finite.values())).all()
        if not self.placement.is_cpu or diverged:  # losses refuse such scores, but the names of terms are needed
            scores = [one.masked_fill(diverged, 0.0) for one in scores]
        return self.terms(scores, *batch), finite

    def _compute_scores(self, *batch: Any) -> dict[str, Tensor]:
        with self.placement.autocast():
            found = self.scores(*batch)
        return {name: self.placement.widened(one) for name, one in found.items()}


class Learner(ABC, Generic[BatchT]):
    """Model, loss, optimizer and data that a loop trains.

    Whatever :meth:`state_dict` leaves out must follow from the configuration and the data.

    Args:
        config: Configuration of the run.
        out: Run directory.
        group: Processes that train together.

    Attributes:
        section: Section of the configuration that names the loss: ``"loss"`` or ``"objective"``.
        causes: What may be wrong if an epoch trained nothing, for the error message.
        placement: Device of the weights, precision and compilation.
        metric: Validation metric.
        higher_is_better: Whether higher values of it are better.
        modules: Modules with trained weights, by name.
        network: One module that holds all of them. Training calls its `forward`.
        optimizer: Optimizer of all weights.
        clip: Largest norm of the gradient of all weights together.
        loader: Training batches.
        temperatures: Temperatures that follow a schedule.
        batches: Number of batches of the whole run, over which temperatures change.
        turns: Number of batches in which every part of the model is trained at least once.
        validate_every: Number of epochs between validations.
    """

    section: ClassVar[Literal["loss", "objective"]]
    causes: str
    group: Group = ALONE
    placement: Placement = CPU
    validate_every: int = 1
    metric: str
    higher_is_better: bool = True
    modules: dict[str, nn.Module]
    network: nn.Module
    optimizer: Optimizers
    clip: float | None
    loader: Loader[BatchT]
    temperatures: list[Temperature]
    batches: int
    turns: int = 1

    def __init__(self, config: Any, out: Path, group: Group) -> None:
        self.config, self.out, self.group = config, out, group
        self.placement = placement_of(config.training, group)
        self.clip = config.optimizer.clip

    @abstractmethod
    def terms(self, batch: BatchT, position: Position) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the terms of the loss on a batch, or on this process's share of it.

        Returns:
            The terms by name, each a mean over lists; and whether scores are finite, a 0-dim tensor for each kind of
            scores. If some are not, only the names of the terms are used.
        """

    @abstractmethod
    def where(self, batch: BatchT, position: Position) -> str:
        """Return the place of a batch in the data, for error messages."""

    def hints(self) -> list[str]:
        """Return changes of the configuration to try after a divergence, the most promising first."""
        return divergence_hints(self.config.optimizer, self.section, self._loss.options)

    def diverged(self, what: str, batch: BatchT, position: Position) -> TrainingError:
        """Return the error for a loss, gradient or score that became NaN, infinite or too large in a batch."""
        kept = f". Finished epochs are kept in {self.out}" if position.best_epoch else ""
        return TrainingError(
            f"{self._loss.name}: {what} became NaN, infinite or too large in {self.where(batch, position)}. Try "
            f"{', '.join(self.hints())}{kept}"
        )

    def untrained(self, what: str, position: Position) -> TrainingError:
        """Return the error for parts or terms that an epoch did not train."""
        larger = temperature_hints(self.section, self._loss.options)
        return TrainingError(
            f"{self._loss.name}: {what} in all {position.batch} batches of epoch {position.epoch}, so it was not "
            f"trained. {self.causes}{f' (try {larger[0]})' if larger else ''}"
        )

    @property
    def _loss(self) -> Any:
        return getattr(self.config, self.section)

    def step(self, batch: BatchT, position: Position) -> StepResult:
        """Update the weights with one batch, and return its result. Weights of a batch that fails stay as they were."""
        unread = self._compute(batch, position)
        (result,) = self.read([unread], position)
        self.optimizer.step()
        return result

    def launch(self, batch: BatchT, position: Position) -> UnreadStep[BatchT]:
        """Update the weights with one batch on a device, without waiting for it."""
        unread = self._compute(batch, position)
        self.optimizer.step()
        return unread

    def _compute(self, batch: BatchT, position: Position) -> UnreadStep[BatchT]:
        """Compute the gradients of a batch. They are averaged over the processes, whose shares differ in size."""
        self.optimizer.zero_grad()
        for temperature in self.temperatures:
            temperature.set(position.step / max(1, self.batches - 1))
        terms, finite = self.terms(batch, position)
        (count,) = self.group.totals([len(batch)])
        loss = torch.stack(list(terms.values())).sum() * (len(batch) * self.group.world / count)
        if not loss.requires_grad:
            raise TrainingError(
                "the loss has no gradient: no term is computed from the scores. Are they detached, or converted to "
                "numbers or NumPy arrays?"
            )
        loss.backward()
        norm = clip_gradients(self.trained, self.clip)
        # parts that are not known to have moved in this epoch; gradients are equal in all processes
        known = {name for name, epoch in position.gradients.items() if epoch == position.epoch}
        parts = {name: weights for name, weights in self.trained_parts.items() if name not in known}
        largest = [_largest_gradient(weights, norm) for weights in parts.values()]
        values = [*(term.detach() for term in terms.values()), *finite.values(), *largest, norm]
        kind = torch.float64 if self.placement.is_cpu else torch.float32  # not every device has float64
        table = torch.stack([value.to(kind) for value in values])
        return UnreadStep(batch, position.batch, int(count), list(terms), list(finite), list(parts), table)

    def read(self, unread: Sequence[UnreadStep[BatchT]], position: Position) -> list[StepResult]:
        """Wait for batches that were launched, and return their results.

        Args:
            unread: The batches, in order.
            position: The current epoch.

        Raises:
            TrainingError: If a loss, gradient or score became NaN, infinite or too large.
        """
        sizes = [len(one.values) for one in unread]
        table = torch.cat([one.values for one in unread]).cpu().split(sizes)
        rows = []  # of each batch: sums of the terms in this process, what is not finite, moved parts, gradient norm
        for one, found in zip(unread, table, strict=True):
            values = iter(found.tolist())
            means = [next(values) for _ in one.terms]
            bad = [what for what in one.checked if not next(values)]
            moved = [part for part in one.parts if next(values) > 0]
            own = [math.nan if bad else mean * len(one.batch) for mean in means]
            rows.append((own, bad, moved, next(values)))
        totals = iter(self.group.totals([value for own, *_ in rows for value in own]))
        results = []
        for one, (own, bad, moved, norm) in zip(unread, rows, strict=True):
            sums, then = [next(totals) for _ in own], replace(position, batch=one.number)
            if not all(map(math.isfinite, sums)):
                with self.group.together():
                    if not all(map(math.isfinite, own)):
                        raise self.diverged([*bad, "the loss"][0], one.batch, then)
            if not math.isfinite(norm):
                with self.group.together():
                    raise self.diverged("the gradient", one.batch, then)
            results.append(StepResult(one.count, dict(zip(one.terms, sums, strict=True)), moved))
        return results

    @cached_property
    def trained_parts(self) -> dict[str, list[nn.Parameter]]:
        """The trained weights of each part of the model. A part without a gradient is not trained."""
        return {"the model": self.trained}

    def depends_on(self, term: str, part: str) -> bool:
        """Return whether a term of the loss may train a part of the model."""
        return True

    def begin(self) -> None:
        """Set the weights of a new run before its first batch."""

    def find_untrained(self, position: Position, *, new: bool) -> str:
        """Return what an epoch did not train: parts without a gradient, terms that were constant; or an empty string.

        Args:
            position: The end of the epoch.
            new: Whether its lists were trained for the first time. Afterwards a term of exactly 0 is a perfect fit.
        """
        silent = [
            part
            for part, epoch in position.gradients.items()
            if epoch < position.epoch
            and position.batch >= self.turns
            and (new or any(total for term, total in position.sums.items() if self.depends_on(term, part)))
        ]
        if silent:
            return f"the gradient of all weights of {' and of '.join(silent)} was exactly 0"
        constant = [
            f"{name} was {value:g}" for name, value in position.constant.items() if value == 0 or position.batch > 1
        ]
        return " and ".join(constant) if new else ""

    @property
    def trained(self) -> list[nn.Parameter]:
        """All trained weights, including those of the loss or objective."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Return the validation metrics of the current weights."""

    @abstractmethod
    def line(self, position: Position) -> Any:
        """Return a data class that becomes the line of ``metrics.jsonl`` for an epoch."""

    @abstractmethod
    def save(self, path: Path, position: Position) -> None:
        """Write the weights alone, for scoring."""

    def parameters(self) -> int:
        """Return the number of trained weights."""
        return sum(parameter.numel() for parameter in self.trained)

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value of the validation metric is better than another."""
        return value > than if self.higher_is_better else value < than

    def state_dict(self) -> State:
        """Return everything that decides the next batches, except the position."""
        return {
            # the parameters themselves, since modules may share some
            "modules": {name: dict(module.state_dict(keep_vars=True)) for name, module in self.modules.items()},
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state of a learner of the same configuration and data."""
        for name, module in self.modules.items():
            module.load_state_dict(state["modules"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"])


def _largest_gradient(parameters: Iterable[Tensor], like: Tensor) -> Tensor:
    """Return the largest absolute value of all gradients on the device of `like`; 0 if there are none."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    values = [one._values() if one.is_sparse else one for one in gradients]
    values = [one for one in values if one.numel()]
    return nn.utils.get_total_norm(values, math.inf) if values else torch.zeros_like(like)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale gradients in place so that their common norm is at most `max_norm`, and return the norm before that.

    Only the stored values of sparse gradients are scaled.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # otherwise a row that occurs twice would count twice
        gradients.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    norm = nn.utils.get_total_norm(gradients)
    if max_norm is not None:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def append_epoch(path: Path, epoch: Epoch) -> None:
    """Append the line of an epoch, completely or not at all."""
    append(path, _line(epoch).encode())


def restore_epochs(path: Path, epochs: Sequence[Epoch]) -> None:
    """Replace the file by the lines of these epochs, which come from a checkpoint.

    The file may have lines of later epochs, or a part of a line. A line with the content of its epoch keeps its bytes,
    since a checkpoint has the keys in alphabetical order.
    """
    written = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    lines = [_line(epoch) for epoch in epochs]
    for number, text in enumerate(written[: len(epochs)]):
        with suppress(ValueError):
            if json.dumps(json.loads(text), sort_keys=True) == json.dumps(epochs[number], sort_keys=True):
                lines[number] = f"{text}\n"
    write_file(path, "".join(lines))


def _line(epoch: Epoch) -> str:
    return json.dumps(epoch) + "\n"
