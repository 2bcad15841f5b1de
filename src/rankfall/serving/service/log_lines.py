"""Log lines of the service.

Nothing from outside can pretend to be another line, control a terminal, or fill a disk: every malformed request causes
a warning, so that warnings of one kind are counted after the first ones of a minute.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

# Control characters (among them newlines and the beginning of terminal sequences), line and paragraph separators,
# characters that change the direction of text, and unpaired surrogates, which cannot be written as UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_INDENT = "    "  # of the lines of tracebacks
_MOST_CHARACTERS = 2000  # of a line
MOST_LINES, SECONDS = 10, 60.0  # warnings per kind and period and process


class LineFormatter(logging.Formatter):
    """Writes a record as one line with control characters escaped; tracebacks follow as indented lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (a method of logging)
        """Return the line of a record."""
        return _escaped(super().formatMessage(record).rstrip("\n"))

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """Return the lines of a traceback, whose message may be text of a client."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """Return the lines of a stack."""
        return _indented(super().formatStack(stack_info))


def _escaped(text: str) -> str:
    left_out = len(text) - _MOST_CHARACTERS
    if left_out > 0:
        text = f"{text[:_MOST_CHARACTERS]}... ({left_out:,} more characters)"
    return _UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + _escaped(line) for line in text.split("\n"))


@dataclass
class _Period:
    """Warnings of one kind since the first one of a period."""

    first: logging.LogRecord
    count: int = 0

    def summary(self) -> logging.LogRecord | None:
        """Return a record with the number of warnings that were not written, if there are some."""
        if self.count <= MOST_LINES:
            return None
        of = self.first
        arguments = (self.count - MOST_LINES, SECONDS, of.msg)
        message = "%d more warnings of this kind within %d seconds: %s"
        return logging.LogRecord(of.name, of.levelno, of.pathname, of.lineno, message, arguments, None)


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # no generic class at run time
    """Writes at most `MOST_LINES` warnings or errors per `SECONDS` and place in the code, then their number."""

    def __init__(self) -> None:
        super().__init__()
        self._periods: dict[tuple[str, int], _Period] = {}  # by the place in the code that warns

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless it is one of too many, after the numbers of earlier ones."""
        self._write_summaries(before=record.created - SECONDS)
        if record.levelno >= logging.WARNING:
            period = self._periods.setdefault((record.pathname, record.lineno), _Period(record))
            period.count += 1
            if period.count > MOST_LINES:
                return
        super().emit(record)

    def close(self) -> None:
        """Write the numbers that were not written yet."""
        if not self.stream.closed:
            self._write_summaries()
        super().close()

    def _write_summaries(self, before: float = float("inf")) -> None:
        for place in [place for place, period in self._periods.items() if period.first.created <= before]:
            summary = self._periods.pop(place).summary()
            if summary is not None:
                super().emit(summary)


def logging_settings() -> dict[str, Any]:
    """Return the settings of Python's logging: the service from INFO on, libraries from WARNING on, to stderr."""
    line = {"()": LineFormatter, "format": "%(asctime)s %(process)d %(levelname)s %(message)s"}
    handlers = {"handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": line},
        "handlers": {"stderr": {"()": LimitedHandler, "formatter": "line"}},
        "loggers": {
            "rankfall.serving.service": {**handlers, "level": "INFO"},
            "uvicorn": {**handlers, "level": "WARNING"},
            "asyncio": {**handlers, "level": "WARNING"},
        },
    }
