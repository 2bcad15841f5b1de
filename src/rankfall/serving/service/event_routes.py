"""``POST /events``: check events that clients report, and respond when they are durable."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall.encoding import BadValueError
from rankfall.serving.recording.recorder import Event, QueueFullError
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bodies import EVENT
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

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from rankfall.serving.bundle import Bundle
    from rankfall.serving.service.bundle_slots import BundleSlots
    from rankfall.serving.service.http_io import BodyReader
    from rankfall.serving.service.service_recording import ServiceRecording
    from rankfall.serving.service.settings import Settings


@dataclass(eq=False, slots=True)
class EventRoutes:
    """The endpoint of events.

    Args:
        settings: Options of the service.
        slots: The bundles that are served, which say how times are written.
        bodies: Reads the request bodies.
        recording: Writes the events; None if the service has no sink.
    """

    settings: Settings
    slots: BundleSlots
    bodies: BodyReader
    recording: ServiceRecording | None

    async def events(self, request: Request) -> Response:
        """Write events, and respond when they are durable."""
        recording = self.recording
        if recording is None:
            raise ApiError(404, "events: the service records nothing; start it with --samples")
        body = await self.bodies.read(request)
        events = await self.bodies.process(
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
        content = parse_json(body, max_names=limits.max_names(self.settings.max_body))
        check_keys(content, ("events",))
        events = content.get("events")
        if not isinstance(events, list):
            raise invalid_value("events", events, "a list of events")
        if not 1 <= len(events) <= limits.EVENTS:
            raise ApiError(422, f"events: found {len(events):,} events, expected 1 to {limits.EVENTS:,}", "events")
        served = self.slots[MAIN]
        if served is None:
            raise ApiError(503, "no bundle is loaded yet; try again", headers=RETRY_AFTER, reason="no bundle")
        return [_event(one, f"events[{place}]", served.bundle, recording) for place, one in enumerate(events)]


def _event(given: Any, where: str, bundle: Bundle, recording: ServiceRecording) -> Event:
    if not isinstance(given, dict):
        raise invalid_value(where, given, "an event")
    check_keys(given, (*EVENT, "time"), where)
    id, request, item, kind, value = (field.read(given, name, f"{where}.") for name, field in EVENT.items())
    text = item if isinstance(item, str) else str(int(item))
    value = 1.0 if value is None else float(value)
    return Event(id, request, text, kind, value, _time(given.get("time"), f"{where}.time", bundle, recording))


def _time(given: Any, field: str, bundle: Bundle, recording: ServiceRecording) -> int:
    if given is None:
        return recording.now(field)
    try:
        return bundle.read_times([given])[0]
    except BadValueError as error:
        raise invalid_field(f"{field}: {error}") from None


def _unavailable(why: str) -> ApiError:
    return ApiError(503, f"events: {why}; try again", headers=RETRY_AFTER, reason="events")
