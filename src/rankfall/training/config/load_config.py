"""Read and validate the configuration of a training run, of a ranker or of a cascade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from rankfall._yaml_config import ConfigError, read_source
from rankfall.training.config.cascade_config import CascadeConfig, validate_cascade
from rankfall.training.config.overrides import apply_overrides
from rankfall.training.config.ranker_config import RankerConfig, validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall._yaml_config import ConfigLike

TrainConfig: TypeAlias = RankerConfig | CascadeConfig
"""The configuration of a training run. :func:`rankfall.training.methods.method_of` gives what callers need of it."""

# Keys that only other kinds of files have, and what these files are.
_OTHER_FILES = {
    "methods": "a comparison, for 'rankfall compare', or a stream, for 'rankfall stream'",
    "search": "a search, for 'rankfall tune'",
}


def load_config(path: ConfigLike, overrides: Sequence[str] = ()) -> TrainConfig:
    """Load the configuration of a training run.

    Args:
        path: YAML file, or its content. With ``stages`` it configures a cascade, without a ranker.
        overrides: ``key=value`` strings that replace values of the file, such as ``"loss.tau=0.5"``.

    Raises:
        ConfigError: If the file cannot be read or a key or value is wrong. The message names every wrong key.
    """
    found, where = read_source(path)
    content = apply_overrides(found, overrides)
    for key, what in _OTHER_FILES.items():
        if key in content:
            raise ConfigError(
                f"{where} is {what}: it has the key {key}. Expected the configuration of one training run"
            )
    return validate_any(content, where=where)


def validate_any(content: Mapping[str, Any], *, where: str = "config") -> TrainConfig:
    """Validate a mapping as the configuration of a cascade if it has ``stages``, else of a ranker.

    Args:
        content: The mapping.
        where: Prefix of error messages, such as the path of the file.

    Raises:
        ConfigError: If a key or value is wrong.
    """
    return validate_cascade(content, where=where) if "stages" in content else validate(content, where=where)
