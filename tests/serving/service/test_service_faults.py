"""The service under overload, with clients that hang up, and while bundles are replaced."""

from __future__ import annotations

import gc
import json
import re
import shutil
import socket
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count as count_from
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.serving import Bundle, RequestError
from rankfall.serving.service import settings as limits
from rankfall.storage.manifests import about_file
from support.bundles import platform_bundle
from support.sealing import edit_manifest
from support.services import (
    HEADERS,
    PATIENCE,
    Answer,
    Running,
    eventually,
    loaded,
    model_of,
    ranking_bundle,
    requests,
    running,
    spoiled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from rankfall.serving import Answers, EncodedRequests

pytestmark = pytest.mark.service


class Gate:
    """Blocks the bundle of a service until it is opened, and records its batches."""

    def __init__(self, service: Running) -> None:
        served = service.service.slots["main"]
        assert served is not None
        self.opened = threading.Event()
        self.batches: list[EncodedRequests] = []
        self.refuse: Callable[[EncodedRequests], Exception | None] = lambda batch: None
        run = served.bundle.run

        def gated(batch: EncodedRequests, *, explain: bool = False, sampled: Any = None) -> Answers:
            self.batches.append(batch)
            assert self.opened.wait(60)
            error = self.refuse(batch)
            if error is not None:
                raise error
            return run(batch, explain=explain, sampled=sampled)

        served.bundle.run = gated  # type: ignore[method-assign]


@contextmanager
def gated(**changes: Any) -> Iterator[tuple[Running, Gate, Callable[..., Future[Answer]]]]:
    """A blocked service, and a function that calls it in another thread."""
    with running(platform_bundle(), **changes) as service, ThreadPoolExecutor(64) as pool:
        gate = Gate(service)

        def ask(**content: Any) -> Answer:
            with service.client() as client:
                return client.post("/rank", content)

        try:
            yield service, gate, lambda **content: pool.submit(ask, **content)
        finally:
            gate.opened.set()


def spoken(port: int, data: bytes) -> bytes:
    """Return the answer to bytes on a connection that stays open."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(data)
        while not answer.endswith(b"}") and (more := connection.recv(65536)):
            answer += more
    return answer


# --- the line -----------------------------------------------------------------------------------------------------


def test_full_queue_refuses_before_the_body_arrives() -> None:
    with gated(queue=2, batch=1) as (service, gate, ask):
        waiting = [ask(k=1)]
        eventually(lambda: gate.batches)
        waiting += [ask(k=2), ask(k=3)]
        eventually(lambda: service.service.batcher.waiting == 2)
        answer = spoken(service.port, HEADERS)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
        assert b"2 are queued and 1 arrived, at most 2 may be queued" in answer
        with service.client() as client:
            assert client.get("/health").code == 200
            assert client.metric("rankfall_queue_requests") == 2
            assert client.metric('rankfall_refused_total{reason="queue"}') == 1
        gate.opened.set()
        assert [len(answer.result().json["ids"]) for answer in waiting] == [1, 2, 3]


def test_call_with_more_requests_than_the_queue_is_refused() -> None:
    with gated(queue=3, batch=2) as (service, gate, ask), service.client() as client:
        assert client.post("/rank", {"requests": [{}] * 4}).json["field"] == "requests"
        first = ask(k=1)
        eventually(lambda: gate.batches)
        second = ask(requests=[{}, {}])
        eventually(lambda: service.service.batcher.waiting == 2)
        assert client.post("/rank", {"requests": [{}, {}]}).code == 503
        gate.opened.set()
        assert first.result().code == second.result().code == 200


def test_call_that_would_wait_beyond_its_deadline_is_refused_at_once() -> None:
    with gated(batch=1) as (service, gate, ask):
        gate.opened.set()
        gate.refuse = lambda batch: time.sleep(0.5)  # the usual time of a batch
        for _ in range(3):
            assert ask(deadline=60_000).result().code == 200
        gate.opened.clear()
        waiting = [ask(deadline=60_000), ask(deadline=60_000)]
        eventually(lambda: service.service.batcher.waiting == 1)
        refused = ask(deadline=500).result()  # while the gate is closed
        assert refused.code == 503
        assert "1 are queued and 1 arrived, the queue takes longer than the deadline" in refused.json["error"]
        gate.opened.set()
        assert [answer.result().code for answer in waiting] == [200, 200]


def test_longer_deadline_allows_a_longer_wait() -> None:
    with gated(batch=1, deadline=200) as (service, gate, ask):
        gate.opened.set()
        gate.refuse = lambda batch: time.sleep(0.3)  # longer than the deadline of the service
        assert ask(deadline=60_000).result().code == 200
        gate.opened.clear()
        batcher = service.service.batcher
        patient = [ask(deadline=60_000)]
        eventually(lambda: len(gate.batches) == 2)
        for count in (1, 2):
            patient.append(ask(deadline=60_000))
            eventually(lambda count=count: batcher.waiting == count)  # type: ignore[misc]
        assert spoken(service.port, HEADERS).startswith(b"HTTP/1.1 503 ")  # two batches exceed the deadline
        gate.opened.set()
        assert [answer.result().code for answer in patient] == [200] * 3


def test_one_slow_call_does_not_raise_the_estimated_wait() -> None:
    with gated() as (service, gate, ask):
        gate.opened.set()
        batcher = service.service.batcher
        for _ in range(5):
            assert ask(k=1).result().code == 200
        usual = batcher._batch_seconds
        gate.refuse = lambda batch: time.sleep(2)
        assert ask(k=1).result().code == 200
        assert 0 < usual < 1
        assert 0 < batcher._batch_seconds < 1
        for _ in range(9):
            batcher._recent_seconds.append(100.0)  # pretends that batches take this long
        gate.refuse = lambda batch: None
        with service.client() as client:
            for _ in range(9):
                assert client.post("/score", {"candidates": [1]}).code == 200
        assert set(batcher._recent_seconds) == {100.0}  # unchanged: no batch was computed
        for _ in range(5):
            assert ask(k=1).result().code == 200
        assert batcher._batch_seconds < 1  # the estimate adapts within a few batches


def test_calls_end_at_their_deadline() -> None:
    with gated(batch=1) as (service, gate, ask):
        running_late, waiting_late = ask(k=1, deadline=1000), ask(k=2, deadline=1000)
        assert running_late.result().code == waiting_late.result().code == 504  # while the gate is closed
        assert running_late.result().json["field"] == "deadline"
        assert service.service.batcher.waiting == 0
        gate.opened.set()
        assert ask(k=3).result().code == 200
        assert len(gate.batches) == 2  # the late call in the queue was not computed
        with service.client() as client:
            assert client.metric('rankfall_refused_total{reason="deadline"}') == 2


def test_calls_that_would_be_late_are_not_computed() -> None:
    with gated(batch=1) as (service, gate, ask):
        first = ask(k=1)
        eventually(lambda: gate.batches)
        hasty = ask(k=2, deadline=5000)
        eventually(lambda: service.service.batcher.waiting == 1)
        patient = ask(k=3)
        eventually(lambda: service.service.batcher.waiting == 2)
        service.service.batcher._recent_seconds.extend([100.0] * 9)  # pretends that batches take this long
        gate.opened.set()
        assert hasty.result().code == 504
        assert first.result().code == patient.result().code == 200  # an empty queue always accepts a call


def test_deadline_of_the_service_is_the_default() -> None:
    with gated(deadline=200) as (_, _, ask):
        assert ask().result().code == 504


def test_calls_of_disconnected_clients_are_not_computed() -> None:
    with gated(batch=1) as (service, gate, ask):
        first = ask(k=1)
        eventually(lambda: gate.batches)
        body = json.dumps({"k": 2}).encode()
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(HEADERS.replace(b"100", str(len(body)).encode()) + body)
            eventually(lambda: service.service.batcher.waiting == 1)
        eventually(lambda: service.service.batcher.waiting == 0)
        gate.opened.set()
        assert first.result().code == 200
        assert len(gate.batches) == 1


def test_waiting_calls_are_batched_where_possible() -> None:
    with gated(batch=4) as (service, gate, ask):
        first = ask(k=1)
        eventually(lambda: gate.batches)
        plain = [ask(k=2) for _ in range(5)]
        explained = [ask(k=3, explain=True) for _ in range(2)]
        eventually(lambda: service.service.batcher.waiting == 7)
        gate.opened.set()
        assert {answer.result().code for answer in [first, *plain, *explained]} == {200}
        sizes = Counter((len(batch), int(batch.k[0])) for batch in gate.batches)
        assert sizes == {(1, 1): 1, (4, 2): 1, (1, 2): 1, (2, 3): 1}


def too_large(batch: EncodedRequests) -> Exception | None:
    """Return the error of a bundle, which names the first bad request."""
    wrong = [place for place, k in enumerate(batch.k) if k == 7]
    name = f"requests[{wrong[0]}]" if wrong and len(batch) > 1 else "request"
    return RequestError(f"{name}: found numbers so large", wrong[0]) if wrong else None


def broken(batch: EncodedRequests) -> Exception | None:
    return RuntimeError("broken") if 7 in batch.k else None


@pytest.mark.parametrize(("refuse", "code"), [(too_large, 422), (broken, 500)])
def test_bad_request_does_not_fail_others_of_its_batch(
    refuse: Callable[[EncodedRequests], Exception | None], code: int
) -> None:
    with gated() as (service, gate, ask):
        gate.refuse = refuse
        first = ask(k=1)
        eventually(lambda: gate.batches)
        counts = [2, 7, 3, 4]
        others = [ask(k=count) for count in counts]
        eventually(lambda: service.service.batcher.waiting == 4)
        gate.opened.set()
        assert first.result().code == 200
        for count, answer in zip(counts, others, strict=True):
            assert answer.result().code == (code if count == 7 else 200)
            assert count == 7 or len(answer.result().json["ids"]) == count
        assert ask(k=5).result().code == 200  # the thread continues


def sizes_of(counts: list[int], *several: list[int]) -> tuple[list[int], list[Answer]]:
    """Return the sizes of the batches for simultaneous calls, and the answers."""
    with gated() as (service, gate, ask):
        gate.refuse = too_large
        first = ask(k=1)
        eventually(lambda: gate.batches)
        answers = []
        for content in [{"k": k} for k in counts] + [{"requests": [{"k": k} for k in call]} for call in several]:
            before = service.service.batcher.waiting
            answers.append(ask(**content))
            eventually(lambda before=before: service.service.batcher.waiting > before)  # type: ignore[misc]
        gate.opened.set()
        assert first.result().code == 200
        found = [answer.result() for answer in answers]
        return [len(batch) for batch in gate.batches[1:]], found


def test_good_requests_of_a_failed_batch_are_batched_again() -> None:
    sizes, answers = sizes_of([2, 3, 7, 4], [5, 5, 7, 5], [6, 6])
    assert sizes == [10, 9, 5]  # first without the bad request, then without its whole call
    assert [answer.code for answer in answers] == [200, 200, 422, 200, 422, 200]
    assert answers[2].json["field"] == "body"
    assert answers[4].json["field"] == "requests[2]"
    assert [len(ranking["ids"]) for ranking in answers[5].json["rankings"]] == [6, 6]


def test_many_bad_requests_cost_few_batches() -> None:
    sizes, answers = sizes_of([7] * 8 + [2] * 2)
    assert [answer.code for answer in answers] == [422] * 8 + [200] * 2
    assert sizes == [10, 9, 8] + [1] * 7


def test_accepted_calls_are_not_counted_as_refused() -> None:
    with running(platform_bundle()) as service, service.client() as client:
        service.service.slots.put("main", None)  # type: ignore[arg-type]
        assert client.get("/ready").code == 503
        assert "rankfall_refused_total{" not in client.get("/metrics").body.decode()
        assert client.post("/rank", {}).code == 503
        assert client.metric('rankfall_refused_total{reason="no bundle"}') == 1
        assert client.metric('rankfall_refused_total{reason="queue"}') == 0


def test_overload_refuses_or_answers_but_never_fails() -> None:
    bundle = loaded(platform_bundle())
    right = bundle.rank(requests()[0]).ids
    with gated(queue=4, batch=2) as (service, gate, _), service.client() as watcher:

        def ask(number: int) -> list[int]:
            codes = []
            with service.client() as client:
                for _ in range(15):
                    answer = client.post("/rank", requests()[0])
                    assert answer.code != 200 or answer.json["ids"] == right
                    assert answer.code != 503 or answer.headers["retry-after"] == "1"
                    codes.append(answer.code)
            return codes

        with ThreadPoolExecutor(24) as pool:
            of_all = pool.map(ask, range(24))
            eventually(lambda: watcher.metric('rankfall_refused_total{reason="queue"}') > 0)  # 6 fit
            gate.opened.set()
            codes = Counter(code for of_one in of_all for code in of_one)
        assert set(codes) == {200, 503}
        assert watcher.metric('rankfall_refused_total{reason="queue"}') == codes[503]
        for code, count in codes.items():
            assert watcher.metric(f'rankfall_requests_total{{code="{code}",endpoint="/rank"}}') == count


# --- slow clients -------------------------------------------------------------------------------------------------


def test_slow_body_takes_no_place_in_the_queue_and_times_out() -> None:
    with (
        running(platform_bundle(), queue=2, body_seconds=1.5) as service,  # one place for a later call
        ThreadPoolExecutor(4) as pool,
        service.client() as client,
    ):
        slow = [pool.submit(spoken, service.port, HEADERS + b"{") for _ in range(4)]
        assert client.post("/rank", {}).code == 200
        assert all(answer.result().startswith(b"HTTP/1.1 408 ") for answer in slow)
        assert client.metric('rankfall_refused_total{reason="slow body"}') == 4


def test_endless_headers_are_refused() -> None:
    with running(platform_bundle()) as service:
        many = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(100))
        assert spoken(service.port, b"GET /health HTTP/1.1\r\nHost: x\r\n" + many).startswith(b"HTTP/1.1 400 ")
        assert spoken(service.port, b"GET /" + b"a" * 100_000).startswith(b"HTTP/1.1 400 ")
        with service.client() as client:
            assert client.get("/health").code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHo", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /h"])
def test_unfinished_headers_time_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_SECONDS", 1.0)
    with (
        running(platform_bundle()) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection,
    ):
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        assert answer.count(b"HTTP/1.1 200 OK") == sent.count(b"\r\n\r\n")


# --- swaps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_swaps_under_load_neither_lose_nor_mix_answers(tmp_path: Path, threads: int) -> None:
    paths = [platform_bundle(), ranking_bundle()]
    bad = spoiled(platform_bundle(), tmp_path / "bad")
    expected = {model_of(path): [ranking.ids for ranking in loaded(path).rank(requests())] for path in paths}
    done = threading.Event()

    def ask(number: int) -> Counter[str]:
        seen: Counter[str] = Counter()
        request = requests()[number]  # a copy of all examples, which takes longer than an answer
        with service.client() as client:
            while not done.wait(0.005):  # at most 200 requests per second and client, however long the swaps take
                answer = client.post("/rank", request)
                assert answer.code == 200
                assert answer.json["ids"] == expected[answer.json["model"]][number]
                seen[answer.json["model"]] += 1
        return seen

    with (
        running(platform_bundle(), threads=threads) as service,
        ThreadPoolExecutor(4) as pool,
        service.client() as admin,
    ):
        clients = [pool.submit(ask, number) for number in range(4)]
        try:
            for number in range(12):
                answer = admin.reload(paths[(number + 1) % 2])
                assert answer.code == 200
                assert answer.json == {
                    "model": model_of(paths[(number + 1) % 2]),
                    "before": model_of(paths[number % 2]),
                }
                refused = admin.reload(bad)
                assert refused.code == 409
                assert "answers its example 0 differently" in refused.json["error"]
        finally:
            done.set()
        seen = sum((client.result() for client in clients), Counter[str]())
        assert set(seen) == set(expected)
        assert admin.metric('rankfall_swaps_total{result="taken"}') == 12
        assert admin.metric('rankfall_swaps_total{result="refused"}') == 12


def test_running_requests_finish_with_the_old_bundle() -> None:
    with gated() as (service, gate, ask), service.client() as admin:
        old = ask(**requests()[0])
        eventually(lambda: gate.batches)
        assert admin.reload(ranking_bundle()).code == 200
        new = ask(**requests()[0])
        gate.opened.set()
        for answer, path in ((old, platform_bundle()), (new, ranking_bundle())):
            assert answer.result().json["model"] == model_of(path)
            assert answer.result().json["ids"] == loaded(path).rank(requests()[0]).ids


def test_replaced_bundles_are_freed() -> None:
    with running(platform_bundle()) as service, service.client() as client:
        old = []
        for number in range(20):
            served = service.service.slots["main"]
            assert served is not None
            old.append(weakref.ref(served.bundle))
            del served
            assert client.post("/rank", {**requests()[0], "explain": True}).code == 200
            client.post("/rank", {"k": 0})
            client.get("/model")
            assert client.reload([ranking_bundle(), platform_bundle()][number % 2]).code == 200
        eventually(lambda: not any(bundle() for bundle in old))


def test_calls_without_an_answer_do_not_keep_a_bundle_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reference cycle keeps it alive until the next garbage collection either."""
    run, opened = Bundle.run, threading.Event()

    def gated_run(bundle: Bundle, batch: EncodedRequests, *, explain: bool = False, sampled: Any = None) -> Answers:
        assert opened.wait(60)
        return run(bundle, batch, explain=explain, sampled=sampled)

    gc.disable()
    try:
        with running(platform_bundle()) as service, service.client() as client:
            old = weakref.ref(service.service.slots["main"].bundle)  # type: ignore[union-attr]
            monkeypatch.setattr(Bundle, "run", gated_run)
            for _ in range(2):  # one is computed, one is queued
                assert client.post("/rank", {"deadline": 100}).code == 504
            with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
                connection.sendall(HEADERS + b"{}".ljust(100))
                eventually(lambda: service.service.batcher.waiting)
            eventually(lambda: client.metric('rankfall_requests_total{code="499",endpoint="/rank"}'))
            assert client.post("/rank", {"exclude": [0] * 50_000, "k": 0}).code == 422  # parsed in another thread
            opened.set()
            assert client.reload(ranking_bundle()).code == 200
            eventually(lambda: old() is None)
    finally:
        opened.set()
        gc.enable()


def spoil(path: Path, how: str) -> None:
    """Change all files of a bundle in place, as a copy onto it would."""
    for file in (file for file in path.rglob("*") if file.is_file()):
        with file.open("r+b") as opened:
            if how == "truncate":
                opened.truncate(0)
            else:
                opened.write(b"\xff" * file.stat().st_size)


@contextmanager
def steady_requests(service: Running, expected: list[int | str]) -> Iterator[None]:
    """Send requests from two connections during the context and some more after it; all answers must be right."""
    ended = threading.Event()

    def send() -> int:
        with service.client() as client:
            for count in count_from(1):
                assert client.post("/rank", requests()[0]).json["ids"] == expected
                if ended.is_set() and count >= 20:
                    return count
        raise AssertionError("not reached")

    with ThreadPoolExecutor(2) as threads:
        senders = [threads.submit(send) for _ in range(2)]
        try:
            yield
        finally:
            ended.set()
        for sender in senders:
            assert sender.result(PATIENCE) >= 20


@pytest.mark.parametrize("how", ["truncate", "overwrite"])
def test_changes_of_served_files_have_no_effect(tmp_path: Path, how: str) -> None:
    """A mapped file would end this process, or change its answers."""
    path = shutil.copytree(platform_bundle(), tmp_path / "bundle")
    expected = loaded(platform_bundle()).rank(requests())
    with running(path) as service, service.client() as client:
        assert client.post("/rank", requests()[0]).json["ids"] == expected[0].ids
        with steady_requests(service, expected[0].ids):
            spoil(path, how)
            assert client.reload(path).code == 409
            shutil.copytree(platform_bundle(), path, dirs_exist_ok=True)  # in place again
            assert client.reload(path).code == 200
            spoil(path, how)
        content = client.post("/rank", {"requests": requests()}).json["rankings"]
        assert [ranking["ids"] for ranking in content] == [ranking.ids for ranking in expected]
        assert [ranking["scores"] for ranking in content] == [
            pytest.approx(ranking.scores, abs=1e-6) for ranking in expected
        ]
        assert client.post("/items", {"ids": expected[0].ids}).json["known"] == [True] * len(expected[0].ids)
        assert client.reload(path).code == 409
        assert client.post("/rank", requests()[0]).json["ids"] == expected[0].ids


@pytest.mark.parametrize(
    ("place", "graph", "why"),
    [
        (
            "retrieval/user.onnx",
            "ranking/scorer.onnx",
            r"stage retrieval: it needs item\.\w+, .*which the stage does not",
        ),
        (
            "ranking/scorer.onnx",
            "retrieval/user.onnx",
            r"stage ranking: it returns an array of shape \(\d+, \d+\), exp",
        ),
    ],
)
def test_a_graph_of_another_stage_is_refused_by_name(tmp_path: Path, place: str, graph: str, why: str) -> None:
    path = shutil.copytree(platform_bundle(), tmp_path / "bundle")
    shutil.copy(path / "stages" / graph, path / "stages" / place)
    files = json.loads((path / "manifest.json").read_text())["files"]
    edit_manifest(path / "manifest.json", files={name: about_file(path / name) for name in files})
    with running(platform_bundle()) as service, service.client() as client:
        answer = client.reload(path)
        assert answer.code == 409
        assert re.search(rf"{path / 'stages' / place} is not the graph of {why}", answer.json["error"])


def test_documents_change_with_the_bundle() -> None:
    with running(platform_bundle()) as service, service.client() as client:
        quotas = []
        for path in (platform_bundle(), ranking_bundle()):
            assert client.reload(path).code == 200
            assert client.get("/model").json["bundles"]["main"]["model"] == model_of(path)
            document = client.get("/openapi.json").json
            quotas.append(document["components"]["schemas"]["Request"]["properties"]["k"]["maximum"])
        assert quotas == [loaded(path).quotas[-1] for path in (platform_bundle(), ranking_bundle())]
