"""Errors, warnings and interruptions: what a user is told, which arguments have wrong types, when work stops.

An error is a mistake that the message explains, memory that ran out, or a bug in rankfall.

Messages for users are raised as :class:`RankfallError`, or by the operating system as :class:`OSError`. Everything
else is a bug, also a :class:`ValueError` of NumPy that no check of rankfall has prevented, unless a user's own code
raised it.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import platform
import shlex
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType


DEBUG = "RANKFALL_DEBUG"
"""Environment variable: any value but an empty one and 0 shows tracebacks."""

WHERE_TO_REPORT = "the project's issue tracker"
LONGEST = 4000  # characters of a message
_PACKAGE, _DIRECTORY = __name__.partition(".")[0], os.path.dirname(__file__)
_LIBRARIES = ("<frozen ", *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # in RuntimeErrors of torch


class BugError(RuntimeError):
    """An unexpected error of another process. `details` is its traceback there."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class RankfallError(ValueError):
    """A mistake in what rankfall was given, which the message explains. All others of its errors derive from it.

    Args:
        text: What was found and what is expected. Names of arguments are in backticks if there is a `path`; commands
            replace these names with their own.
        path: The wrong argument or key; the message begins with it.
    """

    def __init__(self, text: str = "", path: str = "") -> None:
        super().__init__(f"{path}: {text.replace('`', '')}" if path else text)
        self.text, self.path = text, path


RankfallError.__module__ = _PACKAGE  # where programs find it


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
    if isinstance(error, RankfallError | OSError):
        return True
    return isinstance(error, ValueError) and _is_of_user(error)


def is_panic(error: BaseException) -> bool:
    """Return whether code in Rust, such as that of polars, panicked; such errors are no :class:`Exception`."""
    return type(error).__module__ == "pyo3_runtime"


def is_library(file: str) -> bool:
    """Return whether a source file is part of Python or of an installed package other than rankfall."""
    return (file.startswith(_LIBRARIES) or "site-packages" in file) and not file.startswith(_DIRECTORY)


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


def _is_of_user(error: BaseException) -> bool:
    """Return whether an error was raised in code of a user, such as a loss of their own."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or _is_ours(place):
        return False
    file = place.tb_frame.f_code.co_filename
    return os.path.isfile(file) and not is_library(file)  # compiled modules name files that do not exist


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


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_number(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")  # also of NumPy


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_overrides(value: Any) -> bool:
    return isinstance(value, str | Mapping) or (_is_sequence(value) and all(isinstance(one, str) for one in value))


_INTEGER, _NUMBER = (_is_number(numbers.Integral), "an integer"), (_is_number(numbers.Real), "a number")
_STRING = (lambda value: isinstance(value, str), "a string")
# Parts of annotations, by their beginning: what is allowed, and its name in messages. An annotation with another part
# is not checked. Functions that need one of several words, or cannot use one string of overrides, say so themselves.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "bool": (_is_flag, "True or False"),
    **dict.fromkeys(("int", "Count", "NotNegativeCount", "Seed"), _INTEGER),
    **dict.fromkeys(("float", "Fraction", "Seconds"), _NUMBER),
    **dict.fromkeys(("str", "Preset", "EngineName", "Layout", "Metric", "Source", "Labels"), _STRING),
    "Literal": (lambda value: isinstance(value, str | int), "one of the allowed values"),
    "PathLike": (_is_path, "a path"),
    "RunLike": (lambda value: _is_path(value) or hasattr(value, "directory"), "the path of a directory, or a result"),
    "ConfigLike": (lambda value: True, "a configuration"),  # which its reader checks
    "Sources": (lambda value: _is_path(value) or _is_sequence(value) or isinstance(value, Mapping), "paths"),
    "Overrides": (_is_overrides, "a list of strings or a dictionary"),
    "ProgressLike": (lambda value: _is_flag(value) or callable(value), "True, False or a function"),
    **dict.fromkeys(("OnNotice", "Callable"), (callable, "a function")),
    "Mapping": (lambda value: isinstance(value, Mapping), "a dictionary"),
    "Sequence": (_is_sequence, "a list"),
    "tuple": (lambda value: isinstance(value, tuple), "a tuple"),
    "Iterable": (lambda value: hasattr(value, "__iter__") and not isinstance(value, bytes), "a list"),
    "Path": (lambda value: isinstance(value, Path), "a pathlib.Path"),
    "ImpressionLog": (lambda value: type(value).__name__ == "ImpressionLog", "an ImpressionLog"),
    "Recipe": (lambda value: type(value).__name__ == "Recipe", "a Recipe"),
    "NDArray": (lambda value: getattr(value, "ndim", 0) == 2, "an array of two dimensions"),
}
_PATHS = ("PathLike", "RunLike", "ConfigLike", "Sources", "Path")


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function check the types of its arguments by its annotations.

    >>> @checked
    ... def halve(number: "int | None", *paths: "PathLike") -> None: ...
    >>> halve("one")
    Traceback (most recent call last):
    TypeError: number: found 'one', expected an integer or None
    >>> halve(2, "a", chr(0))
    Traceback (most recent call last):
    rankfall.RankfallError: paths: found '\\x00', not a path: it has a NUL character
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            parameter = signature.parameters[name]
            for one in value if parameter.kind is parameter.VAR_POSITIONAL else [value]:
                _check(name, one, str(parameter.annotation))
        return function(*args, **kwargs)

    return call


def _check(name: str, value: Any, annotation: str) -> None:
    parts = [part.partition("[")[0] for part in _alternatives(annotation.strip("'"))]
    if not all(part in _KINDS for part in parts):
        return
    of_strings = not isinstance(value, Collection) or all(isinstance(one, str) for one in value)
    if not any(_KINDS[part][0](value) for part in parts) or (annotation.endswith("[str]") and not of_strings):
        allowed = " or ".join(dict.fromkeys(_KINDS[part][1] for part in parts))
        raise TypeError(f"{name}: found {shortened(repr(value), 200)}, expected {allowed}")
    if isinstance(value, str) and "\0" in value and any(part in _PATHS for part in parts):
        raise RankfallError(f"{name}: found {shortened(repr(value), 200)}, not a path: it has a NUL character")


def _alternatives(annotation: str) -> list[str]:
    """Return the parts of a union, without splitting what is in brackets.

    >>> _alternatives("Mapping[str, str | float] | None")
    ['Mapping[str, str|float]', 'None']
    """
    parts, depth = [""], 0
    for letter in annotation.replace(" | ", "|"):
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


LONGEST_WORD, MOST = (
    100,
    2_000,
)  # letters of a word, and words that are compared: the comparison is quadratic in letters


def did_you_mean(found: object, allowed: Iterable[str]) -> str:
    """Return a hint with the allowed word that is closest to `found`, or an empty string if none is close.

    >>> did_you_mean("epoch", ["epochs", "batch"])
    ", did you mean 'epochs'"
    """
    if not isinstance(found, str) or len(found) > LONGEST_WORD:
        return ""
    close = get_close_matches(found, list(islice(allowed, MOST)), n=1)
    return f", did you mean {close[0]!r}" if close else ""


class RankfallWarning(UserWarning):
    """A notice about data, a run or a result. The work goes on."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stoppable(
    on_signal: Callable[[], object], *, patient: bool = False, signals: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[Callable[[], int]]:
    """Defer signals, so that the work inside can stop at a suitable point.

    Args:
        on_signal: Called at the first signal.
        patient: Ignore further signals; otherwise the second one raises KeyboardInterrupt.
        signals: The signals, by default SIGINT and SIGTERM.

    Yields:
        A function that returns the number of the received signal, or 0.
    """
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        if received and patient:
            return
        if received:
            raise KeyboardInterrupt
        received.append(number)
        on_signal()

    previous = {number: signal.signal(number, handle) for number in signals}
    try:
        yield lambda: received[0] if received else 0
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def stop_at_ctrl_c(stop: Callable[[], object] | None) -> Iterator[Callable[[], int]]:
    """Yield a function that says whether to stop: the caller's, or one that returns true after Ctrl-C.

    Only the main thread receives Ctrl-C. A program that handles SIGINT itself keeps its handler.
    """
    in_charge = threading.current_thread() is threading.main_thread()
    if stop is not None:
        asked = stop
        yield lambda: int(bool(asked()))
    elif in_charge and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with stoppable(lambda: None, signals=[signal.SIGINT]) as received:
            yield received
    else:
        yield lambda: 0
