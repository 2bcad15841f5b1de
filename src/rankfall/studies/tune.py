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

import math
import time
import traceback
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rankfall._engine import LOCAL
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
    from rankfall.studies.search_space import Search
    from rankfall.studies.trials import Entry
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.run_directory import Step

    OnStep = Callable[[int, Step], None]  # the number of a trial, and how far its training has come
    OnNotice = Callable[[int, str], None]  # the number of a trial, and what is to be known of it

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
    on_trial: Callable[[Entry], None] = lambda trial: None,
    on_step: OnStep = lambda number, step: None,
    on_notice: OnNotice = lambda number, text: None,
    stop: Callable[[], int] = lambda: False,
) -> dict[str, Any]:
    """Do what is left of so many trials, those of the search by default; returns the content of ``trials.json``.

    So many `jobs` at the same time, by default one, and by Ray as many as it has processors. No trial begins after
    `timeout` seconds. `seed` is that of the draws. `on_plan` hears how many trials are done and
    shall be, `on_trial` of each that ends, `on_notice` what a training has to say. With one job `on_step` hears
    of every batch, and `stop` is asked after each whether to end early, which raises :class:`Stopped`. Trials fail by
    their settings only: what else ends a training ends the search, and the trial is left to the next one.
    """
    load_optuna()  # before anything is read or written
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
    """To do the next trial."""

    search: Search
    out: Path
    trials: int  # that there shall be in all
    seed: int
    until: float  # when the last may begin, by the clock


@dataclass(frozen=True)
class _Listeners:
    """Who hears of trials."""

    on_trial: Callable[[Entry], None] = lambda trial: None
    on_step: OnStep = lambda number, step: None
    on_notice: OnNotice = lambda number, text: None
    stop: Callable[[], int] = lambda: False


@dataclass(frozen=True)
class Report:
    """What a process has to tell of a trial."""

    trial: Entry | None = None  # nothing if there was none left
    trouble: str = ""  # why none can be done now
    notices: list[tuple[int, str]] = field(default_factory=list)


def _pass(task: Task, study: Study, jobs: int | None, engine: Engine, listeners: _Listeners) -> bool:
    """Do as many trials as seem to be left; whether there may be more, that processes have left behind meanwhile."""
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
    more = done > 0 or study.deaths() > deaths  # a trial that dies is tried again, but not for ever
    if died and not more:
        raise ValueError(f"{task.out}: no trial comes to an end: {died}; the same command tries again")
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
    """Do a trial in a process of its own."""
    notices: list[tuple[int, str]] = []
    try:
        trial = next_trial(task, _Listeners(on_notice=lambda number, text: notices.append((number, text))))
    except (ValueError, OSError) as error:
        return Report(trouble=str(error), notices=notices)
    return Report(trial, notices=notices)


def next_trial(task: Task, listeners: _Listeners) -> Entry | None:
    """Do a trial, one that was left behind or a new one; nothing if there are enough or it is too late."""
    study = Study(task.search, task.out)
    with ExitStack() as claim:
        with study.alone():
            if time.time() >= task.until or study.left(task.trials) <= 0:
                return None
            trial = study.ask(task.seed)
            claim.enter_context(locked(study.lock(trial.number)))
        _do(study, trial, listeners)
    study.write_results()
    return study.entry(trial.number)


# --- one trial ----------------------------------------------------------------------------------------------------


def _do(study: Study, trial: Trial, listeners: _Listeners) -> None:
    """Train, and say what came of it."""
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
            raise EnvironmentFailure(
                f"trial {number} was left, and the same command goes on with it: {error}"
            ) from None
        study.fail(trial, _message(error, study.directory(number)))
    else:
        study.complete(trial, result.best_metric, asdict(result))


def _progress(study: Study, trial: Trial, on_step: OnStep) -> Callable[[Step], None]:
    """Hears how a training goes on, and ends it when it is worse than half of the others were at that point."""
    reported = study.reported(trial)

    def hear(step: Step) -> None:
        on_step(trial.number, step)
        epoch = step.epoch - 1  # the validation is of the one before
        if step.validation and epoch not in reported:
            reported.add(epoch)
            trial.report(step.validation[study.metric], epoch)
            if trial.should_prune():
                raise load_optuna().TrialPruned

    return hear


def _without_test(config: TrainConfig) -> TrainConfig:
    """What is not known cannot be looked at."""
    return config.model_copy(update={"data": config.data.model_copy(update={"test": []})})


def _is_from_outside(error: Exception, study: Study) -> bool:
    """Whether it is not the settings of a trial that are to blame: a disk, a server, data that are gone."""
    if isinstance(error, OSError | EnvironmentFailure | LockedError):
        return True
    try:
        return _checksums(study.search.first()) != (study.begun() or {}).get("data")
    except (ValueError, OSError):
        return True


def _message(error: Exception, directory: Path) -> str:
    """What is said of a failure; where that does not speak for itself, all of it is in a file."""
    if isinstance(error, ValueError):
        return str(error)
    directory.mkdir(exist_ok=True)
    write_file(directory / ERROR, traceback.format_exc())
    return f"{type(error).__name__}: {error}"


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


def _checksums(config: TrainConfig) -> dict[str, str]:
    """Of what trials read. Days and splits to test on are looked up by their names only."""
    method = method_of(config)
    return method.checksums(method.open_data())
