"""The load generator against a stub with known delays, the answer check, the bare calls, and both commands."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall._manifest import MANIFEST
from rankfall.benchmarks.serving import checked_load
from rankfall.benchmarks.serving import load_generator as load
from rankfall.benchmarks.serving import serve_bench as serve
from rankfall.benchmarks.serving import soak_bench as soak
from rankfall.benchmarks.serving.answer_check import AnswerChecker, expected_answers, model_name, wrong_unexpected_items
from rankfall.benchmarks.serving.bare_calls import BareCalls
from rankfall.benchmarks.serving.bench_bundles import bad_bundles, requests_like_examples, seal_again
from rankfall.benchmarks.serving.load_generator import LOST, Job, drive, intervals, write_bodies
from rankfall.serving import Bundle
from rankfall.serving.bundle_files import EXAMPLES
from rankfall.serving.service.settings import default_threads
from support.bundles import platform_bundle
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    Reply = Callable[[int], Awaitable[tuple[int, dict[str, Any]] | None]]

pytestmark = pytest.mark.xdist_group("bench serve")  # tests share bundles and measurements
ANSWER = {"model": "m", "ids": [1], "scores": [0.5], "milliseconds": {"queue": 1.0, "ranking": 2.0}}


# --- the load generator -------------------------------------------------------------------------------------------


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


def test_every_request_is_lost_if_no_server_listens(bodies: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # but does not listen
        outcome = drive(Job(unused.getsockname()[1], bodies, seconds=0.3, rate=100.0))
    assert outcome.codes() == {LOST: outcome.asked}
    assert outcome.asked > 0


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


# --- bundles ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


@pytest.fixture(scope="module")
def narrower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle with half the quota in the last stage, so that no answer fits both."""
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


def test_bare_calls_return_the_answers_of_the_bundle(bundle: Bundle) -> None:
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


def test_each_bad_bundle_is_refused_with_its_own_reason(bundle: Bundle, tmp_path: Path) -> None:
    reasons = [
        "has changed since",
        "is not a graph: it is damaged",
        "shape",
        "differently than at export",
        "is not a graph that 'rankfall export' writes",
        "items.faiss is not an index that",
    ]
    for path, reason in zip(bad_bundles(bundle.path, tmp_path).values(), reasons, strict=True):
        with pytest.raises(ValueError, match=reason):
            Bundle.load(path).check()
    Bundle.load(bundle.path).check()  # the bad bundles share files with it


def test_requests_are_built_from_examples(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
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
    found = serve.measure(bundle.path, seconds=0.6, turns=1, report=reports.append)
    assert len(reports) == serve.steps(1)
    return found


@pytest.mark.service
def test_service_and_bare_calls_are_measured(bundle: Bundle, measured: serve.Report) -> None:
    threads = sorted({1, default_threads(workers=1)})
    settings = [(row.threads, row.clients, row.requests_in_call) for row in measured.rows]
    assert settings == [(count, *setting) for count in threads for setting in serve.SETTINGS]
    for row in measured.rows:
        assert row.not_answered == {}
        assert row.requests_per_second > 0
        assert row.parts_ms.keys() == {"queue", *bundle.names}
        assert 0 < row.call_ms.p50 <= row.call_ms.p99
        # a service cannot answer before its stages
        assert row.call_ms.p99 > sum(row.parts_ms[name].p50 for name in bundle.names)
    assert [one.batch for one in measured.bare] == list(serve.BATCHES)
    halves = [(half.threads, half.even) for half in measured.half_rates]
    assert halves == [(whose, even) for whose in (None, *threads) for even in (True, False)]
    for half in measured.half_rates:
        rates = [row.requests_per_second for row in measured.rows if row.threads == half.threads]
        rates = rates or [measured.bare[0].requests_per_second]
        assert half.requests_per_second in [pytest.approx(rate / 2) for rate in rates]
    # bare calls use one thread, so only services with one thread can be compared with them
    assert {row.threads for row in measured.rows if row.overhead is not None} == {1}
    assert measured.score_all is not None
    assert measured.score_all.items == len(bundle.items)


def test_intervals_are_exponential_or_equal() -> None:
    assert set(islice(intervals(50.0, even=True, seed=0), 100)) == {1 / 50}
    found = np.array(list(islice(intervals(50.0, even=False, seed=0), 10_000)))
    assert found.mean() == pytest.approx(1 / 50, rel=0.05)
    assert (found > 1 / 50).mean() == pytest.approx(np.exp(-1), rel=0.05)  # exponential, as in a Poisson process
    assert np.corrcoef(found[1:], found[:-1])[0, 1] == pytest.approx(0, abs=0.05)


def test_cpu_time_of_bare_calls_excludes_other_threads() -> None:
    """Another thread may draw a progress bar."""

    class Idle:
        seconds: dict[str, float]

        def __call__(self, arrays: Any) -> None:
            time.sleep(0.02)

    ended, turns, idle = threading.Event(), serve._BareTurns(), Idle()

    def spin() -> None:
        while not ended.is_set():
            sum(range(1000))

    spinning = threading.Thread(target=spin)
    spinning.start()
    try:
        serve._bare_turn(cast("BareCalls", idle), [{}], 1, 0.5, turns)
    finally:
        ended.set()
        spinning.join()
    assert turns.cpu_ms[0] < np.mean(turns.walls[0]) / 5


@pytest.mark.service
def test_promises_use_full_batches(measured: serve.Report) -> None:
    one = [row for row in measured.rows if row.threads == 1]
    rows = [replace(row, overhead=0.2 if row.requests_in_call == 1 else 0.3) for row in one]
    halves = [replace(measured.half_rates[-1], tail=tail, not_answered={503: 1}) for tail in (3.1, 2.9)]
    met = {what: met for what, _, _, met in serve.promises(replace(measured, rows=rows, half_rates=halves))}
    assert list(met.values()) == [True, False, False, True, False]
    assert "32 x 1" in next(iter(met))


@pytest.mark.service
def test_command_prints_all_settings(
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
    assert "…" not in shown  # no cell is truncated


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests with long deadlines, so that results do not depend on the speed of the machine."""
    monkeypatch.setattr(checked_load, "POOL", 64)
    monkeypatch.setattr(soak, "DEADLINE", 30_000.0)
    monkeypatch.setattr(soak, "SLOWEST", 30_000.0)
    monkeypatch.setattr(soak, "SENT", 0.0)
    monkeypatch.setattr(soak, "Settings", partial(soak.Settings, rate=0.05, finding=0.5, overload=0.5))


@pytest.mark.service
@pytest.mark.usefixtures("calm")
def test_soak_swaps_bundles_without_wrong_answers(
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


@pytest.mark.service
@pytest.mark.usefixtures("calm")
def test_soak_reports_wrong_answers(
    bundle: Bundle, narrower: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answers of one bundle are expected of both, so those of the other are wrong."""
    monkeypatch.setattr(checked_load, "expected_answers", lambda of, *rest: expected_answers(bundle, *rest))
    assert run("bench", "soak", bundle.path, narrower, "--minutes", "0.2", "--every", "1", "--rate", "0.05") == 1
    out, err = capsys.readouterr()
    assert "answers were wrong" in err
    assert "for example wrong, request" in err
    assert "…" not in out


@pytest.mark.service
@pytest.mark.usefixtures("calm")
def test_soak_scores_unexpected_items(bundle: Bundle, narrower: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected answers have another last item, so the service's last item is unexpected and its score is checked."""

    def with_other_last_item(of: Bundle, *rest: Any) -> list[dict[str, Any]]:
        return [{**one, "ids": [*one["ids"][:-1], 10**12]} for one in expected_answers(of, *rest)]

    monkeypatch.setattr(checked_load, "expected_answers", with_other_last_item)
    reasons: list[str] = []

    def all_are_wrong(bundles: Any, requests: Any, unexpected: list[Any]) -> list[str]:
        reasons.extend(wrong_unexpected_items(bundles, requests, unexpected))
        return ["why"] * len(unexpected)

    monkeypatch.setattr(checked_load, "wrong_unexpected_items", all_are_wrong)
    settings = soak.Settings(minutes=0.02, every=10.0)
    found = soak.soak(bundle.path, narrower, settings, on_step=lambda *step: None)
    assert reasons == []
    assert found.verdicts == {"tied": 0, "wrong": found.answered}
    assert "for example wrong, why" in found.problems


def report_of(**overload: Any) -> soak.Report:
    """Return the report of a good run with these values of the overload."""
    times = serve.Spread(1.0, 2.0)
    good: dict[str, Any] = {
        "requests_per_second": 300.0,
        "sent_per_second": 300.0,
        "sent_share": 1.0,
        "unsent": 0,
        "codes": {200: 1000, 503: 2000},
        "slowest_ms": 900.0,
        "answered_ms": times,
        "late_ms": 1.0,
        "verdicts": {"same": 1000},
        "well_after": True,
    }
    return soak.Report(
        bundles=["a", "b"],
        largest_rate=100.0,
        requests_per_second=80.0,
        sent_per_second=80.0,
        sent_share=1.0,
        minutes=1.0,
        asked=4800,
        unsent=0,
        answered=4800,
        refused=0,
        failed=0,
        verdicts={"same": 4790, "tied": 10},
        by_model={"a": 4800},
        call_ms=times,
        slowest_ms=3.0,
        late_ms=1.0,
        swaps=soak.Swaps(),
        memory=None,
        overload=soak.Overload(**good | overload),
        problems=[],
    )


def test_slow_generator_is_reported_before_the_service() -> None:
    assert soak._problems(report_of()) == []
    assert "could not send 7 requests" in soak._problems(report_of(unsent=7, slowest_ms=9000.0))[0]
    generator, service = soak._problems(report_of(sent_share=0.7, sent_per_second=210.0, slowest_ms=9000.0))
    assert generator == "the generator could send only 210 of 300 requests/s, so that the overload was not reached"
    assert "an answer took 9,000 ms" in service


def test_slow_answer_under_load_is_a_problem() -> None:
    (problem,) = soak._problems(replace(report_of(), slowest_ms=6000.0))
    assert problem == "under load an answer took 6,000 ms"


def test_many_ties_are_a_problem() -> None:
    assert soak._problems(report_of(verdicts={"same": 960, "tied": 40})) == []  # 50 of 5,800
    assert len(soak._problems(report_of(verdicts={"same": 940, "tied": 60}))) == 1


def test_growing_memory_is_a_problem() -> None:
    settings = soak.Settings(every=20.0)

    def memory(per_minute: float, without: float, seconds: int = 600) -> soak.Memory | None:
        """A larger bundle in every second interval of 20 s, and less memory at the start."""
        noise = np.random.default_rng(0).normal(size=(seconds, 2))
        steps = [30.0 * (second // 20 % 2) - 200.0 * (second < 90) for second in range(seconds)]
        return soak._memory(
            [
                (float(s), 500.0 + steps[s] + per_minute * s / 60 + a, 200.0 + without * s / 60 + b)
                for s, (a, b) in enumerate(noise)
            ],
            settings,
        )

    level, slow = memory(0.0, 0.0), memory(3.0, 1.0)
    assert level is not None
    assert level.flat
    assert abs(level.whole.per_minute) < 3 * level.whole.error < 1.0
    assert level.whole.megabytes == pytest.approx(515, abs=1)
    assert slow is not None
    assert slow.flat  # 0.6 and 0.5 %
    assert slow.whole.per_minute == pytest.approx(3, abs=0.3)
    for leak in (memory(8.0, 0.0), memory(4.0, 4.0)):  # 1.5 %, and 2 % of the memory without files
        assert leak is not None
        assert not leak.flat
    assert memory(60.0, 60.0, seconds=290) is None  # too short


def test_growth_equals_least_squares() -> None:
    linregress = pytest.importorskip("scipy.stats").linregress
    random = np.random.default_rng(0)
    seconds = np.arange(12) * 40.0
    megabytes = 400 + seconds / 30 + random.normal(size=12)
    found, right = soak._growth(seconds.tolist(), megabytes.tolist()), linregress(seconds, megabytes)
    assert (found.per_minute, found.error) == pytest.approx((60 * right.slope, 60 * right.stderr))
    assert found.is_real == (found.per_minute - 2 * found.error > 0.01 * megabytes.mean())


def test_soak_needs_two_bundles(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "soak", bundle.path) == 2
    assert "expected two bundles" in capsys.readouterr().err
    assert run("bench", "serve", bundle.path.parent / "nothing") == 1
    assert "is not a bundle" in capsys.readouterr().err
