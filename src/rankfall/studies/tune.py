"""Search settings on validation data with Optuna: TPE proposes settings, and bad trials are pruned.

Every trial is a training run in its own directory, with a configuration that does not name the test data. All trials
are recorded in one journal, so an interrupted search continues where it was, and several processes can work on it.
A trial that a process abandoned is continued from its checkpoint by the next one.

================================  ====================================================================================
``study.journal``                 all trials, in the format of Optuna
``tune.yaml``                     the configuration, to search again
``trials.json``                   the :class:`~rankfall.studies.results.SearchResult`
``best.yaml``                     configuration of the best trial, with the test data, for ``rankfall train``
``trials/0007/``                  run of a trial; only the best one keeps its weights
================================  ====================================================================================
"""

from __future__ import annotations

import math
import os
import time
import traceback
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rankfall._config import ConfigError, leaves, shown, to_yaml
from rankfall._engine import LOCAL
from rankfall._errors import RankfallError, is_expected, one_line
from rankfall.storage.disk import delete, delete_tree, make_directory, open_new
from rankfall.storage.files import LockedError, locked, write_file
from rankfall.studies.results import SearchResult, TrialResult
from rankfall.studies.workers import Failure, run_tasks
from rankfall.training.config.component_checks import higher_is_better
from rankfall.training.config.load_config import dump_absolute
from rankfall.training.methods import method_of
from rankfall.training.run_directory import CHECKPOINTS, RESUME_MUTABLE_KEYS, EnvironmentFailure, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from optuna import Study as OptunaStudy
    from optuna import Trial
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from rankfall._engine import Engine
    from rankfall.studies.search_space import Search
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.run_directory import Step

    OnStep = Callable[[int, Step], None]  # number of a trial and progress of its training run
    OnNotice = Callable[[int, str], None]  # number of a trial and a message

INSTALL = "pip install 'rankfall[tune]'"
LINE = 1 << 20  # bytes, longer than any line of a journal


def load_optuna() -> Any:
    """Return the package optuna, or raise an error that explains how to install it."""
    try:
        import optuna
    except ImportError:
        raise RankfallError(f"rankfall tune needs optuna, which is not installed: {INSTALL}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_journal(path: Path) -> BaseStorage:
    """Open the journal in a file, and create it if it is missing."""
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=cast("Any", _Lock(path))))
    except (ValueError, KeyError) as error:
        raise RankfallError(f"{path} is damaged, {error}; start the search again in another directory") from None


class _Lock:
    """Exclusive lock on the journal, released when its process ends; Optuna's own locks survive it for 30 seconds.

    An incomplete last line, left by a process that was killed or by a full disk, is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = ExitStack()

    def acquire(self) -> bool:
        with (
            ExitStack() as stack
        ):  # after an error Optuna does not release the lock, and the next attempt would wait for it
            stack.enter_context(locked(self._path, wait=True))
            with open_new(self._path, "r+b") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - LINE))
                end = file.read()
                if end and not end.endswith(b"\n"):
                    file.truncate(size - len(end) + end.rfind(b"\n") + 1)
            self._held = stack.pop_all()
        return True

    def release(self) -> None:
        self._held.close()


JOURNAL, TRIALS, RESULTS, BEST, CONFIG = "study.journal", "trials", "trials.json", "best.yaml", "tune.yaml"
DEATHS = 3  # a trial fails when its process has died this many times
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "running"}


class Study:
    """All trials of a directory. A running trial is locked by its process, and unlocked when the process ends."""

    def __init__(self, search: Search, out: Path) -> None:
        optuna = load_optuna()
        self.search, self.out = search, out
        self.metric = search.first().training.metric
        self.higher_is_better = higher_is_better(self.metric)
        make_directory(out / TRIALS)
        with self.alone():
            self._storage: BaseStorage = open_journal(out / JOURNAL)
            self._study: OptunaStudy = optuna.create_study(
                storage=self._storage,
                study_name="rankfall",
                direction="maximize" if self.higher_is_better else "minimize",
                pruner=optuna.pruners.MedianPruner(),
                load_if_exists=True,
            )

    @contextmanager
    def alone(self) -> Generator[None]:
        """Lock the queue of trials for this process; the lock is not held while a trial runs."""
        with locked(self.out / ".lock", wait=True):
            yield

    # --- configuration of the search ----------------------------------------------------------------------------

    def begin(self, begun: dict[str, Any]) -> None:
        """Store the configuration of the search, or raise if the directory holds another search."""
        with self.alone():
            before = self.begun()
            if before is None:
                write_file(self.out / CONFIG, to_yaml(self.search.written()))
                self._study.set_user_attr("begun", begun)  # last: a search that has begun has all its files
            else:
                self._check_same(leaves(before), leaves(begun))

    def begun(self) -> dict[str, Any] | None:
        """Return the configuration that the search was started with, or None."""
        return self._study.user_attrs.get("begun")

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        ignored = {f"config.{key}" for key in (*RESUME_MUTABLE_KEYS, *self.search.space)}
        differences = [
            f"{key.removeprefix('config.')} was {shown(before.get(key))} and is {shown(now.get(key))}"
            for key in before | now
            if before.get(key) != now.get(key) and not any(key == one or key.startswith(f"{one}.") for one in ignored)
        ]
        if differences:
            raise ConfigError(
                f"{self.out} holds another search: {', '.join(differences)}. Continue it, or name another directory"
            )

    # --- queue --------------------------------------------------------------------------------------------------

    def done(self) -> int:
        """How many trials have ended."""
        return sum(trial.state.is_finished() for trial in self._trials())

    def left(self, trials: int) -> int:
        """Return how many of `trials` are neither finished nor running."""
        self.take_back()
        return trials - sum(trial.state.name != "WAITING" for trial in self._trials())

    def deaths(self) -> int:
        """Return the number of processes that died while they ran a trial."""
        return sum(trial.user_attrs.get("deaths", 0) for trial in self._trials())

    def take_back(self, *, died: bool = True) -> None:
        """Put abandoned trials back into the queue."""
        for trial in self._trials():
            if trial.state.name != "RUNNING":
                continue
            try:
                with locked(self.lock(trial.number)):
                    pass
            except LockedError:
                continue  # it runs
            deaths = trial.user_attrs.get("deaths", 0) + died
            self._storage.set_trial_user_attr(trial._trial_id, "deaths", deaths)
            if deaths < DEATHS:
                self.postpone(trial._trial_id)
            else:
                error = f"the process of the trial ended {DEATHS} times, killed or out of memory"
                self._storage.set_trial_user_attr(trial._trial_id, "error", error)
                self._study.tell(trial.number, state=_state("FAIL"))

    # --- one trial ----------------------------------------------------------------------------------------------

    def ask(self, seed: int) -> Trial:
        """Return the next trial, with its settings."""
        # Draws depend on the number of trials, not on the process or on how often the search was restarted.
        numbers = np.random.SeedSequence([seed, len(self._trials())]).generate_state(1)
        self._study.sampler = load_optuna().samplers.TPESampler(seed=int(numbers[0]))
        return self._study.ask({key: dimension.distribution() for key, dimension in self.search.space.items()})

    def end(self, trial: Trial, state: str, **attributes: Any) -> None:
        """Record that a trial was pruned or failed."""
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        self._study.tell(trial, state=_state(state))

    def complete(self, trial: Trial, value: float, result: dict[str, Any]) -> None:
        """Record the value of a trial."""
        trial.set_user_attr("result", result)
        self._study.tell(trial, value)

    def postpone(self, trial_id: int) -> None:
        """Put a trial at the front of the queue, unchanged."""
        self._storage.set_trial_state_values(trial_id, state=_state("WAITING"))

    def reported(self, trial: Trial) -> set[int]:
        """Return the epochs whose value was reported."""
        return set(self._trials()[trial.number].intermediate_values)

    def directory(self, number: int) -> Path:
        """Return the run directory of a trial."""
        return self.out / TRIALS / f"{number:04}"

    def lock(self, number: int) -> Path:
        """Return the lock file of a trial, which lies outside its run directory."""
        return self.out / TRIALS / f".{number:04}.lock"

    # --- results ------------------------------------------------------------------------------------------------

    def write_results(self) -> SearchResult:
        """Write and return the results, and delete the weights of all trials but the best."""
        sign = 1 if self.higher_is_better else -1
        with self.alone():
            complete = [trial for trial in self._trials() if trial.state.name == "COMPLETE"]
            best = max(complete, key=lambda trial: sign * cast("float", trial.value), default=None)  # the first of them
            result = SearchResult(
                metric=self.metric,
                higher_is_better=self.higher_is_better,
                search=self.search.written()["search"],
                best=None if best is None else self.result(best.number),
                trials=[self.result(trial.number) for trial in self._trials()],
            )
            if best is not None:
                write_file(self.out / BEST, dump_absolute(self.search.config(self.search.read(best.params))))
            result.save(self.out / RESULTS)
            for trial in self._trials():
                if trial.state.is_finished() and (best is None or trial.number != best.number):
                    delete_tree(self.directory(trial.number) / CHECKPOINTS, missing_ok=True)
                    delete(self.lock(trial.number), missing_ok=True)
            return result

    def result(self, number: int) -> TrialResult:
        """Return the result of a trial."""
        trial = self._trials()[number]
        trained = trial.user_attrs.get("result", {})
        return TrialResult(
            trial=number,
            state=_STATES[trial.state.name],
            value=trial.value,
            settings=self.search.read(trial.params),
            best_epoch=trained.get("best_epoch"),
            seconds=trained.get("seconds"),
            error=trial.user_attrs.get("error"),
            directory=str(self.directory(number).relative_to(self.out)),
        )

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)


def _state(name: str) -> Any:
    return load_optuna().trial.TrialState[name]


ERROR = "error.txt"


def tune(
    search: Search,
    out: Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    jobs: int | None = None,
    engine: Engine = LOCAL,
    seed: int = 0,
    on_plan: Callable[[int, int], None] = lambda done, trials: None,
    on_trial: Callable[[TrialResult], None] = lambda trial: None,
    on_step: OnStep = lambda number, step: None,
    on_notice: OnNotice = lambda number, text: None,
    stop: Callable[[], int] = lambda: False,
) -> SearchResult:
    """Run the trials that are left of a search and return its result.

    A trial fails only because of its settings. Other errors, such as a full disk, end the search, and the same command
    continues the trial.

    Args:
        search: the configuration and the space, see :func:`rankfall.studies.search_space.load_search`.
        out: directory of the search; a search in it is continued.
        trials: number of trials in total, by default that of the search.
        timeout: seconds after which no trial starts.
        jobs: trials at the same time; by default one, or with Ray one per processor.
        engine: runs the trials.
        seed: seed of the proposed settings.
        on_plan: receives the number of finished trials and the total.
        on_trial: receives each trial that ends.
        on_step: receives the progress of a trial after each batch, with one job.
        on_notice: receives messages of training runs.
        stop: called after each batch, with one job; a true value ends the search.

    Raises:
        Stopped: `stop` returned a true value.
    """
    load_optuna()  # raises before anything is read or written
    _check_free(out)
    config = search.first()  # what must not change while a search continues: configuration, space and data
    begun = {
        "config": config.model_dump(mode="json"),
        "search": search.written()["search"],
        "data": _checksums(config),
    }
    study = Study(search, out)
    study.begin(begun)
    task = Task(search, out, trials or search.trials, seed, math.inf if timeout is None else time.time() + timeout)
    on_plan(study.done(), task.trials)
    try:
        while _pass(task, study, jobs, engine, _Listeners(on_trial, on_step, on_notice, stop)):
            pass
    except (KeyboardInterrupt, EnvironmentFailure):
        with study.alone():
            study.take_back(died=False)
        raise
    return study.write_results()


@dataclass(frozen=True)
class Task:
    """The next trial of a search, for a worker process."""

    search: Search
    out: Path
    trials: int  # in total
    seed: int
    until: float  # time after which no trial starts


@dataclass(frozen=True)
class _Listeners:
    """Callbacks of a search."""

    on_trial: Callable[[TrialResult], None] = lambda trial: None
    on_step: OnStep = lambda number, step: None
    on_notice: OnNotice = lambda number, text: None
    stop: Callable[[], int] = lambda: False


@dataclass(frozen=True)
class Report:
    """Message of a worker process about a trial."""

    trial: TrialResult | None = None  # None if there was none left
    trouble: str = ""  # error that ends the search
    notices: list[tuple[int, str]] = field(default_factory=list)


def _pass(task: Task, study: Study, jobs: int | None, engine: Engine, listeners: _Listeners) -> bool:
    """Run the trials that are left; return whether there may be more, abandoned by processes in the meantime."""
    with study.alone():
        count, deaths = study.left(task.trials), study.deaths()
    done, died = 0, ""
    with closing(_perform(task, count, jobs, engine, listeners)) as reports:
        for report in reports:
            if isinstance(report, Failure):
                died = report.message
                continue
            for notice in report.notices:
                listeners.on_notice(*notice)
            if report.trouble:
                raise EnvironmentFailure(report.trouble)
            if report.trial is not None:
                done += 1
                listeners.on_trial(report.trial)
    with study.alone():
        study.take_back()
    more = done > 0 or study.deaths() > deaths  # a trial whose process dies is repeated, up to a limit
    if died and not more:
        raise RankfallError(f"{task.out}: no trial could be finished: {died}; run the same command to try again")
    return more


def _perform(
    task: Task, count: int, jobs: int | None, engine: Engine, listeners: _Listeners
) -> Generator[Report | Failure]:
    if engine is LOCAL and jobs in (None, 1):
        for _ in range(count):
            yield Report(next_trial(task, listeners))
    else:
        for _, report in run_tasks(report_trial, [task] * count, jobs=jobs, engine=engine):
            yield report


def report_trial(task: Task) -> Report:
    """Run a trial in a worker process."""
    notices: list[tuple[int, str]] = []
    try:
        trial = next_trial(task, _Listeners(on_notice=lambda number, text: notices.append((number, text))))
    except (ValueError, OSError) as error:
        return Report(trouble=str(error), notices=notices)
    return Report(trial, notices=notices)


def next_trial(task: Task, listeners: _Listeners) -> TrialResult | None:
    """Run a trial, an abandoned or a new one; return None if there are enough or the time is over."""
    study = Study(task.search, task.out)
    with ExitStack() as claim:
        with study.alone():
            if time.time() >= task.until or study.left(task.trials) <= 0:
                return None
            trial = study.ask(task.seed)
            claim.enter_context(locked(study.lock(trial.number)))
        _do(study, trial, listeners)
    study.write_results()
    return study.result(trial.number)


# --- one trial ----------------------------------------------------------------------------------------------------


def _do(study: Study, trial: Trial, listeners: _Listeners) -> None:
    """Train, and record the outcome."""
    optuna, search, number = load_optuna(), study.search, trial.number
    try:
        config = search.config(search.read(trial.params))
        # without test data, so that a trial cannot read them
        config = config.model_copy(update={"data": config.data.model_copy(update={"test": []})})
        result = method_of(config).complete(
            study.directory(number),
            progress=_progress(study, trial, listeners.on_step),
            on_notice=lambda text: listeners.on_notice(number, text),
            stop=listeners.stop,
        )
    except optuna.TrialPruned:
        study.end(trial, "PRUNED")
    except Stopped:
        study.postpone(trial._trial_id)
        raise
    except Exception as error:
        if _is_from_outside(error, study):
            study.postpone(trial._trial_id)
            raise EnvironmentFailure(f"trial {number} was interrupted; run the command again: {error}") from None
        if isinstance(error, ValueError) and is_expected(error):
            message = str(error)
        else:  # with the traceback in a file
            make_directory(study.directory(number))
            write_file(study.directory(number) / ERROR, traceback.format_exc())
            message = one_line(error)
        study.end(trial, "FAIL", error=message)
    else:
        study.complete(trial, result.best_metric, asdict(result))


def _progress(study: Study, trial: Trial, on_step: OnStep) -> Callable[[Step], None]:
    """Return a callback that reports the progress of a trial, and prunes it if it is below the median of the others."""
    reported = study.reported(trial)

    def report(step: Step) -> None:
        on_step(trial.number, step)
        epoch = step.epoch - 1  # the validation is of the one before
        if step.validation and epoch not in reported:
            reported.add(epoch)
            trial.report(step.validation[study.metric], epoch)
            if trial.should_prune():
                raise load_optuna().TrialPruned

    return report


def _is_from_outside(error: Exception, study: Study) -> bool:
    """Whether an error has another cause than the settings of a trial: a disk, a server, missing data."""
    if isinstance(error, OSError | EnvironmentFailure | LockedError):
        return True
    try:
        return _checksums(study.search.first()) != (study.begun() or {}).get("data")
    except (ValueError, OSError):
        return True


# --- start of a search --------------------------------------------------------------------------------------------


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise RankfallError(f"out: {out} is a file, expected a directory for the search")
    begun = (TRIALS, ".lock", JOURNAL)  # another process may be starting the search
    if out.is_dir() and not (out / JOURNAL).is_file() and any(path.name not in begun for path in out.iterdir()):
        raise RankfallError(f"out: {out} holds other files and no search; name another directory")


def _checksums(config: TrainConfig) -> dict[str, str]:
    """Return the checksums of the data that trials read. Of test data, only the names are checked."""
    method = method_of(config)
    return method.checksums(method.open_data())
