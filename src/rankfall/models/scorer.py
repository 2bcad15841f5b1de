"""What the models that score impressions have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from rankfall.models.embedding import FeatureEmbedding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankfall.data.impressions.spec import Features


class Scorer(nn.Module):
    """A model of embedded features that can say how to build it again (:func:`rankfall.models.from_config`).

    `dim`, `std`, `only`, `tables` and `sparse` are those of :class:`~rankfall.models.embedding.FeatureEmbedding`;
    `options` are those of the model itself.
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
            raise ValueError(f"{type(self).__name__} needs a feature of the items, without one it cannot rank them")
        self._options = {"dim": dim, "std": std, **options, "only": only, "sparse": sparse}

    def config(self) -> dict[str, Any]:
        """The model's kind and options, as JSON allows; the features it was built for are not among them."""
        return {"kind": self.kind, **self._options}
