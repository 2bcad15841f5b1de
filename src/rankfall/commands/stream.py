"""``rankfall stream``: train on one day after the other, each measured before it is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import (
    MAX_NUMBER,
    MAX_SECONDS,
    AsJson,
    Config,
    Figures,
    Force,
    NoVerify,
    Out,
    Overrides,
    Resume,
    finite,
    jobs_option,
)
from rankfall.commands.terminal import (
    examples,
    exit_for_failures,
    interruptible,
    print_json,
    print_message,
    print_result,
    stoppable,
)
from rankfall.commands.write_figures import write_page_figures

if TYPE_CHECKING:
    from rankfall.studies.results import StreamResult

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
    poll: Annotated[
        float,
        typer.Option(
            min=0.1, max=MAX_SECONDS, callback=finite, help="Seconds between checks for new days, with --follow."
        ),
    ] = 10.0,
    bundles: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_NUMBER,
            help="Number of servable bundles to keep per method; one is written after each day, to bundles/METHOD/DAY.",
            show_default="none",
        ),
    ] = 0,
    items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Items of these bundles, an Arrow or Parquet file that is read again for each bundle.",
            show_default="the items of the log",
        ),
    ] = None,
    jobs: Annotated[int, jobs_option()] = 1,
    figures: Figures = None,
    no_verify: NoVerify = False,
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
    options: dict[str, Any] = {"follow": follow, "poll": poll, "bundles": bundles, "resume": resume, "force": force}
    options |= {"items": items, "verify": not no_verify}
    result = _stream(config, out, jobs, overrides=overrides or (), **options)
    from rankfall.reporting.comparison import stream_blocks
    from rankfall.reporting.terminal import show

    if as_json:
        print_json(result.to_json())
    else:
        print_result(show(stream_blocks(result)))
    for text in result.warnings:
        print_message(f"warning: {text}")
    drawn = [name for name in ("stream.png", "stream.svg") if (out / name).is_file()]
    print_message(f"wrote {', '.join(['stream.json', 'stream.md', 'report.html', *drawn])} to {out}")
    if figures is not None:
        write_page_figures(out, figures, verify=not no_verify)
    exit_for_failures([*result.failed, *result.refused])


def _stream(config: Path, out: Path, jobs: int, **options: Any) -> StreamResult:
    continuation = f"the same command with --resume continues {out}"
    with interruptible(lambda: continuation), Display() as display:

        def on_signal() -> None:
            if jobs > 1:
                raise KeyboardInterrupt  # processes end, and their runs are continued from their checkpoints
            display.note("stopping; press Ctrl-C again to stop at once")

        with stoppable(on_signal) as stop:
            from rankfall.training.run_directory import Stopped

            try:
                return api.stream(
                    config, out, jobs=jobs, progress=display.show, on_notice=display.note, stop=stop, **options
                )
            except Stopped as stopped:
                display.note(str(stopped))
                raise typer.Exit(128 + stop()) from None  # the convention of shells
            except KeyboardInterrupt:
                display.note(f"interrupted: {continuation}")
                raise typer.Exit(128 + stop()) from None
