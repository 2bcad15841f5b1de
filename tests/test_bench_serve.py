"""The load generator against a service whose delays are known, the judge, the bare calls, and both commands small."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from bundles import platform_bundle
from command_line import run
from rankfall._manifest import MANIFEST
from rankfall.benchmarks.serving import serve, soak
from rankfall.benchmarks.serving.answers import Judge, expected_answers, model_name
from rankfall.benchmarks.serving.bare import BareCalls
from rankfall.benchmarks.serving.bundles import bad_bundles, requests_like_examples, seal_again
from rankfall.benchmarks.serving.load import LOST, Job, drive, write_bodies
from rankfall.serving import Bundle
from rankfall.serving.files import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    Reply = Callable[[int], Awaitable[tuple[int, dict[str, Any]] | None]]

ANSWER = {"model": "m", "ids": [1], "scores": [0.5], "milliseconds": {"queue": 1.0, "ranking": 2.0}}


# --- the load generator -------------------------------------------------------------------------------------------


@contextmanager
def stub(reply: Reply) -> Iterator[int]:
    """A service that answers the n-th request with what `reply(n)` gives, and hangs up on None; gives its port."""
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


def test_a_closed_loop_asks_as_often_as_it_is_answered(bodies: str) -> None:
    async def reply(number: int) -> tuple[int, dict[str, Any]]:
        await asyncio.sleep(0.05)
        return 200, ANSWER

    with stub(reply) as port:
        outcome = drive(Job(port, bodies, seconds=1.0, clients=4, warm_up=0.2))
    assert outcome.codes().keys() == {200}
    assert min(outcome.latency[200]) >= 50
    assert 0 < outcome.in_time <= 4 * 1.0 / 0.05 + 4
    assert outcome.asked > len(outcome.latency[200])  # the warm-up
    assert outcome.models == {"m": len(outcome.latency[200])}
    assert set(outcome.parts["ranking"]) == {2.0}


def test_in_an_open_loop_a_stall_delays_all_who_came_meanwhile(bodies: str) -> None:
    """Those who wait for answers would see one slow answer; here about 100 requests came while nothing moved."""
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


def test_what_is_refused_lost_or_never_answered_is_counted(bodies: str) -> None:
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


def test_where_nobody_listens_every_request_is_lost(bodies: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        outcome = drive(Job(taken.getsockname()[1], bodies, seconds=0.3, rate=100.0))
    assert outcome.codes() == {LOST: outcome.asked}
    assert outcome.asked > 0


# --- the judge ----------------------------------------------------------------------------------------------------

RIGHT = {"ids": [1, 2, 3], "scores": [3.0, 2.0, 2.00005]}


@pytest.mark.parametrize(
    ("ids", "scores", "verdict"),
    [
        ([1, 2, 3], [3.0, 2.0, 2.0], "same"),
        ([1, 2, 3], [3.0001, 2.0, 2.0], "same"),
        ([1, 3, 2], [3.0, 2.0, 2.0], "tied"),
        ([1, 2, 9], [3.0, 2.0, 2.0], "tied"),  # which the cut may have left out
        ([1, 2, 3], [3.001, 2.0, 2.0], "wrong"),
        ([2, 1, 3], [3.0, 2.0, 2.0], "wrong"),
        ([9, 2, 3], [3.0, 2.0, 2.0], "wrong"),
        ([1, 2, 2], [3.0, 2.0, 2.0], "wrong"),
        ([1, 2], [3.0, 2.0], "wrong"),
        ([], [], "wrong"),
    ],
)
def test_items_may_differ_only_where_scores_are_equal(ids: list[int], scores: list[float], verdict: str) -> None:
    judge = Judge({"a": [RIGHT], "b": [{"ids": [], "scores": []}]})
    found, why = judge(0, {"model": "a", "ids": ids, "scores": scores})
    assert found == verdict
    assert bool(why) == (verdict == "wrong")
    assert judge(0, {"model": "b", "ids": ids, "scores": scores})[0] == ("wrong" if ids else "same")
    assert judge(0, {"model": "c", "ids": ids, "scores": scores})[0] == "wrong"


# --- bundles ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


@pytest.fixture(scope="module")
def narrower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle but for its last stage, which keeps half as many: no answer fits both."""
    path = tmp_path_factory.mktemp("narrower") / "bundle"
    shutil.copytree(platform_bundle(), path)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["stages"][-1]["quota"] //= 2
    (path / MANIFEST).write_text(json.dumps(manifest))
    kept = manifest["stages"][-1]["quota"]
    examples = json.loads((path / EXAMPLES).read_text())
    examples = [{**one, "ids": one["ids"][:kept], "scores": one["scores"][:kept]} for one in examples]
    (path / EXAMPLES).write_text(json.dumps(examples))
    seal_again(path)
    Bundle.load(path).check()
    return path


def test_the_bare_calls_find_what_the_bundle_answers(bundle: Bundle) -> None:
    requests = requests_like_examples(bundle, 40)
    bare = BareCalls(bundle)
    rows, scores = bare(bundle.encode(requests).arrays)
    ids = np.array(bundle.items.ids(np.arange(len(bundle.items))))
    for place, answer in enumerate(expected_answers(bundle, requests, lambda count: None)):
        best = np.argsort(-scores[place])[: len(answer["ids"])]
        assert ids[rows[place, best]].tolist() == answer["ids"]
        np.testing.assert_allclose(scores[place, best], answer["scores"], atol=1e-5)
    assert all(seconds > 0 for seconds in bare.seconds.values())
    everything = bare.score_all(bundle.encode(requests[:1]).arrays, len(bundle.items))
    np.testing.assert_allclose(everything[0], bundle.score(requests[0], ids.tolist())["ranking"], atol=1e-5)


def test_each_bad_twin_is_refused_for_its_own_reason(bundle: Bundle, tmp_path: Path) -> None:
    reasons = iter(["has changed since", "is no graph that", "otherwise than when it was exported"])
    for path in bad_bundles(bundle.path, tmp_path).values():
        with pytest.raises(ValueError, match=next(reasons)):
            Bundle.load(path).check()
    Bundle.load(bundle.path).check()  # it shares files with them


def test_requests_are_made_of_examples(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [example["request"] for example in bundle.examples()]
    for request in requests_like_examples(bundle, 50):
        assert request["user"] in [example["user"] for example in examples]
        assert request["sequences"] in [example["sequences"] for example in examples]
    monkeypatch.setattr(bundle, "examples", list)
    with pytest.raises(ValueError, match="--examples"):
        requests_like_examples(bundle, 1)


# --- the commands -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(bundle: Bundle) -> serve.Report:
    reports: list[str] = []
    found = serve.measure(bundle.path, seconds=0.2, turns=1, report=reports.append)
    assert len(reports) == serve.steps(1)
    return found


def test_a_service_is_measured_beside_its_calls(bundle: Bundle, measured: serve.Report) -> None:
    assert [(row.clients, row.requests_in_call) for row in measured.rows] == list(serve.SETTINGS)
    for row in measured.rows:
        assert row.not_answered == {}
        assert row.requests_per_second > 0
        assert row.parts_ms.keys() == {"queue", *bundle.names}
        assert 0 < row.call_ms.p50 <= row.call_ms.p99
        # a service cannot answer before its stages have
        assert row.call_ms.p99 > sum(row.parts_ms[name].p50 for name in bundle.names)
    assert [one.batch for one in measured.bare] == list(serve.BATCHES)
    assert measured.half_rate.requests_per_second == pytest.approx(
        max(row.requests_per_second for row in measured.rows if row.requests_in_call == 1) / 2
    )
    assert measured.score_all is not None
    assert measured.score_all.items == len(bundle.items)


def test_promises_are_those_of_full_batches(measured: serve.Report) -> None:
    rows = [replace(row, overhead=0.2 if row.requests_in_call == 1 else 0.3) for row in measured.rows]
    half = replace(measured.half_rate, tail=2.9, not_answered={503: 2})
    met = {what: met for what, _, _, met in serve.promises(replace(measured, rows=rows, half_rate=half))}
    assert list(met.values()) == [True, False, False, True, False]
    assert "32 x 1" in next(iter(met))


def test_the_command_prints_all_settings(
    bundle: Bundle, measured: serve.Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "measure", lambda path, seconds, report: measured)
    assert run("bench", "serve", bundle.path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["call_ms"]["p50"] == measured.rows[0].call_ms.p50
    assert all(one.keys() == {"promise", "target", "measured", "met"} for one in found["must_show"])
    assert run("bench", "serve", bundle.path) == 0
    shown = capsys.readouterr().out
    assert all(f"{clients} x {in_call} " in shown for clients, in_call in serve.SETTINGS)
    assert "…" not in shown  # nothing is cut off


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests that have much time: what is tested is what happens, not how fast this machine is."""
    monkeypatch.setattr(soak, "POOL", 64)
    monkeypatch.setattr(soak, "DEADLINE", 30_000.0)
    monkeypatch.setattr(soak, "Settings", partial(soak.Settings, rate=0.05, finding=0.5, overload=0.5))


@pytest.mark.usefixtures("calm")
def test_bundles_are_swapped_under_load_and_no_answer_is_wrong(
    bundle: Bundle, narrower: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--minutes", "0.1", "--every", "1", "--rate", "0.05")
    code = run("bench", "soak", bundle.path, narrower, *options, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert code == 0
    assert found["failed"] == found["refused"] == found["verdicts"].get("wrong", 0) == 0
    assert found["answered"] == found["asked"] > 0
    assert found["swaps"]["taken"] >= 2
    assert sum(found["swaps"]["refused"].values()) >= 3
    assert set(found["by_model"]) == {model_name(bundle.manifest), model_name(Bundle.load(narrower).manifest)}
    assert sum(found["overload"]["codes"].values()) > 0


@pytest.mark.usefixtures("calm")
def test_a_wrong_answer_is_noticed(
    bundle: Bundle, narrower: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever expects the answers of one bundle of both finds that those of the other are wrong."""
    monkeypatch.setattr(soak, "expected_answers", lambda of, *rest: expected_answers(bundle, *rest))
    assert run("bench", "soak", bundle.path, narrower, "--minutes", "0.05", "--every", "1", "--rate", "0.05") == 1
    out, err = capsys.readouterr()
    assert "answers were wrong" in err
    assert "such as wrong, request" in err
    assert "…" not in out


def test_memory_that_grows_is_a_problem() -> None:
    settings = soak.Settings(every=20.0)
    level = soak._memory([(float(second), 500.0 + second % 7, 200.0) for second in range(600)], settings)
    assert level is not None
    assert level.flat
    assert abs(level.growth_per_minute) < 0.1
    leak = soak._memory([(float(second), 500.0 + second / 6, 200.0 + second / 6) for second in range(600)], settings)
    assert leak is not None
    assert leak.flat is False
    assert leak.growth_per_minute == pytest.approx(10)
    short = soak._memory([(float(second), 500.0 + second, 200.0) for second in range(30)], settings)
    assert short is not None
    assert short.flat is None


def test_the_same_bundle_twice_is_refused(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "soak", bundle.path) == 2
    assert "expected two bundles" in capsys.readouterr().err
    assert run("bench", "serve", bundle.path.parent / "nothing") == 1
    assert "is not a bundle" in capsys.readouterr().err
