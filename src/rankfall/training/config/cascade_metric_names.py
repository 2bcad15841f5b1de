"""Names of the metrics of a cascade."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

JOINT = "joint_recall"

PUBLISHED_NDCG = "ndcg_published"
"""NDCG with the gains of the published code of LCRON."""

_OF_EVERY_STAGE = ("recall", "ndcg", "lost")


def measures(stages: Sequence[str], further: Sequence[str] = ()) -> list[str]:
    """Return the names of all metrics of a cascade.

    Args:
        stages: Names of the stages.
        further: Names of further metrics of every stage.

    >>> measures(["ranking"], ["ndcg_linear@10"])
    ['joint_recall', 'ranking/recall', 'ranking/ndcg', 'ranking/lost', 'ranking/ndcg_linear@10']
    """
    return [JOINT, *(f"{stage}/{metric}" for stage in stages for metric in dict.fromkeys((*_OF_EVERY_STAGE, *further)))]


def list_metric(name: str) -> str:
    """Return the metric of lists that a further metric of a stage applies, to labels of its own.

    >>> list_metric("ndcg_published@10"), list_metric("opa")
    ('ndcg_linear@10', 'opa')
    """
    word, at, cutoffs = name.partition("@")
    return f"ndcg_linear{at}{cutoffs}" if word == PUBLISHED_NDCG else name


def higher_is_better(metric: str) -> bool:
    """Return whether higher values of a metric are better: not for shares of items lost and for mean positions."""
    return not metric.endswith(("/lost", "/arp"))
