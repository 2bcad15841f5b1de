"""Terminal output of every verb: reports on standard output, messages and progress on standard error."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from rankfall._errors import shortened
from rankfall._errors import stoppable as stoppable
from rankfall._progress import progress as progress
from rankfall._tables import json_text
from rankfall.api.extras import requires_extra as requires_extra
from rankfall.api.extras import write_figures
from rankfall.storage.files import LeftoverWarning
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from rankfall.reporting.figures import Plot
    from rankfall.studies.results import RunFailure

PIPE_WIDTH = 120  # columns of a table that is written to a file or a pipe
INTERRUPTED = 130  # exit code after SIGINT, as in shells
LONGEST_ERROR = 20_000  # characters; a configuration may have many mistakes
# Control characters but line breaks and tabs: a file name in a message must not change the terminal.
_CONTROLS = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}


def examples(*commands: str) -> str:
    """Return the epilogue of a help page, in Markdown."""
    return "\n".join(["**Examples**\n", *(f"- `{command}`" for command in commands)])


def print_result(content: RenderableType) -> None:
    """Print a report on standard output."""
    console = Console(emoji=False)
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH, emoji=False)
    # plain text may contain brackets that are no markup; tables are built with markup
    console.print(content, markup=not isinstance(content, str))


def print_json(content: object) -> None:
    """Print a report as JSON on standard output."""
    typer.echo(json_text(content))


def print_message(message: str) -> None:
    """Print a message on standard error."""
    Console(stderr=True, soft_wrap=True, emoji=False).print(message.translate(_CONTROLS), markup=False)


def print_error(message: str) -> None:
    """Print an error in red on standard error."""
    text = shortened(message, LONGEST_ERROR).translate(_CONTROLS)
    Console(stderr=True, soft_wrap=True, emoji=False).print(
        f"error: {text}", style="red", markup=False, highlight=False
    )


def print_figures(plots: Mapping[str, Plot], out: Path) -> None:
    """Write figures to a directory, and say so."""
    files = write_figures(plots, out, print_message)
    print_message(f"wrote {len(files)} files to {out}: {', '.join(plots)}" if files else "there are no figures")


def write_page_figures(path: Path, out: Path | None, *, trust: bool = False, verify: bool = True) -> None:
    """Write all figures of the page of a run, a comparison or a stream, if a directory for them is given."""
    if out is None:
        return
    from rankfall.reporting.files import figures_of

    with verification(verify, lambda text: None):  # which the command has noted before
        print_figures(figures_of(path, trust=trust), out)


def exit_for_failures(failures: Sequence[RunFailure]) -> None:
    """Print which runs failed, and exit with code 1 if any did."""
    for failure in failures:
        print_error(f"{failure.method}, {failure.run}: {failure.message}")
    if failures:
        raise typer.Exit(1)


@contextmanager
def notes_shown() -> Iterator[None]:
    """Print warnings about leftovers as notes on standard error, without the line of code that issues them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", LeftoverWarning)
        show = warnings.showwarning

        def print_note(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
            if issubclass(category, LeftoverWarning):
                print_message(f"note: {message}")
            else:
                show(message, category, *place, **rest)

        warnings.showwarning = print_note
        yield


@contextmanager
def interruptible(message: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, end the work inside with exit code 130 and a message: what is kept, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        print_message(f"interrupted: {message()}")
        raise typer.Exit(INTERRUPTED) from None
