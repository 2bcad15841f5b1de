"""Terminal output of every verb: reports on standard output, messages, progress and errors on standard error."""

from __future__ import annotations

import os
import select
import sys
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from rankfall import _errors
from rankfall._errors import stoppable as stoppable
from rankfall._progress import progress as progress
from rankfall._tables import json_text
from rankfall.api.shared import Display, write_figures
from rankfall.api.shared import requires_extra as requires_extra
from rankfall.storage.files import LeftoverWarning
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from rankfall.reporting.blocks import Block
    from rankfall.reporting.charts import Chart
    from rankfall.studies.results import RunFailure


PLAIN: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, 2, 0, 0)}
PIPE_WIDTH = 120  # columns of a table that is written to a file or a pipe
INTERRUPTED = 130  # exit code after SIGINT, as in shells
LONGEST_ERROR = 20_000  # characters; a configuration may have many mistakes
# Control characters but line breaks and tabs: a file name in a message must not change the terminal.
_CONTROLS = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}


def examples(*commands: str) -> str:
    """Return the epilogue of a help page, in Markdown."""
    return "\n".join(["**Examples**\n", *(f"- `{command}`" for command in commands)])


def print_result(content: RenderableType | Sequence[Block]) -> None:
    """Print a report on standard output: a text, a table or another form of rich, or blocks of a report."""
    if isinstance(content, list):
        from rankfall.reporting.terminal import show

        content = show(content)
    console = Console(emoji=False)
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH, emoji=False)
    # plain text may contain brackets that are no markup; tables are built with markup
    console.print(content, markup=not isinstance(content, str))


def print_warnings(texts: Iterable[str]) -> None:
    """Print warnings about a result on standard error."""
    for text in texts:
        print_message(f"warning: {text}")


def table(
    columns: Iterable[str | Column], rows: Iterable[Iterable[RenderableType]], *, title: str = "", **settings: Any
) -> Table:
    """Return a table whose texts may contain anything.

    Args:
        columns: Headings; columns whose heading begins with ">" are aligned to the right.
        rows: Cells of each row.
        title: Text above the table.
        **settings: Those of :class:`rich.table.Table`.
    """
    headings = [
        Column(one[1:], justify="right") if isinstance(one, str) and one.startswith(">") else one for one in columns
    ]
    made = Table(*headings, title=escape(title) or None, **{"title_justify": "left", **settings})
    for cells in rows:
        made.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in cells))
    return made


def print_json(content: object) -> None:
    """Print a report as JSON on standard output."""
    typer.echo(json_text(content))


def print_message(message: str) -> None:
    """Print a message on standard error."""
    Console(stderr=True, soft_wrap=True, emoji=False).print(message.translate(_CONTROLS), markup=False)


def print_error(message: str) -> None:
    """Print an error in red on standard error."""
    text = _errors.shortened(message, LONGEST_ERROR).translate(_CONTROLS)
    Console(stderr=True, soft_wrap=True, emoji=False).print(
        f"error: {text}", style="red", markup=False, highlight=False
    )


def print_figures(plots: Mapping[str, Chart], out: Path) -> None:
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
def interruptible(message: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, end the work inside with exit code 130 and a message: what is kept, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        print_message(f"interrupted: {message()}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def stoppable_work(
    kept: Callable[[], str], *, at_once: bool = False, note: str = "stopping"
) -> Iterator[tuple[Display, Callable[[], int]]]:
    """Context of work that stops at a suitable point after SIGINT or SIGTERM.

    Args:
        kept: Says what an interruption leaves, and how to continue.
        at_once: The first signal interrupts the work, as the second one does otherwise.
        note: What is said at the first signal.

    Yields:
        The progress, and a function that returns the number of a received signal, or 0.
    """
    with interruptible(kept), Display() as display:

        def on_signal() -> None:
            if at_once:
                raise KeyboardInterrupt
            display.note(f"{note}; press Ctrl-C again to stop at once")

        with stoppable(on_signal) as stop:
            yield display, stop


def exit_for(error: BaseException, command: Sequence[str]) -> NoReturn:
    """Print the message about an error, with its traceback if the user asks for it, and exit with code 1.

    Args:
        error: The error.
        command: Arguments of the command line.
    """
    if isinstance(error, BrokenPipeError) and (unread := _unread_outputs()):
        for output in unread:  # as in 'rankfall methods | head'; Python would complain about it when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        raise SystemExit(1)
    if _errors.is_debugging():
        sys.stderr.write(_errors.traceback_text(error))
    print_error(
        _errors.one_line(error)
        if _errors.is_expected(error) or _errors.is_out_of_memory(error)
        else _errors.bug_report(error, command)
    )
    raise SystemExit(1)


def _unread_outputs() -> list[int]:
    """Return standard output and standard error if they are pipes whose reader has ended."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)  # errors are always reported
        except (OSError, ValueError):  # no real file, as in notebooks
            continue
    return [output for output, events in poll.poll(0) if events & select.POLLERR]


def whole_number_of(variable: str, default: int) -> int:
    """Return the whole number in an environment variable, such as those of torchrun.

    Raises:
        ValueError: If it is something else.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise _errors.RankfallError(f"{variable}: found {text!r} in the environment, expected a whole number")
    return int(text)


def check_words(words: Sequence[str]) -> None:
    """Exit with code 2 for arguments that can be no file name: empty, not Unicode text, or with a NUL character."""
    for number, word in enumerate(words, start=1):
        if not word:
            print_error(f"argument {number} is empty; if it is a variable of a shell, the variable has no value")
        elif "\0" in word:
            print_error(f"argument {number}: found {_quoted(word)}, expected text without NUL characters")
        elif any("\ud800" <= letter <= "\udfff" for letter in word):
            encoding = sys.getfilesystemencoding()
            print_error(f"argument {number}: found {_quoted(word)}, which is not {encoding} text; rename the file")
        else:
            continue
        raise SystemExit(2)


def _quoted(word: str) -> str:
    return _errors.shortened(repr(word), 200)


@contextmanager
def clean_output() -> Iterator[None]:
    """Context of a command: output never fails for its encoding, and warnings and errors of threads are messages."""
    before = threading.excepthook, sys.unraisablehook, os.environ.get(_errors.DEBUG)
    threading.excepthook, sys.unraisablehook = _show_thread, _show_unraisable
    if getattr(sys.stdout, "errors", None) == "strict" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", LeftoverWarning)
            warnings.showwarning = _show_warning
            yield
    finally:
        threading.excepthook, sys.unraisablehook, debug = before
        os.environ.pop(_errors.DEBUG, None)
        if debug is not None:
            os.environ[_errors.DEBUG] = debug


def _show_thread(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread is not None else "unknown"
    if arguments.exc_value is not None:
        _show_error(arguments.exc_value, f"in the thread {name}")


def _show_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_value is not None:
        _show_error(unraisable.exc_value, f"while {unraisable.object!r:.200} was finished")


def _show_error(error: BaseException, where: str) -> None:
    if _errors.is_debugging():
        sys.stderr.write(_errors.traceback_text(error))
    print_error(f"{where}: {_errors.one_line(error)}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of rankfall or of a user's own code. Those of libraries are for developers."""
    if issubclass(category, LeftoverWarning):
        print_message(f"note: {message}")
    elif _errors.is_debugging():
        print_message(f"{filename}:{lineno}: {category.__name__}: {message}")
    elif not _errors.is_library(filename):
        print_message(f"warning: {message}")
