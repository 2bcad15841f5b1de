"""Mean and deviation of features, computed in parts that add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._argument_types import checked

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
