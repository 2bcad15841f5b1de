"""Methods of a table, and the protocols by which a paper trained them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rankfall._config import Section
from rankfall.reproductions.paper_schema.printed import Number, Positive
from rankfall.reproductions.paper_schema.variables import variables_in

Options = dict[str, Any]  # part of a training configuration, which checks it


class Method(Section):
    """A method of a table: what it changes in the training configuration.

    Attributes:
        name: The name in our tables.
        config: Sections of the configuration, such as ``loss`` or ``objective``. Without tuning they are used as is.
        tune: Values tried on validation data, by dotted key of the configuration, beside learning rates unless the
            protocol keeps that of the paper.
        variant: "published" if it computes what produced the printed row, "sound" if it is our better version, which is
            only run with ``--improved``. None where both agree.
        row: The printed row it belongs to, if that is not called `name`.
    """

    name: str
    config: Options
    tune: dict[str, Annotated[list[Number], Field(min_length=2)]] = Field(default_factory=dict)
    variant: Literal["published", "sound"] | None = None
    row: str | None = None


class ListProtocol(Section):
    """How a paper prepared ranking lists and trained on them.

    Attributes:
        recipe: Options of `rankfall.data.Recipe`.
        network: The ``model`` section. Small data sets get a smaller network.
        metric: The validation metric.
        epochs: Largest number of epochs on data as large as the paper's.
        steps: Number of training steps on data as large as the paper's, without early stopping.
        optimizer: The ``optimizer`` section. Its `lr` is that of methods for which none is tuned.
        rates: Learning rates that the paper tried. They replace ours.
        data: Options of the ``data`` section, such as standardisation.
    """

    recipe: dict[str, int | bool]
    network: Options
    metric: str
    epochs: Positive | None = None
    steps: Positive | None = None
    optimizer: Options = Field(default_factory=dict)
    rates: list[float] = Field(default_factory=list)
    data: Options = Field(default_factory=dict)


class StageProtocol(Section):
    """A stage of a published cascade.

    Attributes:
        model: The ``model`` section.
        small_model: The ``model`` section for logs that are too small to train `model`.
        min_depth: Training with BCE uses the items that reached at least this stage, if the log has as many stages.
    """

    name: str
    quota: Positive
    model: Options
    small_model: Options | None = None
    min_depth: int | None = None


class CascadeProtocol(Section):
    """How a paper trained a cascade.

    Attributes:
        platform: The preset that is simulated if the user names no log.
        stages: The stages in order.
        relevant: Number of relevant items per impression.
        items: Number of items per impression, where it selects among several protocols.
        batch: Impressions per batch, as published. Small logs get smaller batches.
        lr: Learning rate of methods for which none is tuned.
        data: Options of the ``data`` section, such as the label scheme.
        optimizer: Options of the ``optimizer`` section beside `lr`.
        keep_rate: Whether the published methods keep `lr`, and only the settings in their `tune` are tuned.
        stage_metrics: Further metrics of each stage.
    """

    platform: str
    stages: list[StageProtocol] = Field(min_length=1)
    relevant: Positive
    items: Positive | None = None
    batch: Positive = 1024
    lr: float = 0.01
    data: Options = Field(default_factory=dict)
    optimizer: Options = Field(default_factory=dict)
    keep_rate: bool = False
    stage_metrics: list[str] = Field(default_factory=list)


def check_names(methods: list[Method]) -> None:
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"methods: found {name!r} {names.count(name)} times, expected different names")


def check_known(key: str, name: str, methods: list[Method]) -> None:
    names = [method.name for method in methods]
    if name not in names:
        raise ValueError(f"{key}: found {name!r}, expected {', '.join(names)}")


def check_variables(methods: list[Method], known: set[str], *, required: set[str]) -> None:
    for method in methods:
        found = variables_in(method.config)
        if not required <= found <= known:
            text = f"the variables {_listed(found)}" if found else "no variable"
            raise ValueError(f"methods.{method.name}: found {text}, expected {_listed(required or known) or 'none'}")


def _listed(variables: set[str]) -> str:
    return ", ".join(f"${name}" for name in sorted(variables))
