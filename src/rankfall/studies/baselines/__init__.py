"""Baselines of comparisons, which are not trained by gradient descent, beside rankers and cascades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.studies.baselines.baseline import Baseline, BaselineConfig
from rankfall.studies.baselines.lambdamart import LambdaMART
from rankfall.studies.baselines.ridge import Ridge
from rankfall.training import methods

if TYPE_CHECKING:
    from rankfall.training.config.load_config import TrainConfig

__all__ = ["BASELINES", "Baseline", "BaselineConfig", "method_of"]

BASELINES: dict[str, type[Baseline[Any]]] = {baseline.kind: baseline for baseline in (LambdaMART, Ridge)}


def method_of(config: TrainConfig | BaselineConfig) -> methods.Method[Any, Any]:
    """Return the method of any run of a comparison: a baseline, a ranker or a cascade."""
    if isinstance(config, BaselineConfig):
        return BASELINES[config.kind](config)
    return methods.method_of(config)
