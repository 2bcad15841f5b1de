"""Changes to the configuration of a finished run that decide how it is measured, and not what was trained."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rankfall._yaml_config import ConfigError, leaves, shown
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.cascade_metric_names import JOINT
from rankfall.training.config.load_config import validate_any
from rankfall.training.config.overrides import apply_overrides, set_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.training.config.load_config import TrainConfig

_OF_DATA = ("data.path", "data.train", "data.valid", "data.test")
_OF_CASCADES = (
    *_OF_DATA,
    "data.length",
    "data.length_from",
    "relevant",
    "stages.N.quota",
    "stage_metrics",
    "feedback",
    "training.batch",
    "training.device",
)
_OF_RANKERS = (*_OF_DATA, "metrics", "training.device")


def with_evaluation_overrides(config: TrainConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return the configuration of a run with ``key=value`` overrides of what an evaluation measures.

    Args:
        config: Configuration of the run, which is not changed.
        overrides: Strings such as ``"data.length=all"`` or ``"stages.0.quota=50"``.

    Raises:
        ConfigError: If an override is wrong, or would change what was trained. The message names every such key.
    """
    if not overrides:
        return config
    before = config.model_dump(mode="json")
    content = apply_overrides(before, overrides)
    is_cascade = isinstance(config, CascadeConfig)
    # The metric of early stopping has been used, and need not be measured again.
    measured = set_option(content, "training.metric", JOINT) if is_cascade else content
    changed = validate_any(measured, where="override")
    allowed = _OF_CASCADES if is_cascade else _OF_RANKERS
    old, new = leaves(before), leaves(content)
    refused = [key for key in {**old, **new} if old.get(key) != new.get(key) and not _is_allowed(key, allowed)]
    if refused:
        found = ", ".join(f"{key}={shown(new.get(key))}" for key in refused)
        raise ConfigError(
            f"override: found {found}, but the run was trained with another value; an evaluation can change "
            f"{', '.join(allowed)}"
        )
    return changed


def _is_allowed(key: str, allowed: Sequence[str]) -> bool:
    general = re.sub(r"^stages\.\d+\.", "stages.N.", key)
    return any(general == name or general.startswith(f"{name}.") for name in allowed)
