"""How every verb speaks: reports on standard output, everything else on standard error."""

from __future__ import annotations

import json
import math
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from rankfall.studies.results import RunFailure

PIPE_WIDTH = 120  # columns of a table that goes into a file or a pipe, where nobody knows the width
INTERRUPTED = 130  # the exit code, as shells have it


def examples(*commands: str) -> str:
    """The epilogue of a help page, in Markdown."""
    return "\n".join(["**Examples**\n", *(f"- `{command}`" for command in commands)])


def show(content: RenderableType) -> None:
    """Print a report on standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    # a sentence may quote anything, brackets too; what stands in tables is marked up by those who make them
    console.print(content, markup=not isinstance(content, str))


def show_json(content: object) -> None:
    """Print a report as JSON on standard output."""
    typer.echo(json_text(content))


def json_text(content: object) -> str:
    """A report as JSON; what is not a number there is null."""
    return json.dumps(_without_nan(content), indent=2, allow_nan=False)


def say(message: str) -> None:
    """Tell the user something that is not the report."""
    Console(stderr=True, soft_wrap=True).print(message, markup=False)


def fail(message: str) -> None:
    """One red line on standard error."""
    Console(stderr=True, soft_wrap=True).print(f"error: {message}", style="red", markup=False, highlight=False)


def fail_for(failures: Sequence[RunFailure]) -> None:
    """Print which runs failed, and exit with code 1 if any did."""
    for failure in failures:
        fail(f"{failure.method}, {failure.run}: {failure.message}")
    if failures:
        raise typer.Exit(1)


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Say what to install if something that is imported here is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{what} needs {error.name}, which is not installed: pip install 'rankfall[{extra}]'"
        ) from None


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C ends the work inside with one sentence, `kept`: what is there already and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted: {kept()}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def stoppable(on_asked: Callable[[], None], *, patient: bool = False) -> Iterator[Callable[[], int]]:
    """Whether Ctrl-C, or a polite end of the process, has been asked for, which the work inside may look at in time.

    If so, it is the number of the signal. A second time does not wait, unless the process is `patient`.
    """
    asked: list[int] = []

    def hear(number: int, frame: object) -> None:
        if asked and patient:
            return
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        on_asked()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress(Progress):
    """Bars, each with the lines of its field `status` below it, which are folded where the terminal ends."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields.get("status"):
                yield Text(task.fields["status"], style="dim")


def progress() -> Progress:
    """A progress bar on standard error, silent where that is no terminal."""
    console = Console(stderr=True)
    return _Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),  # what is being done needs the room of a terminal of 80 columns
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def note(bar: Progress, text: str) -> None:
    """Say something above a progress bar, where it stays."""
    bar.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


def _without_nan(content: object) -> object:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return content
