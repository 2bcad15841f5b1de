"""Run a stream: train methods with several seeds over days, each day measured before it is trained on.

Every method with a seed is a run (`day_learner`). All runs use the same days in the same order (`day_ledger`).

================================  ====================================================================================
``stream.yaml``                   the configuration, to stream again
``days.json``                     the days in order, with the checksums and first times of their files
``runs/``                         directories of the runs
``bundles/``                      exported bundles, if `on_day` writes them
``stream.json``                   the :class:`~rankfall.studies.results.StreamResult`
================================  ====================================================================================

:func:`rankfall.reporting.files.write_stream` adds tables and a page.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import torch

from rankfall._config import ConfigError
from rankfall._errors import RankfallError
from rankfall.data.impressions.loader import ItemFirstSeen
from rankfall.storage.disk import delete, delete_tree, make_directory
from rankfall.storage.files import is_temporary, locked, write_file
from rankfall.studies.compare import Outcome, Summary, summarise
from rankfall.studies.results import DayResult, MethodResult, ResultError, RunFailure, StreamResult, StreamRunSummary
from rankfall.studies.stream.day_learner import (
    LEDGER,
    LENGTH,
    RELEVANT,
    DayLedger,
    check_begun,
    train_days,
    values_file,
)
from rankfall.studies.stream.stream_config import RUNS, make_runs, scheduled
from rankfall.studies.workers import Failure, run_tasks
from rankfall.training import run_directory
from rankfall.training.cascade_loaders import measuring_loader
from rankfall.training.cascade_metrics import CHANCE
from rankfall.training.config.component_checks import higher_is_better, with_value
from rankfall.training.config.load_config import dump_absolute
from rankfall.training.measured_lists import fit_warning, joined_warning, short_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLog
    from rankfall.studies.results import MethodTest, MetricSummary, Verdict
    from rankfall.studies.stream.stream_config import StreamConfig, StreamRun

    Directories = Mapping[str, Sequence[Path]]  # run directories of each method, one per seed
    OnStep = Callable[[StreamRun, run_directory.Step], None]
    OnDay = Callable[[StreamRun, ImpressionLog, Sequence[str], str], str | None]
    OnNotice = Callable[[str], None]

CHANGED = 1.2  # ratio of the means of two days from which on the task has changed


def summarise_day(day: str, directories: Directories, metrics: Sequence[str]) -> DayResult:
    """Summarise a day for the methods whose runs have all measured it."""
    methods = measured_methods(day, directories)
    summaries: dict[str, dict[str, MetricSummary]] = {method: {} for method in methods}
    tests: list[MethodTest] = []
    verdicts: list[Verdict] = []
    impressions = 0
    for metric in metrics if methods else ():
        values = {method: _values(day, directories[method], metric) for method in methods}
        chance = _values(day, directories[methods[0]][:1], CHANCE + metric)[0]
        impressions = len(chance)
        if int((~chance.isnan()).sum()) < 2:  # too few impressions have a relevant item
            return DayResult(day, impressions, [], [])
        summary = _summarise({metric: values}, {metric: chance})
        for method in summary.methods:
            summaries[method.name] |= method.metrics
        tests += summary.tests
        verdicts += summary.verdicts
    found = [MethodResult(name, of) for name, of in summaries.items()]
    metadata = (pq.read_schema(values_file(directories[methods[0]][0], day)).metadata or {}) if methods else {}
    lists = {name: float(metadata[name.encode()]) for name in (LENGTH, RELEVANT) if name.encode() in metadata}
    return DayResult(day, impressions, found, tests, verdicts, **lists)


def changed_task(days: Sequence[DayResult], metric: str) -> list[str]:
    """Return warnings if the lists of the days differ so much that values of a metric are not comparable."""
    warnings = []
    for name, what in ((LENGTH, "items"), (RELEVANT, "relevant items")):
        known = [(value, entry.day, entry) for entry in days if entry.methods and (value := getattr(entry, name))]
        if known and max(known)[0] > CHANGED * min(known)[0]:
            first, last = sorted((min(known), max(known)), key=lambda one: one[1])
            levels = [entry.methods[0].metrics[metric].chance for *_, entry in (first, last)]
            warnings.append(
                f"the task changed: a list has {first[0]:,.1f} {what} on {first[1]} and {last[0]:,.1f} on {last[1]} "
                f"(chance {levels[0]:.3f} and {levels[1]:.3f}); compare {metric} with chance, not with other days"
            )
    return warnings


def summarise_days(days: Sequence[DayResult], directories: Directories, metrics: Sequence[str]) -> tuple[str, Summary]:
    """Summarise all days for the methods that have measured all of them, with the day as the unit.

    Returns:
        The unit and the summary. A single day is returned as it is, with impressions as the unit.
    """
    used = [entry for entry in days if entry.methods]
    summaries = {(entry.day, method.name): method.metrics for entry in used for method in entry.methods}
    complete = [method for method in directories if all((entry.day, method) in summaries for entry in used)]
    if not used or not complete:
        return "days", Summary([], [])
    if len(used) == 1:
        return "impressions", Summary(used[0].methods, used[0].tests, used[0].verdicts)

    def over_days(metric: str, method: str, what: str) -> Tensor:
        found = [getattr(summaries[entry.day, method][metric], what) for entry in used]
        return torch.tensor(found, dtype=torch.double).t()

    values = {metric: {method: over_days(metric, method, "values") for method in complete} for metric in metrics}
    return "days", _summarise(values, {metric: over_days(metric, complete[0], "chance") for metric in metrics})


def measured_methods(day: str, directories: Directories) -> list[str]:
    """Return the methods whose runs have all measured a day."""
    return [method for method, runs in directories.items() if all(values_file(run, day).is_file() for run in runs)]


def measured_metrics(days: Sequence[str], directories: Directories, metrics: Sequence[str]) -> list[str]:
    """Return the metrics of a stream, and ``joint_value`` if every measured day has it."""
    files = [values_file(run, day) for day in days for runs in directories.values() for run in runs]
    return with_value(metrics, (set(pq.read_schema(file).names) for file in files if file.is_file()))


def _summarise(values: Mapping[str, Mapping[str, Tensor]], chance: Mapping[str, Tensor]) -> Summary:
    """Summarise values (seeds, units) by metric and method."""
    methods = list(next(iter(values.values())))
    return summarise(
        Outcome(
            values={method: {metric: of[method] for metric, of in values.items()} for method in methods},
            chance=dict.fromkeys(methods, chance),
            higher_is_better={metric: higher_is_better(metric) for metric in values},
            folds=[len(next(iter(chance.values())))],
        )
    )


def _values(day: str, runs: Sequence[Path], column: str) -> Tensor:
    """Return a column of the values of a day, one row per run."""
    for run in runs:
        run_directory.verify_run(run, values_file(run, day).relative_to(run).as_posix())
    # not pq.read_table: it takes a dot in a name, such as that of a file, for a nested column
    columns = [pq.ParquetFile(values_file(run, day)).read(columns=[column])[column].to_numpy() for run in runs]
    return torch.from_numpy(np.stack(columns).astype(np.float64))


STREAM, STREAM_CONFIG, TABLES, BUNDLES, LOCK = "stream.json", "stream.yaml", "stream.md", "bundles", ".lock"


def stream_methods(
    config: StreamConfig,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    follow: float | None = None,
    jobs: int = 1,
    on_days: Callable[[Sequence[str]], None] = lambda days: None,
    on_step: OnStep = lambda run, step: None,
    on_day: OnDay | None = None,
    on_run: Callable[[StreamRun], None] = lambda run: None,
    on_result: Callable[[StreamResult], None] = lambda result: None,
    on_notice: OnNotice = lambda text: None,
    stop: Callable[[], int] = lambda: False,
) -> StreamResult:
    """Train all runs of a stream on the days that are left, write the result to `out` and return it.

    Args:
        config: the stream, see :func:`rankfall.studies.stream.stream_config.load_stream`.
        out: directory of the stream.
        resume: continue a stream.
        force: replace a stream.
        follow: seconds between looks for new days; the stream then has no end, and keeps the weights after each day.
        jobs: runs at the same time.
        on_days: receives the days of the stream at the start, and again when there are new days.
        on_step: receives the progress after every batch, with one job.
        on_day: receives each day that a run was trained on, with the log and all days of the stream; called for the
            first seed of every method, whose weights after each day are kept. It returns an error message or None; the
            stream continues in both cases. A continued stream passes the last day again. With several jobs it is
            pickled.
        on_run: receives each run that has been trained on all days.
        on_result: receives every result that is written: after all days, after new days, and when the stream stops.
        on_notice: receives messages.
        stop: called after every batch and while waiting for days; a true value ends the stream.

    Raises:
        Stopped: `stop` returned a true value; the result is on disk.
    """
    runs = make_runs(config, out)
    if follow is not None:
        _check_endless(config, runs)
    work = _Stream(config, out, runs, jobs, follow is not None, on_step, on_day, on_run, on_notice, stop)
    work.open(resume=resume, force=force)  # raises before anything is written
    make_directory(out)
    with locked(out / LOCK, busy=f"out: another stream is working in {out}"):
        log = work.open(resume=resume, force=force)  # again, as another stream may have changed the directory
        if force:
            for name in (RUNS, BUNDLES):
                delete_tree(out / name, missing_ok=True)
            for name in (LEDGER, STREAM, TABLES, run_directory.REPORT, "stream.png", "stream.svg", STREAM_CONFIG):
                delete(out / name, missing_ok=True)
        write_file(out / STREAM_CONFIG, dump_absolute(config))
        work.ledger.record(log)
        while True:
            on_days(list(work.ledger.days))
            try:
                work.advance(log)
            except run_directory.Stopped:
                on_result(work.write_result())
                raise
            result = work.write_result()
            on_result(result)
            if follow is None or len(work.failed) == len(runs):
                return result
            log = work.ledger.wait(follow, stop)


@dataclass(frozen=True)
class _Task:
    """A run to train up to the last day."""

    run: StreamRun
    log: ImpressionLog
    days: dict[str, str]
    weights: bool
    on_day: OnDay | None


@dataclass
class _Stream:
    """A stream in its directory."""

    config: StreamConfig
    out: Path
    runs: list[StreamRun]
    jobs: int
    follows: bool
    on_step: OnStep
    on_day: OnDay | None
    on_run: Callable[[StreamRun], None]
    on_notice: OnNotice
    stop: Callable[[], int]
    failed: dict[Path, RunFailure] = field(default_factory=dict)
    refused: dict[Path, list[RunFailure]] = field(default_factory=dict)  # by `on_day` after the last days of a run
    _first_days: ItemFirstSeen = field(default_factory=ItemFirstSeen)
    _log: ImpressionLog | None = None

    @cached_property
    def ledger(self) -> DayLedger:
        """The days of the stream."""
        path = Path(self.runs[0].config.data.path)
        return DayLedger(self.out, path, self.config.days, follows=self.follows, on_notice=self.on_notice)

    def open(self, *, resume: bool, force: bool) -> ImpressionLog:
        """Check the directory and the log, and return the log."""
        _check_free(self.out, resume=resume, force=force)
        if resume:
            self.ledger.load()
        log = self.ledger.open_log()
        self._check(log)
        return log

    def _check(self, log: ImpressionLog) -> None:
        """Raise if the log has too few days, or a run was started with a different configuration."""
        recorded, new = list(self.ledger.days), [day.name for day in self.ledger.new_days(log)]
        days = recorded + new
        if not days or (len(days) < 2 and not self.follows):
            found = f"found only {days[0]}" if days else f"{log.path} has no complete day"
            raise ConfigError(f"data.days: {found}; a stream needs two days, one to train on and one to test on")
        for run in self.runs if recorded else ():
            check_begun(run.config, run.directory, log)
            if new and scheduled(run):
                raise ConfigError(
                    f"{run.method}: a temperature follows a schedule over the {len(recorded)} days with which "
                    f"{self.out} was started, and now there are {len(days)}; use one value in a new stream, or name "
                    "the old days"
                )

    # --- runs ---------------------------------------------------------------------------------------------------

    def advance(self, log: ImpressionLog) -> None:
        """Train every run up to the last day."""
        self._log, days, todo = log, self.ledger.days, []
        for run in self.runs:
            on_day = self.on_day if run.seed == self.config.seeds[0] else None
            if run.directory in self.failed:
                continue
            if (
                on_day is None
                and run_directory.is_finished(run.directory)
                and run_directory.read_result(run.directory).epochs == len(days)
            ):
                self.on_run(run)
            else:  # `on_day` may not have been called for the last day
                todo.append(_Task(run, log, days, self.follows or on_day is not None, on_day))
        for task, outcome in self._perform(todo):
            self._note(task.run, outcome)
            self.on_run(task.run)

    def _perform(self, tasks: Sequence[_Task]) -> Iterator[tuple[_Task, list[str] | Failure]]:
        if self.jobs > 1:  # callbacks cannot be pickled
            return run_tasks(perform, tasks, jobs=self.jobs)

        def here(task: _Task) -> list[str]:
            run = task.run
            return perform(
                task,
                on_notice=lambda text: self.on_notice(f"{run.method}, seed {run.seed}: {text}"),
                first_days=self._first_days,
                progress=partial(self.on_step, run),
                stop=self.stop,
            )

        return run_tasks(here, tasks, passed_on=(run_directory.Stopped, run_directory.EnvironmentFailure))

    def _note(self, run: StreamRun, outcome: list[str] | Failure) -> None:
        failure = partial(RunFailure, run.method, f"seed {run.seed}")
        if isinstance(outcome, Failure):
            self.failed[run.directory] = failure(outcome.message)
            return
        self.refused[run.directory] = [failure(message) for message in outcome]
        for message in outcome if self.jobs > 1 else ():  # with one job it was passed on at once
            self.on_notice(f"{run.method}, seed {run.seed}: {message}")

    # --- results ------------------------------------------------------------------------------------------------

    def write_result(self) -> StreamResult:
        """Write and return the result."""
        result = self._result()
        result.save(self.out / STREAM, indent=1)
        return result

    def _result(self) -> StreamResult:
        names = list(dict.fromkeys(run.method for run in self.runs))
        directories = {name: [run.directory for run in self.runs if run.method == name] for name in names}
        config, runs = self.runs[0].config, [self._summary(run) for run in self.runs]
        days = list(self.ledger.days)
        known: dict[str, DayResult] = {}  # summaries of days in an earlier result with the same seeds
        with suppress(FileNotFoundError, ResultError):
            earlier = StreamResult.load(self.out / STREAM)
            known = {entry.day: entry for entry in earlier.days} if earlier.seeds == self.config.seeds else {}
        entries: list[DayResult] = []
        metrics = measured_metrics(days[1:], directories, config.metrics)
        for day in days[1:]:
            methods = measured_methods(day, directories)
            before = known.get(day)
            # the values of a day never change, so its summary is reused
            reusable = before is not None and set(metrics) <= set(before.methods[0].metrics)
            if before is not None and reusable and [method.name for method in before.methods] == methods:
                entries.append(before)
            elif methods:
                entries.append(summarise_day(day, directories, metrics))
        unit, summary = summarise_days(entries, directories, metrics)
        complete = {method.name for method in summary.methods}
        return StreamResult(
            metric=config.training.metric,
            metrics=metrics,
            seeds=self.config.seeds,
            learned=days[: max(max(run.days for run in runs), 1 + len(entries))],
            unit=unit,
            methods=summary.methods,
            tests=summary.tests,
            days=entries,
            runs=runs,
            incomplete=[name for name in names if name not in complete],
            failed=list(self.failed.values()),
            refused=[failure for failures in self.refused.values() for failure in failures],
            verdicts=summary.verdicts,
            warnings=self._warnings(entries, config.training.metric),
        )

    def _warnings(self, entries: Sequence[DayResult], metric: str) -> list[str]:
        """Return what a reader of the days has to know."""
        changed, measured, log = changed_task(entries, metric), [entry.day for entry in entries], self._log
        if log is None or not measured or measured[-1] not in log.days:
            return changed
        log = replace(log, days={day: log.days[day] for day in self.ledger.days if day in log.days})
        loader = measuring_loader(log, self.runs[0].config, measured[-1:], self._first_days)
        present = [day for day in measured if day in log.days]  # each was measured before the model learned from it
        of_log = [joined_warning(log, present), short_lists(loader), fit_warning(log, present, [])]
        return [*changed, *filter(None, of_log)]

    def _summary(self, run: StreamRun) -> StreamRunSummary:
        lines = run_directory.read_lines(run.directory)
        return StreamRunSummary(
            method=run.method,
            seed=run.seed,
            directory=str(run.directory.relative_to(self.out)),
            days=len(lines),
            seconds=lines[-1]["seconds"] if lines else 0.0,
        )


def perform(task: _Task, *, on_notice: OnNotice = lambda text: None, **options: Any) -> list[str]:
    """Train a run up to the last day, possibly in a worker process, and return the errors of `on_day`."""
    errors = []

    def after_day(day: str) -> None:
        message = task.on_day and task.on_day(task.run, task.log, list(task.days), day)
        if message:
            on_notice(message)
            errors.append(message)

    train_days(
        task.run.config,
        task.run.directory,
        task.log,
        task.days,
        resume=True,
        weights=task.weights,
        on_day=after_day,
        on_notice=on_notice,
        **options,
    )
    return errors


# --- checks -------------------------------------------------------------------------------------------------------


def _check_endless(config: StreamConfig, runs: Sequence[StreamRun]) -> None:
    """Raise if a setting needs the last day of the stream, which waits for new days."""
    for days in config.days[-1:]:
        if not days.endswith(".."):
            raise ConfigError(f"data.days: found {days!r}, expected FIRST.. or .. for a stream that waits for new days")
    for run in runs:
        if scheduled(run):
            raise ConfigError(
                f"{run.method}: a temperature follows a schedule over the whole stream, which has no end when it waits "
                "for new days; use one value, or schedule: constant"
            )


def _check_free(out: Path, *, resume: bool, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise RankfallError(f"{out} is a file, expected a directory for the stream")
    if not out.exists() or not any(path.name != LOCK and not is_temporary(path) for path in out.iterdir()):
        return
    if not (out / STREAM_CONFIG).is_file():
        raise RankfallError(f"{out} holds other files and no stream; name another directory")
    if not (resume or force):
        raise RankfallError(
            f"{out} holds a stream already; name another directory, continue it with --resume, or replace it with "
            "--force"
        )
