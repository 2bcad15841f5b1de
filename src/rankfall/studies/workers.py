"""Run tasks in parallel processes; a task that fails, or whose process dies, does not affect the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rankfall._engine import LOCAL, WORKER, Ray
from rankfall._errors import is_debugging, one_line, traceback_text
from rankfall.storage.manifests import carried

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from multiprocessing.context import SpawnProcess

    from rankfall._engine import Engine, Report

Task = TypeVar("Task")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Failure:
    """Error message of a task that failed."""

    message: str


def run_tasks(
    work: Callable[[Task], Value],
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    engine: Engine = LOCAL,
    passed_on: tuple[type[Exception], ...] = (),
) -> Iterator[tuple[Task, Value | Failure]]:
    """Yield each task with the value that `work` returns for it, or with its failure, in the order of completion.

    Args:
        work: function of a task. With several jobs it is a function of a module, and tasks and values can be pickled.
        tasks: the tasks.
        jobs: tasks at the same time; by default one, in this process, or with Ray one per processor. Several jobs run
            in child processes, which end with this process even if it is killed. A task whose process dies has
            failed; Ray tries it again first.
        engine: runs the tasks.
        passed_on: exceptions that end all tasks of this process instead of failing one.
    """
    if isinstance(engine, Ray):
        work = carried(work)
        return _by_ray(engine, work, tasks, jobs)
    if jobs in (None, 1):
        return ((task, _attempt(work, task, passed_on)) for task in tasks)
    return _in_processes(carried(work), tasks, jobs)


def _by_ray(
    ray: Ray, work: Callable[[Task], Value], tasks: Sequence[Task], jobs: int | None
) -> Generator[tuple[Task, Value | Failure]]:
    for task, outcome in ray.each(partial(_attempt_task, work), tasks, at_once=jobs):
        yield task, Failure(str(outcome)) if isinstance(outcome, Exception) else outcome


def _attempt_task(work: Callable[[Task], Value], task: Task, report: Report) -> Value | Failure:
    return _attempt(work, task)


def _attempt(work: Callable[[Task], Value], task: Task, passed_on: tuple[type[Exception], ...] = ()) -> Value | Failure:
    try:
        return work(task)
    except passed_on:
        raise
    except Exception as error:
        if is_debugging():
            sys.stderr.write(traceback_text(error))
        return Failure(one_line(error))


def _in_processes(
    work: Callable[[Task], Value], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Value | Failure]]:
    waiting, numbers = deque(tasks), count()
    busy: dict[Connection, tuple[SpawnProcess, Task]] = {}
    try:
        for _ in range(min(jobs, len(waiting))):
            connection, process = _start(work, next(numbers))
            _give(connection, process, waiting, busy)
        while busy:
            for connection in cast("list[Connection]", wait(list(busy))):
                process, task = busy.pop(connection)
                outcome: Value | Failure
                try:
                    outcome = connection.recv()
                except (EOFError, OSError):
                    process.join()
                    outcome = Failure(f"its process ended with exit code {process.exitcode}")
                    if waiting:
                        connection, process = _start(work, next(numbers))
                _give(connection, process, waiting, busy)
                yield task, outcome
    finally:
        for process, _ in busy.values():
            process.terminate()
            process.join()


def _start(work: Callable[[Task], Any], number: int) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work, number), daemon=True)
    process.start()
    theirs.close()  # so that ours reports the end of the process
    return ours, process


def _give(
    connection: Connection,
    process: SpawnProcess,
    waiting: deque[Task],
    busy: dict[Connection, tuple[SpawnProcess, Task]],
) -> None:
    """Send the next task, or close the connection if there is none, which ends the process."""
    if not waiting:
        connection.close()
        return
    busy[connection] = (process, waiting.popleft())
    with suppress(BrokenPipeError, ConnectionResetError):  # the process has died, which its connection reports next
        connection.send(busy[connection][1])


def _serve(connection: Connection, work: Callable[[Any], Any], number: int) -> None:
    os.environ[WORKER] = str(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too, and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(work, task))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
