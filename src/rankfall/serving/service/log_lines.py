"""Log lines of the service, in which nothing from outside can pretend to be another line or control a terminal."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

# Control characters (among them newlines and the beginning of terminal sequences), line and paragraph separators,
# characters that change the direction of text, and unpaired surrogates, which cannot be written as UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_INDENT = "    "  # of the lines of tracebacks


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
    return _UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + _escaped(line) for line in text.split("\n"))


def logging_settings() -> dict[str, Any]:
    """Return the settings of Python's logging: the service from INFO on, libraries from WARNING on, to stderr."""
    line = {"()": LineFormatter, "format": "%(asctime)s %(process)d %(levelname)s %(message)s"}
    handlers = {"handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": line},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            "rankfall.serving.service": {**handlers, "level": "INFO"},
            "uvicorn": {**handlers, "level": "WARNING"},
            "asyncio": {**handlers, "level": "WARNING"},
        },
    }
