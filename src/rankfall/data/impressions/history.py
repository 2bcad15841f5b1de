"""What users did before a request: their last events, with a memory that grows with users, not with time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class History:
    """The last events of every user. Portions of a log go through :meth:`advance` in the order of time.

    Events have the columns `user`, `time` (whole numbers), `order` (which decides between events of one time) and
    `columns`, whose values are what a sequence shows.
    """

    def __init__(self, max_length: int, columns: Sequence[str]) -> None:
        self.max_length = max_length
        self.columns = list(columns)
        self._events: pl.DataFrame | None = None

    def advance(self, users: pl.Series, times: pl.Series, events: pl.DataFrame) -> pl.DataFrame:
        """The last events strictly before each request, oldest first, as one column of lists a column.

        `events` are those of the portion; no later portion may hold an earlier time than the latest of this one. Who
        is null is nobody: such events are nobody's past, and such requests have none.
        """
        known = events.select("user", "time", "order", *self.columns).filter(pl.col("user").is_not_null())
        if self._events is not None:
            # a portion in which nobody has a name may not know the type of names
            known = pl.concat([self._events, known], how="vertical_relaxed")
        known = known.sort("user", "time", "order")
        starts, stops = _spans_before(known, users, times)
        starts = np.maximum(starts, stops - self.max_length)
        self._events = self._still_needed(known, int(times.to_numpy().max(initial=0)))
        return _take_spans(known.select(self.columns), starts, stops)

    def _still_needed(self, known: pl.DataFrame, last: int) -> pl.DataFrame:
        """What requests from the time `last` on may ask for."""
        earlier = known.filter(pl.col("time") < last).group_by("user", maintain_order=True).tail(self.max_length)
        return pl.concat([earlier.select(known.columns), known.filter(pl.col("time") >= last)])


def _spans_before(
    known: pl.DataFrame, users: pl.Series, times: pl.Series
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in events sorted by user and time those of each request's user begin, and where the earlier ones end."""
    both = pl.concat(
        [known.select("user", "time"), pl.DataFrame({"user": users, "time": times.cast(known["time"].dtype)})],
        how="vertical_relaxed",
    )
    # ranks instead of values make one number of user and time that cannot overflow; nobody's is 0, below all events
    codes = both["user"].rank("dense").cast(pl.Int64).fill_null(0).to_numpy()
    moments = both["time"].rank("dense").cast(pl.Int64).to_numpy()
    width = int(moments.max(initial=0)) + 1
    keys = codes * width + moments
    sorted_keys, asked = keys[: len(known)], keys[len(known) :]
    starts = np.searchsorted(sorted_keys, codes[len(known) :] * width, side="left")
    return starts, np.searchsorted(sorted_keys, asked, side="left")


def _take_spans(values: pl.DataFrame, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> pl.DataFrame:
    lengths = stops - starts
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    rows = np.arange(edges[-1]) + np.repeat(starts - edges[:-1], lengths)
    taken = values[rows]
    return pl.DataFrame(
        {
            name: pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(edges), taken[name].to_arrow()))
            for name in values.columns
        }
    )
