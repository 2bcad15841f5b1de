"""Which samples and events of a part count for a day, and what becomes of the others."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from rankfall.online.served_requests import DAY, HASH
from rankfall.online.window_records import CARRIED

if TYPE_CHECKING:
    from rankfall.online.served_requests import ServedRequests
    from rankfall.online.window_records import Part

_SAMPLED = "sampled"
_EVENT_ORDER = ("request", "id", "received", "item", "kind", "value", "time")
GRACE = 600_000  # milliseconds by which the record of a request may be written after one of its events


@dataclass
class MatchCounts:
    """Counts of the records of a window."""

    requests: int = 0
    sampled: int = 0
    repeated_requests: int = 0
    repeated_events: int = 0
    unsampled_events: int = 0
    late_requests: Counter[int] = field(default_factory=Counter)  # by day
    late_events: Counter[int] = field(default_factory=Counter)

    def __iadd__(self, other: MatchCounts) -> MatchCounts:
        """Add the counts of other records."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        return self


@dataclass(frozen=True)
class MatchedPart:
    """The records of a part after matching.

    Attributes:
        samples: The sampled requests of the day, in the order of their hashes.
        events: The events of these requests, each once, in a fixed order.
        later_samples: Requests of later days.
        later_events: Events of these requests, if they were sampled, and those whose requests may follow.
        unknown: Events of requests that were never served, each once.
        served: `HASH`, `DAY` and ``sampled`` of the requests that were received in this window.
        counts: Numbers of all of these.
    """

    samples: pl.DataFrame
    events: pl.DataFrame
    later_samples: pl.DataFrame
    later_events: pl.DataFrame
    unknown: pl.DataFrame
    served: pl.DataFrame
    counts: MatchCounts


def match_records(part: Part, day: int, limit: int, earlier: ServedRequests) -> MatchedPart:
    """Decide on the records of a part.

    Of several records with the id of one request, the first counts: the one that was received first, and of those the
    smallest by its content. The same holds for events of a request with the same id.

    Args:
        part: The records.
        day: The day that is closed.
        limit: Its limit. What was received shortly before it may belong to a request that is recorded later.
        earlier: The requests of earlier windows.
    """
    counts = MatchCounts()
    requests = _first_of_each_request(part.samples, earlier, counts)
    of_day = requests.filter(pl.col(DAY) == day)
    counts.requests, counts.sampled = len(of_day), int(of_day[_SAMPLED].sum())
    counts.late_requests.update(dict(requests.filter(pl.col(DAY) < day)[DAY].value_counts().rows()))
    events = _with_requests(part.events, requests, earlier)
    is_settled = pl.col("received").to_physical() <= limit - GRACE
    unknown, unsettled = (events.filter(pl.col(DAY).is_null() & settled) for settled in (is_settled, ~is_settled))
    counts.unsampled_events = len(events.filter(~pl.col(_SAMPLED)))
    sampled = events.filter(_SAMPLED)
    counts.late_events.update(dict(sampled.filter(pl.col(DAY) < day)[DAY].value_counts().rows()))
    used = sampled.filter(pl.col(DAY) == day)
    distinct = _first_of_each_event(used)
    counts.repeated_events = len(used) - len(distinct)
    return MatchedPart(
        samples=of_day.filter(_SAMPLED),
        events=distinct,
        later_samples=requests.filter(pl.col(DAY) > day),
        later_events=pl.concat([sampled.filter(pl.col(DAY) > day), unsettled]),
        unknown=_first_of_each_event(unknown),
        served=requests.filter(~pl.col(CARRIED)).select(HASH, DAY, _SAMPLED),
        counts=counts,
    )


def _first_of_each_request(samples: pl.DataFrame, earlier: ServedRequests, counts: MatchCounts) -> pl.DataFrame:
    """Return one record per request, in the order of hashes."""
    new = samples.filter(~pl.col(CARRIED))
    is_known = pl.Series(earlier.find(new[HASH].to_numpy()).served)
    first = new.filter(~is_known)
    if (repeated := first["request"].is_duplicated()).any():
        several = first.filter(repeated)
        first = pl.concat([first.filter(~repeated), several[_smallest_records(several)]])
    counts.repeated_requests = len(new) - len(first)
    return pl.concat([samples.filter(CARRIED), first]).sort(HASH, "request")


def _smallest_records(samples: pl.DataFrame) -> list[int]:
    """Return the place of the record that counts for each request; this is for few records."""
    best: dict[str, tuple[tuple[int, str], int]] = {}
    records = samples.drop(HASH, DAY, CARRIED).with_columns(pl.col("received", "time").to_physical())
    for place, record in enumerate(records.iter_rows(named=True)):
        order = record["received"], json.dumps(record, sort_keys=True)
        known = best.get(record["request"])
        if known is None or order < known[0]:
            best[record["request"]] = order, place
    return [place for _, place in best.values()]


def _with_requests(events: pl.DataFrame, requests: pl.DataFrame, earlier: ServedRequests) -> pl.DataFrame:
    """Add `DAY` and ``sampled`` of the requests of events, null for requests that were never served."""
    joined = events.join(requests.select("request", DAY, _SAMPLED), on="request", how="left", maintain_order="left")
    missing = joined[DAY].is_null()
    if not missing.any():
        return joined
    rest = joined.filter(missing)
    served, day, sampled = earlier.find(rest[HASH].to_numpy())
    found = [
        pl.when(pl.Series(served)).then(pl.Series(of)).alias(name) for name, of in ((DAY, day), (_SAMPLED, sampled))
    ]
    return pl.concat([joined.filter(~missing), rest.with_columns(found)])


def _first_of_each_event(events: pl.DataFrame) -> pl.DataFrame:
    """Return each event of a request once, in an order that does not depend on that of the segments."""
    return events.sort(_EVENT_ORDER).unique(["request", "id"], keep="first", maintain_order=True)
