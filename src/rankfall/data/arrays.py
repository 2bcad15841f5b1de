"""Mean and deviation of features, computed in parts that add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._errors import checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]


def edges(lengths: NDArray[np.integer]) -> Indices:
    """Return where lists of these lengths begin in a flat array, and where the last one ends.

    >>> edges(np.array([2, 3]))
    array([0, 2, 5])
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def spans(starts: Indices, lengths: Indices) -> Indices:
    """Return the indices of all spans, one span after the other; span i has `lengths[i]` indices from `starts[i]` on.

    >>> spans(np.array([10, 20]), np.array([2, 3]))
    array([10, 11, 20, 21, 22])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    indices: Indices = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return indices


def rank_share(rows: int, rank: int, world: int) -> slice:
    """Return the rows of a batch that belong to one of `world` ranks; the shares differ by at most one row.

    >>> [rank_share(10, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    return slice(rows * rank // world, rows * (rank + 1) // world)


@dataclass(frozen=True, slots=True)
class Moments:
    """Number of rows, and the mean and the sum of squared deviations of each feature.

    The moments of two sets of rows add up to those of their union.
    """

    rows: float
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    @checked
    def of(cls, features: NDArray[Any]) -> Moments:
        """Compute the moments of an array (rows, features)."""
        values = features.astype(np.float64)
        if len(values) == 0:
            return cls(0.0, np.zeros(values.shape[1]), np.zeros(values.shape[1]))
        mean = values.mean(axis=0)
        values -= mean
        return cls(float(len(values)), mean, np.einsum("rf,rf->f", values, values))

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together (Chan, Golub and LeVeque, 1983)."""
        rows = self.rows + other.rows
        if rows == 0:
            return self
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.rows / rows)
        squares = self.squares + other.squares + difference**2 * (self.rows * other.rows / rows)
        return Moments(rows, mean, squares)

    def scaling(self) -> Scaling:
        """Return the scaling that gives these rows mean 0 and variance 1."""
        deviation = np.sqrt(self.squares / max(self.rows, 1.0))
        # rounding leaves a constant feature a deviation near 1e-16 of its mean, by which nothing must be divided
        constant = deviation <= 1e-12 * np.abs(self.mean)
        return Scaling(self.mean, np.where(constant, 1.0, deviation))

    def scaled(self, scaling: Scaling) -> Moments:
        """Return the moments that the rows have after `scaling`."""
        return Moments(self.rows, (self.mean - scaling.mean) / scaling.deviation, self.squares / scaling.deviation**2)

    def to_array(self) -> NDArray[np.float64]:
        """Return the stored form, an array (3, features)."""
        return np.stack([np.full_like(self.mean, self.rows), self.mean, self.squares])

    @classmethod
    def from_array(cls, array: NDArray[np.float64]) -> Moments:
        """Read the stored form, an array (3, features)."""
        return cls(float(array[0, 0]) if array.size else 0.0, array[1], array[2])


@dataclass(frozen=True, slots=True)
class Scaling:
    """Standardisation: (features - mean) / deviation."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def __call__(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Scale an array (rows, features), computing in float64."""
        scaled: NDArray[np.float32] = ((features - self.mean) / self.deviation).astype(np.float32)
        return scaled
