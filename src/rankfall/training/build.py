"""Build the cascade, the objective and the optimizers of a cascade from its configuration."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from rankfall import objectives, ops, registry
from rankfall._config import ConfigError
from rankfall._errors import RankfallError, did_you_mean
from rankfall.cascade import Cascade, Stage
from rankfall.models.build import build_model, tables_of
from rankfall.ops.inclusion import Operator
from rankfall.training.config.component_checks import TEMPERATURES, read_schedule
from rankfall.training.config.ranker_config import LossConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rankfall.data.impressions.loader import ImpressionLoader
    from rankfall.data.impressions.spec import Features
    from rankfall.objectives import Objective
    from rankfall.registry import Kind
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.sections import OptimizerConfig


@dataclass(frozen=True, eq=False)
class Temperature:
    """A temperature that changes over a training run. Losses and operators hold its tensor `value`."""

    value: Tensor
    start: float
    end: float
    schedule: str

    def set(self, share: float) -> None:
        """Set the temperature for a share of the training run, from 0 to 1."""
        if self.schedule == "linear":
            now = self.start + (self.end - self.start) * share
        else:
            now = self.start * (self.end / self.start) ** share
        self.value.fill_(now)


def scheduled(name: str, value: Any, temperatures: list[Temperature]) -> Any:
    """Return the value of an option. A temperature with a schedule becomes a tensor, and joins the list."""
    if name not in TEMPERATURES or not isinstance(value, dict):
        return value
    schedule = read_schedule(name, value)
    temperature = Temperature(torch.tensor(schedule.start), *schedule)
    temperatures.append(temperature)
    return temperature.value


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
    return LossFunction(partial(component, **options)), temperatures


class LossFunction(nn.Module):
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
            raise TypeError("weight: the loss has no parameter `weight`, so that items cannot have weights")
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
    parts = {name: one.part for name, one in registry.options(kind, component).items()}
    options: dict[str, Any] = {}
    for name, value in given.items():
        part, named = parts.get(name), {"name": value} if isinstance(value, str) else value
        if part is None or value is None:
            options[name] = scheduled(name, value, temperatures)
        elif part == "loss":
            options[name], own = make_loss(LossConfig.model_validate(named))
            temperatures.extend(own)
        else:
            operator = registry.get("operator", named["name"])
            of_part = {key: scheduled(key, one, temperatures) for key, one in named.items() if key != "name"}
            if part == "topk":
                options[name] = ops.topk(operator, **of_part)
            else:
                options[name] = partial(operator, **of_part) if of_part else operator
    return options


_TOLERANCE = 1e-3  # of probabilities that a user's operator returns


# --- models -----------------------------------------------------------------------------------------------------


def make_cascade(config: CascadeConfig, features: Features) -> Cascade:
    """Build the cascade of a configuration, with weights from torch's global generator."""
    for name in config.share:
        if name not in features.tables:
            raise RankfallError(
                f"share: found {name!r}{did_you_mean(name, features.tables)}; the log has {', '.join(features.tables)}"
            )
    shared: dict[str, nn.Embedding] = {}
    stages = []
    for stage in config.stages:
        try:
            model = build_model(stage.model, features, tables=shared)
        except ValueError as error:
            raise RankfallError(f"stages: the model of {stage.name}: {error}") from error
        shared |= {name: table for name, table in tables_of(model).items() if name in config.share}
        stages.append(Stage(stage.name, model, stage.quota))
    return Cascade(stages)


def check_quotas(config: CascadeConfig, loader: ImpressionLoader) -> None:
    """Refuse a stage whose quota is not smaller than the longest list of the loader: it would drop no item."""
    longest = loader.longest_ranked
    for stage in config.stages:
        if stage.quota >= longest:
            raise ConfigError(
                f"stages: {stage.name} has the quota {stage.quota}, but the longest list of "
                f"{', '.join(loader.days)} has {longest} items, so it would drop nothing; expected less than "
                f"{longest}{', or longer lists (data.length)' if loader.can_add_items else ''}"
            )


# --- objectives -------------------------------------------------------------------------------------------------


def check_kept(objective: Objective, loader: ImpressionLoader) -> None:
    """Refuse an objective with a term that keeps all items of every list: it would not learn which items to drop."""
    most = max(objective.kept, default=0)
    if most >= loader.width:
        raise ConfigError(
            f"objective: it keeps {most} items (relevant, objective.quotas), but the longest list of "
            f"{', '.join(loader.days)} has {loader.width} items, so it would drop nothing; expected less than "
            f"{loader.width}{', or longer lists (data.negatives)' if loader.can_add_items else ''}"
        )


BuiltObjective: TypeAlias = "tuple[Objective, list[Temperature]]"
"""An objective, and the temperatures in it that follow a schedule."""


def make_objective(config: CascadeConfig) -> BuiltObjective:
    """Build the objective of a configuration.

    Args:
        config: Configuration in which `min_depth` has numbers in place of the names of logged stages.

    Returns:
        The objective, and the temperatures in it that follow a schedule.

    Raises:
        ConfigError: If the objective refuses its options.
    """
    name = config.objective.name
    component: Any = registry.get("objective", name)
    temperatures: list[Temperature] = []
    try:
        options = make_options("objective", name, config.objective.options, temperatures)
        objective: Objective = component(**_supplied(config, inspect.signature(component).parameters), **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"objective: {error}") from None
    return objective, temperatures


def check_objective(built: BuiltObjective, config: CascadeConfig) -> None:
    """Call an objective on one impression, so that it refuses options that do not fit each other before training.

    Args:
        built: The objective, which may have its number of stages from `objective.quotas`, and its temperatures.
        config: Its configuration.

    Raises:
        ConfigError: If the objective refuses its options, was built for another number of stages, or returns something
            else than numbers by name.
    """
    (objective, temperatures), stages = built, len(config.stages)
    kind = type(objective).__name__
    if not hasattr(objective, "stages"):
        raise ConfigError(f"objective: {kind} has no number of stages, expected super().__init__(stages) in __init__")
    if objective.stages != stages:
        raise ConfigError(f"objective.quotas: found {objective.stages}, expected one for each of {stages} stages")
    for temperature in temperatures:
        temperature.set(0.0)
    scores = [torch.zeros(1, 3, 3) if config.objective.classifies else torch.tensor([[0.0, 1.0, 2.0]])] * stages
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for operator in vars(objective).values():
                if isinstance(operator, Operator) and operator.function is not None:
                    # Training does not check that these are probabilities: a GPU would have to wait for values.
                    found = operator(torch.tensor([[0.0, 1.0, 2.0]]), 1)
                    low, high = float(found.min()), float(found.max())
                    if not (low > -_TOLERANCE and high < 1 + _TOLERANCE):  # also NaN
                        raise RankfallError(
                            f"{operator.name} returned values from {low:.4g} to {high:.4g} for the scores 0, 1, 2 and "
                            "k=1, expected inclusion probabilities from 0 to 1"
                        )
            terms = objective.parts(
                scores,
                torch.tensor([[2.0, 1.0, 0.0]]),
                depth=torch.tensor([[2, 1, 0]]),
                weight=None if config.weight is None else torch.ones(1, 3),
            )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"objective: {error}") from None
    expected = 'expected a dictionary of numbers by name, such as {"stage1/loss": tensor(0.5)}'
    if not isinstance(terms, dict) or not terms:
        what = "an empty dictionary" if isinstance(terms, dict) else type(terms).__name__
        raise ConfigError(f"objective: {kind}.terms returned {what}, {expected}")
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.shape != ():
            what = f"the shape {tuple(term.shape)}" if isinstance(term, Tensor) else type(term).__name__
            raise ConfigError(f"objective: {kind}.terms returned {what} as {name!r}, {expected}")


def with_depths(config: CascadeConfig, stages: Sequence[str] | None) -> CascadeConfig:
    """Return the configuration with numbers instead of names of the log's stages in `min_depth`.

    Args:
        config: The configuration.
        stages: Names of the stages of the log. None: every name is replaced by 0, for checks without a log.
    """

    def depth(where: str, value: Any) -> Any:
        if isinstance(value, list):
            return [depth(f"{where}.{place}", one) for place, one in enumerate(value)]
        if not isinstance(value, str) or stages is None:
            return 0 if isinstance(value, str) else value
        if value not in stages:
            raise ConfigError(
                f"{where}: found {value!r}{did_you_mean(value, stages)}; the log's stages are {', '.join(stages)}"
            )
        return stages.index(value)

    objective, own = config.objective, config.objective.options.get("min_depth")
    if own is not None:
        objective = objective.model_copy(update={"min_depth": depth("objective.min_depth", own)})
    changed = [
        stage.model_copy(update={"min_depth": depth(f"stages.{place}.min_depth", stage.min_depth)})
        for place, stage in enumerate(config.stages)
    ]
    return config.model_copy(update={"stages": changed, "objective": objective})


def _supplied(config: CascadeConfig, allowed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an objective that other sections of the configuration supply."""
    quotas = [stage.quota for stage in config.stages]
    depths = [stage.min_depth for stage in config.stages]
    supplied: dict[str, Any] = {"relevant": config.relevant, "stages": len(quotas)}
    if config.objective.name != "lcron":  # its training quotas are options of their own (LCR 5.1)
        supplied["quotas"] = quotas
    if any(depth is not None for depth in depths):
        defaults = objectives.BCE(relevant=1, stages=len(depths)).min_depth
        supplied["min_depth"] = [a if b is None else b for a, b in zip(defaults, depths, strict=True)]
    return {key: value for key, value in supplied.items() if key in allowed and key not in config.objective.options}


# --- optimizers -------------------------------------------------------------------------------------------------


_SPARSE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.SparseAdam,
    "adagrad": torch.optim.Adagrad,
}


class Optimizers:
    """An optimizer for tables with sparse gradients and one for all other weights, with the interface of one."""

    def __init__(self, config: OptimizerConfig, model: nn.Module, loss: nn.Module) -> None:
        tables = (module for module in model.modules() if isinstance(module, nn.Embedding))  # each once, also if shared
        sparse = [table.weight for table in tables if table.sparse]
        chosen = {id(parameter) for parameter in sparse}
        dense = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
        self.parts: dict[str, torch.optim.Optimizer] = {"dense": make_optimizer(config, dense, loss.parameters())}
        if sparse:
            if config.name not in _SPARSE_OPTIMIZERS or config.weight_decay:
                raise RankfallError(
                    f"optimizer: found {config.name} with weight_decay {config.weight_decay:g}, but tables with "
                    f"sparse gradients are trained by plain {' or '.join(_SPARSE_OPTIMIZERS)}"
                )
            make: Any = _SPARSE_OPTIMIZERS[config.name]
            self.parts["sparse"] = make(sparse, lr=config.lr)

    def zero_grad(self) -> None:
        """Reset all gradients."""
        for part in self.parts.values():
            part.zero_grad()

    def step(self) -> None:
        """Update all weights."""
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # torch warns unless this is chosen
            for part in self.parts.values():
                part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each optimizer by name."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of each optimizer."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


_TEMPERATURES = ("tau", "temperature")


def divergence_hints(optimizer: OptimizerConfig, section: str, options: Mapping[str, Any]) -> list[str]:
    """Return changes to try, the most promising first.

    Args:
        optimizer: Section of the configuration.
        section: ``"loss"`` or ``"objective"``.
        options: Options of the loss or objective.
    """
    clip = optimizer.clip
    return [
        f"a smaller optimizer.lr than {optimizer.lr:g}",
        "optimizer.clip=1" if clip is None else f"a smaller optimizer.clip than {clip:g}",
        *temperature_hints(section, options),
    ]


def temperature_hints(section: str, options: Mapping[str, Any]) -> list[str]:
    """Return larger temperatures to try.

    Args:
        section: ``"loss"`` or ``"objective"``.
        options: Options of the loss or objective.
    """
    return [f"a larger {key} than {value:g}" for key, value in _temperatures(section, options)]


def _temperatures(place: str, options: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the given temperatures by key; the final one of a schedule."""
    found = []
    for key, value in options.items():
        if isinstance(value, dict) and not (key in _TEMPERATURES and "end" in value):
            found += _temperatures(f"{place}.{key}", value)
        elif key in _TEMPERATURES and value is not None:
            found.append((f"{place}.{key}.end", value["end"]) if isinstance(value, dict) else (f"{place}.{key}", value))
    return found
