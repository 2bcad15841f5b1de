"""``bench loader``: batches of impressions, beside a plain copy of the same bytes.

The setting follows the published two-stage cascade: batches of 1,024 impressions with 40 items, 10 from each of four
stages, 8 item features and 5 user features as ids, and a sequence of 50 events with 5 features.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.benchmarks.timing import cpu_seconds, time_in_turns
from rankfall.data.impressions.items import impression_schema, item_schema
from rankfall.data.impressions.loader import ImpressionLoader
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.spec import Spec, features_of, validate_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rankfall.benchmarks.timing import Step

BATCH, ITEMS, EVENTS, NEGATIVES = 1024, 40, 50, 25
IMPRESSIONS, QUICK_IMPRESSIONS = 1 << 16, 1 << 12
CATALOGUE = 100_000  # different items in the log
STAGES = ("prerank_neg", "coarse_neg", "rank_neg", "rank_pos")
USER = tuple(f"user_{i}" for i in range(5))
ITEM = tuple(f"item_{i}" for i in range(8))
EVENT = ITEM[:5]
DAY = "2024-01-13"
SETTING = f"batches of {BATCH}, {ITEMS} items, {EVENTS} events, {len(USER) + len(ITEM)} features"
COPY = "copy of the file"


@dataclass(frozen=True)
class Row:
    """Result of one way to read impressions: impressions and megabytes per second of CPU time."""

    name: str
    impressions_per_second: float
    megabytes_per_second: float


def sweep(seconds: float, *, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Measure all settings of the loader and the copy, in turns."""
    with tempfile.TemporaryDirectory() as directory:
        log = write_log(Path(directory), QUICK_IMPRESSIONS if quick else IMPRESSIONS)
        report("log written")
        steps, sizes = loader_steps(log)
        clocks = time_in_turns(steps, seconds=seconds)
        report("measured")
    count = len(log.days[DAY])
    return [
        Row(name, count / cpu_seconds(clock), sizes[name] / 2**20 / cpu_seconds(clock))
        for name, clock in clocks.items()
    ]


def loader_steps(log: ImpressionLog) -> tuple[dict[str, Step], dict[str, int]]:
    """Return steps that read all impressions of a log, and the bytes that each produces."""
    load = partial(ImpressionLoader, log, DAY, batch=BATCH, prefetch=0)
    loaders = {
        "file order": load(shuffle=False),
        "shuffled": load(),
        f"shuffled, {NEGATIVES} negatives": load(negatives=NEGATIVES),
        f"shuffled, {NEGATIVES} negatives of the batch": load(negatives=NEGATIVES, negatives_from="batch"),
    }
    file = np.memmap(log.days[DAY].path / "impressions.arrow", mode="r")
    steps: dict[str, Step] = {name: partial(_exhaust, loader) for name, loader in loaders.items()}
    steps[COPY] = partial(np.copyto, np.empty(len(file), np.uint8), file)
    sizes = {name: sum(batch.nbytes for batch in loader) for name, loader in loaders.items()}
    return steps, sizes | {COPY: len(file)}


def _exhaust(loader: ImpressionLoader) -> None:
    for _ in loader:
        pass


# --- the log ----------------------------------------------------------------------------------------------------


def spec(catalogue: int = CATALOGUE) -> Spec:
    """Return a spec with four stages, 13 features with `catalogue` ids each, and one sequence."""
    categorical = {"kind": "categorical", "num_buckets": catalogue}
    return validate_spec(
        {
            "time": {"column": "time", "unit": "ms"},
            "stage": "stage",
            "stages": [{"name": name, "sample": ITEMS // len(STAGES)} for name in STAGES],
            "relevant": STAGES[-1],
            "feedback": ["effective_view"],
            "features": {"user": dict.fromkeys(USER, categorical), "item": dict.fromkeys(ITEM, categorical)},
            "sequences": {
                "history": {"max_length": EVENTS, "features": list(EVENT), "columns": {name: name for name in EVENT}}
            },
        }
    )


def write_log(directory: Path, impressions: int, catalogue: int = CATALOGUE) -> ImpressionLog:
    """Write a log of random ids.

    Sequences have their maximal length; the items of a list are ordered by stage.

    Args:
        directory: Existing directory to write to.
        impressions: Number of impressions.
        catalogue: Number of items, and of ids per feature.

    Returns:
        The log, loaded.
    """
    rng = np.random.default_rng(0)
    log_spec = spec(catalogue)
    features = rng.integers(2, catalogue + 2, (catalogue, len(ITEM)), dtype=np.int32)
    schema = impression_schema(log_spec, request=pa.int64())
    rows = {f"{group}.{name}": catalogue + 2 for group, name, _ in log_spec.features}
    writer = LogWriter(directory, log_spec, features_of(log_spec, rows), schema)
    for first in range(0, impressions, QUICK_IMPRESSIONS):
        writer.write(DAY, _impressions(rng, schema, features, first, min(QUICK_IMPRESSIONS, impressions - first)))
    items = {"item": np.arange(catalogue, dtype=np.int32)}
    items |= {f"item.{name}": features[:, i] for i, name in enumerate(ITEM)}
    writer.finish(pa.table(items, item_schema(log_spec)), {}, {})
    return ImpressionLog.load(directory)


def _impressions(
    rng: np.random.Generator, schema: pa.Schema, features: NDArray[np.int32], first: int, count: int
) -> pa.Table:
    catalogue = len(features)
    item = rng.integers(catalogue, size=(count, ITEMS), dtype=np.int32)
    event = features[rng.integers(catalogue, size=(count, EVENTS))]
    depth = np.arange(ITEMS, dtype=np.int8) // (ITEMS // len(STAGES))
    rank = np.arange(ITEMS, dtype=np.int32) % (ITEMS // len(STAGES))
    grade = np.arange(ITEMS, dtype=np.int32)
    relevant = depth == len(STAGES) - 1
    columns: dict[str, Any] = {
        "request": np.arange(first, first + count),
        "time": np.arange(first, first + count) + 1_705_104_000_000,
        "item": item,
        "depth": np.tile(depth, (count, 1)),
        "rank": np.tile(rank, (count, 1)),
        "relevance": np.tile(relevant.astype(np.float32), (count, 1)),
        "grade": np.tile(grade, (count, 1)),
        "left_out": np.empty((count, 0), np.int32),
        "feedback.effective_view": (rng.random((count, ITEMS)) < 0.3 * relevant).astype(np.float32),
    }
    columns |= {f"user.{name}": rng.integers(2, catalogue + 2, count, dtype=np.int32) for name in USER}
    columns |= {f"item.{name}": features[item, i] for i, name in enumerate(ITEM)}
    columns |= {f"sequence.history.{name}": event[:, :, i] for i, name in enumerate(EVENT)}
    return pa.table([_column(columns[field.name], field) for field in schema], schema)


def _column(values: NDArray[Any], field: pa.Field) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values).cast(field.type)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(values.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)), type=field.type)
