"""Text files, plain or compressed, as blocks of whole lines; and the checksum of what was read."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BLOCK_BYTES = 2 << 20  # large enough to spend the time in array operations, small enough for the cache
LONGEST_LINE = 64 << 20  # more is no text file

_MARKS = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Source:
    """One file to read. After the last block `bytes` and `sha256` speak of the file as it is stored."""

    def __init__(self, path: Path, on_read: Callable[[int], None] = lambda n: None) -> None:
        self.path = path
        self.bytes = 0
        self._digest = hashlib.sha256()
        self._on_read = on_read

    @property
    def sha256(self) -> str:
        """Checksum of everything read."""
        return self._digest.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """The text in blocks of whole lines, each with its last newline."""
        with (
            self.path.open("rb") as file,
            io.BufferedReader(_Counted(file, self._count), 1 << 20) as stored,
            _unpacked(stored, self.path) as text,
        ):
            yield from _whole_lines(text, self.path)
            while stored.read(BLOCK_BYTES):  # what may follow the compressed data belongs to the checksum
                pass

    def _count(self, data: memoryview) -> None:
        self.bytes += len(data)
        self._digest.update(data)
        self._on_read(len(data))


class _Counted(io.RawIOBase):
    """A file that shows everything that is read from it."""

    def __init__(self, file: IO[bytes], show: Callable[[memoryview], None]) -> None:
        self._file = file
        self._show = show

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = cast("io.BufferedReader", self._file).readinto(buffer)
        self._show(memoryview(buffer)[:count])
        return count


@contextmanager
def _unpacked(packed: io.BufferedReader[Any], path: Path) -> Iterator[IO[bytes]]:
    """The text of a file, whichever way its first bytes say it is compressed."""
    start = packed.peek(8)
    kind = next((kind for mark, kind in _MARKS.items() if start.startswith(mark)), None)
    try:
        if kind == "gzip":
            with gzip.open(packed) as text:
                yield cast("IO[bytes]", text)
        elif kind == "xz":
            with lzma.open(packed) as text:
                yield text
        elif kind == "zstd":
            with pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd") as text:
                yield text
        else:
            yield packed
    except (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowInvalid) as error:
        if getattr(error, "errno", None) is not None:
            raise  # the system's errors have a number, damaged data have none
        raise ValueError(f"{path}: damaged or cut off ({error})") from error


def _whole_lines(text: IO[bytes], path: Path) -> Iterator[bytes]:
    parts: list[bytes] = []  # of a line that has not ended
    chunk = text.read(BLOCK_BYTES).removeprefix(_BYTE_ORDER_MARK)
    while chunk:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts.clear()
        parts.append(chunk[cut:])
        if sum(map(len, parts)) > LONGEST_LINE:
            raise ValueError(f"{path}: a line of more than {LONGEST_LINE >> 20} MB; this is no text file of lines")
        chunk = text.read(BLOCK_BYTES)
    if any(parts):
        yield b"".join([*parts, b"\n"])
