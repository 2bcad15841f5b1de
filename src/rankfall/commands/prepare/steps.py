"""Progress bars of work in several steps."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankfall.commands.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID


@contextmanager
def steps() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a function that shows the progress of a step: its name, the amount done, and the total if it is known."""
    tasks: dict[str, TaskID] = {}
    with progress() as bar:

        def on_progress(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done)

        yield on_progress
