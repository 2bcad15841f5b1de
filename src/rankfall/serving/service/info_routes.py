"""Endpoints that describe the service: health, metrics, bundles, documentation and the files of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from rankfall.serving.service import service_metrics
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.docs_example import ADDRESS, docs_example
from rankfall.serving.service.docs_page import docs_page
from rankfall.serving.service.http_io import JSON, RETRY_AFTER, ApiError, JsonResponse
from rankfall.serving.service.openapi import openapi_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from rankfall.serving.service.bundle_slots import BundleSlots
    from rankfall.serving.service.service_metrics import ServiceMetrics
    from rankfall.serving.service.settings import Settings
    from rankfall.serving.service.shutdown import ShutdownSignal

_DIRECTORY = Path(__file__).parent
_HTML = "text/html; charset=utf-8"
_MEDIA_TYPES = {
    ".html": _HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HOST = re.compile(r"[\w.-]{1,253}(:\d{1,5})?|\[[\da-fA-F:]{2,39}\](:\d{1,5})?", re.ASCII)
# Pages may load only what this service serves, and no other site may show them in a frame.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


class InfoRoutes:
    """Endpoints that describe the service.

    Args:
        settings: Options of the service.
        slots: The bundles that are served.
        metrics: Metrics of the service.
        shutdown: Makes ``/ready`` fail once it is received.
        is_working: Returns whether all compute threads are alive.
    """

    def __init__(
        self,
        settings: Settings,
        slots: BundleSlots,
        metrics: ServiceMetrics,
        shutdown: ShutdownSignal,
        is_working: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._metrics = metrics
        self._shutdown = shutdown
        self._is_working = is_working
        self._cache: dict[str, tuple[int, bytes]] = {}  # bodies that are valid until a bundle is replaced

    async def health(self, request: Request) -> Response:
        """Report that the process responds."""
        return JsonResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Report whether the service can rank and is not shutting down."""
        if self._shutdown.received:
            raise ApiError(503, "the service is shutting down", headers=RETRY_AFTER)
        served = self._slots[MAIN]
        if served is None or not self._is_working():
            raise ApiError(503, "no bundle is loaded yet, or a compute thread has stopped", headers=RETRY_AFTER)
        return JsonResponse({"status": "ready", "model": served.model})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(self._metrics.render(), media_type=service_metrics.MEDIA_TYPE)

    async def model(self, request: Request) -> Response:
        """Describe the bundles that are served."""

        def content() -> object:
            bundles = {slot: self._slots[slot] for slot in SLOTS}
            return {"bundles": {slot: served and served.describe() for slot, served in bundles.items()}}

        return Response(self._cached("model", lambda: orjson.dumps(content())), media_type=JSON)

    async def examples(self, request: Request) -> Response:
        """Return the example requests of a bundle."""
        slot = request.query_params.get("bundle", MAIN)
        served = self._slots[slot] if slot in SLOTS else None
        if served is None:
            loaded = " or ".join(self._slots.models())
            raise ApiError(422, f"bundle: found {slot[:60]!r}, expected {loaded}", "bundle")
        examples = served.bundle.examples()
        known = [{key: example.get(key) for key in ("relevant", "feedback")} for example in examples]
        return JsonResponse({"examples": [example["request"] for example in examples], "known": known})

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document, whose request schema is that of the bundles that are served."""
        body = self._cached("openapi", lambda: orjson.dumps(openapi_document(self._settings, self._slots)))
        return Response(body, media_type=JSON)

    async def docs(self, request: Request) -> Response:
        """Return the OpenAPI document as an HTML page."""

        def content() -> str:
            served = self._slots[MAIN]
            example = None if served is None else docs_example(served, real=self._settings.page)
            return docs_page(openapi_document(self._settings, self._slots), example)

        page = self._cached("docs", lambda: content().encode())
        # Only the first occurrence: texts of the bundle, which come later, may contain the placeholder, too.
        page = page.replace(ADDRESS.encode(), _address(request).encode(), 1)
        return Response(page, media_type=_HTML, headers=_PAGE_HEADERS)

    def _cached(self, name: str, render: Callable[[], bytes]) -> bytes:
        """Return the body of that name, which is rendered again after a bundle was replaced."""
        version = self._slots.version
        cached = self._cache.get(name)
        if cached is None or cached[0] != version:
            cached = self._cache[name] = version, render()
        return cached[1]


def _address(request: Request) -> str:
    """Return the address under which the client reached the service, from its Host header if that is well-formed."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        name, port = request.scope["server"]
        host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return f"http://{host}"


def docs_files() -> dict[str, Response]:
    """Return the files of the documentation page by path."""
    return {"/docs.css": _file_response(_DIRECTORY / "docs.css")}


def page_files() -> dict[str, Response]:
    """Return the files of the page by path."""
    files = sorted(file for file in (_DIRECTORY / "page").iterdir() if file.suffix in _MEDIA_TYPES)
    return {"/" if file.name == "index.html" else f"/{file.name}": _file_response(file) for file in files}


def _file_response(file: Path) -> Response:
    return Response(file.read_bytes(), media_type=_MEDIA_TYPES[file.suffix], headers=_PAGE_HEADERS)
