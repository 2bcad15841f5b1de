"""Functions that fail in other processes, which import them from this module."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.data.sources.rows.row_files import RowFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

    from rankfall.data.impressions.loader import Impressions
    from rankfall.data.sources.rows.row_files import InvalidRow
    from rankfall.training.learner import Learner, Position, StepResult

    Report = Callable[[int], None]
    Task = dict[str, Any]


def die_once(mark: Path) -> None:
    """Kill this process unless the file `mark` exists."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class DyingFile(RowFile):
    """A file whose first reader is killed after the first batch."""

    mark: str = ""

    def batches(
        self, columns: Sequence[str], on_invalid: Callable[[InvalidRow], None] | None = None
    ) -> Iterator[pl.DataFrame]:
        for batch in super().batches(columns, on_invalid):
            yield batch
            die_once(Path(self.mark))


def squared(part: int, report: Report) -> tuple[int, int]:
    """Return the square of a number and the process id; 0 takes longest."""
    time.sleep(0.3 if part == 0 else 0)
    report(part)
    return part * part, os.getpid()


def squared_with_one_kill(mark: Path, part: int, report: Report) -> int:
    """Return the square of a number; the first process that receives 3 is killed."""
    if part == 3:
        die_once(mark)
    report(part)
    return part * part


def squared_unless(refused: list[int], part: int, report: Report) -> int:
    """Return the square of a number, or raise an error if it is refused."""
    time.sleep(0 if part == refused[0] else 0.1)
    if part in refused:
        raise ValueError(f"part: found {part}, expected another")
    return part * part


def broken(part: int, report: Report) -> int:
    """Raise an error that is a bug."""
    return [1, 2][part + 2]


def dead(part: int, report: Report) -> None:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def halved(task: int) -> int:
    """Return half of an even number."""
    if task % 2:
        raise ValueError(f"task: found {task}, expected an even number")
    return task // 2


# --- processes of a training run by Ray -----------------------------------------------------------------------------


def until_the_second_raises(notes: Path, error: Exception) -> Callable[[Task], None]:
    """Return slow training in which the second process raises an error in the third epoch.

    Events are written to the file `notes`.
    """

    def work(task: Task) -> None:
        from rankfall.training.distributed import ray_backend
        from rankfall.training.distributed.group import LostError
        from rankfall.training.train_cascade import CascadeLearner

        step = CascadeLearner.step

        def note(text: str) -> None:
            with notes.open("a") as file:
                file.write(f"{text}\n")

        def slow(self: Learner[Impressions], batch: Impressions, position: Position) -> StepResult:
            time.sleep(0.2)
            if position.epoch == 3 and os.environ["RANK"] == "1":
                note("raised")
                raise error
            return step(self, batch, position)

        CascadeLearner.step = slow  # type: ignore[method-assign]
        try:
            ray_backend._work(task)
        except LostError as lost:
            if "did not answer" in str(lost):
                note("waited in vain")
            raise

    return work
