"""Methods x seeds over days: each day is measured by what was learned from those before it, then learned from, once.

Every method with a seed is a run (`day_learner`). Which days there are, and in which order, is
decided once for all of them: a day is written down before any run learns from it. So a stream that was interrupted at
any moment goes on where it was, and one whose log has grown goes on with what is new.

================================  ====================================================================================
``stream.yaml``                   what is streamed, as it can be streamed again
``days.json``                     the days in their order, with the checksums and first times of their files
``runs/``                         the directories of the runs
``bundles/``                      what others make of the weights after a day, if they are asked to
``stream.json``                   figures and tests of every day and of all, what failed
``stream.md``                     the tables
``report.html``                   all of it to look at
================================  ====================================================================================
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._files import is_temporary, locked, write_file
from rankfall._settings import ConfigError
from rankfall.data.impressions.loader import FirstDays
from rankfall.data.impressions.log import Day
from rankfall.data.impressions.log_watcher import Arrivals
from rankfall.reporting.comparison_page import write_report
from rankfall.reporting.stream_page import STREAM, STREAM_CONFIG
from rankfall.reporting.stream_table import markdown_tables
from rankfall.studies.stream.day_learner import check_begun, stream
from rankfall.studies.stream.stream_config import RUNS, make_runs, scheduled
from rankfall.studies.stream.stream_summary import day_entry, measured, overall
from rankfall.studies.workers import Failure, run_tasks
from rankfall.training.config.overrides import dump_absolute
from rankfall.training.run_directory import (
    REPORT,
    EnvironmentFailure,
    Stopped,
    is_finished,
    read_json,
    read_lines,
    read_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rankfall.data import ImpressionLog
    from rankfall.studies.stream.stream_config import StreamConfig, StreamRun
    from rankfall.training.run_directory import Step

    OnStep = Callable[[StreamRun, Step], None]
    OnDay = Callable[[StreamRun, ImpressionLog, Sequence[str], str], str | None]
    OnNotice = Callable[[str], None]

LEDGER, TABLES, BUNDLES, LOCK = "days.json", "stream.md", "bundles", ".lock"
POLL = 10.0  # seconds between looks for new days
_STOP_SOON = 0.2  # seconds after which somebody who waits hears that it shall stop


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
    on_result: Callable[[dict[str, Any]], None] = lambda result: None,
    on_notice: OnNotice = lambda text: None,
    stop: Callable[[], int] = lambda: False,
) -> dict[str, Any]:
    """Stream what is not done yet, then write the results to `out` and return them.

    With `follow` there is no end: new days are looked for every so many seconds, and the weights after each day are
    kept. `on_days` hears which days there are, now and whenever there are more, `on_step` of every batch (with one
    job), `on_run` of each run that has done all days, and `on_result` of results before the last. `stop` is asked
    after every batch and while there is nothing to do; then :class:`Stopped` is raised, with the results on disk.

    `on_day` hears of every day that a run has learned from, with the log, the days of the stream and the day: of each
    method the run of the first seed, whose weights after each day are kept for it. It returns what went wrong, if
    anything did, which the results tell; the stream goes on. It hears of the last day again when a stream is
    continued, and with several jobs it is pickled.
    """
    runs = make_runs(config, out)
    if follow is not None:
        _check_endless(config, runs)
    work = _Stream(config, out, runs, jobs, follow is not None, on_step, on_day, on_run, on_notice, stop)
    work.open(resume=resume, force=force)  # before anything is written
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK, busy=f"out: another stream is working in {out}"):
        log = work.open(resume=resume, force=force)  # as another stream may have left it meanwhile
        if force:
            _clear(out)
        write_file(out / STREAM_CONFIG, dump_absolute(config))
        work.accept(log)
        on_days(list(work.ledger))
        while True:
            try:
                work.advance(log)
            except Stopped:
                work.write_results()
                raise
            result = work.write_results()
            if follow is None:
                return result
            on_result(result)
            if len(work.failed) == len(runs):
                return result
            log = work.wait(follow, on_days)


@dataclass(frozen=True)
class _Task:
    """To bring a run up to the last day."""

    run: StreamRun
    log: ImpressionLog
    days: dict[str, str]
    weights: bool
    on_day: OnDay | None


class _Stream:
    """A stream in its directory."""

    def __init__(
        self,
        config: StreamConfig,
        out: Path,
        runs: list[StreamRun],
        jobs: int,
        follows: bool,
        on_step: OnStep,
        on_day: OnDay | None,
        on_run: Callable[[StreamRun], None],
        on_notice: OnNotice,
        stop: Callable[[], int],
    ) -> None:
        self.config, self.out, self.runs, self.jobs, self.follows = config, out, runs, jobs, follows
        self.on_step, self.on_day, self.on_run = on_step, on_day, on_run
        self.on_notice, self.stop = on_notice, stop
        self.ledger: dict[str, dict[str, Any]] = {}  # what is known of each day
        self.failed: dict[Path, dict[str, Any]] = {}
        self.refused: dict[Path, list[dict[str, Any]]] = {}  # what could not be done after the last days of a run
        self._first_days = FirstDays()
        self._said: set[str] = set()
        again = "; it is looked at again when it changes" if follows else "; it is left out"
        self._arrivals = Arrivals(Path(runs[0].config.data.path), lambda why: on_notice(why + again))

    # --- days ---------------------------------------------------------------------------------------------------

    def open(self, *, resume: bool, force: bool) -> ImpressionLog:
        """The log, once it and what the directory holds were checked."""
        _check_free(self.out, resume=resume, force=force)
        if resume and (self.out / LEDGER).is_file():
            self.ledger = read_json(self.out / LEDGER)
        log = self.look()
        self.check(log)
        return log

    @property
    def days(self) -> dict[str, str]:
        """The checksum of each day of the stream, in their order."""
        return {day: about["sha256"] for day, about in self.ledger.items()}

    def look(self) -> ImpressionLog:
        """The log as it is now."""
        try:
            log = self._arrivals.look(trusted=self.ledger, verify=self.follows)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        for day, why in self._arrivals.refused.items():
            if day in log.manifest["days"] and day not in self.ledger and not self.follows:
                raise ConfigError(f"data.path: {why}")
        return log

    def check(self, log: ImpressionLog) -> None:
        """Refuse a log with too few days, and runs that were begun otherwise."""
        new = self._new_days(log)
        days = [*self.ledger, *(day.name for day in new)]
        if not days or (len(days) < 2 and not self.follows):
            found = f"found {days[0]} alone" if days else f"{log.path} has no day that is whole"
            raise ConfigError(f"data.days: {found}; a stream needs two days, one to learn from and one to test on")
        for run in self.runs:
            if self.ledger:
                check_begun(run.config, run.directory, log)
                if new and scheduled(run):
                    raise ConfigError(
                        f"{run.method}: a temperature follows a schedule over the {len(self.ledger)} days with which "
                        f"{self.out} was begun, and now there are {len(days)}; give it one value in a new stream, or "
                        "name the old days"
                    )

    def accept(self, log: ImpressionLog) -> bool:
        """Write down the days that are new, behind those of before; whether there are some."""
        new = self._new_days(log)
        if new:
            self.ledger |= {day.name: {key: day.manifest[key] for key in ("sha256", "first_time")} for day in new}
            write_file(self.out / LEDGER, json.dumps(self.ledger, indent=1) + "\n")
        return bool(new)

    def _new_days(self, log: ImpressionLog) -> list[Day]:
        try:
            chosen = self._with_known(log).choose(self.config.days)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        for day, after in pairwise(chosen):
            if after.manifest["first_time"] < day.manifest["first_time"]:
                raise ConfigError(
                    f"data.days: found {day.name} before {after.name}, which is older; expected days in the order of "
                    "time, as a stream learns from them"
                )
        return [day for day in chosen if not self._is_known(day) and not self._is_late(day)]

    def _with_known(self, log: ImpressionLog) -> ImpressionLog:
        """The log with the days of the stream that it has no more, so that a range may begin with one of them."""
        gone = {name: Day(name, log.path / "days" / name, about) for name, about in self.ledger.items()}
        days = sorted((gone | log.days).values(), key=lambda day: day.manifest["first_time"])
        return replace(log, days={day.name: day for day in days})

    def _is_known(self, day: Day) -> bool:
        known = self.ledger.get(day.name)
        if known is not None and known["sha256"] != day.manifest["sha256"]:
            self._say_once(f"{day.path} has changed since the stream took it up; no day is learned from twice")
        return known is not None

    def _is_late(self, day: Day) -> bool:
        """Whether a day is older than one that the stream has, and is left out."""
        newer = [name for name, known in self.ledger.items() if known["first_time"] > day.manifest["first_time"]]
        if newer:
            self._say_once(f"{day.name} came after {newer[-1]}, which is newer, and is left out")
        return bool(newer)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.on_notice(text)

    def wait(self, seconds: float, on_days: Callable[[Sequence[str]], None]) -> ImpressionLog:
        """The log once it has days that are new."""
        while True:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if self.stop():
                    raise Stopped(f"stopped after {list(self.ledger)[-1]}; the same command with --resume goes on")
                time.sleep(min(_STOP_SOON, max(0.0, until - time.monotonic())))
            log = self.look()
            if self.accept(log):
                on_days(list(self.days))
                return log

    # --- runs ---------------------------------------------------------------------------------------------------

    def advance(self, log: ImpressionLog) -> None:
        """Bring every run up to the last day."""
        todo = []
        for run in self.runs:
            on_day = self.on_day if run.seed == self.config.seeds[0] else None
            if run.directory in self.failed:
                continue
            if on_day is None and is_finished(run.directory) and read_result(run.directory).epochs == len(self.days):
                self.on_run(run)
            else:  # or what there is to do after its last day may be left to do
                todo.append(_Task(run, log, self.days, self.follows or on_day is not None, on_day))
        for task, outcome in self._perform(todo):
            self._note(task.run, outcome)
            self.on_run(task.run)

    def _note(self, run: StreamRun, outcome: list[str] | Failure) -> None:
        about = {"method": run.method, "run": f"seed {run.seed}"}
        if isinstance(outcome, Failure):
            self.failed[run.directory] = {**about, "message": outcome.message}
            return
        self.refused[run.directory] = [{**about, "message": message} for message in outcome]
        for message in outcome if self.jobs > 1 else ():  # otherwise it was said at once
            self.on_notice(f"{run.method}, seed {run.seed}: {message}")

    def _perform(self, tasks: Sequence[_Task]) -> Iterator[tuple[_Task, list[str] | Failure]]:
        if self.jobs > 1:
            yield from run_tasks(perform, tasks, jobs=self.jobs)
            return
        for task in tasks:
            yield task, self._perform_here(task)

    def _perform_here(self, task: _Task) -> list[str] | Failure:
        run = task.run
        try:
            return perform(
                task,
                on_notice=lambda text: self.on_notice(f"{run.method}, seed {run.seed}: {text}"),
                first_days=self._first_days,
                progress=lambda step: self.on_step(run, step),
                stop=self.stop,
            )
        except EnvironmentFailure:
            raise
        except (ValueError, OSError) as error:
            return Failure(str(error))

    # --- results ------------------------------------------------------------------------------------------------

    def write_results(self) -> dict[str, Any]:
        """Write what is known so far."""
        result = self._result()
        write_file(self.out / STREAM, json.dumps(result, indent=1, allow_nan=False) + "\n")
        write_file(self.out / TABLES, markdown_tables(result))
        write_report(self.out)
        return result

    def _result(self) -> dict[str, Any]:
        """The content of ``stream.json``."""
        methods = list(dict.fromkeys(run.method for run in self.runs))
        directories = {name: [run.directory for run in self.runs if run.method == name] for name in methods}
        config, runs = self.runs[0].config, [self._about(run) for run in self.runs]
        metrics, days = config.metrics, list(self.ledger)
        known = self._known_entries()
        entries = []
        for day in days[1:]:
            there = measured(day, directories)
            before = known.get(day)
            # what was measured never changes, so neither does what is said of it
            if before is not None and [method["name"] for method in before["methods"]] == there:
                entries.append(before)
            elif there:
                entries.append(day_entry(day, directories, metrics))
        begun = max(max(run["days"] for run in runs), 1 + len(entries))
        all_days = overall(entries, directories, metrics)
        reached = [method["name"] for method in all_days["methods"]]
        return {
            "metric": config.training.metric,
            "metrics": metrics,
            "seeds": self.config.seeds,
            "learned": days[:begun],
            **all_days,
            "days": entries,
            "runs": runs,
            "incomplete": [name for name in methods if name not in reached],
            "failed": list(self.failed.values()),
            "refused": [one for of in self.refused.values() for one in of],
        }

    def _known_entries(self) -> dict[str, dict[str, Any]]:
        """What was said of days before, if it was of the same seeds."""
        try:
            before = json.loads((self.out / STREAM).read_text())
            return {entry["day"]: entry for entry in before["days"]} if before["seeds"] == self.config.seeds else {}
        except (FileNotFoundError, ValueError, LookupError):
            return {}

    def _about(self, run: StreamRun) -> dict[str, Any]:
        lines = read_lines(run.directory)
        return {
            "method": run.method,
            "seed": run.seed,
            "directory": str(run.directory.relative_to(self.out)),
            "days": len(lines),  # that it has learned from
            "seconds": lines[-1]["seconds"] if lines else 0.0,
        }


def perform(task: _Task, *, on_notice: OnNotice = lambda text: None, **options: Any) -> list[str]:
    """Bring a run up to the last day, maybe in a process of its own; what could not be done after its days."""
    refused = []

    def after(day: str) -> None:
        message = task.on_day and task.on_day(task.run, task.log, list(task.days), day)
        if message:
            on_notice(message)
            refused.append(message)

    stream(
        task.run.config,
        task.run.directory,
        task.log,
        task.days,
        resume=True,
        weights=task.weights,
        on_day=after,
        on_notice=on_notice,
        **options,
    )
    return refused


# --- what must be so ----------------------------------------------------------------------------------------------


def _check_endless(config: StreamConfig, runs: Sequence[StreamRun]) -> None:
    """Refuse what needs to know where a stream ends."""
    for days in config.days[-1:]:
        if not days.endswith(".."):
            raise ConfigError(f"data.days: found {days!r}, expected FIRST.. or .. where new days are waited for")
    for run in runs:
        if scheduled(run):
            raise ConfigError(
                f"{run.method}: a temperature follows a schedule over the whole stream, which has no end where new "
                "days are waited for; give it one value, or schedule: constant"
            )


def _check_free(out: Path, *, resume: bool, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, expected a directory for the stream")
    if not out.exists() or not any(path.name != LOCK and not is_temporary(path) for path in out.iterdir()):
        return
    if not (out / STREAM_CONFIG).is_file():
        raise ValueError(f"{out} holds other files and no stream; name another directory")
    if not (resume or force):
        raise ValueError(
            f"{out} holds a stream already; name another directory, continue it with --resume, or replace it with "
            "--force"
        )


def _clear(out: Path) -> None:
    """Take away what a stream before left."""
    for name in (RUNS, BUNDLES):
        if (out / name).exists():
            shutil.rmtree(out / name)
    for name in (LEDGER, STREAM, TABLES, REPORT, "stream.png", "stream.svg", STREAM_CONFIG):
        (out / name).unlink(missing_ok=True)
