"""``rankfall demo``: simulate, train two methods, compare and report."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from annotated_types import Ge, Le

from rankfall._errors import STOP_SIGNALS, RankfallError
from rankfall.commands import terminal
from rankfall.commands.verb import command
from rankfall.option_types import Seed
from rankfall.storage.disk import make_directory
from rankfall.storage.files import locked, scratch_directory
from rankfall.storage.manifests import MANIFEST

if TYPE_CHECKING:
    from rankfall.studies.results import ComparisonResult

LOOP_DAYS = 4


@command()
def demo(
    out: Path | None = None,
    seed: Seed = 0,
    force: bool = False,
    quick: bool = False,
    loop: bool = False,
    days: Annotated[int, Ge(1), Le(1000)] | None = None,
    as_json: bool = False,
) -> None:
    """Simulate a platform, train two methods on its log, and compare them.

    BCE trains the cascade stage by stage, LCRON as one network, with three seeds each. The platform logs which items
    each stage of its production cascade kept. Three stages learn from that log; the table shows how many of the
    relevant items survive them, of all items, and where the others are lost. The page report.html ends with what to do
    next, from a diagnosis and a plan of the first run of LCRON. With --out, the log, the runs, config.yaml,
    comparison.json and report.html are kept.

    With --loop, a service answers simulated users over HTTP and records samples and events, rankfall join appends each
    day to the log, rankfall stream learns from it, and the service loads the new bundle. The table shows what the model
    of each day reaches: joint recall of the truly best items, and reward, the effective views per request. Ctrl-C ends
    all processes; the same command with the same --out continues.

    Options:
        out: Output directory. Default: not kept.
        quick: Run a reduced version: a few hundred impressions, in seconds.
        loop: Serve simulated users and learn from them, day after day, as processes.
        days: Days to serve, with --loop. Default: 4.

    Examples:
        rankfall demo
        rankfall demo --out demo --seed 1
        rankfall demo --quick --json
        rankfall demo --loop --out loop
        rankfall demo --loop --out loop --days 8
    """
    if loop:
        _demo_loop(out, seed, force, quick, LOOP_DAYS if days is None else days, as_json)
        return
    if days is not None:
        raise typer.BadParameter("the days of a loop need --loop", param_hint="--days")
    if out is None:
        with scratch_directory("rankfall-demo") as directory:
            result = _run(directory, seed, quick)
    else:
        if out.exists() and any(out.iterdir()) and not force:
            raise RankfallError(f"out: {out} is not empty; name another directory, or overwrite it with --force")
        _check_demo(out)
        make_directory(out)
        result = _run(out, seed, quick)
    if as_json:
        terminal.print_json(result.to_json())
    else:
        from rankfall.reporting.comparison import comparison_blocks

        terminal.print_result(comparison_blocks(result))
    if out is not None:
        terminal.print_message(
            f"wrote {out / 'report.html'} and {out / 'lcron' / 'report.html'}; next: rankfall evaluate {out / 'lcron'} "
            "--diagnose"
        )


def _demo_loop(out: Path | None, seed: int, force: bool, quick: bool, days: int, as_json: bool) -> None:
    with terminal.requires_extra("demo --loop", "serve"):
        import rankfall.serving.service.app  # noqa: F401 (report a missing package before anything starts)
        from rankfall.loop_demo.loop_days import FULL, QUICK, LoopFiles, LoopSettings
        from rankfall.loop_demo.run_loop import Loop, LoopDisplay, StoppedError

    settings = LoopSettings(seed=seed, **(QUICK if quick else FULL))
    with ExitStack() as stack:
        kept = out or stack.enter_context(scratch_directory("rankfall-loop"))
        files = LoopFiles(kept)
        if force:
            files.remove()
        make_directory(kept)
        stack.enter_context(locked(kept, busy=f"out: another process runs the loop in {kept}"))
        display = stack.enter_context(LoopDisplay())
        stop = stack.enter_context(
            terminal.stoppable(lambda: display.note("ending all processes"), signals=(*STOP_SIGNALS, signal.SIGHUP))
        )
        loop = Loop(files, settings, days, on_change=display.show, stop=stop)
        try:
            result = loop.run()
        except StoppedError:
            display.close()
            again = "" if out is None else f"; the same command continues in {out}"
            terminal.print_message(f"stopped{again}")
            raise typer.Exit(128 + stop()) from None
        display.close()
        if as_json:
            terminal.print_json(result.to_json(loop.last))
        else:
            terminal.print_result(result.table(loop.last))
        if out is not None:
            commands = "\n".join(f"  {text}" for text in loop.commands)
            terminal.print_message(
                f"wrote {files.result}; the commands of this loop, whose output is in {files.logs}:\n{commands}"
            )


def _check_demo(out: Path) -> None:
    """Raise an error for a directory with other files; an earlier demo wrote its log first."""
    names = sorted(path.name for path in out.glob("[!.]*"))
    if names and not (out / "log" / MANIFEST).is_file():
        raise RankfallError(
            f"out: {out} contains {names[0]} but no log, so it was not written by a demo; name another directory"
        )


def _run(out: Path, seed: int, quick: bool) -> ComparisonResult:
    terminal.print_message("loading torch")
    from rankfall import demo

    size = demo.QUICK if quick else demo.FULL
    impressions = size.days * size.requests_per_day
    terminal.print_message(f"simulating {impressions:,} requests, training {' and '.join(demo.OBJECTIVES)}")
    with terminal.progress() as bar:
        line = bar.add_task("preparing", total=None)
        return demo.run(
            out,
            size=size,
            seed=seed,
            progress=lambda step, done, total: bar.update(line, description=step, completed=done, total=total),
        )
