"""Fit the encoding of a log: vocabularies, means and deviations, and the edges of buckets.

The statistics of each portion are computed separately, in any process, and are added in order. The result has the same
bytes for any size of portions and any number of threads: counts are whole numbers, sums are taken over blocks of one
size in one order, and quantiles are those of a sample that is chosen by hashes.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.impressions.column_hashing import combine, hash_values
from rankfall.data.impressions.encoding import BadValueError, Encoding, dense_values
from rankfall.data.impressions.spec import Categorical, Dense, column_of, table_of
from rankfall.data.moments import Moments
from rankfall.data.sources.rows.incremental_merge import IncrementalMerge
from rankfall.data.sources.rows.portions import first_rows
from rankfall.data.sources.rows.request_order import POSITION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import FeatureConfig, Spec, Vocabulary
    from rankfall.data.sources.rows.portions import SpooledLog
    from rankfall.data.sources.rows.request_order import Portion

    Numbers = NDArray[np.float64]

_SUM_BLOCK = 2**16  # rows that are summed at once
QUANTILE_SAMPLE = 2**17  # rows from which the edges of buckets are computed


def fit_portions(log: SpooledLog, portions: Sequence[Portion], on_rows: Report, engine: Engine) -> Encoding:
    """Fit the encoding of a log.

    Args:
        log: The spooled log.
        portions: The portions that the encoding is fitted to.
        on_rows: Receives the number of rows that were read.
        engine: Runs the work on the portions.
    """
    fitter = EncodingFitter(log.raw.spec)
    with closing(engine.map(partial(_portion_statistics, log, fitter), portions, on_rows)) as found:
        for statistics in found:
            fitter.add(statistics)
    return fitter.encoding()


def new_values(
    log: SpooledLog, portions: Sequence[Portion], known: Mapping[str, pl.Series], engine: Engine
) -> dict[str, pl.Series]:
    """Return the values of some portions that vocabularies do not have, in the order of their future ids.

    Values need `min_count` occurrences in these portions, and a vocabulary does not grow beyond `max_size`.

    Args:
        log: The spooled log.
        portions: The portions, usually of one day.
        known: The vocabulary of each embedding table.
        engine: Runs the work on the portions.
    """
    fitter = EncodingFitter(log.raw.spec, _has_vocabulary)
    with closing(engine.map(partial(_portion_statistics, log, fitter), portions)) as found:
        for statistics in found:
            fitter.add(statistics)
    return fitter.vocabularies(known)


def _portion_statistics(log: SpooledLog, fitter: EncodingFitter, portion: Portion, report: Report) -> Statistics:
    rows = log.rows(portion.number, fitter.columns)
    rows = rows.sort(POSITION, log.raw.spec.item)  # sums of floats depend on the order
    statistics = fitter.statistics(rows, first_rows(rows), portion)
    report(portion.rows)
    return statistics


@dataclass
class Statistics:
    """The statistics of a portion: counts per embedding table, sums and samples per feature."""

    counts: dict[str, pl.DataFrame] = field(default_factory=dict)
    sums: dict[str, list[Moments | Numbers]] = field(default_factory=dict)
    samples: dict[str, tuple[NDArray[np.uint64], Numbers]] = field(default_factory=dict)


class EncodingFitter:
    """Collects the statistics for an :class:`Encoding`.

    Features of items are counted per row, features of users and context per request.

    Args:
        spec: The description of the log.
        fits: Returns whether a feature is fitted.
    """

    def __init__(self, spec: Spec, fits: Callable[[FeatureConfig], bool] | None = None) -> None:
        self.spec = spec
        self._counts: dict[str, _ValueCounts] = {}  # by embedding table
        self._sums: dict[str, _Sums] = {}  # by feature
        self._samples: dict[str, _Sample] = {}
        self._features = [entry for entry in spec.features if (fits or _needs_fit)(entry[2])]
        for group, name, feature in self._features:
            key = f"{group}.{name}"
            if isinstance(feature, Categorical):
                assert feature.vocabulary is not None  # no other categorical feature is fitted
                self._counts.setdefault(table_of(group, name, feature), _ValueCounts(feature.vocabulary))
            elif isinstance(feature, Dense) and feature.standardise:
                self._sums[key] = _Sums(feature.size)
            else:
                self._samples[key] = _Sample()

    @property
    def columns(self) -> list[str]:
        """The columns of the fitted features."""
        return list(dict.fromkeys(column_of(self.spec, name, feature) for _, name, feature in self._features))

    def statistics(self, rows: pl.DataFrame, requests: pl.DataFrame, portion: Portion) -> Statistics:
        """Compute the statistics of a portion.

        Args:
            rows: The rows, sorted by request and item.
            requests: The first row of each request.
            portion: The portion that the rows belong to.
        """
        statistics = Statistics()
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
                statistics.sums[key] = _in_blocks(numbers.reshape(len(numbers), -1), first)
            else:
                if of_item not in hashes:
                    hashes[of_item] = self._hashes(frame, of_item)
                statistics.samples[key] = _smallest(hashes[of_item], numbers)
        statistics.counts = {table: _summed(pl.concat(some)) for table, some in counts.items()}
        return statistics

    def add(self, statistics: Statistics) -> None:
        """Add the statistics of the next portion."""
        for table, counted in statistics.counts.items():
            self._counts[table].add(counted)
        for key, blocks in statistics.sums.items():
            self._sums[key].add(blocks)
        for key, (hashes, numbers) in statistics.samples.items():
            self._samples[key].add(hashes, numbers)

    def encoding(self) -> Encoding:
        """Return the encoding that fits all statistics added."""
        features = {f"{group}.{name}": feature for group, name, feature in self._features}
        return Encoding(
            self.spec,
            vocabularies=self.vocabularies(),
            scalings={key: sums.scaling() for key, sums in self._sums.items()},
            edges={key: sample.edges(_buckets(features[key])) for key, sample in self._samples.items()},
        )

    def vocabularies(self, known: Mapping[str, pl.Series] = MappingProxyType({})) -> dict[str, pl.Series]:
        """Return the values of each embedding table that get ids, without those that have one already."""
        return {table: counts.vocabulary(known.get(table)) for table, counts in self._counts.items()}

    def _numbers(self, feature: Dense, values: pl.Series, frame: pl.DataFrame) -> Numbers:
        try:
            return dense_values(feature, values)
        except BadValueError as error:
            raise ValueError(f"{error} (request {frame[self.spec.request][error.position]!r})") from None

    def _hashes(self, frame: pl.DataFrame, of_item: bool) -> NDArray[np.uint64]:
        parts = [hash_values(frame[column]) for column in (self.spec.request, self.spec.item)[: 1 + of_item]]
        return combine(*parts)


def _needs_fit(feature: FeatureConfig) -> bool:
    scaled = isinstance(feature, Dense) and (feature.standardise or isinstance(feature.bucketize, int))
    return scaled or _has_vocabulary(feature)


def _has_vocabulary(feature: FeatureConfig) -> bool:
    return isinstance(feature, Categorical) and feature.vocabulary is not None


def _buckets(feature: FeatureConfig) -> int:
    assert isinstance(feature, Dense)
    assert isinstance(feature.bucketize, int)
    return feature.bucketize


class _ValueCounts:
    """The number of occurrences of each value."""

    def __init__(self, limits: Vocabulary) -> None:
        self._limits = limits
        self._counts = IncrementalMerge(_summed)

    def add(self, counted: pl.DataFrame) -> None:
        self._counts.add(counted)

    def vocabulary(self, known: pl.Series | None = None) -> pl.Series:
        """Return the values that get ids: the most frequent first, values of equal frequency sorted.

        Values of one hash get one id, that of the first: bundles find values by their hashes, and clients could choose
        text of the same hash.

        Args:
            known: Values that have ids already. They count for the largest size.
        """
        frequent, taken = self._counts.result().filter(pl.col("count") >= self._limits.min_count), 0
        if known is not None:
            frequent, taken = frequent.join(known.to_frame("value"), on="value", how="anti"), len(known)
        ordered = frequent.sort("count", "value", descending=[True, False])["value"]
        if ordered.dtype == pl.String:  # hashes of different integers differ
            hashes = pl.Series(hash_values(ordered if known is None else pl.concat([known, ordered])))
            ordered = ordered.filter(hashes.is_first_distinct().tail(len(ordered)))
        most = self._limits.max_size
        return ordered if most is None else ordered.head(max(0, most - taken))


def _counted(values: pl.Series) -> pl.DataFrame:
    return values.drop_nulls().alias("value").value_counts(name="count").cast({"count": pl.Int64})


def _summed(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.group_by("value").agg(pl.sum("count"))


class _Sums:
    """Mean and deviation. Numbers are summed in blocks of one size, independent of where portions end."""

    def __init__(self, size: int) -> None:
        self._moments = Moments.of(np.empty((0, size)))
        self._pending = np.empty((0, size))

    def add(self, blocks: Sequence[Moments | Numbers]) -> None:
        """Add the next complete blocks and parts of blocks."""
        for block in blocks:
            if isinstance(block, Moments):
                self._moments += block
                continue
            self._pending = np.concatenate([self._pending, block])
            if len(self._pending) == _SUM_BLOCK:
                self._moments += Moments.of(self._pending)
                self._pending = self._pending[:0]

    def scaling(self) -> tuple[Numbers, Numbers]:
        scaling = (self._moments + Moments.of(self._pending)).scaling()
        return scaling.mean, scaling.deviation


def _in_blocks(numbers: Numbers, first: int) -> list[Moments | Numbers]:
    """Return the moments of complete blocks and the numbers of incomplete ones; `first` numbers come before these."""
    stops = range(_SUM_BLOCK - first % _SUM_BLOCK, len(numbers), _SUM_BLOCK)
    blocks = np.split(numbers, stops)
    return [Moments.of(block) if len(block) == _SUM_BLOCK else block for block in blocks]


class _Sample:
    """The numbers of the rows with the smallest hashes, at most `QUANTILE_SAMPLE` of them."""

    def __init__(self) -> None:
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._numbers: NDArray[Any] = np.empty(0)

    def add(self, hashes: NDArray[np.uint64], numbers: Numbers) -> None:
        hashes, numbers = np.concatenate([self._hashes, hashes]), np.concatenate([self._numbers, numbers])
        self._hashes, self._numbers = _smallest(hashes, numbers)

    def edges(self, buckets: int) -> list[float]:
        """Return the inner edges of buckets of equal counts; a value that fills several buckets gives one edge."""
        if len(self._numbers) == 0:
            return []
        edges = np.unique(np.quantile(self._numbers, np.arange(1, buckets) / buckets))
        return [float(edge) for edge in edges if edge > self._numbers.min()]  # a bucket includes its lower edge


def _smallest(hashes: NDArray[np.uint64], numbers: Numbers) -> tuple[NDArray[np.uint64], Numbers]:
    smallest = np.argsort(hashes, kind="stable")[:QUANTILE_SAMPLE]
    return hashes[smallest], numbers[smallest]
