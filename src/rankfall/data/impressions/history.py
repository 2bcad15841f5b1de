"""The last events of every user before a request, in memory that grows with users, not with time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall.data.indexing import edges, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class EventHistory:
    """The last events of every user. Portions of a log go through :meth:`advance` in the order of time.

    Args:
        max_length: The largest number of events of a request.
        columns: The columns of events that a sequence contains. Events also have `user`, `time` and `order` (whole
            numbers), which orders events of the same time.
        ties: Columns that order events of the same time and `order`. They are forgotten as soon as no other event can
            have this time, because ids need much memory.
        events: The events of earlier portions that are still needed, as :attr:`events` returned them.
    """

    def __init__(
        self,
        max_length: int,
        columns: Sequence[str],
        events: pl.DataFrame | None = None,
        ties: Sequence[str] = (),
    ) -> None:
        self.max_length = max_length
        self.columns = list(columns)
        self._ties = list(ties)
        self._keys = ["user", "time", "order", *ties]
        self._events = events

    @property
    def events(self) -> pl.DataFrame | None:
        """The events that later portions may need, in a form that does not depend on the portions; None before any."""
        if self._events is None:
            return None
        known = self._events.sort(self._keys)
        last = known["time"].max()  # no later request is before this time
        return self._still_needed(known, last if isinstance(last, int) else 0).sort(self._keys)

    def advance(self, users: pl.Series, times: pl.Series, events: pl.DataFrame) -> pl.DataFrame:
        """Return the last events strictly before each request of a portion.

        Args:
            users: The user of each request. Requests and events without a user have no history.
            times: The time of each request.
            events: The events of the portion. No later portion may have an earlier time than the latest of this one.

        Returns:
            One row per request; each of `columns` is a column of lists, oldest event first.
        """
        known = events.select(*self._keys, *self.columns).filter(pl.col("user").is_not_null())
        if self._events is not None:
            # a portion without any user may have a column of nulls
            known = pl.concat([self._events, known], how="vertical_relaxed")
        known = known.sort(self._keys)
        starts, stops = _spans_before(known, users, times)
        starts = np.maximum(starts, stops - self.max_length)
        self._events = self._still_needed(known, int(times.to_numpy().max(initial=0)))
        return _take_spans(known.select(self.columns), starts, stops)

    def _still_needed(self, known: pl.DataFrame, last: int) -> pl.DataFrame:
        """Return the events that requests from the time `last` on may need."""
        earlier = known.filter(pl.col("time") < last).group_by("user", maintain_order=True).tail(self.max_length)
        earlier = earlier.select(known.columns)
        if self._ties:
            forgotten = [pl.lit(None, known.schema[name]).alias(name) for name in self._ties]
            numbers = pl.int_range(pl.len(), dtype=pl.Int64).alias("order")  # which keep the order of events
            earlier = earlier.with_columns(numbers, *forgotten)
        return pl.concat([earlier, known.filter(pl.col("time") >= last)])


def _spans_before(
    known: pl.DataFrame, users: pl.Series, times: pl.Series
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the events of each request's user begin, and where those before the request end.

    The events are sorted by user and time.
    """
    both = pl.concat(
        [known.select("user", "time"), pl.DataFrame({"user": users, "time": times.cast(known["time"].dtype)})],
        how="vertical_relaxed",
    )
    # ranks combine user and time into one number that cannot overflow; a missing user is 0, below all events
    codes = both["user"].rank("dense").cast(pl.Int64).fill_null(0).to_numpy()
    moments = both["time"].rank("dense").cast(pl.Int64).to_numpy()
    width = int(moments.max(initial=0)) + 1
    keys = codes * width + moments
    sorted_keys, request_keys = keys[: len(known)], keys[len(known) :]
    starts = np.searchsorted(sorted_keys, codes[len(known) :] * width, side="left")
    return starts, np.searchsorted(sorted_keys, request_keys, side="left")


def _take_spans(values: pl.DataFrame, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> pl.DataFrame:
    lengths = stops - starts
    offsets = pa.array(edges(lengths))
    taken = values[spans(starts, lengths)]
    return pl.DataFrame(
        {name: pl.from_arrow(pa.LargeListArray.from_arrays(offsets, taken[name].to_arrow())) for name in values.columns}
    )
