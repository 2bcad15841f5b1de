"""Base class of the models that score impressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rankfall._checks import WIDEST, check_count
from rankfall.models.embedding import FeatureEmbedding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jaxtyping import Float

    from rankfall.data.impressions.spec import Features
    from rankfall.models.inputs import ImpressionFeatures


class Scorer(nn.Module):
    """Base class of models of embedded features, which can be rebuilt from their description (:func:`from_config`).

    Args:
        features: Features of the impression log that the model is built for.
        dim: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        std: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        only: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        tables: Embedding tables ``(rows, dim)`` by name; see :class:`~rankfall.models.embedding.FeatureEmbedding`.
        sparse: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        options: Options of the model itself, which :meth:`config` returns.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        features: Features,
        *,
        dim: int,
        std: float,
        only: Iterable[str] | None,
        tables: Mapping[str, nn.Embedding] | None,
        sparse: bool | int,
        **options: Any,
    ) -> None:
        super().__init__()
        only = list(only) if only is not None and not isinstance(only, str) else only
        self.features = features
        self.embedding = FeatureEmbedding(features, dim=dim, std=std, only=only, tables=tables, sparse=sparse)
        if not self.embedding.item_features:
            raise ValueError(f"{type(self).__name__} needs at least one item feature to rank items")
        self._options = {"dim": dim, "std": std, **options, "only": only, "sparse": sparse}

    def config(self) -> dict[str, Any]:
        """Return the kind and the options of the model as JSON values, without the features it was built for."""
        return {"kind": self.kind, **self._options}


class GradeScorer(Scorer):
    """Base class of models that put out one number per item, or one logit per label grade.

    Args:
        features: Features of the impression log that the model is built for.
        grades: Number of label grades, at least 2, for one logit per grade. The score of an item is its expected grade.
            None for one output, the score.
        options: Options of :class:`Scorer`.
    """

    def __init__(self, features: Features, *, grades: int | None, **options: Any) -> None:
        super().__init__(features, grades=grades, **options)
        if grades is not None:
            check_count("grades", grades, least=2, most=WIDEST)
        self.grades = grades

    def outputs(self, batch: ImpressionFeatures) -> Float[Tensor, "batch n outputs"]:
        """Return the outputs ``(B, N, 1)``, or the logits ``(B, N, grades)``, of the items of a batch."""
        raise NotImplementedError

    def forward(self, batch: ImpressionFeatures) -> Float[Tensor, "batch n"]:
        """Return the scores ``(B, N)`` of the items of a batch."""
        outputs = self.outputs(batch)
        if self.grades is None:
            return outputs.squeeze(-1)
        return (outputs.softmax(-1) * torch.arange(self.grades, device=outputs.device)).sum(-1)
