"""Rows on disk, by portions: written in the order of the source, read a portion at a time."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Spool:
    """One file of pieces, each of which belongs to a portion. Nothing but where the pieces are is in memory."""

    path: Path
    columns: list[str]
    pieces: NDArray[np.int64]  # by portion
    portions: NDArray[np.int64]  # of each of them

    def read(self, portion: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Those columns of the rows of a portion, in no particular order."""
        first, last = np.searchsorted(self.portions, [portion, portion + 1])
        if first == last:
            return []
        chosen = [self.columns.index(name) for name in columns]
        # read, not mapped: what is mapped stays in memory as long as there is some
        with pa.OSFile(str(self.path), "rb") as file:
            reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=chosen))
            return [reader.get_batch(number).select(list(columns)) for number in self.pieces[first:last].tolist()]


def write_spool(directory: Path, batches: Iterable[pl.DataFrame], portion: str) -> Spool:
    """Write rows, whose portion the column `portion` tells; that column is not kept.

    Whoever does it once more, since a process died, writes another file.
    """
    path = directory / f"{uuid.uuid4().hex}.spool"
    columns: list[str] = []
    portions: list[int] = []
    writer: Any = None
    with ExitStack() as stack:
        file = stack.enter_context(pa.OSFile(str(path), "wb"))
        for rows in batches:
            if not rows[portion].is_sorted():
                rows = rows.sort(portion)
            runs = rows[portion].rle().struct.unnest()
            table = rows.drop(portion).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:
                columns = table.column_names
                packed = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = stack.enter_context(pa.ipc.new_file(file, table.schema, options=packed))
            start = 0
            for number, length in zip(runs["value"].to_list(), runs["len"].to_list(), strict=True):
                # a piece is one record batch, since `table` is in one chunk
                writer.write_table(table.slice(start, length))
                portions.append(number)
                start += length
    of_piece = np.array(portions, np.int64)
    pieces = np.argsort(of_piece, kind="stable")
    return Spool(path, columns, pieces, of_piece[pieces])
