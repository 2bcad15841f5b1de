"""Base class of the models that score impressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from rankfall.models.embedding import FeatureEmbedding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankfall.data.impressions.spec import Features

# Defaults of options that were added later. Descriptions leave them out, so that files stay as they were.
_LATER: dict[str, Any] = {"norm_momentum": 0.1, "init": "default"}


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
        described = {name: value for name, value in options.items() if name not in _LATER or _LATER[name] != value}
        self._options = {"dim": dim, "std": std, **described, "only": only, "sparse": sparse}

    def config(self) -> dict[str, Any]:
        """Return the kind and the options of the model as JSON values, without the features it was built for."""
        return {"kind": self.kind, **self._options}
