"""What a stream is told, and the runs it consists of.

A stream is a training configuration of a cascade whose data have `days` in place of days for each use, with the
`methods` that change it, as in a comparison, and `seeds`:

.. code-block:: yaml

    data: {path: log, days: 2024-01-13..2024-02-03}
    relevant: 10
    stages: ...
    training: {batch: 1024}
    methods:
      BCE: {objective: {name: bce}}
      LCRON: {objective: {name: lcron}, optimizer: {lr: 5e-3}}
    seeds: [0, 1, 2]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from rankfall._settings import ConfigError, Section, explain, read_yaml
from rankfall._suggest import did_you_mean
from rankfall.training.config.cascade_config import LogConfig, validate_cascade
from rankfall.training.config.component_checks import has_schedule
from rankfall.training.config.overrides import apply_overrides, merge, set_option
from rankfall.training.methods import method_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall.training.config.cascade_config import CascadeConfig

RUNS = "runs"
ALL = ".."  # days
_USES = ("train", "valid", "test")
_SECTIONS = ("relevant", "stages", "share", "objective", "optimizer", "training")  # that a method may change


class StreamConfig(Section):
    """A training configuration of cascades over days that several methods change."""

    data: dict[str, Any] = Field(description="path, days, negatives, negatives_from, length.")
    relevant: int | None = None
    stages: list[dict[str, Any]] = Field(min_length=1)
    share: list[str] = Field(default=[])
    objective: dict[str, Any] = Field(default={})
    optimizer: dict[str, Any] = Field(default={})
    training: dict[str, Any] = Field(default={})
    methods: dict[str, dict[str, Any] | None] = Field(
        default={}, description="What each method changes, by its name in tables; by default there is one."
    )
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0], min_length=1)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        allowed = ["path", "days", *(name for name in LogConfig.model_fields if name not in ("path", *_USES))]
        for key in self.data:
            if key not in allowed:
                why = "; a stream learns from every day and is tested on it before that" if key in _USES else ""
                hint = did_you_mean(key, allowed)
                raise ValueError(f"data: unknown key {key!r}{hint}; allowed are {', '.join(allowed)}{why}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {self.seeds} name one seed twice")
        return self

    @property
    def days(self) -> list[str]:
        """Names and ranges of days, by default all of the log."""
        days = self.data.get("days", ALL)
        return [days] if isinstance(days, str) else days


@dataclass(frozen=True)
class StreamRun:
    """A method with a seed."""

    method: str
    seed: int
    config: CascadeConfig
    directory: Path


def load_stream(path: Path, overrides: Sequence[str] = ()) -> StreamConfig:
    """The stream in a YAML file, with ``key=value`` words that change it."""
    try:
        return StreamConfig.model_validate(apply_overrides(read_yaml(path), overrides))
    except ValidationError as error:
        raise ConfigError(explain(error, str(path))) from None


def make_runs(config: StreamConfig, out: Path) -> list[StreamRun]:
    """Every run of a stream, method after method, all of them checked."""
    methods = config.methods or {str(config.objective.get("name", "method")): {}}
    names = {method: file_name(method) for method in methods}
    runs = []
    for method, changes in methods.items():
        same = [other for other in names if names[other] == names[method]]
        if len(same) > 1:
            raise ConfigError(f"methods: {' and '.join(map(repr, same))} would have one directory, {names[method]}")
        for seed in config.seeds:
            resolved = _resolve(config, method, changes or {}, seed)
            runs.append(StreamRun(method, seed, resolved, out / RUNS / f"{names[method]}-{seed}"))
    first = runs[0]
    for run in runs:
        for what, of in (("the metrics", run.config.metrics), ("training.metric", run.config.training.metric)):
            expected = first.config.metrics if what == "the metrics" else first.config.training.metric
            if of != expected:
                raise ConfigError(
                    f"methods.{run.method}: found {what} {of}, expected those of {first.method}, {expected}, so that "
                    "methods can be compared"
                )
    return runs


def scheduled(run: StreamRun) -> bool:
    """Whether a temperature changes over the stream, whose length must then be known."""
    return has_schedule(run.config.objective.options)


def _resolve(config: StreamConfig, method: str, changes: dict[str, Any], seed: int) -> CascadeConfig:
    where = f"methods.{method}" if config.methods else "config"
    for key in changes:
        if key not in _SECTIONS:
            raise ConfigError(f"{where}.{key}: unknown, expected {', '.join(_SECTIONS)}")
    days = {"train": config.days, "valid": config.days}  # every day is for both
    data = {key: value for key, value in config.data.items() if key != "days"} | days
    given = {name: value for name in _SECTIONS if (value := getattr(config, name)) is not None}
    content = set_option(merge(given, changes), "training.seed", seed)
    resolved = validate_cascade({"data": data, **content}, where=where)
    method_of(resolved).check_components(where)
    if resolved.training.epochs != 1 or resolved.training.patience is not None:
        raise ConfigError(f"{where}: training.epochs and training.patience: a stream goes over each day once")
    return resolved


def file_name(method: str) -> str:
    """What directories of a method are called: ``LCRON, DFTopK`` is ``lcron-dftopk``."""
    return re.sub(r"[^a-z0-9_]+", "-", method.lower()).strip("-") or "method"
