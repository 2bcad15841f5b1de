"""Names of the metrics of a cascade."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

JOINT = "joint_recall"


def measures(stages: Sequence[str]) -> list[str]:
    """Return the names of all metrics of a cascade with stages of these names.

    >>> measures(["ranking"])
    ['joint_recall', 'ranking/recall', 'ranking/ndcg', 'ranking/lost']
    """
    return [JOINT, *(f"{stage}/{metric}" for stage in stages for metric in ("recall", "ndcg", "lost"))]


def higher_is_better(metric: str) -> bool:
    """Return whether higher values of a metric are better. That is not so for the share of items lost at a stage."""
    return not metric.endswith("/lost")
