"""Hints for training runs whose loss, scores or gradients became too large or NaN, or whose gradients are 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.training.config.sections import OptimizerConfig

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
