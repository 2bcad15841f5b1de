"""``rankfall train``: train a cascade or a ranker."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall import api
from rankfall._errors import is_expected
from rankfall.api.display import Display
from rankfall.api.training import TIMEOUT, validation_texts
from rankfall.commands.options import (
    MAX_NUMBER,
    MAX_SECONDS,
    AsJson,
    Config,
    EngineName,
    EngineOption,
    Force,
    NoVerify,
    Out,
    Overrides,
    Resume,
    announce,
    finite,
    seed_option,
    whole_number_of,
)
from rankfall.commands.terminal import (
    examples,
    interruptible,
    print_error,
    print_json,
    print_message,
    print_result,
    stoppable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from rankfall.api import TrainedRun

EXAMPLES = examples(
    "rankfall train config.yaml --out runs/first",
    "rankfall train config.yaml loss.name=lambda_loss loss.k=5 training.seed=1 --out runs/lambda",
    "rankfall train config.yaml 'data.train=[S2, S3, S4]' data.valid=S5 data.test=S1 --out runs/fold2",
    "torchrun --nproc-per-node 2 -m rankfall train config.yaml --out runs/first",
    "rankfall train config.yaml --engine ray --workers 8 --out runs/first",
)


def train(
    config: Config,
    overrides: Overrides = None,
    *,
    out: Out,
    seed: Annotated[int | None, seed_option(help="Short for training.seed=N.", show_default="that of CONFIG")] = None,
    force: Force = False,
    resume: Resume = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=1,
            max=MAX_SECONDS,
            callback=finite,
            help="Seconds that processes wait for each other under torchrun or Ray.",
        ),
    ] = TIMEOUT,
    engine: EngineOption = EngineName.LOCAL,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_NUMBER, help="Number of processes that Ray starts.", show_default="one per processor"
        ),
    ] = None,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """Train a cascade on a log, or a ranker on prepared lists.

    A configuration with stages trains a cascade. The validation metric is computed after each epoch; training stops
    early when it has not improved for training.patience epochs. The best and the last weights are kept. The same
    configuration and data give the same weights, even after an interruption.

    Under torchrun several processes train together; each takes a share of every batch. If torchrun restarts them, they
    continue the run. With --engine ray, Ray starts and restarts the processes.
    """
    if force and resume:
        raise typer.BadParameter("a run is either replaced or continued", param_hint="--force, --resume")
    if workers is not None and engine is not EngineName.RAY:
        raise typer.BadParameter("needs --engine ray", param_hint="--workers")
    if engine is EngineName.RAY and "WORLD_SIZE" in os.environ:
        raise typer.BadParameter("processes are started either by torchrun or by Ray", param_hint="--engine")
    first, world = whole_number_of("RANK", 0) == 0, whole_number_of("WORLD_SIZE", 1)
    announce(engine)
    with _watched(out, first=first, world=world) as (display, stop):
        run = api.train(
            config,
            out,
            overrides=overrides or (),
            seed=seed,
            force=force,
            resume=resume,
            engine=engine.value,
            workers=workers,
            timeout=timeout,
            verify=not no_verify,
            progress=display.show,
            on_notice=display.note,
            stop=stop,
        )
    if first:
        _show(run, as_json=as_json)


def _show(run: TrainedRun, *, as_json: bool) -> None:
    if as_json:
        print_json(run.to_json())
    else:
        print_result(_table(run))
    for text in run.warnings:
        print_message(f"warning: {text}")


@contextmanager
def _watched(out: Path, *, first: bool, world: int) -> Iterator[tuple[Display, Callable[[], int]]]:
    """Context with progress and a function that returns a received signal. Errors are printed after the progress."""
    display = Display(shown=first)

    def on_signal() -> None:
        if world == 1:
            display.note("stopping after this batch; press Ctrl-C again to stop at once")

    # torchrun terminates a process as soon as another one has ended, and does not wait long itself
    patient = world > 1
    with (
        interruptible(lambda: _kept(out)),
        stoppable(on_signal, patient=patient) as stop,
        _reported(world),
        display,
        _stopping(display if first else None, stop),
    ):
        yield display, stop


@contextmanager
def _stopping(display: Display | None, stop: Callable[[], int]) -> Iterator[None]:
    """Exit with the code of the signal if the run was stopped."""
    from rankfall.training.run_directory import Stopped

    try:
        yield
    except Stopped as stopped:
        if display is not None:
            display.note(str(stopped))
        raise typer.Exit(128 + (stop() or signal.SIGTERM)) from None  # the convention of shells


@contextmanager
def _reported(world: int) -> Iterator[None]:
    """Print an error in the process that raised it, and in no other."""
    try:
        yield
    except (ValueError, OSError) as error:
        if world == 1 or not is_expected(error):
            raise
        from rankfall.training.distributed.group import LostError, PeerError

        rank = int(os.environ["RANK"])
        # two processes report a lost one, since that may be the first
        silent = rank > 1 if isinstance(error, LostError) else isinstance(error, PeerError)
        if rank == 0 or not silent:
            print_error(str(error))
        raise typer.Exit(1) from None


def _kept(out: Path) -> str:
    """Return a hint about what is left if the run was interrupted without a checkpoint."""
    from rankfall.training.run_directory import CONFIG

    if not (out / CONFIG).is_file():
        return "nothing was written"
    return f"the same command with --resume continues {out} from its last checkpoint, if there is one"


def _table(run: TrainedRun) -> Table:
    from rich.table import Table

    from rankfall.training.methods import method_of
    from rankfall.training.run_directory import read_config

    out, result = run.directory, run.result
    table = Table(show_header=False, title=f"{out}", title_justify="left")
    for line in validation_texts(run.best_validation(), run.metric):
        name, value = line.split()
        table.add_row(f"validation {name}", value)
    for labels, _ in filter(None, [method_of(read_config(out)).describe().get("labels")]):
        table.add_row("labels", labels)
    table.add_row("best epoch", f"{result.best_epoch} of {result.epochs}")
    table.add_row("parameters", f"{result.parameters:,}")
    table.add_row("seconds", f"{result.seconds:.1f}")
    table.add_row("device", result.device)
    table.add_section()
    table.add_row("next", f"rankfall evaluate {out}")
    return table
