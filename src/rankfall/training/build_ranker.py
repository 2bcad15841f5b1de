"""`Ranker`, the model of a ranker with its feature scaling, and its construction from a configuration."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankfall import losses, registry
from rankfall._yaml_config import ConfigError
from rankfall.models import MLP, FeatureScaling, Linear
from rankfall.training.config.ranker_config import LinearConfig, OwnModelConfig
from rankfall.training.model_checks import check_network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.training.config.ranker_config import MLPConfig


class Ranker(nn.Module):
    """Map features of documents ``(rows, features)`` to scores ``(rows,)``, or to logits ``(rows, grades)``."""

    def __init__(self, scaling: FeatureScaling, network: nn.Module, grades: int | None) -> None:
        super().__init__()
        self.scaling = scaling
        self.network = network
        self.grades = grades

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.network(self.scaling(features))
        return output

    def score(self, features: Tensor | NDArray[Any]) -> Tensor:
        """Return scores ``(rows,)`` to rank by; with logits, the expected grade.

        Args:
            features: Features as prepared, ``(rows, features)``.
        """
        if not isinstance(features, Tensor):
            features = torch.tensor(features)
        expected = len(self.scaling.mean)
        if features.shape[-1] != expected:
            raise ValueError(f"features must have {expected} columns, got {features.shape[-1]}")
        output = self(features)
        return losses.expected_grade(output) if self.grades else output


def make_ranker(
    config: MLPConfig | LinearConfig | OwnModelConfig, scaling: FeatureScaling, grades: int | None
) -> Ranker:
    """Build the model of a configuration, with weights from torch's global generator.

    Raises:
        ConfigError: If the model of a user refuses its options, or returns anything but scores.
    """
    features = len(scaling.mean)
    if isinstance(config, OwnModelConfig):
        return Ranker(scaling, _own_network(config, features, grades), grades)
    if isinstance(config, LinearConfig):
        return Ranker(scaling, Linear(features, grades=grades), grades)
    network = MLP(
        features,
        config.hidden,
        activation=config.activation,
        batch_norm=config.batch_norm,
        norm_momentum=config.norm_momentum,
        dropout=config.dropout[0] if len(config.dropout) == 1 else config.dropout,
        residual=config.residual,
        init=config.init,
        grades=grades,
    )
    return Ranker(scaling, network, grades)


def _own_network(config: OwnModelConfig, features: int, grades: int | None) -> nn.Module:
    component = registry.get("model", config.kind)
    takes_grades = "grades" in inspect.signature(component).parameters
    if grades is not None and not takes_grades:
        raise ConfigError(
            f"model: the loss takes one logit per label grade, but {config.kind} has no parameter `grades` for their "
            "number; add it, or choose a loss of scores"
        )
    supplied = {"grades": grades} if takes_grades and "grades" not in config.options else {}
    try:
        network: Any = component(features, **supplied, **config.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model: {config.kind} refuses its options: {error}") from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model: {config.kind} built {type(network).__name__}, expected a torch.nn.Module")
    check_network(network, config.kind, features, grades)
    return network
