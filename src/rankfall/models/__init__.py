"""Models that compute scores. They are independent of losses.

:class:`TwoTower`, :class:`DIN` and :class:`EmbeddingMLP` map a batch of impressions to scores ``(B, N)``, one per item.
They are built for the features of a log and embed the features that are ids. :class:`MLP` and :class:`Linear` map rows
of numbers to scores ``(rows,)``. A stage of a cascade can use any module that maps a batch to scores.

Examples:
    >>> import torch
    >>> MLP(3, [8, 4])(torch.zeros(5, 3)).shape
    torch.Size([5])

    A custom model:

    >>> class Popular(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.ones(()))
    ...     def forward(self, batch):
    ...         return self.weight * batch.items["views"]
    >>> from types import SimpleNamespace
    >>> Popular()(SimpleNamespace(items={"views": torch.tensor([[3.0, 1.0, 2.0]])}))
    tensor([[3., 1., 2.]], grad_fn=...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall import registry
from rankfall._errors import RankfallError, did_you_mean
from rankfall.models.embedding import FeatureEmbedding, ImpressionFeatures, RequestFeatures
from rankfall.models.layers import ACTIVATIONS, FeatureScaling
from rankfall.models.scorers import DIN, MLP, EmbeddingMLP, Linear, Scorer, TwoTower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from rankfall.data.impressions.spec import Features

__all__ = [
    "ACTIVATIONS",
    "DIN",
    "KINDS",
    "MLP",
    "EmbeddingMLP",
    "FeatureEmbedding",
    "FeatureScaling",
    "ImpressionFeatures",
    "Linear",
    "RequestFeatures",
    "Scorer",
    "TwoTower",
    "from_config",
]

KINDS: dict[str, type[Scorer]] = {
    name: registry.get("model", name)  # type: ignore[misc]  # built-in models are scorers
    for name in registry.builtins("model")
}
"""The built-in models of cascades by name."""


def from_config(
    config: Mapping[str, Any], features: Features, *, tables: Mapping[str, nn.Embedding] | None = None
) -> Scorer:
    """Build a model of this package from its description.

    Args:
        config: Kind and options of the model, such as ``{"kind": "din", "dim": 16}``, as :meth:`Scorer.config` returns
            them. Options that are left out have their defaults.
        features: Features of the impression log that the model is built for.
        tables: Embedding tables ``(rows, dim)`` by name that are used instead of new ones.

    Raises:
        ValueError: If the kind is unknown or has no option of a given name.
    """
    options = dict(config)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise RankfallError(f"kind: found {kind!r}{did_you_mean(kind, KINDS)}; allowed are {', '.join(KINDS)}")
    registry.check_options("model", kind, options)
    model: Any = KINDS[kind]
    scorer: Scorer = model(features, tables=tables, **options)
    return scorer
