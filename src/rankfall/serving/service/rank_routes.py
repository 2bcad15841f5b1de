"""``POST /rank``, ``/score`` and ``/items``: check request bodies, queue computations, build the responses."""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from rankfall.encoding import BadValueError
from rankfall.serving.request_encoder import KEYS as FEATURE_GROUPS
from rankfall.serving.request_encoder import NO_ITEM
from rankfall.serving.service import settings as limits
from rankfall.serving.service.batching import PendingCall
from rankfall.serving.service.bodies import BUNDLE, CALL, ID
from rankfall.serving.service.bundle_slots import MAIN
from rankfall.serving.service.http_io import (
    RETRY_AFTER,
    ApiError,
    JsonResponse,
    check_keys,
    invalid_field,
    invalid_value,
    parse_json,
)
from rankfall.serving.service.http_protocol import ON_DISCONNECT

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from rankfall.serving.bundle import Ranking, StageTrace
    from rankfall.serving.request_encoder import EncodedRequests
    from rankfall.serving.service.batching import Batcher, CallResult
    from rankfall.serving.service.bundle_slots import BundleSlots, ServedBundle
    from rankfall.serving.service.http_io import BodyReader
    from rankfall.serving.service.service_recording import RecordedCall, ServiceRecording
    from rankfall.serving.service.settings import Settings

REQUEST_OPTIONS = ("k", "candidates", "exclude", "request")  # of each request, besides its features
_DEADLINE = re.compile(rb'"deadline"\s*:\s*(\d{1,9})')  # in a body that is not parsed yet


@dataclass(frozen=True, slots=True)
class Call:
    """A validated call, which has one request or several."""

    served: ServedBundle
    explain: bool
    deadline: float  # milliseconds
    content: dict[str, Any]
    ids: list[str]  # of the requests
    batch: EncodedRequests
    recorded: RecordedCall | None  # if the service records what it answers

    @property
    def has_one_request(self) -> bool:
        """Whether the body is a single request instead of a list."""
        return "requests" not in self.content


@dataclass(eq=False, slots=True)
class RankRoutes:
    """Endpoints that rank and score items.

    Args:
        settings: Options of the service.
        slots: The bundles that are served.
        batcher: Computes the requests.
        bodies: Reads the request bodies.
        recording: Records what is answered, if the service has a sink.
    """

    settings: Settings
    slots: BundleSlots
    batcher: Batcher
    bodies: BodyReader
    recording: ServiceRecording | None

    async def rank(self, request: Request) -> Response:
        """Return the best items for one request or several."""
        arrived = monotonic()
        call = await self._read(request, arrived, self.recording)
        pending = PendingCall(
            call.served,
            len(call.batch),
            arrived + call.deadline / 1000,
            asyncio.get_running_loop().create_future(),
            batch=call.batch,
            explain=call.explain,
            sampled=None if call.recorded is None else call.recorded.sampled,
        )
        result = await self._result(pending, request, call.has_one_request)
        if self.recording is not None and call.recorded is not None:
            self.recording.record(call.recorded, call.served, result.content)
        rankings = [_ranking_content(*answer) for answer in zip(call.ids, result.content, strict=True)]
        content = rankings[0] if call.has_one_request else {"rankings": rankings}
        milliseconds = {stage: round(value, 3) for stage, value in result.milliseconds.items()}
        return JsonResponse({"model": call.served.model, **content, "milliseconds": milliseconds})

    async def score(self, request: Request) -> Response:
        """Return the scores of candidates by every stage."""
        arrived = monotonic()
        call = await self._read(request, arrived)
        if not call.has_one_request:
            count = len(call.content["requests"])
            raise ApiError(422, f"requests: found {count:,} requests, expected one request", "requests")
        if call.content.get("candidates") is None:
            raise invalid_value("candidates", None, "a list of item ids")
        pending = PendingCall(
            call.served,
            1,
            arrived + call.deadline / 1000,
            asyncio.get_running_loop().create_future(),
            work=lambda: call.served.bundle.run_scores(call.batch)[0],
        )
        result = await self._result(pending, request, has_one_request=True)
        return JsonResponse({"model": call.served.model, "scores": result.content})

    async def items(self, request: Request) -> Response:
        """Return the attributes of items that are shown to people."""
        body = await self.bodies.read(request)
        content = await self.bodies.process(
            len(body), lambda: self._content(body), seconds=lambda: self.settings.deadline / 1000
        )
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

    async def _read(self, request: Request, arrived: float, recording: ServiceRecording | None = None) -> Call:
        """Return the validated call with its encoded requests; refuse it without reading if the queue is full."""
        self.batcher.check_queue(self.settings.deadline / 1000)
        body = await self.bodies.read(request)
        query = dict(request.query_params)

        def seconds() -> float:
            """Return the time until the likely deadline of a body that is not parsed: features may have that name."""
            found = [int(digits) for digits in _DEADLINE.findall(body)]
            deadline = min(max(found), limits.MAX_DEADLINE_MS) if found else self.settings.deadline
            return arrived + deadline / 1000 - monotonic()

        return await self.bodies.process(len(body), lambda: self._parse(body, query, recording), seconds=seconds)

    async def _result(self, pending: PendingCall, request: Request, has_one_request: bool) -> CallResult:
        request.scope[ON_DISCONNECT] = lambda: self.batcher.cancel(pending, ClientDisconnect())
        try:
            return await self.batcher.compute(pending)
        except ApiError as error:
            raise (_error_of_single(error) if has_one_request else _error_of_list(error)) from None
        finally:
            del request.scope[ON_DISCONNECT]  # an idle connection keeps its last scope, which would keep the bundle

    # --- validation -----------------------------------------------------------------------------------------------

    def _content(self, body: bytes) -> dict[str, Any]:
        return parse_json(body, max_names=limits.max_names(self.settings.max_body))

    def _parse(self, body: bytes, query: dict[str, str], recording: ServiceRecording | None) -> Call:
        content = self._content(body)
        has_one_request = "requests" not in content
        of_requests = (*FEATURE_GROUPS, *REQUEST_OPTIONS) if has_one_request else ("requests",)
        check_keys(content, (*of_requests, *CALL))
        check_keys(query, ("explain",), "query")
        in_query = {name: {"true": True, "false": False}.get(value, value) for name, value in query.items()}
        explain = [CALL["explain"].read(given, "explain") for given in (in_query, content)]
        served, deadline = self._served(content), CALL["deadline"].read(content, "deadline")
        requests = self._requests(content)
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
            try:
                batch = served.bundle.encode(
                    features,
                    k=[_as_integer(request.get("k")) for request in requests],
                    candidates=[request.get("candidates") for request in requests],
                    exclude=[request.get("exclude") for request in requests],
                )
            except ValueError as error:
                raise invalid_field(str(error)) from None
            recorded = None if recording is None else recording.prepare(served.bundle, ids, features, len(body))
        except ApiError as error:
            raise (_error_of_single(error) if has_one_request else error) from None
        milliseconds = self.settings.deadline if deadline is None else float(deadline)
        return Call(served, any(explain), milliseconds, content, ids, batch, recorded)

    def _requests(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        if "requests" not in content:
            return [content]
        requests = content["requests"]
        if not isinstance(requests, list):
            raise invalid_value("requests", requests, "a list of requests")
        if not 1 <= len(requests) <= self.settings.queue:
            message = f"requests: found {len(requests):,} requests, expected 1 to {self.settings.queue:,}"
            raise ApiError(422, message, "requests")
        for place, request in enumerate(requests):
            if not isinstance(request, dict):
                raise invalid_value(f"requests[{place}]", request, "a request")
            check_keys(request, (*FEATURE_GROUPS, *REQUEST_OPTIONS), f"requests[{place}]")
        return requests

    def _served(self, content: dict[str, Any]) -> ServedBundle:
        slot = MAIN if content.get("bundle") is None else BUNDLE.read(content, "bundle")
        served = self.slots[slot]
        if served is None and slot == MAIN:
            raise ApiError(503, "no bundle is loaded yet; try again", headers=RETRY_AFTER, reason="no bundle")
        if served is None:
            raise invalid_value("bundle", slot, f"{MAIN}, because no other bundle is loaded")
        return served


def _as_integer(number: Any) -> Any:
    """Convert 3.0 to 3, because JSON does not distinguish the two; return anything else unchanged."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _error_of_single(error: ApiError) -> ApiError:
    """Return the error of a call with a single request, whose fields are those of the body."""
    message = error.detail
    for prefix in ("requests[0]", "request"):
        if message.startswith((f"{prefix}.", f"{prefix}:")):
            rest = message.removeprefix(prefix)
            return invalid_field(rest[1:] if rest.startswith(".") else f"body{rest}")
    return error


def _error_of_list(error: ApiError) -> ApiError:
    """Return the error of a call with a list of requests; that of a request computed alone has no index yet."""
    message = error.detail
    return invalid_field(f"requests[0]{message.removeprefix('request')}") if message.startswith("request:") else error


# --- responses ----------------------------------------------------------------------------------------------------


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
        content["stages"] = [_stage_content(trace) for trace in ranking.stages]
    return content


def _stage_content(trace: StageTrace) -> dict[str, Any]:
    return {
        "name": trace.name,
        "ids": trace.ids,
        "scores": trace.scores,
        "kept": trace.kept,
        "threshold": trace.threshold,
        "milliseconds": round(trace.milliseconds, 3),
    }
