"""What is fitted to a log: the values that get ids, means and deviations, the edges of buckets.

Portions of the log are added in order. The result is the same bytes for any portions and any number of threads:
counts are whole numbers, sums run over blocks of one size in one order, and quantiles are of a sample by hashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.assemble import column_of, item_table
from rankfall.data.encoding import BadValueError, Encoding, dense_values
from rankfall.data.hashing import combine, hash_values
from rankfall.data.ranking import Moments
from rankfall.data.rows.collect import Collector
from rankfall.data.rows.requests import POSITION
from rankfall.data.spec import Categorical, Dense, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall.data.rows.portions import Portions
    from rankfall.data.spec import FeatureConfig, Spec, Vocabulary

_SUM_BLOCK = 2**16  # rows that are summed at once
QUANTILE_SAMPLE = 2**17  # rows from which the edges of buckets are found


def fit_portions(portions: Portions, days: Sequence[str], on_rows: Callable[[int], None]) -> tuple[Encoding, pa.Table]:
    """What the portions of these days teach, and the table of all items, each with the features it had last."""
    spec = portions.raw.spec
    fit = Fit(spec)
    of_items = {column_of(spec, name, feature) for name, feature in spec.features.item.items()} | {spec.item}
    logged = sorted(column for column in of_items if portions.raw.places[column] != "items")
    items = Collector(lambda rows: rows.unique(spec.item, keep="last", maintain_order=True))
    for number, (day, size) in enumerate(portions.requests.portions):
        rows = portions.rows(number, [*logged, *(fit.columns if day in days else [])])
        items.add(rows.select(logged))
        if day in days:
            rows = rows.sort(POSITION, spec.item)  # sums of floats depend on the order
            fit.add(rows, portions.first_rows(rows))
        on_rows(size)
    encoding = fit.encoding()
    raw_items = portions.with_tables(items.result(), of_items)
    try:
        return encoding, item_table(raw_items, encoding)
    except BadValueError as error:
        raise ValueError(f"{error} (item {raw_items.sort(spec.item)[spec.item][error.position]!r})") from None


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

    def add(self, rows: pl.DataFrame, requests: pl.DataFrame) -> None:
        """Add rows by request and item, and one row for each of the requests, with the same columns."""
        hashes: dict[bool, NDArray[np.uint64]] = {}
        for group, name, feature in self._features:
            frame = rows if group == "item" else requests
            values, key = frame[column_of(self.spec, name, feature)], f"{group}.{name}"
            if isinstance(feature, Categorical):
                self._counts[table_of(group, name, feature)].add(values)
                continue
            assert isinstance(feature, Dense)  # times are not fitted
            numbers = self._numbers(feature, values, frame)
            if key in self._sums:
                self._sums[key].add(numbers.reshape(len(numbers), -1))
            else:
                of_item = group == "item"
                if of_item not in hashes:
                    hashes[of_item] = self._hashes(frame, of_item)
                self._samples[key].add(hashes[of_item], numbers)

    def encoding(self) -> Encoding:
        """What was fitted."""
        features = {f"{group}.{name}": feature for group, name, feature in self._features}
        return Encoding(
            self.spec,
            vocabularies={table: counts.vocabulary() for table, counts in self._counts.items()},
            scalings={key: sums.scaling() for key, sums in self._sums.items()},
            edges={key: sample.edges(_buckets(features[key])) for key, sample in self._samples.items()},
        )

    def _numbers(self, feature: Dense, values: pl.Series, frame: pl.DataFrame) -> NDArray[np.float64]:
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
        self._counts = Collector(lambda counts: counts.group_by("value").agg(pl.sum("count")))

    def add(self, values: pl.Series) -> None:
        counted = values.drop_nulls().alias("value").value_counts(name="count")
        self._counts.add(counted.cast({"count": pl.Int64}))

    def vocabulary(self) -> pl.Series:
        """The values that get ids, the most frequent first, equally frequent ones in their own order."""
        frequent = self._counts.result().filter(pl.col("count") >= self._limits.min_count)
        ordered = frequent.sort("count", "value", descending=[True, False])["value"]
        return ordered.head(self._limits.max_size or len(ordered))


class _Sums:
    """Means and deviations. Numbers are summed in blocks of one size, wherever portions end."""

    def __init__(self, size: int) -> None:
        self._moments = Moments.of(np.empty((0, size)))
        self._waiting = np.empty((0, size))

    def add(self, numbers: NDArray[np.float64]) -> None:
        numbers = np.concatenate([self._waiting, numbers])
        whole = len(numbers) // _SUM_BLOCK * _SUM_BLOCK
        for start in range(0, whole, _SUM_BLOCK):
            self._moments += Moments.of(numbers[start : start + _SUM_BLOCK])
        self._waiting = numbers[whole:]

    def scaling(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        scaling = (self._moments + Moments.of(self._waiting)).scaling()
        return scaling.mean, scaling.deviation


class _Sample:
    """The numbers of the rows with the smallest hashes: all of them, if there are not too many."""

    def __init__(self) -> None:
        self._keys: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._numbers: NDArray[Any] = np.empty(0)

    def add(self, keys: NDArray[np.uint64], numbers: NDArray[np.float64]) -> None:
        keys, numbers = np.concatenate([self._keys, keys]), np.concatenate([self._numbers, numbers])
        smallest = np.argsort(keys, kind="stable")[:QUANTILE_SAMPLE]
        self._keys, self._numbers = keys[smallest], numbers[smallest]

    def edges(self, buckets: int) -> list[float]:
        """Inner edges between buckets of equal counts; of values that fill several buckets there is one edge."""
        if len(self._numbers) == 0:
            return []
        edges = np.unique(np.quantile(self._numbers, np.arange(1, buckets) / buckets))
        return [float(edge) for edge in edges if edge > self._numbers.min()]  # a bucket starts with its edge
