"""The loop of every training, which can stop after any batch and go on from there as if it never had.

A :class:`Learner` says how a batch changes the weights; the loop says when, measures, and keeps the best and the last
weights. What decides the rest of a training is the learner's state and the loop's :class:`Position`; both
together are a checkpoint.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch

from rankfall import __version__
from rankfall._checkpoint import read_checkpoint
from rankfall._files import sync, write_file
from rankfall.training.checkpoint import Checkpoints, DamagedError
from rankfall.training.run import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    RESULT,
    Step,
    Stopped,
    TrainingError,
    TrainResult,
    alone,
    check_same,
    check_same_data,
    clear,
    clear_temporary,
    is_finished,
    read_config,
    read_result,
)
from rankfall.training.track import Trackers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from rankfall.training.cascade_config import CascadeConfig
    from rankfall.training.checkpoint import State
    from rankfall.training.config import RankerConfig

    Progress = Callable[[Step], None]
    OnNotice = Callable[[str], None]


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
    best: float = math.nan
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


class Learner(ABC, Generic[Batch]):
    """What a loop trains. What its state leaves out must follow from the configuration and the data."""

    metric: str  # what validation looks at
    modules: dict[str, nn.Module]
    optimizer: Optimizer
    loader: Loader[Batch]

    @abstractmethod
    def step(self, batch: Batch, position: Position) -> dict[str, float]:
        """Change the weights by one batch; the terms of its loss."""

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


class Loop(Generic[Batch]):
    """Epochs of batches, a validation after each, and checkpoints on the way.

    `config` is what the training was told and `data` what it learns from, part for part, with checksums: a training
    goes on only with the same. `stop` is asked after every batch whether to end early, which raises :class:`Stopped`
    once a checkpoint is written.
    """

    def __init__(
        self,
        learner: Learner[Batch],
        config: RankerConfig | CascadeConfig,
        out: Path,
        *,
        data: Mapping[str, str],
        progress: Progress = lambda step: None,
        on_epoch: Callable[[Any], None] = lambda epoch: None,
        stop: Callable[[], int] = lambda: False,
    ) -> None:
        self.learner, self.out = learner, out
        self.settings = config.training
        self.progress, self.on_epoch, self.stop = progress, on_epoch, stop
        self.checkpoints = Checkpoints(out / CHECKPOINTS, self.settings.keep)
        self.position = Position()
        self.trackers = Trackers(config, out)  # before anything is written: what they need may be missing
        self._config, self._data, self._made_by = config.model_dump(mode="json"), dict(data), _made_by()
        self._saved = self._lap_began = time.perf_counter()

    # --- from one batch to the next -----------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Train until all epochs are done or the metric no longer becomes better."""
        self._saved = self._lap_began = time.perf_counter()
        while not self._is_over():
            self._train()
            self._validate()
        self._lap()
        place = self.position
        result = TrainResult(place.best, place.best_epoch, place.epoch - 1, place.seconds, self.learner.parameters())
        with self.writing():
            write_file(self.out / RESULT, json.dumps(asdict(result), indent=2) + "\n")
            self.checkpoints.clear()
        return result

    def _is_over(self) -> bool:
        done, patience = self.position.epoch - 1, self.settings.patience
        return done == self.settings.epochs or (patience is not None and done - self.position.best_epoch >= patience)

    def _train(self) -> None:
        """Take the batches of the epoch that are left."""
        learner, place = self.learner, self.position
        for module in learner.modules.values():
            module.train()
        learner.loader.set_epoch(place.epoch - 1)
        for batch in learner.loader:
            for name, value in learner.step(batch, place).items():
                place.sums[name] = place.sums.get(name, 0.0) + value * len(batch)
            place.step, place.batch, place.seen = place.step + 1, place.batch + 1, place.seen + len(batch)
            place.epoch_seconds += self._lap()
            report = self._report()
            self.progress(report)
            self.trackers.batch(report, place.step)
            if self.stop():
                self.save()
                raise Stopped(self._stopped())
            if time.perf_counter() - self._saved >= self.settings.checkpoint_every:
                self.save()

    def _validate(self) -> None:
        """Measure what an epoch has come to, and keep it."""
        learner, place, directory = self.learner, self.position, self.out / CHECKPOINTS
        place.validation = learner.validate()
        self._lap()
        epoch = learner.line(place)
        place.lines.append(asdict(epoch))
        value = place.validation[learner.metric]
        with self.writing():
            with (self.out / METRICS).open("a") as file:
                file.write(_text(place.lines[-1:]))
            sync(self.out / METRICS)
            if not place.best_epoch or learner.is_better(value, place.best):
                place.best_epoch, place.best = place.epoch, value
                learner.save(directory / "best.safetensors", place)
            learner.save(directory / "last.safetensors", place)
        self.trackers.log(place.lines[-1], place.step)
        self.on_epoch(epoch)
        place.next_epoch()
        if not self._is_over():  # the result comes next, and is all that is needed
            self.save()

    def _lap(self) -> float:
        """Count the seconds since the last time."""
        now = time.perf_counter()
        lap, self._lap_began = now - self._lap_began, now
        self.position.seconds += lap
        return lap

    def _report(self) -> Step:
        place, epochs = self.position, self.settings.epochs
        batches = len(self.learner.loader)
        return Step(place.epoch, epochs, place.batch, batches, place.parts, place.validation, place.per_second)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; that changes nothing of the training."""
        about = {"config": self._config, "data": self._data, "made_by": self._made_by}
        state = {"position": asdict(self.position), **self.learner.state_dict(), **about}
        with self.writing():
            self.checkpoints.save(self.position.step, state)
        self._lap()  # which is no part of an epoch's speed
        self._saved = self._lap_began

    def resume(self, on_notice: OnNotice) -> bool:
        """Go to the newest checkpoint, if there is one. Refuse one of another configuration or other data."""
        state = self.checkpoints.load(on_notice)
        if state is None:
            if (self.out / CONFIG).is_file():
                on_notice(f"{self.out} has no checkpoint yet: training begins again")
            return False
        check_same(self.out, state["config"], self._config)
        check_same_data(self.out, state["data"], self._data)
        self._compare_makers(state["made_by"], on_notice)
        self.learner.load_state_dict(state)
        self.position = Position(**state["position"])
        if self.position.best_epoch:
            self._check_best()
        with self.writing():  # the file may have lines of epochs that come again
            write_file(self.out / METRICS, _text(self.position.lines))
        return True

    def _check_best(self) -> None:
        """The best weights so far stand in a file of their own, without which there is nothing to go on for."""
        try:
            read_checkpoint(self.out / CHECKPOINTS / "best.safetensors")
        except ValueError as error:
            raise DamagedError(
                f"{error}. Without the best weights training cannot go on; --force starts over"
            ) from None

    def _compare_makers(self, before: Mapping[str, str], on_notice: OnNotice) -> None:
        now = self._made_by
        changed = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
        if changed:
            on_notice(f"{self.out} was begun with {'; '.join(changed)}: last digits may differ from those of one go")

    @contextmanager
    def writing(self) -> Generator[None]:
        """Say what is left where a directory cannot be written to."""
        try:
            yield
        except OSError as error:
            count = len(self.checkpoints.paths())
            left = (
                f"are {count} older checkpoints, as good as before" if count > 1 else f"is {count or 'no'} checkpoint"
            )
            raise TrainingError(
                f"{self.out} cannot be written to: {error}. Training ended, {self._where()}. "
                f"There {left}; when the cause is gone, --resume continues"
            ) from None

    def _where(self) -> str:
        place = self.position
        if not place.step:
            return "before the first batch"
        return f"after batch {place.batch} of {len(self.learner.loader)} in epoch {place.epoch}"

    def _stopped(self) -> str:
        return f"stopped {self._where()}; the same command with --resume continues {self.out} from there"


def finished(out: Path, config: RankerConfig | CascadeConfig, on_notice: OnNotice) -> TrainResult | None:
    """The result of a run that is to be continued and is finished already; refuse a run of another configuration."""
    if not (out / CONFIG).is_file():
        return None
    check_same(out, read_config(out).model_dump(mode="json"), config.model_dump(mode="json"))
    if not is_finished(out):
        return None
    on_notice(f"{out} is finished already")
    Checkpoints(out / CHECKPOINTS, 1).clear()  # of which some are left if it was killed in its last moment
    return read_result(out)


def train_in(loop: Loop[Batch], files: Mapping[str, str], *, resume: bool, on_notice: OnNotice) -> TrainResult:
    """Run a loop and leave a run directory, with `files` in it; or continue what was begun there."""
    out = loop.out
    with loop.writing():
        out.mkdir(parents=True, exist_ok=True)
    with alone(out):
        resumed = resume and loop.resume(on_notice)
        with loop.writing():
            if resumed:
                clear_temporary(out)
            else:
                clear(out)
            for name, text in files.items():
                write_file(out / name, text)
        with loop.trackers.opened(loop.position.step, on_notice):
            return loop.run()


def _made_by() -> dict[str, str]:
    """On what the last digits of a training depend, besides what it is told."""
    processor = torch.backends.cpu.get_cpu_capability()
    return {"rankfall": __version__, "torch": str(torch.__version__), "processor": processor}


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
