"""Build losses, operators and optimizers from their configurations."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rankfall import ops, registry
from rankfall._yaml_config import ConfigError
from rankfall.training.config.ranker_config import LossConfig
from rankfall.training.temperatures import scheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rankfall.registry import Kind
    from rankfall.registry.signatures import Part
    from rankfall.training.config.sections import OptimizerConfig
    from rankfall.training.temperatures import Temperature

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


def classifies(config: LossConfig) -> bool:
    """Return whether the loss takes logits of the label grades instead of scores: one with a parameter `logits`."""
    if registry.is_builtin("loss", config.name):
        return config.name == "grade_softmax_loss"
    return "logits" in inspect.signature(registry.get("loss", config.name)).parameters


def make_loss(config: LossConfig) -> tuple[nn.Module, list[Temperature]]:
    """Build the loss of a configuration.

    Returns:
        A module called with scores, labels and mask, and the temperatures in it that follow a schedule.

    Raises:
        ConfigError: If the loss refuses its options.
    """
    component = registry.get("loss", config.name)
    temperatures: list[Temperature] = []
    try:
        options = make_options("loss", config.name, config.options, temperatures)
        if inspect.isclass(component):
            return cast("nn.Module", component(**options)), temperatures
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loss: {config.name} refuses its options: {error}") from None
    return _LossFunction(partial(component, **options)), temperatures


class _LossFunction(nn.Module):
    """A loss function as a module. Losses with trained weights are modules already."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        parameters = inspect.signature(function).parameters.values()
        self.takes_weight = any(one.name == "weight" or one.kind is one.VAR_KEYWORD for one in parameters)

    def forward(self, scores: Tensor, labels: Tensor, *, mask: Tensor, weight: Tensor | None = None) -> Tensor:
        if weight is None:
            return self.function(scores, labels, mask=mask)
        if not self.takes_weight:
            raise ValueError("weight: the loss has no parameter `weight`, so that items cannot have weights")
        return self.function(scores, labels, mask=mask, weight=weight)


def check_loss(loss: nn.Module, config: LossConfig) -> None:
    """Call a loss on one list, so that it refuses options that do not fit each other before any data are read."""
    scores = torch.zeros(1, 3, 2) if classifies(config) else torch.tensor([[0.0, 1.0, 2.0]])
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            value = loss(scores, torch.tensor([[1.0, 0.0, 0.0]]), mask=torch.ones(1, 3, dtype=torch.bool))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loss: {config.name} refuses its options: {error}") from None
    if not isinstance(value, Tensor) or value.shape != ():
        found = f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"loss: {config.name} returned {found}, expected one number, the mean over the lists")


def make_optimizer(
    config: OptimizerConfig, model: Iterable[nn.Parameter], loss: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Build the optimizer of a configuration. Weights of a loss are balances, which must not decay to 0."""
    groups: list[dict[str, Any]] = [
        {"params": list(model), "weight_decay": config.weight_decay},
        {"params": list(loss), "weight_decay": 0.0},
    ]
    make: Any = _OPTIMIZERS[config.name]
    # fused: one pass over the weights, a fifth of the time on a CPU
    options = {"fused": True} if config.name in ("adam", "adamw") else {}
    optimizer: torch.optim.Optimizer = make([group for group in groups if group["params"]], lr=config.lr, **options)
    return optimizer


def make_options(
    kind: Kind, component: str, given: Mapping[str, Any], temperatures: list[Temperature]
) -> dict[str, Any]:
    """Return the Python values of the options of a loss or objective.

    Options that are annotated as operators or losses become these; temperatures with a schedule become tensors.

    Args:
        kind: Kind of the component.
        component: Its name in the configuration.
        given: Options in the configuration.
        temperatures: List to which temperatures with a schedule are added, also those of operators and losses.
    """
    known = registry.options(kind, component)
    parts = {name: one.part for name, one in known.items()}
    return {name: _make_option(name, parts.get(name), value, temperatures) for name, value in given.items()}


def _make_option(name: str, part: Part | None, value: Any, temperatures: list[Temperature]) -> Any:
    if part is None or value is None:
        return scheduled(name, value, temperatures)
    given = {"name": value} if isinstance(value, str) else value
    if part == "loss":
        loss, own = make_loss(LossConfig.model_validate(given))
        temperatures.extend(own)
        return loss
    options = {key: scheduled(key, option, temperatures) for key, option in given.items() if key != "name"}
    operator = registry.get("operator", given["name"])
    if part == "topk":
        return ops.topk(operator, **options)
    return partial(operator, **options) if options else operator
