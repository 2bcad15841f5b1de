"""``POST /events``: check events that clients report, and respond when they are durable."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from rankfall.encoding import BadValueError
from rankfall.option_types import LARGEST
from rankfall.serving.recording.recorder import Event, QueueFullError
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bundle_slots import MAIN
from rankfall.serving.service.http_io import (
    RETRY_AFTER,
    ApiError,
    JsonResponse,
    check_keys,
    checked_id,
    invalid_field,
    invalid_value,
    parse_json,
)
from rankfall.serving.value_encoders import is_integer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from rankfall.serving.bundle import Bundle
    from rankfall.serving.service.bundle_slots import BundleSlots
    from rankfall.serving.service.http_io import BodyReader
    from rankfall.serving.service.service_recording import ServiceRecording
    from rankfall.serving.service.settings import Settings


EVENT_KEYS = ("id", "request", "item", "kind", "value", "time")
KIND_PATTERN = rf"^[A-Za-z0-9_-]{{1,{limits.KIND_LENGTH}}}$"
_KIND = re.compile(KIND_PATTERN.strip("^$"))


class EventRoutes:
    """The endpoint of events.

    Args:
        settings: Options of the service.
        slots: The bundles that are served, which say how times are written.
        bodies: Reads the request bodies.
        recording: Writes the events; None if the service has no sink.
    """

    def __init__(
        self, settings: Settings, slots: BundleSlots, bodies: BodyReader, recording: ServiceRecording | None
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._bodies = bodies
        self._recording = recording

    async def events(self, request: Request) -> Response:
        """Write events, and respond when they are durable."""
        recording = self._recording
        if recording is None:
            raise ApiError(404, "events: the service records nothing; start it with --samples")
        body = await self._bodies.read(request)
        events = await self._bodies.process(
            len(body), lambda: self._parse(body, recording), seconds=lambda: limits.EVENT_SECONDS
        )
        try:
            async with asyncio.timeout(limits.EVENT_SECONDS):
                await recording.events.write(events)
        except QueueFullError:
            raise _unavailable("too many wait to be written") from None
        except TimeoutError:
            raise _unavailable(f"they were not written within {limits.EVENT_SECONDS:g} seconds") from None
        except OSError:
            raise _unavailable("they could not be written; the log of the service has details") from None
        return JsonResponse({"accepted": len(events)})

    def _parse(self, body: bytes, recording: ServiceRecording) -> list[Event]:
        content = parse_json(body, max_names=limits.max_names(self._settings.max_body))
        check_keys(content, ("events",))
        events = content.get("events")
        if not isinstance(events, list):
            raise invalid_value("events", events, "a list of events")
        if not 1 <= len(events) <= limits.EVENTS:
            raise ApiError(422, f"events: found {len(events):,} events, expected 1 to {limits.EVENTS:,}", "events")
        served = self._slots[MAIN]
        if served is None:
            raise ApiError(503, "no bundle is loaded yet; try again", headers=RETRY_AFTER, reason="no bundle")
        return [_event(one, f"events[{place}]", served.bundle, recording) for place, one in enumerate(events)]


def _event(given: Any, where: str, bundle: Bundle, recording: ServiceRecording) -> Event:
    if not isinstance(given, dict):
        raise invalid_value(where, given, "an event")
    check_keys(given, EVENT_KEYS, where)
    return Event(
        checked_id(given.get("id"), f"{where}.id"),
        checked_id(given.get("request"), f"{where}.request"),
        _item(given.get("item"), f"{where}.item"),
        _kind(given.get("kind"), f"{where}.kind"),
        _value(given.get("value"), f"{where}.value"),
        _time(given.get("time"), f"{where}.time", bundle, recording),
    )


def _item(given: Any, field: str) -> str:
    """Return the id of an item as text."""
    if isinstance(given, str) and len(given) <= limits.ITEM_LENGTH:
        return given
    if isinstance(given, bool) or not is_integer(given) or not -(2**63) <= given < 2**63:
        expected = f"an id of an item, a whole number or text of at most {limits.ITEM_LENGTH:,} characters"
        raise invalid_value(field, given, expected)
    return str(int(given))


def _kind(given: Any, field: str) -> str:
    if not isinstance(given, str) or not _KIND.fullmatch(given):
        expected = f"a name of 1 to {limits.KIND_LENGTH} letters, digits, _ and -, such as click"
        raise invalid_value(field, given, expected)
    return given


def _value(given: Any, field: str) -> float:
    if given is None:
        return 1.0
    if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= LARGEST:
        raise invalid_value(field, given, f"a number from {-LARGEST:g} to {LARGEST:g}")
    return float(given)


def _time(given: Any, field: str, bundle: Bundle, recording: ServiceRecording) -> int:
    if given is None:
        return recording.now(field)
    try:
        return bundle.read_times([given])[0]
    except BadValueError as error:
        raise invalid_field(f"{field}: {error}") from None


def _unavailable(why: str) -> ApiError:
    return ApiError(503, f"events: {why}; try again", headers=RETRY_AFTER, reason="events")
