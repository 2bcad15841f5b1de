"""Counts of the rows that were read, sampled and encoded while a log was prepared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.data.impressions.log import ImpressionLog


@dataclass(slots=True)
class Counts:
    """Counts of one part of a log; those of several parts add up."""

    rows: int = 0
    requests: int = 0
    without_relevant: int = 0  # requests without a relevant item
    logged: Counter[str] = field(default_factory=Counter)  # rows per stage
    kept: Counter[str] = field(default_factory=Counter)  # sampled rows per stage
    short: Counter[str] = field(default_factory=Counter)  # requests with fewer items than the sample size of a stage
    negatives: int = 0
    values: Counter[str] = field(default_factory=Counter)  # ids per feature
    missing: Counter[str] = field(default_factory=Counter)  # ids of missing values per feature
    unseen: Counter[str] = field(default_factory=Counter)  # ids of values that were not fitted, per feature
    numbers: Counter[str] = field(default_factory=Counter)  # numbers or vectors per feature
    missing_numbers: Counter[str] = field(default_factory=Counter)  # those with a missing number

    def __add__(self, other: Counts) -> Counts:
        """The counts of both parts together."""
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Counts:
        """Read the counts stored in a manifest."""
        counts: dict[str, Any] = {}
        for name, value in content.items():
            counts[name] = Counter(value) if isinstance(value, dict) else value
        return cls(**counts)

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in a manifest, in an order that does not depend on the parts."""
        return {
            name: dict(sorted(value.items())) if isinstance(value := getattr(self, name), Counter) else value
            for name in self.__slots__
        }


def stage_counts(log: ImpressionLog) -> pl.DataFrame:
    """Return what the sampler kept of each stage of a log.

    Returns:
        One row per stage: its name, its sample size, the rows that were `logged`, `kept` and `dropped`, the first two
        also per request, and as `short` the number of requests with fewer items than the sample size.
    """
    counts = log.manifest["about"]["counts"]
    names = log.spec.stage_names
    frame = pl.DataFrame(
        {
            "stage": names,
            "sample": [stage.sample for stage in log.spec.stages],
            **{what: [counts[what].get(name, 0) for name in names] for what in ("logged", "kept", "short")},
        },
        schema={"stage": pl.String, "sample": pl.Int64, "logged": pl.Int64, "kept": pl.Int64, "short": pl.Int64},
    )
    requests = max(counts["requests"], 1)
    return frame.with_columns(
        dropped=pl.col("logged") - pl.col("kept"),
        logged_per_request=pl.col("logged") / requests,
        kept_per_request=pl.col("kept") / requests,
    )
