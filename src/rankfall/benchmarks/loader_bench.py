"""Benchmark of the loader against a loop over requests and against a plain copy of the same bytes.

The setting follows the published two-stage cascade: batches of 1,024 impressions with 40 items, 10 from each of four
stages, 8 item features and 5 user features as ids, and a sequence of 50 events with 5 features.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from torch.utils.data import default_collate

from rankfall.benchmarks.claims import Claim, at_least
from rankfall.benchmarks.measure import cpu_seconds, time_in_turns
from rankfall.data.impressions.loader import ImpressionLoader
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.schema import impression_schema, item_schema
from rankfall.data.impressions.spec import Spec, features_of, validate_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.benchmarks.measure import Step

BATCH, ITEMS, EVENTS, NEGATIVES = 1024, 40, 50, 25
IMPRESSIONS, QUICK_IMPRESSIONS = 1 << 16, 1 << 12
CATALOGUE = 100_000  # different items in the log
STAGES = ("prerank_neg", "coarse_neg", "rank_neg", "rank_pos")
USER = tuple(f"user_{i}" for i in range(5))
ITEM = tuple(f"item_{i}" for i in range(8))
EVENT = ITEM[:5]
DAY = "2024-01-13"
SETTING = f"batches of {BATCH}, {ITEMS} items, {EVENTS} events, {len(USER) + len(ITEM)} features"
LOOP = "loop over requests"
COPY = "copy of the file"


@dataclass(frozen=True)
class Row:
    """Result of one way to build batches: impressions and megabytes of tensors per second of CPU time."""

    name: str
    impressions_per_second: float
    megabytes_per_second: float
    faster: float  # speed relative to the loop over requests


def sweep(seconds: float, *, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Measure all ways to build batches, in turns."""
    with tempfile.TemporaryDirectory() as directory:
        log = write_log(Path(directory), QUICK_IMPRESSIONS if quick else IMPRESSIONS)
        report("log written")
        steps, work = _steps(log)
        clocks = time_in_turns(steps, seconds=seconds)
        report("measured")
    rates = {name: work[name][0] / cpu_seconds(clock) for name, clock in clocks.items()}
    return [
        Row(name, rate, work[name][1] / 2**20 / cpu_seconds(clocks[name]), rate / rates[LOOP])
        for name, rate in rates.items()
    ]


def check_claims(rows: list[Row]) -> list[Claim]:
    """Return the claim about the speed of the loader."""
    (shuffled,) = (row for row in rows if row.name == "shuffled")
    return [at_least("shuffled batches, faster than a loop over requests", 25, shuffled.faster)]


def _steps(log: ImpressionLog) -> tuple[dict[str, Step], dict[str, tuple[int, int]]]:
    """Return the steps, and the impressions and bytes of tensors that one turn of each produces."""
    load = partial(ImpressionLoader, log, DAY, batch=BATCH, prefetch=0)
    loaders = {
        "file order": load(shuffle=False),
        "shuffled": load(),
        f"shuffled, {NEGATIVES} negatives": load(negatives=NEGATIVES),
        f"shuffled, {NEGATIVES} negatives of the batch": load(negatives=NEGATIVES, negatives_from="batch"),
    }
    steps: dict[str, Step] = {name: partial(_exhaust, loader) for name, loader in loaders.items()}
    work = {name: (len(log.days[DAY]), sum(batch.nbytes for batch in loader)) for name, loader in loaders.items()}
    loop = RequestLoop(log)
    requests = cycle([loop.requests[i : i + BATCH] for i in range(0, len(loop.requests), BATCH)])
    steps[LOOP] = lambda: loop.batch(next(requests))
    work[LOOP] = BATCH, sum(tensor.nbytes for tensor in loop.batch(loop.requests[:BATCH]).values())
    file = np.memmap(log.days[DAY].path / "impressions.arrow", mode="r")
    target = np.empty(len(file), np.uint8)
    steps[COPY] = partial(np.copyto, target, file)
    work[COPY] = len(log.days[DAY]), len(file)
    return steps, work


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


# --- the loop ---------------------------------------------------------------------------------------------------


class RequestLoop:
    """Loader as in published code: dictionaries from requests to arrays, and a loop over the requests of a batch.

    Published loaders unpickle one dictionary ``{request: {stage: (n, features)}}``, one dictionary
    ``{request: (50, features)}`` for the sequences, and collate the arrays of the requests with torch. Building the
    dictionaries is not part of the measured time.
    """

    COLUMNS = ("item", *(f"item.{name}" for name in ITEM), "rank", "relevance", "grade", "feedback.effective_view")

    def __init__(self, log: ImpressionLog) -> None:
        table = log.days[DAY].table()
        self.requests: list[int] = table["request"].to_pylist()
        self.users = dict(zip(self.requests, self._arrays(table, [f"user.{name}" for name in USER]), strict=True))
        events = self._arrays(table, [f"sequence.history.{name}" for name in EVENT])
        self.sequences = dict(zip(self.requests, events, strict=True))
        stages = (
            {stage: rows[depth == number] for number, stage in enumerate(STAGES) if (depth == number).any()}
            for rows, (depth,) in zip(
                self._arrays(table, self.COLUMNS),
                (rows.T for rows in self._arrays(table, ["depth"])),
                strict=True,
            )
        )
        self.stages = dict(zip(self.requests, stages, strict=True))

    @staticmethod
    def _arrays(table: pa.Table, names: Any) -> Iterator[NDArray[np.int64]]:
        """Return, per request, the columns `names` (lists or values) stacked along the last axis."""
        columns = [table[name].combine_chunks() for name in names]
        flat = np.stack(
            [(column.values if pa.types.is_list(column.type) else column).to_numpy() for column in columns], -1
        ).astype(np.int64)
        length = len(flat) // len(table)
        return iter(flat.reshape(len(table), length, -1) if length > 1 else flat)

    def __getitem__(self, request: int) -> dict[str, Any]:
        """Return the padded arrays of one request."""
        user, events, stages = self.users[request], self.sequences[request], self.stages[request]
        arrays: dict[str, Any] = {f"user.{name}": user[i] for i, name in enumerate(USER)}
        history = np.zeros((EVENTS, len(EVENT)), np.int64)
        history[: len(events)] = events
        arrays |= {f"sequence.history.{name}": history[:, i] for i, name in enumerate(EVENT)}
        arrays["sequence_mask"] = np.arange(EVENTS) < len(events)
        lists = np.zeros((ITEMS, len(self.COLUMNS)), np.int64)
        depth, mask, start = np.full(ITEMS, -1), np.zeros(ITEMS, bool), 0
        for number, stage in enumerate(STAGES):
            if stage in stages:
                span = slice(start, start + len(stages[stage]))
                lists[span], depth[span], mask[span] = stages[stage], number, True
                start = span.stop
        arrays |= {name: lists[:, i] for i, name in enumerate(self.COLUMNS)}
        return arrays | {"depth": depth, "mask": mask}

    def batch(self, requests: list[int]) -> dict[str, Tensor]:
        """Return the tensors of a batch of requests."""
        collated: dict[str, Tensor] = default_collate([self[request] for request in requests])
        return collated
