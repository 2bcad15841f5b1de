"""``rankfall stream``: learn from one day after the other, each measured before that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.day_bundles import DayBundles
from rankfall.commands.export import check_installed
from rankfall.commands.pictures import draw
from rankfall.commands.terminal import (
    examples,
    fail_for,
    interruptible,
    note,
    progress,
    say,
    show,
    show_json,
    stoppable,
)
from rankfall.commands.train import Overrides  # noqa: TC001 (typer reads the annotations)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from rankfall.studies.stream.stream_config import StreamConfig, StreamRun
    from rankfall.training.run_directory import Step

EXAMPLES = examples(
    "rankfall stream stream.yaml --out streams/first",
    "rankfall stream stream.yaml --out streams/first data.days=2024-01-13..2024-01-20 seeds=[0,1,2]",
    "rankfall stream stream.yaml --out streams/first --resume",
    "rankfall stream stream.yaml --out streams/live --follow log --resume --bundles 3",
)


def stream(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="YAML: a cascade over days, with methods and seeds.", show_default=False),
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option(help="Directory of the runs and results.", show_default=False)],
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stream, also with days that are new.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a stream that exists.")] = False,
    follow: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Learn from this log, wait for its new days, and keep the weights after each.",
            show_default=False,
        ),
    ] = None,
    poll: Annotated[float, typer.Option(min=0.1, help="Seconds between looks for new days, with --follow.")] = 10.0,
    bundles: Annotated[
        int,
        typer.Option(
            min=0,
            help="After each day write a bundle that can be served, DIR/bundles/METHOD/DAY, and keep so many of them.",
            show_default="none",
        ),
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of stream.json.")] = False,
) -> None:
    """Measure each day by what was learned from the days before it, then learn from it, once; for several methods.

    The first day is learned from and not measured. A stream that was interrupted continues with --resume and ends as if
    it had not been; it goes on with days that have come since. With --follow it waits for them, until SIGTERM or
    Ctrl-C. Exit code 1 if a method failed, or a bundle was refused; the others are reported.
    """
    if force and resume:
        raise typer.BadParameter("a stream is either replaced or continued", param_hint="--force, --resume")
    say("loading torch")
    if bundles:
        check_installed("--bundles")
    from rankfall.studies.stream.stream_config import load_stream

    followed = [] if follow is None else [f"data.path={json.dumps(str(follow))}"]
    settings = load_stream(config, [*(overrides or []), *followed])
    wait = None if follow is None else poll
    result = _stream(settings, out, bundles, resume=resume, force=force, follow=wait, jobs=jobs)
    if as_json:
        show_json(result)
    else:
        _show(result)
    drawn = _draw(result, out)
    say(f"wrote {', '.join(['stream.json', 'stream.md', 'report.html', *drawn])} to {out}")
    fail_for([*result["failed"], *result["refused"]])


def _stream(settings: StreamConfig, out: Path, bundles: int, *, jobs: int, **options: Any) -> dict[str, Any]:
    from rankfall.studies.stream.run_stream import BUNDLES, stream_methods
    from rankfall.training.run_directory import Stopped

    goes_on = f"the same command with --resume continues {out}"
    with interruptible(lambda: goes_on), progress() as bar:
        shown = _Shown(bar, out, runs=max(1, len(settings.methods)) * len(settings.seeds))
        exports = DayBundles(out / BUNDLES, bundles) if bundles else None
        if exports and jobs == 1:  # what goes to other processes holds no progress bar
            exports = replace(exports, on_step=shown.export, on_note=shown.note)

        def asked() -> None:
            if jobs > 1:
                raise KeyboardInterrupt  # processes are ended, and their runs continued from their checkpoints
            shown.note("stopping; Ctrl-C again does not wait")

        with stoppable(asked) as stop:
            try:
                return stream_methods(
                    settings,
                    out,
                    jobs=jobs,
                    on_days=shown.plan,
                    on_step=shown.learn,
                    on_day=exports,
                    on_run=shown.end,
                    on_result=shown.wait,
                    on_notice=shown.note,
                    stop=stop,
                    **options,
                )
            except Stopped as stopped:
                shown.note(str(stopped))
                raise typer.Exit(128 + stop()) from None  # as shells have it
            except KeyboardInterrupt:
                shown.note(f"interrupted: {goes_on}")
                raise typer.Exit(128 + stop()) from None


class _Shown:
    """What a stream does, on a progress bar."""

    def __init__(self, bar: Progress, out: Path, runs: int) -> None:
        self._bar = bar
        self._task = bar.add_task("opening the log", total=None)
        self._out = out
        self._runs = runs
        self._known: list[str] = []  # days
        self._learned: dict[Path, float] = {}  # days of each run, and the share of the last that is done

    def note(self, text: str) -> None:
        note(self._bar, text)

    def plan(self, days: Sequence[str]) -> None:
        if self._known:
            self.note(f"{', '.join(days[len(self._known) :])} came")
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

    def wait(self, result: dict[str, Any]) -> None:
        self.note(_last_day(result))
        _draw(result, self._out)
        self._bar.update(self._task, description="waiting for new days", status="")

    def _advance(self, **fields: Any) -> None:
        self._bar.update(self._task, completed=sum(self._learned.values()), **fields)


def _doing(run: StreamRun, day: str) -> str:
    """Which run is where; the line has room for no more in a terminal of 80 columns."""
    return f"{run.method}, seed {run.seed}: {day}"


def _status(step: Step) -> str:
    """How the day goes, and what was measured of it."""
    if not step.batch:
        return f"day {step.epoch} of {step.epochs}: measuring"
    lines = [
        f"day {step.epoch} of {step.epochs}: batch {step.batch} of {step.batches}, {step.per_second:,.0f} "
        f"impressions/s, loss {sum(step.parts.values()):.4f}"
    ]
    recalls = [f"{name} {value:.4f}" for name, value in step.validation.items() if name.endswith("recall")]
    return "\n".join([*lines, *([f"before it: {', '.join(recalls)}"] if recalls else [])])


def _last_day(result: dict[str, Any]) -> str:
    """How the methods did on the last day."""
    day, metric = result["learned"][-1], result["metric"]
    entry = next((one for one in result["days"] if one["day"] == day), None)
    if entry is None or not entry["methods"]:
        return f"learned from {day}"
    reached = ", ".join(f"{one['name']} {one['metrics'][metric]['mean']:.4f}" for one in entry["methods"])
    return f"learned from {day}, whose {metric} before was: {reached}"


def _show(result: dict[str, Any]) -> None:
    from rankfall.reporting.stream_table import terminal_stream

    show(terminal_stream(result))


def _draw(result: dict[str, Any], out: Path) -> list[str]:
    """Draw the curves, if there are any."""
    from rankfall.reporting.stream_figure import stream_plot

    if not any(entry["methods"] for entry in result["days"]):
        return []
    return [file.name for file in draw({"stream": stream_plot(result)}, out)]
