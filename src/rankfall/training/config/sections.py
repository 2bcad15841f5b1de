"""Types and sections that the configurations of rankers and of cascades share."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import MAX_COUNT, Section
from rankfall.option_types import Activation as Activation
from rankfall.option_types import Init as Init
from rankfall.option_types import Share as Share
from rankfall.registry.references import absolute_references


class ComponentSection(Section):
    """Name or kind of a component, and its options as further keys."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the component, without its name or kind."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _make_paths_absolute(cls, content: object) -> object:
        return absolute_references(content)


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
"""A whole number of at least 1."""

Role = Literal["train", "valid", "test"]
TrackerName = Literal["tensorboard", "mlflow"]
Seed = Annotated[
    int, Field(ge=0, lt=2**63, description="Seed of the initial weights, the order of the data and all noise.")
]
Threads = Annotated[
    int,
    Field(ge=1, le=1024, description="CPU threads. The same number of threads gives the same weights, bit for bit."),
]
Seconds = Annotated[float, Field(ge=0, description="Time between checkpoints. There is one after every epoch as well.")]
Kept = Annotated[Count, Field(description="Checkpoints kept for resuming until the training run has finished.")]
Patience = Annotated[
    Count | None, Field(description="Stop after this many validations without a better validation metric.")
]


def _is_device(name: str) -> str:
    if not re.fullmatch(DEVICES, name):
        allowed = ["auto", "cpu", "cuda", "mps"]
        raise ValueError(f"found {name!r}{did_you_mean(name, allowed)}, expected auto, cpu, cuda, cuda:N or mps")
    return name


DEVICES = r"auto|cpu|cuda(:(0|[1-9]\d*))?|mps"
DeviceName = Annotated[
    str,
    AfterValidator(_is_device),
    Field(
        description="Device that computes: cpu, cuda, cuda:N or mps; auto: cuda if there is a GPU, else cpu. Another "
        "device changes the last digits.",
        json_schema_extra={"pattern": f"^({DEVICES})$"},
    ),
]
Precision = Annotated[
    Literal["float32", "bfloat16"],
    Field(
        description="Numbers that models compute with in training. Weights, objectives, losses, validation and "
        "evaluation are always float32."
    ),
]
Compile = Annotated[
    bool, Field(description="Compile the models for training with torch.compile, which changes the last digits.")
]


def as_list(value: object) -> object:
    """Return a single name or number as a list of one, and everything else unchanged."""
    return [value] if isinstance(value, str | int | float) else value


def as_names(value: object) -> Any:
    """Return names of days or splits as a list. A whole number, such as the day 20240113, is a name without quotes."""
    names = as_list(value)
    if not isinstance(names, list):
        return names
    return [str(name) if isinstance(name, int) and not isinstance(name, bool) else name for name in names]


Names = Annotated[list[str], BeforeValidator(as_names)]
TrackerNames = Annotated[
    list[TrackerName],
    BeforeValidator(as_list),
    Field(description="Experiment trackers that also receive the numbers of metrics.jsonl."),
]


class OptimizerConfig(Section):
    """Optimizer and its options."""

    name: Literal["adam", "adamw", "adagrad", "sgd"] = Field(default="adam", description="Optimizer of torch.")
    lr: float = Field(default=1e-3, gt=0, description="Learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of the optimizer.")
    clip: float | None = Field(default=None, gt=0, description="Largest norm of the gradient of all weights together.")


class MLflowConfig(Section):
    """MLflow server and experiment, used if ``training.track`` names mlflow."""

    uri: str | None = Field(
        default=None,
        description="Server or database; by default MLFLOW_TRACKING_URI, or a database in the run directory.",
    )
    experiment: str = Field(default="rankfall", min_length=1, description="Name of the experiment.")
