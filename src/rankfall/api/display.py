"""Progress and notices of the Python API: what callers receive, and how it is shown by default."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from rankfall._errors import RankfallWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    ProgressLike: TypeAlias = "bool | Callable[[Progress], object]"
    OnNotice: TypeAlias = Callable[[str], None]

_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far some work is.

    Attributes:
        step: What is being done.
        done: Finished units of the step.
        total: All units of the step, None if the number is not known.
        status: Figures of the work so far, such as the loss and the last validation.
    """

    step: str
    done: float = 0.0
    total: float | None = None
    status: str = ""


class Display:
    """Shows :class:`Progress` on standard error while its block runs, with notes above it.

    Args:
        shown: Whether progress is shown; notes always are.
    """

    def __init__(self, *, shown: bool = True) -> None:
        from rankfall._progress import progress

        self._bar = progress()
        self._shown = shown
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Show how far the work is."""
        if not self._shown:
            return
        if self._task is None:
            self._task = self._bar.add_task(progress.step, total=progress.total, status=progress.status)
        self._bar.update(
            self._task,
            description=progress.step,
            completed=progress.done,
            total=progress.total,
            status=progress.status,
        )

    def note(self, text: str) -> None:
        """Print a note above the progress, where it remains."""
        self._bar.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def reported(progress: ProgressLike) -> Iterator[Callable[[Progress], object]]:
    """Yield a function that passes :class:`Progress` on as the caller of the API asks.

    Args:
        progress: True shows it on standard error, False shows nothing, a function receives it.
    """
    if progress is True:
        with Display() as display:
            yield display.show
    else:
        yield progress or _ignore


def warn(text: str) -> None:
    """Issue a :class:`RankfallWarning` at the line of the caller's code that called the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RankfallWarning, stacklevel=level)


def issue(texts: Iterable[str], on_notice: OnNotice) -> None:
    """Issue the warnings of a result, unless the caller receives notices itself and reads them from the result."""
    if on_notice is warn:
        for text in texts:
            warn(text)


def stepper(report: Callable[[Progress], object]) -> Callable[[str, float, float | None], None]:
    """Return a function that receives a step, the amount done and the total, and reports them."""

    def show(step: str, done: float, total: float | None) -> None:
        report(Progress(step, done, total))

    return show


def counter(report: Callable[[Progress], object], step: str) -> Callable[[int, int], None]:
    """Return a function that receives the number of units since the last call and of all, and reports their sum."""
    done = 0

    def add(count: int, total: int) -> None:
        nonlocal done
        done += count
        report(Progress(step, done, total))

    return add


def _ignore(progress: Progress) -> None:
    pass
