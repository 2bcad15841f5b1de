"""Sinks: where a service writes samples and events.

==============================  ======================================================================================
``DIR``, ``file:///DIR``        segments in DIR/samples and DIR/events
``nats://HOST:PORT/STREAM``     a stream of NATS JetStream; ``rankfall collect`` makes segments of it
``kafka://HOST:PORT/TOPIC``     a topic of Kafka; ``rankfall collect`` makes segments of it
==============================  ======================================================================================
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rankfall._errors import RankfallError
from rankfall.serving.recording.record_segments import EVENTS, SAMPLES, SEGMENT_BYTES, SEGMENT_SECONDS, SegmentWriter
from rankfall.storage import disk as _disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
_QUERIES = {"file": (), "nats": (), "kafka": ("properties",)}  # names of options
_PORTS = {"nats": 4222, "kafka": 9092}
_NAMES = {  # subjects of NATS have dots between their parts
    "nats": ("stream", re.compile(r"[A-Za-z0-9_-]{1,255}"), "1 to 255 letters, digits, _ and -"),
    "kafka": ("topic", re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}"), "1 to 249 letters, digits, ., _ and -"),
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
    try:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise RankfallError(f"{shown_target(target)} is not a URL ({error})") from None
    if parts.scheme not in _QUERIES:
        raise RankfallError(f"found {shown_target(target)}, expected {expected}")
    unknown = sorted(query.keys() - set(_QUERIES[parts.scheme]))
    if unknown or parts.fragment:
        allowed = " or ".join(_QUERIES[parts.scheme]) or "nothing"
        raise RankfallError(
            f"{shown_target(target)}: found {', '.join(unknown) or '#'} after the path, expected {allowed}"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise RankfallError(f"found {shown_target(target)}, expected file:///DIR with an absolute path")
        return Path(unquote(parts.path))
    return _broker(target, parts, query)


def _broker(target: str, parts: SplitResult, query: Mapping[str, str]) -> BrokerUrl:
    word, pattern, rule = _NAMES[parts.scheme]
    name = parts.path.removeprefix("/")
    if not pattern.fullmatch(name):
        raise RankfallError(f"{shown_target(target)}: found {name!r} as {word}, expected {rule}")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    if user and parts.scheme == "kafka":
        raise RankfallError(
            f"{shown_target(target)}: Kafka takes no user in its URL; write ?properties=FILE with "
            "sasl.username and sasl.password"
        )
    servers = tuple(_server(target, host, _PORTS[parts.scheme]) for host in hosts.split(","))
    return BrokerUrl(
        parts.scheme, servers, name, unquote(user) if user else None, unquote(password) if password else None, query
    )


def _server(target: str, text: str, default: int) -> str:
    found = re.fullmatch(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?", text)
    port = int(found["port"] or default) if found else 0
    if found is None or not 0 < port < 65536:
        raise RankfallError(f"{shown_target(target)}: found {text!r} as server, expected HOST:PORT")
    return f"{found['host']}:{port}"


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
        self._directories = [directory / kind for kind in (SAMPLES, EVENTS)]
        self._writers = {
            kind: SegmentWriter(directory / kind, max_bytes=max_bytes, max_seconds=max_seconds)
            for kind in (SAMPLES, EVENTS)
        }

    def check(self) -> None:
        for directory in self._directories:
            probe = directory / f".probe-{os.getpid()}"
            try:
                with _disk.open_new(probe) as file:
                    file.write(bytes(_PROBE_BYTES))
            finally:
                _disk.delete(probe, missing_ok=True)

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        self._writers[kind].write(batch, durable=durable)

    def tick(self) -> None:
        self._for_each(SegmentWriter.complete_if_due)

    def take_lost(self) -> int:
        return 0

    def close(self) -> None:
        self._for_each(SegmentWriter.close)

    def _for_each(self, act: Callable[[SegmentWriter], None]) -> None:
        """Call a method of both writers, of the second one also if the first one fails."""
        first, second = self._writers.values()
        try:
            act(first)
        finally:
            act(second)


def open_sink(target: str) -> Sink:
    """Return the sink that a directory or URL names.

    Servers are connected to in the background, so that a service can start while its broker is down;
    :meth:`Sink.check` reports whether there is a connection.

    Raises:
        ValueError: If it names none, or the package of the broker is not installed.
        OSError: If a directory cannot be created.
    """
    place = parse_sink(target)
    if not isinstance(place, BrokerUrl):
        return FileSink(place)
    with requires_extra(place.scheme):
        if place.scheme == "nats":
            from rankfall.serving.recording.nats import NatsSink

            return NatsSink(place)
        from rankfall.serving.recording.kafka import KafkaSink

        return KafkaSink(place)


@contextmanager
def requires_extra(scheme: str) -> Iterator[None]:
    """Turn a failed import of the package of a broker into an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RankfallError(
            f"{scheme}:// needs {error.name}, which is not installed: pip install 'rankfall[{scheme}]'"
        ) from None
