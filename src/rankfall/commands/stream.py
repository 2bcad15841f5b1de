"""``rankfall stream``: train on one day after the other, each measured before it is trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.export import check_installed
from rankfall.commands.options import AsJson, Config, Force, Out, Overrides, Resume, jobs_option
from rankfall.commands.stream_bundles import DayBundles
from rankfall.commands.terminal import (
    examples,
    exit_for_failures,
    interruptible,
    print_json,
    print_message,
    print_note,
    print_result,
    progress,
    stoppable,
)
from rankfall.commands.write_figures import write_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from rankfall.studies.results import StreamResult
    from rankfall.studies.stream.stream_config import StreamConfig, StreamRun
    from rankfall.training.run_directory import Step

EXAMPLES = examples(
    "rankfall stream stream.yaml --out streams/first",
    "rankfall stream stream.yaml --out streams/first data.days=2024-01-13..2024-01-20 seeds=[0,1,2]",
    "rankfall stream stream.yaml --out streams/first --resume",
    "rankfall stream stream.yaml --out streams/live --follow log --resume --bundles 3",
)


def stream(
    config: Config,
    overrides: Overrides = None,
    *,
    out: Out,
    resume: Resume = False,
    force: Force = False,
    follow: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Train on this log, wait for its new days, and keep the weights after each day.",
            show_default=False,
        ),
    ] = None,
    poll: Annotated[float, typer.Option(min=0.1, help="Seconds between checks for new days, with --follow.")] = 10.0,
    bundles: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of servable bundles to keep per method; one is written after each day, to bundles/METHOD/DAY.",
            show_default="none",
        ),
    ] = 0,
    jobs: Annotated[int, jobs_option()] = 1,
    as_json: AsJson = False,
) -> None:
    """Train day by day, and measure every method on each day before training on it.

    CONFIG describes a cascade, its days, and the methods and seeds to compare. The first day is trained on and not
    measured. --resume continues an interrupted stream with the same result, and includes days added to the log since.
    With --follow it waits for new days until SIGTERM or Ctrl-C. --json prints the content of stream.json. If a method
    fails or a bundle cannot be written, the rest is still reported and the exit code is 1.
    """
    if force and resume:
        raise typer.BadParameter("a stream is either replaced or continued", param_hint="--force, --resume")
    print_message("loading torch")
    if bundles:
        check_installed("--bundles")
    from rankfall.reporting.stream_table import terminal_stream
    from rankfall.studies.stream.stream_config import load_stream

    followed = [] if follow is None else [f"data.path={json.dumps(str(follow))}"]
    settings = load_stream(config, [*(overrides or []), *followed])
    wait = None if follow is None else poll
    result = _stream(settings, out, bundles, resume=resume, force=force, follow=wait, jobs=jobs)
    if as_json:
        print_json(result.to_json())
    else:
        print_result(terminal_stream(result))
    for text in result.warnings:
        print_message(f"warning: {text}")
    drawn = _draw(result, out)
    print_message(f"wrote {', '.join(['stream.json', 'stream.md', 'report.html', *drawn])} to {out}")
    exit_for_failures([*result.failed, *result.refused])


def _stream(
    settings: StreamConfig, out: Path, bundles: int, *, jobs: int, follow: float | None, **options: Any
) -> StreamResult:
    from rankfall.reporting.files import write_stream
    from rankfall.studies.stream.run_stream import BUNDLES, stream_methods
    from rankfall.training.run_directory import Stopped

    continuation = f"the same command with --resume continues {out}"
    with interruptible(lambda: continuation), progress() as bar:
        display = _StreamProgress(bar, out, runs=max(1, len(settings.methods)) * len(settings.seeds))
        exports = DayBundles(out / BUNDLES, bundles) if bundles else None
        if exports and jobs == 1:  # a progress bar cannot be pickled
            exports = replace(exports, on_step=display.export, on_note=display.note)

        def on_result(result: StreamResult) -> None:
            write_stream(result, out)
            if follow is not None:
                display.wait(result)

        def on_signal() -> None:
            if jobs > 1:
                raise KeyboardInterrupt  # processes end, and their runs are continued from their checkpoints
            display.note("stopping; press Ctrl-C again to stop at once")

        with stoppable(on_signal) as stop:
            try:
                return stream_methods(
                    settings,
                    out,
                    jobs=jobs,
                    on_days=display.plan,
                    on_step=display.learn,
                    on_day=exports,
                    on_run=display.end,
                    on_result=on_result,
                    follow=follow,
                    on_notice=display.note,
                    stop=stop,
                    **options,
                )
            except Stopped as stopped:
                display.note(str(stopped))
                raise typer.Exit(128 + stop()) from None  # the convention of shells
            except KeyboardInterrupt:
                display.note(f"interrupted: {continuation}")
                raise typer.Exit(128 + stop()) from None


class _StreamProgress:
    """The progress bar of a stream."""

    def __init__(self, bar: Progress, out: Path, runs: int) -> None:
        self._bar = bar
        self._task = bar.add_task("opening the log", total=None)
        self._out = out
        self._runs = runs
        self._known: list[str] = []  # days
        self._learned: dict[Path, float] = {}  # days of each run, and the share of the last that is done

    def note(self, text: str) -> None:
        print_note(self._bar, text)

    def plan(self, days: Sequence[str]) -> None:
        if self._known:
            self.note(f"{', '.join(days[len(self._known) :])} arrived")
        self._known[:] = days
        self._bar.update(self._task, total=self._runs * len(days))

    def learn(self, run: StreamRun, step: Step) -> None:
        self._learned[run.directory] = step.epoch - 1 + step.batch / step.batches
        self._advance(description=_doing(run, self._known[step.epoch - 1]), status=_status(step))

    def export(self, run: StreamRun, day: str, doing: str) -> None:
        self._bar.update(self._task, description=_doing(run, day), status=f"its bundle, {doing}")

    def end(self, run: StreamRun) -> None:
        self._learned[run.directory] = len(self._known)
        self._advance(status="")

    def wait(self, result: StreamResult) -> None:
        self.note(_last_day(result))
        _draw(result, self._out)
        self._bar.update(self._task, description="waiting for new days", status="")

    def _advance(self, **fields: Any) -> None:
        self._bar.update(self._task, completed=sum(self._learned.values()), **fields)


def _doing(run: StreamRun, day: str) -> str:
    """Return the run and its day; a terminal of 80 columns has no room for more."""
    return f"{run.method}, seed {run.seed}: {day}"


def _status(step: Step) -> str:
    """Return the progress of the day, and its metrics."""
    from rankfall.training.config.cascade_metric_names import shown_name

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


def _draw(result: StreamResult, out: Path) -> list[str]:
    """Write the figure of the curves, if any day was measured."""
    from rankfall.reporting.stream_page import stream_figure

    if not any(entry.methods for entry in result.days):
        return []
    return [file.name for file in write_figures({"stream": stream_figure(result)}, out)]
