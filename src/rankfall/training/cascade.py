"""Training a cascade as one network."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch

from rankfall._settings import ConfigError, dump
from rankfall.cascade import Cascade
from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.data.meaning import meaning_of
from rankfall.objectives import BCE
from rankfall.training.build_cascade import Optimizers, check_quotas, make_cascade, make_objective, with_depths
from rankfall.training.cascade_config import CascadeConfig, Role
from rankfall.training.funnel import measure_funnel
from rankfall.training.loop import Learner, Loop, finished, train_in
from rankfall.training.run import CHECKPOINTS, CONFIG, LOG, TrainingError, check_free, read_config, repeatable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from torch import Tensor

    from rankfall.data.loader import Impressions
    from rankfall.training.cascade_config import LogConfig
    from rankfall.training.loop import OnNotice, Position, Progress
    from rankfall.training.run import TrainResult

REQUESTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is known after an epoch: one line of ``metrics.jsonl``."""

    epoch: int
    loss: float
    parts: dict[str, float]
    validation: dict[str, float]
    impressions_per_second: float
    seconds: float  # since the training started
    trained: dict[str, list[float]]  # what the objective has learned: its weights


def train(
    config: CascadeConfig,
    out: Path,
    *,
    force: bool = False,
    resume: bool = False,
    progress: Progress = lambda step: None,
    on_notice: OnNotice = warnings.warn,
    stop: Callable[[], int] = lambda: False,
) -> TrainResult:
    """Train a cascade and leave a run directory; the same configuration and data give the same weights.

    A run that exists is replaced with `force` only. With `resume` it is continued, and ends as if it had never been
    interrupted. `progress` hears of every batch, `on_notice` of damaged checkpoints and the like. `stop` is asked after
    every batch whether to end early.
    """
    log = load_log(config.data)
    config = with_depths(config, log.spec.stage_names)
    _check_days(log, config)
    check_free(out, force=force, resume=resume)
    if resume and (result := finished(out, config, on_notice)):
        return result
    with repeatable(config.training.seed, config.training.threads):
        try:
            learner = _Learner(config, out, log)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        loop = Loop(learner, config, out, data=_checksums(log, config.data), progress=progress, stop=stop)
        files = {CONFIG: dump(_with_absolute_path(config)), LOG: json.dumps(meaning_of(log), indent=1) + "\n"}
        return train_in(loop, files, resume=resume, on_notice=on_notice)


class _Learner(Learner["Impressions"]):
    """A cascade and its objective."""

    optimizer: Optimizers
    loader: ImpressionLoader

    def __init__(self, config: CascadeConfig, out: Path, log: ImpressionLog) -> None:
        self.config = config
        self.out = out
        self.metric = config.training.metric
        self.cascade = make_cascade(config, log.features)
        self.objective, self.temperatures = make_objective(config)
        self.modules = {"cascade": self.cascade, "objective": self.objective}
        self.optimizer = Optimizers(config.optimizer, self.cascade, self.objective)
        self.loader = make_loader(log, config, "train")
        self.valid = make_loader(log, config, "valid")

    def step(self, batch: Impressions, position: Position) -> dict[str, float]:
        """Change the weights by one batch; the terms of its loss."""
        self._set_temperatures(position)
        self.optimizer.zero_grad()
        scores = self.cascade(batch)
        for name, stage in zip(self.cascade.names, scores, strict=True):
            if not stage.isfinite().all():
                raise self._diverged(f"the scores of {name}", batch, position)
        parts = self.objective.parts(
            scores, batch.grade.float(), relevance=batch.relevance, depth=batch.depth, mask=batch.mask
        )
        loss = torch.stack(list(parts.values())).sum()
        if not loss.isfinite():
            raise self._diverged("the loss", batch, position)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.optimizer.dense, self.config.optimizer.clip or math.inf)
        if not norm.isfinite():
            raise self._diverged("the gradient", batch, position)
        self.optimizer.step()
        return {name: float(value.detach()) for name, value in parts.items()}

    def _set_temperatures(self, position: Position) -> None:
        last = self.config.training.epochs * len(self.loader) - 1
        for temperature in self.temperatures:
            temperature.set(position.step / max(1, last))

    def validate(self) -> dict[str, float]:
        """The means over all impressions."""
        values, _ = measure(self.cascade, self.valid, self.config)
        means = {name: float(value.nanmean()) for name, value in values.items()}
        if math.isnan(means[self.metric]):
            days = ", ".join(self.config.data.valid)
            raise TrainingError(f"data.valid: no impression of {days} has a relevant item, so nothing can be measured")
        return means

    def line(self, position: Position) -> Epoch:
        """What is known after an epoch."""
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
        """Of all stages."""
        return sum(parameter.numel() for parameter in self.cascade.parameters())

    def _diverged(self, what: str, batch: Impressions, position: Position) -> TrainingError:
        requests = ", ".join(map(str, self.loader.requests(batch)[:REQUESTS_SHOWN].to_pylist()))
        more = len(batch) - REQUESTS_SHOWN
        kept = f". Finished epochs are kept in {self.out}" if position.best_epoch else ""
        return TrainingError(
            f"{self.config.objective.name}: {what} became NaN or infinite in epoch {position.epoch}, day {batch.day} "
            f"(requests {requests}{f' and {more} more' if more > 0 else ''}). Try a smaller optimizer.lr than "
            f"{self.config.optimizer.lr:g}, optimizer.clip=1, or a larger temperature{kept}"
        )


# --- what a training starts from, and what it leaves --------------------------------------------------------------


def load_log(config: LogConfig) -> ImpressionLog:
    """The log of a configuration."""
    try:
        return ImpressionLog.load(config.path)
    except ValueError as error:
        raise ConfigError(f"data.{error}") from None


def make_loader(log: ImpressionLog, config: CascadeConfig, role: Role) -> ImpressionLoader:
    """The loader of the days that have this use: shuffled for training, in the order of time otherwise."""
    settings, data = config.training, config.data
    if not data.days(role):
        raise ConfigError(f"data.{role}: no day is named, expected some of {', '.join(log.days)}")
    window = max(settings.window, settings.batch)
    if role == "train":
        return ImpressionLoader(
            log,
            data.train,
            batch=settings.batch,
            seed=settings.seed,
            window=window,
            negatives=data.negatives,
            negatives_from=data.negatives_from,
        )
    loader = ImpressionLoader(
        log, data.days(role), batch=settings.batch, window=window, shuffle=False, length=data.length
    )
    check_quotas(config, loader)
    return loader


def measure(
    cascade: Cascade,
    loader: ImpressionLoader,
    config: CascadeConfig,
    *,
    on_batch: Callable[[int], None] = lambda count: None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The values of each impression, and their chance levels; dropout and batch norm as in use."""
    was_training = cascade.training
    cascade.eval()
    try:
        return measure_funnel(
            cascade,
            loader,
            names=cascade.names,
            quotas=[stage.quota for stage in config.stages],
            relevant=config.relevant,
            on_batch=on_batch,
        )
    finally:
        cascade.train(was_training)


def load_run(directory: Path, *, checkpoint: Literal["best", "last"] = "best") -> tuple[CascadeConfig, Cascade]:
    """The configuration of a run and its cascade, ready to score."""
    config = read_config(directory)
    if not isinstance(config, CascadeConfig):
        raise ValueError(f"{directory} is the run of a ranker, expected that of a cascade")
    return config, Cascade.load(directory / CHECKPOINTS / f"{checkpoint}.safetensors").eval()


def _check_days(log: ImpressionLog, config: CascadeConfig) -> None:
    """Refuse days that are not there or have two uses, and stages that would see nothing."""
    used: dict[str, str] = {}
    for role in get_args(Role):
        try:
            days = log.choose(config.data.days(role))
        except ValueError as error:
            raise ConfigError(f"data.{role}: {str(error).removeprefix('days: ')}") from None
        for day in days:
            if used.setdefault(day.name, role) != role:
                raise ConfigError(f"data: {day.name} stands in {used[day.name]} and in {role}; a day has one use")
    _check_depths(log, config)


def _check_depths(log: ImpressionLog, config: CascadeConfig) -> None:
    """Refuse a stage that would never see an item."""
    objective, _ = make_objective(config)
    deepest = len(log.spec.stages) - 1
    if isinstance(objective, BCE):
        for stage, least in zip(config.stages, objective.min_depth, strict=True):
            if least > deepest:
                names = ", ".join(f"{depth} {name}" for depth, name in enumerate(log.spec.stage_names))
                raise ConfigError(
                    f"stages: with bce {stage.name} would see items from depth {least} on, but the log's stages are "
                    f"{names}; give it a min_depth, or objective.min_depth=0 to train all stages on all items"
                )


def _checksums(log: ImpressionLog, config: LogConfig) -> dict[str, str]:
    """Of everything that a training reads."""
    days = log.choose([*config.train, *config.valid])
    found = {f"day {day.name}": day.manifest["sha256"] for day in days}
    found["features"] = hashlib.sha256(json.dumps(log.manifest["features"], sort_keys=True).encode()).hexdigest()
    if config.negatives or config.length is not None:
        found["items"] = log.manifest["items"]["sha256"]
    return found


def _with_absolute_path(config: CascadeConfig) -> CascadeConfig:
    """A run can be evaluated from any directory."""
    data = config.data.model_copy(update={"path": str(Path(config.data.path).absolute())})
    return config.model_copy(update={"data": data})
