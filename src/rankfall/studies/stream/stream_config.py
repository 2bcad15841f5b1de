"""Configuration of a stream, and the plan of its runs.

A stream is a training configuration of a cascade with `days` in place of train, valid and test days, with `methods`
that change it, as in a comparison, and `seeds`:

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
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from rankfall._config import ConfigError, Section, read_source
from rankfall._errors import RankfallError, did_you_mean
from rankfall.registry.references import short_name
from rankfall.studies.comparison_plan import Methods, Seeds, check_keys, errors_of, validated
from rankfall.training.config.cascade_config import LogConfig, validate_cascade
from rankfall.training.config.component_checks import has_schedule, names_first
from rankfall.training.config.load_config import apply_overrides, merge, set_option
from rankfall.training.config.sections import as_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall._config import ConfigLike
    from rankfall.training.config.cascade_config import CascadeConfig

RUNS = "runs"
ALL = ".."  # range of all days
_USES = ("train", "valid", "test")
_SECTIONS = ("relevant", "stages", "share", "objective", "weight", "optimizer", "training")  # what methods may change
_COMMON = ("stage_metrics", "feedback")  # sections that are the same for all methods
_OF_DATA = ("labels",)  # keys of `data` that a method may change


class StreamConfig(Section):
    """A training configuration of a cascade over days, and the methods that change it.

    Attributes:
        data: path, days, negatives, negatives_from, length, labels.
        relevant: Relevant items per impression: those of the best grades.
        stages: As in the training configuration of a cascade.
        share: Embedding tables that all stages share.
        objective: As in the training configuration of a cascade.
        weight: Weights of items in the objective.
        optimizer: As in the training configuration of a cascade.
        training: As in the training configuration of a cascade.
        stage_metrics: Further metrics of each stage.
        feedback: Feedback whose survival is measured.
        methods: Changes of each method, by its name in tables; by default there is one method.
        seeds: Seeds of the runs of each method.
    """

    data: dict[str, Any]
    relevant: int | None = None
    stages: list[dict[str, Any]] = Field(min_length=1)
    share: list[str] = Field(default=[])
    objective: dict[str, Any] = Field(default={})
    weight: str | dict[str, Any] | None = None
    optimizer: dict[str, Any] = Field(default={})
    training: dict[str, Any] = Field(default={})
    stage_metrics: list[str] = Field(default=[])
    feedback: dict[str, str] = Field(default={})
    methods: Methods = Field(default={})
    seeds: Seeds = Field(default=[0])

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        allowed = ["path", "days", *(name for name in LogConfig.model_fields if name not in ("path", *_USES))]
        for key in self.data:
            if key not in allowed:
                why = "; a stream tests on every day, then trains on it" if key in _USES else ""
                hint = did_you_mean(key, allowed)
                raise RankfallError(f"data: unknown key {key!r}{hint}; allowed are {', '.join(allowed)}{why}")
        return self

    @property
    def days(self) -> list[str]:
        """Names and ranges of days, by default all days of the log."""
        days: list[str] = as_names(self.data.get("days", ALL))
        return days


@dataclass(frozen=True)
class StreamRun:
    """A run of a stream: a method with a seed."""

    method: str
    seed: int
    config: CascadeConfig
    directory: Path


@names_first
def load_stream(path: ConfigLike, overrides: Sequence[str] = ()) -> StreamConfig:
    """Read a stream from a YAML file, or from its content, and apply ``key=value`` overrides.

    Raises:
        ConfigError: If a key or value is wrong, also one of a method. Names are checked before components are imported.
    """
    content, where = read_source(path)
    config = validated(StreamConfig, apply_overrides(content, overrides), where)
    with errors_of(where):
        for method, changes in _methods(config).items():
            _resolve(config, method, changes, config.seeds[0])
    return config


def _methods(config: StreamConfig) -> dict[str, dict[str, Any]]:
    """Return the changes of each method. A stream without methods has one, named after its objective."""
    methods = config.methods or {short_name(str(config.objective.get("name", "method"))): {}}
    return {method: changes or {} for method, changes in methods.items()}


def make_runs(config: StreamConfig, out: Path) -> list[StreamRun]:
    """Plan and check the runs of a stream: every method with every seed."""
    methods = _methods(config)
    names = {method: file_name(method) for method in methods}
    runs = []
    for method, changes in methods.items():
        same = [other for other in names if names[other] == names[method]]
        if len(same) > 1:
            raise ConfigError(
                f"methods: {' and '.join(map(repr, same))} would have the same directory, {names[method]}"
            )
        for seed in config.seeds:
            resolved = _resolve(config, method, changes, seed)
            runs.append(StreamRun(method, seed, resolved, out / RUNS / f"{names[method]}-{seed}"))
    from rankfall.training.methods import method_of  # needs torch, without which configurations are validated

    first = runs[0]
    for run in runs:
        method_of(run.config).check_components(f"methods.{run.method}" if config.methods else "config")
        for name, found, expected in (
            ("the metrics", run.config.metrics, first.config.metrics),
            ("training.metric", run.config.training.metric, first.config.training.metric),
        ):
            if found != expected:
                raise ConfigError(
                    f"methods.{run.method}: found {name} {found}, expected {expected} as for {first.method}, so that "
                    "methods can be compared"
                )
    return runs


def scheduled(run: StreamRun) -> bool:
    """Whether a temperature follows a schedule, which needs the number of days in advance."""
    return has_schedule(run.config.objective.options)


def _resolve(config: StreamConfig, method: str, changes: dict[str, Any], seed: int) -> CascadeConfig:
    where = f"methods.{method}" if config.methods else "config"
    check_keys(changes, [*_SECTIONS, "data"], where)
    changes = dict(changes)
    own_data = changes.pop("data", None) or {}
    check_keys(own_data, _OF_DATA, f"{where}.data")
    days = {"train": config.days, "valid": config.days}  # every day is measured and trained on
    data = {key: value for key, value in config.data.items() if key != "days"} | own_data | days
    given = {name: value for name in (*_SECTIONS, *_COMMON) if (value := getattr(config, name)) is not None}
    content = set_option(merge(given, changes), "training.seed", seed, where=where)
    resolved = validate_cascade({"data": data, **content}, where=where)
    if resolved.training.epochs != 1 or resolved.training.patience is not None:
        raise ConfigError(f"{where}: training.epochs and training.patience: a stream trains on each day once")
    if resolved.training.validate_every != 1:
        raise ConfigError(f"{where}: training.validate_every: a stream measures every day before it trains on it")
    return resolved


def file_name(method: str) -> str:
    """Return the directory name of a method: ``lcron-dftopk`` for ``LCRON, DFTopK``."""
    return re.sub(r"[^a-z0-9_]+", "-", method.lower()).strip("-") or "method"
