"""``rf.stream``: training on one day after the other, and the bundles of its days."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._errors import RankfallError, checked, one_line, stop_at_ctrl_c
from rankfall.api.comparing import failure_texts
from rankfall.api.exporting import check_installed
from rankfall.api.shared import Progress, issue, optional_path, override_words, reported, warn, write_figures
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from rankfall._config import ConfigLike
    from rankfall.api.shared import OnNotice, Overrides, PathLike, ProgressLike
    from rankfall.data import ImpressionLog
    from rankfall.option_types import Count, NotNegativeCount, Seconds
    from rankfall.studies.results import StreamResult
    from rankfall.studies.stream.stream_config import StreamRun
    from rankfall.training.run_directory import Step


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
