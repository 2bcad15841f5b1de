"""Random logs with one row per request and item, which use everything that a spec can have."""

from __future__ import annotations

import gzip
import math
import random
from typing import TYPE_CHECKING, Any

import polars as pl
from hypothesis import strategies as st

from rankfall.data.impressions.spec import Spec, validate_spec
from rankfall.data.sources.rows.row_files import JSON_SUFFIXES

if TYPE_CHECKING:
    from pathlib import Path

    from support.rows_witness import Row

START = 1_705_075_200_000  # 2024-01-12 16:00 UTC, midnight of the 13th in Shanghai
DAY = 86_400_000
STAGES = ["matched", "preranked", "ranked"]


def spec_of(**changes: Any) -> Spec:
    """A spec that uses every kind of feature."""
    content: dict[str, Any] = {
        "request": "request",
        "item": "item",
        "user": "user",
        "time": {"column": "time", "unit": "ms", "zone": "Asia/Shanghai"},
        "stage": "stage",
        "rank": "rank",
        "stages": [{"name": name, "sample": 2} for name in STAGES],
        "relevant": "ranked",
        "feedback": ["clicked", "seconds"],
        "features": {
            "user": {
                "user": {"kind": "categorical", "vocabulary": {"max_size": 3}},
                "age": {"kind": "dense", "standardise": True, "missing": 30},
            },
            "context": {
                "hour": {"kind": "time", "part": "hour"},
                "page": {"kind": "categorical", "num_buckets": 3},
                "last": {"kind": "categorical", "vocabulary": True, "embedding": "item"},
            },
            "item": {
                "item": {"kind": "categorical", "vocabulary": True, "embedding": "item"},
                "author": {"kind": "categorical", "hash_bucket_size": 7},
                "topic": {"kind": "categorical", "vocabulary": {"min_count": 2}},
                "price": {"kind": "dense", "log1p": True, "standardise": True},
                "price_bucket": {"kind": "dense", "column": "price", "bucketize": 4},
                "size": {"kind": "dense", "bucketize": [1, 5.5], "missing": -1},
                "time": {
                    "kind": "time",
                    "part": "weekday",
                    "column": "born",
                    "unit": "ms",
                },  # a name that is used inside
            },
        },
        "sequences": {
            "clicks": {"max_length": 3, "features": ["item", "topic", "time"], "feedback": "clicked"},
            "views": {"max_length": 2, "features": ["author"], "feedback": "seconds"},
        },
    }
    return validate_spec({**content, **changes})


@st.composite
def logs(draw: st.DrawFn, ids: st.SearchStrategy[Any] | None = None) -> tuple[list[Row], Spec]:
    """Rows of a few requests, in which anything may be missing that may be missing, and their spec."""
    seed = draw(st.integers(0, 2**32))
    chance = random.Random(seed)
    kind = draw(st.sampled_from(["small", "large", "text"]))
    names: dict[str, Any] = {
        "small": lambda n: n * 3,
        "large": lambda n: n * 2**33 - 5,
        "text": lambda n: f"é{n}" if n % 3 else f"{n:03}",
    }
    name = names[kind]
    requests = draw(st.integers(1, 12))
    days = draw(st.integers(1, 3))
    by = draw(st.sampled_from(["name", "number", "flags"]))
    rows = []
    for request in range(requests):
        # few different times, so that some requests are made at the same time, and midnight is one of them
        time = START + DAY * chance.randrange(days) + chance.choice([0, 1, DAY // 3, DAY - 1])
        shared = {
            "request": name(request),
            "time": time,
            "user": chance.choice([None, *map(name, range(4))]),
            "age": chance.choice([None, math.nan, 20.5, 30.0, 41.0]),
            "page": chance.choice([None, 0, 1, 2, 3, 99]),
            "last": chance.choice([None, *map(name, range(6))]),
        }
        for item in chance.sample(range(8), chance.randint(1, 8)):
            stage = chance.randrange(3)
            flags = {f"is_{place}": int(place == stage or chance.random() < 0.5) for place in range(stage + 1)}
            flags |= {f"is_{place}": 0 for place in range(stage + 1, 3)} | {f"is_{stage}": 1}
            rows.append(
                shared
                | flags
                | {
                    "item": name(item),
                    "stage": STAGES[stage] if by == "name" else stage,
                    "rank": chance.choice([None, 1, 2, 3]),
                    "author": chance.choice([None, *map(name, range(4))]),
                    "topic": chance.choice([None, "a", "b", "c"]),
                    "price": float(chance.choice([-2, 0, 1, 3, 4, 100])),
                    "size": chance.choice([None, math.nan, 0.5, 1.0, 5.5, 7.25]),
                    "born": chance.choice([None, START - DAY * chance.randrange(9)]),
                    "clicked": chance.choice([None, 0, 1]),
                    "seconds": chance.choice([0.0, 0.25, 12.0]),
                }
            )
    stages = [
        {"name": stage, "sample": draw(st.sampled_from([None, 1, 2]))}
        | ({"flag": f"is_{place}"} if by == "flags" else {})
        for place, stage in enumerate(STAGES)
    ]
    relevant = draw(st.sampled_from([{"stage": "ranked"}, {"stage": "preranked"}, {"column": "seconds"}]))
    return rows, spec_of(stages=stages, stage=None if by == "flags" else "stage", relevant=relevant)


def write_rows(rows: list[Row], path: Path) -> Path:
    """A file of the kind its name tells."""
    frame = pl.DataFrame(rows, infer_schema_length=None)
    if path.name.endswith((".csv", ".csv.gz")):
        frame = frame.with_columns(pl.col(pl.Float64).fill_nan(None))
        frame.write_csv(path, compression="gzip" if path.suffix == ".gz" else "uncompressed")
    elif path.name.endswith(JSON_SUFFIXES):
        text = frame.with_columns(pl.col(pl.Float64).fill_nan(None)).write_ndjson()
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    elif path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=5)
    else:
        frame.write_ipc(path, compression="lz4" if path.suffix == ".feather" else "uncompressed")
    return path
