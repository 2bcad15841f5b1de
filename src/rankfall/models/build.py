"""Build models by the names that configurations use, and describe them so that they can be built again.

A model of a user is any module class that takes the features of a log and options, ``(features, **options)``. It may
take ``tables`` and have a :class:`~rankfall.models.embedding.FeatureEmbedding` as ``embedding``; then it can share
embedding tables with other stages.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

from rankfall import registry
from rankfall._errors import RankfallError
from rankfall.models import KINDS, Scorer, from_config
from rankfall.models.embedding import FeatureEmbedding
from rankfall.models.scorers import TwoTower
from rankfall.registry.references import source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.data.impressions.spec import Features


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What is needed to build a model again, besides its weights.

    Attributes:
        config: Kind and options of the model.
        features: Features of the log that it was built for.
        source: The code of the model: file and hash. None for the models of :mod:`rankfall.models`.
    """

    config: dict[str, Any]
    features: Features
    source: dict[str, str] | None = None


def build_model(
    config: Mapping[str, Any], features: Features, *, tables: Mapping[str, nn.Embedding] | None = None
) -> nn.Module:
    """Build a model: one of :mod:`rankfall.models`, or one that the configuration names by a reference.

    Args:
        config: Kind and options of the model, such as ``{"kind": "my_models:Tower", "width": 64}``.
        features: Features of the impression log that the model is built for.
        tables: Embedding tables ``(rows, dim)`` by name that are used instead of new ones, if the model takes them.

    Raises:
        ValueError: If there is no such model, or it refuses its options.
    """
    kind = config.get("kind")
    if kind in KINDS:
        return from_config(config, features, tables=tables)
    if not isinstance(kind, str):
        raise RankfallError(f"kind: found {kind!r}, expected the name of a model")
    component = registry.get("model", kind)
    options = {name: value for name, value in config.items() if name != "kind"}
    supplied = {"tables": tables} if "tables" in inspect.signature(component).parameters else {}
    try:
        model = component(features, **supplied, **options)
    except (TypeError, ValueError) as error:
        raise RankfallError(f"{kind} refuses its options: {error}") from error
    if not isinstance(model, nn.Module):
        raise RankfallError(f"{kind} built {type(model).__name__}, expected a torch.nn.Module")
    source = source_of("model", kind)
    described = ModelDescription(dict(config), features, None if source is None else asdict(source))
    object.__setattr__(model, "_rankfall_description", described)  # no module, buffer or weight
    return model


def describe_model(model: nn.Module) -> ModelDescription | None:
    """Return what is needed to build a model again, or None for one that no configuration describes."""
    described: ModelDescription | None = getattr(model, "_rankfall_description", None)
    if described is None and isinstance(model, Scorer):
        return ModelDescription(model.config(), model.features)
    return described


def is_own(model: nn.Module) -> bool:
    """Return whether a model is that of a user, not one of :mod:`rankfall.models`."""
    return not isinstance(model, Scorer) or type(model) not in KINDS.values()


def has_vectors(model: nn.Module) -> TypeGuard[TwoTower]:
    """Return whether the scores of a model are dot products of its vectors of requests and of items."""
    return isinstance(model, TwoTower) and type(model).forward is TwoTower.forward


def tables_of(model: nn.Module) -> dict[str, nn.Embedding]:
    """Return the embedding tables that a model can share with others, by name."""
    embedding = getattr(model, "embedding", None)
    return embedding.tables if isinstance(embedding, FeatureEmbedding) else {}
