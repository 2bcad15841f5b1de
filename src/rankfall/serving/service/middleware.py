"""ASGI middleware: accepted host names, metrics of requests, and headers of all responses."""

from __future__ import annotations

import re
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from rankfall.serving.service.http_io import ApiError, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from rankfall.serving.service.service_metrics import ServiceMetrics
    from rankfall.serving.service.shutdown import ShutdownSignal

COMMON_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
_RAW_COMMON = [(name.encode(), value.encode()) for name, value in COMMON_HEADERS.items()]
_RAW_CLOSE = (b"connection", b"close")
_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d*)?", re.IGNORECASE | re.ASCII)


class ResponseRecorder:
    """Counts requests in the metrics and completes the headers of responses.

    Args:
        app: The next ASGI application.
        metrics: Metrics of this worker.
        shutdown: While it is received, responses ask clients to close their connection.
        paths: Paths of all routes; requests to any other path are counted as ``other``.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: ServiceMetrics, shutdown: ShutdownSignal, paths: frozenset[str]
    ) -> None:
        self.app = app
        self._metrics = metrics
        self._shutdown = shutdown
        self._paths = paths

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
                if self._shutdown.received and _RAW_CLOSE not in headers:
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
        is_known = scope["path"] in self._paths and status != 405
        self._metrics.record_request(scope["path"] if is_known else "other", status, perf_counter() - start)


class LocalHostCheck:
    """Refuses requests whose Host header is not a local name.

    Without it, a web page could reach a service on this machine through a domain name that resolves to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or _LOCAL_HOST.fullmatch(host):
            await self.app(scope, receive, send)
            return
        message = f"host: found {host[:60]}, expected localhost or 127.0.0.1, where the service listens"
        await error_response(ApiError(403, message, "host"))(scope, receive, send)
