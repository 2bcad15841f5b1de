"""Training runs or streams that are killed repeatedly, as the task of a fork (``forks.py``).

Each attempt resumes the run of the previous one; after a finished run the next one starts. ``whole`` in the directory
is a run without kills. A line of output per kill names its moment.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.studies.stream.run_stream import stream_methods
from rankfall.studies.stream.stream_config import load_stream
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import load_config
from rankfall.training.methods import train

if TYPE_CHECKING:
    from collections.abc import Callable

    Arrange = Callable[[], None]
    Work = Callable[[Path], object]  # in a directory, resuming what it contains

ANY = "any moment"
INSIDE = ("half written", "before the rename", "after the rename", "before the older one goes")
ATTEMPTS = 200


def main(arguments: list[str]) -> None:
    """Work once without a kill, then with KILLS kills: CONFIG DIRECTORY KILLS."""
    config_path, directory, kills = arguments
    work = work_of(Path(config_path))
    rng, place = random.Random(0), Path(directory)
    start = time.perf_counter()
    assert not attempt(work, place / "whole")
    duration = time.perf_counter() - start
    moments = [(ANY, *INSIDE)[number % 5] if number < 10 else ANY for number in range(int(kills))]
    rng.shuffle(moments)
    run = 0
    for _ in range(ATTEMPTS):
        if not moments:
            break
        moment, out = moments[0], place / f"run{run}"
        seconds = rng.uniform(0, duration) if moment == ANY else None
        if attempt(work, out, inside(moment, rng.randint(1, 6)), seconds):
            sys.stdout.write(f"{moment}\n")
            moments.pop(0)
        else:
            run += 1
    assert not moments, f"in {ATTEMPTS} attempts these kills came too late: {moments}"
    assert not attempt(work, place / f"run{run}")


def work_of(path: Path) -> Work:
    """Return a function that runs a configuration, which is a stream if it has methods."""
    if "methods" in path.read_text():
        stream = load_stream(path)
        return lambda out: stream_methods(stream, out, resume=True)
    config = load_config(path)
    assert isinstance(config, CascadeConfig)
    return lambda out: train(config, out, resume=True, on_notice=lambda text: None)


def attempt(work: Work, out: Path, arrange: Arrange = lambda: None, seconds: float | None = None) -> bool:
    """Work in a child process; return whether it was killed before its end."""
    child = os.fork()
    if not child:
        try:
            arrange()
            work(out)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # has no effect if it has ended
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def inside(moment: str, count: int) -> Arrange:
    """Return a function that makes a process kill itself in its `count`-th write of a checkpoint."""

    def arrange() -> None:
        left = count

        def now(kind: str, name: str) -> bool:
            nonlocal left
            left -= kind == moment and "step-" in name
            return left == 0 and kind == moment

        fsync, replace, unlink = os.fsync, os.replace, os.unlink

        def half(handle: int) -> None:
            if now("half written", os.readlink(f"/proc/self/fd/{handle}")):
                path = os.readlink(f"/proc/self/fd/{handle}")
                os.truncate(path, os.path.getsize(path) // 2)
                die()
            fsync(handle)

        def around(source: Any, target: Any, **options: Any) -> None:
            if now("before the rename", str(target)):
                die()
            replace(source, target, **options)
            if now("after the rename", str(target)):
                die()

        def late(path: Any, **options: Any) -> None:
            if not str(path).endswith(".tmp") and now("before the older one goes", str(path)):
                die()
            unlink(path, **options)

        os.fsync, os.replace, os.unlink = half, around, late  # type: ignore[assignment]

    return arrange


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
