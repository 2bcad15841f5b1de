"""What is fitted to a log: the values that get ids, means and deviations, the edges of buckets.

Each portion of the log is learned from by itself, in any process, and what was learned is added in order. The result is
the same bytes for any portions and any number of threads: counts are whole numbers, sums run over blocks of one size
in one order, and quantiles are of a sample by hashes.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.impressions.assemble import column_of, item_table
from rankfall.data.impressions.encoding import BadValueError, Encoding, dense_values
from rankfall.data.impressions.hashing import combine, hash_values
from rankfall.data.impressions.spec import Categorical, Dense, table_of
from rankfall.data.lists.ranking_data import Moments
from rankfall.data.sources.rows.incremental_merge import Collector
from rankfall.data.sources.rows.request_order import POSITION

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import FeatureConfig, Spec, Vocabulary
    from rankfall.data.sources.rows.portions import Portions
    from rankfall.data.sources.rows.request_order import Portion

    Numbers = NDArray[np.float64]

_SUM_BLOCK = 2**16  # rows that are summed at once
QUANTILE_SAMPLE = 2**17  # rows from which the edges of buckets are found


def fit_portions(
    portions: Portions, parts: Sequence[Portion], days: Sequence[str], on_rows: Report, engine: Engine
) -> tuple[Encoding, pa.Table]:
    """What the portions of these first days teach, and the table of all items, each with the features it had last."""
    spec = portions.raw.spec
    fit = Fit(spec)
    of_items = {column_of(spec, name, feature) for name, feature in spec.features.item.items()} | {spec.item}
    logged = sorted(column for column in of_items if portions.raw.places[column] != "items")
    items = Collector(partial(_last_of_each, spec.item))
    with closing(engine.map(partial(_learn, portions, fit, logged, list(days)), parts, on_rows)) as lessons:
        for seen, learned in lessons:
            items.add(seen)
            if learned is not None:
                fit.add(learned)
    encoding = fit.encoding()
    raw_items = portions.with_tables(items.result(), of_items)
    try:
        return encoding, item_table(raw_items, encoding)
    except BadValueError as error:
        raise ValueError(f"{error} (item {raw_items.sort(spec.item)[spec.item][error.position]!r})") from None


def _learn(
    portions: Portions, fit: Fit, logged: list[str], days: list[str], portion: Portion, report: Report
) -> tuple[pl.DataFrame, Learned | None]:
    """The items of a portion, and what it teaches if it is of one of the days."""
    is_fitted = portion.day in days
    rows = portions.rows(portion.number, [*logged, *(fit.columns if is_fitted else [])])
    items = _last_of_each(portions.raw.spec.item, rows.select(logged))
    learned = None
    if is_fitted:
        rows = rows.sort(POSITION, portions.raw.spec.item)  # sums of floats depend on the order
        learned = fit.learn(rows, portions.first_rows(rows), portion)
    report(portion.rows)
    return items, learned


def _last_of_each(item: str, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.unique(item, keep="last", maintain_order=True)


@dataclass
class Learned:
    """What a portion teaches: counts by embedding table, the rest by feature."""

    counts: dict[str, pl.DataFrame] = field(default_factory=dict)
    sums: dict[str, list[Moments | Numbers]] = field(default_factory=dict)
    samples: dict[str, tuple[NDArray[np.uint64], Numbers]] = field(default_factory=dict)


class Fit:
    """Collects what an :class:`Encoding` needs. Item features count by rows, those of user and context by requests."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._counts: dict[str, _ValueCounts] = {}  # by embedding table
        self._sums: dict[str, _Sums] = {}  # by feature
        self._samples: dict[str, _Sample] = {}
        self._features = [which for which in spec.features if _needs_fit(which[2])]
        for group, name, feature in self._features:
            key = f"{group}.{name}"
            if isinstance(feature, Categorical):
                assert feature.vocabulary is not None  # nothing else is fitted
                self._counts.setdefault(table_of(group, name, feature), _ValueCounts(feature.vocabulary))
            elif isinstance(feature, Dense) and feature.standardise:
                self._sums[key] = _Sums(feature.size)
            else:
                self._samples[key] = _Sample()

    @property
    def columns(self) -> list[str]:
        """The columns that are looked at."""
        return list(dict.fromkeys(column_of(self.spec, name, feature) for _, name, feature in self._features))

    def learn(self, rows: pl.DataFrame, requests: pl.DataFrame, portion: Portion) -> Learned:
        """From rows by request and item, and one row for each of the requests, with the same columns."""
        learned = Learned()
        counts: dict[str, list[pl.DataFrame]] = {}
        hashes: dict[bool, NDArray[np.uint64]] = {}
        for group, name, feature in self._features:
            of_item = group == "item"
            frame = rows if of_item else requests
            values, key = frame[column_of(self.spec, name, feature)], f"{group}.{name}"
            if isinstance(feature, Categorical):
                counts.setdefault(table_of(group, name, feature), []).append(_counted(values))
                continue
            assert isinstance(feature, Dense)  # times are not fitted
            numbers = self._numbers(feature, values, frame)
            if key in self._sums:
                first = portion.first_row if of_item else portion.first_request
                learned.sums[key] = _in_blocks(numbers.reshape(len(numbers), -1), first)
            else:
                if of_item not in hashes:
                    hashes[of_item] = self._hashes(frame, of_item)
                learned.samples[key] = _smallest(hashes[of_item], numbers)
        learned.counts = {table: _summed(pl.concat(some)) for table, some in counts.items()}
        return learned

    def add(self, learned: Learned) -> None:
        """Add what the next portion teaches."""
        for table, counted in learned.counts.items():
            self._counts[table].add(counted)
        for key, blocks in learned.sums.items():
            self._sums[key].add(blocks)
        for key, (hashes, numbers) in learned.samples.items():
            self._samples[key].add(hashes, numbers)

    def encoding(self) -> Encoding:
        """What was fitted."""
        features = {f"{group}.{name}": feature for group, name, feature in self._features}
        return Encoding(
            self.spec,
            vocabularies={table: counts.vocabulary() for table, counts in self._counts.items()},
            scalings={key: sums.scaling() for key, sums in self._sums.items()},
            edges={key: sample.edges(_buckets(features[key])) for key, sample in self._samples.items()},
        )

    def _numbers(self, feature: Dense, values: pl.Series, frame: pl.DataFrame) -> Numbers:
        try:
            return dense_values(feature, values)
        except BadValueError as error:
            raise ValueError(f"{error} (request {frame[self.spec.request][error.position]!r})") from None

    def _hashes(self, frame: pl.DataFrame, of_item: bool) -> NDArray[np.uint64]:
        parts = [hash_values(frame[column]) for column in (self.spec.request, self.spec.item)[: 1 + of_item]]
        return combine(*parts)


def _needs_fit(feature: FeatureConfig) -> bool:
    if isinstance(feature, Categorical):
        return feature.vocabulary is not None
    return isinstance(feature, Dense) and (feature.standardise or isinstance(feature.bucketize, int))


def _buckets(feature: FeatureConfig) -> int:
    assert isinstance(feature, Dense)
    assert isinstance(feature.bucketize, int)
    return feature.bucketize


class _ValueCounts:
    """How often each value occurs."""

    def __init__(self, limits: Vocabulary) -> None:
        self._limits = limits
        self._counts = Collector(_summed)

    def add(self, counted: pl.DataFrame) -> None:
        self._counts.add(counted)

    def vocabulary(self) -> pl.Series:
        """The values that get ids, the most frequent first, equally frequent ones in their own order."""
        frequent = self._counts.result().filter(pl.col("count") >= self._limits.min_count)
        ordered = frequent.sort("count", "value", descending=[True, False])["value"]
        return ordered.head(self._limits.max_size or len(ordered))


def _counted(values: pl.Series) -> pl.DataFrame:
    return values.drop_nulls().alias("value").value_counts(name="count").cast({"count": pl.Int64})


def _summed(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.group_by("value").agg(pl.sum("count"))


class _Sums:
    """Means and deviations. Numbers are summed in blocks of one size, wherever portions end."""

    def __init__(self, size: int) -> None:
        self._moments = Moments.of(np.empty((0, size)))
        self._waiting = np.empty((0, size))

    def add(self, blocks: Sequence[Moments | Numbers]) -> None:
        """Add whole blocks and parts of blocks, which follow those before."""
        for block in blocks:
            if isinstance(block, Moments):
                self._moments += block
                continue
            self._waiting = np.concatenate([self._waiting, block])
            if len(self._waiting) == _SUM_BLOCK:
                self._moments += Moments.of(self._waiting)
                self._waiting = self._waiting[:0]

    def scaling(self) -> tuple[Numbers, Numbers]:
        scaling = (self._moments + Moments.of(self._waiting)).scaling()
        return scaling.mean, scaling.deviation


def _in_blocks(numbers: Numbers, first: int) -> list[Moments | Numbers]:
    """The moments of the blocks that are whole in here, and the numbers of the others; `first` come before these."""
    stops = range(_SUM_BLOCK - first % _SUM_BLOCK, len(numbers), _SUM_BLOCK)
    blocks = np.split(numbers, stops)
    return [Moments.of(block) if len(block) == _SUM_BLOCK else block for block in blocks]


class _Sample:
    """The numbers of the rows with the smallest hashes: all of them, if there are not too many."""

    def __init__(self) -> None:
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._numbers: NDArray[Any] = np.empty(0)

    def add(self, hashes: NDArray[np.uint64], numbers: Numbers) -> None:
        hashes, numbers = np.concatenate([self._hashes, hashes]), np.concatenate([self._numbers, numbers])
        self._hashes, self._numbers = _smallest(hashes, numbers)

    def edges(self, buckets: int) -> list[float]:
        """Inner edges between buckets of equal counts; of values that fill several buckets there is one edge."""
        if len(self._numbers) == 0:
            return []
        edges = np.unique(np.quantile(self._numbers, np.arange(1, buckets) / buckets))
        return [float(edge) for edge in edges if edge > self._numbers.min()]  # a bucket starts with its edge


def _smallest(hashes: NDArray[np.uint64], numbers: Numbers) -> tuple[NDArray[np.uint64], Numbers]:
    smallest = np.argsort(hashes, kind="stable")[:QUANTILE_SAMPLE]
    return hashes[smallest], numbers[smallest]
