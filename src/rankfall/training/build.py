"""From a configuration's words to the model, the loss and the optimizer they mean."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankfall import losses, ops
from rankfall._suggest import did_you_mean
from rankfall.models import MLP, FeatureScaling, Linear
from rankfall.training.config.ranker_config import LinearConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from rankfall.training.config.ranker_config import LossConfig, MLPConfig
    from rankfall.training.config.sections import OptimizerConfig

SORTS = ("neural_sort", "soft_sort", "diff_sort", "pirank_sort")
GIVEN_BY_THE_LOOP = {"mask", "weight", "reduction", "generator"}
TRAINED: dict[str, Callable[..., nn.Module]] = {"arf": losses.ARFLoss, "arf_v2": losses.ARFv2Loss}
_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


class Ranker(nn.Module):
    """Raw features of documents ``(rows, features)`` to scores ``(rows,)``, or logits ``(rows, grades)``."""

    def __init__(self, scaling: FeatureScaling, network: nn.Module, grades: int | None) -> None:
        super().__init__()
        self.scaling = scaling
        self.network = network
        self.grades = grades

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.network(self.scaling(features))
        return output

    def score(self, features: Tensor | NDArray[Any]) -> Tensor:
        """Scores ``(rows,)`` to rank by: of logits, the expected grade. Features ``(rows, features)`` as prepared."""
        if not isinstance(features, Tensor):
            features = torch.tensor(features)
        expected = len(self.scaling.mean)
        if features.shape[-1] != expected:
            raise ValueError(f"features must have {expected} columns, got {features.shape[-1]}")
        output = self(features)
        return losses.expected_grade(output) if self.grades else output


def make_ranker(config: MLPConfig | LinearConfig, scaling: FeatureScaling, grades: int | None) -> Ranker:
    """The model of a configuration, its weights drawn from torch's global generator."""
    features = len(scaling.mean)
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
        grades=grades,
    )
    return Ranker(scaling, network, grades)


def classifies(config: LossConfig) -> bool:
    """Whether the loss takes logits of the label grades instead of scores."""
    return config.name == "grade_softmax_loss"


def make_loss(config: LossConfig) -> nn.Module:
    """The loss module of a configuration, to be called with scores, labels and mask."""
    options = {name: make_option(name, value) for name, value in config.options.items()}
    if config.name in TRAINED:
        return TRAINED[config.name](**options)
    return _LossFunction(partial(getattr(losses, config.name), **options))


class _LossFunction(nn.Module):
    """A loss function as a module, which those that hold a trained weight are already."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
        return self.function(scores, labels, mask=mask)


def check_loss(config: LossConfig) -> None:
    """Refuse options that the loss does not have, or that it refuses when it sees a list."""
    signature = inspect.signature(TRAINED.get(config.name) or getattr(losses, config.name))
    options = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in GIVEN_BY_THE_LOOP
    }
    for name in config.options:
        if name not in options:
            allowed = ", ".join(options) or "none"
            hint = did_you_mean(name, list(options))
            raise ValueError(f"{config.name} has no option {name!r}{hint}; its options are {allowed}")
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in config.options:
            raise ValueError(f"{config.name} needs the option {name!r}")
    scores = torch.zeros(1, 3, 2) if classifies(config) else torch.tensor([[0.0, 1.0, 2.0]])
    try:
        make_loss(config)(scores, torch.tensor([[1.0, 0.0, 0.0]]), mask=torch.ones(1, 3, dtype=torch.bool))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{config.name} refuses its options: {error}") from None


def make_optimizer(
    config: OptimizerConfig, model: Iterable[nn.Parameter], loss: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of a configuration. What a loss trains is a balance, which must not decay to 0."""
    groups: list[dict[str, Any]] = [
        {"params": list(model), "weight_decay": config.weight_decay},
        {"params": list(loss), "weight_decay": 0.0},
    ]
    make: Any = _OPTIMIZERS[config.name]
    # in one pass over the weights: a fifth of the time on a CPU
    options = {"fused": True} if config.name in ("adam", "adamw") else {}
    optimizer: torch.optim.Optimizer = make([group for group in groups if group["params"]], lr=config.lr, **options)
    return optimizer


def clip_gradients(parameters: Iterable[Tensor], most: float | None) -> Tensor:
    """The norm of the gradients of all parameters together, which are then scaled to have at most this one.

    Of a sparse gradient only what it holds is looked at.
    """
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # or a row that was met twice would count as two
        found.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    norm = nn.utils.get_total_norm(found)
    if most is not None:
        torch._foreach_mul_(found, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm


def make_option(name: str, value: Any, made: Callable[[str, Any], Any] = lambda name, value: value) -> Any:
    """What an option of a loss or an objective means: an operator, if it is `sort` or `topk`, else what `made` says.

    `made` is also asked what the operator's own options mean.
    """
    if name not in ("sort", "topk") or value is None:
        return made(name, value)
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"{name} must be an operator's name or {{name: ..., its options}}, got {value!r}")
    operator, options = value["name"], {key: made(key, option) for key, option in value.items() if key != "name"}
    if name == "topk":
        return ops.topk(operator, **options)
    if operator not in SORTS:
        raise ValueError(f"sort must be one of {', '.join(SORTS)}, got {operator!r}{did_you_mean(operator, SORTS)}")
    return partial(getattr(ops, operator), **options) if options else getattr(ops, operator)
