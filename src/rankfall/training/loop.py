"""The training loop. It can stop after any batch, and a resumed run ends with the same weights, bit for bit.

A :class:`~rankfall.training.learner.Learner` updates the weights with each batch; the loop validates and keeps the best
and the last weights. A checkpoint is the learner's state and the loop's
:class:`~rankfall.training.learner.Position`, which together decide the rest of the run.

With several processes (`training.distributed`), each has a learner and a loop and takes a share of every batch. The
first process writes files and reports progress.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import torch

from rankfall import __version__
from rankfall._config import ConfigError
from rankfall._tensor_file import read_checkpoint
from rankfall.models.layers import RowNorm
from rankfall.storage.disk import delete, make_directory
from rankfall.storage.files import LockedError, locked, write_file
from rankfall.storage.manifests import MANIFEST
from rankfall.training import run_directory as runs
from rankfall.training.checkpoint import Checkpoints, DamagedError, stored_checksum
from rankfall.training.device import describe
from rankfall.training.distributed.group import ALONE, Group, LostError
from rankfall.training.learner import BatchT, Position, UnreadStep, append_epoch, restore_epochs
from rankfall.training.run_directory import check_same_on_all_processes
from rankfall.training.trackers import Trackers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from rankfall.training.checkpoint import State
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.learner import Learner

    Progress = Callable[[runs.Step], None]
    OnEpoch = Callable[[Any, Any], None]
    OnNotice = Callable[[str], None]

BEST, LAST = "best.safetensors", "last.safetensors"
UNREAD_STEPS, UNREAD_SECONDS = 32, 0.5  # on a device, results are read after this number of batches or seconds
LOCK_TIMEOUT = 30.0  # seconds for a lost process to release the lock of the directory


@dataclass(frozen=True)
class Prepared:
    """A training run whose configuration and data are checked, and of which nothing was written or drawn yet.

    Attributes:
        config: Configuration of the run.
        data: Checksums of the parts of the data.
        make_learner: Makes the learner, with a function that is called with warnings.
        files: Names and contents of further files of the run.
    """

    config: TrainConfig
    data: Mapping[str, str]
    make_learner: Callable[[OnNotice], Learner[Any]]
    files: Mapping[str, str] = field(default_factory=dict)


class Loop(Generic[BatchT]):
    """Epochs of batches, with validations between them, and checkpoints.

    Args:
        learner: What is trained.
        config: Configuration of the run. A run can be resumed with the same configuration only.
        out: Run directory.
        data: Checksums of the parts of the data. A run can be resumed with the same data only.
        progress: Called after every batch.
        on_epoch: Called after every epoch with its line of ``metrics.jsonl`` and the learner.
        stop: Called after every batch. A true value writes a checkpoint and raises :class:`Stopped`.

    Attributes:
        open_ended: Whether more epochs may follow later, so that the last checkpoints are kept.
        on_notice: Called with warnings.
    """

    open_ended = False

    def __init__(
        self,
        learner: Learner[BatchT],
        config: TrainConfig,
        out: Path,
        *,
        data: Mapping[str, str],
        progress: Progress = lambda step: None,
        on_epoch: OnEpoch = lambda epoch, learner: None,
        stop: Callable[[], int] = lambda: False,
    ) -> None:
        self.learner, self.group, self.out = learner, learner.group, out
        self.settings = config.training
        self.epochs = self.settings.epochs
        self.progress, self.on_epoch, self.stop = progress, on_epoch, stop
        self.on_notice: OnNotice = warnings.warn
        if not self.group.first:
            self.progress, self.on_epoch = lambda step: None, lambda epoch, learner: None
        self.checkpoints = Checkpoints(out / runs.CHECKPOINTS, self.settings.keep)
        self.position = Position()
        self.trackers = Trackers(config, out)  # raises before anything is written if a package is missing
        self._config, self._data = config.model_dump(mode="json"), dict(data)
        self._code = {f"{runs.CODE}{one.file or one.name}": one.sha256 for one in runs.sources_of(config)}
        self._made_by = {  # what the last digits of the weights depend on, besides configuration and data
            "rankfall": __version__,
            "torch": str(torch.__version__),
            "processor": torch.backends.cpu.get_cpu_capability(),
            "processes": str(self.group.world),
            "device": describe(learner.placement.device),
            "compile": str(learner.placement.compiles).lower(),
        }
        self._before_batch: State = {}
        self._unread: list[UnreadStep[BatchT]] = []
        self._read_at = 0.0
        self._saved = self._lap_began = time.perf_counter()

    # --- epochs and batches -------------------------------------------------------------------------------------

    def run(self) -> runs.TrainResult:
        """Train until all epochs are done or the validation metric stops improving."""
        self._saved = self._lap_began = time.perf_counter()
        try:
            self.learner.network = self.group.wrap(self.learner.network)
            while not self._is_over():
                self._train()
                self._validate()
        except LostError as lost:
            raise LostError(f"{lost}. Training ended {self._where()}. {self._save_snapshot()}") from None
        self._lap()
        return self._finish()

    def _finish(self) -> runs.TrainResult:
        """Write the result."""
        place = self.position
        result = runs.TrainResult(
            place.best,
            place.best_epoch,
            place.epoch - 1,
            place.seconds,
            self.learner.parameters(),
            str(self.learner.placement.device),
        )
        if self.group.first:
            text = json.dumps(asdict(result), indent=2) + "\n"
            with self.writing():
                runs.seal_run(self.out, runs.lasting_files(self.out), later={runs.RESULT: text})
                write_file(self.out / runs.RESULT, text)
                if not self.open_ended:
                    self.checkpoints.clear()
        return result

    def _is_over(self) -> bool:
        done, patience, every = self.position.epoch - 1, self.settings.patience, self.learner.validate_every
        since_best = done // every - self.position.best_epoch // every  # validations
        return done == self.epochs or (patience is not None and since_best >= patience)

    def _train(self) -> None:
        """Train on the remaining batches of the epoch."""
        learner, place = self.learner, self.position
        for module in learner.modules.values():
            module.train()
        learner.loader.set_epoch(place.epoch - 1)
        self._snapshot_before_batch()
        for batch in learner.loader:
            self._train_batch(batch)
            place.epoch_seconds += self._lap()
            if not self._unread:
                self._report_progress()
            due = self.group.first and time.perf_counter() - self._saved >= self.settings.checkpoint_every
            waited = time.perf_counter() - self._read_at >= UNREAD_SECONDS or len(self._unread) >= UNREAD_STEPS
            long = self.group.first and bool(self._unread) and waited
            stopped, due, long = map(bool, self.group.totals([bool(self.stop()), due, long]))
            if stopped or due or long:
                self._read()
            if stopped or due:
                self.save()
            if stopped:
                self.group.totals([0])  # no process leaves before the checkpoint is written
                raise runs.Stopped(self._stopped())
        self._read()
        self._check_trained()

    def _check_trained(self) -> None:
        """Refuse to continue after an epoch that trained nothing, or a part of the model not at all."""
        what = self.learner.find_untrained(self.position, new=self.position.epoch == 1)
        if what:
            with self.group.together():
                raise self.learner.untrained(what, self.position)

    def _train_batch(self, batch: BatchT) -> None:
        """Train on one batch."""
        learner, place = self.learner, self.position
        # The generators of other devices are seeded in every batch, and need not be part of checkpoints.
        self.group.seed_noise(self.settings.seed, place.step, always=not learner.placement.is_cpu)
        with self.group.watching(), self._within_memory():
            if learner.placement.is_cpu:
                place.add(learner.step(batch, place), learner.trained_parts)
            else:
                self._unread.append(learner.launch(batch, place))
                place.advance(self._unread[-1].count)
        self._snapshot_before_batch()

    def _read(self) -> None:
        """Read the results of batches that were launched on a device, and report progress.

        This is the only moment of an epoch at which the host waits for the device.
        """
        if not self._unread:
            return
        place = self.position
        with self.group.watching(), self._within_memory():
            for result in self.learner.read(self._unread, place):
                place.note(result, self.learner.trained_parts)
        self._unread, self._read_at = [], time.perf_counter()
        place.epoch_seconds += self._lap()
        self._report_progress()

    @contextmanager
    def _within_memory(self) -> Generator[None]:
        """Turn lack of memory of the device into an error that says what to change."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            device = self.learner.placement.device
            raise runs.TrainingError(
                f"training.batch: {self.settings.batch} lists do not fit into the memory of {device} "
                f"({str(error).splitlines()[0]}); try a smaller training.batch, training.precision=bfloat16, or "
                "fewer jobs on this device"
            ) from None

    def _validate(self) -> None:
        """Validate after an epoch if that is due, and keep its weights."""
        learner, place = self.learner, self.position
        if place.epoch % learner.validate_every and place.epoch != self.epochs:
            place.validation = {}
            self._end_epoch(math.nan, is_best=False)
        else:
            place.validation = learner.validate()
            self._lap()
            value = place.validation[learner.metric]
            self._end_epoch(value, is_best=math.isnan(place.best) or learner.is_better(value, place.best))
        if self.open_ended or not self._is_over():  # otherwise the result is written next, and needs no checkpoint
            self.save()

    def _end_epoch(self, value: float, *, is_best: bool) -> None:
        """Write the line and the weights of an epoch with a `value` of the metric, and go to the next epoch."""
        place = self.position
        epoch = self.learner.line(place)
        place.lines.append(asdict(epoch))
        if is_best:
            place.best_epoch, place.best = place.epoch, value
        if self.group.first:
            with self.writing():
                append_epoch(self.out / runs.METRICS, place.lines[-1])
                if is_best:
                    self.learner.save(self.checkpoints.directory / BEST, place)
                    place.best_weights = stored_checksum(self.checkpoints.directory / BEST)
                self.learner.save(self.checkpoints.directory / LAST, place)
        self.trackers.log(place.lines[-1], place.step)
        self.on_epoch(epoch, self.learner)
        place.next_epoch()

    def _lap(self) -> float:
        """Add the time since the last call to the working time, and return it."""
        now = time.perf_counter()
        lap, self._lap_began = now - self._lap_began, now
        self.position.seconds += lap
        return lap

    def _report_progress(self) -> None:
        place, batches = self.position, len(self.learner.loader)
        report = runs.Step(
            place.epoch, self.epochs, place.batch, batches, place.parts, place.validation, place.per_second
        )
        self.progress(report)
        self.trackers.batch(report, place.step)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint."""
        if self.group.first:
            self._save(self.learner.state_dict())
        self._lap()  # the time of writing does not count for the speed of an epoch
        self._saved = self._lap_began

    def _save(self, state: State) -> None:
        about = {"config": self._config, "data": self._data, "made_by": self._made_by}
        with self.writing():
            self.checkpoints.save(self.position.step, {"position": asdict(self.position), **state, **about})

    def _snapshot_before_batch(self) -> None:
        """Keep the state from before the weights are updated, in case another process dies during the batch."""
        if self.group.world > 1 and self.group.first:
            own = {"loader": self.learner.loader.state_dict(), "random": torch.get_rng_state()}
            # a forward pass changes nothing else
            norms = [part for part in self.learner.network.modules() if isinstance(part, RowNorm)]
            kept = [(norm, {name: value.clone() for name, value in norm.named_buffers()}) for norm in norms]
            self._before_batch = {"own": own, "norms": kept}

    def _save_snapshot(self) -> str:
        """Write a checkpoint of the state before the batch in which a process was lost; return a hint for resuming."""
        if not self.group.first:
            return "The same command with --resume continues from the last checkpoint, if there is one"
        if not self.position.step or not self._before_batch or self._unread:
            return self._left()  # results that were not read would be missing from the position
        for norm, buffers in self._before_batch["norms"]:
            norm.load_state_dict(buffers, strict=False)
        self._save({**self.learner.state_dict(), **self._before_batch["own"]})
        return f"A checkpoint was written; the same command with --resume continues {self.out} from there"

    def resume(self, on_notice: OnNotice) -> bool:
        """Load the newest checkpoint, and return whether there is one.

        Raises:
            ConfigError: If the checkpoint has another configuration or other data.
            DamagedError: If all checkpoints are damaged or do not fit this release.
        """
        state = None
        with self.group.together():
            if self.group.first:
                state = self.checkpoints.load(on_notice)
                if state is None and (self.out / runs.CONFIG).is_file():
                    on_notice(f"{self.out} has no checkpoint yet: training starts again")
        state = self.group.of_first(state)
        if state is None:
            return False
        with self.group.together():
            self._go_to(state, on_notice)
            if self.group.first:
                if self.position.best_epoch:
                    self._check_best()
                with self.writing():  # the file may have lines of epochs after the checkpoint
                    restore_epochs(self.out / runs.METRICS, self.position.lines)
        # An epoch after this position, which is trained again, may have replaced the best weights. With another number
        # of processes it may end with other weights.
        expected, best = self.position.best_weights, self.out / runs.CHECKPOINTS / BEST
        is_first_and_closed = self.group.first and not self.open_ended
        if any(self.group.gather(is_first_and_closed and bool(expected) and stored_checksum(best) != expected)):
            self.position.best = math.nan  # so that the next epoch is the best
        return True

    def _go_to(self, state: State, on_notice: OnNotice) -> None:
        runs.check_same(self.out, state["config"], self._config)
        self._check_data(state)
        before, now = state["made_by"], self._made_by
        changed = [f"{name} {before[name]}, now {now[name]}" for name in sorted(now) if before[name] != now[name]]
        if changed:
            on_notice(f"{self.out} was started with {'; '.join(changed)}: last digits may differ")
        try:
            self.learner.load_state_dict(state)
            self.position = Position(**state["position"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise DamagedError(
                f"{self.out}: the checkpoint of rankfall {before.get('rankfall')} does not fit this release, "
                f"{__version__}: {error}. Continue with that one, or start over with --force"
            ) from None

    def _check_data(self, state: State) -> None:
        """Check that a checkpoint has the same data."""
        runs.check_same_data(self.out, state["data"], self._data)

    def check_same_on_all_processes(self) -> None:
        """Check that all processes have the same configuration, data and code of users."""
        check_same_on_all_processes(self.group.gather((self._config, self._data | self._code)))
        found = self.group.gather(self.learner.placement.device.type)
        if len(set(found)) > 1:
            raise ConfigError(
                f"training.device: found {', '.join(found)} in processes 0 to {len(found) - 1}, expected the same kind "
                "of device in all of them; name it in the configuration"
            )

    def _check_best(self) -> None:
        """Check the file of the best weights so far, which checkpoints do not contain."""
        try:
            read_checkpoint(self.out / runs.CHECKPOINTS / BEST)
        except ValueError as error:
            raise DamagedError(
                f"{error}. Without the best weights training cannot resume; --force starts over"
            ) from None

    @contextmanager
    def writing(self) -> Generator[None]:
        """Turn an `OSError` into an `EnvironmentFailure` with the position and the remaining checkpoints."""
        try:
            yield
        except OSError as error:
            raise runs.EnvironmentFailure(
                f"{self.out} cannot be written to: {error}. Training ended {self._where()}. {self._left()}"
            ) from None

    def _left(self) -> str:
        """Return a hint for resuming from the checkpoints that are left."""
        count = len(self.checkpoints.paths())
        if not count:
            return "There is no checkpoint yet: once the cause is fixed, the same command starts again"
        left = f"{count} older checkpoints are" if count > 1 else "An older checkpoint is"
        return f"{left} intact; once the cause is fixed, the same command (train: with --resume) continues"

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
) -> runs.TrainResult | None:
    """Return the result of a run that is to be resumed but is finished already, else None.

    Raises:
        ValueError: If the directory holds other files, or a run that is neither to be replaced nor resumed.
        ConfigError: If the run has another configuration or other data.
    """
    result = None
    with group.together():
        if group.first:
            runs.check_free(out, force=force, resume=resume)
        if group.first and resume and (out / runs.CONFIG).is_file():
            runs.check_same(out, runs.read_config(out).model_dump(mode="json"), config.model_dump(mode="json"))
            runs.check_same_code(out, config)
            if runs.is_finished(out):
                if (out / runs.DATA).is_file():
                    runs.verify_run(out, runs.DATA)
                    runs.check_same_data(out, runs.read_json(out / runs.DATA), data)
                on_notice(f"{out} is finished already")
                Checkpoints(out / runs.CHECKPOINTS, 1).clear()  # left over if the run was killed at its very end
                result = asdict(runs.read_result(out))
    found = group.of_first(result)
    return None if found is None else runs.TrainResult(**found)


def train_in(loop: Loop[BatchT], files: Mapping[str, str], *, resume: bool, on_notice: OnNotice) -> runs.TrainResult:
    """Run a loop in its run directory.

    Args:
        loop: The loop.
        files: Names and contents of further files of the run.
        resume: Continue from the last checkpoint in the directory.
        on_notice: Called with warnings.
    """
    out, group = loop.out, loop.group
    on_notice = on_notice if group.first else lambda text: None  # the other processes print nothing
    loop.on_notice = on_notice
    loop.check_same_on_all_processes()
    if not (resume and any(group.gather(group.first and bool(loop.checkpoints.paths())))):
        with group.together():
            loop.learner.begin()  # raises before anything is written
    with ExitStack() as held:
        with group.together():
            if group.first:
                with loop.writing():
                    make_directory(out)
                _lock(held, out, LOCK_TIMEOUT if group.restarted else 0)
        resumed = resume and loop.resume(on_notice)
        with group.together():
            if group.first:
                _write_beginning(loop, files, resumed)
                held.enter_context(loop.trackers.opened(loop.position.step, on_notice))
        return loop.run()


def _lock(held: ExitStack, out: Path, patience: float) -> None:
    """Lock a directory until `held` is closed, and wait `patience` seconds for the lock."""
    deadline = time.monotonic() + patience
    while True:
        try:
            held.enter_context(locked(out, busy=f"another training run is working in {out}"))
            return
        except LockedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def _write_beginning(loop: Loop[BatchT], files: Mapping[str, str], resumed: bool) -> None:
    with loop.writing():
        if resumed:
            runs.clear_temporary(loop.out)
        else:
            loop.trackers.reach()  # before an older run is deleted
            runs.clear(loop.out)
        delete(loop.out / MANIFEST, missing_ok=True)  # before files that it lists are replaced
        for name, text in files.items():
            write_file(loop.out / name, text)
        runs.seal_run(loop.out, (loop.out / name for name in files))
