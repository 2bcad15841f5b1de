"""Sinks: where a service writes samples and events.

==============================  ======================================================================================
``DIR``, ``file:///DIR``        segments in DIR/samples and DIR/events
``nats://HOST:PORT/STREAM``     a stream of NATS JetStream; ``rankfall collect`` makes segments of it
``kafka://HOST:PORT/TOPIC``     a topic of Kafka; ``rankfall collect`` makes segments of it
==============================  ======================================================================================
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from abc import abstractmethod
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from rankfall._errors import RankfallError
from rankfall.serving.recording.record_segments import (
    EVENTS,
    SAMPLES,
    SEGMENT_BYTES,
    SEGMENT_SECONDS,
    SegmentWriter,
    encode,
)
from rankfall.storage import disk as _disk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


Kind = Literal["samples", "events"]


class SinkError(OSError):
    """A sink that did not take records, or did not confirm them in time."""


class Sink(Protocol):
    """Takes records. All methods are called in one thread, and return or raise within a few seconds."""

    def check(self) -> None:
        """Raise an OSError unless records can be written now, for example because a server refuses the password."""

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        """Write records.

        Args:
            kind: Samples or events.
            batch: Records with the schema of the kind, at least one.
            durable: Return after the records are safe, such that neither a crash of this process nor one of the sink's
                server loses them.

        Raises:
            OSError: The records were not written or, if `durable`, are not known to be: part of them may have been.
        """

    def tick(self) -> None:
        """Do what is due by now; to be called about every 100 ms.

        Raises:
            OSError: Something could not be completed; later calls may succeed.
        """

    def take_lost(self) -> int:
        """Return the number of records lost since the last call, which `write` took without `durable`."""

    def close(self) -> None:
        """Write what is still buffered and release everything; `take_lost` can be called afterwards.

        Raises:
            OSError: Something could not be completed.
        """


BROKERS = "nats://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC"
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")


class _Scheme(NamedTuple):
    """How the URLs of a kind of broker are written."""

    port: int
    word: str  # for what the path names
    pattern: str
    rule: str  # the pattern in words
    options: tuple[str, ...]  # after the path


_BROKERS = {  # subjects of NATS have dots between their parts
    "nats": _Scheme(4222, "stream", r"[A-Za-z0-9_-]{1,255}", "1 to 255 letters, digits, _ and -", ()),
    "kafka": _Scheme(
        9092, "topic", r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}", "1 to 249 letters, digits, ., _ and -", ("properties",)
    ),
}


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """Servers, and the stream or topic there."""

    scheme: str  # nats or kafka
    servers: tuple[str, ...]  # HOST:PORT
    name: str  # of the stream or topic
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    query: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the URL without user and password."""
        return f"{self.scheme}://{','.join(self.servers)}/{self.name}"


def parse_sink(target: str, *, expected: str = f"a directory, {BROKERS}") -> Path | BrokerUrl:
    """Return the directory or the URL that a text names.

    >>> str(parse_sink("nats://127.0.0.1/loop"))
    'nats://127.0.0.1:4222/loop'
    >>> parse_sink("file:///var/samples")
    PosixPath('/var/samples')

    Args:
        target: A directory or a URL.
        expected: The allowed forms, for error messages.

    Raises:
        ValueError: If it names none.
    """
    if "://" not in target:
        if not target or "\0" in target:
            raise RankfallError(f"found {target!r}, expected {expected}")
        return Path(target)
    shown = shown_target(target)
    try:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise RankfallError(f"{shown} is not a URL ({error})") from None
    scheme = _BROKERS.get(parts.scheme)
    if scheme is None and parts.scheme != "file":
        raise RankfallError(f"found {shown}, expected {expected}")
    options = () if scheme is None else scheme.options
    unknown = sorted(query.keys() - set(options))
    if unknown or parts.fragment:
        allowed = " or ".join(options) or "nothing"
        raise RankfallError(f"{shown}: found {', '.join(unknown) or '#'} after the path, expected {allowed}")
    if scheme is None:
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise RankfallError(f"found {shown}, expected file:///DIR with an absolute path")
        return Path(unquote(parts.path))
    name = parts.path.removeprefix("/")
    if not re.fullmatch(scheme.pattern, name):
        raise RankfallError(f"{shown}: found {name!r} as {scheme.word}, expected {scheme.rule}")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = (unquote(part) for part in userinfo.partition(":"))
    if user and parts.scheme == "kafka":
        hint = "write ?properties=FILE with sasl.username and sasl.password"
        raise RankfallError(f"{shown}: Kafka takes no user in its URL; {hint}")
    servers = []
    for host in hosts.split(","):
        found = _SERVER.fullmatch(host)
        port = int(found["port"] or scheme.port) if found else 0
        if found is None or not 0 < port < 65536:
            raise RankfallError(f"{shown}: found {host!r} as server, expected HOST:PORT")
        servers.append(f"{found['host']}:{port}")
    return BrokerUrl(parts.scheme, tuple(servers), name, user or None, password or None, query)


def shown_target(target: str) -> str:
    """Return a URL without user and password."""
    return re.sub(r"://.*@", "://", target, flags=re.DOTALL)


_PROBE_BYTES = 4096


class FileSink:
    """Writes samples to DIR/samples and events to DIR/events; implements :class:`~.sinks.Sink`.

    Args:
        directory: DIR, which is created if it is missing.
        max_bytes: Size above which a segment is complete.
        max_seconds: Age after which a segment is complete.

    Raises:
        OSError: If the directories cannot be created.
    """

    def __init__(
        self, directory: Path, *, max_bytes: int = SEGMENT_BYTES, max_seconds: float = SEGMENT_SECONDS
    ) -> None:
        self._directory = directory
        self._writers = {
            kind: SegmentWriter(directory / kind, max_bytes=max_bytes, max_seconds=max_seconds)
            for kind in (SAMPLES, EVENTS)
        }

    def check(self) -> None:
        for kind in self._writers:
            probe = self._directory / kind / f".probe-{os.getpid()}"
            try:
                with _disk.open_new(probe) as file:
                    file.write(bytes(_PROBE_BYTES))
            finally:
                _disk.delete(probe, missing_ok=True)

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        self._writers[kind].write(batch, durable=durable)

    def tick(self) -> None:
        with ExitStack() as stack:  # an error of one kind does not concern the other
            for writer in self._writers.values():
                stack.callback(writer.complete_if_due)

    def take_lost(self) -> int:
        return 0

    def close(self) -> None:
        with ExitStack() as stack:
            for writer in self._writers.values():
                stack.callback(writer.close)


DELIVERY_SECONDS = 3.0  # until a message that was not confirmed is given up
MAX_UNCONFIRMED = 32 << 20  # bytes of messages that were not written durably


class BrokerSink(Sink):
    """Delivers batches to a broker as messages, each with a unique id; implements :class:`Sink`.

    Args:
        url: Servers, and the stream or topic.
    """

    def __init__(self, url: BrokerUrl) -> None:
        self._url = url
        self._name = os.urandom(8).hex()
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # futures are settled in the thread of the broker's client
        self._unconfirmed: dict[Future[None], int] = {}  # bytes by message
        self._lost = 0

    @abstractmethod
    def _max_message(self) -> int:
        """Return the bytes of the largest message; raise a SinkError if there is no connection."""

    @abstractmethod
    def _deliver(self, kind: Kind, id: str, payload: bytes) -> Future[None]:
        """Begin to deliver a message; the future fails with a SinkError after DELIVERY_SECONDS at the latest."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection, and fail what was not confirmed."""

    def _wait(self, messages: Sequence[Future[None]], seconds: float) -> None:
        """Wait until messages are confirmed or have failed."""
        wait(messages, seconds)

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        try:
            parts = encode(batch, self._max_message())
        except ValueError as error:
            raise SinkError(f"{self._url}: {error}") from None
        waiting = sum(self._unconfirmed.copy().values())
        if not durable and waiting and waiting + sum(len(payload) for payload, _ in parts) > MAX_UNCONFIRMED:
            raise SinkError(f"{self._url}: {waiting:,} bytes were not confirmed yet")
        messages = []
        for payload, records in parts:
            message = self._deliver(kind, f"{self._name}-{next(self._numbers)}", payload)
            messages.append(message)
            if not durable:
                self._unconfirmed[message] = len(payload)
                message.add_done_callback(partial(self._settle, records))
        if durable:
            self._wait(messages, DELIVERY_SECONDS + 1)
            for message in messages:
                if not message.done():
                    raise SinkError(f"{self._url}: not confirmed in time")
                message.result()

    def _settle(self, records: int, message: Future[None]) -> None:
        """Take note that a message was confirmed or lost."""
        with self._lock:
            del self._unconfirmed[message]
            self._lost += records if message.cancelled() or message.exception() else 0

    def tick(self) -> None:
        pass

    def take_lost(self) -> int:
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    def close(self) -> None:
        self._wait(list(self._unconfirmed.copy()), DELIVERY_SECONDS + 1)
        self._disconnect()


def open_sink(target: str) -> Sink:
    """Return the sink that a directory or URL names.

    Servers are connected to in the background, so that a service can start while its broker is down;
    :meth:`Sink.check` reports whether there is a connection.

    Raises:
        ValueError: If it names none, or the package of the broker is not installed.
        OSError: If a directory cannot be created.
    """
    place = parse_sink(target)
    sink: Sink = open_broker(place, "Sink") if isinstance(place, BrokerUrl) else FileSink(place)
    return sink


def open_broker(url: BrokerUrl, role: Literal["Sink", "Source"]) -> Any:
    """Return the sink or the source of a broker, for example `KafkaSink`, whose client is imported now.

    Raises:
        ValueError: If the package of the broker is not installed.
    """
    try:
        module = import_module(f"rankfall.serving.recording.{url.scheme}")
    except ModuleNotFoundError as error:
        raise RankfallError(
            f"{url.scheme}:// needs {error.name}, which is not installed: pip install 'rankfall[{url.scheme}]'"
        ) from None
    return getattr(module, f"{url.scheme.title()}{role}")(url)
