"""Metrics by name, as evaluations and comparisons use them."""

from rankfall.metrics.named import NamedMetric, parse

__all__ = ["NamedMetric", "parse"]
