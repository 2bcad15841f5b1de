"""Rows on disk, by portions: written in the order of the source, read a portion at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Spool:
    """One file of pieces, each of which belongs to a portion. Nothing but where the pieces are is in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = pa.OSFile(str(path), "wb")
        self._writer: Any = None
        self._schema: Any = None
        self._readers: dict[tuple[str, ...], Any] = {}
        self._pieces: dict[int, list[int]] = {}
        self._count = 0

    def append(self, rows: pl.DataFrame, portion: str) -> None:
        """Add rows, whose portion the column `portion` tells; that column is not kept."""
        if not rows[portion].is_sorted():
            rows = rows.sort(portion)
        runs = rows[portion].rle().struct.unnest()
        table = rows.drop(portion).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
        if self._writer is None:
            self._schema = table.schema
            self._writer = pa.ipc.new_file(self._file, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        start = 0
        for number, length in zip(runs["value"].to_list(), runs["len"].to_list(), strict=True):
            # a piece is one record batch, since `table` is in one chunk
            self._writer.write_table(table.slice(start, length))
            self._pieces.setdefault(number, []).append(self._count)
            self._count += 1
            start += length

    def finish(self) -> None:
        """No rows come any more; they can be read now."""
        if self._writer is not None:
            self._writer.close()
        self._file.close()

    def read(self, portion: int, columns: Sequence[str]) -> pl.DataFrame | None:
        """Those columns of the rows of a portion, in no particular order; None if there are no rows."""
        if portion not in self._pieces:
            return None
        reader = self._reader(tuple(columns))
        pieces = pa.Table.from_batches([reader.get_batch(number) for number in self._pieces[portion]])
        frame = pl.from_arrow(pieces)
        assert isinstance(frame, pl.DataFrame)
        return frame.select(columns).rechunk()

    def close(self) -> None:
        """Remove the file."""
        self._readers.clear()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _reader(self, columns: tuple[str, ...]) -> Any:
        if columns not in self._readers:
            # read, not mapped: what is mapped stays in memory as long as there is some
            file = pa.OSFile(str(self.path), "rb")
            chosen = [self._schema.get_field_index(name) for name in columns]
            self._readers[columns] = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=chosen))
        return self._readers[columns]
