"""Configuration of a comparison, and the plan of its runs.

A comparison is a training configuration, of a ranker or of a cascade, with `methods` (the changes of each method),
`seeds`, `folds`, `sweep` (settings that multiply the methods) and `tune` (settings that are tried on validation data).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from rankfall._config import ConfigError, Section, explain, read_source, shown
from rankfall._errors import RankfallError, did_you_mean
from rankfall.registry.references import absolute
from rankfall.studies.baselines import BASELINES, BaselineConfig, method_of
from rankfall.training.config.cascade_config import CascadeTrainingConfig
from rankfall.training.config.component_checks import measures, names_first
from rankfall.training.config.load_config import TrainConfig, apply_overrides, merge, set_option, validate_any
from rankfall.training.config.ranker_config import DEFAULT_METRICS, TrainingConfig
from rankfall.training.config.sections import Count, Names
from rankfall.training.run_directory import RESUME_MUTABLE_KEYS, identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rankfall._config import ConfigLike
    from rankfall.studies.results import Settings


Validated = TypeVar("Validated", bound=Section)


def _check_seeds(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise RankfallError(f"seeds {seeds} contain a seed twice")
    return seeds


Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1), AfterValidator(_check_seeds)]
Methods = dict[str, dict[str, Any] | None]  # changes to the configuration, by the name of a method


def validated(section: type[Validated], content: dict[str, Any], where: str) -> Validated:
    """Return a section of a configuration, or raise a ConfigError that names `where` and the key."""
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Context of checks whose errors name keys only: each line of them gets a prefix, such as the path of the file."""
    try:
        yield
    except RankfallError as error:
        raise ConfigError("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None


def check_keys(found: Iterable[str], allowed: Sequence[str], where: str) -> None:
    """Raise a ConfigError for a key that is not allowed."""
    for key in found:
        if key not in allowed:
            raise ConfigError(f"{where}.{key}: unknown{did_you_mean(key, allowed)}; allowed are {', '.join(allowed)}")


MAX_POINTS = 10_000  # of the grid of a method: each is validated before the first is trained
Values = Annotated[list[Any], Field(min_length=1)]


def point_name(method: str, point: Settings) -> str:
    """Return the name of a method at a point of a sweep: the values are written as overrides.

    >>> point_name("LCRON", {"objective.tau": 0.5, "training.max_list": None, "loss": {"name": "arf"}})
    'LCRON objective.tau=0.5 training.max_list=null loss={"name": "arf"}'
    """
    return " ".join([method, *(f"{key}={value_text(value)}" for key, value in point.items())])


def value_text(value: Any) -> str:
    """Return a value as in an override; text has no quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_sweep(sweep: dict[str, Any]) -> dict[str, Any]:
    for key, values in sweep.items():
        named = isinstance(values, dict) and all(isinstance(settings, dict) for settings in values.values())
        if not values or not (named or isinstance(values, list)):
            expected = "a list of values, or named points with the keys that they change"
            raise RankfallError(f"{key}: found {shown(values)}, expected {expected}")
        if len({value_text(value) for value in values}) < len(values):
            raise RankfallError(f"{key}: found {shown(values)}, expected different values")
    return sweep


# By dotted key, a list of values; or by the name of an axis, named points that change several keys.
Sweep = Annotated[dict[str, Any], AfterValidator(_check_sweep)]


# --- the configuration --------------------------------------------------------------------------------------------


class Fold(Section):
    """Splits that a fold trains, validates and tests on.

    Attributes:
        train: Splits to train on.
        valid: Splits for early stopping and for choosing settings.
        test: Splits for the evaluation.
    """

    train: Names = Field(min_length=1)
    valid: Names = Field(min_length=1)
    test: Names = Field(min_length=1)


Metric = Annotated[str, AfterValidator(absolute)]  # as runs name it: their files of values have columns by these names


class ComparisonConfig(Section):
    """A training configuration, and the methods that change it.

    Attributes:
        data: As in a training configuration.
        model: Rankers only: as in a training configuration.
        loss: Rankers only: as in a training configuration.
        relevant: Cascades only: number of relevant items.
        stages: Stages of a cascade; a comparison without stages is one of rankers.
        share: Cascades only: embeddings that stages share.
        objective: Cascades only.
        stage_metrics: Cascades only: further metrics of each stage.
        feedback: Cascades only: feedback whose survival is measured.
        weight: Cascades only: weights of items in the objective.
        optimizer: As in a training configuration.
        training: As in a training configuration.
        metrics: Metrics to evaluate, the same for all methods.
        methods: Changes of each method, by its name in the table.
        sweep: Values by dotted key, or named points of several keys, with which methods are repeated.
        tune: Values to try, by dotted key, for all rankers.
        budget: Settings tried for each method, drawn from its grid.
        seeds: Seeds of the runs of each method.
        against: Method that the others are tested against, instead of the one with the best mean.
        folds: Splits of each fold, instead of splits under data.
        jobs: Runs at the same time.
    """

    data: dict[str, Any]
    model: dict[str, Any] = Field(default={})
    loss: dict[str, Any] = Field(default={})
    relevant: int | None = None
    stages: list[dict[str, Any]] = Field(default=[])
    share: list[str] = Field(default=[])
    objective: dict[str, Any] = Field(default={})
    stage_metrics: list[Metric] = Field(default=[])
    feedback: dict[str, str] = Field(default={})
    weight: str | dict[str, Any] | None = None
    optimizer: dict[str, Any] = Field(default={})
    training: dict[str, Any] = Field(default={})
    metrics: list[Metric] = Field(default=[])
    methods: Methods = Field(min_length=1)
    sweep: Sweep = Field(default={})
    tune: dict[str, Values] = Field(default={})
    budget: Count | None = None
    seeds: Seeds = Field(default=[0])
    against: str | None = None
    folds: dict[str, Fold] | None = Field(default=None, min_length=1)
    jobs: Count = 1

    @property
    def kind(self) -> Literal["ranker", "cascade"]:
        """Kind of the methods that do not name one. Nothing else asks whether there are stages."""
        return "cascade" if self.stages else "ranker"

    @property
    def measured(self) -> list[str]:
        """Metrics that every method is evaluated by."""
        if self.kind == "ranker":
            return list(dict.fromkeys(self.metrics)) or DEFAULT_METRICS
        names = [stage.get("name", "") for stage in self.stages]
        return measures(names, self.stage_metrics, self.feedback, complete=self.data.get("length") != "all")

    @model_validator(mode="after")
    def _the_reference_is_a_method(self) -> Self:
        methods = expand(self)
        if self.against is not None and self.against not in methods:
            hint = did_you_mean(self.against, methods)
            names = ", ".join(map(repr, methods))  # names may contain commas
            raise RankfallError(f"against: found {self.against!r}{hint}; the methods are {names}")
        return self

    @model_validator(mode="after")
    def _every_query_is_tested_once(self) -> Self:
        tested: dict[str, str] = {}
        for name, fold in (self.folds or {}).items():
            for split in fold.test:
                if split in tested:
                    raise RankfallError(
                        f"folds {tested[split]} and {name} both test on {split}; a split is tested once"
                    )
                tested[split] = name
        return self


RunConfig: TypeAlias = TrainConfig | BaselineConfig

_OWN = ("tune", "sweep", "kind")  # keys of a method besides its changes
_SECTIONS = {  # that a method may change, by the kind of the methods that do not name one
    "ranker": ("data", "model", "loss", "optimizer", "training"),
    "cascade": ("data", "relevant", "stages", "share", "objective", "weight", "optimizer", "training"),
}
_COMMON = {"ranker": ("metrics",), "cascade": ("stage_metrics", "feedback")}  # the same for all methods


@names_first
def load_comparison(path: ConfigLike, overrides: Sequence[str] = ()) -> ComparisonConfig:
    """Read a comparison from a YAML file, or from its content, and apply ``key=value`` overrides.

    Raises:
        ConfigError: If a key or value is wrong, also one of a method. Names are checked before components are imported.
    """
    content, where = read_source(path)
    config = validated(ComparisonConfig, apply_overrides(content, overrides), where)
    with errors_of(where):
        _plan(config, Path(), "").check_configs()
    return config


# --- methods, folds, settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A method, or the point of a method with a sweep: a row of the table."""

    method: str
    """Name in `methods`."""
    kind: str
    changes: dict[str, Any]
    """Changes of the method to the sections of the configuration."""
    tune: dict[str, list[Any]] | None
    """Values to try of the method itself, None if it names none."""
    point: dict[str, Any] = field(default_factory=dict)
    """Swept values: by dotted key, or the name of a point by the name of its axis."""
    settings: Settings = field(default_factory=dict)
    """What the point sets, by dotted key."""


def expand(config: ComparisonConfig) -> dict[str, Variant]:
    """Return the methods by their names in the table; a method with a sweep is there once for each point.

    The points of a method are those of all keys in `sweep` crossed, where its own `sweep` replaces the values of a key.
    A method with ``sweep: {}`` is not swept.
    """
    found: dict[str, Variant] = {}
    for method, content in config.methods.items():
        changes = dict(content or {})
        kind, tune, own = changes.pop("kind", config.kind), changes.pop("tune", None), changes.pop("sweep", None)
        where = f"methods.{method}"
        if tune is not None and not (isinstance(tune, dict) and all(isinstance(v, list) and v for v in tune.values())):
            raise ConfigError(f"{where}.tune: found {shown(tune)}, expected keys with lists of values")
        if own is not None and not isinstance(own, dict):
            raise ConfigError(f"{where}.sweep: found {shown(own)}, expected keys with lists of values")
        with errors_of(f"{where}.sweep"):
            _check_sweep(own or {})
        swept = {} if own == {} else {**(config.sweep if kind == config.kind else {}), **(own or {})}
        for point, settings in _points(swept, where):
            twice = settings.keys() & {"training.seed", *(tune or {}), *(config.tune if tune != {} else {})}
            if twice:
                key = min(twice)
                other = "seeds" if key == "training.seed" else "tune"
                raise ConfigError(f"sweep: found {key}, whose values are those of {other}")
            name = point_name(method, point)
            if name in found:
                raise ConfigError(f"methods: found {name!r} twice, as a method and as a point of the sweep")
            found[name] = Variant(method, kind, changes, tune, point, settings)
    return found


def _points(sweep: Mapping[str, Any], where: str) -> list[tuple[Settings, Settings]]:
    """Return each point of a sweep, with what it sets."""
    if (count := math.prod(map(len, sweep.values()))) > MAX_POINTS:
        raise ConfigError(f"{where}: found a sweep of {count:,} points, expected at most {MAX_POINTS:,}")
    axes = [
        [({key: name}, settings) for name, settings in values.items()]
        if isinstance(values, dict)
        else [({key: value}, {key: value}) for value in values]
        for key, values in sweep.items()
    ]
    points = []
    for parts in itertools.product(*axes):
        point: Settings = {}
        settings: Settings = {}
        for named, changed in parts:
            point |= named
            settings |= changed
        points.append((point, settings))
    return points


@dataclass(frozen=True)
class Run:
    """One training run of a comparison."""

    method: str
    fold: str
    settings: Settings
    seed: int
    config: RunConfig
    directory: Path


@dataclass(frozen=True)
class Plan:
    """Every run of a comparison; each configuration is resolved once."""

    config: ComparisonConfig
    variants: dict[str, Variant]  # by the name in the table
    folds: dict[str, dict[str, Any]]  # changes of each fold to the section data
    candidates: dict[str, list[Settings]]  # settings to try, by method; one if there is nothing to choose
    out: Path
    data_checksum: str
    _resolved: dict[str, RunConfig] = field(default_factory=dict, repr=False, compare=False)

    @property
    def validation_metric(self) -> str:
        """Metric by which settings are chosen."""
        section: type[TrainingConfig | CascadeTrainingConfig] = (
            CascadeTrainingConfig if self.config.kind == "cascade" else TrainingConfig
        )
        return validated(section, self.config.training, "training").metric

    def run(self, method: str, fold: str, settings: Settings, seed: int) -> Run:
        """Return the run of a method on a fold with settings of its grid and a seed."""
        config = self.run_config(method, fold, settings, seed)
        directory = self.out / "runs" / _run_name(config, self.data_checksum)
        return Run(method, fold, settings, seed, config, directory)

    def run_config(self, method: str, fold: str, settings: Settings, seed: int) -> RunConfig:
        """Return the configuration of a run."""
        key = json.dumps([method, fold, settings, seed], default=str)
        return self._resolved.get(key) or self._resolved.setdefault(key, self._resolve(method, fold, settings, seed))

    def check_configs(self) -> None:
        """Validate the configurations of all trials."""
        for fold in self.folds:
            for method, candidates in self.candidates.items():
                for settings in candidates:
                    self.run_config(method, fold, settings, self.config.seeds[0])

    def trials(self) -> dict[tuple[str, str], list[Run]]:
        """Return a run with the first seed for each candidate, by method and fold."""
        return {
            (method, fold): [self.run(method, fold, settings, self.config.seeds[0]) for settings in candidates]
            for fold in self.folds
            for method, candidates in self.candidates.items()
        }

    def repeated(self, chosen: Iterable[Run]) -> list[Run]:
        """Return the chosen runs with every seed, one seed after the other."""
        trials = list(chosen)
        return [self.run(one.method, one.fold, one.settings, seed) for seed in self.config.seeds for one in trials]

    def _resolve(self, method: str, fold: str, settings: Settings, seed: int) -> RunConfig:
        variant = self.variants[method]
        own, where, metrics = self.config.kind, f"methods.{method}", self.config.measured
        kind, changes, settings = variant.kind, variant.changes, {**variant.settings, **settings}
        data = merge({"data": self.config.data}, {"data": self.folds[fold]})["data"]
        if kind == own:
            check_keys(changes, [*_SECTIONS[own], *_OWN], where)
            check_keys([key.partition(".")[0] for key in variant.settings], _SECTIONS[own], "sweep")
            sections = {name: getattr(self.config, name) for name in (*_SECTIONS[own], *_COMMON[own])}
            if own == "ranker":
                sections["metrics"] = metrics
            given = {name: value for name, value in sections.items() if value is not None} | {"data": data}
            content = merge(given, changes)
            for key, value in {**settings, "training.seed": seed}.items():
                content = set_option(content, key, value, where=where)
            return validate_any(content, where=where)
        if own == "cascade":
            raise ConfigError(f"{where}.kind: found {kind!r}, all methods of this comparison are cascades")
        if kind not in BASELINES:
            raise ConfigError(f"{where}.kind: found {kind!r}, expected ranker, {' or '.join(BASELINES)}")
        given = {"kind": kind, "data": data, "metric": self.validation_metric, "metrics": metrics, "seed": seed}
        fields = BASELINES[kind].model_fields
        check_keys(changes, [*(key for key in fields if key not in given), *_OWN], where)
        known = {key: value for key, value in given.items() if key in fields}
        return validated(BASELINES[kind], known | changes | settings, where)


def make_plan(config: ComparisonConfig, out: Path) -> Plan:
    """Plan the runs of a comparison in the directory `out`, and check all of them against the data.

    Raises:
        ConfigError: a run cannot be trained as configured.
        ValueError: the data do not have the named splits or days.
    """
    plan = check_comparison(config)
    runs = [method_of(run.config) for run in _runs(plan)]
    data = runs[0].open_data()
    for run in runs:
        if not run.config.data.test:
            raise ConfigError("data.test: missing, a comparison needs splits or days to test on (or folds)")
        run.check_splits(data)
    return replace(plan, out=out, data_checksum=runs[0].fingerprint(data))


def check_comparison(config: ComparisonConfig) -> Plan:
    """Return the plan of a comparison, as far as it can be made and checked without the data."""
    plan = _plan(config, Path(), "")
    for run in _runs(plan):
        method = method_of(run.config)
        method.check_components(f"methods.{run.method}")
        if method.metric != plan.validation_metric:
            raise ConfigError(
                f"methods.{run.method}: found training.metric {method.metric}, expected that of all methods, "
                f"{plan.validation_metric}"
            )
    return plan


def _runs(plan: Plan) -> list[Run]:
    return [run for runs in plan.trials().values() for run in runs]


def _plan(config: ComparisonConfig, out: Path, data_checksum: str) -> Plan:
    if "path" not in config.data:
        raise ConfigError("data.path: missing, expected a directory made by 'rankfall prepare'")
    for other in _SECTIONS.keys() - {config.kind}:
        for section in (*_SECTIONS[other], *_COMMON[other]):
            if section not in _SECTIONS[config.kind] and getattr(config, section):
                raise ConfigError(f"{section}: found in a comparison of {config.kind}s, which do not have this section")
    folds = {name: fold.model_dump() for name, fold in (config.folds or {}).items()} or {"all": {}}
    variants = expand(config)
    return Plan(config, variants, folds, _candidates(config, variants), out, data_checksum)


def _candidates(config: ComparisonConfig, variants: Mapping[str, Variant]) -> dict[str, list[Settings]]:
    """Return the settings to try for each method: equally many for all methods, except those that are not tuned."""
    grids = {name: _grid(config, name, one) for name, one in variants.items()}
    # a method that tunes itself, or has ``tune: {}``, has its settings, for instance from a paper
    settled = [kind for kind, baseline in BASELINES.items() if baseline.tunes_itself]
    tuned = [name for name, one in variants.items() if one.tune != {} and one.kind not in settled]
    sizes = {name: len(grids[name]) for name in tuned}
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
    # The seed is fixed, and methods with the same grid try the same points.
    return {name: random.Random(0).sample(grid, min(budget, len(grid))) for name, grid in grids.items()}


def _grid(config: ComparisonConfig, name: str, variant: Variant) -> list[Settings]:
    if variant.tune == {}:
        return [{}]
    values = {**(config.tune if variant.kind == config.kind else {}), **(variant.tune or {})}
    points = math.prod(map(len, values.values()))
    if points > MAX_POINTS:
        raise ConfigError(f"methods.{name}.tune: found a grid of {points:,} points, expected at most {MAX_POINTS:,}")
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def _run_name(config: RunConfig, data_checksum: str) -> str:
    """Return the name of a run: the same for the same training on the same data, wherever they are stored."""
    excluded: dict[str, Any] = {}  # what does not change the weights
    for key in RESUME_MUTABLE_KEYS:
        section, _, name = key.partition(".")
        excluded[section] = excluded.get(section, set()) | {name} if name else True
    content = config.model_dump(mode="json", exclude=excluded)
    content, code = identity(config, content)
    text = json.dumps([content, data_checksum, *([code] if code else [])], sort_keys=True)
    return f"{method_of(config).title}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
