"""ASGI middleware: accepted host names, metrics of requests, and headers of all responses."""

from __future__ import annotations

import re
from time import perf_counter
from typing import TYPE_CHECKING

from rankfall.serving.service.http_io import CLOSE, ApiError, error_response
from rankfall.serving.value_checks import shown

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from rankfall.serving.service.service_metrics import ServiceMetrics
    from rankfall.serving.service.shutdown import ShutdownSignal

COMMON_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
_RAW_COMMON = [(name.encode(), value.encode()) for name, value in COMMON_HEADERS.items()]
_RAW_CLOSE = (b"connection", b"close")
_WITHOUT_HOST = ("0.9", "1.0")  # versions of HTTP that do not require the header
_HOST = re.compile(r"([\w.~%!$&'()*+,;=-]+|\[[\da-f:.]+\])(:\d*)?", re.IGNORECASE | re.ASCII)  # RFC 3986
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


class HostCheck:
    """Refuses requests without one valid Host header, as RFC 9112 requires, and foreign names if the service is local.

    Without the check of names, a web page could reach a service on this machine through a domain name that resolves to
    127.0.0.1.

    Args:
        app: The next ASGI application.
        local: Whether to accept local names only.
    """

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self.app = app
        self._local = local

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
        if self._local and not _LOCAL_HOST.fullmatch(hosts[0]):
            message = f"host: found {hosts[0][:60]}, expected localhost or 127.0.0.1, where the service listens"
            return ApiError(403, message, "host")
        return None
