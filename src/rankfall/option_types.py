"""Types with ranges for the options of components.

A configuration checks an option by the annotation in the signature. A component may use these types, any other
:class:`typing.Annotated`, a :class:`typing.Literal`, or plain types. They do not change what a call accepts.

Examples:
    >>> from rankfall.option_types import Count, Positive
    >>> def focal_loss(scores, labels, *, mask=None, weight=None, gamma: Positive = 2.0, k: Count | None = None): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

__all__ = [
    "Activation",
    "Count",
    "Depth",
    "Fraction",
    "Grades",
    "Init",
    "Momentum",
    "NotNegative",
    "NotNegativeCount",
    "OrName",
    "Positive",
    "Scale",
    "Seconds",
    "Seed",
    "Share",
]

LARGEST_COUNT = 2**31 - 1
SMALLEST_SCALE, LARGEST_SCALE = 1e-10, 1e10

LARGEST = 1e10
"""Largest absolute value of scores, labels and weights, and of what clients report and send as numbers. Products and
sums of such values stay finite in float32."""

MOST_DEVIATIONS = 1e4
"""Largest distance from the mean of what clients send for a standardised feature, in standard deviations. Training
survived such numbers in 20 of 220 requests; with the largest that `LARGEST` allows, 5 of 205 made it fail."""


@dataclass(frozen=True)
class OrName:
    """Mark of a number for which a configuration may also give a name, which is replaced by the number."""


Count = Annotated[int, Ge(1), Le(LARGEST_COUNT)]
"""A whole number from 1 to 2^31 - 1."""

NotNegativeCount = Annotated[int, Ge(0), Le(LARGEST_COUNT)]
"""A whole number from 0 to 2^31 - 1."""

Positive = Annotated[float, Gt(0)]
"""A number above 0."""

Scale = Annotated[float, Ge(SMALLEST_SCALE), Le(LARGEST_SCALE)]
"""A number from 1e-10 to 1e10: a temperature, or another factor of scores."""

NotNegative = Annotated[float, Ge(0)]
"""A number of at least 0."""

Fraction = Annotated[float, Ge(0), Le(1)]
"""A number from 0 to 1."""

Share = Annotated[float, Ge(0), Lt(1)]
"""A number of at least 0 and below 1, such as a dropout rate."""

Momentum = Annotated[float, Gt(0), Le(1)]
"""A number above 0 and at most 1: the weight of a batch in running statistics."""

Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
"""A random seed: samples are drawn by hashing 64-bit integers."""

Seconds = Annotated[float, Ge(0), Le(1e9)]
"""A duration in seconds."""

Grades = Annotated[int, Ge(2)]
"""A number of label grades, at least 2."""

Depth = Annotated[int, OrName()]
"""The number of a logged stage. A configuration may give its name."""

Activation = Literal["relu", "prelu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "sigmoid"]
"""The name of an activation function of :data:`rankfall.models.ACTIVATIONS`."""

Init = Literal["default", "he"]
"""Initial weights: torch's, or those of He et al. (2015)."""
