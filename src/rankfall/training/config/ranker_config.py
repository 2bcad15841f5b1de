"""What a training is told: one YAML file, checked before anything is read or written.

A configuration has one section a part: data, model, loss, optimizer, training, metrics. Unknown keys, wrong types and
options a loss does not have are errors that say where they stand and what is allowed. ``key=value`` words override
what the file says: ``loss.tau=0.5``, ``data.train=[S1, S2]``. The options of a loss or a model belong to it:
naming another one drops them.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from rankfall._settings import KIND, ConfigError, Section, explain, parse_yaml, read_yaml, shown, to_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankfall.training.config.cascade_config import CascadeConfig


LossName = Literal[
    "mse_loss",
    "bce_loss",
    "grade_softmax_loss",
    "softmax_loss",
    "listmle_loss",
    "ranknet_loss",
    "lambdarank_loss",
    "lambda_loss",
    "lambda_recall_loss",
    "approx_ndcg_loss",
    "pirank_ndcg_loss",
    "pirank_arp_loss",
    "sort_cross_entropy_loss",
    "relax_loss",
    "topk_bce_loss",
    "arf",
    "arf_v2",
]
Activation = Literal["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "sigmoid"]
Role = Literal["train", "valid", "test"]

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, description="Between checkpoints; there is one after every epoch as well.")]
Kept = Annotated[int, Field(ge=1, description="Checkpoints to continue from, while a training is not finished.")]
TrackerName = Literal["tensorboard", "mlflow"]


# --- the sections -------------------------------------------------------------------------------------------------


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int | float) else value


SplitNames = Annotated[list[str], BeforeValidator(_as_list)]
TrackerNames = Annotated[
    list[TrackerName], BeforeValidator(_as_list), Field(description="Who hears the numbers of metrics.jsonl as well.")
]


class DataConfig(Section):
    """Which prepared lists are for what."""

    path: str = Field(description="A directory made by 'rankfall prepare'.")
    train: SplitNames = Field(min_length=1, description="Splits that are trained on.")
    valid: SplitNames = Field(min_length=1, description="Splits on which training stops and methods are chosen.")
    test: SplitNames = Field(default=[], description="Splits that are only measured.")
    standardise: bool = Field(default=True, description="Mean 0 and variance 1, fitted on the training splits.")
    log1p: bool = Field(default=False, description="Features become sign(v) log(1 + |v|), before standardising.")

    @model_validator(mode="after")
    def _are_apart(self) -> Self:
        names = [*self.train, *self.valid, *self.test]
        for name in names:
            if names.count(name) > 1:
                roles = [role for role in ("train", "valid", "test") for split in self.splits(role) if split == name]
                raise ValueError(f"split {name!r} stands in {' and in '.join(roles)}; a split has one use")
        return self

    def splits(self, role: Role) -> list[str]:
        """The names of the splits that have this use."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[role]


class LinearConfig(Section):
    """A weight for each feature."""

    kind: Literal["linear"] = "linear"


class MLPConfig(Section):
    """A multilayer perceptron on the features of one document."""

    kind: Literal["mlp"] = "mlp"
    hidden: list[Count] = Field(default=[256, 128], min_length=1, description="Widths of the hidden layers.")
    activation: Activation = "relu"
    batch_norm: bool = Field(default=True, description="Normalise each layer over the real documents of a batch.")
    norm_momentum: float = Field(
        default=0.1, gt=0, le=1, description="Share of a batch in the running mean: 1 - 0.999 for TensorFlow's 0.999."
    )
    dropout: Annotated[list[Share], BeforeValidator(_as_list)] = Field(
        default=[0.0], description="One share for all hidden layers, or one for each."
    )
    residual: bool = Field(default=False, description="Add a layer's input to its output where widths match.")

    @model_validator(mode="after")
    def _dropout_fits(self) -> Self:
        if len(self.dropout) not in (1, len(self.hidden)):
            raise ValueError(
                f"dropout has {len(self.dropout)} values for {len(self.hidden)} hidden layers; "
                "give one number, or one for each layer"
            )
        return self


def _model_kind(value: object) -> str:
    kind = value.get("kind", "mlp") if isinstance(value, dict) else getattr(value, "kind", "mlp")
    return f"{KIND}{kind}"


ModelConfig = Annotated[
    Annotated[MLPConfig, Tag(KIND + "mlp")] | Annotated[LinearConfig, Tag(KIND + "linear")], Discriminator(_model_kind)
]


class LossConfig(Section):
    """A loss by its function's name, and that function's options beside it.

    `sort` and `topk` are an operator's name, or a mapping of its name and options: ``{name: soft_sort, power: 2}``.
    """

    model_config = ConfigDict(extra="allow")

    name: LossName

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        from rankfall.training.build import try_loss

        try_loss(self)
        return self


class OptimizerConfig(Section):
    """How weights are changed."""

    name: Literal["adam", "adamw", "adagrad", "sgd"] = "adam"
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float | None = Field(default=None, gt=0, description="Largest norm of a gradient.")


def _is_metric(name: str) -> str:
    from rankfall.metrics.named import parse

    parse(name)
    return name


MetricName = Annotated[str, AfterValidator(_is_metric)]


class MLflowConfig(Section):
    """Where MLflow keeps a run, if ``training.track`` names it."""

    uri: str | None = Field(
        default=None, description="Of a server or a database; by default MLFLOW_TRACKING_URI, or a database in the run."
    )
    experiment: str = Field(default="rankfall", min_length=1)


class TrainingConfig(Section):
    """How long, and on what in turn."""

    epochs: Count = Field(default=30, description="Passes over the training lists, at most.")
    batch: Count = Field(default=64, description="Lists in a batch.")
    patience: Count | None = Field(default=5, description="Epochs without a better validation before stopping.")
    metric: MetricName = Field(default="ndcg@10", description="What validation looks at.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of the first weights, the order of lists and all noise.")
    threads: Count = Field(default=1, description="Of the processor; weights repeat for the same number.")
    max_list: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="Train on a fresh sample of this size of each longer list in every epoch."
    )
    checkpoint_every: Seconds = 300.0
    keep: Kept = 2
    track: TrackerNames = Field(default=[])
    mlflow: MLflowConfig = MLflowConfig()


DEFAULT_METRICS = ["ndcg@1", "ndcg@5", "ndcg@10", "ndcg", "recall@20@10", "opa", "mrr"]


class RankerConfig(Section):
    """Everything a training of one ranker is told."""

    data: DataConfig
    model: ModelConfig = MLPConfig()
    loss: LossConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    metrics: list[MetricName] = Field(default=DEFAULT_METRICS, min_length=1, description="What is evaluated.")


_OTHERS = {  # keys by which other files can be told, and what these are
    "methods": "a comparison, for 'rankfall compare', or a stream, for 'rankfall stream'",
    "search": "a search, for 'rankfall tune'",
}


# --- reading ------------------------------------------------------------------------------------------------------


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RankerConfig | CascadeConfig:
    """The configuration in a YAML file, with ``key=value`` words that change it; of a cascade if it has stages."""
    content = apply_overrides(read_yaml(Path(path)), overrides)
    for key, what in _OTHERS.items():
        if key in content:
            raise ConfigError(f"{path} is {what}: it has the key {key}. Expected the configuration of one training")
    return validate_any(content, where=str(path))


def validate_any(content: Mapping[str, Any], *, where: str = "config") -> RankerConfig | CascadeConfig:
    """A checked configuration, of a cascade if it has stages."""
    from rankfall.training.config.cascade_config import validate_cascade

    return validate_cascade(content, where=where) if "stages" in content else validate(content, where=where)


def validate(content: Mapping[str, Any], *, where: str = "config") -> RankerConfig:
    """A checked configuration of a ranker; `where` stands before what is wrong with it."""
    try:
        return RankerConfig.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def dump_absolute(config: Section) -> str:
    """A configuration as YAML that means the same from any directory."""
    return to_yaml(with_absolute_path(config.model_dump(mode="json")))


def with_absolute_path(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's mapping that finds its data from any directory."""
    return set_option(content, "data.path", str(Path(content["data"]["path"]).absolute()))


def apply_overrides(content: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A configuration's mapping in which ``key.key=value`` words replace what stands there; values are YAML."""
    changed = dict(content)
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"override: found {word!r}, expected key=value such as loss.tau=0.5")
        changed = set_option(changed, key, parse_yaml(text, f"override {word!r}"))
    return changed


def set_option(content: Mapping[str, Any], key: str, value: object) -> dict[str, Any]:
    """A copy in which a dotted key has a value: ``model.hidden.0`` is the first of a list.

    >>> set_option({"loss": {"name": "relax_loss", "m": 20}}, "loss.m", 5)
    {'loss': {'name': 'relax_loss', 'm': 5}}
    """
    changed = copy.deepcopy(dict(content))
    *parents, last = key.split(".")
    place: Any = changed
    for depth, part in enumerate(parents):
        place = _enter(place, part, ".".join(parents[:depth]))
    if _names_another(place, key, value):
        place.clear()
    if isinstance(place, list):
        place[_position(place, last, ".".join(parents))] = value
    else:
        place[last] = value
    return changed


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `changes` says differently. Naming another loss or model drops the options of the old one.

    >>> merge({"loss": {"name": "relax_loss", "m": 20}}, {"loss": {"name": "softmax_loss"}})
    {'loss': {'name': 'softmax_loss'}}
    """
    return _merge(base, changes, "")


_CHOOSERS = {
    "loss.name": None,
    "model.kind": "mlp",
    "objective.name": None,
}  # keys to which their neighbours belong, and their defaults


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any], section: str) -> dict[str, Any]:
    another = any(_names_another(base, f"{section}{key}", value) for key, value in changes.items())
    merged = {} if another else copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(merged.get(key), dict) and isinstance(value, dict):
            merged[key] = _merge(merged[key], value, f"{section}{key}.")
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _names_another(section: Mapping[str, Any], key: str, value: object) -> bool:
    return key in _CHOOSERS and section.get(key.rpartition(".")[2], _CHOOSERS[key]) != value


def _enter(place: Any, part: str, path: str) -> Any:
    """The mapping or list under one word of a dotted key, made if it is missing."""
    if isinstance(place, list):
        inner = place[_position(place, part, path)]
    else:
        if place.get(part) is None:
            place[part] = {}
        inner = place[part]
    if not isinstance(inner, dict | list):
        full = f"{path}.{part}".lstrip(".")
        raise ConfigError(f"override: {full} is {shown(inner)}, which has no keys; give {full} a new value as a whole")
    return inner


def _position(items: list[Any], part: str, path: str) -> int:
    if not part.isdecimal() or int(part) >= len(items):
        raise ConfigError(f"override: {path} has {len(items)} items, numbered from 0; found {part!r}")
    return int(part)
