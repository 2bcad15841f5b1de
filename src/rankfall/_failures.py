"""What a user is told about an error: a mistake that the message explains, memory that ran out, or a bug in rankfall.

Messages for users are raised by rankfall as :class:`ValueError` or :class:`OSError`. The same types come from
libraries, with messages that only help readers of the code. So an error is expected only if a ``raise``
statement of rankfall, or of code of the user, raised it, or if the operating system reported it. Everything else is a
bug, also a :class:`ValueError` of NumPy that no check of rankfall has prevented.
"""

from __future__ import annotations

import dis
import os
import platform
import shlex
import sys
import sysconfig
import traceback
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

DEBUG = "RANKFALL_DEBUG"
"""Environment variable: any value but an empty one and 0 shows tracebacks."""

WHERE_TO_REPORT = "the project's issue tracker"
LONGEST = 4000  # characters of a message
_RAISE = dis.opmap["RAISE_VARARGS"]
_PACKAGE, _DIRECTORY = __name__.partition(".")[0], os.path.dirname(__file__)
_LIBRARIES = ("<frozen ", *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # in RuntimeErrors of torch


class BugError(RuntimeError):
    """An unexpected error of another process. `details` is its traceback there."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def is_debugging() -> bool:
    """Return whether tracebacks are shown."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def is_expected(error: BaseException) -> bool:
    """Return whether the message of an error was written for users.

    >>> try:
    ...     int("ten")
    ... except ValueError as error:
    ...     is_expected(error)
    False
    >>> is_expected(FileNotFoundError(2, "No such file or directory", "log"))
    True
    """
    if isinstance(error, OSError) and error.errno is not None:
        return True  # the operating system says what is wrong, for example with a file
    if not isinstance(error, ValueError | OSError):
        return False
    last = _last(error.__traceback__)
    if last is None:
        return True  # raised in another process, whose message this is
    code = last.tb_frame.f_code.co_code
    is_raise = 0 <= last.tb_lasti < len(code) and code[last.tb_lasti] == _RAISE
    return is_raise and not is_library(last.tb_frame.f_code.co_filename)


def is_panic(error: BaseException) -> bool:
    """Return whether code in Rust, such as that of polars, panicked; such errors are no :class:`Exception`."""
    return type(error).__module__ == "pyo3_runtime"


def is_library(file: str) -> bool:
    """Return whether a source file is part of Python or of an installed package other than rankfall."""
    return file.startswith(_LIBRARIES) and not file.startswith(_DIRECTORY)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, in Python, NumPy, Arrow or torch."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def one_line(error: BaseException) -> str:
    """Return what to tell about an error in one line, such as that of one run of many."""
    if is_expected(error):
        return shortened(str(error))
    if is_out_of_memory(error):
        return shortened(f"memory ran out: {located(error)}; smaller batches or models and fewer jobs need less")
    return f"{located(error)}; this is a bug in rankfall, {DEBUG}=1 shows the traceback"


def bug_report(error: BaseException, command: Sequence[str]) -> str:
    """Return the message about a bug: what happened, all versions, the command, and where to report it.

    Args:
        error: The unexpected error.
        command: Arguments of the command line.
    """
    words = shortened(shlex.join(["rankfall", *command]))
    return (
        f"this is a bug in rankfall: {located(error)}\n"
        f"versions: rankfall {_version('rankfall')}, Python {platform.python_version()}, torch {_version('torch')}, "
        f"{platform.platform()}\n"
        f"command: {words}\n"
        f"Please report these lines to {WHERE_TO_REPORT}, with the traceback that --debug or {DEBUG}=1 shows."
    )


def located(error: BaseException) -> str:
    """Return type and message of an unexpected error, and the innermost line of rankfall that it passed through."""
    if isinstance(error, BugError):
        return str(error)  # which has them already
    said = " ".join(str(error).split())
    return shortened(f"{type(error).__name__}: {said}" if said else type(error).__name__) + _place(error)


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error, with that of the process in which it was raised."""
    own = "".join(traceback.format_exception(error))
    return f"{error.details}\n{own}" if isinstance(error, BugError) and error.details else own


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a text without its middle if it is too long for a message.

    >>> shortened("0123456789" * 5, 20)
    '01234 ... (40 characters) ... 56789'
    """
    if len(text) <= longest:
        return text
    kept = longest // 4
    return f"{text[:kept]} ... ({len(text) - 2 * kept} characters) ... {text[-kept:]}"


def _place(error: BaseException) -> str:
    """Return the innermost line of rankfall that an error passed through."""
    found = ""
    place = error.__traceback__
    while place is not None:
        if _is_ours(place):
            module = place.tb_frame.f_globals["__name__"]
            found = f" ({module}, line {place.tb_lineno})"
        place = place.tb_next
    return found


def _last(place: TracebackType | None) -> TracebackType | None:
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place


def _is_ours(place: TracebackType) -> bool:
    return str(place.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE


def _version(package: str) -> str:
    """Return the version of a package, without importing it: an import may be what failed."""
    module = sys.modules.get(package)
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
