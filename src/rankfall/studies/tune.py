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
import time
import traceback
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rankfall._disk import make_directory
from rankfall._engine import LOCAL
from rankfall._failures import is_expected, one_line
from rankfall._files import LockedError, locked, write_file
from rankfall.studies.optuna_journal import load_optuna
from rankfall.studies.trials import JOURNAL, TRIALS, Study
from rankfall.studies.workers import Failure, run_tasks
from rankfall.training.methods import method_of
from rankfall.training.run_directory import EnvironmentFailure, Stopped
from rankfall.training.train import continue_run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from optuna import Trial

    from rankfall._engine import Engine
    from rankfall.studies.results import SearchResult, TrialResult
    from rankfall.studies.search_space import Search
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.run_directory import Step

    OnStep = Callable[[int, Step], None]  # number of a trial and progress of its training run
    OnNotice = Callable[[int, str], None]  # number of a trial and a message

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
    begun = _begun(search)
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
        raise ValueError(f"{task.out}: no trial could be finished: {died}; run the same command to try again")
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
        config = _without_test(search.config(search.read(trial.params)))
        result = continue_run(
            config,
            study.directory(number),
            progress=_progress(study, trial, listeners.on_step),
            on_notice=lambda text: listeners.on_notice(number, text),
            stop=listeners.stop,
        )
    except optuna.TrialPruned:
        study.prune(trial)
    except Stopped:
        study.postpone(trial)
        raise
    except Exception as error:
        if _is_from_outside(error, study):
            study.postpone(trial)
            raise EnvironmentFailure(f"trial {number} was interrupted; run the command again: {error}") from None
        study.fail(trial, _message(error, study.directory(number)))
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


def _without_test(config: TrainConfig) -> TrainConfig:
    """Return a configuration without test data, so that a trial cannot read them."""
    return config.model_copy(update={"data": config.data.model_copy(update={"test": []})})


def _is_from_outside(error: Exception, study: Study) -> bool:
    """Whether an error has another cause than the settings of a trial: a disk, a server, missing data."""
    if isinstance(error, OSError | EnvironmentFailure | LockedError):
        return True
    try:
        return _checksums(study.search.first()) != (study.begun() or {}).get("data")
    except (ValueError, OSError):
        return True


def _message(error: Exception, directory: Path) -> str:
    """Return the message of a failure; the traceback of unexpected errors is written to a file."""
    if isinstance(error, ValueError) and is_expected(error):
        return str(error)
    make_directory(directory)
    write_file(directory / ERROR, traceback.format_exc())
    return one_line(error)


# --- start of a search --------------------------------------------------------------------------------------------


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"out: {out} is a file, expected a directory for the search")
    begun = (TRIALS, ".lock", JOURNAL)  # another process may be starting the search
    if out.is_dir() and not (out / JOURNAL).is_file() and any(path.name not in begun for path in out.iterdir()):
        raise ValueError(f"out: {out} holds other files and no search; name another directory")


def _begun(search: Search) -> dict[str, Any]:
    """Return what must not change while a search continues: configuration, space and data."""
    config = search.first()
    space = {"search": search.written()["search"]}
    return {"config": config.model_dump(mode="json"), **space, "data": _checksums(config)}


def _checksums(config: TrainConfig) -> dict[str, str]:
    """Return the checksums of the data that trials read. Of test data, only the names are checked."""
    method = method_of(config)
    return method.checksums(method.open_data())
