"""Collecting: from the messages of a broker to the segments that joining reads.

==================  ===================================================================================================
``DIR/samples``     segments of samples
``DIR/events``      segments of events
``DIR/rejected``    messages without records, each as a file; at most MAX_REJECTED files
==================  ===================================================================================================

Messages are acknowledged after their records are on disk. If the process dies in between, they are delivered again, and
recognized by their ids, which are the labels of the batches in the segments.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from rankfall._errors import RankfallError
from rankfall.serving.recording.record_segments import EVENTS, SAMPLES, BadMessageError, SegmentWriter, decode, segments
from rankfall.serving.recording.sinks import BROKERS, BrokerUrl, SinkError, open_broker, parse_sink
from rankfall.storage import disk as _disk
from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from rankfall.serving.recording.record_segments import Message


MAX_MESSAGES = 200  # per call of receive
RECEIVE_SECONDS = 0.5


class Source(Protocol):
    """Delivers messages in the order in which they were written, beginning with the first unacknowledged one.

    All methods raise a SinkError if the connection is lost. The source is useless then; a new one begins with the
    messages that were not acknowledged.
    """

    def receive(self) -> list[Message]:
        """Return at most MAX_MESSAGES messages, or none if there were none for RECEIVE_SECONDS."""

    def is_drained(self) -> bool:
        """Return whether all messages that were there at the last call of `receive` have been received."""

    def take_missed(self) -> int:
        """Return the number of messages, since the last call, that the broker deleted before they were received."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Confirm all messages that a call of `receive` returned; return when the broker knows it."""

    def close(self) -> None:
        """End the connection."""


def open_source(target: str) -> Source:
    """Return the source that a URL names.

    Raises:
        ValueError: If it names none, or the package of the broker is not installed.
        SinkError: If no connection can be made.
    """
    url = parse_sink(target, expected=BROKERS)
    if not isinstance(url, BrokerUrl):
        raise RankfallError(f"found {target!r}, expected {BROKERS}")
    source: Source = open_broker(url, "Source")
    return source


REJECTED = "rejected"
MAX_REJECTED = 100
_REMEMBERED = 10 * MAX_MESSAGES  # ids of messages: more than can be unacknowledged
_SEARCHED = 20  # segments; the last group of messages is in one or two
_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class CollectionCounts:
    """What was collected so far.

    Attributes:
        messages: Number of messages.
        samples: Number of samples written.
        events: Number of events written.
        repeated: Number of messages that were delivered again and not written again.
        rejected: Number of messages without records.
        missed: Number of messages that the broker deleted before they were collected.
    """

    messages: int = 0
    samples: int = 0
    events: int = 0
    repeated: int = 0
    rejected: int = 0
    missed: int = 0


def collect(
    target: str,
    directory: Path,
    *,
    follow: bool,
    stop: Callable[[], object],
    on_notice: Callable[[str], object],
    on_counts: Callable[[CollectionCounts], object],
) -> CollectionCounts:
    """Write the messages of a broker to segments.

    Args:
        target: URL of the stream or topic.
        directory: Directory of the segments, which is created if it is missing.
        follow: Wait for further messages, and connect again after the connection was lost.
        stop: Called between groups of messages; a true value ends the work.
        on_notice: Receives texts about rejected messages and lost connections.
        on_counts: Receives the counts after each group of messages.

    Raises:
        ValueError: If the URL is wrong, or the package of the broker is not installed.
        SinkError: If the broker cannot be reached; with `follow`, only at the beginning.
        OSError: If the records cannot be written. Those that are not on disk stay in the broker.
    """
    source: Source | None = open_source(target)
    try:
        collector = _Collector(directory, on_notice)
        try:
            while not stop():
                try:
                    source = source or open_source(target)
                    messages = source.receive()
                    collector.write(messages)
                    collector.counts.missed += source.take_missed()
                    if messages:
                        source.acknowledge(messages)
                except SinkError as error:
                    if not follow:
                        raise
                    on_notice(f"{error}; trying again")
                    if source is not None:
                        source.close()
                    source = None
                    time.sleep(_RETRY_SECONDS)
                    continue
                on_counts(collector.counts)
                if not follow and source.is_drained():
                    break
        finally:
            collector.close()
    finally:
        if source is not None:
            source.close()
    return collector.counts


class _Collector:
    """Writes messages to the segments of a directory.

    Args:
        directory: Directory of the segments, which is created if it is missing.
        on_notice: Receives a text about each message that is kept apart.
    """

    def __init__(self, directory: Path, on_notice: Callable[[str], object]) -> None:
        self.counts = CollectionCounts()
        self._rejected, self._on_notice = directory / REJECTED, on_notice
        self._writers = {kind: SegmentWriter(directory / kind) for kind in (SAMPLES, EVENTS)}
        self._known = dict.fromkeys(  # the ids of the last messages, oldest first
            id for kind in self._writers for id in reversed(list(islice(_last_labels(directory / kind), _REMEMBERED)))
        )

    def write(self, messages: Sequence[Message]) -> None:
        """Write messages, which are on disk afterwards, and complete segments that are due.

        Raises:
            OSError: If a message was not written; others may have been.
        """
        batches = list(self._new_batches(messages))
        last = {message.kind: message for message, _ in batches}
        for message, batch in batches:
            # The last one of each kind takes all others to the disk.
            durable = message is last[message.kind]
            self._writers[message.kind].write(batch, durable=durable, label=message.id)
        for writer in self._writers.values():
            writer.complete_if_due()
        self._known.update(dict.fromkeys(message.id for message, _ in batches if message.id))
        for id in list(islice(self._known, max(0, len(self._known) - 2 * _REMEMBERED))):
            del self._known[id]
        self.counts.messages += len(messages)
        self.counts.samples += sum(len(batch) for message, batch in batches if message.kind == SAMPLES)
        self.counts.events += sum(len(batch) for message, batch in batches if message.kind == EVENTS)

    def close(self) -> None:
        with ExitStack() as stack:  # an error of one kind does not concern the other
            for writer in self._writers.values():
                stack.callback(writer.close)

    def _new_batches(self, messages: Sequence[Message]) -> Iterator[tuple[Message, pa.RecordBatch]]:
        """Yield the messages that were not written before, and their records; keep those without records apart."""
        for message in messages:
            if message.id in self._known:
                self.counts.repeated += 1
                continue
            try:
                yield message, decode(message)
            except BadMessageError as error:
                self.counts.rejected += 1
                path = self._rejected / f"{hashlib.sha256(message.payload).hexdigest()[:16]}.message"
                _disk.make_directory(self._rejected)
                if not path.exists() and sum(1 for _ in self._rejected.iterdir()) < MAX_REJECTED:
                    write_file(path, message.payload)
                    self._on_notice(f"a message was rejected: {error}; it is kept as {path}")


def _last_labels(directory: Path) -> Iterator[str]:
    """Yield the labels of the batches in the newest segments of a directory, in reverse order of writing."""
    newest = sorted(segments(directory), key=lambda one: one.path.stat().st_mtime_ns, reverse=True)
    for segment in newest[:_SEARCHED]:
        yield from reversed([label for _, label in segment.labelled_batches() if label])
