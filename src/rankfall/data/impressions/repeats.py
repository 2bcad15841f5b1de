"""Whether item features depend on the request: repeated values of the same items are compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.impressions.items import differ, from_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

_LEAST_REPEATS = 100  # comparisons, below which nothing is said about a feature
FARTHER = 0.25  # share of values that are farther from the previous one; 0.5 if the item says nothing about the value


@dataclass(slots=True)
class RepeatCounts:
    """How well the previous value of an item predicts its next one on the same day, by item feature.

    Two distances are compared for each repeated occurrence of an item: that to its previous value, and that to the
    value of another item of the request. A feature of items is closer to its previous value, also if it changes as
    running counters do. A feature that depends on the request is not.
    """

    closer: Counter[str] = field(default_factory=Counter)
    farther: Counter[str] = field(default_factory=Counter)

    def add(self, items: NDArray[Any], features: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Count the repeated items of requests of one day, in the order of time.

        Args:
            items: The items of the requests, one request after the other.
            features: Names of item features, and their values for these items.
        """
        order = np.argsort(items, kind="stable")
        again = np.flatnonzero(np.diff(items[order]) == 0)
        before, after = order[again], order[again + 1]
        beside = (after + 1) % max(1, len(items))
        for name, values in features:
            if differ(values[before], values[after]).any():
                closer, farther = compare_repeats(values[before], values[after], values[beside])
                self.closer[name] += closer
                self.farther[name] += farther

    def per_request(self) -> list[str]:
        """Return the features that depend on the request."""
        return sorted(
            name
            for name, count in self.farther.items()
            if count + self.closer[name] >= _LEAST_REPEATS and count > FARTHER * (count + self.closer[name])
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RepeatCounts:
        """Read the counts that a state stores."""
        return cls(*(Counter(content.get(name, {})) for name in cls.__slots__))

    def to_json(self) -> dict[str, Any]:
        """Return the form that a state stores."""
        return {name: dict(sorted(getattr(self, name).items())) for name in self.__slots__}


def logged_values(impressions: pa.Table, column: str) -> NDArray[Any]:
    """Return the values of the logged items of all lists, one list after the other, without random negatives."""
    values, depths = (
        from_arrow(pa.chunked_array([chunk.flatten() for chunk in impressions[name].chunks]))
        for name in (column, "depth")
    )
    return values[depths >= 0]


def compare_repeats(before: NDArray[Any], after: NDArray[Any], beside: NDArray[Any]) -> tuple[int, int]:
    """Return how many values of items are closer to their previous one than to that of another item, and how many not.

    Args:
        before: Values of items.
        after: The next values of the same items.
        beside: Values of other items, in the same lists as `after`.
    """
    previous, other = _distance(after, before), _distance(after, beside)
    return int((previous < other).sum()), int((previous > other).sum())


def _distance(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return distances of numbers or vectors; ids are equal or not."""
    if one.dtype.kind == "i":
        return differ(one, other)
    distance: NDArray[Any] = np.abs(one.astype(np.float64) - other)
    return distance.sum(axis=1) if distance.ndim > 1 else distance
