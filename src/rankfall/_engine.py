"""Engines: execution of work on many parts, in this process or with Ray on one or more machines.

Work that can be split into parts is written as a function of one part, and an engine maps it over the parts. Results
are returned in the order of the parts and a few at a time, so neither the output nor the memory depends on the engine.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    Report = Callable[[int], None]  # called with the amount of work that has been completed since the last call

Name = Literal["local", "ray"]
Part = TypeVar("Part")
Result = TypeVar("Result")


class Engine(Protocol):
    """Protocol of an engine, which maps functions over parts."""

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """Yield the result of `work` for each part, in the order of the parts.

        `work` may run in any process, may run again if a process dies, and may run for later parts before the results
        of earlier ones are taken. If it raises an error, the error of the first failed part is raised here. Close the
        generator to stop early; remaining parts are then cancelled.

        Args:
            work: Function of a part and of a callback ``report(count)`` for progress.
            parts: The parts.
            on_done: Called with the counts that `work` reports.
        """
        ...


class Local:
    """Engine that processes one part after the other, in this process."""

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """Yield the result of `work` for each part; a part is processed when the previous result has been taken."""
        for part in parts:
            yield work(part, on_done)


LOCAL = Local()


@contextmanager
def open_engine(name: Name) -> Generator[Engine]:
    """Open an engine by its name. Ray is started if necessary, and stopped at the end if it was started here."""
    if name == "local":
        yield LOCAL
        return
    from rankfall._ray import open_ray

    with open_ray() as engine:
        yield engine
