"""Baselines of comparisons, which are not trained by gradient descent, beside rankers and cascades.

Their configurations, which are validated without importing torch; :mod:`rankfall.studies.baselines.fitted` fits them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from rankfall._config import MAX_COUNT, Section
from rankfall.training.config.ranker_config import DataConfig, MetricName
from rankfall.training.config.sections import Count

if TYPE_CHECKING:
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.methods import Method


class BaselineConfig(Section):
    """Configuration of a baseline; its own options follow in subclasses.

    Attributes:
        tunes_itself: Whether the baseline chooses its settings on the validation data by itself.
    """

    tunes_itself: ClassVar[bool] = False

    kind: str
    data: DataConfig
    metric: MetricName
    metrics: list[MetricName]


class TreesConfig(BaselineConfig):
    """LightGBM's LambdaMART (Burges 2010; Ke et al. 2017); names and defaults are LightGBM's.

    Attributes:
        n_estimators: Trees, at most.
        patience: Trees without a better validation before stopping.
    """

    kind: Literal["lightgbm"] = "lightgbm"
    seed: int
    num_leaves: Annotated[int, Field(ge=2, le=131072)] = 31  # the limit of LightGBM
    learning_rate: float = Field(default=0.1, gt=0)
    n_estimators: Count = 500
    patience: Count | None = 50
    min_data_in_leaf: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 20
    lambda_l2: float = Field(default=0.0, ge=0)
    feature_fraction: float = Field(default=1.0, gt=0, le=1)
    bagging_fraction: float = Field(default=1.0, gt=0, le=1)
    lambdarank_truncation_level: Count = 30


class RidgeConfig(BaselineConfig):
    """Linear regression of the labels with a squared penalty, in closed form.

    Attributes:
        alphas: Weights of the penalty, of which validation chooses one.
    """

    tunes_itself: ClassVar[bool] = True

    kind: Literal["ridge"] = "ridge"
    alphas: list[Annotated[float, Field(gt=0)]] = Field(default=[0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0], min_length=1)


BASELINES: dict[str, type[BaselineConfig]] = {
    config.model_fields["kind"].default: config for config in (TreesConfig, RidgeConfig)
}
"""Configurations of the baselines by kind."""


def method_of(config: TrainConfig | BaselineConfig) -> Method[Any, Any]:
    """Return the method of any run of a comparison: a baseline, a ranker or a cascade."""
    # they need torch, without which a configuration can be checked
    from rankfall.studies.baselines.fitted import METHODS
    from rankfall.training import methods

    return METHODS[config.kind](config) if isinstance(config, BaselineConfig) else methods.method_of(config)
