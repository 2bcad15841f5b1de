"""The loop that trains a cascade as one network."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch

from rankfall._files import write_file
from rankfall._settings import ConfigError, dump
from rankfall.cascade import Cascade
from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.objectives import BCE
from rankfall.training.build_cascade import Optimizers, make_cascade, make_objective
from rankfall.training.cascade_config import CascadeConfig, Role
from rankfall.training.funnel import measure_funnel
from rankfall.training.run import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    RESULT,
    Step,
    TrainingError,
    TrainResult,
    check_free,
    clear,
    read_config,
    repeatable,
)

if TYPE_CHECKING:
    from typing import Literal

    from torch import Tensor

    from rankfall.data.loader import Impressions
    from rankfall.training.cascade_config import LogConfig

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


Progress = Callable[[Step], None]


def train(config: CascadeConfig, out: Path, *, force: bool = False, progress: Progress | None = None) -> TrainResult:
    """Train a cascade and leave a run directory; the same configuration and data give the same weights."""
    log = load_log(config.data)
    _check_days(log, config)
    check_free(out, force)
    with repeatable(config.training.seed, config.training.threads):
        try:
            training = _Training(config, out, log)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        clear(out)
        write_file(out / CONFIG, dump(_with_absolute_path(config)))
        result = training.run(progress or (lambda step: None))
    write_file(out / RESULT, json.dumps(asdict(result), indent=2) + "\n")
    return result


class _Training:
    """The loop and what it keeps."""

    def __init__(self, config: CascadeConfig, out: Path, log: ImpressionLog) -> None:
        self.config = config
        self.out = out
        self.cascade = make_cascade(config, log.features)
        self.objective, self.temperatures = make_objective(config)
        self.optimizers = Optimizers(config.optimizer, self.cascade, self.objective)
        self.loader = make_loader(log, config, "train")
        self.valid = make_loader(log, config, "valid")
        self.validation: dict[str, float] = {}

    def run(self, progress: Progress) -> TrainResult:
        settings = self.config.training
        start = time.perf_counter()
        best: Epoch | None = None
        for number in range(1, settings.epochs + 1):
            parts, speed = self._epoch(number, progress)
            self.validation = self._validate()
            weights = {name: value.detach().flatten().tolist() for name, value in self.objective.named_parameters()}
            seconds = time.perf_counter() - start
            epoch = Epoch(number, sum(parts.values()), parts, self.validation, speed, seconds, weights)
            with (self.out / METRICS).open("a") as file:
                file.write(json.dumps(asdict(epoch)) + "\n")
            if best is None or epoch.validation[settings.metric] > best.validation[settings.metric]:
                best = epoch
                self.cascade.save(self.out / CHECKPOINTS / "best.safetensors")
            self.cascade.save(self.out / CHECKPOINTS / "last.safetensors")
            if settings.patience is not None and number - best.epoch >= settings.patience:
                break
        assert best is not None  # there is at least one epoch
        count = sum(parameter.numel() for parameter in self.cascade.parameters())
        reached = best.validation[settings.metric]
        return TrainResult(reached, best.epoch, number, time.perf_counter() - start, count)

    def _epoch(self, number: int, progress: Progress) -> tuple[dict[str, float], float]:
        """Visit every impression once; the mean terms of the objective and the impressions a second."""
        epochs, batches = self.config.training.epochs, len(self.loader)
        self.loader.set_epoch(number - 1)
        self.cascade.train()
        start, seen = time.perf_counter(), 0
        sums: dict[str, float] = {}
        for position, batch in enumerate(self.loader, start=1):
            share = ((number - 1) * batches + position - 1) / max(1, epochs * batches - 1)
            for temperature in self.temperatures:
                temperature.set(share)
            for name, value in self._step(batch, number).items():
                sums[name] = sums.get(name, 0.0) + value * len(batch)
            seen += len(batch)
            speed = seen / (time.perf_counter() - start)
            parts = {name: total / seen for name, total in sums.items()}
            progress(Step(number, epochs, position, batches, parts, self.validation, speed))
        return parts, speed

    def _step(self, batch: Impressions, epoch: int) -> dict[str, float]:
        """Change the weights by one batch and return the terms of its loss."""
        self.optimizers.zero_grad()
        scores = self.cascade(batch)
        for name, stage in zip(self.cascade.names, scores, strict=True):
            if not stage.isfinite().all():
                raise self._diverged(f"the scores of {name}", batch, epoch)
        parts = self.objective.parts(
            scores, batch.grade.float(), relevance=batch.relevance, depth=batch.depth, mask=batch.mask
        )
        loss = torch.stack(list(parts.values())).sum()
        if not loss.isfinite():
            raise self._diverged("the loss", batch, epoch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.optimizers.dense, self.config.optimizer.clip or math.inf)
        if not norm.isfinite():
            raise self._diverged("the gradient", batch, epoch)
        self.optimizers.step()
        return {name: float(value.detach()) for name, value in parts.items()}

    def _validate(self) -> dict[str, float]:
        values, _ = measure(self.cascade, self.valid, self.config)
        means = {name: float(value.nanmean()) for name, value in values.items()}
        if math.isnan(means[self.config.training.metric]):
            days = ", ".join(self.config.data.valid)
            raise TrainingError(f"data.valid: no impression of {days} has a relevant item, so nothing can be measured")
        return means

    def _diverged(self, what: str, batch: Impressions, epoch: int) -> TrainingError:
        requests = ", ".join(map(str, self.loader.requests(batch)[:REQUESTS_SHOWN].to_pylist()))
        more = len(batch) - REQUESTS_SHOWN
        kept = f". Finished epochs are kept in {self.out}" if self.validation else ""
        return TrainingError(
            f"{self.config.objective.name}: {what} became NaN or infinite in epoch {epoch}, day {batch.day} "
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
    return ImpressionLoader(
        log, data.days(role), batch=settings.batch, window=window, shuffle=False, length=data.length
    )


def measure(
    cascade: Cascade, loader: ImpressionLoader, config: CascadeConfig
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


def _with_absolute_path(config: CascadeConfig) -> CascadeConfig:
    """A run can be evaluated from any directory."""
    data = config.data.model_copy(update={"path": str(Path(config.data.path).absolute())})
    return config.model_copy(update={"data": data})
