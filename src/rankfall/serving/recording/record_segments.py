"""Segments: files of records, one after the other, in the streaming format of Arrow.

==========================================  ==========================================================================
``FIRST-WRITER-NUMBER-DIGEST.arrows``       a complete segment; DIGEST is the beginning of its SHA-256
``FIRST-WRITER-NUMBER.open``                a segment that a process writes, and has locked
``FIRST-WRITER-NUMBER.creating``            a file that is not locked yet
==========================================  ==========================================================================

FIRST is the smallest ``received`` of its first batch, in milliseconds with 13 digits, and WRITER a random name of the
process. Batches are written as a whole. If a process dies, its open segment ends with a complete batch or with a part
of one; :func:`recover` cuts off that part and gives the segment its name.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankfall._errors import RankfallError
from rankfall.storage import disk as _disk
from rankfall.storage.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


SUFFIX, OPEN, CREATING = ".arrows", ".open", ".creating"
SEGMENT_BYTES = 64 << 20
SEGMENT_SECONDS = 10.0
_DIGEST_LENGTH = 16
_ABANDONED_SECONDS = 60.0  # after which an empty file without a lock belongs to a dead process
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_LABEL = b"rankfall.label"  # in the metadata of a batch
_NAME = re.compile(r"(?P<first>[0-9]{13})-(?P<writer>[0-9a-f]{8})-(?P<number>[0-9]{6,})")
_COMPLETE = re.compile(rf"{_NAME.pattern}-(?P<digest>[0-9a-f]{{{_DIGEST_LENGTH}}}){re.escape(SUFFIX)}")


class DamagedSegmentError(RankfallError):
    """A segment whose content does not match its name, or that is no segment."""


@dataclass(frozen=True, order=True, slots=True)
class Segment:
    """A complete segment."""

    first: int  # milliseconds since 1970
    writer: str
    number: int
    path: Path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of records.

        Raises:
            DamagedSegmentError: If the file was changed.
        """
        return (batch for batch, _ in self.labelled_batches())

    def labelled_batches(self) -> Iterator[tuple[pa.RecordBatch, str]]:
        """Yield the batches of records and the labels with which they were written, "" without one.

        Raises:
            DamagedSegmentError: If the file was changed.
        """
        with open_regular(self.path) as file:
            content = pa.py_buffer(file.read())
        found = _COMPLETE.fullmatch(self.path.name)
        if found is None or _digest(hashlib.sha256(content)) != found["digest"]:
            raise DamagedSegmentError(f"{self.path} does not match the checksum in its name; the file was changed")
        try:
            with pa.ipc.open_stream(content) as reader, suppress(StopIteration):
                while True:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                    yield batch, metadata[_LABEL].decode() if metadata and _LABEL in metadata else ""
        except (pa.ArrowException, OSError) as error:  # OSError: what cannot be decompressed
            raise DamagedSegmentError(f"{self.path} is not a segment of records ({error})") from None


def segments(directory: Path) -> list[Segment]:
    """Return the complete segments of a directory, in the order of their first records."""
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [match for name in names if (match := _COMPLETE.fullmatch(name))]
    return sorted(
        Segment(int(match["first"]), match["writer"], int(match["number"]), directory / match[0]) for match in matches
    )


def first_open(directory: Path) -> int | None:
    """Return the smallest ``received`` of the first batches of open segments, in milliseconds, or None without any."""
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [_NAME.fullmatch(name.removesuffix(OPEN)) for name in names if name.endswith(OPEN)]
    return min((int(match["first"]) for match in matches if match), default=None)


class SegmentWriter:
    """Writes records to segments of a directory.

    A segment is complete after `max_seconds` (see :meth:`complete_if_due`), above `max_bytes`, if a batch has another
    schema, after an error, and when the writer is closed. Use it in one thread at a time.

    Args:
        directory: Directory of the segments, which is created if it is missing.
        max_bytes: Size above which a segment is complete.
        max_seconds: Age after which a segment is complete.
        now: Clock of the age, in seconds.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = SEGMENT_BYTES,
        max_seconds: float = SEGMENT_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._max_bytes, self._max_seconds, self._now = max_bytes, max_seconds, now
        self._writer = os.urandom(4).hex()
        self._number = 0
        self._segment: _OpenSegment | None = None
        _disk.make_directory(directory)
        recover(directory)

    def write(self, batch: pa.RecordBatch, *, durable: bool = False, label: str = "") -> None:
        """Append a batch, which has at least one record.

        Args:
            batch: Records, with a column ``received``.
            durable: Return after the batch, and all earlier ones, are on disk.
            label: A text to find the batch by, stored with it.

        Raises:
            OSError: The batch was not written. The segment was completed without it; later batches may succeed.
        """
        if self._segment is not None and self._segment.schema != batch.schema:
            self.complete()
        if self._segment is None:
            first = pc.min(batch["received"]).cast(pa.int64()).as_py()
            name = f"{max(0, first):013d}-{self._writer}-{self._number:06d}"
            self._segment = _OpenSegment(self._directory / name, batch.schema, self._now())
            self._number += 1
        try:
            self._segment.append(batch, durable=durable, label=label)
        except OSError:
            self.complete()
            raise
        if self._segment.bytes > self._max_bytes:
            self.complete()

    def complete_if_due(self) -> None:
        """Complete the segment if it is old enough; to be called from time to time."""
        if self._segment is not None and self._now() - self._segment.since >= self._max_seconds:
            self.complete()

    def complete(self) -> None:
        """Complete the segment, if there is one: readers see it from now on."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.complete()

    close = complete


class _OpenSegment:
    """A locked file to which batches are appended.

    Args:
        path: Its path without a suffix.
        schema: Columns of the records.
        since: Time of its creation.
    """

    def __init__(self, path: Path, schema: pa.Schema, since: float) -> None:
        self.schema, self.since = schema, since
        self._path = path
        self._has_batches = self._has_durable_name = False
        self._hash = hashlib.sha256()
        self.bytes = 0
        self._buffer = io.BytesIO()
        creating = path.with_name(path.name + CREATING)
        self._open = path.with_name(path.name + OPEN)
        self._file = _disk.open_new(creating)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            _disk.rename(creating, self._open)
        except OSError:
            self._file.close()
            _disk.delete(creating, missing_ok=True)
            raise
        self._stream = pa.ipc.new_stream(self._buffer, schema, options=_OPTIONS)

    def append(self, batch: pa.RecordBatch, *, durable: bool, label: str) -> None:
        """Append a batch; after an error, also one of the disk, the file is as long as before."""
        self._stream.write_batch(batch, custom_metadata={_LABEL: label} if label else None)
        content = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            self._file.write(content)
            if durable:
                _disk.sync(self._open)
                if not self._has_durable_name:
                    _disk.sync(self._open.parent)  # the name of the file, without which a crash of the machine loses it
                    self._has_durable_name = True
        except OSError:
            _disk.cut(self._file, self.bytes)
            self._file.seek(self.bytes)
            raise
        self._hash.update(content)
        self.bytes += len(content)
        self._has_batches = True

    def complete(self) -> None:
        """Give the segment its name, or delete it if it has no batches."""
        try:
            if not self._has_batches:
                _disk.delete(self._open)
                return
            # Without the mark of its end, which a full disk may refuse, a stream ends with its file.
            _disk.sync(self._open)
            _disk.rename(self._open, _final(self._path, self._hash))
            _disk.sync(self._path.parent)
        finally:
            self._file.close()


def recover(directory: Path) -> list[Path]:
    """Complete the open segments of dead processes; return their paths."""
    found = []
    for name in sorted(os.listdir(directory)):
        path = directory / name
        if name.endswith(OPEN) and _NAME.fullmatch(name.removesuffix(OPEN)):
            found += _recover(path)
        elif name.endswith(CREATING) and _NAME.fullmatch(name.removesuffix(CREATING)):
            with suppress(FileNotFoundError):  # it has its next name
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    _disk.delete(path)
    return found


def _recover(path: Path) -> list[Path]:
    try:
        file = _disk.open_new(path, "r+b")
    except FileNotFoundError:  # its process, or another one, has completed it
        return []
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its process lives
            return []
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return []
        end = _end_of_batches(path)
        if end == 0:
            _disk.delete(path)
            return []
        _disk.cut(file, end)
        content = path.read_bytes()
        _disk.sync(path)
        final = _final(path.with_name(path.name.removesuffix(OPEN)), hashlib.sha256(content))
        _disk.rename(path, final)
        _disk.sync(path.parent)
        return [final]


def _end_of_batches(path: Path) -> int:
    """Return the size of the complete batches at the beginning of a segment, with its schema; 0 without any.

    Batches are decoded: after a failure of the machine, a message may have its length but not its content.
    """
    with pa.BufferReader(path.read_bytes()) as file:
        end = 0
        try:
            schema = pa.ipc.read_schema(pa.ipc.read_message(file))
            while True:
                pa.ipc.read_record_batch(pa.ipc.read_message(file), schema).validate(full=True)
                end = file.tell()
        except (EOFError, pa.ArrowException, OSError):
            return end


def _final(path: Path, content: hashlib._Hash) -> Path:
    return path.with_name(f"{path.name}-{_digest(content)}{SUFFIX}")


def _digest(content: hashlib._Hash) -> str:
    return content.hexdigest()[:_DIGEST_LENGTH]


# kinds of records, and directories of their segments
SAMPLES: Final = "samples"
EVENTS: Final = "events"

_TIME = pa.timestamp("ms", "UTC")


def _required(**kinds: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in kinds.items()]


def sample_schema(ids: pa.DataType) -> pa.Schema:
    """Return the columns of samples.

    Args:
        ids: The type of item ids, int64 or string.
    """
    lists = {"item": ids, "stage": pa.int8(), "rank": pa.int32(), "score": pa.float32(), "inclusion": pa.float32()}
    return pa.schema(
        [
            *_required(request=pa.string(), time=_TIME, received=_TIME, sampled=pa.bool_()),
            *(pa.field(name, pa.string()) for name in ("model", "bundle", "body")),
            *(pa.field(name, pa.list_(pa.field("item", kind, nullable=False))) for name, kind in lists.items()),
        ]
    )


_TEXTS = dict.fromkeys(("id", "request", "item", "kind"), pa.string())
EVENT_SCHEMA = pa.schema(_required(**_TEXTS, value=pa.float64(), time=_TIME, received=_TIME))


SCHEMAS = {EVENTS: [EVENT_SCHEMA], SAMPLES: [sample_schema(pa.int64()), sample_schema(pa.string())]}


class BadMessageError(RankfallError):
    """A message that holds no records."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a broker.

    Attributes:
        kind: Samples or events; a message of another program may have any other.
        id: A name that no other message has. It is empty if another program wrote the message.
        payload: The records.
        handle: What the broker needs to acknowledge it.
    """

    kind: str
    id: str
    payload: bytes
    handle: Any = None


def encode(batch: pa.RecordBatch, max_bytes: int) -> list[tuple[bytes, int]]:
    """Return the payloads of a batch and the number of records of each.

    Args:
        batch: At least one record.
        max_bytes: Size of the largest payload. Larger batches are divided.

    Raises:
        ValueError: If a single record is larger.
    """
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    payload = buffer.getvalue().to_pybytes()
    if len(payload) <= max_bytes:
        return [(payload, len(batch))]
    if len(batch) == 1:
        raise RankfallError(f"a record has {len(payload):,} bytes, and a message at most {max_bytes:,}")
    half = len(batch) // 2
    return encode(batch.slice(0, half), max_bytes) + encode(batch.slice(half), max_bytes)


def decode(message: Message) -> pa.RecordBatch:
    """Return the records of a message.

    Raises:
        BadMessageError: If it holds none, or records of another form.
    """
    if message.kind not in SCHEMAS:
        raise BadMessageError(f"found the kind {message.kind!r}, expected {SAMPLES} or {EVENTS}")
    try:
        with pa.ipc.open_stream(message.payload) as reader:
            table = reader.read_all().combine_chunks()
        table.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadMessageError(f"it is no Arrow stream ({error})") from None
    schema = next((one for one in SCHEMAS[message.kind] if one == table.schema), None)
    if schema is None:
        raise BadMessageError(f"the columns are not those of {message.kind}")
    empty = [field.name for field in schema if not field.nullable and table[field.name].null_count]
    if empty or not len(table):
        raise BadMessageError(f"{', '.join(empty)} has no value" if empty else "it has no records")
    (batch,) = table.to_batches()
    return batch
