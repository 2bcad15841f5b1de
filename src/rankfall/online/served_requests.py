"""The requests of days that are closed: when an event comes late, they tell to which day it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._disk import open_new
from rankfall.data.impressions.log import map_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

HASH, DAY = "\1hash", "\1day"
_SCHEMA = pa.schema([("hash", pa.uint64()), ("day", pa.int32()), ("sampled", pa.bool_())])


class Found(NamedTuple):
    """For each request that was looked up: whether it was served, its day, and whether it was sampled."""

    served: NDArray[np.bool_]
    day: NDArray[np.int32]
    sampled: NDArray[np.bool_]


class ServedRequests:
    """Requests that were received before the current day was closed, by the hashes of their ids.

    Args:
        files: The files that :func:`write_served` wrote, oldest first.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._tables = [map_table(path) for path in reversed(files)]

    def find(self, hashes: Hashes) -> Found:
        """Look requests up; those of the latest files are found first."""
        found = Found(np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.int32), np.zeros(len(hashes), np.bool_))
        for table in self._tables:
            left = np.flatnonzero(~found.served)
            if not len(left):
                break
            known = table["hash"].combine_chunks().to_numpy()
            places = np.searchsorted(known, hashes[left])
            inside = places < len(known)
            hit = np.zeros(len(left), np.bool_)
            hit[inside] = known[places[inside]] == hashes[left][inside]
            rows = places[hit]
            found.served[left[hit]] = True
            found.day[left[hit]] = table["day"].take(rows).to_numpy()
            found.sampled[left[hit]] = table["sampled"].take(rows).to_numpy()
        return found


def write_served(path: Path, parts: Sequence[pl.DataFrame]) -> None:
    """Write the requests of a window.

    Args:
        path: The file.
        parts: Frames with `HASH`, `DAY` and ``sampled``, sorted by `HASH` one after the other.
    """
    columns = pl.concat(parts).select(pl.col(HASH).alias("hash"), pl.col(DAY).alias("day"), "sampled").rechunk()
    table = pa.table(
        [
            pa.array(columns["hash"].to_numpy()),
            pa.array(columns["day"].to_numpy()),
            pa.array(columns["sampled"].to_numpy()),
        ],
        schema=_SCHEMA,
    )
    with open_new(path) as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        writer.write_table(table)
