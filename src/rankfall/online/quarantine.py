"""Requests and events that are set apart, each with a reason: the day is closed without them.

Clients choose most values of requests and events, and no value may keep a day from being closed. Whatever a log cannot
have, or must not have, comes here. It is counted by reason and stored beside the log, up to a bound for each reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pa_parquet

from rankfall._disk import open_new

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# events
UNKNOWN_REQUEST = "event: unknown request"
OTHER_ITEM = "event: item not in the sample"
EVENT_VALUE = "event: value out of range"
OF_APART = "event: request set apart"
# requests
REQUEST_ID = "request: id"
REQUEST_TIME = "request: time in the future"
REQUEST_VALUE = "request: value"
REQUEST_STAGES = "request: number of stages"
USER_REQUESTS = "request: too many of one user"
PARITY = "request: parity"
CLIENT_PARITY = "request: parity, sent by the client"

Reasons = dict[int, tuple[str, str]]  # reason and detail, by the place of a request

MOST_STORED = 100_000  # records of a reason and day
MOST_EXAMPLES = 5
_STORED = ("reason", "request", "id", "item", "kind", "value", "time", "received", "detail")


@dataclass
class Quarantine:
    """What is set apart while a day is closed."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    _frames: list[pl.DataFrame] = field(default_factory=list)

    def add(self, reason: str, records: pl.DataFrame, details: Sequence[str] | None = None) -> None:
        """Set records apart.

        Args:
            reason: One of the reasons above.
            records: Samples or events.
            details: What is wrong with each of them.
        """
        if not len(records):
            return
        is_event = "kind" in records.columns
        names = [name for name in _STORED if name in records.columns and (is_event or name != "item")]
        kept = records.select(names).with_columns(
            pl.lit(reason).alias("reason"),
            pl.Series("detail", details, pl.String) if details else pl.lit("").alias("detail"),
        )
        kept = kept.head(max(0, MOST_STORED - self.counts[reason]))
        shown = self.examples.setdefault(reason, [])
        for one in kept.head(MOST_EXAMPLES - len(shown)).iter_rows(named=True):
            of = f"event {one['id']!r} of request" if is_event else "request"
            shown.append(f"{of} {one['request']!r}" + (f": {one['detail']}" if one["detail"] else ""))
        self.counts[reason] += len(records)
        self._frames.append(kept)

    def write(self, path: Path) -> None:
        """Write what is stored, in an order that does not depend on how records were read."""
        if self._frames:
            stored = pl.concat(self._frames, how="diagonal")
            stored = stored.select(name for name in _STORED if name in stored.columns)
            with open_new(path) as file:
                ordered = stored.sort(stored.columns).rechunk()
                pa_parquet.write_table(ordered.to_arrow(compat_level=pl.CompatLevel.oldest()), file)
