"""Records of a service without a service: requests, samples of what was served and events, and segments of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from rankfall.data.impressions.spec import Spec, validate_spec
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.serving.recording.record_segments import EVENT_SCHEMA, EVENTS, SAMPLES, SegmentWriter, sample_schema
from rankfall.serving.service.bundle_slots import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall.data import ImpressionLog
    from rankfall.serving.bundle import Bundle

    Record = dict[str, Any]

HOUR, DAY = 3_600_000, 86_400_000
MIDNIGHT = 1_705_100_400_000  # 2024-01-13 00:00 in Berlin, which is 23:00 UTC of the 12th
ITEMS, USERS = 40, 6
TOPICS = ("news", "sport", "film", "food")
STAGES = ["missed", "outranked", "answered"]
VALUES = (1.0, 0.1, 0.7, 12.5)
HOSTILE_VALUES = (1e10, 1e10, -1.0, -1e300, 1e39, 1.7e308, float("inf"), float("nan"))


def served_spec(**changes: Any) -> Spec:
    """A spec of logs of a service with two stages."""
    content: dict[str, Any] = {
        "request": "request",
        "item": "item",
        "user": "user",
        "time": {"column": "at", "zone": "Europe/Berlin"},
        "stage": "stage",
        "rank": "rank",
        "stages": [{"name": name} for name in STAGES],
        "relevant": {"column": "click"},
        "feedback": ["click", "seconds"],
        "position": "place",
        "inclusion": "drawn",
        "features": {
            "user": {
                "user": {"kind": "categorical", "vocabulary": True},
                "age": {"kind": "dense", "standardise": True, "missing": 30},
            },
            "context": {
                "hour": {"kind": "time", "part": "hour"},
                "page": {"kind": "categorical", "num_buckets": 5},
                "place": {"kind": "categorical", "hash_bucket_size": 11, "column": "town"},
            },
            "item": {
                "item": {"kind": "categorical", "vocabulary": True, "embedding": "item"},
                "topic": {"kind": "categorical", "vocabulary": True},
                "price": {"kind": "dense", "log1p": True, "standardise": True},
            },
        },
        "sequences": {
            "history": {
                "max_length": 4,
                "features": ["item", "topic"],
                "columns": {"item": "past_items", "topic": "past_topics"},
            }
        },
    }
    return validate_spec({**content, **changes})


def topic_of(item: int) -> str:
    """The topic of an item."""
    return TOPICS[item % len(TOPICS)]


def write_items(path: Path) -> Path:
    """Write the table of items."""
    items = list(range(ITEMS))
    columns = {"item": items, "topic": list(map(topic_of, items)), "price": [1.5 * item + 1 for item in items]}
    pl.DataFrame(columns).write_parquet(path)
    return path


# --- requests -----------------------------------------------------------------------------------------------------


def random_request(chance: random.Random, time: int) -> Record:
    """A request as a client sends it, at a time in milliseconds."""
    past = [chance.randrange(ITEMS) for _ in range(chance.randrange(6))]
    forms: list[Any] = [
        [{"item": item, "topic": topic_of(item)} for item in past],
        [{"item": item} for item in past],  # the topic is that of the item
        {"item": past, "topic": [topic_of(item) for item in past]},
    ]
    return {
        "time": datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds"),
        "user": {"user": f"u{chance.randrange(USERS)}", "age": chance.choice([None, 20, 30.5, 41])},
        "context": {"page": chance.randrange(5), "place": chance.choice(["Ulm", "Bonn", None])},
        "sequences": {"history": chance.choice(forms)},
    }


def raw_columns(request: Record) -> Record:
    """The columns that a log has of a request."""
    events = request["sequences"]["history"]
    past = events["item"] if isinstance(events, dict) else [event["item"] for event in events]
    return {
        **request["user"],
        "page": request["context"]["page"],
        "town": request["context"]["place"],
        "past_items": past,
        "past_topics": [topic_of(item) for item in past],
    }


# --- records ------------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """Samples and events, as a service records them."""

    samples: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)

    def with_events(self, *events: Record) -> Traffic:
        """Return the same traffic with further events."""
        return replace(self, events=[*self.events, *events])


def random_traffic(
    seed: int, *, days: int = 2, requests: int = 12, first: int = MIDNIGHT + 2 * DAY, hostile: bool = False
) -> Traffic:
    """Random records of some days, with everything that may go wrong: late, repeated and unknown ones.

    Those of hostile clients also have times in the future and values that no log may have.
    """
    chance = random.Random(seed)
    traffic = Traffic()
    for number in range(days * requests):
        time = first + chance.randrange(days * DAY)
        ahead = [-20 * 60_000, -5 * HOUR] if hostile else []
        received = time + chance.choice([0, 5, 1000, 20 * 60_000, 3 * HOUR, *ahead])
        sample = random_sample(chance, f"r{number}", time, received)
        traffic.samples.append(sample)
        if chance.random() < 0.2:  # the client used the id again
            again = random_sample(
                chance, f"r{number}", time + chance.choice([0, 1000, DAY]), received + chance.choice([0, 7, DAY])
            )
            traffic.samples.append(again)
        traffic.events += random_events(chance, sample, VALUES + HOSTILE_VALUES if hostile else VALUES)
    traffic.samples.append(random_sample(chance, "last", first + days * DAY + 9 * HOUR, first + days * DAY + 9 * HOUR))
    return traffic


def random_sample(chance: random.Random, request: str, time: int, received: int) -> Record:
    """A sample of a request, or the short record of one that was not sampled."""
    short = {"request": request, "time": time, "received": received, "sampled": chance.random() < 0.8}
    if not short["sampled"]:
        return short
    body = random_request(chance, time)
    items = chance.sample(range(ITEMS), 9)
    return {
        **short,
        "model": "m1",
        "bundle": "bundles/m1",
        "body": json.dumps(body, sort_keys=True),
        "item": items,
        "stage": [2] * 3 + [1] * 3 + [0] * 3,
        "rank": [0, 1, 2, 4, 3, 7, -1, -1, -1],
        "score": [round(chance.gauss(0, 1), 3) for _ in items],
        "inclusion": [1.0] * 3 + [0.5] * 3 + [0.125] * 3,
    }


def random_events(chance: random.Random, sample: Record, values: Sequence[float] = VALUES) -> list[Record]:
    """Events of a request: good ones, repeated ones, late ones, and those of nothing that was served."""
    made = []
    for number in range(chance.randrange(5)):
        items = sample.get("item") or [1]
        received = sample["received"] + chance.choice([0, 40, 30 * 60_000, 2 * HOUR, DAY])
        event = {
            "id": f"e{number}",
            "request": sample["request"] if chance.random() < 0.9 else f"forged{chance.randrange(9)}",
            "item": str(chance.choice(items) if chance.random() < 0.9 else ITEMS + 5),
            "kind": chance.choice(["click", "seconds", "view"]),
            "value": chance.choice(values),
            "time": received - 10,
            "received": received,
        }
        made.append(event)
        if chance.random() < 0.3:
            made.append(
                {**event, "received": received + chance.choice([0, 60_000]), "value": chance.choice([1.0, 3.0])}
            )
    return made


def write_segments(directory: Path, traffic: Traffic, seed: int | None = None, *, text: bool = False) -> None:
    """Write records to segments: all in one each, or with a seed in random order, batches and segments."""
    schemas = {SAMPLES: sample_schema(pa.string() if text else pa.int64()), EVENTS: EVENT_SCHEMA}
    for kind, records in ((SAMPLES, list(traffic.samples)), (EVENTS, list(traffic.events))):
        chance = random.Random(seed)
        if seed is not None:
            chance.shuffle(records)
        while records:
            writer = SegmentWriter(directory / kind)
            for _ in range(1 if seed is None else chance.randint(1, 3)):
                count = len(records) if seed is None else chance.randint(1, 9)
                part, records = records[:count], records[count:]
                if part:
                    writer.write(pa.RecordBatch.from_pylist([_plain(one, text=text) for one in part], schemas[kind]))
            writer.close()


def _plain(record: Record, *, text: bool) -> Record:
    return (
        {**record, "item": list(map(str, record["item"]))} if text and isinstance(record.get("item"), list) else record
    )


def bundle_traffic(bundle: Bundle, times: list[int], seed: int = 0, *, drawn: int = 3) -> Traffic:
    """Samples of what a bundle answers: all answered items, and some of those that each of its two stages dropped."""
    chance = random.Random(seed)
    model, (first, last) = model_name(bundle.manifest), bundle.names
    traffic = Traffic()
    for number, time in enumerate(times):
        request = random_request(chance, time)
        ranking = bundle.rank(request, k=5, explain=True)
        assert ranking.stages is not None
        kept = ranking.stages[0].ids[: ranking.stages[0].kept]
        outranked = [one for one in kept if one not in ranking.ids]
        missed = [one for one in range(ITEMS) if one not in kept]
        second, whole = chance.sample(outranked, drawn), chance.sample(missed, drawn)
        items = [*ranking.ids, *second, *whole]
        scores = bundle.score(request, items)
        order = ranking.stages[1].ids
        traffic.samples.append(
            {
                "request": f"s{number}",
                "time": time,
                "received": time + 5,
                "sampled": True,
                "model": model,
                "bundle": str(bundle.path),
                "body": json.dumps(request, sort_keys=True),
                "item": items,
                "stage": [2] * len(ranking.ids) + [1] * drawn + [0] * drawn,
                "rank": [*range(len(ranking.ids)), *map(order.index, second), *[-1] * drawn],
                "score": [scores[first if place >= len(items) - drawn else last][place] for place in range(len(items))],
                "inclusion": [1.0] * len(ranking.ids)
                + [drawn / len(outranked)] * drawn
                + [drawn / len(missed)] * drawn,
            }
        )
    end = times[-1] + 2 * DAY
    traffic.samples.append({"request": "end", "time": end, "received": end, "sampled": False})
    return traffic


# --- logs ---------------------------------------------------------------------------------------------------------


def older_rows(days: int = 2, requests: int = 20, seed: int = 0) -> pl.DataFrame:
    """Rows of the days before the service, as another system logged them."""
    chance = random.Random(seed)
    rows = []
    for number in range(days * requests):
        time = MIDNIGHT + number * DAY // requests
        shared = {"request": f"old{number}", "at": time, **raw_columns(random_request(chance, time))}
        for place, item in enumerate(chance.sample(range(ITEMS), 9)):
            stage = place // 3
            clicked = stage == 2 and chance.random() < 0.5
            rows.append(
                shared
                | {
                    "item": item,
                    "stage": STAGES[stage],
                    "rank": place % 3,
                    "click": int(clicked),
                    "seconds": 0.5 * clicked,
                }
                | {"place": place % 3 if stage == 2 else None, "drawn": 1.0 if stage == 2 else 0.25}
            )
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(
        pl.col("at").cast(pl.Datetime("ms", "UTC")), pl.col("age").cast(pl.Float64)
    )


def prepared_log(directory: Path, out: Path, **changes: Any) -> ImpressionLog:
    """Prepare the log of the days before the service; its tables and rows are in `directory`."""
    directory.mkdir(exist_ok=True)
    rows = directory / "older.parquet"
    older_rows().write_parquet(rows)
    items = write_items(directory / "items.parquet")
    return prepare_rows([rows], out, served_spec(**changes), items=items)
