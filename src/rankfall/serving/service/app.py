"""The ASGI application: paths, and the life of what stands behind them."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from rankfall import __version__
from rankfall.serving.service.admin_routes import Admin
from rankfall.serving.service.batching import Batcher
from rankfall.serving.service.bundle_reloader import Follower
from rankfall.serving.service.bundle_slots import Slots
from rankfall.serving.service.http_io import ALWAYS, JSON, Bodies, GoneError, RefusedError, Reply, error_reply, header
from rankfall.serving.service.info_routes import HERE, File, Information, page_files
from rankfall.serving.service.rank_routes import Rankers
from rankfall.serving.service.service_metrics import Metrics
from rankfall.serving.service.shared_state import Board
from rankfall.serving.service.shutdown import Ending

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from rankfall.serving.service.bundle_slots import Served
    from rankfall.serving.service.settings import Settings

    Handler = Callable[[Scope, Receive], Awaitable[Reply]]

_log = logging.getLogger(__name__)
# Seconds that a thread of Python may keep others waiting. Threads that compute come back from every call of onnxruntime
# and faiss for a moment: with Python's own 5 ms they wait for the thread that reads and writes a third of their time.
_TURN = 0.00005
_CLOSE = (b"connection", b"close")
_HUNG_UP = 499  # in the metrics, as others have it: nobody is there to be told
# who may be asked for at a service of this machine alone: otherwise a web page whose name leads here could ask, too
_LOCAL = re.compile(rb"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d*)?", re.IGNORECASE)


class Endpoint:
    """A path: its handler, what errors become, and the metrics."""

    def __init__(self, path: str, handle: Handler, metrics: Metrics, ending: Ending, *, local: bool) -> None:
        self._path = path
        self._handle = handle
        self._metrics = metrics
        self._ending = ending
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        begin = perf_counter()
        try:
            if self._local:
                _check_host(header(scope, b"host"))
            reply = await self._handle(scope, receive)
        except RefusedError as error:
            if error.reason is not None:
                self._metrics.refused(error.reason)
            reply = error_reply(error)
            _forget_frames(error)
        except GoneError as error:
            self._metrics.call(self._path, _HUNG_UP, perf_counter() - begin)
            _forget_frames(error)
            return
        except Exception as error:
            _log.exception("%s failed", self._path)
            reply = error_reply(RefusedError(500, "the service failed to answer, which its log explains"))
            _forget_frames(error)
        self._metrics.call(self._path, reply.code, perf_counter() - begin)
        if self._ending.has_begun:  # so that nobody keeps a connection that will be gone
            reply = replace(reply, headers=dict.fromkeys([*reply.headers, _CLOSE]))
        await reply.send(send)


class Service(FastAPI):
    """Everything that one worker has."""

    def __init__(
        self, settings: Settings, board: Board | None = None, loaded: Mapping[str, Served] | None = None
    ) -> None:
        super().__init__(
            title="rankfall",
            version=__version__,
            openapi_url=None,  # the document follows from the bundles
            redirect_slashes=False,
            lifespan=_life,
            exception_handlers={HTTPException: self._no_such_path},
        )
        self.settings = settings
        self.slots = Slots()
        for slot, served in (loaded or {}).items():
            self.slots.put(slot, served)
        self.ending = Ending(settings.drain, is_worker=settings.shared is not None)
        self._board = board or Board(settings.shared)
        self.metrics = Metrics(self.slots, lambda: self.batcher.waiting, settings.shared)
        self.batcher = Batcher(
            threads=settings.threads, batch=settings.batch, queue=settings.queue, on_batch=self.metrics.batch
        )
        self.bodies = Bodies(settings.max_body, seconds=settings.body_seconds)
        self.rankers = Rankers(settings, self.slots, self.batcher, self.bodies)
        self.follower = Follower(settings, self.slots, self._board, self.metrics)
        self._endpoints: dict[tuple[str, str], Endpoint] = {}  # by method and path
        self._add()

    def _add(self) -> None:
        about = Information(self.settings, self.slots, self.metrics, self.ending, lambda: self.batcher.is_working)
        admin = Admin(self.settings.token, self.follower, self.bodies)
        posted: dict[str, Handler] = {"/rank": self.rankers.rank, "/reload": admin.reload}
        asked: dict[str, Handler] = {
            "/health": about.health,
            "/ready": about.ready,
            "/metrics": about.metrics,
            "/model": about.model,
            "/openapi.json": about.openapi,
            "/docs": about.docs,
            "/docs.css": File(HERE / "docs.css"),
        }
        if self.settings.page:
            posted["/score"] = self.rankers.score
            asked |= {"/examples": about.examples, **{path: File(file) for path, file in page_files().items()}}
        for method, handlers in (("POST", posted), ("GET", asked)):
            for path, handle in handlers.items():
                endpoint = Endpoint(path, handle, self.metrics, self.ending, local=self.settings.local)
                self._endpoints[method, path] = endpoint
                self.router.routes.append(Route(path, endpoint, methods=[method]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; what is no path of ours, and the start and the end, are the framework's matter."""
        # the layers that the framework has around an endpoint cost more than reading and writing a request
        endpoint = self._endpoints.get((scope.get("method", ""), scope.get("path", "")))
        await (super().__call__ if endpoint is None else endpoint)(scope, receive, send)

    async def _no_such_path(self, request: Request, error: Exception) -> Response:
        """Neither the path nor, for a path that there is, the method."""
        assert isinstance(error, HTTPException)
        self.metrics.call("other", error.status_code, 0.0)
        allowed = (error.headers or {}).get("Allow")
        message = "path: there is no such one, /docs lists all"
        if allowed is not None:
            message = f"method: found {request.method[:20]}, expected {allowed}"
        response = Response(error_reply(RefusedError(error.status_code, message)).body, error.status_code)
        response.raw_headers += [(b"content-type", JSON), *ALWAYS]
        if allowed is not None:
            response.headers["allow"] = allowed
        return response


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    assert isinstance(app, Service)
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    app.ending.start()
    app.batcher.start()
    await app.follower.start()
    yield
    await app.follower.stop()
    app.batcher.stop()
    app.bodies.stop()
    sys.setswitchinterval(before)


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what was at work when an error was raised.

    The future of a request keeps its error, the error its frames, and these the request with its bundle: a circle, in
    which a bundle that was replaced would stay until Python looks for circles, which it rarely does.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _check_host(host: bytes | None) -> None:
    if host is not None and _LOCAL.fullmatch(host) is None:
        found = host[:60].decode("latin-1")
        raise RefusedError(
            403, f"host: found {found}, expected localhost or 127.0.0.1, where the service listens", "host"
        )
