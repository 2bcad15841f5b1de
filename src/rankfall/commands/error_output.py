"""Errors and warnings of a command as messages on standard error, without tracebacks."""

from __future__ import annotations

import os
import select
import sys
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO

from rankfall._errors import (
    DEBUG,
    bug_report,
    is_debugging,
    is_expected,
    is_library,
    is_out_of_memory,
    one_line,
    shortened,
    traceback_text,
)
from rankfall.commands.terminal import print_error, print_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
    if is_debugging():
        sys.stderr.write(traceback_text(error))
    print_error(one_line(error) if is_expected(error) or is_out_of_memory(error) else bug_report(error, command))
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
    return shortened(repr(word), 200)


@contextmanager
def clean_output() -> Iterator[None]:
    """Context of a command: output never fails for its encoding, and warnings and errors of threads are messages."""
    before = threading.excepthook, sys.unraisablehook, warnings.showwarning, os.environ.get(DEBUG)
    threading.excepthook, sys.unraisablehook, warnings.showwarning = _show_thread, _show_unraisable, _show_warning
    if getattr(sys.stdout, "errors", None) == "strict" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook, warnings.showwarning, debug = before
        os.environ.pop(DEBUG, None)
        if debug is not None:
            os.environ[DEBUG] = debug


def _show_thread(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread is not None else "unknown"
    if arguments.exc_value is not None:
        _show_error(arguments.exc_value, f"in the thread {name}")


def _show_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_value is not None:
        _show_error(unraisable.exc_value, f"while {unraisable.object!r:.200} was finished")


def _show_error(error: BaseException, where: str) -> None:
    if is_debugging():
        sys.stderr.write(traceback_text(error))
    print_error(f"{where}: {one_line(error)}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of rankfall or of a user's own code. Those of libraries are for developers."""
    if is_debugging():
        print_message(f"{filename}:{lineno}: {category.__name__}: {message}")
    elif not is_library(filename):
        print_message(f"warning: {message}")
