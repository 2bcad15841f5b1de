"""The loop of every training, which can stop after any batch and go on from there as if it never had.

A :class:`~rankfall.training.learner.Learner` says what a batch costs; the loop changes the weights, measures, and
keeps the best and the last of them. What decides the rest of a training is the learner's state and the loop's
:class:`~rankfall.training.learner.Position`; both together are a checkpoint.

Several processes (`training.distributed`) have a learner and a loop each, take a share of every batch
and do the same otherwise; the first of them writes and speaks.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Generic

import torch

from rankfall import __version__
from rankfall._files import LockedError, locked, sync, write_file
from rankfall._tensor_file import read_checkpoint
from rankfall.models.layers import RowNorm
from rankfall.training.checkpoint import Checkpoints, DamagedError, seal
from rankfall.training.distributed.group import ALONE, Group, LostError
from rankfall.training.learner import Batch, Position
from rankfall.training.run_directory import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    METRICS,
    RESULT,
    Step,
    Stopped,
    SurroundingsError,
    TrainResult,
    check_alike,
    check_free,
    check_same,
    check_same_data,
    clear,
    clear_temporary,
    is_finished,
    read_config,
    read_json,
    read_result,
)
from rankfall.training.trackers import Trackers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from rankfall.training.checkpoint import State
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.learner import Learner

    Progress = Callable[[Step], None]
    OnNotice = Callable[[str], None]

BEST, LAST = "best.safetensors", "last.safetensors"
PATIENCE = 30.0  # seconds for a process that was lost to let go of the directory


class Loop(Generic[Batch]):
    """Epochs of batches, a validation after each, and checkpoints on the way.

    `config` is what the training was told and `data` what it learns from, part for part, with checksums: a training
    goes on only with the same. `stop` is asked after every batch whether to end early, which raises :class:`Stopped`
    once a checkpoint is written.
    """

    goes_on = False  # whether there may be more epochs another time, for which the last checkpoints are kept

    def __init__(
        self,
        learner: Learner[Batch],
        config: TrainConfig,
        out: Path,
        *,
        data: Mapping[str, str],
        progress: Progress = lambda step: None,
        on_epoch: Callable[[Any], None] = lambda epoch: None,
        stop: Callable[[], int] = lambda: False,
    ) -> None:
        self.learner, self.group, self.out = learner, learner.group, out
        self.settings = config.training
        self.epochs = self.settings.epochs
        self.progress, self.on_epoch, self.stop = progress, on_epoch, stop
        if not self.group.first:
            self.progress = self.on_epoch = lambda found: None
        self.checkpoints = Checkpoints(out / CHECKPOINTS, self.settings.keep)
        self.position = Position()
        self.trackers = Trackers(config, out)  # before anything is written: what they need may be missing
        self._config, self._data = config.model_dump(mode="json"), dict(data)
        self._made_by = _made_by(self.group)
        self._before: State = {}
        self._saved = self._lap_began = time.perf_counter()

    # --- from one batch to the next -----------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Train until all epochs are done or the metric no longer becomes better."""
        self._saved = self._lap_began = time.perf_counter()
        try:
            self.learner.network = self.group.wrap(self.learner.network)
            while not self._is_over():
                self._train()
                self._validate()
        except LostError as lost:
            raise LostError(f"{lost}. Training ended, {self._where()}. {self._rescue()}") from None
        self._lap()
        return self._finish()

    def _finish(self) -> TrainResult:
        """Write what came of it."""
        place = self.position
        result = TrainResult(place.best, place.best_epoch, place.epoch - 1, place.seconds, self.learner.parameters())
        if self.group.first:
            with self.writing():
                write_file(self.out / RESULT, json.dumps(asdict(result), indent=2) + "\n")
                if not self.goes_on:
                    self.checkpoints.clear()
        return result

    def _is_over(self) -> bool:
        done, patience = self.position.epoch - 1, self.settings.patience
        return done == self.epochs or (patience is not None and done - self.position.best_epoch >= patience)

    def _train(self) -> None:
        """Take the batches of the epoch that are left."""
        learner, place = self.learner, self.position
        for module in learner.modules.values():
            module.train()
        learner.loader.set_epoch(place.epoch - 1)
        self._remember()
        for batch in learner.loader:
            self._take(batch)
            place.epoch_seconds += self._lap()
            report = self._report()
            self.progress(report)
            self.trackers.batch(report, place.step)
            due = self.group.first and time.perf_counter() - self._saved >= self.settings.checkpoint_every
            stopped, due = map(bool, self.group.totals([bool(self.stop()), due]))
            if stopped or due:
                self.save()
            if stopped:
                self.group.totals([0])  # nobody leaves before it is written
                raise Stopped(self._stopped())

    def _take(self, batch: Batch) -> None:
        """Learn from a batch."""
        place = self.position
        self.group.seed_noise(self.settings.seed, place.step)
        with self.group.watching():
            taken = self.learner.step(batch, place)
        for name, value in taken.sums.items():
            place.sums[name] = place.sums.get(name, 0.0) + value
        place.step, place.batch, place.seen = place.step + 1, place.batch + 1, place.seen + taken.count
        self._remember()

    def _validate(self) -> None:
        """Measure what an epoch has come to, and keep it."""
        learner, place = self.learner, self.position
        place.validation = learner.validate()
        self._lap()
        value = place.validation[learner.metric]
        self._end_epoch(value, is_best=math.isnan(place.best) or learner.is_better(value, place.best))
        if self.goes_on or not self._is_over():  # otherwise the result comes next, and is all that is needed
            self.save()

    def _end_epoch(self, value: float, *, is_best: bool) -> None:
        """Write what an epoch has come to, `value` of the metric, and go on to the next."""
        place = self.position
        epoch = self.learner.line(place)
        place.lines.append(asdict(epoch))
        if is_best:
            place.best_epoch, place.best = place.epoch, value
        if self.group.first:
            with self.writing():
                self._write_epoch(is_best=is_best)
        self.trackers.log(place.lines[-1], place.step)
        self.on_epoch(epoch)
        place.next_epoch()

    def _write_epoch(self, *, is_best: bool) -> None:
        directory = self.out / CHECKPOINTS
        with (self.out / METRICS).open("a") as file:
            file.write(_text(self.position.lines[-1:]))
        sync(self.out / METRICS)
        if is_best:
            self.learner.save(directory / BEST, self.position)
            self.position.best_weights = seal(directory / BEST)
        self.learner.save(directory / LAST, self.position)

    def _lap(self) -> float:
        """Count the seconds since the last time."""
        now = time.perf_counter()
        lap, self._lap_began = now - self._lap_began, now
        self.position.seconds += lap
        return lap

    def _report(self) -> Step:
        place, batches = self.position, len(self.learner.loader)
        return Step(place.epoch, self.epochs, place.batch, batches, place.parts, place.validation, place.per_second)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; that changes nothing of the training."""
        if self.group.first:
            self._save(self.learner.state_dict())
        self._lap()  # which is no part of an epoch's speed
        self._saved = self._lap_began

    def _save(self, state: State) -> None:
        about = {"config": self._config, "data": self._data, "made_by": self._made_by}
        with self.writing():
            self.checkpoints.save(self.position.step, {"position": asdict(self.position), **state, **about})

    def _remember(self) -> None:
        """Note what the next batch changes before it changes the weights, in case that it cannot be finished."""
        if self.group.world > 1 and self.group.first:
            own = {"loader": self.learner.loader.state_dict(), "random": torch.get_rng_state()}
            # nothing else is changed by looking at a batch
            norms = [part for part in self.learner.network.modules() if isinstance(part, RowNorm)]
            kept = [(norm, {name: value.clone() for name, value in norm.named_buffers()}) for norm in norms]
            self._before = {"own": own, "norms": kept}

    def _rescue(self) -> str:
        """Keep what was trained before another process was lost; what there is to go on from."""
        if not self.group.first:
            return "The same command with --resume continues from the last checkpoint, if there is one"
        if not self.position.step or not self._before:
            return self._left()
        for norm, buffers in self._before["norms"]:
            norm.load_state_dict(buffers, strict=False)
        self._save({**self.learner.state_dict(), **self._before["own"]})
        return f"That is kept; the same command with --resume continues {self.out} from there"

    def resume(self, on_notice: OnNotice) -> bool:
        """Go to the newest checkpoint, if there is one. Refuse one of another configuration or other data."""
        state = None
        with self.group.together():
            if self.group.first:
                state = self.checkpoints.load(on_notice)
                if state is None and (self.out / CONFIG).is_file():
                    on_notice(f"{self.out} has no checkpoint yet: training begins again")
        state = self.group.of_first(state)
        if state is None:
            return False
        with self.group.together():
            self._go_to(state, on_notice)
            if self.group.first:
                if self.position.best_epoch:
                    self._check_best()
                with self.writing():  # the file may have lines of epochs that come again
                    write_file(self.out / METRICS, _text(self.position.lines))
        if any(self.group.gather(self.group.first and self._is_best_gone())):
            self.position.best = math.nan  # the next epoch is better than nothing
        return True

    def _go_to(self, state: State, on_notice: OnNotice) -> None:
        check_same(self.out, state["config"], self._config)
        self._check_data(state)
        self._compare_makers(state["made_by"], on_notice)
        try:
            self.learner.load_state_dict(state)
            self.position = Position(**state["position"])
        except (KeyError, TypeError, RuntimeError) as error:
            release = state["made_by"].get("rankfall")
            raise DamagedError(
                f"{self.out}: the checkpoint of rankfall {release} does not fit this release, {__version__}: {error}. "
                "Continue with that one, or start over with --force"
            ) from None

    def _check_data(self, state: State) -> None:
        """Refuse a checkpoint of other data."""
        check_same_data(self.out, state["data"], self._data)

    def check_alike(self) -> None:
        """Refuse processes that were told different things."""
        check_alike(self.group.gather((self._config, self._data)))

    def _check_best(self) -> None:
        """The best weights so far stand in a file of their own, without which there is nothing to go on for."""
        try:
            read_checkpoint(self.out / CHECKPOINTS / BEST)
        except ValueError as error:
            raise DamagedError(
                f"{error}. Without the best weights training cannot go on; --force starts over"
            ) from None

    def _is_best_gone(self) -> bool:
        """Whether the best weights before this position were replaced by those of an epoch that comes again.

        It may not come to the same end if the number of processes is another.
        """
        known = self.position.best_weights
        return bool(known) and not self.goes_on and seal(self.out / CHECKPOINTS / BEST) != known

    def _compare_makers(self, before: Mapping[str, str], on_notice: OnNotice) -> None:
        now = self._made_by
        both = before.keys() & now.keys()
        changed = [f"{name} {before[name]}, now {now[name]}" for name in sorted(both) if before[name] != now[name]]
        if changed:
            on_notice(f"{self.out} was begun with {'; '.join(changed)}: last digits may differ from those of one go")

    @contextmanager
    def writing(self) -> Generator[None]:
        """Say what is left where a directory cannot be written to."""
        try:
            yield
        except OSError as error:
            raise SurroundingsError(
                f"{self.out} cannot be written to: {error}. Training ended, {self._where()}. {self._left()}"
            ) from None

    def _left(self) -> str:
        """What there is to go on from."""
        count = len(self.checkpoints.paths())
        if not count:
            return "There is no checkpoint yet: when the cause is gone, training begins again"
        left = f"are {count} older checkpoints, as good as before" if count > 1 else "is an older checkpoint"
        return f"There {left}; when the cause is gone, the same command continues, that of a training with --resume"

    def _where(self) -> str:
        place = self.position
        if not place.step:
            return "before the first batch"
        return f"after batch {place.batch} of {len(self.learner.loader)} in epoch {place.epoch}"

    def _stopped(self) -> str:
        return f"stopped {self._where()}; the same command with --resume continues {self.out} from there"


def finished(
    out: Path,
    config: TrainConfig,
    data: Mapping[str, str],
    *,
    force: bool,
    resume: bool,
    on_notice: OnNotice,
    group: Group = ALONE,
) -> TrainResult | None:
    """The result of a run that is to be continued and is finished already; refuse a directory of anything else."""
    result = None
    with group.together():
        if group.first:
            check_free(out, force=force, resume=resume)
            result = _finished(out, config, data, on_notice) if resume else None
    found = group.of_first(None if result is None else asdict(result))
    return None if found is None else TrainResult(**found)


def _finished(out: Path, config: TrainConfig, data: Mapping[str, str], on_notice: OnNotice) -> TrainResult | None:
    if not (out / CONFIG).is_file():
        return None
    check_same(out, read_config(out).model_dump(mode="json"), config.model_dump(mode="json"))
    if not is_finished(out):
        return None
    if (out / DATA).is_file():
        check_same_data(out, read_json(out / DATA), data)
    on_notice(f"{out} is finished already")
    Checkpoints(out / CHECKPOINTS, 1).clear()  # of which some are left if it was killed in its last moment
    return read_result(out)


def train_in(loop: Loop[Batch], files: Mapping[str, str], *, resume: bool, on_notice: OnNotice) -> TrainResult:
    """Run a loop and leave a run directory, with `files` in it; or continue what was begun there."""
    out, group = loop.out, loop.group
    if not group.first:
        on_notice = _silent
    loop.check_alike()
    with ExitStack() as held:
        with group.together():
            if group.first:
                with loop.writing():
                    out.mkdir(parents=True, exist_ok=True)
                _lock(held, out, PATIENCE if group.restarted else 0)
        resumed = resume and loop.resume(on_notice)
        with group.together():
            if group.first:
                _write_beginning(loop, files, resumed)
                held.enter_context(loop.trackers.opened(loop.position.step, on_notice))
        return loop.run()


def _lock(held: ExitStack, out: Path, patience: float) -> None:
    """Work alone in a directory, until the end."""
    deadline = time.monotonic() + patience
    while True:
        try:
            held.enter_context(locked(out, busy=f"another training is working in {out}"))
            return
        except LockedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def _write_beginning(loop: Loop[Batch], files: Mapping[str, str], resumed: bool) -> None:
    with loop.writing():
        if resumed:
            clear_temporary(loop.out)
        else:
            loop.trackers.reach()  # before an older run is lost
            clear(loop.out)
        for name, text in files.items():
            write_file(loop.out / name, text)


def _silent(text: str) -> None:
    """Nobody hears it."""


def _made_by(group: Group) -> dict[str, str]:
    """On what the last digits of a training depend, besides what it is told."""
    processor = torch.backends.cpu.get_cpu_capability()
    return {
        "rankfall": __version__,
        "torch": str(torch.__version__),
        "processor": processor,
        "processes": str(group.world),
    }


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
