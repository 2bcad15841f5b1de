"""Enlarge the embedding tables of a cascade, and the state of its optimizer, for a log whose vocabularies have grown.

New rows start as row 1, that of values never seen, so that scores do not change before they are trained. The state of
an optimizer starts at 0 for them. All other numbers stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rankfall.models import Scorer
from rankfall.models.build import describe_model
from rankfall.models.embedding import FeatureEmbedding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from rankfall.cascade import Cascade
    from rankfall.training.build_cascade import Optimizers


def rows_of(cascade: Cascade) -> dict[str, int]:
    """Return the rows of each embedding table of the log that a cascade was built for, or has grown to."""
    rows: dict[str, int] = {}
    for model in cascade.models.values():
        described = describe_model(model)
        rows |= {} if described is None else described.features.tables
    return rows


def grow_cascade(cascade: Cascade, rows: Mapping[str, int], optimizer: Optimizers | None = None) -> None:
    """Enlarge embedding tables in place; the parameters stay the same objects.

    Args:
        cascade: The cascade.
        rows: The new numbers of rows by embedding table. Tables that have as many or more are left as they are.
        optimizer: Its optimizer, whose state grows too.

    Raises:
        ValueError: If a model does not keep its tables where they can be enlarged.
    """
    now = rows_of(cascade)
    larger = {table: count for table, count in rows.items() if count > now.get(table, count)}
    if not larger:
        return
    for name, model in cascade.models.items():
        _grow_model(name, model, larger)
    if optimizer is not None:
        for part in optimizer.parts.values():
            _grow_state(part)


def _grow_model(stage: str, model: nn.Module, rows: Mapping[str, int]) -> None:
    described, embedding = describe_model(model), getattr(model, "embedding", None)
    if described is None or not isinstance(embedding, FeatureEmbedding):
        raise ValueError(
            f"stages: the model of {stage} has no FeatureEmbedding as `embedding`, so it cannot get rows for the new "
            f"values of {', '.join(rows)}; give it one, or prepare the log without --grow"
        )
    features = described.features.with_rows(rows)
    embedding.grow(features)
    if isinstance(model, Scorer):
        model.features = features
    if hasattr(model, "_rankfall_description"):
        object.__setattr__(model, "_rankfall_description", replace(described, features=features))


def _grow_state(optimizer: torch.optim.Optimizer) -> None:
    """Append zeros to the state of parameters that have more rows than before."""
    for weight, state in optimizer.state.items():
        for key, value in state.items():
            if torch.is_tensor(value) and value.ndim == weight.ndim and value.shape[:1] < weight.shape[:1]:
                state[key] = _with_zeros(value, len(weight))


def _with_zeros(value: Tensor, rows: int) -> Tensor:
    return torch.cat([value, value.new_zeros(rows - len(value), *value.shape[1:])])
