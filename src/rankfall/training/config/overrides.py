"""Changes to a configuration's mapping before it is validated: dotted keys, ``key=value`` overrides and merging.

Changing the name of a loss, objective or model discards the options of the previous one.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._yaml_config import ConfigError, Section, parse_yaml, shown, to_yaml
from rankfall._yaml_reader import MAX_DEPTH
from rankfall.registry.references import absolute, absolute_references, is_file_reference
from rankfall.training.config.cascade_metric_names import absolute_metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
