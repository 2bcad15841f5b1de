"""Batching of calls over the threads of a service."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

pytest.importorskip("starlette")

from rankfall.serving.bundle import Answers, Ranking
from rankfall.serving.request_encoder import EncodedRequests
from rankfall.serving.service import settings
from rankfall.serving.service.batching import Batcher, PendingCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.serving.service.bundle_slots import ServedBundle

WAIT = 20.0  # seconds until a test fails


class Doubling:
    """A bundle whose only item for a number is its double."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self._before = before
        self.sizes: list[int] = []

    def run(self, batch: EncodedRequests, *, explain: bool, sampled: None) -> Answers:
        self.sizes.append(len(batch))
        self._before()
        return Answers([Ranking([2 * number], [0.0], []) for number in batch.arrays["number"].tolist()], {"only": 0.0})


def numbers(*given: int) -> EncodedRequests:
    nothing = [np.empty(0, np.int64)] * len(given)
    return EncodedRequests.with_candidates({"number": np.array(given)}, nothing, 1).without_candidates()


def ask(bundle: Doubling, *given: int) -> PendingCall:
    served = cast("ServedBundle", SimpleNamespace(model="m", bundle=bundle))
    return PendingCall(served=served, batch=numbers(*given), deadline=monotonic() + WAIT)


def answers(bundle: Doubling, calls: list[tuple[int, ...]], *, threads: int, batch: int = 32) -> list[list[Any]]:
    """Return the answers to simultaneous calls."""

    async def main() -> list[list[Any]]:
        batcher = Batcher(threads=threads, batch=batch, queue=10_000, on_batch=lambda *of: None)
        batcher.start()
        try:
            found = await asyncio.gather(*(batcher.compute(ask(bundle, *call)) for call in calls))
        finally:
            batcher.stop()
        assert not any(thread.name.startswith("rankfall-batches") for thread in threading.enumerate())
        return [[ranking.ids[0] for ranking in one.content] for one in found]

    return asyncio.run(main())


def test_batches_are_computed_at_the_same_time() -> None:
    """Each of three batches waits until the other two have begun."""
    barrier = threading.Barrier(3)
    bundle = Doubling(lambda: barrier.wait(WAIT))
    assert answers(bundle, [(1,), (2,), (3,)], threads=3) == [[2], [4], [6]]
    assert bundle.sizes == [1, 1, 1]


@pytest.mark.parametrize(("threads", "largest"), [(1, 8), (2, 4), (3, 3), (8, 1)])
def test_threads_share_simultaneous_calls(threads: int, largest: int) -> None:
    bundle = Doubling()
    assert answers(bundle, [(number,) for number in range(8)], threads=threads) == [[2 * n] for n in range(8)]
    assert max(bundle.sizes) <= largest


def test_threads_neither_lose_nor_swap_answers() -> None:
    dice = random.Random(0)
    calls = [tuple(dice.randrange(1000) for _ in range(dice.randint(1, 5))) for _ in range(400)]
    pause = threading.Event()
    bundle = Doubling(lambda: pause.wait(dice.random() / 500))
    assert answers(bundle, calls, threads=4, batch=7) == [[2 * number for number in call] for call in calls]
    assert max(bundle.sizes) <= 7
    assert sum(bundle.sizes) == sum(map(len, calls))


def test_default_threads_respect_cores_and_container_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(settings, "_container_cores", partial(settings._container_cores, quota))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    found = {}
    for text in ("", "max 100000", "150000 100000", "800000 100000"):
        quota.write_text(text)
        found[text] = [settings.default_threads(workers) for workers in (1, 2, 8, 99)]
    assert found[""] == found["max 100000"] == [4, 4, 2, 1]  # of 16 cores
    assert found["150000 100000"] == [1, 1, 1, 1]
    assert found["800000 100000"] == [4, 4, 1, 1]


def test_estimated_wait_is_divided_by_the_number_of_threads() -> None:
    """A call is refused if the queue takes longer than its deadline; four threads need a quarter of the time."""

    async def refused(threads: int) -> bool:
        batcher = Batcher(threads=threads, batch=1, queue=1000, on_batch=lambda *of: None)
        batcher._waiting, batcher._batch_seconds = 20, 0.1  # two seconds for one thread
        try:
            batcher.check_queue(1.0)
        except Exception as error:
            return "longer than the deadline" in str(error)
        return False

    assert asyncio.run(refused(1))
    assert not asyncio.run(refused(4))
