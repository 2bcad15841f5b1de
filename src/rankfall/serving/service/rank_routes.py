"""``POST /rank`` and ``POST /score``: bodies become batches, rankings become answers."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import orjson

from rankfall.serving.request_encoder import KEYS as PARTS
from rankfall.serving.service.batching import Pending
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.http_io import RETRY, GoneError, RefusedError, Reply, check_names, late, named, parse
from rankfall.serving.service.http_limits import HANG_UP
from rankfall.serving.service.settings import LONGEST_DEADLINE
from rankfall.serving.value_checks import shown

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from rankfall.serving.request_encoder import Batch
    from rankfall.serving.results import Ranking, StageTrace
    from rankfall.serving.service.batching import Answered, Batcher
    from rankfall.serving.service.bundle_slots import Served, Slots
    from rankfall.serving.service.http_io import Bodies
    from rankfall.serving.service.settings import Settings

WISHES = ("k", "candidates", "exclude")  # of a request, beside what it says of the user
OPTIONS = ("explain", "bundle", "deadline")  # of a call
_LARGE = 65_536  # bytes of a body that is read in another thread, so that nobody waits for it
_DEADLINES = re.compile(rb'"deadline"\s*:\s*(\d{1,9})')  # in a body that was not read yet


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was checked."""

    served: Served
    explain: bool
    deadline: float  # milliseconds
    content: dict[str, Any]


class Rankers:
    """Answers calls with what is served."""

    def __init__(self, settings: Settings, slots: Slots, batcher: Batcher, bodies: Bodies) -> None:
        self._settings = settings
        self._slots = slots
        self._batcher = batcher
        self._bodies = bodies

    async def rank(self, scope: Scope, receive: Receive) -> Reply:
        """The best items for one request or for several."""
        arrived = monotonic()
        call, batch = await self._taken(scope, receive, arrived)
        is_one = "requests" not in call.content
        pending = Pending(
            call.served, len(batch), arrived + call.deadline / 1000, _future(), batch=batch, explain=call.explain
        )
        answered = await self._answer(pending, scope, is_one)
        rankings = [_ranking(ranking) for ranking in answered.content]
        content = rankings[0] if is_one else {"rankings": rankings}
        return Reply(
            orjson.dumps({"model": call.served.model, **content, "milliseconds": _rounded(answered.milliseconds)})
        )

    async def score(self, scope: Scope, receive: Receive) -> Reply:
        """The scores of candidates by every stage."""
        arrived = monotonic()
        call, _ = await self._taken(scope, receive, arrived)
        if "requests" in call.content:
            raise _wrong("requests", f"{len(call.content['requests']):,} requests", "one request", quoted=False)
        request, candidates = _parts(call.content), call.content.get("candidates")
        if candidates is None:
            raise _wrong("candidates", None, "a list of ids of items")
        pending = Pending(
            call.served,
            1,
            arrived + call.deadline / 1000,
            _future(),
            work=lambda: call.served.bundle.score(request, candidates),
        )
        answered = await self._answer(pending, scope, is_one=True)
        return Reply(orjson.dumps({"model": call.served.model, "scores": answered.content}))

    async def _taken(self, scope: Scope, receive: Receive, arrived: float) -> tuple[Call, Batch]:
        """A call that was read and checked, unless the line is full already."""
        self._batcher.check_line(self._settings.deadline / 1000)
        body = await self._bodies.read(scope, receive)
        query = scope["query_string"]
        if len(body) <= _LARGE:
            return self._read(body, query)
        left = arrived + self._likely_deadline(body) / 1000 - monotonic()
        if left <= 0:
            raise late()
        return await self._bodies.aside(len(body), left, lambda: self._read(body, query))

    def _likely_deadline(self, body: bytes) -> float:
        """What may be the deadline of a large body that was not read yet; features may be called so, too."""
        given = [int(digits) for digits in _DEADLINES.findall(body)]
        return min(max(given), LONGEST_DEADLINE) if given else self._settings.deadline

    async def _answer(self, pending: Pending, scope: Scope, is_one: bool) -> Answered:
        scope[HANG_UP] = lambda: self._batcher.drop(pending, GoneError())
        try:
            return await self._batcher.answer(pending)
        except RefusedError as error:
            raise (_of_one(error) if is_one else _of_several(error)) from None
        finally:
            del scope[HANG_UP]  # a connection keeps its last scope, and that would keep the bundle

    # --- what a body says -----------------------------------------------------------------------------------------

    def _read(self, body: bytes, query: bytes) -> tuple[Call, Batch]:
        content = parse(body)
        if "requests" in content:
            check_names(content, ("requests", *OPTIONS))
        else:
            check_names(content, (*PARTS, *WISHES, *OPTIONS))
        call = self._call(content, query)
        requests = self._requests(content)
        try:
            batch = call.served.bundle.encode(
                [_parts(request) for request in requests],
                k=[_whole(request.get("k")) for request in requests],
                candidates=[request.get("candidates") for request in requests],
                exclude=[request.get("exclude") for request in requests],
            )
        except ValueError as error:
            refused = named(str(error))
            raise (refused if "requests" in content else _of_one(refused)) from None
        return call, batch

    def _requests(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        if "requests" not in content:
            return [content]
        requests = content["requests"]
        if not isinstance(requests, list):
            raise _wrong("requests", requests, "a list of requests")
        if not 1 <= len(requests) <= self._settings.queue:
            raise _wrong("requests", f"{len(requests):,} requests", f"1 to {self._settings.queue:,}", quoted=False)
        for place, request in enumerate(requests):
            if not isinstance(request, dict):
                raise _wrong(f"requests[{place}]", request, "a request")
            check_names(request, (*PARTS, *WISHES), f"requests[{place}]")
        return requests

    def _call(self, content: dict[str, Any], query: bytes) -> Call:
        explain = _explain_of(query) if query else False
        for given in (explain, content.get("explain")):
            if given is not None and not isinstance(given, bool):
                raise _wrong("explain", given, "true or false")
        explain = bool(explain or content.get("explain"))
        return Call(self._served(content.get("bundle")), explain, self._deadline(content.get("deadline")), content)

    def _deadline(self, given: Any) -> float:
        if given is None:
            return self._settings.deadline
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 1 <= given <= LONGEST_DEADLINE:
            raise _wrong("deadline", given, f"1 to {LONGEST_DEADLINE:,} milliseconds")
        return float(given)

    def _served(self, slot: Any) -> Served:
        slot = MAIN if slot is None else slot
        if not isinstance(slot, str) or slot not in SLOTS:
            raise _wrong("bundle", slot, " or ".join(SLOTS))
        served = self._slots[slot]
        if served is None and slot == MAIN:
            raise RefusedError(503, "no bundle is loaded yet, try again", headers=[RETRY], reason="no bundle")
        if served is None:
            raise _wrong("bundle", slot, f"{MAIN}, as no other bundle is loaded")
        return served


def _parts(request: dict[str, Any]) -> dict[str, Any]:
    """What a request says of the user and the moment."""
    return {name: request[name] for name in PARTS if name in request}


def _whole(number: Any) -> Any:
    """A number; JSON has only one sort, in which 3.0 is 3."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _explain_of(query: bytes) -> Any:
    given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    check_names(given, ("explain",), "query")
    value = given.get("explain", "false")
    return {"true": True, "false": False}.get(value, value)


def _wrong(field: str, found: Any, expected: str, *, quoted: bool = True) -> RefusedError:
    return RefusedError(422, f"{field}: found {shown(found) if quoted else found}, expected {expected}", field)


def _of_one(error: RefusedError) -> RefusedError:
    """The same for a call with one request, whose fields are those of the body."""
    message = str(error)
    for prefix in ("requests[0]", "request"):
        if message.startswith((f"{prefix}.", f"{prefix}:")):
            rest = message.removeprefix(prefix)
            return named(rest[1:] if rest.startswith(".") else f"body{rest}")
    return error


def _of_several(error: RefusedError) -> RefusedError:
    """The same for a call with several; one that was computed alone has no number in its message."""
    message = str(error)
    return named(f"requests[0]{message.removeprefix('request')}") if message.startswith("request:") else error


# --- what is answered ---------------------------------------------------------------------------------------------


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _ranking(ranking: Ranking) -> dict[str, Any]:
    content: dict[str, Any] = {"ids": ranking.ids, "scores": ranking.scores, "unknown": ranking.unknown}
    if ranking.stages is not None:
        content["stages"] = [_stage(trace) for trace in ranking.stages]
    return content


def _stage(trace: StageTrace) -> dict[str, Any]:
    return {
        "name": trace.name,
        "ids": trace.ids,
        "scores": trace.scores,
        "kept": trace.kept,
        "threshold": trace.threshold,
        "milliseconds": round(trace.milliseconds, 3),
    }


def _rounded(milliseconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in milliseconds.items()}
