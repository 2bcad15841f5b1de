"""Rows on disk by portion: written in the order of the source, read one portion at a time."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._disk import open_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class RowSpool:
    """A file of pieces, each with rows of one portion. Only the index of the pieces is in memory."""

    path: Path
    columns: list[str]
    pieces: NDArray[np.int64]  # record batches of the file, sorted by portion
    portions: NDArray[np.int64]  # the portion of each of them

    def read(self, portion: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Read columns of the rows of a portion, in no particular order."""
        first, last = np.searchsorted(self.portions, [portion, portion + 1])
        if first == last:
            return []
        chosen = [self.columns.index(name) for name in columns]
        # read instead of mapped: mapped pages would stay in memory as long as there is free memory
        with pa.OSFile(str(self.path), "rb") as file:
            reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=chosen))
            return [reader.get_batch(number).select(list(columns)) for number in self.pieces[first:last].tolist()]


def write_spool(directory: Path, batches: Iterable[pl.DataFrame], portion: str) -> RowSpool:
    """Write rows to a new file.

    Args:
        directory: Where the file is written. Its name is unique, so work that is repeated after a crash does not
            overwrite it.
        batches: The rows.
        portion: The column with the portion of each row, which is not written.
    """
    path = directory / f"{uuid.uuid4().hex}.spool"
    columns: list[str] = []
    portions: list[int] = []
    writer: Any = None
    with ExitStack() as stack:
        file = stack.enter_context(open_new(path))
        for rows in batches:
            if not rows[portion].is_sorted():
                rows = rows.sort(portion)
            runs = rows[portion].rle().struct.unnest()
            table = rows.drop(portion).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:
                columns = table.column_names
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = stack.enter_context(pa.ipc.new_file(file, table.schema, options=options))
            start = 0
            for number, length in zip(runs["value"].to_list(), runs["len"].to_list(), strict=True):
                # `table` is in one chunk, so each piece becomes one record batch
                writer.write_table(table.slice(start, length))
                portions.append(number)
                start += length
    of_piece = np.array(portions, np.int64)
    pieces = np.argsort(of_piece, kind="stable")
    return RowSpool(path, columns, pieces, of_piece[pieces])
