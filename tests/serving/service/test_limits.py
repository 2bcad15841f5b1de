"""The limits of the service: one place, and the internals of uvicorn that enforce them."""

from __future__ import annotations

import inspect
import logging
import resource
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.supervisors.multiprocess import Multiprocess

from rankfall.commands.serve import serve
from rankfall.serving.service import settings as limits
from rankfall.serving.service.http_protocol import LimitedHttpProtocol, UpgradeIgnoringParser
from rankfall.serving.service.settings import Settings
from support.bundles import platform_bundle
from support.services import running

if TYPE_CHECKING:
    from collections.abc import Callable


def test_options_of_the_command_default_to_the_limits() -> None:
    options = inspect.signature(serve).parameters
    of_settings = {field.name: field.default for field in fields(Settings)}
    shared = {"batch", "queue", "deadline", "drain", "keep_alive", "max_body"}
    assert {name: options[name].default for name in shared} == {name: of_settings[name] for name in shared}


# --- internals of uvicorn -----------------------------------------------------------------------------------------

METHODS_TO_OVERRIDE = (
    "connection_made",
    "data_received",
    "connection_lost",
    "on_message_begin",
    "on_url",
    "on_header",
    "on_headers_complete",
    "on_body",
    "on_message_complete",
    "on_response_complete",
    "send_400_response",
    "timeout_keep_alive_handler",
    "shutdown",
    "pause_writing",
    "resume_writing",
)


@pytest.mark.parametrize("name", METHODS_TO_OVERRIDE)
def test_uvicorn_still_has_the_methods_that_the_protocol_overrides(name: str) -> None:
    theirs, ours = getattr(HttpToolsProtocol, name), getattr(LimitedHttpProtocol, name)
    assert ours is not theirs
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_the_protocol_overrides_nothing_else() -> None:
    def overrides(name: str, value: Any) -> bool:
        return callable(value) and hasattr(HttpToolsProtocol, name) and not name.startswith("__")

    assert {name for name, value in vars(LimitedHttpProtocol).items() if overrides(name, value)} == set(
        METHODS_TO_OVERRIDE
    )


def test_uvicorn_still_has_the_attributes_that_the_protocol_reads() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    config = uvicorn.Config(app, ws="none", log_config=None)
    protocol = HttpToolsProtocol(config, uvicorn.Server(config).server_state, {}, _loop=object())  # type: ignore[arg-type]
    for name in (
        "parser",
        "loop",
        "transport",
        "connections",
        "cycle",
        "flow",
        "scope",
        "headers",
        "timeout_keep_alive",
        "timeout_keep_alive_task",
        "_unset_keepalive_if_required",
    ):
        assert hasattr(protocol, name), name
    protocol.on_message_begin()
    assert protocol.url == b""
    assert {"pause_reading", "resume_reading"} <= set(vars(FlowControl))
    assert "self.flow.write_paused" in inspect.getsource(RequestResponseCycle)
    assert _SelectorSocketTransport.max_size > limits.RECEIVED_BYTES  # of a read, which the protocol lowers
    parameters = set(inspect.signature(RequestResponseCycle).parameters)
    assert {"scope", "transport"} <= parameters
    source = inspect.getsource(RequestResponseCycle)
    assert all(f"self.{name}" in source for name in ("response_complete", "more_body", "disconnected", "transport"))
    assert issubclass(UpgradeIgnoringParser, httptools.HttpRequestParser)


def test_uvicorn_still_has_what_the_processes_rely_on() -> None:
    for name in ("init_processes", "keep_subprocess_alive", "handle_int", "handle_term", "terminate_all", "join_all"):
        assert callable(getattr(Multiprocess, name)), name
    assert {"timeout_worker_healthcheck", "timeout_graceful_shutdown", "timeout_keep_alive"} <= set(
        inspect.signature(uvicorn.Config).parameters
    )


# --- unexpected errors --------------------------------------------------------------------------------------------


@pytest.mark.service
def test_an_unexpected_error_is_500_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bytes:
        raise RuntimeError("a fault for the log")

    with running(platform_bundle()) as service, service.client() as client:
        monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
        render: Callable[[], bytes] = service.service.metrics.render
        monkeypatch.setattr(service.service.metrics, "render", fail)
        answer = client.get("/metrics")
        assert answer.code == 500
        assert answer.json == {"error": "internal error; the log of the service has details"}
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        monkeypatch.setattr(service.service.metrics, "render", render)
        assert client.metric('rankfall_requests_total{code="500",endpoint="/metrics"}') == 1
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_few_file_descriptors_allow_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, expected in ((resource.RLIM_INFINITY, 4096), (1024, 896), (100, 1), (10**6, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, files=files: (files, files))
        assert limits.max_connections() == expected
