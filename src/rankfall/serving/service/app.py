"""The ASGI application of one worker: its components, routes and lifespan."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from rankfall.serving.service.admin_routes import AdminRoutes
from rankfall.serving.service.batching import Batcher
from rankfall.serving.service.bundle_reloader import BundleReloader
from rankfall.serving.service.bundle_slots import BundleSlots
from rankfall.serving.service.event_routes import EventRoutes
from rankfall.serving.service.http_io import CLOSE, ApiError, BodyReader, error_response
from rankfall.serving.service.info_routes import InfoRoutes, docs_files, page_files
from rankfall.serving.service.middleware import COMMON_HEADERS, HostCheck, ResponseRecorder
from rankfall.serving.service.rank_routes import RankRoutes
from rankfall.serving.service.service_metrics import ServiceMetrics
from rankfall.serving.service.service_recording import ServiceRecording
from rankfall.serving.service.shared_state import SharedState
from rankfall.serving.service.shutdown import ShutdownSignal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request

    from rankfall.serving.service.bundle_slots import ServedBundle
    from rankfall.serving.service.settings import Settings

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
        routes = self._routes()
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

    def _routes(self) -> list[Route]:
        rank = RankRoutes(self.settings, self.slots, self.batcher, self.bodies, self.recording)
        events = EventRoutes(self.settings, self.slots, self.bodies, self.recording)
        info = InfoRoutes(self.settings, self.slots, self.metrics, self.shutdown, self._is_working)
        admin = AdminRoutes(self.settings.token, self.reloader, self.bodies)
        routes = [
            Route("/rank", rank.rank, methods=["POST"]),  # the first one, because routes are tried in order
            Route("/events", events.events, methods=["POST"]),
            Route("/health", info.health),
            Route("/ready", info.ready),
            Route("/metrics", info.metrics),
            Route("/model", info.model),
            Route("/reload", admin.reload, methods=["POST"]),
            Route("/openapi.json", info.openapi),
            Route("/docs", info.docs),
            *_file_routes(docs_files()),
        ]
        if self.settings.page:
            routes += [
                Route("/score", rank.score, methods=["POST"]),
                Route("/items", rank.items, methods=["POST"]),
                Route("/examples", info.examples),
                *_file_routes(page_files()),
            ]
        return routes

    def _is_working(self) -> bool:
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
            self.metrics.record_refusal(error.reason)
        _clear_tracebacks(error)
        return error_response(error)


def _file_routes(files: Mapping[str, Response]) -> list[Route]:
    return [Route(path, response, methods=["GET"]) for path, response in files.items()]


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
