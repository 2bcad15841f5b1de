"""A configuration with every default of its models, loss or objective written out (``rankfall config show``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.registry import config_value, explicit_operator, options, written_default
from rankfall.training.build_cascade import make_objective, try_depths
from rankfall.training.config.ranker_config import OwnModelConfig

if TYPE_CHECKING:
    from rankfall.registry import Kind
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.ranker_config import RankerConfig


def ranker_with_defaults(config: RankerConfig) -> dict[str, Any]:
    """Return the content of a ranker's configuration with every option of its loss and of its own model written out."""
    content = config.model_dump(mode="json")
    content["loss"] = _fill(content["loss"], _defaults("loss", config.loss.name))
    if isinstance(config.model, OwnModelConfig):
        content["model"] = _fill(content["model"], _defaults("model", config.model.kind))
    return content


def cascade_with_defaults(config: CascadeConfig) -> dict[str, Any]:
    """Return the content of a cascade's configuration with every option of its models and objective written out."""
    content = config.model_dump(mode="json")
    for stage in content["stages"]:
        stage["model"] = _fill(stage["model"], _defaults("model", stage["model"]["kind"]))
    content["objective"] = _fill(content["objective"], _objective_defaults(config))
    return content


def _fill(section: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    filled = section | {name: default for name, default in defaults.items() if name not in section}
    return filled | ({"topk": explicit_operator(filled["topk"])} if filled.get("topk") else {})


def _defaults(kind: Kind, name: str) -> dict[str, Any]:
    """Return the defaults of a component, except objects of users that no configuration can write."""
    defaults = {one.name: written_default(one) for one in options(kind, name).values() if not one.required}
    return {option: default for option, default in defaults.items() if _is_plain(default)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(one) for one in value.values())
    if isinstance(value, list):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str)


def _objective_defaults(config: CascadeConfig) -> dict[str, Any]:
    """Return the defaults, with the value that the objective derives from a default of None.

    Options whose values the stages define are left out.
    """
    objective, _ = make_objective(try_depths(config))
    defined_by_stages = {"quotas"} if config.objective.name != "lcron" else set()
    if any(stage.min_depth is not None for stage in config.stages):
        defined_by_stages.add("min_depth")
    return {
        name: config_value(getattr(objective, name, None)) if default is None else default
        for name, default in _defaults("objective", config.objective.name).items()
        if name not in defined_by_stages
    }
