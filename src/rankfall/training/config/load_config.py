"""Read and validate the configuration of a training run, of a ranker or of a cascade."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rankfall._config import ConfigError, Section, leaves, parse_yaml, read_source, shown, to_yaml
from rankfall._yaml_reader import MAX_DEPTH
from rankfall.registry.references import absolute, absolute_references, is_file_reference
from rankfall.training.config.cascade_config import CascadeConfig, validate_cascade
from rankfall.training.config.component_checks import JOINT, absolute_metric
from rankfall.training.config.ranker_config import RankerConfig, validate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankfall._config import ConfigLike


# Keys that name a component, whose options are the neighbouring keys; and the default of the key.
_CHOOSERS = {"loss.name": None, "model.kind": "mlp", "objective.name": None}


def apply_overrides(content: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of a configuration's mapping with ``key.key=value`` overrides applied.

    Args:
        content: The mapping, which is not changed.
        overrides: Strings such as ``"loss.tau=0.5"`` or ``"data.train=[S1, S2]"``. Values are YAML.

    Raises:
        ConfigError: If an override has no key or no value, or its key leads into a plain value.
    """
    changed = dict(content)
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"override: found {shown(word)}, expected key=value such as loss.tau=0.5")
        if key.count(".") >= MAX_DEPTH:
            raise ConfigError(f"override: found a key of {key.count('.') + 1} parts, expected at most {MAX_DEPTH}")
        changed = set_option(changed, key, parse_yaml(text, f"override {shown(word)}"))
    return changed


def set_option(content: Mapping[str, Any], key: str, value: object, *, where: str = "override") -> dict[str, Any]:
    """Return a copy in which a dotted key has a value. ``model.hidden.0`` is the first element of a list.

    Args:
        content: The mapping, which is not changed.
        key: The dotted key.
        value: Its value.
        where: Prefix of error messages.

    Raises:
        ConfigError: If the key leads into a plain value, or beyond the end of a list.

    >>> set_option({"loss": {"name": "relax_loss", "m": 20}}, "loss.m", 5)
    {'loss': {'name': 'relax_loss', 'm': 5}}
    """
    changed = copy.deepcopy(dict(content))
    *parents, last = key.split(".")
    place: Any = changed
    for depth, part in enumerate(parents):
        place = _enter(place, part, ".".join(parents[:depth]), where)
    if _names_another(place, key, value):
        place.clear()
    if isinstance(place, list):
        place[_position(place, last, ".".join(parents), where)] = value
    else:
        place[last] = value
    return changed


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` with `changes` merged into its sections.

    Naming another loss, objective or model drops the options of the old one.

    >>> merge({"loss": {"name": "relax_loss", "m": 20}}, {"loss": {"name": "softmax_loss"}})
    {'loss': {'name': 'softmax_loss'}}
    """
    return _merge(base, changes, "")


def dump_absolute(config: Section) -> str:
    """Return a configuration as YAML with absolute paths."""
    return to_yaml(with_absolute_path(config.model_dump(mode="json")))


def with_absolute_path(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration's mapping with absolute paths of data, runs, curves and code."""
    changed = set_option(absolute_references(dict(content)), "data.path", str(Path(content["data"]["path"]).absolute()))
    weight = content.get("weight")
    curve = weight.get("examination") if isinstance(weight, dict) else None
    if curve:
        changed = set_option(changed, "weight.examination", str(Path(curve).absolute()))
    training = content.get("training") or {}
    if training.get("start_from"):
        changed = set_option(changed, "training.start_from", str(Path(training["start_from"]).absolute()))
    metric = training.get("metric")
    if isinstance(metric, str) and is_file_reference(metric):
        found = absolute_metric(metric) if content.get("stages") else absolute(metric)
        changed = set_option(changed, "training.metric", found)
    return changed


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any], section: str) -> dict[str, Any]:
    another = any(_names_another(base, f"{section}{key}", value) for key, value in changes.items())
    merged = {} if another else copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(merged.get(key), dict) and isinstance(value, dict):
            merged[key] = _merge(merged[key], value, f"{section}{key}.")
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _names_another(section: Mapping[str, Any] | list[Any], key: str, value: object) -> bool:
    if key not in _CHOOSERS or isinstance(section, list):
        return False
    return bool(section.get(key.rpartition(".")[2], _CHOOSERS[key]) != value)


def _enter(place: Any, part: str, path: str, where: str) -> Any:
    """Return the mapping or list under one part of a dotted key. A missing mapping is created."""
    if isinstance(place, list):
        inner = place[_position(place, part, path, where)]
    else:
        if place.get(part) is None:
            place[part] = {}
        inner = place[part]
    if not isinstance(inner, dict | list):
        full = f"{path}.{part}".lstrip(".")
        raise ConfigError(f"{where}: {full} is {shown(inner)}, which has no keys; replace {full} as a whole")
    return inner


def _position(items: list[Any], part: str, path: str, where: str) -> int:
    if not part.isdecimal() or int(part) >= len(items):
        raise ConfigError(f"{where}: {path} has {len(items)} items, numbered from 0; found {part!r}")
    return int(part)


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
