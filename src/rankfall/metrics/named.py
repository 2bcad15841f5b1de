"""Metrics by the names that configurations and tables use: ``ndcg@10``, ``recall@20@10``, ``mrr``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rankfall.metrics.ranking import arp, average_precision, hit_rate, mrr, ndcg, opa, precision, recall

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

UNDEFINED = float("nan")  # the value of a list without a relevant item, which means must skip


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric with fixed cutoffs. Lists on which it is undefined get NaN.

    Attributes:
        name: Name with cutoffs, such as ``"recall@20@10"``.
        function: Function of :mod:`rankfall.metrics`.
        options: Cutoffs by the names of the function's parameters.
        higher_is_better: False for metrics that should be small.
    """

    name: str
    function: Callable[..., Tensor]
    options: dict[str, int]
    higher_is_better: bool = True

    def __call__(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return one value per list; see :mod:`rankfall.metrics` for the arguments."""
        return self.function(scores, labels, mask=mask, empty=UNDEFINED, **self.options)


def parse(name: str) -> NamedMetric:
    """Return the metric with a name; cutoffs follow after ``@``.

    Args:
        name: ``"ndcg"``, ``"ndcg@k"``, ``"recall@m@k"``, ``"opa"``, ``"mrr"``, ``"map"``, ``"precision@k"``,
            ``"hit_rate@k"`` or ``"arp"``, with numbers instead of m and k.

    Raises:
        ValueError: If no metric has the name, or the cutoffs do not fit.

    Examples:
        >>> import torch
        >>> parse("precision@2")(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]))
        tensor(0.5000)
    """
    word, *cutoffs = name.split("@")
    if word not in _METRICS:
        close = get_close_matches(word, _METRICS, n=1)
        hint = f", did you mean {_METRICS[close[0]][1][-1]}" if close else ""
        raise ValueError(f"found {name!r}{hint}; allowed are {', '.join(_forms())}")
    function, forms = _METRICS[word]
    for form in forms:
        options = form.split("@")[1:]
        if len(options) == len(cutoffs) and all(re.fullmatch("[1-9][0-9]*", cutoff) for cutoff in cutoffs):
            numbers = dict(zip(options, map(int, cutoffs), strict=True))
            return NamedMetric(name, function, numbers, higher_is_better=word != "arp")
    raise ValueError(f"found {name!r}; expected {' or '.join(forms)}, where cutoffs are whole numbers above 0")


def _forms() -> list[str]:
    return [form for _, forms in _METRICS.values() for form in forms]


_METRICS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "ndcg": (ndcg, ("ndcg", "ndcg@k")),
    "recall": (recall, ("recall@m@k",)),
    "opa": (opa, ("opa",)),
    "mrr": (mrr, ("mrr",)),
    "map": (average_precision, ("map",)),
    "precision": (precision, ("precision@k",)),
    "hit_rate": (hit_rate, ("hit_rate@k",)),
    "arp": (arp, ("arp",)),
}
