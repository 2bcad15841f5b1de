"""Names of the metrics of a cascade.

Figures of a stage by itself, over the whole list, are ``STAGE/alone/recall``, ``STAGE/alone/ndcg`` and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.registry import metric_names
from rankfall.registry.references import absolute

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

JOINT = "joint_recall"

JOINT_VALUE = "joint_value"
"""Share of the relevance of the ground truth that survives all stages."""

PUBLISHED_NDCG = "ndcg_published"
"""NDCG with the gains of the published code of LCRON."""

VALUE_NDCG = "ndcg_value"
"""NDCG with the relevance as linear gain."""

ALONE, SHOWN = "alone", "shown"
_ALONE_ALWAYS = ("recall", "ndcg")
_OF_LISTS = ("ndcg_linear", "precision", "hit_rate", "mrr", "map", "opa", "opa_all", "arp", PUBLISHED_NDCG, VALUE_NDCG)
_OF_ALONE = frozenset((*_ALONE_ALWAYS, *_OF_LISTS))

RESERVED = frozenset((*_OF_ALONE, "lost", "survived", "value", ALONE))
"""Words that name metrics of a stage, so that feedback cannot be measured under them."""


METRICS_OF_CASCADES = {
    "joint_recall": "share of the ground truth that survives all stages; the ground truth is the best `relevant` of "
    "the relevant items, by relevance, then by grade",
    "joint_value": "share of the relevance of the ground truth that survives all stages; measured if items of a ground "
    "truth differ in relevance",
    "joint/FEEDBACK": "share of a feedback that survives all stages, for the key `feedback`: pooled over all requests "
    "(sum), or the mean over requests that have some (rate)",
    "STAGE/survived": "share of the ground truth that is left after the stage",
    "STAGE/lost": "share of the ground truth that the stage drops; lower is better",
    "STAGE/value": "share of the relevance of the ground truth that is left after the stage",
    "STAGE/FEEDBACK": "share of a feedback that is left after the stage",
    "STAGE/alone/recall": "recall of the stage by itself, over the whole list",
    "STAGE/alone/ndcg": "NDCG of the stage by itself, over the whole list, with gain 1 for the ground truth",
    "STAGE/shown/auc": "share of the pairs of a relevant and an irrelevant item that the stage orders correctly, "
    "within the items that reached the last stage of the log; measured if relevance is a column",
    "STAGE/shown/ndcg": "NDCG of the stage within the same items, with gain 1 for relevant ones",
}
"""Definitions of the metrics of a cascade, by the form of their names."""


def measures(
    stages: Sequence[str], further: Sequence[str] = (), feedback: Iterable[str] = (), *, complete: bool = True
) -> list[str]:
    """Return the names of all metrics of a cascade that are measured on every log.

    Args:
        stages: Names of the stages.
        further: Names of further metrics of every stage alone.
        feedback: Names of feedback whose survival is measured. What is left after the last stage is ``joint/FEEDBACK``.
        complete: Whether all stages score the whole list. If they do not, only the first stage has a recall by itself.

    >>> measures(["ranking"], ["ndcg_linear@10"])
    ['joint_recall', 'ranking/alone/recall', 'ranking/alone/ndcg', 'ranking/lost', 'ranking/alone/ndcg_linear@10']
    >>> measures(["retrieval", "ranking"], feedback=["revenue"], complete=False)
    ['joint_recall', 'joint/revenue', 'retrieval/alone/recall', 'retrieval/lost', 'retrieval/revenue', 'ranking/lost']
    """
    names = [JOINT, *(f"joint/{name}" for name in feedback)]
    for place, stage in enumerate(stages):
        always = [*_ALONE_ALWAYS] if complete else ["recall"] if place == 0 else []
        names += [alone_name(stage, metric) for metric in always]
        names.append(f"{stage}/lost")
        names += [alone_name(stage, metric) for metric in dict.fromkeys(further if complete else ())]
        names += [f"{stage}/{name}" for name in feedback if place < len(stages) - 1]
    return names


def with_value(metrics: Sequence[str], measured: Iterable[Container[str]]) -> list[str]:
    """Return metrics, and ``joint_value`` after ``joint_recall`` if all results have it: not every log does.

    Args:
        metrics: Names of metrics.
        measured: The metrics of each result.

    >>> with_value(["joint_recall", "ranking/lost"], [{"joint_recall", "joint_value", "ranking/lost"}])
    ['joint_recall', 'joint_value', 'ranking/lost']
    """
    measured = list(measured)
    everywhere = bool(measured) and all(JOINT_VALUE in names for names in measured)
    return [*metrics[:1], *([JOINT_VALUE] if everywhere else []), *metrics[1:]]


def list_metric(name: str) -> str:
    """Return the metric of lists that a further metric of a stage applies, to labels of its own.

    >>> list_metric("ndcg_published@10"), list_metric("opa")
    ('ndcg_linear@10', 'opa')
    """
    word, at, cutoffs = name.partition("@")
    return f"ndcg_linear{at}{cutoffs}" if word in (PUBLISHED_NDCG, VALUE_NDCG) else name


def higher_is_better(metric: str) -> bool:
    """Return whether higher values of a metric are better: not for shares of items lost and for mean positions.

    >>> [higher_is_better(metric) for metric in ("joint_recall", "ranking/lost", "ranking/alone/arp", "arp")]
    [True, False, False, False]
    """
    _, name = split_stage(metric)
    return name != "lost" and metric_names.higher_is_better(name.removeprefix(f"{ALONE}/"))


def split_stage(metric: str) -> tuple[str, str]:
    """Return the stage and the metric of a name. Metrics that are references to files have slashes themselves.

    >>> split_stage("ranking/lost"), split_stage("ndcg@10"), split_stage("ranking/alone//home/ada/own.py:rbp@0.8")
    (('ranking', 'lost'), ('', 'ndcg@10'), ('ranking', 'alone//home/ada/own.py:rbp@0.8'))
    """
    stage, slash, name = metric.partition("/")
    return (stage, name) if slash and stage.isidentifier() else ("", metric)


def alone_name(stage: str, metric: str) -> str:
    """Return the name of a metric of a stage by itself.

    >>> alone_name("ranking", "recall")
    'ranking/alone/recall'
    """
    return f"{stage}/{ALONE}/{metric}"


def shown_name(metric: str) -> str:
    """Return the name under which tables show a metric: references to files are shown without their folders.

    >>> shown_name("ranking/alone/recall"), shown_name("joint_recall")
    ('ranking/alone/recall', 'joint_recall')
    >>> shown_name("ranking/alone//home/ada/own.py:rbp@0.8"), shown_name("/home/ada/own.py:rbp@0.8")
    ('ranking/alone/own.py:rbp@0.8', 'own.py:rbp@0.8')
    """
    place, colon, own = metric.rpartition(":")
    if not colon:
        return metric
    stage, _ = split_stage(metric)
    short = f"{place.rpartition('/')[2]}:{own}"
    return alone_name(stage, short) if stage else short


def absolute_metric(metric: str) -> str:
    """Return the name of a metric of a cascade with the absolute path of a reference to a file."""
    stage, name = split_stage(metric)
    own = name.removeprefix(f"{ALONE}/")
    return alone_name(stage, absolute(own)) if stage and own != name else metric
