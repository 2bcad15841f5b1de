"""Bytes that come in and go out: bodies with their limits, JSON, errors."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from rankfall._suggest import did_you_mean
from rankfall.serving.value_checks import field_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from starlette.types import Receive, Scope, Send

    Header = tuple[bytes, bytes]

T = TypeVar("T")

JSON = b"application/json"
RETRY: Header = (b"retry-after", b"1")
_TOGETHER = 64_000_000  # bytes of all bodies that come at once, or are kept
_ASIDE = 4_000_000  # bytes of large bodies in the line of their thread, which takes some tenths of a second for them
ALWAYS: list[Header] = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class RefusedError(Exception):
    """A request that is answered with an error: its code, a message that names the field, and headers.

    `reason` is for the metrics, if the service had no time or no place for the request.
    """

    def __init__(
        self,
        code: int,
        message: str,
        field: str | None = None,
        headers: Sequence[Header] = (),
        *,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.headers = headers
        self.reason = reason


def named(message: str) -> RefusedError:
    """A wrong value; messages of bundles begin with the name of the field."""
    return RefusedError(422, message, message.partition(": ")[0])


def late() -> RefusedError:
    """What is said at a deadline."""
    return RefusedError(504, "deadline: there is no answer before it is over", "deadline", reason="deadline")


class GoneError(Exception):
    """The client has hung up."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    body: bytes
    code: int = 200
    kind: bytes = JSON
    headers: Iterable[Header] = ()

    async def send(self, send: Send) -> None:
        """Write it."""
        length = str(len(self.body)).encode()
        headers = [(b"content-type", self.kind), (b"content-length", length), *ALWAYS, *self.headers]
        await send({"type": "http.response.start", "status": self.code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def json_reply(content: object, code: int = 200, headers: Iterable[Header] = ()) -> Reply:
    """An answer in JSON; what is not a number there is null."""
    return Reply(orjson.dumps(content), code, headers=headers)


def error_reply(error: RefusedError) -> Reply:
    """What is wrong, in JSON."""
    content = {"error": str(error), **({} if error.field is None else {"field": error.field})}
    return json_reply(content, error.code, error.headers)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header."""
    return next((value for key, value in scope["headers"] if key == name), None)


class Bodies:
    """Reads bodies: each at most `limit` bytes and in `seconds`, and not too many at once.

    What is done with large ones is done in a thread, one after another, so that the calls of others go on meanwhile.
    """

    def __init__(self, limit: int, *, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._together = max(_TOGETHER, limit)
        self._held = 0
        self._most_aside = max(_ASIDE, limit)
        self._aside = 0  # bytes in the line of the thread
        self._thread = ThreadPoolExecutor(1, "rankfall-bodies")

    def stop(self) -> None:
        """Read no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request that says that it is JSON."""
        self._check_headers(scope)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise GoneError
                    part = message.get("body", b"")
                    parts.append(part)
                    size += len(part)
                    self._held += len(part)
                    self._check_size(size)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            message_text = f"body: found {size:,} bytes in {self._seconds:g} seconds, expected all of it"
            raise RefusedError(408, message_text, headers=[(b"connection", b"close")], reason="slow body") from None
        finally:
            self._held -= size

    async def aside(self, size: int, seconds: float, work: Callable[[], T]) -> T:
        """What `work` gives in the thread of large bodies, for one of so many bytes that has so many seconds."""
        if self._aside + size > self._most_aside:
            message = f"bodies: {self._aside:,} bytes wait to be read and {size:,} came, "
            message += f"at most {self._most_aside:,} may wait; try again"
            raise RefusedError(503, message, headers=[RETRY], reason="bodies")
        self._aside += size
        self._held += size

        def let_go(done: asyncio.Future[T]) -> None:
            self._aside -= size
            self._held -= size
            if not done.cancelled():
                done.exception()  # of which nobody may hear any more

        at_work = self._thread.submit(work)
        done = asyncio.wrap_future(at_work)
        done.add_done_callback(let_go)
        await asyncio.wait([done], timeout=seconds)
        if not done.done():
            at_work.cancel()  # unless it is being read already, and then its bytes are held until that ends
            raise late()
        return done.result()

    def _check_headers(self, scope: Scope) -> None:
        kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind != JSON and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
            found = kind.decode("latin-1") or "nothing"
            raise RefusedError(415, f"content-type: found {found}, expected application/json")
        if (header(scope, b"content-encoding") or b"identity").lower() != b"identity":
            raise RefusedError(415, "content-encoding: found a compressed body, expected a plain one")
        length = header(scope, b"content-length")
        if length is not None and length.isdigit():
            self._check_size(int(length))

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            message = f"body: found at least {size:,} bytes, expected at most {self._limit:,}"
            raise RefusedError(413, message, reason="large body")
        if self._held > self._together:
            raise RefusedError(503, "bodies: too many are being read, try again", headers=[RETRY], reason="bodies")


def parse(body: bytes) -> dict[str, Any]:
    """The object that a body holds."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"body: is not JSON ({error.msg}, at byte {error.pos:,})") from None
    if not isinstance(content, dict):
        raise RefusedError(422, f"body: found {shown(content)}, expected an object", "body")
    _refuse_repeated(body, content)
    return content


def _refuse_repeated(body: bytes, content: dict[str, Any]) -> None:
    """Refuse an object that has a name twice, of which orjson would take the last.

    Every name has a colon. If there are as many as when the content is written anew, nothing was lost, unless some are
    written as escapes.
    """
    try:
        written = orjson.dumps(content)
    except TypeError:
        raise RefusedError(400, "body: is nested too deeply, expected at most 250 levels") from None
    if body.count(b":") != written.count(b":") or b"\\u003" in body:
        json.loads(body, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedError(400, f"body: found {twice[:60]!r} twice in an object, expected every name once")
    return found


def check_names(given: dict[str, Any], allowed: tuple[str, ...], where: str = "body") -> None:
    """Refuse an object that has other names."""
    for name in given:
        if name not in allowed:
            field = field_of(where, name).removeprefix("body.")
            hint = did_you_mean(name, allowed)
            raise RefusedError(422, f"{field}: found {shown(name)}{hint}; allowed are {', '.join(allowed)}", field)
