"""``rf.compare``, ``rf.tune``, ``rf.stream`` and ``rf.reproduce``: several training runs on the same data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._engine import open_engine
from rankfall._errors import RankfallError, checked, one_line, stop_at_ctrl_c
from rankfall._tables import StoredTables, json_text
from rankfall.api.serving import check_installed
from rankfall.api.shared import Progress, issue, optional_path, override_words, reported, stepper, warn, write_figures
from rankfall.storage.disk import make_directory
from rankfall.storage.files import write_file
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from rankfall._config import ConfigLike
    from rankfall.api.shared import EngineName, OnNotice, Overrides, PathLike, ProgressLike
    from rankfall.data import ImpressionLog
    from rankfall.option_types import Count, NotNegativeCount, Seconds, Seed
    from rankfall.reproductions.data import DataSource
    from rankfall.reproductions.paper_schema import Reproduction
    from rankfall.reproductions.task import Report
    from rankfall.studies.compare import Step as RunStep
    from rankfall.studies.results import ComparisonResult, RunFailure, SearchResult, StreamResult, TrialResult
    from rankfall.studies.stream.stream_config import StreamRun
    from rankfall.training.run_directory import Step


@checked
def compare(
    config: ConfigLike,
    out: PathLike,
    *,
    overrides: Overrides = (),
    against: str | None = None,
    jobs: Count | None = None,
    engine: EngineName = "local",
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> ComparisonResult:
    """Train several methods on the same data, and test which are worse than the best one.

    Finished runs in `out` are not repeated, so the same call continues an interrupted comparison. A run that fails does
    not end the comparison; it is in `failed` of the result.

    Args:
        config: Path of a YAML file, a dictionary with its content, or a validated comparison.
        out: Directory of the runs and results.
        overrides: Values that replace those of `config`: ``"key=value"`` strings, or a dictionary by dotted keys.
        against: Test whether each method is better or worse than this one. Default: that of `config`, or the method
            with the best mean.
        jobs: Training runs at the same time. Default: that of `config`, or 1; with Ray one per processor.
        engine: ``"local"`` or ``"ray"``.
        verify: Compare the data and the run with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they, the warnings of the result and failed runs are issued as
            :class:`~rankfall.RankfallWarning`.

    Raises:
        ConfigError: If a run cannot be trained as configured.
        ValueError: If the data do not have the named splits or days, or another process works in `out`.
    """
    from rankfall.studies.comparison_plan import load_comparison

    named = [] if against is None else [f"against={json.dumps(against)}"]
    comparison = load_comparison(config, [*override_words(overrides), *named])
    # after the configurations, whose errors need no torch
    from rankfall.reporting.files import shown_in, write_comparison
    from rankfall.studies.compare import compare_methods

    directory, steps = Path(out), _Steps()
    with verification(verify, on_notice), open_engine(engine) as opened, reported(progress) as report:
        report(Progress("comparing"))

        def on_step(step: RunStep) -> None:
            steps.done += 1
            report(Progress(f"{step.method}, {step.title}", steps.done, steps.total))

        result = compare_methods(
            comparison,
            directory,
            jobs=jobs,
            engine=opened,
            on_plan=steps.plan,
            on_step=on_step,
            on_notice=lambda step, text: on_notice(f"{step.method}, {step.title}: {text}"),
        )
    write_comparison(result, directory)
    issue([*result.warnings, *failure_texts(result.failed)], on_notice)
    return shown_in(result, directory)


class _Steps:
    """Number of finished steps and of all."""

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None

    def plan(self, total: int) -> None:
        self.total = total


def failure_texts(failures: list[RunFailure]) -> list[str]:
    """Return a sentence for each failed run."""
    return [f"{failure.method}, {failure.run} failed: {failure.message}" for failure in failures]


@checked
def tune(
    config: ConfigLike,
    out: PathLike,
    *,
    overrides: Overrides = (),
    trials: Count | None = None,
    timeout: Seconds | None = None,
    jobs: Count | None = None,
    engine: EngineName = "local",
    seed: Seed = 0,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    stop: Callable[[], object] | None = None,
) -> SearchResult:
    """Search hyperparameters with Optuna by the validation metric.

    The same call continues an interrupted search. ``best.yaml`` in `out` is the configuration of the best trial.

    Args:
        config: Path of a YAML file with the keys ``search`` and ``trials``, or a dictionary with its content.
        out: Directory of the search.
        overrides: Values that replace those of `config`: ``"key=value"`` strings, or a dictionary by dotted keys.
        trials: Number of trials, including earlier ones. Default: that of `config`, or 20.
        timeout: Seconds after which no trial starts. Default: none.
        jobs: Trials at the same time. Default: 1; with Ray one per processor.
        engine: ``"local"`` or ``"ray"``.
        seed: Random seed of the search.
        verify: Compare the data with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they and failed trials are issued as
            :class:`~rankfall.RankfallWarning`.
        stop: Called after each batch of a search with one job; a true value ends it. With it, Ctrl-C is left to the
            caller.

    Raises:
        ConfigError: If the configuration or the space is wrong.
        ValueError: If `out` holds another search or other files.
        KeyboardInterrupt: At Ctrl-C, or if `stop` returned a true value.
    """
    from rankfall.studies.search_space import load_search

    search, directory = load_search(config, override_words(overrides)), Path(out)
    from rankfall.reporting.files import shown_in  # after the configuration, whose errors need no torch
    from rankfall.reporting.inspection import search_chart

    options: dict[str, Any] = {"trials": trials, "timeout": timeout, "seed": seed, "jobs": jobs}
    in_this_process = jobs in (None, 1) and engine == "local"
    with (
        verification(verify, on_notice),
        open_engine(engine) as opened,
        reported(progress) as report,
        stop_at_ctrl_c(stop if in_this_process or stop is not None else lambda: False) as stopping,
    ):
        result = _search(search, directory, report, on_notice, engine=opened, stop=stopping, **options)
    write_figures({"search": search_chart(result, directory.name)}, directory, on_notice)
    failed = [f"trial {trial.trial} failed: {trial.error}" for trial in result.trials if trial.state == "failed"]
    issue([*failed, *(["no trial was completed"] if result.best is None else [])], on_notice)
    return shown_in(result, directory)


def _search(
    search: Any, out: Path, report: Callable[[Progress], object], on_notice: OnNotice, **options: Any
) -> SearchResult:
    from rankfall.reporting.inspection import settings_text, trial_value
    from rankfall.studies.tune import tune
    from rankfall.training.run_directory import Stopped

    steps, status = _Steps(), ""
    report(Progress("searching"))

    def on_plan(before: int, trials: int) -> None:
        steps.done, steps.total = before, trials
        report(Progress("searching", steps.done, steps.total))

    def on_trial(trial: TrialResult) -> None:
        nonlocal status
        steps.done += 1
        status = f"trial {trial.trial} {trial.state} {trial_value(trial)}: {settings_text(trial.settings)}"
        report(Progress("searching", steps.done, steps.total, status))

    def on_step(number: int, step: Step) -> None:
        share = ((step.epoch - 1) * step.batches + step.batch) / (step.epochs * step.batches)
        where = f"trial {number}, epoch {step.epoch}/{step.epochs}"
        report(Progress(where, steps.done + share, steps.total, status))

    try:
        return tune(
            search,
            out,
            on_plan=on_plan,
            on_trial=on_trial,
            on_step=on_step,
            on_notice=lambda number, text: on_notice(f"trial {number}: {text}"),
            **options,
        )
    except Stopped:
        raise KeyboardInterrupt(f"the same call continues the search in {out}") from None


@checked
def stream(
    config: ConfigLike,
    out: PathLike,
    *,
    overrides: Overrides = (),
    resume: bool = False,
    force: bool = False,
    follow: PathLike | None = None,
    poll: Seconds = 10.0,
    bundles: NotNegativeCount = 0,
    items: PathLike | None = None,
    jobs: Count = 1,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    stop: Callable[[], object] | None = None,
) -> StreamResult:
    """Train day by day, and measure every method on each day before training on it.

    Args:
        config: Path of a YAML file, a dictionary with its content, or a validated stream.
        out: Directory of the stream.
        overrides: Values that replace those of `config`: ``"key=value"`` strings, or a dictionary by dotted keys.
        resume: Continue a stream in `out`, with the days that were added to the log since.
        force: Replace a stream in `out`.
        follow: Log to train on whose new days are waited for. The function then returns only if all methods fail.
        poll: Seconds between checks for new days, with `follow`.
        bundles: Number of servable bundles to keep per method; one is written after each day, to
            ``bundles/METHOD/DAY``.
        items: Items of these bundles, an Arrow or Parquet file that is read again for each bundle. Default: the items
            of the log.
        jobs: Training runs at the same time.
        verify: Compare the data and the run with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they, the warnings of the result and failed runs are issued as
            :class:`~rankfall.RankfallWarning`.
        stop: Called after each batch and while waiting for days; a true value ends the stream. With it, Ctrl-C is left
            to the caller.

    Raises:
        ConfigError: If a run cannot be trained as configured.
        ValueError: If `out` holds something else, or force and resume are both given.
        Stopped: If `stop` returned a true value. The result so far is in `out`, and the stream can be resumed.
        KeyboardInterrupt: At Ctrl-C. The stream can be resumed.
    """
    from rankfall.studies.stream.stream_config import load_stream, make_runs
    from rankfall.training.run_directory import Stopped

    if force and resume:
        raise RankfallError("found with `resume`; a stream is either replaced or continued", "force")
    if items is not None and not bundles:
        raise RankfallError(f"items: found {items} without bundles, the only ones to contain these items")
    followed = [] if follow is None else [f"data.path={json.dumps(str(follow))}"]
    settings = load_stream(config, [*override_words(overrides), *followed])
    directory = Path(out)
    make_runs(settings, directory)
    # with several jobs, processes end at Ctrl-C and their runs are continued from their checkpoints
    asked = stop if stop is not None or jobs == 1 else lambda: False
    with verification(verify, on_notice), reported(progress) as report, stop_at_ctrl_c(asked) as stopping:
        report(Progress("loading torch"))  # after the configurations, whose errors need no torch
        from rankfall.reporting.files import shown_in, write_stream
        from rankfall.studies.stream.run_stream import stream_methods

        if bundles:
            check_installed("--bundles")
        work = _StreamWork(directory, len(settings.methods or [""]) * len(settings.seeds), report, on_notice)

        def on_result(result: StreamResult) -> None:
            write_stream(result, directory)
            if follow is not None:
                work.wait(result)

        try:
            result = stream_methods(
                settings,
                directory,
                follow=None if follow is None else poll,
                jobs=jobs,
                stop=stopping,
                resume=resume,
                force=force,
                on_days=work.plan,
                on_step=work.learn,
                on_day=work.exports(bundles, optional_path(items), jobs) if bundles else None,
                on_run=work.end,
                on_result=on_result,
                on_notice=on_notice,
            )
        except Stopped as stopped:
            if stop is not None:
                raise
            raise KeyboardInterrupt(str(stopped)) from None
    draw_stream(result, directory, on_notice)
    issue([*result.warnings, *failure_texts([*result.failed, *result.refused])], on_notice)
    return shown_in(result, directory)


class _StreamWork:
    """Progress of a stream."""

    def __init__(self, out: Path, runs: int, report: Callable[[Progress], object], on_notice: OnNotice) -> None:
        self.on_notice = on_notice
        self._report = report
        self._out = out
        self._runs = runs
        self._known: list[str] = []  # days
        self._learned: dict[Path, float] = {}  # days of each run, and the share of the last that is done
        self._step = "opening the log"
        self._show()

    def exports(self, keep: int, items: Path | None, jobs: int) -> DayBundles:
        """Return what exports the bundles of days; with several jobs it is pickled, and reports nothing."""
        from rankfall.studies.stream.run_stream import BUNDLES

        exports = DayBundles(self._out / BUNDLES, keep, items)
        return replace(exports, on_step=self.export, on_note=self.on_notice) if jobs == 1 else exports

    def plan(self, days: Sequence[str]) -> None:
        """Show the days of the stream."""
        if self._known:
            self.on_notice(f"{', '.join(days[len(self._known) :])} arrived")
        self._known[:] = days
        self._show()

    def learn(self, run: StreamRun, step: Step) -> None:
        """Show the progress of a run."""
        self._learned[run.directory] = step.epoch - 1 + step.batch / step.batches
        self._show(_doing(run, self._known[step.epoch - 1]), _status(step))

    def export(self, run: StreamRun, day: str, doing: str) -> None:
        """Show the progress of an export."""
        self._show(_doing(run, day), f"its bundle, {doing}")

    def end(self, run: StreamRun) -> None:
        """Show that a run was trained on all days."""
        self._learned[run.directory] = len(self._known)
        self._show()

    def wait(self, result: StreamResult) -> None:
        """Show the last day, and that new days are waited for."""
        self.on_notice(_last_day(result))
        draw_stream(result, self._out, self.on_notice)
        self._show("waiting for new days")

    def _show(self, step: str = "", status: str = "") -> None:
        self._step = step or self._step
        total = self._runs * len(self._known) if self._known else None
        self._report(Progress(self._step, sum(self._learned.values()), total, status))


def _doing(run: StreamRun, day: str) -> str:
    """Return the run and its day; a terminal of 80 columns has no room for more."""
    return f"{run.method}, seed {run.seed}: {day}"


def _status(step: Step) -> str:
    """Return the progress of the day, and its metrics."""
    from rankfall.training.config.component_checks import shown_name

    if not step.batch:
        return f"day {step.epoch} of {step.epochs}: measuring"
    lines = [
        f"day {step.epoch} of {step.epochs}: batch {step.batch} of {step.batches}, {step.per_second:,.0f} "
        f"impressions/s, loss {sum(step.parts.values()):.4f}"
    ]
    recalls = [f"{shown_name(name)} {value:.4f}" for name, value in step.validation.items() if name.endswith("recall")]
    return "\n".join([*lines, *([f"before it: {', '.join(recalls)}"] if recalls else [])])


def _last_day(result: StreamResult) -> str:
    """Return the metric of all methods on the last day."""
    day, metric = result.learned[-1], result.metric
    entry = next((one for one in result.days if one.day == day), None)
    if entry is None or not entry.methods:
        return f"trained on {day}"
    values = ", ".join(f"{method.name} {method.metrics[metric].mean:.4f}" for method in entry.methods)
    return f"trained on {day}; {metric} before: {values}"


def draw_stream(result: StreamResult, out: Path, on_notice: OnNotice) -> list[Path]:
    """Write the figure of the curves, if any day was measured, and return its files."""
    from rankfall.reporting.comparison import curves_chart

    chart = curves_chart(result)
    return write_figures({"stream": chart}, out, on_notice) if chart else []


def _ignore(*arguments: object) -> None:
    """Do nothing: the default callback, which can be pickled."""


@dataclass(frozen=True)
class DayBundles:
    """Exports the weights after a day to ``DIRECTORY/METHOD/DAY``, and keeps the last `keep` bundles of a method.

    No bundle is written for a day with `keep` later days, because it would be deleted again. `items` is a file with the
    items of bundles, which is read for each bundle; by default they are those of the log up to the day. `on_step`
    receives the progress of an export, `on_note` messages; an object with the default callbacks can be pickled.
    """

    directory: Path
    keep: int
    items: Path | None = None
    on_step: Callable[[StreamRun, str, str], None] = _ignore
    on_note: Callable[[str], None] = _ignore

    def __call__(self, run: StreamRun, log: ImpressionLog, days: Sequence[str], day: str) -> str | None:
        """Write the bundle of a day unless it exists; return an error message or None."""
        if day not in days[-self.keep :]:
            return None
        try:
            self._write(run, log, days, day)
        except Exception as error:  # training continues in any case
            return f"no bundle of {day}: {one_line(error)}"
        return None

    def _write(self, run: StreamRun, log: ImpressionLog, days: Sequence[str], day: str) -> None:
        from rankfall.serving.bundle_files import is_bundle, read_manifest
        from rankfall.serving.export.export_run import ExportOptions, Trained, export_trained
        from rankfall.storage.files import checksum, remove_directory, sweep
        from rankfall.studies.stream.day_learner import weights_file
        from rankfall.studies.stream.stream_config import file_name

        weights, place = weights_file(run.directory, day), self.directory / file_name(run.method)
        if place.is_dir():
            sweep(place)  # days that no longer get a bundle, too
        existing = [one for one in days if is_bundle(place / one)]
        if existing and days.index(existing[-1]) > days.index(day):  # a repeated day; the service has a later one
            return
        if day in existing and read_manifest(place / day)["source"]["checkpoint"] == checksum(weights):
            return
        if day not in log.days:
            raise RankfallError(f"{log.path} no longer has the day, whose requests are needed to check the bundle")
        exported = export_trained(
            Trained(run.directory, run.config, weights, log, [day], _measured(run.directory, day)),
            place / day,
            ExportOptions(items=self.items, known=None if self.items else _items_after(log, day), force=True),
            on_step=lambda step, done, total: self.on_step(run, day, step),
        )
        for note in exported.notes:
            self.on_note(f"{run.method}, bundle of {day}: {note}")
        self.on_note(f"wrote {place / day}")
        others = [one for one in existing if one != day]
        for old in others[: max(0, len(others) + 1 - self.keep)]:
            remove_directory(place / old)


def _measured(run: Path, day: str) -> dict[str, Any]:
    """Return the metrics of a day with the weights before it."""
    from rankfall.training.run_directory import read_lines

    (line,) = (line for line in read_lines(run) if line["day"] == day)
    values = {name: value for name, value in sorted(line["validation"].items()) if math.isfinite(value)}
    return {"stream": {"day": day, "metrics": values}}


def _items_after(log: ImpressionLog, day: str) -> pa.Table | None:
    """Return the items as they were after a day, without those of later days; None after the newest day."""
    import pyarrow.compute as pc

    from rankfall.data.impressions.loader import ItemFirstSeen

    days = list(log.days)
    if days[-1] == day:
        return None
    table = log.items_on(days[days.index(day) + 1])
    first = ItemFirstSeen().numbers(log, days, table["item"].to_numpy())
    return table.filter(pc.invert((first > days.index(day)) & (first < len(days))))


DEFAULT_OUT = Path("reproduced")


@dataclass(frozen=True, repr=False)
class ReproductionResult(StoredTables):
    """A reproduced table or figure.

    Attributes:
        name: Name of the reproduction.
        content: Content of ``results.json``.
        report: Comparisons, tables of text beside the published numbers, and notes.
    """

    name: str
    content: dict[str, Any]
    report: Report
    _directory: Path | None = None

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The results of each comparison, if there are several."""
        results = self.report.results
        return list(results.get("parts", {"all": results}).values())

    @property
    def failed(self) -> list[RunFailure]:
        """Runs that failed."""
        from rankfall.studies.results import RunFailure

        found = [failure for part in self.parts for failure in part.get("comparison", {}).get("failed", [])]
        return [RunFailure.from_json(failure) for failure in found]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        return self.content

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the tables that ``rankfall reproduce`` prints by their titles: comparisons, then tables of text."""
        compared = {title: result.tables()["methods"] for title, result in self.report.comparisons}
        sheets = {
            sheet.title: [
                dict(zip(sheet.head, (cell.line() for cell in row), strict=False)) for _, row in sheet.cells() if row
            ]
            for sheet in self.report.sheets
        }
        return {**compared, **sheets}


@checked
def reproduce(
    name: str,
    out: PathLike | None = None,
    *,
    data: str | None = None,
    quick: bool = False,
    improved: bool = False,
    methods: PathLike | Mapping[str, Any] | None = None,
    seed: Seed = 0,
    jobs: Count = 2,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> ReproductionResult:
    """Run a published table or figure.

    Args:
        name: Name of a reproduction, such as ``"arf-table2"``; ``rankfall reproduce --list`` shows all.
        out: Directory of the results and runs; runs that exist are not repeated. Default: ``reproduced/NAME``.
        data: Lists: a benchmark in its published layout, a prepared directory, a file, generated, or one of
            mslr_sample, mq2007, clueweb09 (in $RANKFALL_DATA). Impressions: a prepared log, or RecFlow's directory.
            Default: lists: mslr_sample if available, else generated; impressions: a simulated platform.
        quick: Run a reduced version in one or two minutes.
        improved: Also run our better versions of the published methods, beside them.
        methods: Also run methods of your own: a YAML file or a dictionary with their names and what they change, as in
            a comparison.
        seed: Random seed of the data and of the first training run.
        jobs: Training runs at the same time.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they and failed runs are issued as :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If there is no such reproduction, or the data do not fit it.
    """
    from rankfall.reproductions.catalogue import find_reproduction, load_methods

    reproduction = find_reproduction(name)
    own = [] if methods is None else load_methods(methods if isinstance(methods, Mapping) else Path(methods))
    source = data_source(reproduction, data)
    directory = Path(out) if out is not None else DEFAULT_OUT / reproduction.id
    make_directory(directory)
    if improved and not reproduction.has_improved:
        issue([f"improved=True changes nothing: {reproduction.id} has no improved versions of its methods"], on_notice)
    settings: dict[str, Any] = {"quick": quick, "improved": improved, "seed": seed}
    with reported(progress) as report:
        report(Progress("preparing"))
        found = run_reproduction(
            reproduction,
            source,
            out=directory,
            jobs=jobs,
            progress=stepper(report),
            on_notice=on_notice,
            methods=own,
            **settings,
        )
    content = {"experiment": reproduction.id, "paper": reproduction.paper, **settings, **found.results}
    write_file(directory / "results.json", json_text(content) + "\n")
    write_figures(found.plots, directory, on_notice)
    result = ReproductionResult(reproduction.id, content, found, directory)
    issue(failure_texts(result.failed), on_notice)
    return result


def data_source(reproduction: Reproduction, data: str | None) -> DataSource:
    """Return the data of a reproduction.

    Raises:
        ValueError: If it uses no data, or cannot use these.
    """
    from rankfall.reproductions.data import DataSource, find_lists, find_log

    if reproduction.data in ("operators", "none"):
        if data is not None:
            raise RankfallError(f"data: {reproduction.id} uses no data")
        return DataSource("no data", "none", {})
    return find_log(data) if reproduction.data == "impressions" else find_lists(data)


def run_reproduction(reproduction: Reproduction, source: DataSource, *, quick: bool, **options: Any) -> Report:
    """Run a reproduction with its driver."""
    from rankfall.reproductions import task
    from rankfall.reproductions.catalogue import run

    return run(reproduction, task.Task(source=source, size=task.QUICK if quick else task.FULL, **options))
