"""The load client against a stub with known delays, and the check of answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from benchmarks import load_client as load
from benchmarks.answer_check import AnswerChecker, expected_answers, wrong_unexpected_items
from benchmarks.load_client import LOST, Job, drive, intervals, write_bodies
from rankfall.benchmarks.serve import requests_like_examples
from rankfall.serving import Bundle
from support.bundles import platform_bundle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    Reply = Callable[[int], Awaitable[tuple[int, dict[str, Any]] | None]]

pytestmark = pytest.mark.xdist_group("bench serve")  # tests share bundles and measurements
ANSWER = {"model": "m", "ids": [1], "scores": [0.5], "milliseconds": {"queue": 1.0, "ranking": 2.0}}


# --- the client -------------------------------------------------------------------------------------------


@contextmanager
def stub(reply: Reply) -> Iterator[int]:
    """Yield the port of a service that answers the n-th request with `reply(n)` and disconnects on None."""
    loop, asked = asyncio.new_event_loop(), iter(range(10**9))
    handlers: set[Any] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                json.loads(await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])))
                answer = await reply(next(asked))
                if answer is None:
                    break
                body = json.dumps(answer[1]).encode()
                writer.write(f"HTTP/1.1 {answer[0]} Any\r\nContent-Length: {len(body)}\r\n\r\n".encode())
                await asyncio.sleep(0)
                writer.write(body)  # in two parts
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = loop.run_until_complete(asyncio.start_server(serve_one, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def end() -> None:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def bodies(tmp_path: Path) -> str:
    write_bodies(tmp_path / "bodies.jsonl", [{"user": {"age": n}} for n in range(3)])
    return str(tmp_path / "bodies.jsonl")


@pytest.mark.trial
@pytest.mark.service
def test_closed_loop_sends_one_request_per_answer(bodies: str) -> None:
    async def reply(number: int) -> tuple[int, dict[str, Any]]:
        await asyncio.sleep(0.05)
        return 200, ANSWER

    with stub(reply) as port:
        outcome = drive(Job(port, bodies, seconds=1.0, clients=4, warm_up=0.2))
    assert outcome.codes().keys() == {200}
    assert min(outcome.latency[200]) >= 50
    assert 0 < outcome.in_time <= 4 * 1.0 / 0.05 + 4
    assert outcome.asked > len(outcome.latency[200])  # includes the warm-up
    assert outcome.models == {"m": len(outcome.latency[200])}
    assert set(outcome.parts["ranking"]) == {2.0}


@pytest.mark.trial
@pytest.mark.service
def test_open_loop_charges_a_stall_to_all_requests_that_were_due(bodies: str) -> None:
    """A closed loop would see one slow answer; here about 100 requests were due during the stall."""
    stalled = asyncio.Lock()

    async def reply(number: int) -> tuple[int, dict[str, Any]]:
        async with stalled:
            if number == 50:
                await asyncio.sleep(0.5)
        return 200, ANSWER

    with stub(reply) as port:
        outcome = drive(Job(port, bodies, seconds=2.0, rate=200.0))
    slow = [one for one in outcome.latency[200] if one > 100]
    assert len(outcome.latency[200]) == outcome.asked
    assert 300 < outcome.asked < 520  # 400 are expected, the deviation is 20
    assert len(slow) >= 50  # 80 are expected, the deviation is 9
    assert max(slow) >= 490


@pytest.mark.trial
@pytest.mark.service
def test_refused_lost_and_unanswered_requests_are_counted(bodies: str) -> None:
    async def reply(number: int) -> tuple[int, dict[str, Any]] | None:
        if number == 7:
            await asyncio.sleep(60)
        return None if number % 5 == 1 else (503 if number % 5 == 2 else 200, ANSWER)

    with stub(reply) as port:
        outcome = drive(Job(port, bodies, seconds=1.0, rate=100.0, patience=0.5))
    codes = outcome.codes()
    assert sum(codes.values()) == outcome.asked
    assert codes.keys() == {LOST, 200, 503}
    assert 0.1 < codes[503] / outcome.asked < 0.3
    assert codes[LOST] == pytest.approx(outcome.asked / 5, abs=2)
    assert any(text.startswith("503: ") for text in outcome.quoted)


@pytest.mark.trial
def test_every_request_is_lost_if_no_server_listens(bodies: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # but does not listen
        outcome = drive(Job(unused.getsockname()[1], bodies, seconds=0.3, rate=100.0))
    assert outcome.codes() == {LOST: outcome.asked}
    assert outcome.asked > 0


@pytest.mark.trial
@pytest.mark.service
def test_latency_includes_the_wait_for_a_connection_but_not_the_delay_of_the_generator(
    bodies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection and answers that take 50 ms: at 100 requests/s the last of 50 waits for two seconds."""

    async def reply(number: int) -> tuple[int, dict[str, Any]]:
        await asyncio.sleep(0.05)
        return 200, ANSWER

    monkeypatch.setattr(load, "_MOST_CONNECTIONS", 1)
    with stub(reply) as port:
        job = Job(port, bodies, seconds=0.5, rate=100.0)
        outcome = asyncio.run(load._run(job))
        hurried = asyncio.run(load._run(replace(job, patience=0.0)))
    assert outcome.codes() == {200: outcome.asked}
    assert outcome.asked > 25
    assert outcome.slowest >= outcome.asked * 50 - 500
    assert outcome.sent <= 0.5 / 0.05 + 1
    assert outcome.sent_share == outcome.sent / outcome.asked
    assert outcome.unsent == 0
    assert max(outcome.late) < outcome.slowest / 2  # the event loop was never blocked
    assert hurried.unsent > 0
    assert hurried.unsent + hurried.asked == outcome.asked


@pytest.mark.trial
@pytest.mark.service
def test_generator_reports_late_requests(bodies: str) -> None:
    """A blocked event loop sends nothing, which is not the fault of the service."""

    async def reply(number: int) -> tuple[int, dict[str, Any]]:
        if number == 0:
            asking[0].call_soon_threadsafe(time.sleep, 0.6)
        return 200, ANSWER

    async def run_here(job: Job) -> load.Outcome:
        asking.append(asyncio.get_running_loop())
        return await load._run(job)

    asking: list[asyncio.AbstractEventLoop] = []
    with stub(reply) as port:
        outcome = asyncio.run(run_here(Job(port, bodies, seconds=0.5, rate=100.0)))
    assert max(outcome.late) >= 300
    assert outcome.sent_share < 0.9
    assert max(outcome.latency[200]) >= 300  # measured from the time at which requests were due


# --- the checker ----------------------------------------------------------------------------------------------------

RIGHT = {"ids": [1, 2, 3], "scores": [3.0, 2.0, 2.0000005]}


@pytest.mark.parametrize(
    ("ids", "scores", "verdict"),
    [
        ([1, 2, 3], [3.0, 2.0, 2.0], "same"),
        ([1, 2, 3], [3.000001, 2.0, 2.0], "same"),
        ([1, 3, 2], [3.0, 2.0, 2.0], "tied"),
        ([1, 2, 9], [3.0, 2.0, 2.0], "tied"),  # tied with the last item
        ([1, 2, 3], [3.00001, 2.0, 2.0], "wrong"),
        ([2, 1, 3], [3.0, 2.0, 2.0], "wrong"),
        ([9, 2, 3], [3.0, 2.0, 2.0], "wrong"),
        ([1, 2, 2], [3.0, 2.0, 2.0], "wrong"),
        ([1, 2], [3.0, 2.0], "wrong"),
        ([], [], "wrong"),
    ],
)
def test_items_may_differ_only_where_scores_are_equal(ids: list[int], scores: list[float], verdict: str) -> None:
    checker = AnswerChecker({"a": [RIGHT], "b": [{"ids": [], "scores": []}]})
    found, why = checker(0, {"model": "a", "ids": ids, "scores": scores})
    assert found == verdict
    assert bool(why) == (verdict == "wrong")
    assert checker.unexpected == ([("a", 0, [9], [2.0])] if ids == [1, 2, 9] else [])
    assert checker(0, {"model": "b", "ids": ids, "scores": scores})[0] == ("wrong" if ids else "same")
    assert checker(0, {"model": "c", "ids": ids, "scores": scores})[0] == "wrong"


def test_unexpected_items_must_have_their_own_score(bundle: Bundle) -> None:
    requests = requests_like_examples(bundle, 3)
    expected = expected_answers(bundle, requests, lambda count: None)
    scores = bundle.score(requests[2], expected[2]["ids"])["ranking"]
    assert scores == pytest.approx(expected[2]["scores"], abs=1e-6)
    good = ("m", 2, expected[2]["ids"][-2:], scores[-2:])
    other = ("m", 2, expected[2]["ids"][-2:], [scores[-2], scores[-1] + 1e-4])
    unknown = ("m", 0, [10**12], [expected[0]["scores"][-1]])
    assert list(wrong_unexpected_items({"m": bundle}, requests, [good])) == []
    assert len(list(wrong_unexpected_items({"m": bundle}, requests, [good, other, unknown]))) == 2


def test_scores_do_not_depend_on_the_batch_size(bundle: Bundle) -> None:
    """Answers of batches of different sizes can be compared."""
    requests = requests_like_examples(bundle, 48)
    checker = AnswerChecker({"m": expected_answers(bundle, requests, lambda count: None)})
    for place, request in enumerate(requests):
        ranking = bundle.rank(request)
        assert checker(place, {"model": "m", "ids": ranking.ids, "scores": ranking.scores})[0] == "same"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


def test_intervals_are_exponential_or_equal() -> None:
    assert set(islice(intervals(50.0, even=True, seed=0), 100)) == {1 / 50}
    found = np.array(list(islice(intervals(50.0, even=False, seed=0), 10_000)))
    assert found.mean() == pytest.approx(1 / 50, rel=0.05)
    assert (found > 1 / 50).mean() == pytest.approx(np.exp(-1), rel=0.05)  # exponential, as in a Poisson process
    assert np.corrcoef(found[1:], found[:-1])[0, 1] == pytest.approx(0, abs=0.05)
