"""Metrics by the names that configurations and tables use: ``ndcg@10``, ``recall@20@10``, ``mrr``.

``ndcg`` has the gain 2^y - 1 and ``ndcg_linear`` the gain y. ``opa_all`` divides by the number of all pairs and counts
those with equal labels as right, as ARF, eq. 2; pairs with equal scores count one half, so that the value of a constant
scorer is the chance level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from rankfall.metrics.ranking import arp, average_precision, hit_rate, mrr, ndcg, opa, precision, recall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

UNDEFINED = float("nan")  # the value of a list without a relevant item, which means must skip


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric with fixed cutoffs. Lists on which it is undefined get NaN.

    Attributes:
        name: Name with cutoffs, such as ``"recall@20@10"``.
        function: Function of :mod:`rankfall.metrics`.
        options: Cutoffs and other arguments by the names of the function's parameters.
        higher_is_better: False for metrics that should be small.
    """

    name: str
    function: Callable[..., Tensor]
    options: dict[str, Any]
    higher_is_better: bool = True

    def __call__(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return one value per list; see :mod:`rankfall.metrics` for the arguments."""
        return self.function(scores, labels, mask=mask, empty=UNDEFINED, **self.options)


def parse(name: str) -> NamedMetric:
    """Return the metric with a name; cutoffs follow after ``@``.

    Args:
        name: ``"ndcg"``, ``"ndcg@k"``, ``"ndcg_linear"``, ``"ndcg_linear@k"``, ``"recall@m@k"``, ``"opa"``,
            ``"opa_all"``, ``"mrr"``, ``"map"``, ``"precision@k"``, ``"hit_rate@k"`` or ``"arp"``, with numbers
            instead of m and k.

    Raises:
        ValueError: If no metric has the name, or the cutoffs do not fit.

    Examples:
        >>> import torch
        >>> parse("precision@2")(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]))
        tensor(0.5000)
    """
    word, *cutoffs = name.split("@")
    if word not in _METRICS:
        raise unknown_metric(name, forms())
    metric = _METRICS[word]
    for form in metric.forms:
        options = form.split("@")[1:]
        if len(options) == len(cutoffs) and all(re.fullmatch("[1-9][0-9]*", cutoff) for cutoff in cutoffs):
            numbers = dict(zip(options, map(int, cutoffs), strict=True))
            return NamedMetric(name, metric.function, numbers | metric.options, higher_is_better=word != "arp")
    raise ValueError(f"found {name!r}; expected {' or '.join(metric.forms)}, where cutoffs are whole numbers above 0")


def unknown_metric(name: str, allowed: Sequence[str]) -> ValueError:
    """Return the error for a name that is none of the allowed forms, with the closest of them.

    >>> unknown_metric("ndgc@10", ["ndcg", "ndcg@k", "mrr"])
    ValueError("found 'ndgc@10', did you mean ndcg@k; allowed are ndcg, ndcg@k, mrr")
    """
    by_word = {form.partition("@")[0]: form for form in allowed}  # of several forms, the last one has the cutoff
    close = get_close_matches(name.partition("@")[0], by_word, n=1)
    hint = f", did you mean {by_word[close[0]]}" if close else ""
    return ValueError(f"found {name!r}{hint}; allowed are {', '.join(allowed)}")


def forms(function: Callable[..., Tensor] | None = None) -> list[str]:
    """Return the forms of all names, or of those of one function.

    >>> forms(ndcg)
    ['ndcg', 'ndcg@k', 'ndcg_linear', 'ndcg_linear@k']
    """
    return [form for metric in _METRICS.values() if function in (None, metric.function) for form in metric.forms]


@dataclass(frozen=True, slots=True)
class _Metric:
    """A function, the forms of its name with cutoffs, and its other arguments."""

    function: Callable[..., Tensor]
    forms: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


_METRICS: dict[str, _Metric] = {
    "ndcg": _Metric(ndcg, ("ndcg", "ndcg@k")),
    "ndcg_linear": _Metric(ndcg, ("ndcg_linear", "ndcg_linear@k"), {"gain": "linear"}),
    "recall": _Metric(recall, ("recall@m@k",)),
    "opa": _Metric(opa, ("opa",)),
    "opa_all": _Metric(opa, ("opa_all",), {"label_ties": "count"}),
    "mrr": _Metric(mrr, ("mrr",)),
    "map": _Metric(average_precision, ("map",)),
    "precision": _Metric(precision, ("precision@k",)),
    "hit_rate": _Metric(hit_rate, ("hit_rate@k",)),
    "arp": _Metric(arp, ("arp",)),
}
