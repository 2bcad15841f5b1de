"""Request bodies with their limits, JSON responses and error responses."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rankfall._errors import did_you_mean
from rankfall.serving.service import settings as limits
from rankfall.serving.value_encoders import field_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from starlette.requests import Request


T = TypeVar("T")

JSON = "application/json"
RETRY_AFTER = {"retry-after": "1"}
CLOSE = {"connection": "close"}


# --- errors -------------------------------------------------------------------------------------------------------


class ApiError(HTTPException):
    """An error response.

    Args:
        status: HTTP status code.
        message: Description of the error for the client.
        field: Path of the request field that is wrong.
        headers: Further response headers.
        reason: Label of the metric of refused requests, if the service had no time or no capacity for the request.
    """

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.field = field
        self.reason = reason


def invalid_value(field: str, found: Any, expected: str) -> ApiError:
    """Return the error of a field with an invalid value, which the message quotes."""
    return ApiError(422, f"{field}: found {shown(found)}, expected {expected}", field)


def invalid_field(message: str) -> ApiError:
    """Return the error of an invalid field; the message begins with its path, as those of bundles do."""
    return ApiError(422, message, message.partition(": ")[0])


def deadline_exceeded() -> ApiError:
    """Return the error of a request that was not answered before its deadline."""
    return ApiError(504, "deadline: exceeded before the response was ready", "deadline", reason="deadline")


# --- responses ----------------------------------------------------------------------------------------------------


class JsonResponse(Response):
    """A response whose content orjson serializes; NaN and infinity become null."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return orjson.dumps(content)


def error_response(error: HTTPException) -> Response:
    """Return the JSON response of an error."""
    field = getattr(error, "field", None)
    about = {} if field is None else {"field": field}
    return JsonResponse({"error": error.detail, **about}, error.status_code, error.headers)


# --- bodies -------------------------------------------------------------------------------------------------------


class BodyReader:
    """Reads request bodies within limits of size, time and total memory.

    Large bodies are processed in a separate thread, one after another, so that they do not block the event loop.

    Args:
        max_bytes: Maximum size of a body.
        seconds: Time in which a body has to arrive.
    """

    def __init__(self, max_bytes: int, *, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._max_total = max(limits.ALL_BODIES_BYTES, max_bytes)
        self._total = 0  # bytes of all bodies that are being received or processed
        self._max_queued = max(limits.PARSE_QUEUE_BYTES, max_bytes)
        self._queued = 0  # bytes of large bodies that wait for the thread or are processed there
        self._thread = ThreadPoolExecutor(1, "rankfall-bodies")

    def stop(self) -> None:
        """Stop the thread for large bodies without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: Request) -> bytes:
        """Return the body of a request with JSON content.

        Raises:
            ApiError: 408, 413, 415 or 503 if the body violates a limit or is not declared as JSON.
            ClientDisconnect: If the client disconnects before the body is complete.
        """
        self._check_headers(request)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._seconds):
                async for chunk in request.stream():
                    chunks.append(chunk)
                    size += len(chunk)
                    self._total += len(chunk)
                    self._check_size(size)
            return b"".join(chunks)
        except TimeoutError:
            message = f"body: found {size:,} bytes after {self._seconds:g} seconds, expected the complete body"
            raise ApiError(408, message, headers=CLOSE, reason="slow body") from None
        finally:
            self._total -= size

    async def process(self, size: int, work: Callable[[], T], *, seconds: Callable[[], float]) -> T:
        """Return what `work` returns, which processes a body: a large one in the thread.

        Args:
            size: Bytes of the body that `work` processes.
            work: Function without arguments.
            seconds: Returns the time until the deadline of the request; called for large bodies only.

        Raises:
            ApiError: 503 if too many large bodies wait, 504 if the deadline passes first.
        """
        if size <= limits.LARGE_BODY_BYTES:
            return work()
        time_left = seconds()
        if time_left <= 0:
            raise deadline_exceeded()
        if self._queued + size > self._max_queued:
            message = f"bodies: {self._queued:,} bytes wait to be parsed and {size:,} bytes arrived, "
            message += f"at most {self._max_queued:,} may wait; try again"
            raise ApiError(503, message, headers=RETRY_AFTER, reason="bodies")
        self._queued += size
        self._total += size

        def release(done: asyncio.Future[T]) -> None:
            self._queued -= size
            self._total -= size
            if not done.cancelled():
                done.exception()  # mark it as retrieved, because the request may have ended already

        job = self._thread.submit(work)
        done = asyncio.wrap_future(job)
        done.add_done_callback(release)
        await asyncio.wait([done], timeout=time_left)
        if not done.done():
            job.cancel()  # has no effect if it is running; its bytes then count until it ends
            raise deadline_exceeded()
        return done.result()

    def _check_headers(self, request: Request) -> None:
        headers = request.headers
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON and not (media_type.startswith("application/") and media_type.endswith("+json")):
            raise ApiError(415, f"content-type: found {media_type or 'nothing'}, expected {JSON}")
        coding = headers.get("transfer-encoding", "chunked").lower()
        if coding != "chunked":
            message = f"transfer-encoding: found {shown(coding)}, expected chunked, or a body with its length"
            raise ApiError(501, message, headers=CLOSE)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "content-encoding: found a compressed body, expected an uncompressed one")
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit():
            self._check_size(int(length))

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            message = f"body: found at least {size:,} bytes, expected at most {self._max_bytes:,}"
            raise ApiError(413, message, reason="large body")
        if self._total > self._max_total:
            raise ApiError(503, "bodies: too many are being received; try again", headers=RETRY_AFTER, reason="bodies")


def check_keys(content: dict[str, Any], allowed: Collection[str], where: str = "body") -> None:
    """Refuse an object with a key that is not allowed."""
    for key in content:
        if key not in allowed:
            field = field_of(where, key).removeprefix("body.")
            hint = did_you_mean(key, allowed)
            raise ApiError(422, f"{field}: found {shown(key)}{hint}; allowed are {', '.join(allowed)}", field)


_ESCAPED_COLONS = (b"\\u003a", b"\\u003A")
_TOO_DEEP = ("depth limit", "recursion limit")  # in messages of orjson about too many levels


def parse_json(body: bytes, *, max_names: int) -> dict[str, Any]:
    """Return the JSON object of a body.

    Args:
        body: The body.
        max_names: Maximum number of names in all objects of the body, and of its arrays and objects.

    Raises:
        ApiError: 400 if the body is not JSON, has too many levels, names, arrays or objects, or the same name twice in
            one object; 422 if it is not an object.
    """
    _check_counts(body, max_names)
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if any(text in error.msg.lower() for text in _TOO_DEEP):
            raise _too_deep() from None
        raise ApiError(400, f"body: is not valid JSON ({error.msg}, at byte {error.pos:,})") from None
    if not isinstance(content, dict):
        raise invalid_value("body", content, "an object")
    _check_duplicates(body, content)
    return content


def _check_counts(body: bytes, max_names: int) -> None:
    """Refuse too many names, arrays and objects before they are created.

    Python's garbage collector visits new arrays again and again while orjson creates them.
    """
    if max(body.count(b":"), body.count(b"[") + body.count(b"{")) <= max_names:
        return
    outside = b"".join(_without_escaped_backslashes(body).replace(b'\\"', b"").split(b'"')[::2])  # of strings
    names, groups = outside.count(b":"), outside.count(b"[") + outside.count(b"{")
    for count, what in ((names, "names in its objects"), (groups, "arrays and objects")):
        if count > max_names:
            raise ApiError(400, f"body: found {count:,} {what}, expected at most {max_names:,}")


def _without_escaped_backslashes(body: bytes) -> bytes:
    r"""Return a body without each ``\\``; every backslash that is left begins another escape."""
    return body.replace(b"\\\\", b"")


def _check_duplicates(body: bytes, content: dict[str, Any]) -> None:
    """Refuse the same name twice in one object, of which orjson keeps the last value.

    Every name is followed by a colon, and orjson writes colons in strings as they are. So the body has as many colons
    as the content when it is serialized again, unless a name was lost.
    """
    try:
        serialized = orjson.dumps(content)
    except TypeError:  # its limit is lower than that of loads
        raise _too_deep() from None
    colons = body.count(b":")
    if any(escape in body for escape in _ESCAPED_COLONS):
        escapes = _without_escaped_backslashes(body)
        colons += sum(escapes.count(escape) for escape in _ESCAPED_COLONS)
    if colons == serialized.count(b":"):
        return
    if len(body) <= limits.NAMED_KEY_BYTES:
        # Python converts numbers in quadratic time and refuses those of more than 4,300 digits.
        json.loads(body, object_pairs_hook=_refuse_duplicates, parse_int=len, parse_float=len)
    raise ApiError(400, "body: found a key twice in one object, expected unique keys")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise ApiError(400, f"body: found the key {shown(name)} twice in one object, expected unique keys")
        seen.add(name)


def _too_deep() -> ApiError:
    return ApiError(400, f"body: is nested too deeply, expected at most {limits.JSON_LEVELS} levels")
