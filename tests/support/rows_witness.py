"""A reference implementation of `prepare rows` in plain loops over dictionaries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import UTC, datetime
from statistics import fmean, pstdev
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from rankfall.data.impressions.encoding import hash_values
from rankfall.data.impressions.spec import Categorical, Dense, Spec, Time, table_of
from rankfall.encoding import combine

Row = dict[str, Any]
Values = list[Any]


def hash_of(value: int | str) -> int:
    return int(hash_values(pl.Series([value]))[0])


def key_of(row: Row, spec: Spec, *before: int) -> int:
    """Return the hash of numbers followed by a row's request and item."""
    parts = [*before, hash_of(row[spec.request]), hash_of(row[spec.item])]
    return int(combine(*(np.uint64(part) for part in parts)))


class Witness:
    """Impressions, items and vocabularies of rows with all columns and times in milliseconds."""

    def __init__(self, rows: list[Row], spec: Spec, *, seed: int = 0, fit_days: int | None = None) -> None:
        self.spec = spec
        self.seed = seed
        self.rows = sorted(rows, key=lambda row: (self.time(row), hash_of(row[spec.request])))
        self.days = sorted({self.day(row) for row in rows})
        count = fit_days or max(1, len(self.days) - 2)
        self.fitted = [row for row in self.rows if self.day(row) in self.days[:count]]
        self.vocabularies = self._vocabularies()
        first = {row[spec.item]: self.day(row) for row in reversed(self.rows)}
        items = sorted(first, key=lambda item: (first[item], item))
        fits = all(isinstance(item, int) and 0 <= item < 2**31 for item in items)
        self.numbers = {item: item if fits else place for place, item in enumerate(items)}

    def time(self, row: Row) -> int:
        assert self.spec.time
        return int(row[self.spec.time.column])

    def local(self, milliseconds: int) -> datetime:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(ZoneInfo(self.spec.zone))

    def day(self, row: Row) -> str:
        return self.local(self.time(row)).date().isoformat()

    def column(self, group: str, name: str) -> str:
        assert self.spec.time
        feature = getattr(self.spec.features, group)[name]
        return str(feature.column or (self.spec.time.column if isinstance(feature, Time) else name))

    # --- fitted values ---

    def observations(self, group: str, name: str) -> Values:
        """Return the values of a feature in the fitted days: per row for items, per request for others."""
        column = self.column(group, name)
        if group == "item":
            return [row[column] for row in self.fitted]
        return [row[column] for row in {row[self.spec.request]: row for row in self.fitted}.values()]

    def _vocabularies(self) -> dict[str, Values]:
        counts: dict[str, Counter[Any]] = defaultdict(Counter)
        limits = {}
        for group, name, feature in self.spec.features:
            if isinstance(feature, Categorical) and feature.vocabulary:
                table = table_of(group, name, feature)
                counts[table].update(value for value in self.observations(group, name) if value is not None)
                limits[table] = feature.vocabulary
        return {
            table: sorted(
                (value for value in found if found[value] >= limits[table].min_count),
                key=lambda value, found=found: (-found[value], value),  # type: ignore[misc]
            )[: limits[table].max_size]
            for table, found in counts.items()
        }

    def number(self, feature: Dense, value: float | None) -> float:
        if value is None or math.isnan(value):
            assert isinstance(feature.missing, float)
            return feature.missing
        return math.copysign(math.log1p(abs(value)), value) if feature.log1p else float(value)

    def quantiles(self, values: list[float], buckets: int) -> list[float]:
        ordered = sorted(values)
        edges = set()
        for bucket in range(1, buckets):
            place = (len(ordered) - 1) * bucket / buckets
            low = int(place)
            high = min(low + 1, len(ordered) - 1)
            edges.add(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
        return sorted(edge for edge in edges if edge > ordered[0])

    # --- encoded values ---

    def encode(self, group: Any, name: str, value: Any) -> Any:
        feature = getattr(self.spec.features, group)[name]
        if isinstance(feature, Dense):
            return self.encode_number(group, name, feature, value)
        if value is None:
            return 0
        if isinstance(feature, Time):
            # all times of these tests are in milliseconds
            moment = self.local(value)
            parts = {
                "hour": moment.hour,
                "weekday": moment.weekday(),
                "minute": moment.minute,
                "month": moment.month - 1,
            }
            return 2 + parts[feature.part]
        if feature.num_buckets is not None:
            return value + 2 if value < feature.num_buckets else 1
        if feature.hash_bucket_size is not None:
            return 2 + hash_of(value) % feature.hash_bucket_size
        known = self.vocabularies[table_of(group, name, feature)]
        return 2 + known.index(value) if value in known else 1

    def encode_number(self, group: str, name: str, feature: Dense, value: Any) -> Any:
        number = self.number(feature, value)
        if feature.bucketize is None and not feature.standardise:
            return number
        seen = [self.number(feature, other) for other in self.observations(group, name)]
        if feature.standardise:
            return (number - fmean(seen)) / (pstdev(seen) or 1.0)
        edges = (
            feature.bucketize if isinstance(feature.bucketize, list) else self.quantiles(seen, feature.bucketize or 0)
        )
        return 2 + sum(edge <= number for edge in edges)

    # --- impressions ---

    def depth(self, row: Row) -> int:
        names = self.spec.stage_names
        if self.spec.stage is not None:
            stage = row[self.spec.stage]
            return stage if isinstance(stage, int) else names.index(stage)
        return max(place for place, stage in enumerate(self.spec.stages) if row[str(stage.flag)] > 0)

    def rank(self, row: Row) -> int:
        rank = row[self.spec.rank] if self.spec.rank else None
        return -1 if rank is None else int(rank)

    def kept(self, rows: list[Row]) -> list[Row]:
        kept: list[Row] = []
        for place, stage in enumerate(self.spec.stages):
            of_stage = [row for row in rows if self.depth(row) == place]
            of_stage.sort(key=lambda row: key_of(row, self.spec, self.seed, 1))
            kept += of_stage[: stage.sample]
        return sorted(kept, key=lambda row: key_of(row, self.spec, self.seed, 2))

    def grades(self, rows: list[Row]) -> list[int]:
        goodness = [(self.depth(row), -self.rank(row) if self.rank(row) >= 0 else -math.inf) for row in rows]
        return [sorted(set(goodness)).index(good) for good in goodness]

    def relevance(self, row: Row) -> float:
        if self.spec.relevant.column:
            return max(0.0, float(row[self.spec.relevant.column] or 0))
        return float(self.depth(row) >= self.spec.stage_names.index(str(self.spec.relevant.stage)))

    def events(self, row: Row, name: str) -> list[Row]:
        """Return the user's events strictly before a row, oldest first."""
        sequence, user = self.spec.sequences[name], str(self.spec.user)
        past = [
            other
            for other in self.rows
            if other[user] == row[user]
            and row[user] is not None
            and self.time(other) < self.time(row)
            and (other[str(sequence.feedback)] or 0) > 0
        ]
        past.sort(
            key=lambda other: (self.time(other), self.place(other), other[self.spec.request], other[self.spec.item])
        )
        return past[-sequence.max_length :]

    def place(self, row: Row) -> float:
        """Return the position of an item, or its rank, or infinity."""
        column = self.spec.position or self.spec.rank
        value = None if column is None else row[column]
        return math.inf if value is None or value < 0 else float(value)

    def impression(self, rows: list[Row]) -> Row:
        first, kept, spec = rows[0], self.kept(rows), self.spec
        found: Row = {"request": first[spec.request], "time": self.time(first)}
        for group, name, _ in spec.features:
            column = self.column(group, name)
            if group != "item":
                found[f"{group}.{name}"] = self.encode(group, name, first[column])
            else:
                found[f"item.{name}"] = [self.encode("item", name, row[column]) for row in kept]
        for name, sequence in spec.sequences.items():
            for feature in sequence.features:
                values = [row[self.column("item", feature)] for row in self.events(first, name)]
                found[f"sequence.{name}.{feature}"] = [self.encode("item", feature, value) for value in values]
        found["item"] = [self.numbers[row[spec.item]] for row in kept]
        found["depth"] = [self.depth(row) for row in kept]
        found["rank"] = [self.rank(row) for row in kept]
        found["grade"] = self.grades(kept)
        found["relevance"] = [self.relevance(row) for row in kept]
        for name in spec.feedback:
            found[f"feedback.{name}"] = [float(row[name] or 0) for row in kept]
        found["left_out"] = sorted(
            self.numbers[row[spec.item]] for row in rows if row not in kept and self.relevance(row) > 0
        )
        return found

    def impressions(self) -> dict[str, list[Row]]:
        """Return the impressions of each day, in order."""
        requests: dict[Any, list[Row]] = defaultdict(list)
        for row in self.rows:  # in the order of impressions
            requests[row[self.spec.request]].append(row)
        days: dict[str, list[Row]] = {day: [] for day in self.days}
        for rows in requests.values():
            days[self.day(rows[0])].append(self.impression(rows))
        return days

    def items(self) -> list[Row]:
        """Return every item with its latest features."""
        last = {row[self.spec.item]: row for row in self.rows}
        return [
            {"item": self.numbers[item]}
            | ({} if item == self.numbers[item] else {"id": item})
            | {
                f"item.{name}": self.encode("item", name, last[item][self.column("item", name)])
                for name in self.spec.features.item
            }
            for item in sorted(last, key=lambda item: self.numbers[item])
        ]
