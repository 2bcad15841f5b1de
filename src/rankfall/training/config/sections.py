"""Types and sections that the configurations of rankers and of cascades share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from rankfall._config import MAX_COUNT, OptionError, Section
from rankfall._errors import RankfallError, did_you_mean
from rankfall.registry.references import absolute_references

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        raise RankfallError(f"found {name!r}{did_you_mean(name, allowed)}, expected auto, cpu, cuda, cuda:N or mps")
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
    """Optimizer and its options.

    Attributes:
        name: Optimizer of torch.
        lr: Learning rate.
        weight_decay: Weight decay of the optimizer.
        clip: Largest norm of the gradient of all weights together.
    """

    name: Literal["adam", "adamw", "adagrad", "sgd"] = "adam"
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float | None = Field(default=None, gt=0)


class MLflowConfig(Section):
    """MLflow server and experiment, used if ``training.track`` names mlflow.

    Attributes:
        uri: Server or database; by default MLFLOW_TRACKING_URI, or a database in the run directory.
        experiment: Name of the experiment.
    """

    uri: str | None = None
    experiment: str = Field(default="rankfall", min_length=1)


_PRELU = {"activation": "prelu", "init": "he", "batch_norm": True, "norm_momentum": 0.001}
_SELU = {"activation": "selu", "residual": True, "batch_norm": True, "norm_momentum": 0.001}

_STAGES: dict[str, dict[str, dict[str, Any]]] = {
    "arf_industrial": {"mlp": {"hidden": [1024, 256, 256, 256], **_SELU}},  # ARF, appendix B.3
    "lcron_industrial": {  # LCRON, appendix B
        "two_tower": {"dim": 64, "hidden": [1024, 256, 256, 64], **_PRELU},
        "mlp": {"dim": 64, "hidden": [1024, 512, 512], **_PRELU},
    },
    "dftopk_industrial": {  # DFTopK, appendix E
        "two_tower": {"dim": 96, "hidden": [1024, 768, 768, 96], **_PRELU},
        "mlp": {"dim": 96, "hidden": [1024, 768, 768], **_PRELU},
    },
}

PRESETS = tuple(_STAGES)
"""Names of the presets."""


def with_preset(model: Mapping[str, Any], *, embedded: bool) -> dict[str, Any]:
    """Return the options of a model with the name of a preset replaced by the options of the preset.

    Args:
        model: Kind of the model, its options, and ``preset``, if there is one.
        embedded: Whether the model embeds features. The model of a ranker takes numbers, so `dim` does not apply.

    Raises:
        OptionError: If there is no such preset, or it has no model of this kind.

    Examples:
        >>> with_preset({"kind": "mlp", "preset": "arf_industrial", "hidden": [8, 8]}, embedded=False)["hidden"]
        [8, 8]
    """
    options = dict(model)
    name = options.pop("preset", None)
    if name is None:
        return options
    if name not in _STAGES:
        raise OptionError(f"found {name!r}{did_you_mean(name, PRESETS)}; allowed are {', '.join(PRESETS)}", "preset")
    kind = options.get("kind", "mlp")
    if kind not in _STAGES[name]:
        raise OptionError(f"found {name!r}, which has {' and '.join(_STAGES[name])}, not {kind!r}", "preset")
    preset = {key: value for key, value in _STAGES[name][kind].items() if embedded or key != "dim"}
    return preset | options
