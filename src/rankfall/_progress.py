"""Progress of long work on standard error: bars on a terminal, one line per minute elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType
    from rich.progress import Task, TaskID

FIRST_LINE = 5.0  # seconds until the first line, so that short work prints none
NEXT_LINE = 60.0  # seconds between lines


class _Progress(Progress):
    """Progress bars with the wrapped text of each task's field `status` below them, or lines if there is no terminal.

    Lines are printed while tasks are updated, so that work in this process needs no second thread.
    """

    def __init__(self, *columns: Any, **settings: Any) -> None:
        super().__init__(*columns, **settings)
        self._began = self.get_time()
        self._last_line: float | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields.get("status"):
                yield Text(task.fields["status"], style="dim")

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._print_line(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._print_line(task_id)

    def _print_line(self, task_id: TaskID) -> None:
        if not self.disable:
            return
        now = self.get_time()
        if now < (self._began + FIRST_LINE if self._last_line is None else self._last_line + NEXT_LINE):
            return
        task = next(task for task in self.tasks if task.id == task_id)
        if not task.finished:  # what is finished prints its own result
            self._last_line = now
            self.console.print(progress_line(task, now - self._began), markup=False, highlight=False, soft_wrap=True)


def progress_line(task: Task, seconds: float) -> str:
    """Return the state of a task as text, with the time since the work began and an estimate of what remains."""
    done = f"{task.completed:,.0f}"
    if task.total:
        done += f" of {task.total:,.0f} ({task.completed / task.total:.0%})"
    times = f"{_duration(seconds)} so far"
    if task.time_remaining:
        times += f", about {_duration(task.time_remaining)} left"
    return f"{task.description}: {done}, {times}"


def _duration(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> _duration(12.3), _duration(250), _duration(9000)
    ('12 s', '4 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def progress(*, console: Console | None = None, clock: Callable[[], float] | None = None) -> Progress:
    """Return the progress of work on standard error.

    On a terminal it is drawn as bars. Elsewhere, such as in a log file of a job, it is printed as lines: the first
    after some seconds, then at most one per minute.

    Args:
        console: Where it is printed; by default standard error.
        clock: Returns the time in seconds; by default a monotonic clock.
    """
    console = console or Console(stderr=True, emoji=False)
    return _Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),  # leaves room for the description in a terminal of 80 columns
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        get_time=clock,
        disable=not console.is_terminal,
        transient=True,
    )
