"""Configuration of a training run of one ranker.

It has one section per part: data, model, loss, optimizer, training, metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from rankfall import registry
from rankfall._config import KIND, OptionError, Section
from rankfall._errors import RankfallError, did_you_mean
from rankfall.option_types import Activation, Init, Share
from rankfall.training.config import component_checks as checks
from rankfall.training.config import sections

if TYPE_CHECKING:
    from collections.abc import Mapping


if TYPE_CHECKING:
    LossName = str
else:  # a type checker accepts only types that are written out
    LossName = checks.component_name("loss")


class DataConfig(Section):
    """Prepared lists: their directory, and the splits for training, validation and testing."""

    path: str = Field(description="Directory made by 'rankfall prepare'.")
    train: sections.Names = Field(min_length=1, description="Splits to train on.")
    valid: sections.Names = Field(min_length=1, description="Splits for early stopping and for choosing settings.")
    test: sections.Names = Field(default=[], description="Splits for the final evaluation only.")
    standardise: bool = Field(
        default=True, description="Scale features to mean 0 and variance 1, as in the training splits."
    )
    log1p: bool = Field(default=False, description="Replace a feature v by sign(v) log(1 + |v|) before standardising.")

    @model_validator(mode="after")
    def _check_one_use(self) -> Self:
        names = [*self.train, *self.valid, *self.test]
        for name in names:
            if names.count(name) > 1:
                roles = [role for role in ("train", "valid", "test") for split in self.splits(role) if split == name]
                raise RankfallError(f"split {name!r} is in {' and in '.join(roles)}; a split has one use")
        return self

    def splits(self, role: sections.Role) -> list[str]:
        """Return the names of the splits for one use."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[role]


class LinearConfig(Section):
    """Linear model: one weight per feature."""

    kind: Literal["linear"] = "linear"


def _describe_preset(schema: dict[str, Any]) -> None:
    schema["properties"]["preset"] = {
        "enum": list(sections.PRESETS),
        "description": "Network of a paper, as the other options.",
    }


class MLPConfig(Section):
    """Multilayer perceptron on the features of one document."""

    model_config = ConfigDict(json_schema_extra=_describe_preset)  # no field: it is replaced before validation

    kind: Literal["mlp"] = "mlp"
    hidden: list[sections.Count] = Field(default=[256, 128], min_length=1, description="Widths of the hidden layers.")
    activation: Activation = Field(default="relu", description="Activation of the hidden layers.")
    batch_norm: bool = Field(default=True, description="Normalise each layer over the real documents of a batch.")
    norm_momentum: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Weight of a batch in running statistics: 0.001 is TensorFlow's momentum 0.999.",
    )
    dropout: Annotated[list[Share], BeforeValidator(sections.as_list)] = Field(
        default=[0.0], description="Dropout rate of all hidden layers, or a list with one rate per layer."
    )
    residual: bool = Field(default=False, description="Add a layer's input to its output where widths match.")
    init: Init = Field(default="default", description="Initial weights: torch's, or those of He et al. (2015).")

    @model_validator(mode="after")
    def _check_dropout(self) -> Self:
        if len(self.dropout) not in (1, len(self.hidden)):
            raise RankfallError(
                f"dropout has {len(self.dropout)} values for {len(self.hidden)} hidden layers; "
                "give one number, or one for each layer"
            )
        return self


class OwnModelConfig(sections.ComponentSection):
    """Model of a user by its registered name or reference, and its options as further keys."""

    kind: str = Field(description="A registered name, MODULE:ATTRIBUTE or ./FILE.py:ATTRIBUTE.")

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        checks.check_model({"kind": self.kind, **self.options})
        return self


_BUILT_IN = ("mlp", "linear")
_OWN = "own"


def _read_model(value: object) -> object:
    if not isinstance(value, dict):
        return value
    kind = value.get("kind", "mlp")
    if kind not in _BUILT_IN and not (registry.is_own("model", kind)):
        hint = checks.like_reference(kind) or did_you_mean(kind, _BUILT_IN)
        raise OptionError(f"found {kind!r}{hint}; allowed are {', '.join(_BUILT_IN)}", "kind")
    return sections.with_preset(value, embedded=False)


def _model_kind(value: object) -> str:
    kind = value.get("kind", "mlp") if isinstance(value, dict) else getattr(value, "kind", "mlp")
    return f"{KIND}{kind if kind in _BUILT_IN else _OWN}"


ModelConfig = Annotated[
    Annotated[MLPConfig, Tag(KIND + "mlp")]
    | Annotated[LinearConfig, Tag(KIND + "linear")]
    | Annotated[OwnModelConfig, Tag(KIND + _OWN)],
    Discriminator(_model_kind),
    BeforeValidator(_read_model),
]


class LossConfig(sections.ComponentSection):
    """Name of a loss function, and its options as further keys.

    The options `sort` and `topk` take an operator's name, or its name and options: ``{name: soft_sort, power: 2}``.
    """

    name: LossName = Field(description="A built-in or registered loss, MODULE:ATTRIBUTE or ./FILE.py:ATTRIBUTE.")

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        checks.check_component("loss", self.name, self.options)
        return self


MetricName = Annotated[str, AfterValidator(checks.check_metric)]


class TrainingConfig(Section):
    """Epochs, batch size, early stopping and checkpoints."""

    epochs: sections.Count = Field(default=30, description="Largest number of passes over the training lists.")
    batch: sections.Count = Field(default=64, description="Lists per batch.")
    patience: sections.Patience = 5
    metric: MetricName = Field(default="ndcg@10", description="Metric of early stopping and of the best checkpoint.")
    seed: sections.Seed = 0
    threads: sections.Threads = 1
    device: sections.DeviceName = "auto"
    precision: sections.Precision = "float32"
    compile: sections.Compile = False
    max_list: Annotated[sections.Count, Field(ge=2)] | None = Field(
        default=None, description="Train on a new random sample of this size of each longer list in every epoch."
    )
    checkpoint_every: sections.Seconds = 300.0
    keep: sections.Kept = 2
    track: sections.TrackerNames = Field(default=[])
    mlflow: sections.MLflowConfig = sections.MLflowConfig()


DEFAULT_METRICS = ["ndcg@1", "ndcg@5", "ndcg@10", "ndcg", "recall@20@10", "opa", "mrr"]


class RankerConfig(Section):
    """Configuration of a training run of one ranker."""

    data: DataConfig
    model: ModelConfig = Field(default=MLPConfig(), description="Model of the documents: its kind and options.")
    loss: LossConfig
    optimizer: sections.OptimizerConfig = sections.OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    metrics: list[MetricName] = Field(default=DEFAULT_METRICS, min_length=1, description="Metrics of the evaluation.")


def validate(content: Mapping[str, Any], *, where: str = "config") -> RankerConfig:
    """Validate a mapping as the configuration of a ranker.

    Args:
        content: The mapping.
        where: Prefix of error messages, such as the path of the file.

    Raises:
        ConfigError: If a key or value is wrong. The message names every wrong key.
    """
    return checks.validate_model(RankerConfig, content, where)
