"""What a service says of itself, and the files of its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import orjson

from rankfall.serving.service import service_metrics as prometheus
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.docs_example import ADDRESS, example
from rankfall.serving.service.docs_page import docs_page
from rankfall.serving.service.http_io import RETRY, RefusedError, Reply, header, json_reply
from rankfall.serving.service.openapi import openapi

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope

    from rankfall.serving.service.bundle_slots import Slots
    from rankfall.serving.service.service_metrics import Metrics
    from rankfall.serving.service.settings import Settings
    from rankfall.serving.service.shutdown import Ending

HERE = Path(__file__).parent
KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_HOST = re.compile(rb"[\w.-]{1,253}(:\d{1,5})?|\[[\da-fA-F:]{2,39}\](:\d{1,5})?")
# Pages may load what this service serves, nothing else, and nobody may put them into a frame.
SAFE = [
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


class Information:
    """Answers questions about the service."""

    def __init__(
        self, settings: Settings, slots: Slots, metrics: Metrics, ending: Ending, is_working: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._metrics = metrics
        self._ending = ending
        self._is_working = is_working
        self._made: dict[str, tuple[int, bytes]] = {}  # what is the same until a bundle is replaced

    async def health(self, scope: Scope, receive: Receive) -> Reply:
        """Whether the process answers at all."""
        return json_reply({"status": "ok"})

    async def ready(self, scope: Scope, receive: Receive) -> Reply:
        """Whether it can rank, and will for a while."""
        if self._ending.has_begun:
            raise RefusedError(503, "the service is ending", headers=[RETRY])
        served = self._slots[MAIN]
        if served is None or not self._is_working():
            raise RefusedError(503, "no bundle is loaded yet, or nothing works on the line", headers=[RETRY])
        return json_reply({"status": "ready", "model": served.model})

    async def metrics(self, scope: Scope, receive: Receive) -> Reply:
        """What Prometheus reads."""
        return Reply(self._metrics.text(), kind=prometheus.KIND)

    async def model(self, scope: Scope, receive: Receive) -> Reply:
        """The bundles that are served."""

        def content() -> object:
            bundles = {slot: self._slots[slot] for slot in SLOTS}
            return {"bundles": {slot: served and served.about() for slot, served in bundles.items()}}

        return Reply(self._until_swapped("model", lambda: orjson.dumps(content())))

    async def examples(self, scope: Scope, receive: Receive) -> Reply:
        """Requests that a bundle was tried on."""
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        slot = given.get("bundle", MAIN)
        served = self._slots[slot] if slot in SLOTS else None
        if served is None:
            loaded = " or ".join(self._slots.models())
            raise RefusedError(422, f"bundle: found {slot[:60]!r}, expected {loaded}", "bundle")
        return json_reply({"examples": [example["request"] for example in served.bundle.examples()]})

    async def openapi(self, scope: Scope, receive: Receive) -> Reply:
        """The OpenAPI document, with the requests that the bundles take now."""
        return Reply(self._until_swapped("openapi", lambda: orjson.dumps(openapi(self._settings, self._slots))))

    async def docs(self, scope: Scope, receive: Receive) -> Reply:
        """The same for people."""

        def content() -> str:
            served = self._slots[MAIN]
            to_try = None if served is None else example(served, real=self._settings.page)
            return docs_page(openapi(self._settings, self._slots), to_try)

        made = self._until_swapped("docs", lambda: content().encode())
        # It comes before anything of the bundle that may look like it.
        return Reply(made.replace(ADDRESS.encode(), _address(scope), 1), kind=KINDS[".html"], headers=SAFE)

    def _until_swapped(self, name: str, make: Callable[[], bytes]) -> bytes:
        changes = self._slots.changes
        made = self._made.get(name)
        if made is None or made[0] != changes:
            made = self._made[name] = changes, make()
        return made[1]


def _address(scope: Scope) -> bytes:
    """Where the service was asked, if the client says so in a way that can be shown to others."""
    host = header(scope, b"host") or b""
    if not _HOST.fullmatch(host):
        name, port = scope["server"]
        host = (f"[{name}]:{port}" if ":" in name else f"{name}:{port}").encode()
    return b"http://" + host


class File:
    """A file, as it was when the service started."""

    def __init__(self, path: Path) -> None:
        self._reply = Reply(path.read_bytes(), kind=KINDS[path.suffix], headers=SAFE)

    async def __call__(self, scope: Scope, receive: Receive) -> Reply:
        """The file."""
        return self._reply


def page_files() -> dict[str, Path]:
    """The files of the page by their paths in the service."""
    files = {f"/{file.name}": file for file in sorted((HERE / "page").iterdir()) if file.suffix in KINDS}
    return {"/" if path == "/index.html" else path: file for path, file in files.items()}
