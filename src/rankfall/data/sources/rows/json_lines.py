"""Files of JSON lines, one object per row, read as text files are: numbers and truth values stay text until their types
are decided over all files together. Lists keep their types, because text files have none.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from rankfall.data.sources.rows.column_types import joint_type, plain_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    OnBadLine = Callable[[int, str], None]

JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_BLOCK_BYTES = 2**24
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OBJECTS = pl.Object()  # the type of columns of objects, which no feature can use


def json_columns(path: Path) -> dict[str, pl.DataType]:
    """Return the keys of all objects in a file, and their types: String, lists, or Object for other values.

    Raises:
        ValueError: If the file has no line with an object.
    """
    about = path.stat()
    return dict(_columns(path, about.st_size, about.st_mtime_ns))


@functools.lru_cache(maxsize=1024)  # every reader of lists needs their types, which are known after the last line only
def _columns(path: Path, size: int, changed: int) -> dict[str, pl.DataType]:
    kinds: dict[str, pl.DataType] = {}
    bad: list[tuple[int, str]] = []
    for first, lines in _blocks(path):
        for frame in _parse(lines, None, first, lambda row, found: bad.append((row, found))):
            for name, kind in frame.schema.items():
                kinds[name] = _joint(kinds.get(name, pl.Null()), kind)
    if not kinds:
        raise ValueError("found no rows" if not bad else f"row {bad[0][0] + 1}: {bad[0][1]}, expected a JSON object")
    return {name: pl.String() if kind == pl.Null() else kind for name, kind in kinds.items()}


def _joint(known: pl.DataType, kind: pl.DataType) -> pl.DataType:
    """Return the type of lists or objects that has all values; Null for values that stay text."""
    if not kind.is_nested():
        return known
    try:
        return joint_type([known, plain_type(kind)])
    except ValueError:
        return _OBJECTS


def json_batches(path: Path, columns: Sequence[str], on_bad: OnBadLine) -> Iterator[pl.DataFrame]:
    """Iterate over the rows of a file; a key that an object lacks, null and empty text are missing values.

    Args:
        path: The file.
        columns: The keys to read.
        on_bad: Receives the index and the error of each line that is no object, which then is left out.
    """
    kinds = json_columns(path)
    schema = {name: pl.String() if kinds[name] == _OBJECTS else kinds[name] for name in columns}
    for first, lines in _blocks(path):
        for frame in _parse(lines, schema, first, on_bad):
            yield frame.with_columns(pl.col(pl.String).replace("", None))


def _parse(
    lines: list[bytes], schema: dict[str, pl.DataType] | None, first: int, on_bad: OnBadLine
) -> list[pl.DataFrame]:
    """Parse lines, at once if all of them are objects, otherwise in halves until the bad ones are alone."""
    try:
        for line in filter(_SURROGATE.search, lines):  # polars reads half a pair as NUL
            json.dumps(json.loads(line), ensure_ascii=False).encode()
        frame = pl.read_ndjson(b"\n".join(lines), schema=schema, infer_schema_length=None)
        problem = "" if len(frame) == len(lines) else "found several values"
    except (ValueError, RecursionError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        problem = f"found {lines[0][:40].decode(errors='replace')!r} ({str(error).partition(chr(10))[0]})"
    if not problem:
        return [frame]
    if len(lines) == 1:
        on_bad(first, problem)
        return []
    middle = len(lines) // 2
    return [
        *_parse(lines[:middle], schema, first, on_bad),
        *_parse(lines[middle:], schema, first + middle, on_bad),
    ]


def _blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lines that are not blank in blocks, and the index of the first line of each."""
    first, rest, ended = 0, b"", False
    with pa.input_stream(str(path), compression="detect") as stream:
        rest = stream.read(3).removeprefix(codecs.BOM_UTF8)
        while not ended:
            data = stream.read(_BLOCK_BYTES)
            ended = not data
            # the last line of a block may go on in the next one
            *complete, rest = (rest + data + b"\n" * ended).split(b"\n")
            if lines := [line for line in complete if line.strip()]:
                yield first, lines
                first += len(lines)
