"""Train a cascade as one network."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankfall._config import ConfigError
from rankfall._errors import RankfallError
from rankfall.cascade import Cascade
from rankfall.data.impressions.compatibility import encoding_signature
from rankfall.data.impressions.spec import Features
from rankfall.models.scorers import GradeScorer
from rankfall.objectives import BCE, Objective
from rankfall.training import build
from rankfall.training import run_directory as runs
from rankfall.training.cascade_loaders import check_days, checksums, load_log, make_loader
from rankfall.training.checks import check_metrics, check_models, check_training_labels, first_impressions
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.device import moved
from rankfall.training.distributed.group import ALONE
from rankfall.training.item_weights import item_weights
from rankfall.training.learner import Learner, Network
from rankfall.training.loop import Prepared
from rankfall.training.measured_lists import means_of
from rankfall.training.measured_lists import measure_cascade as measure
from rankfall.training.start_weights import start_from

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from torch import Tensor

    from rankfall.data import ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.device import Placement
    from rankfall.training.distributed.group import Group
    from rankfall.training.item_weights import Weights
    from rankfall.training.learner import Position
    from rankfall.training.loop import OnNotice

REQUESTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Epoch:
    """Results of an epoch: one line of ``metrics.jsonl``."""

    epoch: int
    loss: float
    parts: dict[str, float]
    validation: dict[str, float]
    impressions_per_second: float
    seconds: float  # working time since the start of the run
    trained: dict[str, list[float]]  # trained weights of the objective


def prepare(config: CascadeConfig, out: Path, *, resume: bool, group: Group) -> Prepared:
    """Open and check the log of a training run; see :func:`rankfall.training.methods.train`."""
    log = load_log(config.data)
    if resume and (out / runs.LOG).is_file():  # the vocabularies of the start: the tables of the run do not grow
        runs.verify_run(out, runs.LOG)
        log = log.limited_to(Features.from_json(runs.read_json(out / runs.LOG)["features"]).tables)
    config = build.with_depths(config, log.spec.stage_names)
    check_days(log, config.data)
    built = build_objective(log, config)

    def make_learner(on_notice: OnNotice) -> CascadeLearner:
        try:
            learner = CascadeLearner(config, out, log, group, built, on_notice)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        with torch.random.fork_rng(devices=[]):  # the check must not change the weights
            check_training_labels(log, config, config.data.train, built[0], on_notice)
        weights = item_weights(config, log) if group.first else None
        if weights is not None and (said := weights.describe(log, config.data.train)):
            on_notice(said)
        return learner

    files = {runs.LOG: json.dumps(encoding_signature(log), indent=1) + "\n"}
    return Prepared(config, checksums(log, config), make_learner, files)


class _Network(Network):
    """A cascade and its objective in one module.

    Args:
        cascade: The cascade.
        objective: The objective.
        classifies: Whether the objective takes logits of the label grades instead of scores.
        weights: Returns the weights of the items of a batch, or None if all are equal.
        placement: Precision and compilation of the models.
    """

    def __init__(
        self, cascade: Cascade, objective: Objective, weights: Weights | None, placement: Placement, *, classifies: bool
    ) -> None:
        super().__init__(placement)
        self.cascade, self.objective, self.weights, self.classifies = cascade, objective, weights, classifies

    def scores(self, batch: Impressions) -> dict[str, Tensor]:
        models = self.cascade.models.items()
        return {
            f"the scores of {name}": model.outputs(batch)
            if self.classifies and isinstance(model, GradeScorer)
            else model(batch)
            for name, model in models
        }

    def terms(self, scores: list[Tensor], batch: Impressions) -> dict[str, Tensor]:
        return self.objective.parts(
            scores,
            batch.grade.float(),
            relevance=batch.relevance,
            depth=batch.depth,
            mask=batch.mask,
            weight=None if self.weights is None else self.weights(batch),
        )


class CascadeLearner(Learner["Impressions"]):
    """Learner of a cascade on the training days of a log, validated on its validation days."""

    section = "objective"
    config: CascadeConfig
    loader: Any  # of impressions, with the ids of their requests

    def __init__(
        self,
        config: CascadeConfig,
        out: Path,
        log: ImpressionLog,
        group: Group = ALONE,
        built: build.BuiltObjective | None = None,
        on_notice: OnNotice = warnings.warn,
    ) -> None:
        super().__init__(config, out, group)
        self.metric, self.log = config.training.metric, log
        self.causes = (
            f"Its labels may have no order ('rankfall data {config.data.path}' shows them), its quotas may keep every "
            "item of the training lists (data.negatives makes them longer), its weights may all be 0, or its selection "
            "may be too certain to change"
        )
        self.objective, self.temperatures = built or build_objective(log, config)
        self.cascade = build.make_cascade(config, log.features)
        check_models(self.cascade, config, log, on_notice)
        check_metrics(config.stage_metrics)
        self.spare = first_impressions(log) if group.world > 1 and runs.sources_of(config) else None
        self.turns = self.objective.turns
        self.modules = {"cascade": self.cascade, "objective": self.objective}
        weights, classifies = item_weights(config, log), config.objective.classifies
        network = _Network(self.cascade, self.objective, weights, self.placement, classifies=classifies)
        self.network = network.to(self.placement.device)
        self.optimizer = build.Optimizers(config.optimizer, self.cascade, self.objective)
        kind = self.placement.device.type
        if "sparse" in self.optimizer.parts and (kind == "mps" or (kind == "cuda" and self.group.world > 1)):
            why = "MPS has no sparse tensors" if kind == "mps" else "nccl reduces dense gradients only"
            raise RankfallError(f"stages: found sparse tables, but {why}; leave out sparse, or train on the CPU")
        self.open_data()

    def open_data(self) -> None:
        """Make the loaders of training and validation."""
        self.loader = make_loader(self.log, self.config, "train", self.group, pin_memory=self.placement.pins)
        build.check_kept(self.objective, self.loader)
        self.valid = make_loader(self.log, self.config, "valid")
        self.batches = self.config.training.epochs * len(self.loader)
        self.validate_every = self.config.training.validate_every

    def begin(self) -> None:
        """Start from the weights of another run, if the configuration names one."""
        run = self.config.training.start_from
        if run is not None:
            start_from(run, self.config, self.cascade, self.optimizer, self.log, load_run)

    def terms(self, batch: Impressions, position: Position) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the terms of the objective for a batch."""
        # Components of users need not know empty shares. What they compute instead has the weight 0.
        given = batch if len(batch) or self.spare is None else self.spare
        terms, finite = self.network(moved(given, self.placement.device))
        return terms, finite

    def validate(self) -> dict[str, float]:
        """Return the means of all metrics over the validation impressions."""
        measured = measure(self.cascade, self.valid, self.config, group=self.group)
        means = means_of(measured.values)
        if math.isnan(means[self.metric]):
            days = ", ".join(self.config.data.valid)
            with self.group.together():
                raise runs.TrainingError(
                    f"data.valid: no impression of {days} has a relevant item, so no metric is defined"
                )
        return means

    def line(self, position: Position) -> Epoch:
        """Return the results of an epoch."""
        parts = position.parts
        return Epoch(
            epoch=position.epoch,
            loss=sum(parts.values()),
            parts=parts,
            validation=position.validation,
            impressions_per_second=position.per_second,
            seconds=position.seconds,
            trained={name: value.detach().flatten().tolist() for name, value in self.objective.named_parameters()},
        )

    def save(self, path: Path, position: Position) -> None:
        """Write the weights of all stages."""
        self.cascade.save(path)

    def parameters(self) -> int:
        """Return the number of weights of all stages."""
        return sum(parameter.numel() for parameter in self.cascade.parameters())

    @cached_property
    def trained_parts(self) -> dict[str, list[nn.Parameter]]:
        """The weights of each stage that no other stage has, or all of them if it shares all."""
        models = {name: list(model.parameters()) for name, model in self.cascade.models.items()}
        uses = Counter(id(weight) for weights in models.values() for weight in weights)
        own = {name: [weight for weight in weights if uses[id(weight)] == 1] for name, weights in models.items()}
        return {name: weights or models[name] for name, weights in own.items() if models[name]}

    def depends_on(self, term: str, part: str) -> bool:
        """Return whether a term trains a stage: its own terms have its number, others train all stages."""
        return not term.startswith("stage") or term.startswith(f"stage{self.cascade.names.index(part) + 1}/")

    def where(self, batch: Impressions, position: Position) -> str:
        """Return the epoch and day of a batch, and its requests."""
        requests = ", ".join(map(str, self.loader.requests(batch)[:REQUESTS_SHOWN].to_pylist()))
        more = len(batch) - REQUESTS_SHOWN
        shown = f"requests {requests}{f' and {more} more' if more > 0 else ''}"
        return f"epoch {position.epoch}, day {batch.day} ({shown})"


# --- objective and finished runs ----------------------------------------------------------------------------------


def load_run(
    directory: Path, *, checkpoint: Literal["best", "last"] = "best", trust: bool = False
) -> tuple[CascadeConfig, Cascade]:
    """Load the configuration of a run and its cascade, in evaluation mode."""
    config = runs.read_config_as(CascadeConfig, directory, trust=trust)
    path = directory / runs.CHECKPOINTS / f"{checkpoint}.safetensors"
    if not path.exists():
        raise RankfallError(f"{directory} has no {checkpoint} weights yet, expected {path}; train it with --resume")
    runs.verify_run(directory, f"{runs.CHECKPOINTS}/{path.name}")
    return config, Cascade.load(path, trust=trust).eval()


def build_objective(log: ImpressionLog, config: CascadeConfig) -> build.BuiltObjective:
    """Build the objective of a run, once, and check it before anything is written.

    Args:
        log: The log to train on.
        config: Configuration with depths as numbers; see :func:`~rankfall.training.build.with_depths`.

    Raises:
        ConfigError: If the objective refuses its options, or would train a stage on no item of the log.
    """
    built = build.make_objective(config)
    build.check_objective(built, config)
    deepest, objective = len(log.spec.stages) - 1, built[0]
    if isinstance(objective, BCE):
        for stage, least in zip(config.stages, objective.min_depth, strict=True):
            if least > deepest:
                names = ", ".join(f"{depth} {name}" for depth, name in enumerate(log.spec.stage_names))
                raise ConfigError(
                    f"stages: with bce {stage.name} would train on items from depth {least} on, but the log's stages "
                    f"are {names}; give it a min_depth, or objective.min_depth=0 to train all stages on all items"
                )
    return built
