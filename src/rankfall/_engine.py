"""Where work on many parts is done: in this process, or by Ray on one machine or many.

Whatever can be cut into parts is written once, as a function of a part, and an engine maps it over the parts. Results
come in the order of the parts and a few at a time, so neither what is written nor the memory depends on the engine.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    Report = Callable[[int], None]  # hears how much more is done

Name = Literal["local", "ray"]
Part = TypeVar("Part")
Result = TypeVar("Result")


class Engine(Protocol):
    """Maps functions over parts."""

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """What `work` returns for each of the parts, in their order. What it reports comes to `on_done`.

        `work` may be called in any process, again if that dies, and for later parts before the results of earlier ones
        are taken. An error of it is raised here, that of the first part that has one. Close the generator to
        leave early: then nobody works on parts any more.
        """
        ...


class Local:
    """One part after the other, in this process."""

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """What `work` returns for each of the parts; a part is taken when the result of the one before was."""
        for part in parts:
            yield work(part, on_done)


LOCAL = Local()


@contextmanager
def open_engine(name: Name) -> Generator[Engine]:
    """An engine by its name. Ray is started if need be, and what was started here ends here."""
    if name == "local":
        yield LOCAL
        return
    from rankfall._ray import open_ray

    with open_ray() as engine:
        yield engine
