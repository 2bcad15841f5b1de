"""Joining in plain Python: dictionaries and loops over all records at once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from support.served_records import STAGES, raw_columns

if TYPE_CHECKING:
    from support.served_records import Record, Traffic

ZONE = ZoneInfo("Europe/Berlin")
SLACK = 5_000
FIELDS = (
    *("request", "time", "received", "sampled", "model", "bundle", "body"),
    *("item", "stage", "rank", "score", "inclusion"),
)


@dataclass
class WitnessDay:
    """Rows and counts of a day."""

    rows: list[Record] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    apart: Counter[str] = field(default_factory=Counter)


def date_of(time: int) -> date:
    """The date of a time in milliseconds."""
    return datetime.fromtimestamp(time / 1000, UTC).astimezone(ZONE).date()


def limit_of(day: date, wait: int) -> int:
    """The last moment for records of a day."""
    midnight = datetime.combine(day + timedelta(1), datetime.min.time(), ZONE)
    return round(midnight.timestamp() * 1000) + wait


def witness_join(traffic: Traffic, *, after: str, wait: int = 3_600_000) -> dict[str, WitnessDay]:
    """Join records to the days after the newest one of a log, as far as they are closed."""
    for sample in traffic.samples:  # a request from the future belongs to the day of its receipt
        sample["day"] = date_of(sample["received" if is_future(sample) else "time"])
    latest = max(one["received"] for one in (*traffic.samples, *traffic.events))
    first: dict[str, Record] = {}
    for sample in sorted(traffic.samples, key=_order):
        first.setdefault(sample["request"], sample)
    days = sorted(
        {one["day"] for one in traffic.samples if one["sampled"] and one["received"] <= limit_of(one["day"], wait)}
    )
    closed = [day for day in days if str(day) > after and limit_of(day, wait) + SLACK < latest]
    events: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for event in traffic.events:
        events[event["request"], event["id"]].append(event)
    found = {}
    for day in closed:
        found[str(day)] = made = WitnessDay()
        limit = limit_of(day, wait)
        for request in first.values():
            if request["day"] == day and request["received"] <= limit:
                made.counts["requests"] += 1
                if request["sampled"]:
                    made.counts["sampled"] += 1
                    _add_request(made, request, events, limit, is_future(request))
    return found


def _order(sample: Record) -> tuple[int, str]:
    content: dict[str, Any] = {name: sample.get(name) for name in FIELDS}
    for name in ("score", "inclusion"):
        if content[name] is not None:
            content[name] = [float(np.float32(value)) for value in content[name]]
    return sample["received"], json.dumps(content, sort_keys=True)


def _event_order(event: Record) -> tuple[Any, ...]:
    value = event["value"]
    is_nan = value != value
    return event["received"], event["item"], event["kind"], is_nan, 0.0 if is_nan else value, event["time"]


def is_future(sample: Record) -> bool:
    """Whether a request has a time more than an hour after its receipt."""
    return bool(sample["time"] > sample["received"] + 3_600_000)


def _add_request(
    made: WitnessDay, request: Record, events: dict[tuple[str, str], list[Record]], limit: int, is_apart: bool
) -> None:
    used: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for (of, _), same in sorted(events.items()):
        in_time = [event for event in same if event["received"] <= limit]
        if of != request["request"] or not in_time:
            continue
        made.counts["repeated_events"] += len(in_time) - 1
        event = min(in_time, key=_event_order)
        if is_apart:
            made.apart["event: request set apart"] += 1
        elif event["item"] not in map(str, request["item"]):
            made.apart["event: item not in the sample"] += 1
        elif event["kind"] in ("click", "seconds"):
            if not 0 <= event["value"] <= 1e10:
                made.apart["event: value out of range"] += 1
                continue
            made.counts["events"] += 1
            used[event["item"], event["kind"]].append(event["value"])
    if is_apart:
        made.apart["request: time in the future"] += 1
        return
    for place, item in enumerate(request["item"]):
        made.counts["items"] += 1
        stage, rank = request["stage"][place], request["rank"][place]
        made.rows.append(
            {
                "request": request["request"],
                "item": item,
                "at": request["time"],
                "stage": STAGES[stage],
                "rank": rank,
                "place": rank if stage == len(STAGES) - 1 else None,
                "drawn": request["inclusion"][place],
                "click": min(1e10, sum(used[str(item), "click"], 0.0)),
                "seconds": min(1e10, sum(used[str(item), "seconds"], 0.0)),
                **raw_columns(json.loads(request["body"])),
            }
        )


def rows_frame(rows: list[Record]) -> pl.DataFrame:
    """Return rows as a file of a log has them."""
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(
        pl.col("at").cast(pl.Datetime("ms", "UTC")), pl.col("age").cast(pl.Float64)
    )
