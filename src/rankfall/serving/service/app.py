"""The ASGI application of one worker: its components, routes and lifespan."""

from __future__ import annotations

import re
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from rankfall.serving.service.batching import Batcher
from rankfall.serving.service.bundle_slots import BundleReloader, BundleSlots, SharedState
from rankfall.serving.service.http_io import CLOSE, ApiError, BodyReader, error_response
from rankfall.serving.service.routes import Routes
from rankfall.serving.service.service_recording import ServiceMetrics, ServiceRecording
from rankfall.serving.service.settings import ShutdownSignal
from rankfall.serving.value_encoders import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from rankfall.serving.service.bundle_slots import ServedBundle
    from rankfall.serving.service.settings import Settings


COMMON_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
_RAW_COMMON = [(name.encode(), value.encode()) for name, value in COMMON_HEADERS.items()]
_RAW_CLOSE = (b"connection", b"close")
_WITHOUT_HOST = ("0.9", "1.0")  # versions of HTTP that do not require the header
_HOST = re.compile(r"([\w.~%!$&'()*+,;=-]+|\[[\da-f:.]+\])(:\d*)?", re.IGNORECASE | re.ASCII)  # RFC 3986
_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d*)?", re.IGNORECASE | re.ASCII)


@dataclass(eq=False, slots=True)
class ResponseRecorder:
    """Counts requests in the metrics and completes the headers of responses.

    Args:
        app: The next ASGI application.
        metrics: Metrics of this worker.
        shutdown: While it is received, responses ask clients to close their connection.
        paths: Paths of all routes; requests to any other path are counted as ``other``.
    """

    app: ASGIApp
    metrics: ServiceMetrics
    shutdown: ShutdownSignal
    paths: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = perf_counter()
        started = False

        async def complete(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._record(scope, message["status"], start)
                headers = [*message["headers"], *_RAW_COMMON]
                if self.shutdown.received and _RAW_CLOSE not in headers:
                    headers.append(_RAW_CLOSE)
                message["headers"] = headers  # not in place: a response that is sent repeatedly owns the list
            await send(message)

        try:
            await self.app(scope, receive, complete)
        except Exception:  # Starlette responds to it with 500 outside of this middleware
            if not started:
                self._record(scope, 500, start)
            raise

    def _record(self, scope: Scope, status: int, start: float) -> None:
        is_known = scope["path"] in self.paths and status != 405
        self.metrics.record_request(scope["path"] if is_known else "other", status, perf_counter() - start)


@dataclass(eq=False, slots=True)
class HostCheck:
    """Refuses requests without one valid Host header, as RFC 9112 requires, and foreign names if the service is local.

    Without the check of names, a web page could reach a service on this machine through a domain name that resolves to
    127.0.0.1.

    Args:
        app: The next ASGI application.
        local: Whether to accept local names only.
    """

    app: ASGIApp
    local: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        error = self._error(scope) if scope["type"] == "http" else None
        await (self.app if error is None else error_response(error))(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not hosts and scope["http_version"] in _WITHOUT_HOST:
            return None
        if len(hosts) != 1:
            found = f"{len(hosts)} Host headers" if hosts else "no Host header"
            return ApiError(400, f"host: found {found}, expected one", "host", CLOSE)
        if not _HOST.fullmatch(hosts[0]):
            return ApiError(400, f"host: found {shown(hosts[0])}, expected a name or address", "host", CLOSE)
        if self.local and not _LOCAL_HOST.fullmatch(hosts[0]):
            message = f"host: found {hosts[0][:60]}, expected localhost or 127.0.0.1, where the service listens"
            return ApiError(403, message, "host")
        return None


# Seconds after which a running Python thread hands over to a waiting one. Compute threads need the interpreter for a
# moment after every call of onnxruntime and faiss. With Python's default of 5 ms they wait a third of their time.
_SWITCH_INTERVAL = 0.00005
_CLIENT_CLOSED_REQUEST = 499  # nginx's status code, for the metrics: the client has disconnected


class Service:
    """All components of one worker, and its ASGI application `app`.

    Args:
        settings: Options of the service.
        shared: State shared with other workers; by default that of `settings`.
        loaded: Bundles to serve from the start, by slot.
    """

    def __init__(
        self,
        settings: Settings,
        shared: SharedState | None = None,
        loaded: Mapping[str, ServedBundle] | None = None,
    ) -> None:
        self.settings = settings
        self.slots = BundleSlots()
        for slot, served in (loaded or {}).items():
            self.slots.put(slot, served)
        self.shutdown = ShutdownSignal(settings.drain, is_worker=settings.shared is not None)
        self.metrics = ServiceMetrics(
            self.slots,
            lambda: self.batcher.waiting,
            lambda: 0 if self.recording is None else self.recording.waiting,
            settings.shared,
        )
        self.recording = None if settings.samples is None else ServiceRecording(settings, self.metrics)
        self.batcher = Batcher(
            threads=settings.threads, batch=settings.batch, queue=settings.queue, on_batch=self.metrics.record_batch
        )
        self.bodies = BodyReader(settings.max_body, seconds=settings.body_seconds)
        self.reloader = BundleReloader(settings, self.slots, shared or SharedState(settings.shared), self.metrics)
        self.app = self._create_app()

    def _create_app(self) -> Starlette:
        routes = Routes(self).table()
        recorder = Middleware(
            ResponseRecorder,
            metrics=self.metrics,
            shutdown=self.shutdown,
            paths=frozenset(route.path for route in routes),
        )
        app = Starlette(
            routes=routes,
            middleware=[recorder, Middleware(HostCheck, local=self.settings.local)],
            exception_handlers={
                ApiError: self._api_error,
                HTTPException: _unknown_path_or_method,
                ClientDisconnect: _client_disconnected,
                Exception: _internal_error,
            },
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        return app

    def is_working(self) -> bool:
        """Return whether all threads that compute and record are alive."""
        return self.batcher.is_working and (self.recording is None or self.recording.is_working)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self.shutdown.install()
        self.batcher.start()
        if self.recording is not None:
            self.recording.start()
        await self.reloader.start()
        yield
        self.shutdown.finish()
        await self.reloader.stop()
        self.batcher.stop()
        if self.recording is not None:
            self.recording.stop()
        self.bodies.stop()
        sys.setswitchinterval(switch_interval)

    async def _api_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        if error.reason is not None:
            self.metrics.refused.labels(error.reason).inc()
        _clear_tracebacks(error)
        return error_response(error)


# --- exception handlers -------------------------------------------------------------------------------------------


async def _unknown_path_or_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow")
    message = "unknown path; /docs lists all paths"
    if allowed is not None:
        message = f"method: found {request.method[:20]}, expected {allowed}"
    return error_response(HTTPException(error.status_code, message, error.headers))


async def _client_disconnected(request: Request, error: Exception) -> Response:
    _clear_tracebacks(error)
    return Response(status_code=_CLIENT_CLOSED_REQUEST)  # the server drops it, the metrics count it


async def _internal_error(request: Request, error: Exception) -> Response:
    """Respond with 500; Starlette then raises the error again, uvicorn logs it and closes the connection."""
    message = "internal error; the log of the service has details"
    return error_response(HTTPException(500, message, {**COMMON_HEADERS, **CLOSE}))


def _clear_tracebacks(error: BaseException | None) -> None:
    """Release the frames that an error refers to.

    The future of a request holds its error, the error its frames, and these the request with its bundle. A replaced
    bundle would stay in memory until Python's garbage collector finds that cycle, which it does rarely.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
