"""Text files, plain or compressed, as blocks of whole lines, with a checksum of the bytes read."""

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
LONGEST_LINE = 64 << 20  # a file with longer lines is not a text file

_MARKS = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextFile:
    """A file to read. After the last block, `bytes` and `sha256` describe the file as it is stored.

    Args:
        path: The file; gzip, xz and zstd are recognised by its first bytes.
        on_read: Receives the number of bytes read.
    """

    def __init__(self, path: Path, on_read: Callable[[int], None] = lambda n: None) -> None:
        self.path = path
        self.bytes = 0
        self._digest = hashlib.sha256()
        self._on_read = on_read

    @property
    def sha256(self) -> str:
        """The checksum of the bytes read."""
        return self._digest.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """Iterate over the text in blocks of whole lines, each with its last newline."""
        with (
            self.path.open("rb") as file,
            io.BufferedReader(_Counted(file, self._count), 1 << 20) as stored,
            _unpacked(stored, self.path) as text,
        ):
            yield from _whole_lines(text, self.path)
            while stored.read(BLOCK_BYTES):  # bytes after the compressed data belong to the checksum, too
                pass

    def _count(self, data: memoryview) -> None:
        self.bytes += len(data)
        self._digest.update(data)
        self._on_read(len(data))


class _Counted(io.RawIOBase):
    """A file that passes everything read from it to a function."""

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
    """Decompress a file according to its first bytes."""
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
            raise  # errors of the operating system have a number, those of damaged data have none
        raise ValueError(f"{path}: damaged or truncated ({error})") from error


def _whole_lines(text: IO[bytes], path: Path) -> Iterator[bytes]:
    parts: list[bytes] = []  # of an incomplete line
    chunk = text.read(BLOCK_BYTES).removeprefix(_BYTE_ORDER_MARK)
    while chunk:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts.clear()
        parts.append(chunk[cut:])
        if sum(map(len, parts)) > LONGEST_LINE:
            raise ValueError(
                f"{path}: found a line of more than {LONGEST_LINE >> 20} MB, expected a text file of lines"
            )
        chunk = text.read(BLOCK_BYTES)
    if any(parts):
        yield b"".join([*parts, b"\n"])
