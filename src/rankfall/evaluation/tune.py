"""Searching settings on validation data, with Optuna: draws that learn from trials (TPE), and an early end of bad ones.

Every trial is a training in a directory of its own, whose configuration does not know the test data. What is
known of all trials stands in one journal, so a search goes on where it was, whatever ended it, and any number of
processes may work on it. A trial that a process left behind is continued from its checkpoint by the next one.

================================  ====================================================================================
``study.journal``                 all trials, as Optuna keeps them
``tune.yaml``                     what is searched, as it can be searched again
``trials.json``                   all trials, as people and programs read them
``best.yaml``                     the configuration of the best trial, with the test data, for ``rankfall train``
``trials/0007/``                  the run of a trial; weights are kept of the best one only
================================  ====================================================================================
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
import traceback
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import yaml

from rankfall._files import write_file
from rankfall._settings import ConfigError, dump, leaves, shown
from rankfall.evaluation.compare import higher_is_better
from rankfall.evaluation.workers import Failure, run_tasks
from rankfall.training import cascade, ranker
from rankfall.training.cascade_config import CascadeConfig, Role
from rankfall.training.checkpoint import DamagedError
from rankfall.training.run import CHECKPOINTS, HARMLESS, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from optuna import Study, Trial
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from rankfall.evaluation.search import Search, TrainingSettings
    from rankfall.training.run import Step, TrainResult

    OnStep = Callable[[int, Step], None]  # the number of a trial, and how far its training has come
    Entry = dict[str, Any]  # what is said of a trial

JOURNAL, TRIALS, RESULTS, BEST, CONFIG = "study.journal", "trials", "trials.json", "best.yaml", "tune.yaml"
ERROR = "error.txt"
INSTALL = "pip install 'rankfall[tune]'"
DEATHS = 3  # of the processes of a trial, after which it is given up
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "running"}


def tune(
    search: Search,
    out: Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    jobs: int = 1,
    seed: int = 0,
    on_plan: Callable[[int, int], None] = lambda done, trials: None,
    on_trial: Callable[[Entry], None] = lambda trial: None,
    on_step: OnStep = lambda number, step: None,
    stop: Callable[[], int] = lambda: False,
) -> dict[str, Any]:
    """Do what is left of so many trials, those of the search by default; returns the content of ``trials.json``.

    No trial begins after `timeout` seconds. `seed` is that of the draws. `on_plan` hears how many trials are done and
    shall be, `on_trial` of each that ends. With one job `on_step` hears of every batch, and `stop` is asked after each
    whether to end early, which raises :class:`Stopped`.
    """
    _optuna()  # before anything is read or written
    _check_free(out)
    begun = _begun(search)
    study = _Study(search, out)
    study.begin(begun)
    task = Task(search, out, trials or search.trials, seed, math.inf if timeout is None else time.time() + timeout)
    on_plan(study.done(), task.trials)
    try:
        while _pass(task, study, jobs, on_trial, on_step, stop):
            pass
    except KeyboardInterrupt:
        with study.alone():
            study.take_back(died=False)
        raise
    return study.write_results()


@dataclass(frozen=True)
class Task:
    """To do the next trial."""

    search: Search
    out: Path
    trials: int  # that there shall be in all
    seed: int
    until: float  # when the last may begin, by the clock


def _pass(
    task: Task, study: _Study, jobs: int, on_trial: Callable[[Entry], None], on_step: OnStep, stop: Callable[[], int]
) -> bool:
    """Do as many trials as seem to be left; whether there may be more, that processes have left behind meanwhile."""
    with study.alone():
        count = study.left(task.trials)
    done, trouble = 0, ""
    with closing(_perform(task, count, jobs, on_step, stop)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                trouble = outcome.message
            elif outcome is not None:
                done += 1
                on_trial(outcome)
    if trouble and not done:
        raise ValueError(f"{task.out}: no trial comes to an end: {trouble}; the same command tries again")
    return done > 0


def _perform(
    task: Task, count: int, jobs: int, on_step: OnStep, stop: Callable[[], int]
) -> Generator[Entry | Failure | None]:
    if jobs == 1:
        for _ in range(count):
            yield next_trial(task, on_step, stop)
    else:
        for _, outcome in run_tasks(next_trial, [task] * count, jobs=jobs):
            yield outcome


def next_trial(
    task: Task, on_step: OnStep = lambda number, step: None, stop: Callable[[], int] = lambda: False
) -> Entry | None:
    """Do a trial, one that was left behind or a new one; nothing if there are enough or it is too late."""
    study = _Study(task.search, task.out)
    with ExitStack() as claim:
        with study.alone():
            if time.time() >= task.until or study.left(task.trials) <= 0:
                return None
            trial = study.ask(task.seed)
            claim.enter_context(_locked(study.lock(trial.number)))
        study.do(trial, on_step, stop)
    study.write_results()
    return study.entry(trial.number)


# --- the study ----------------------------------------------------------------------------------------------------


class _Study:
    """All trials of a directory. A trial that is being done is locked by its process, however that ends."""

    def __init__(self, search: Search, out: Path) -> None:
        optuna = _optuna()
        self.search, self.out = search, out
        self.metric = search.first().training.metric
        self.higher_is_better = higher_is_better(self.metric)
        (out / TRIALS).mkdir(parents=True, exist_ok=True)
        with self.alone():
            self.storage: BaseStorage = _storage(out / JOURNAL)
            self.study: Study = optuna.create_study(
                storage=self.storage,
                study_name="rankfall",
                direction="maximize" if self.higher_is_better else "minimize",
                pruner=optuna.pruners.MedianPruner(),
                load_if_exists=True,
            )

    @contextmanager
    def alone(self) -> Generator[None]:
        """While this process looks what is left and takes it, no other does. A training is not waited for."""
        with _locked(self.out / ".lock", wait=True):
            yield

    def begin(self, begun: dict[str, Any]) -> None:
        """Say what is searched, or refuse to go on with another search."""
        with self.alone():
            before = self.study.user_attrs.get("begun")
            if before is None:
                self.study.set_user_attr("begun", begun)
                text = yaml.safe_dump(self.search.written(), sort_keys=False, allow_unicode=True)
                write_file(self.out / CONFIG, text)
            else:
                self._check_same(leaves(before), leaves(begun))

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        ignored = {f"config.{key}" for key in (*HARMLESS, *self.search.space)}
        differences = [
            f"{key.removeprefix('config.')} was {shown(before.get(key))} and is {shown(now.get(key))}"
            for key in before | now
            if before.get(key) != now.get(key) and not any(key == one or key.startswith(f"{one}.") for one in ignored)
        ]
        if differences:
            raise ConfigError(
                f"{self.out} holds another search: {', '.join(differences)}. Go on with that, or name another directory"
            )

    def done(self) -> int:
        """How many trials have ended."""
        return sum(trial.state.is_finished() for trial in self._trials())

    def left(self, trials: int) -> int:
        """How many of so many trials nobody has done or is doing."""
        self.take_back()
        return trials - sum(trial.state.name != "WAITING" for trial in self._trials())

    def take_back(self, *, died: bool = True) -> None:
        """Give back what processes have left behind, to be done by others."""
        for trial in self._running():
            if not _is_free(self.lock(trial.number)):
                continue
            deaths = trial.user_attrs.get("deaths", 0) + died
            self.storage.set_trial_user_attr(trial._trial_id, "deaths", deaths)
            if deaths < DEATHS:
                self.give_back(trial._trial_id)
            else:
                error = f"the process that did it ended {DEATHS} times, by lack of memory or from outside"
                self.storage.set_trial_user_attr(trial._trial_id, "error", error)
                self.study.tell(trial.number, state=_state("FAIL"))

    def give_back(self, trial_id: int) -> None:
        """Put a trial first in the queue, as it is."""
        self.storage.set_trial_state_values(trial_id, state=_state("WAITING"))

    def ask(self, seed: int) -> Trial:
        """The trial to do next, which gets all its settings."""
        # Draws depend on the trials so far and not on which process makes them or how often it was begun.
        numbers = np.random.SeedSequence([seed, len(self._trials())]).generate_state(1)
        self.study.sampler = _optuna().samplers.TPESampler(seed=int(numbers[0]))
        return self.study.ask({key: dimension.distribution() for key, dimension in self.search.space.items()})

    def do(self, trial: Trial, on_step: OnStep, stop: Callable[[], int]) -> None:
        """Train, and say what came of it."""
        optuna = _optuna()
        directory = self.directory(trial.number)
        try:
            config = self.search.config(self.search.read(trial.params))
            result = _train(_without_test(config), directory, self._listener(trial, on_step), stop)
        except optuna.TrialPruned:
            self.study.tell(trial, state=_state("PRUNED"))
        except Stopped:
            self.give_back(trial._trial_id)
            raise
        except Exception as error:
            speaks = isinstance(error, ValueError | OSError)
            if not speaks:
                directory.mkdir(exist_ok=True)
                write_file(directory / ERROR, traceback.format_exc())
            trial.set_user_attr("error", str(error) if speaks else f"{type(error).__name__}: {error}")
            self.study.tell(trial, state=_state("FAIL"))
        else:
            trial.set_user_attr("result", asdict(result))
            self.study.tell(trial, result.best_metric)

    def _listener(self, trial: Trial, on_step: OnStep) -> Callable[[Step], None]:
        """Hears how a training goes on, and ends it when it is worse than half of the others were at that point."""
        reported = set(self._trials()[trial.number].intermediate_values)

        def hear(step: Step) -> None:
            on_step(trial.number, step)
            epoch = step.epoch - 1  # the validation is of the one before
            if step.validation and epoch not in reported:
                reported.add(epoch)
                trial.report(step.validation[self.metric], epoch)
                if trial.should_prune():
                    raise _optuna().TrialPruned

        return hear

    def directory(self, number: int) -> Path:
        """Of the run of a trial."""
        return self.out / TRIALS / f"{number:04}"

    def lock(self, number: int) -> Path:
        """Of a trial that is being done; not in its directory, which is that of a run."""
        return self.out / TRIALS / f".{number:04}.lock"

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _running(self) -> list[FrozenTrial]:
        return [trial for trial in self._trials() if trial.state.name == "RUNNING"]

    # --- results ------------------------------------------------------------------------------------------------

    def write_results(self) -> dict[str, Any]:
        """Write what is known so far, and forget the weights of all trials but the best."""
        with self.alone():
            best = self._best()
            result = {
                "metric": self.metric,
                "higher_is_better": self.higher_is_better,
                "search": self.search.written()["search"],
                "best": None if best is None else self.entry(best.number),
                "trials": [self.entry(trial.number) for trial in self._trials()],
            }
            if best is not None:
                config = self.search.config(self.search.read(best.params))
                write_file(self.out / BEST, dump(_with_absolute_path(config)))
            write_file(self.out / RESULTS, json.dumps(result, indent=2, allow_nan=False) + "\n")
            for trial in self._trials():
                if trial.state.is_finished() and (best is None or trial.number != best.number):
                    shutil.rmtree(self.directory(trial.number) / CHECKPOINTS, ignore_errors=True)
                    self.lock(trial.number).unlink(missing_ok=True)
            return result

    def _best(self) -> FrozenTrial | None:
        """The first of those that are best; an early end is no result."""
        complete = [trial for trial in self._trials() if trial.state.name == "COMPLETE"]
        sign = 1 if self.higher_is_better else -1
        return max(complete, key=lambda trial: sign * cast("float", trial.value), default=None)

    def entry(self, number: int) -> Entry:
        """What is said of a trial."""
        trial = self._trials()[number]
        result = trial.user_attrs.get("result", {})
        return {
            "trial": number,
            "state": _STATES[trial.state.name],
            "value": trial.value,
            "settings": self.search.read(trial.params),
            "best_epoch": result.get("best_epoch"),
            "seconds": result.get("seconds"),
            "error": trial.user_attrs.get("error"),
            "directory": str(self.directory(number).relative_to(self.out)),
        }


def _train(
    config: TrainingSettings, directory: Path, progress: Callable[[Step], None], stop: Callable[[], int]
) -> TrainResult:
    """Train from where a process may have left it."""

    def on_notice(text: str) -> None:
        """Whatever was lost is trained again, with the same result."""

    def go_on() -> TrainResult:
        if isinstance(config, CascadeConfig):
            return cascade.train(config, directory, resume=True, progress=progress, on_notice=on_notice, stop=stop)
        return ranker.train(config, directory, resume=True, progress=progress, on_notice=on_notice, stop=stop)

    try:
        return go_on()
    except DamagedError:
        shutil.rmtree(directory)
        return go_on()


def _without_test(config: TrainingSettings) -> TrainingSettings:
    """What is not known cannot be looked at."""
    return config.model_copy(update={"data": config.data.model_copy(update={"test": []})})


def _with_absolute_path(config: TrainingSettings) -> TrainingSettings:
    data = config.data.model_copy(update={"path": str(Path(config.data.path).absolute())})
    return config.model_copy(update={"data": data})


# --- what a search begins with ------------------------------------------------------------------------------------


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"out: {out} is a file, expected a directory for the search")
    begun = (TRIALS, ".lock", JOURNAL)  # somebody else may be about to begin
    if out.is_dir() and not (out / JOURNAL).is_file() and any(path.name not in begun for path in out.iterdir()):
        raise ValueError(f"out: {out} holds other files and no search; name another directory")


def _begun(search: Search) -> dict[str, Any]:
    """What may not change while a search goes on: configuration, space and data."""
    config = search.first()
    space = {"search": search.written()["search"]}
    return {"config": config.model_dump(mode="json"), **space, "data": _checksums(config)}


def _checksums(config: TrainingSettings) -> dict[str, str]:
    """Of what trials read. Days and splits to test on are looked up by their names only."""
    if isinstance(config, CascadeConfig):
        log = cascade.load_log(config.data)
        days = {role: _known(role, log.choose, config.data.days(role)) for role in get_args(Role)}
        return {day.name: day.manifest["sha256"] for day in (*days["train"], *days["valid"])}
    data = ranker.load_data(config.data)
    for role in get_args(Role):
        _known(role, lambda names: [data[name] for name in names], config.data.splits(role))
    return dict(data.manifest["files"])


def _known(role: Role, find: Callable[[list[str]], list[Any]], names: list[str]) -> list[Any]:
    try:
        return find(names)
    except ValueError as error:
        raise ConfigError(f"data.{role}: {str(error).removeprefix('days: ').removeprefix('split: ')}") from None


# --- Optuna and locks ---------------------------------------------------------------------------------------------


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ValueError(f"rankfall tune needs optuna, which is not installed; {INSTALL} brings it") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _state(name: str) -> Any:
    return _optuna().trial.TrialState[name]


def _storage(path: Path) -> BaseStorage:
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=cast("Any", _JournalLock(path))))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged, {error}; begin the search again in another directory") from None


class _JournalLock:
    """Whoever writes to the journal is alone, until its process ends; Optuna's locks outlive it for half a minute.

    What a process wrote half before it ended, or the disk was full, is taken away before others write behind it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def acquire(self) -> bool:
        self._handle = os.open(self._path, os.O_RDWR)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        size = os.fstat(self._handle).st_size
        end = os.pread(self._handle, 1 << 20, max(0, size - (1 << 20)))
        if end and not end.endswith(b"\n"):
            os.ftruncate(self._handle, size - len(end) + end.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        os.close(self._handle)


@contextmanager
def _locked(path: Path, *, wait: bool = False) -> Generator[None]:
    """A lock that ends with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _is_free(path: Path) -> bool:
    try:
        with _locked(path):
            return True
    except BlockingIOError:
        return False
