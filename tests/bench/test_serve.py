"""Tests of `rankfall bench serve`: calls and their times, requests, and the measured rows."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.benchmarks import serve
from rankfall.serving import Bundle
from support.bundles import platform_bundle
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("bench serve")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


class Stub(BaseHTTPRequestHandler):
    """Answers after 20 ms, and every fifth call with 503."""

    protocol_version = "HTTP/1.1"
    bodies: list[Any]

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        time.sleep(0.02)
        self.send_response(503 if len(self.bodies) % 5 == 0 else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[int]:
    Stub.bodies = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_clients_send_their_next_call_after_the_answer(stub: int) -> None:
    bodies = serve.call_bodies([{"user": {"age": n}} for n in range(6)], 1)
    calls, counted = serve.send_calls(stub, bodies, clients=3, seconds=0.5)
    assert {code for _, _, code in calls} == {200, 503}
    assert all(end - start >= 0.02 for start, end, _ in calls)
    assert sum(start < counted for start, _, _ in calls) >= 3  # the warm-up
    assert 3 <= len(calls) == len(Stub.bodies) <= 3 * 0.6 / 0.02 + 3
    assert {body["user"]["age"] for body in Stub.bodies} == set(range(6))
    turns = serve._Turns()
    turns.add((calls, counted), in_call=1, seconds=0.5, cpu=1.0)
    row = turns.row("service", 1, 3, 1)
    measured = [(end, code) for start, end, code in calls if start >= counted]
    assert len(turns.calls[0]) == sum(code == 200 for _, code in measured)
    assert row.not_answered == sum(code == 503 for _, _, code in calls)
    assert row.requests_per_second <= 3 / 0.02
    assert 20 <= row.p50_ms <= row.p99_ms
    assert row.cpu_ms == pytest.approx(1000 / len(calls))


def test_calls_have_several_requests() -> None:
    (one, two) = serve.call_bodies([{"user": {"age": n}} for n in range(5)], 2)
    content = [json.loads(call.partition(b"\r\n\r\n")[2]) for call in (one, two)]
    ages = [[request["user"]["age"] for request in call["requests"]] for call in content]
    assert ages == [[0, 1], [2, 3]]


def test_overhead_is_the_median_over_the_turns() -> None:
    service, bundle = serve._Turns(), serve._Turns()
    for own, other in ((3.0, 2.0), (4.0, 2.0), (9.0, 3.0)):
        service.add(([(0.0, own, 200)], 0.0), 1, 10.0, None)
        bundle.add(([(0.0, other, 200)], 0.0), 1, 10.0, 1.0)
    assert service.row("service", 1, 1, 1, bundle).overhead == pytest.approx(1.0)
    assert service.row("service", 1, 1, 1).overhead is None
    assert service.row("service", 1, 1, 1).cpu_ms is None
    with pytest.raises(OSError, match="no call"):
        service.add(([(0.0, 1.0, 503)], 0.0), 1, 10.0, None)


def test_requests_are_built_from_examples(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [example["request"] for example in bundle.examples()]
    for request in serve.requests_like_examples(bundle, 50):
        assert request["user"] in [example["user"] for example in examples]
        assert request["sequences"] in [example["sequences"] for example in examples]
    monkeypatch.setattr(bundle, "examples", list)
    with pytest.raises(ValueError, match="--examples"):
        serve.requests_like_examples(bundle, 1)


@pytest.mark.slow
@pytest.mark.service
def test_services_and_the_bundle_are_measured(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "SETTINGS", ((1, 1), (2, 4)))
    monkeypatch.setattr(serve, "POOL", 64)
    reports: list[str] = []
    rows = serve.measure(bundle.path, seconds=0.2, turns=1, report=reports.append)
    assert len(reports) == serve.steps(1)
    services = [row for row in rows if row.name == "service"]
    assert [row.requests_in_call for row in rows if row.name == "bundle"] == list(serve.BATCHES)
    assert {(row.clients, row.requests_in_call) for row in services} == set(serve.SETTINGS)
    for row in rows:
        assert row.not_answered == 0
        assert row.requests_per_second > 0
        assert 0 < row.p50_ms <= row.p99_ms
        assert (row.overhead is not None) == (row.name == "service" and row.threads == 1)  # as the bundle has

    def measured(path: Path, *, seconds: float, report: object) -> list[serve.Row]:
        return rows

    monkeypatch.setattr(serve, "measure", measured)
    assert run("bench", "serve", bundle.path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["p50_ms"] == rows[0].p50_ms
    assert run("bench", "serve", bundle.path) == 0
    shown = capsys.readouterr().out
    assert all(heading in shown for heading in ("requests per second", "p99 ms", "overhead"))
    assert "…" not in shown  # no cell is truncated


def test_a_missing_bundle_is_named(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "serve", bundle.path.parent / "nothing") == 1
    assert "is not a bundle" in capsys.readouterr().err
