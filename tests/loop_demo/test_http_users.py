"""Users over HTTP, against a small server that is busy, hangs up or refuses."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.loop_demo import loop_days as http_users
from rankfall.loop_demo.loop_days import HttpUsers, ServedModel, ServiceError, is_late, with_repetitions

if TYPE_CHECKING:
    from collections.abc import Iterator


class Server(ThreadingHTTPServer):
    """Answers with `statuses` in turn, then with 200; 0 closes the connection without an answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses: list[int] = []
        self.bodies: list[Any] = []
        self.connections: set[Any] = set()
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            status = self.server.statuses.pop(0) if self.server.statuses else 200
            self.server.bodies.append(body)
            self.server.connections.add(self.client_address)
        if status == 0:
            self.close_connection = True
            return
        events = body.get("events")
        self.answer(status, {"ids": [body.get("time")]} if events is None else {"accepted": len(events)})

    def do_GET(self) -> None:
        self.answer(200, {"bundles": {"main": {"model": "m", "path": "2024-01-13"}, "other": None}})

    def answer(self, status: int, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http_users, "PAUSE_SECONDS", 0.01)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_answers_have_the_order_of_their_requests_over_few_connections(server: Server) -> None:
    with HttpUsers(server.server_port) as users:
        answers = users.rank([{"time": number} for number in range(50)])
        assert [answer["ids"] for answer in answers] == [[number] for number in range(50)]
        assert users.served() == ServedModel("m", "2024-01-13")
    assert len(server.connections) <= http_users.CONNECTIONS


def test_events_are_sent_per_request_and_counted(server: Server) -> None:
    with HttpUsers(server.server_port) as users:
        assert users.report([[{"id": "a"}, {"id": "b"}], [], [{"id": "c"}]]) == 3
    assert sorted(len(body["events"]) for body in server.bodies) == [1, 2]


def test_a_busy_service_and_a_lost_connection_are_asked_again(server: Server) -> None:
    server.statuses = [503, 0, 504]
    with HttpUsers(server.server_port) as users:
        assert users.rank([{"time": 1}])[0]["ids"] == [1]
    assert len(server.bodies) == 4


def test_a_refused_call_is_an_error_with_the_answer(server: Server) -> None:
    server.statuses = [422]
    with (
        HttpUsers(server.server_port) as users,
        pytest.raises(ServiceError, match=r"POST /rank: the service answered 422: .*ids"),
    ):
        users.rank([{"time": 1}])


def test_a_service_that_is_not_there_is_an_error(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_users, "TRIES", 2)
    with HttpUsers(1) as users:  # nobody listens on this port
        assert users.served() is None
        with pytest.raises(ServiceError, match="POST /events: the service does not answer"):
            users.report([[{"id": "a"}]])


def test_some_events_are_repeated_and_some_requests_are_late() -> None:
    events = [{"id": f"{number}-like"} for number in range(4000)]
    sent = with_repetitions(events)
    assert [event for at, event in enumerate(sent) if not at or event is not sent[at - 1]] == events
    assert 0.01 < len(sent) / len(events) - 1 < 0.05
    assert 0.005 < sum(is_late(str(number)) for number in range(4000)) / 4000 < 0.04
