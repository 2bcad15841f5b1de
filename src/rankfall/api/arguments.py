"""Arguments that several functions of the API share: overrides, run directories and engines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from rankfall._engine import Engine
    from rankfall.api.training import TrainedRun

PathLike: TypeAlias = str | os.PathLike[str]
RunLike: TypeAlias = "str | os.PathLike[str] | TrainedRun"
"""A run: its directory, or what :func:`rankfall.train` returns."""
Overrides: TypeAlias = Sequence[str] | Mapping[str, Any]
"""Values that replace those of a configuration: ``key=value`` strings, or a mapping by dotted keys."""
EngineName: TypeAlias = Literal["local", "ray"]


def override_words(overrides: Overrides) -> list[str]:
    """Return overrides as ``key=value`` strings.

    >>> override_words({"loss.tau": 0.5, "data.length": "all", "data.train": ["S1", "S2"], "data.path": "1"})
    ['loss.tau=0.5', 'data.length=all', 'data.train=["S1", "S2"]', 'data.path="1"']

    Raises:
        ConfigError: If it is one string, or a value cannot be written as YAML.
    """
    from rankfall._config import ConfigError

    if isinstance(overrides, str):
        raise ConfigError(f"overrides: found the string {overrides!r}, expected a list of strings or a dictionary")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{key}={_value_text(key, value)}" for key, value in overrides.items()]


def _value_text(key: str, value: Any) -> str:
    from rankfall._config import ConfigError

    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and _is_plain(value):
        return value
    try:
        text = json.dumps(value, default=os.fspath, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        raise ConfigError(f"overrides: found {value!r} for {key}, expected a value that YAML can hold") from None
    return "".join(map(_escaped, text))


def _escaped(letter: str) -> str:
    """Return a letter of JSON for YAML, which does not know surrogate pairs, and breaks lines at more letters."""
    if " " <= letter <= "~":
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def _is_plain(text: str) -> bool:
    """Return whether YAML reads a text as itself."""
    from rankfall._config import ConfigError, parse_yaml

    try:
        return bool(parse_yaml(text, "") == text)
    except ConfigError:
        return False


def run_directory(run: RunLike) -> Path:
    """Return the directory of a run."""
    return Path(run) if isinstance(run, str | os.PathLike) else run.directory


def optional_path(path: PathLike | None) -> Path | None:
    """Return a path, or None."""
    return None if path is None else Path(path)


@contextmanager
def opened_engine(engine: EngineName) -> Iterator[Engine]:
    """Open an engine for the duration of the block.

    Raises:
        ValueError: If there is no engine of this name, or Ray is not installed.
    """
    from rankfall._engine import open_engine

    if engine not in ("local", "ray"):
        raise ValueError(f"engine: found {engine!r}, expected local or ray")
    with open_engine(engine) as opened:
        yield opened
