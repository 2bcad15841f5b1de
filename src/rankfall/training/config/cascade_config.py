"""What the training of a cascade is told: the log, the stages, the objective.

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

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rankfall._settings import ConfigError, Section, explain
from rankfall.training.cascade_metrics import measures
from rankfall.training.config.ranker_config import Count, Kept, MLflowConfig, OptimizerConfig, Seconds, TrackerNames

if TYPE_CHECKING:
    from collections.abc import Mapping

ObjectiveName = Literal[
    "bce", "icc", "rankflow", "fs_ranknet", "fs_lambda_loss", "sort_ce", "arf", "arf_v2", "lcron", "per_stage"
]
Role = Literal["train", "valid", "test"]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int) else value


DayNames = Annotated[list[str], BeforeValidator(_as_list)]


class LogConfig(Section):
    """Which days of an impression log are for what."""

    path: str = Field(description="A directory made by 'rankfall simulate' or 'rankfall prepare'.")
    train: DayNames = Field(min_length=1, description="Days, or ranges FIRST..LAST, that are trained on in this order.")
    valid: DayNames = Field(min_length=1, description="Days on which training stops and methods are chosen.")
    test: DayNames = Field(default=[], description="Days that are only measured.")
    negatives: int = Field(default=0, ge=0, description="Items added at random to every training list.")
    negatives_from: Literal["items", "batch"] = Field(
        default="items", description="Those that the log knows by the end of the day, or those of the batch."
    )
    length: Count | None = Field(default=None, description="Items of validation and test lists, the rest at random.")

    def days(self, role: Role) -> list[str]:
        """The days that have this use."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[role]


class StageConfig(Section):
    """A model and the number of items it keeps."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    quota: Count
    model: dict[str, Any] = Field(description="kind: two_tower, din or mlp, and its options.")
    min_depth: int | str | None = Field(
        default=None,
        description="What this stage sees in training by bce: items that got at least so far in the log, to the stage "
        "of this number or name there.",
    )

    @model_validator(mode="after")
    def _model_can_be_made(self) -> Self:
        from rankfall.training.build_cascade import try_model

        try_model(self.model)
        return self


class ObjectiveConfig(Section):
    """An objective by name, and its options beside it; quotas and the number of stages are known already.

    A temperature is a number, or ``{start: 10, end: 1, schedule: exponential}`` over the whole training.
    """

    model_config = ConfigDict(extra="allow")

    name: ObjectiveName

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.model_extra or {})


def _is_cascade_metric(name: str) -> str:
    if name != "joint_recall" and not name.endswith(("/recall", "/ndcg")):
        raise ValueError(f"found {name!r}, expected joint_recall, STAGE/recall or STAGE/ndcg")
    return name


class CascadeOptimizerConfig(OptimizerConfig):
    """How weights are changed; the default is that of the papers on cascades."""

    lr: float = Field(default=1e-2, gt=0)


class CascadeTrainingConfig(Section):
    """How long, and on what in turn."""

    epochs: Count = Field(default=1, description="Passes over the training days.")
    batch: Count = Field(default=1024, description="Impressions in a batch.")
    patience: Count | None = Field(default=None, description="Epochs without a better validation before stopping.")
    metric: Annotated[str, AfterValidator(_is_cascade_metric)] = Field(
        default="joint_recall", description="What validation looks at."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of the first weights, the order of impressions, noise.")
    threads: Count = Field(default=1, description="Of the processor; weights repeat for the same number.")
    window: Count = Field(default=1 << 15, description="Impressions that are shuffled together.")
    checkpoint_every: Seconds = 300.0
    keep: Kept = 2
    track: TrackerNames = Field(default=[])
    mlflow: MLflowConfig = MLflowConfig()


class CascadeConfig(Section):
    """Everything a training of a cascade is told."""

    data: LogConfig
    relevant: Count = Field(default=10, description="Relevant items of an impression, those of the best grades.")
    stages: list[StageConfig] = Field(min_length=1)
    share: list[str] = Field(default=[], description="Embedding tables that all stages have in common.")
    objective: ObjectiveConfig
    optimizer: CascadeOptimizerConfig = CascadeOptimizerConfig()
    training: CascadeTrainingConfig = CascadeTrainingConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [stage.name for stage in self.stages]
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if stage.quota > before.quota:
                raise ValueError(
                    f"stages: {stage.name} keeps {stage.quota} items, but {before.name} before it only {before.quota}"
                )
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"stages: {name!r} stands there twice")
        metric = self.training.metric
        if metric != "joint_recall" and metric.rpartition("/")[0] not in names:
            raise ValueError(f"training.metric: found {metric!r}, the stages are {', '.join(names)}")
        from rankfall.training.build_cascade import try_objective

        try_objective(self)
        return self

    @property
    def metrics(self) -> list[str]:
        """What is evaluated."""
        return measures([stage.name for stage in self.stages])


def validate_cascade(content: Mapping[str, Any], *, where: str = "config") -> CascadeConfig:
    """A checked configuration of a cascade; `where` stands before what is wrong with it."""
    try:
        return CascadeConfig.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None
