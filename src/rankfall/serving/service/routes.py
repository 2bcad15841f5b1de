"""The endpoints: they check requests, queue computations, record events and describe the service."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from rankfall.encoding import BadValueError
from rankfall.serving.recording.recorder import Event, QueueFullError
from rankfall.serving.request_encoder import KEYS as FEATURE_GROUPS
from rankfall.serving.request_encoder import NO_ITEM
from rankfall.serving.service import settings as limits
from rankfall.serving.service.batching import PendingCall
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.docs_page import ADDRESS, docs_example, docs_page
from rankfall.serving.service.http_io import (
    JSON,
    RETRY_AFTER,
    ApiError,
    JsonResponse,
    check_keys,
    invalid_field,
    invalid_value,
    parse_json,
)
from rankfall.serving.service.http_protocol import ON_DISCONNECT
from rankfall.serving.service.openapi import BUNDLE, CALL, EVENT, ID, RELOAD, openapi_document
from rankfall.serving.service.service_recording import MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from rankfall.serving.bundle import Ranking
    from rankfall.serving.service.app import Service
    from rankfall.serving.service.bundle_slots import ServedBundle
    from rankfall.serving.service.service_recording import RecordedCall, ServiceRecording

T = TypeVar("T")

_log = logging.getLogger(__name__)
REQUEST_OPTIONS = ("k", "candidates", "exclude", "request")  # of each request, besides its features
_DEADLINE = re.compile(rb'"deadline"\s*:\s*(\d{1,9})')  # in a body that is not parsed yet
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


@dataclass(eq=False, slots=True, kw_only=True)
class Call(PendingCall):
    """A validated call, which has one request or several.

    Attributes:
        ids: Ids of the requests.
        has_one_request: Whether the body is a single request instead of a list.
        recorded: What is recorded of it, if the service records what it answers.
    """

    ids: list[str]
    has_one_request: bool
    recorded: RecordedCall | None


class Routes:
    """The endpoints of a service, which use its components.

    Args:
        service: The service.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._settings, self._slots = service, service.settings, service.slots
        self._cache: dict[str, tuple[int, bytes]] = {}  # bodies, valid until a bundle is replaced

    def table(self) -> list[Route]:
        """Return the routes."""
        routes = [
            Route("/rank", self.rank, methods=["POST"]),  # the first one, because routes are tried in order
            Route("/events", self.events, methods=["POST"]),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
            Route("/model", self.model),
            Route("/reload", self.reload, methods=["POST"]),
            Route("/openapi.json", self.openapi),
            Route("/docs", self.docs),
        ]
        files = {"/docs.css": _DIRECTORY / "docs.css"}
        if self._settings.page:
            routes += [
                Route("/score", self.score, methods=["POST"]),
                Route("/items", self.items, methods=["POST"]),
                Route("/examples", self.examples),
            ]
            page = sorted(file for file in (_DIRECTORY / "page").iterdir() if file.suffix in _MEDIA_TYPES)
            files |= {"/" if file.name == "index.html" else f"/{file.name}": file for file in page}
        for path, file in files.items():
            response = Response(file.read_bytes(), media_type=_MEDIA_TYPES[file.suffix], headers=_PAGE_HEADERS)
            routes.append(Route(path, response, methods=["GET"]))
        return routes

    # --- ranking --------------------------------------------------------------------------------------------------

    async def rank(self, request: Request) -> Response:
        """Return the best items for one request or several."""
        recording = self._service.recording
        call = await self._call(request, recording)
        result = await self._result(call, request)
        if recording is not None and call.recorded is not None:
            recording.record(call.recorded, call.served, result.content)
        rankings = [_ranking_content(*answer) for answer in zip(call.ids, result.content, strict=True)]
        content = rankings[0] if call.has_one_request else {"rankings": rankings}
        milliseconds = {stage: round(value, 3) for stage, value in result.milliseconds.items()}
        return JsonResponse({"model": call.served.model, **content, "milliseconds": milliseconds})

    async def score(self, request: Request) -> Response:
        """Return the scores of candidates by every stage."""
        call = await self._call(request, None)
        if not call.has_one_request:
            raise ApiError(422, f"requests: found {len(call.ids):,} requests, expected one request", "requests")
        if call.batch.given[0] is None:
            raise invalid_value("candidates", None, "a list of item ids")
        bundle, batch = call.served.bundle, call.batch  # a reference to the call itself would keep the bundle
        call.work = lambda: bundle.run_scores(batch)[0]
        result = await self._result(call, request)
        return JsonResponse({"model": call.served.model, "scores": result.content})

    async def _call(self, request: Request, recording: ServiceRecording | None) -> Call:
        """Return the validated call with its encoded requests; refuse it without reading if the queue is full."""
        arrived = monotonic()
        self._service.batcher.check_queue(self._settings.deadline / 1000)

        def seconds(body: bytes) -> float:
            """Return the time until the likely deadline of a body that is not parsed: features may have that name."""
            found = [int(digits) for digits in _DEADLINE.findall(body)]
            deadline = min(max(found), limits.MAX_DEADLINE_MS) if found else self._settings.deadline
            return arrived + deadline / 1000 - monotonic()

        query = dict(request.query_params)
        return await self._read(request, lambda body: self._parse_call(body, query, recording, arrived), seconds)

    async def _read(self, request: Request, parse: Callable[[bytes], T], seconds: Callable[[bytes], float]) -> T:
        """Return what `parse` makes of the body of a request, within a number of seconds."""
        body = await self._service.bodies.read(request)
        return await self._service.bodies.process(len(body), lambda: parse(body), seconds=lambda: seconds(body))

    async def _result(self, call: Call, request: Request) -> Any:
        request.scope[ON_DISCONNECT] = lambda: self._service.batcher.cancel(call, ClientDisconnect())
        try:
            return await self._service.batcher.compute(call)
        except ApiError as error:
            if call.has_one_request:
                raise _error_of_single(error) from None
            rest = error.detail.removeprefix("request:")  # a request computed alone has no index yet
            raise (error if rest == error.detail else invalid_field(f"requests[0]:{rest}")) from None
        finally:
            del request.scope[ON_DISCONNECT]  # an idle connection keeps its last scope, which would keep the bundle

    def _content(self, body: bytes) -> dict[str, Any]:
        return parse_json(body, max_names=limits.max_names(self._settings.max_body))

    def _parse_call(
        self, body: bytes, query: dict[str, str], recording: ServiceRecording | None, arrived: float
    ) -> Call:
        content = self._content(body)
        has_one_request = "requests" not in content
        of_requests = (*FEATURE_GROUPS, *REQUEST_OPTIONS) if has_one_request else ("requests",)
        check_keys(content, (*of_requests, *CALL))
        check_keys(query, ("explain",), "query")
        in_query = {name: {"true": True, "false": False}.get(value, value) for name, value in query.items()}
        explain = [CALL["explain"].read(given, "explain") for given in (in_query, content)]
        served, deadline = self._served(content), CALL["deadline"].read(content, "deadline")
        requests = [content] if has_one_request else self._requests(content["requests"])
        try:
            ids = [
                secrets.token_hex(16)
                if request.get("request") is None
                else ID.read(request, "request", f"requests[{place}].")
                for place, request in enumerate(requests)
            ]
            features = [{group: request[group] for group in FEATURE_GROUPS if group in request} for request in requests]
            if recording is not None:
                recording.set_missing_times(features)
            numbers = [request.get("k") for request in requests]
            try:
                batch = served.bundle.encode(
                    features,
                    # JSON does not distinguish 3.0 from 3
                    k=[int(k) if isinstance(k, float) and k.is_integer() else k for k in numbers],
                    candidates=[request.get("candidates") for request in requests],
                    exclude=[request.get("exclude") for request in requests],
                )
            except ValueError as error:
                raise invalid_field(str(error)) from None
            recorded = None if recording is None else recording.prepare(served.bundle, ids, features, len(body))
        except ApiError as error:
            raise (_error_of_single(error) if has_one_request else error) from None
        milliseconds = self._settings.deadline if deadline is None else float(deadline)
        return Call(
            served=served,
            batch=batch,
            deadline=arrived + milliseconds / 1000,
            explain=any(explain),
            sampled=None if recorded is None else recorded.sampled,
            ids=ids,
            has_one_request=has_one_request,
            recorded=recorded,
        )

    def _requests(self, requests: Any) -> list[dict[str, Any]]:
        if not isinstance(requests, list):
            raise invalid_value("requests", requests, "a list of requests")
        if not 1 <= len(requests) <= self._settings.queue:
            message = f"requests: found {len(requests):,} requests, expected 1 to {self._settings.queue:,}"
            raise ApiError(422, message, "requests")
        for place, request in enumerate(requests):
            if not isinstance(request, dict):
                raise invalid_value(f"requests[{place}]", request, "a request")
            check_keys(request, (*FEATURE_GROUPS, *REQUEST_OPTIONS), f"requests[{place}]")
        return requests

    def _served(self, content: dict[str, Any]) -> ServedBundle:
        slot = MAIN if content.get("bundle") is None else BUNDLE.read(content, "bundle")
        served = self._slots[slot]
        if served is None and slot == MAIN:
            raise ApiError(503, "no bundle is loaded yet; try again", headers=RETRY_AFTER, reason="no bundle")
        if served is None:
            raise invalid_value("bundle", slot, f"{MAIN}, because no other bundle is loaded")
        return served

    # --- items and events -----------------------------------------------------------------------------------------

    async def items(self, request: Request) -> Response:
        """Return the attributes of items that are shown to people."""
        content = await self._read(request, self._content, lambda body: self._settings.deadline / 1000)
        check_keys(content, ("ids", "bundle"))
        served = self._served(content)
        ids = content.get("ids")
        if not isinstance(ids, list):
            raise invalid_value("ids", ids, "a list of item ids")
        if len(ids) > limits.SHOWN_ITEMS:
            raise ApiError(422, f"ids: found {len(ids):,} ids, expected at most {limits.SHOWN_ITEMS:,}", "ids")
        try:
            rows = served.bundle.items.rows(ids)
        except BadValueError as error:
            raise invalid_field(f"ids[{error.position}]: {error}") from None
        known = (rows != NO_ITEM).tolist()
        return JsonResponse({"model": served.model, "known": known, "display": served.bundle.items.display(rows)})

    async def events(self, request: Request) -> Response:
        """Write events that clients report, and respond when they are durable."""
        recording = self._service.recording
        if recording is None:
            raise ApiError(404, "events: the service records nothing; start it with --samples")
        events = await self._read(
            request, lambda body: self._parse_events(body, recording), lambda body: limits.EVENT_SECONDS
        )
        try:
            async with asyncio.timeout(limits.EVENT_SECONDS):
                await recording.events.write(events)
            return JsonResponse({"accepted": len(events)})
        except QueueFullError:
            why = "too many wait to be written"
        except TimeoutError:
            why = f"they were not written within {limits.EVENT_SECONDS:g} seconds"
        except OSError:
            why = "they could not be written; the log of the service has details"
        raise ApiError(503, f"events: {why}; try again", headers=RETRY_AFTER, reason="events")

    def _parse_events(self, body: bytes, recording: ServiceRecording) -> list[Event]:
        content = self._content(body)
        check_keys(content, ("events",))
        events = content.get("events")
        if not isinstance(events, list):
            raise invalid_value("events", events, "a list of events")
        if not 1 <= len(events) <= limits.EVENTS:
            raise ApiError(422, f"events: found {len(events):,} events, expected 1 to {limits.EVENTS:,}", "events")
        bundle = self._served({}).bundle  # which says how times are written
        found = []
        for place, given in enumerate(events):
            where = f"events[{place}]"
            if not isinstance(given, dict):
                raise invalid_value(where, given, "an event")
            check_keys(given, (*EVENT, "time"), where)
            id, of, item, kind, value = (field.read(given, name, f"{where}.") for name, field in EVENT.items())
            text = item if isinstance(item, str) else str(int(item))
            try:
                time = given.get("time")
                moment = recording.now(f"{where}.time") if time is None else bundle.read_times([time])[0]
            except BadValueError as error:
                raise invalid_field(f"{where}.time: {error}") from None
            found.append(Event(id, of, text, kind, 1.0 if value is None else float(value), moment))
        return found

    # --- bundles --------------------------------------------------------------------------------------------------

    async def reload(self, request: Request) -> Response:
        """Load a bundle into a slot; this requires the token."""
        if self._settings.token is None:
            options = "--token-file and without the variable RANKFALL_TOKEN"
            raise ApiError(403, f"authorization: reloading is disabled, the service was started without {options}")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # bytes, because compare_digest takes no text beyond ASCII
        is_valid = hmac.compare_digest(token.strip().encode("latin-1"), self._settings.token.encode())
        if scheme.lower() != "bearer" or not is_valid:
            address = "an unknown address" if request.client is None else request.client.host
            _log.warning("/reload with %s token from %s", "a wrong" if token else "no", address)
            message = "authorization: expected 'Bearer' and the token"
            raise ApiError(401, message, headers={"www-authenticate": "Bearer"})
        body = await self._service.bodies.read(request)
        if len(body) > limits.LARGE_BODY_BYTES:
            message = f"body: found {len(body):,} bytes, expected at most {limits.LARGE_BODY_BYTES:,}"
            raise ApiError(413, message, reason="large body")
        content = parse_json(body, max_names=limits.max_names(limits.LARGE_BODY_BYTES))
        check_keys(content, RELOAD)
        path, slot = RELOAD["path"].read(content, "path"), BUNDLE.read(content, "bundle", default=MAIN)
        try:
            model, before = await self._service.reloader.reload(slot, Path(path))
        except (ValueError, OSError) as error:
            raise ApiError(409, str(error), "path") from None
        return JsonResponse({"model": model, "before": before})

    async def model(self, request: Request) -> Response:
        """Describe the bundles that are served."""

        def content() -> bytes:
            bundles = {slot: self._slots[slot] for slot in SLOTS}
            return orjson.dumps({"bundles": {slot: served and served.describe() for slot, served in bundles.items()}})

        return Response(self._cached("model", content), media_type=JSON)

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

    # --- the service ----------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Report that the process responds."""
        return JsonResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Report whether the service can rank and is not shutting down."""
        if self._service.shutdown.received:
            raise ApiError(503, "the service is shutting down", headers=RETRY_AFTER)
        served = self._slots[MAIN]
        if served is None or not self._service.is_working():
            raise ApiError(503, "no bundle is loaded yet, or a compute thread has stopped", headers=RETRY_AFTER)
        return JsonResponse({"status": "ready", "model": served.model})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(self._service.metrics.render(), media_type=MEDIA_TYPE)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document, whose request schema is that of the bundles that are served."""
        body = self._cached("openapi", lambda: orjson.dumps(openapi_document(self._settings, self._slots)))
        return Response(body, media_type=JSON)

    async def docs(self, request: Request) -> Response:
        """Return the OpenAPI document as an HTML page."""

        def content() -> bytes:
            served = self._slots[MAIN]
            example = None if served is None else docs_example(served, real=self._settings.page)
            return docs_page(openapi_document(self._settings, self._slots), example).encode()

        host = request.headers.get("host", "")  # the address under which the client reached the service
        if not _HOST.fullmatch(host):
            name, port = request.scope["server"]
            host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        # Only the first occurrence: texts of the bundle, which come later, may contain the placeholder, too.
        page = self._cached("docs", content).replace(ADDRESS.encode(), f"http://{host}".encode(), 1)
        return Response(page, media_type=_HTML, headers=_PAGE_HEADERS)

    def _cached(self, name: str, render: Callable[[], bytes]) -> bytes:
        """Return the body of that name, which is rendered again after a bundle was replaced."""
        version = self._slots.version
        cached = self._cache.get(name)
        if cached is None or cached[0] != version:
            cached = self._cache[name] = version, render()
        return cached[1]


def _error_of_single(error: ApiError) -> ApiError:
    """Return the error of a call with a single request, whose fields are those of the body."""
    message = error.detail
    for prefix in ("requests[0]", "request"):
        if message.startswith((f"{prefix}.", f"{prefix}:")):
            rest = message.removeprefix(prefix)
            return invalid_field(rest[1:] if rest.startswith(".") else f"body{rest}")
    return error


def _ranking_content(request: str, ranking: Ranking) -> dict[str, Any]:
    content: dict[str, Any] = {
        "request": request,
        "ids": ranking.ids,
        "scores": ranking.scores,
        "unknown": ranking.unknown,
    }
    if ranking.notes:
        content["notes"] = ranking.notes
    if ranking.stages is not None:
        content["stages"] = ranking.stages
    return content
