"""Baselines of comparisons, which are not trained by gradient descent, beside rankers and cascades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.studies.baselines.configs import BASELINES, BaselineConfig

if TYPE_CHECKING:
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.methods import Method

__all__ = ["BASELINES", "BaselineConfig", "method_of"]


def method_of(config: TrainConfig | BaselineConfig) -> Method[Any, Any]:
    """Return the method of any run of a comparison: a baseline, a ranker or a cascade."""
    # they need torch, without which a configuration can be checked
    from rankfall.studies.baselines.lambdamart import LambdaMART
    from rankfall.studies.baselines.ridge import Ridge
    from rankfall.training import methods

    if isinstance(config, BaselineConfig):
        baselines: dict[str, Any] = {baseline.kind: baseline for baseline in (LambdaMART, Ridge)}
        baseline: Method[Any, Any] = baselines[config.kind](config)
        return baseline
    return methods.method_of(config)
