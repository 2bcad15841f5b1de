"""What a comparison is told, and the runs it consists of.

A comparison is a training configuration, of a ranker or of a cascade, with `methods`, what each of them changes, and
how often they are trained: `seeds`, `folds`, and the settings that are tried on validation data, `tune`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import Field, ValidationError, model_validator

from rankfall._settings import ConfigError, Section, explain, read_yaml
from rankfall._suggest import did_you_mean
from rankfall.studies.baselines import BASELINES, BaselineConfig, method_of
from rankfall.training.cascade_metrics import measures
from rankfall.training.config.cascade_config import CascadeTrainingConfig, validate_cascade
from rankfall.training.config.load_config import TrainConfig
from rankfall.training.config.overrides import apply_overrides, merge, set_option
from rankfall.training.config.ranker_config import DEFAULT_METRICS, TrainingConfig, validate
from rankfall.training.config.sections import Count, Names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Checked = TypeVar("Checked", bound=Section)
Settings = dict[str, Any]  # dotted keys and their values
Values = Annotated[list[Any], Field(min_length=1)]


# --- the configuration --------------------------------------------------------------------------------------------


class Fold(Section):
    """Which splits a fold trains, validates and tests on."""

    train: Names = Field(min_length=1)
    valid: Names = Field(min_length=1)
    test: Names = Field(min_length=1)


class ComparisonConfig(Section):
    """A training configuration that several methods change."""

    data: dict[str, Any]
    model: dict[str, Any] = Field(default={})
    loss: dict[str, Any] = Field(default={})
    relevant: int | None = Field(default=None, description="Of a cascade.")
    stages: list[dict[str, Any]] = Field(default=[], description="Of a cascade; without them it is a ranker.")
    share: list[str] = Field(default=[], description="Of a cascade.")
    objective: dict[str, Any] = Field(default={}, description="Of a cascade.")
    optimizer: dict[str, Any] = Field(default={})
    training: dict[str, Any] = Field(default={})
    metrics: list[str] = Field(default=[], description="What is evaluated; the same for all methods.")
    methods: dict[str, dict[str, Any] | None] = Field(
        min_length=1, description="What each method changes, by its name in the table."
    )
    tune: dict[str, Values] = Field(default={}, description="Values to try, by dotted key, for all rankers.")
    budget: Count | None = Field(default=None, description="Settings tried for each method, drawn from its grid.")
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0], min_length=1)
    folds: dict[str, Fold] | None = Field(default=None, min_length=1, description="Instead of splits under data.")
    jobs: Count = Field(default=1, description="Runs at the same time.")

    @model_validator(mode="after")
    def _every_query_is_tested_once(self) -> Self:
        tested: dict[str, str] = {}
        for name, fold in (self.folds or {}).items():
            for split in fold.test:
                if split in tested:
                    raise ValueError(f"folds {tested[split]} and {name} both test on {split}; a split is tested once")
                tested[split] = name
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {self.seeds} name one seed twice")
        return self


RunConfig: TypeAlias = TrainConfig | BaselineConfig

_SECTIONS = {  # that a method may change
    "ranker": ("data", "model", "loss", "optimizer", "training"),
    "cascade": ("data", "relevant", "stages", "share", "objective", "optimizer", "training"),
}


def load_comparison(path: Path, overrides: Sequence[str] = ()) -> ComparisonConfig:
    """The comparison in a YAML file, with ``key=value`` words that change it."""
    return _checked(ComparisonConfig, apply_overrides(read_yaml(path), overrides), str(path))


# --- methods, folds, settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One training, with all that is known about it beforehand."""

    config: RunConfig
    directory: Path


@dataclass(frozen=True)
class Plan:
    """Every run of a comparison by method, fold, settings and seed."""

    config: ComparisonConfig
    folds: dict[str, dict[str, Any]]  # what a fold changes in the section data
    candidates: dict[str, list[Settings]]  # that are tried, for each method; one if there is nothing to choose
    out: Path
    data_checksum: str

    @property
    def metrics(self) -> list[str]:
        """What is evaluated, by every method."""
        if self.config.stages:
            return measures([stage.get("name", "") for stage in self.config.stages])
        return list(dict.fromkeys(self.config.metrics)) or DEFAULT_METRICS

    @property
    def validation_metric(self) -> str:
        """By what settings are chosen."""
        if self.config.stages:
            return _checked(CascadeTrainingConfig, self.config.training, "training").metric
        return _checked(TrainingConfig, self.config.training, "training").metric

    def run(self, method: str, fold: str, settings: Settings, seed: int) -> Run:
        """The run of a method on a fold with settings of its grid and a seed."""
        config = self._resolve(method, fold, settings, seed)
        return Run(config, self.out / "runs" / _run_name(config, self.data_checksum))

    def _resolve(self, method: str, fold: str, settings: Settings, seed: int) -> RunConfig:
        changes = dict(self.config.methods[method] or {})
        changes.pop("tune", None)
        kind, where = changes.pop("kind", _own_kind(self.config)), f"methods.{method}"
        data = merge({"data": self.config.data}, {"data": self.folds[fold]})["data"]
        if kind == _own_kind(self.config):
            _check_keys(changes, _SECTIONS[kind], where)
            sections = {name: getattr(self.config, name) for name in _SECTIONS[kind]}
            given = {name: value for name, value in sections.items() if value is not None} | {"data": data}
            content = merge(given, changes)
            for key, value in {**settings, "training.seed": seed}.items():
                content = set_option(content, key, value)
            if kind == "cascade":
                return validate_cascade(content, where=where)
            return validate(content | {"metrics": self.metrics}, where=where)
        if self.config.stages:
            raise ConfigError(f"{where}.kind: found {kind!r}, all methods of this comparison are cascades")
        if kind not in BASELINES:
            raise ConfigError(f"{where}.kind: found {kind!r}, expected ranker, {' or '.join(BASELINES)}")
        given = {"kind": kind, "data": data, "metric": self.validation_metric, "metrics": self.metrics, "seed": seed}
        fields = BASELINES[kind].config_class.model_fields
        _check_keys(changes, [key for key in fields if key not in given], where)
        own = {key: value for key, value in given.items() if key in fields}
        return _checked(BASELINES[kind].config_class, own | changes | settings, where)


def make_plan(config: ComparisonConfig, out: Path) -> Plan:
    """Every run of a comparison, all of them checked before the first is trained."""
    runs = check_comparison(config)
    methods = [method_of(run) for run in runs]
    data = methods[0].open_data()
    for run, method in zip(runs, methods, strict=True):
        if not run.data.test:
            raise ConfigError("data.test: missing, a comparison needs splits or days to test on (or folds)")
        method.check_splits(data)
    return _plan(config, out, methods[0].fingerprint(data))


def check_comparison(config: ComparisonConfig) -> list[RunConfig]:
    """Refuse what can be refused without the data; all runs of the first seed."""
    plan = _plan(config, Path(), "")
    return [
        _check_run(method, plan.run(method, fold, one, config.seeds[0]).config, plan.validation_metric)
        for method, settings in plan.candidates.items()
        for fold, one in itertools.product(plan.folds, settings)
    ]


def _plan(config: ComparisonConfig, out: Path, data_checksum: str) -> Plan:
    if "path" not in config.data:
        raise ConfigError("data.path: missing, expected a directory made by 'rankfall prepare'")
    for section in ("model", "loss", "metrics") if config.stages else ("relevant", "share", "objective"):
        if getattr(config, section):
            raise ConfigError(f"{section}: found in a comparison of {_own_kind(config)}s, which do not have it")
    folds = {name: fold.model_dump() for name, fold in (config.folds or {}).items()} or {"all": {}}
    return Plan(config, folds, _candidates(config), out, data_checksum)


def _check_run(method: str, run: RunConfig, metric: str) -> RunConfig:
    method_of(run).check_components(f"methods.{method}")
    found = method_of(run).metric
    if found != metric:
        raise ConfigError(f"methods.{method}: found training.metric {found}, expected that of all methods, {metric}")
    return run


def _own_kind(config: ComparisonConfig) -> Literal["ranker", "cascade"]:
    """What methods are unless they say otherwise."""
    return "cascade" if config.stages else "ranker"


def _checked(section: type[Checked], content: dict[str, Any], where: str) -> Checked:
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def _check_keys(found: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in found:
        if key not in allowed:
            known = [*allowed, "tune", "kind"]
            raise ConfigError(f"{where}.{key}: unknown{did_you_mean(key, known)}; allowed are {', '.join(known)}")


def _candidates(config: ComparisonConfig) -> dict[str, list[Settings]]:
    """The settings to try for each method: equally many for all that have something to tune."""
    grids = {name: _grid(config, name) for name in config.methods}
    sizes = {name: len(grid) for name, grid in grids.items() if not _tunes_itself(config, name)}
    budget = config.budget
    if budget is None:
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ConfigError(
                f"tune: the methods have grids of different sizes ({found}); "
                f"budget: {min(sizes.values())} would give all of them equally many trials"
            )
        return grids
    for name, size in sizes.items():
        if size < budget:
            raise ConfigError(
                f"methods.{name}.tune: its grid has {size} point{'s' * (size != 1)}, the budget is {budget}; "
                "give it more values to try, or lower the budget for all methods"
            )
    # The draw repeats, and methods with the same grid try the same points.
    return {name: random.Random(0).sample(grid, min(budget, len(grid))) for name, grid in grids.items()}


def _grid(config: ComparisonConfig, method: str) -> list[Settings]:
    changes = config.methods[method] or {}
    own = changes.get("tune", {})
    if not isinstance(own, dict) or not all(isinstance(values, list) and values for values in own.values()):
        raise ConfigError(f"methods.{method}.tune: found {own!r}, expected keys with lists of values")
    values = {**config.tune, **own} if changes.get("kind", _own_kind(config)) == _own_kind(config) else own
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def _tunes_itself(config: ComparisonConfig, method: str) -> bool:
    kind = (config.methods[method] or {}).get("kind")
    return kind in BASELINES and BASELINES[kind].tunes_itself


def _run_name(config: RunConfig, data_checksum: str) -> str:
    """What a run is called: the same for the same training on the same data, wherever those lie."""
    content = config.model_dump(
        mode="json",
        exclude={"metrics": True, "data": {"path"}, "training": {"checkpoint_every", "keep", "track", "mlflow"}},
    )
    text = json.dumps([content, data_checksum], sort_keys=True)
    return f"{method_of(config).title}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
