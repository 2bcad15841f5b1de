"""Configuration of a training run of a cascade: log, stages, objective.

.. code-block:: yaml

    data:      {path: log, train: 2024-01-13..2024-02-01, valid: 2024-02-02, test: 2024-02-03}
    relevant:  10
    stages:
      - {name: retrieval, quota: 30, model: {kind: two_tower}}
      - {name: ranking, quota: 20, model: {kind: din}, min_depth: rank_neg}
    objective: {name: lcron, topk: {name: dftopk, tau: {start: 10, end: 1}}}
    optimizer: {lr: 1e-2}
    training:  {epochs: 1, batch: 1024}
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from rankfall._config import MAX_COUNT, OptionError, Section, shown
from rankfall._errors import RankfallError, did_you_mean
from rankfall.registry import metric_names
from rankfall.registry.references import absolute_references, split_cutoffs
from rankfall.training.config import component_checks as checks
from rankfall.training.config import sections

if TYPE_CHECKING:
    from collections.abc import Mapping

if TYPE_CHECKING:
    ObjectiveName = str
else:  # a type checker accepts only types that are written out
    ObjectiveName = checks.component_name("objective")


def _check_list_length(value: object) -> object:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT):
        return value
    raise RankfallError(
        f"found {shown(value)}{did_you_mean(value, ['all'])}, expected a whole number from 1 to {MAX_COUNT}, or all"
    )


Length = Annotated[sections.Count | Literal["all"], BeforeValidator(_check_list_length)]


def _check_depth(value: int | str | None) -> int | str | None:
    if isinstance(value, int) and not -1 <= value <= MAX_COUNT:
        raise RankfallError(f"found {shown(value)}, expected the number of a logged stage, or -1 for random negatives")
    return value


class LogConfig(Section):
    """Impression log: its directory, and the days for training, validation and testing."""

    path: str = Field(description="Directory made by 'rankfall simulate' or 'rankfall prepare'.")
    train: sections.Names = Field(min_length=1, description="Days, or ranges FIRST..LAST, to train on in this order.")
    valid: sections.Names = Field(min_length=1, description="Days for early stopping and for choosing settings.")
    test: sections.Names = Field(default=[], description="Days for the final evaluation only.")
    negatives: int = Field(default=0, ge=0, le=MAX_COUNT, description="Random items added to every training list.")
    negatives_from: Literal["items", "batch"] = Field(
        default="items",
        description="Pool of random items: those in the log by the end of the day, or those of the batch.",
    )
    length: Length | None = Field(
        default=None,
        description="Length of validation and test lists, filled up with random items; all: every item that is in the "
        "log by the end of the day, as in a service.",
    )
    length_from: Literal["items", "batch"] = Field(
        default="items",
        description="Pool of the random items of `length`, as for negatives_from. Lists that are filled up from the "
        "batch depend on training.batch.",
    )
    labels: Literal["full", "published", "rank", "relevance"] = Field(
        default="full",
        description="Grades that objectives are trained with: the full-stage grades of the log, those of LCRON's "
        "table 1, which order only the items of the relevant stage, the order by logged rank alone, or that by "
        "relevance alone. Metrics do not depend on this option.",
    )

    least_informative: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="Training is refused if the objective can learn an order from at most this share of the training "
        "lists; 0: only if there is none.",
    )

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.length == "all" and self.length_from == "batch":
            raise RankfallError("length_from: found 'batch' with length 'all', which takes every item and draws none")
        return self

    def days(self, role: sections.Role) -> list[str]:
        """Return the names and ranges of days for one use."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[role]


class StageConfig(Section):
    """Stage of a cascade: a model and the number of items it keeps."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Name of the stage in tables and metrics.")
    quota: sections.Count = Field(description="Number of items that the stage keeps.")
    model: dict[str, Any] = Field(
        description="kind (two_tower, din, mlp, or the name or reference of your own model) and the options of the "
        "model, or preset and the options that differ."
    )
    min_depth: Annotated[int | str | None, AfterValidator(_check_depth)] = Field(
        default=None,
        description="Items that the objective bce trains this stage on: those that reached the logged stage of this "
        "number or name.",
    )

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        try:
            checks.check_model(self.model)
        except OptionError as error:
            raise error.inside("model") from None
        return self

    @field_validator("model")
    @classmethod
    def _replace_preset(cls, model: dict[str, Any]) -> dict[str, Any]:
        return sections.with_preset(absolute_references(model), embedded=True)


class ObjectiveConfig(sections.ComponentSection):
    """Name of an objective, and its options as further keys. The stages supply quotas and their own number.

    A temperature is a number, or ``{start: 10, end: 1, schedule: exponential}`` over the whole training run.
    """

    name: ObjectiveName = Field(
        description="A built-in or registered objective, MODULE:ATTRIBUTE or ./FILE.py:ATTRIBUTE."
    )

    @property
    def classifies(self) -> bool:
        """Whether the loss of the stages takes logits of the label grades instead of scores."""
        loss = self.options.get("loss") if self.name == "per_stage" else None
        return (loss.get("name") if isinstance(loss, dict) else loss) == "grade_softmax_loss"

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        checks.check_component("objective", self.name, self.options)
        return self


_METRICS = "joint_recall, STAGE/alone/recall or STAGE/alone/ndcg, joint_value, or joint/FEEDBACK"


def _is_cascade_metric(name: str) -> str:
    if name not in (checks.JOINT, checks.JOINT_VALUE) and "/" not in name:
        raise ValueError(f"found {name!r}, expected {_METRICS}")
    return checks.absolute_metric(name)


def _is_stage_metric(name: str) -> str:
    if name == "ndcg":
        raise ValueError("found 'ndcg', which is always measured, with gain 1 or 0; expected ndcg_linear or ndcg@k")
    metric_names.check_word(name, (checks.PUBLISHED_NDCG, checks.VALUE_NDCG))
    word, listed = split_cutoffs(name)[0], checks.list_metric(name)
    try:
        checked = checks.check_metric(listed)
    except ValueError as error:  # names the metric of lists that is applied
        raise ValueError(str(error).replace(checks.list_metric(word), word)) from None
    return checked if listed == name else name


StageMetric = Annotated[str, AfterValidator(_is_stage_metric)]


class WeightConfig(Section):
    """Weights of items in the objective: base + scale * value, at least 0 and at most clip.

    With `examination`, clicked items have the weight 1 / examination of their position instead, all others 1. With
    ``of: inclusion``, items have the weight 1 / the probability of their draw, divided by the mean of the list.
    """

    of: str = Field(
        description="relevance, a feedback column, an item feature that is a single number, or inclusion: the "
        "probability with which an item was drawn for the log."
    )
    examination: str | None = Field(
        default=None,
        description="File of 'rankfall examination': weight items with the feedback `of` by inverse propensities.",
    )
    base: float = Field(default=1.0, ge=0, description="Weight of an item with the value 0.")
    scale: float = Field(default=1.0, ge=0, description="Weight that a value of 1 adds.")
    clip: float = Field(default=100.0, gt=0, description="Largest weight; with examination by default 10.")

    @model_validator(mode="before")
    @classmethod
    def _clip_propensities(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("examination") is not None:
            return {"clip": 10.0, **value}
        return value

    @model_validator(mode="after")
    def _is_not_constant(self) -> Self:
        if self.examination is not None:
            if (self.base, self.scale) != (1.0, 1.0) or self.clip <= 1:
                raise RankfallError(
                    f"found base {self.base:g}, scale {self.scale:g} and clip {self.clip:g} with examination, expected "
                    "no base, no scale and a clip above 1"
                )
            return self
        if self.scale == 0 or self.base >= self.clip:
            raise RankfallError(
                f"found base {self.base:g}, scale {self.scale:g} and clip {self.clip:g}, so that all items have the "
                "same weight; expected a scale above 0 and a base below clip"
            )
        return self


def _weight_of(value: object) -> object:
    return {"of": value} if isinstance(value, str) else value


def _is_feedback(name: str) -> str:
    if name.partition("@")[0] in checks.RESERVED or "/" in name:
        raise RankfallError(f"found {name!r}, whose metric would have the name of another one; rename the feedback")
    return name


Pooling = Literal["sum", "rate"]
Feedback = dict[Annotated[str, AfterValidator(_is_feedback)], Pooling]
"""How the survival of feedback is measured, by its name."""


class CascadeOptimizerConfig(sections.OptimizerConfig):
    """Optimizer and its options, with the default learning rate of the papers on cascades."""

    lr: float = Field(default=1e-2, gt=0, description="Learning rate.")


class CascadeTrainingConfig(Section):
    """Epochs, batch size, early stopping and checkpoints."""

    epochs: sections.Count = Field(default=1, description="Passes over the training days.")
    batch: sections.Count = Field(default=1024, description="Impressions per batch.")
    patience: sections.Patience = None
    validate_every: sections.Count = Field(
        default=1,
        description="Epochs between validations. The last epoch is always validated. Only weights of validated epochs "
        "can become the best ones.",
    )
    metric: Annotated[str, AfterValidator(_is_cascade_metric)] = Field(
        default="joint_recall", description="Metric of early stopping and of the best checkpoint."
    )
    seed: sections.Seed = 0
    threads: sections.Threads = 1
    device: sections.DeviceName = "auto"
    precision: sections.Precision = "float32"
    compile: sections.Compile = False
    start_from: Annotated[str, AfterValidator(lambda path: str(Path(path).absolute()))] | None = Field(
        default=None, description="Directory of a run with the same models, whose best weights training starts from."
    )
    window: sections.Count = Field(default=1 << 15, description="Number of impressions that are shuffled together.")
    checkpoint_every: sections.Seconds = 300.0
    keep: sections.Kept = 2
    track: sections.TrackerNames = Field(default=[])
    mlflow: sections.MLflowConfig = sections.MLflowConfig()


class CascadeConfig(Section):
    """Configuration of a training run of a cascade."""

    data: LogConfig
    relevant: sections.Count = Field(default=10, description="Relevant items per impression: those of the best grades.")
    stages: list[StageConfig] = Field(min_length=1, description="Stages in the order of the cascade.")
    share: list[str] = Field(default=[], description="Embedding tables that all stages share.")
    objective: ObjectiveConfig
    weight: Annotated[WeightConfig | None, BeforeValidator(_weight_of)] = Field(
        default=None,
        description="Weights of items in the objective: a name such as revenue, or of, base, scale and clip, "
        "or examination, of and clip.",
    )
    optimizer: CascadeOptimizerConfig = CascadeOptimizerConfig()
    training: CascadeTrainingConfig = CascadeTrainingConfig()
    stage_metrics: list[StageMetric] = Field(
        default=[], description="Further metrics of each stage alone over the whole list, such as ndcg_linear@10."
    )
    feedback: Feedback = Field(
        default={},
        description="Feedback of the log whose share that survives each stage is measured: sum pools all requests, "
        "rate is the mean over requests that have some. Example: {revenue: sum, purchase: rate}.",
    )

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        names = [stage.name for stage in self.stages]
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if stage.quota > before.quota:
                raise RankfallError(
                    f"stages: {stage.name} keeps {stage.quota} items, but {before.name} before it keeps {before.quota}"
                )
        for name in names:
            if names.count(name) > 1:
                raise RankfallError(f"stages: two stages have the name {name!r}")
        for place, stage in enumerate(self.stages):
            if self.objective.classifies and stage.model.get("grades") is None:
                raise RankfallError(
                    f"stages.{place}.model.grades: missing; grade_softmax_loss needs one output per grade, but a stage "
                    "gives one score without this option of din and mlp"
                )
        if self.feedback and "joint" in names:
            raise RankfallError(
                "stages: a stage has the name 'joint', which metrics of feedback use for the whole cascade"
            )
        self._check_metric(names)
        return self

    def _check_metric(self, names: list[str]) -> None:
        metric = self.training.metric
        if metric in (checks.JOINT, checks.JOINT_VALUE, *self.metrics):
            if checks.imports_allowed() and not checks.higher_is_better(metric):
                raise ValueError(f"training.metric: found {metric!r}, expected {_METRICS}")
            return
        if checks.split_stage(metric)[0] not in (*names, "joint"):
            raise RankfallError(f"training.metric: found {metric!r}, the stages are {', '.join(names)}")
        everywhere = checks.measures(names, self.stage_metrics, self.feedback)
        if metric in everywhere:
            raise RankfallError(
                f"training.metric: found {metric!r}, which is not measured with data.length all, because later stages "
                f"do not score all items; expected one of {', '.join(self.metrics)}"
            )
        raise RankfallError(
            f"training.metric: found {metric!r}, expected joint_recall, STAGE/alone/recall, STAGE/alone/ndcg, "
            f"STAGE/alone/ with one of stage_metrics ({', '.join(self.stage_metrics) or 'which is empty'}), "
            "joint_value, or joint/FEEDBACK with "
            f"one of feedback ({', '.join(self.feedback) or 'which is empty'})"
        )

    @property
    def metrics(self) -> list[str]:
        """The metrics of the evaluation that every log has."""
        names = [stage.name for stage in self.stages]
        return checks.measures(names, self.stage_metrics, self.feedback, complete=self.data.length != "all")


def validate_cascade(content: Mapping[str, Any], *, where: str = "config") -> CascadeConfig:
    """Validate a mapping as the configuration of a cascade.

    Args:
        content: The mapping.
        where: Prefix of error messages, such as the path of the file.

    Raises:
        ConfigError: If a key or value is wrong. The message names every wrong key.
    """
    return checks.validate_model(CascadeConfig, content, where)
