"""Metrics by the names that configurations and tables use: ``ndcg@10``, ``recall@20@10``, ``mrr``.

``ndcg`` has the gain 2^y - 1 and ``ndcg_linear`` the gain y. ``opa_all`` divides by the number of all pairs and counts
those with equal labels as right, as ARF, eq. 2; pairs with equal scores count one half, so that the value of a constant
scorer is the chance level. Metrics of users have their own names, or references such as ``"my_metrics:rbp@0.8"``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall import registry
from rankfall._errors import RankfallError
from rankfall.registry import metric_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

UNDEFINED = float("nan")  # the value of a list without a relevant item, which means must skip


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric with fixed cutoffs. Lists on which it is undefined get NaN.

    Attributes:
        name: Name with cutoffs, such as ``"recall@20@10"``.
        function: Function of :mod:`rankfall.metrics`, or of a user.
        options: Cutoffs and other arguments by the names of the function's parameters.
        higher_is_better: False for metrics that should be small.
    """

    name: str
    function: Callable[..., Tensor]
    options: dict[str, Any]
    higher_is_better: bool = True

    def __call__(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return one value per list; see :mod:`rankfall.metrics` for the arguments."""
        values = self.function(scores, labels, mask=mask, **self._empty, **self.options)
        if not hasattr(values, "shape"):
            raise RankfallError(
                f"metric {self.name}: found {type(values).__name__}, expected a tensor, one value per list"
            )
        if values.shape != scores.shape[:-1]:
            raise RankfallError(
                f"metric {self.name}: found values of shape {tuple(values.shape)}, expected one value per list, "
                f"{tuple(scores.shape[:-1])}"
            )
        return values

    @property
    def _empty(self) -> dict[str, float]:
        """The value of undefined lists, unless the function decides it itself."""
        return {"empty": UNDEFINED} if "empty" in inspect.signature(self.function).parameters else {}


def parse(name: str) -> NamedMetric:
    """Return the metric with a name; cutoffs follow after ``@``.

    Args:
        name: ``"ndcg"``, ``"ndcg@k"``, ``"ndcg_linear"``, ``"ndcg_linear@k"``, ``"recall@m@k"``, ``"opa"``,
            ``"opa_all"``, ``"mrr"``, ``"map"``, ``"precision@k"``, ``"hit_rate@k"`` or ``"arp"``, with numbers
            instead of m and k, or the name or reference of a registered metric with its cutoffs.

    Raises:
        ValueError: If no metric has the name, or the cutoffs do not fit.

    Examples:
        >>> import torch
        >>> parse("precision@2")(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]))
        tensor(0.5000)
    """
    found = metric_names.parse_name(name)
    return NamedMetric(name, registry.get("metric", found.word), dict(found.options), found.higher_is_better)


def forms(function: Callable[..., Tensor] | None = None) -> list[str]:
    """Return the forms of all names, or of those of one function.

    >>> from rankfall.metrics import ndcg
    >>> forms(ndcg)
    ['ndcg', 'ndcg@k', 'ndcg_linear', 'ndcg_linear@k']
    """
    return metric_names.forms(function and function.__name__)
