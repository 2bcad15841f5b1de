"""The loop that trains one ranker."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch

from rankfall._checkpoint import read_checkpoint, write_checkpoint
from rankfall._files import write_file
from rankfall._settings import ConfigError, dump
from rankfall.data.batches import Lists
from rankfall.data.ranking import Moments, RankingData
from rankfall.metrics.named import parse
from rankfall.models import FeatureScaling
from rankfall.training.build import Ranker, classifies, make_loss, make_optimizer, make_ranker
from rankfall.training.config import RankerConfig, Role
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
from rankfall.training.scoring import measure, score

if TYPE_CHECKING:
    from torch import nn

    from rankfall.data.batches import Batch
    from rankfall.training.config import DataConfig, LossConfig

QIDS_SHOWN = 5
CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is known after an epoch: one line of ``metrics.jsonl``."""

    epoch: int
    loss: float
    metric: float
    lists_per_second: float
    seconds: float  # since the training started
    trained: dict[str, float]  # what the loss has learned: alpha of ARF


Progress = Callable[[Step], None]
OnValidation = Callable[[Epoch, Ranker], None]


# --- one training -------------------------------------------------------------------------------------------------


def train(
    config: RankerConfig,
    out: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    on_validation: OnValidation | None = None,
) -> TrainResult:
    """Train a ranker and leave a run directory; the same configuration and data give the same weights.

    A run that exists is replaced with `force` only. `progress` hears of every batch, `on_validation` of every epoch,
    with the model as it is then.
    """
    data = load_data(config.data)
    lists = {role: load_lists(data, config.data, role) for role in get_args(Role) if config.data.splits(role)}
    _check_apart(data, config.data)
    check_free(out, force)
    with repeatable(config.training.seed, config.training.threads):
        grades = _grades(lists["train"]) if classifies(config.loss) else None
        model = make_ranker(config.model, _fit_scaling(data, config.data), grades)
        training = _Training(config, out, model, lists["train"], lists["valid"])
        clear(out)
        write_file(out / CONFIG, dump(_with_absolute_path(config)))
        result = training.run(progress or (lambda step: None), on_validation or (lambda epoch, model: None))
    write_file(out / RESULT, json.dumps(asdict(result), indent=2) + "\n")
    return result


class _Training:
    """The loop and what it keeps."""

    def __init__(self, config: RankerConfig, out: Path, model: Ranker, lists: Lists, valid: Lists) -> None:
        self.config = config
        self.out = out
        self.model = model
        self.lists = lists
        self.valid = valid
        self.metric = parse(config.training.metric)
        self.loss = make_loss(config.loss)
        self.parameters = [*model.parameters(), *self.loss.parameters()]
        self.optimizer = make_optimizer(config.optimizer, model.parameters(), self.loss.parameters())
        self.reached: float | None = None  # by the last validation

    def run(self, progress: Progress, on_validation: OnValidation) -> TrainResult:
        settings = self.config.training
        start = time.perf_counter()
        best: Epoch | None = None
        for number in range(1, settings.epochs + 1):
            loss, speed = self._epoch(number, progress)
            self.reached = self._validate()
            trained = {name: parameter.item() for name, parameter in self.loss.named_parameters()}
            epoch = Epoch(number, loss, self.reached, speed, time.perf_counter() - start, trained)
            with (self.out / METRICS).open("a") as file:
                file.write(json.dumps(asdict(epoch)) + "\n")
            if best is None or self._is_better(epoch.metric, best.metric):
                best = epoch
                self._save("best", epoch)
            self._save("last", epoch)
            on_validation(epoch, self.model)
            if settings.patience is not None and number - best.epoch >= settings.patience:
                break
        assert best is not None  # there is at least one epoch
        count = sum(parameter.numel() for parameter in self.parameters)
        return TrainResult(best.metric, best.epoch, number, time.perf_counter() - start, count)

    def _epoch(self, number: int, progress: Progress) -> tuple[float, float]:
        """Visit every list once; the mean loss and the lists a second."""
        settings = self.config.training
        rng = np.random.default_rng([settings.seed, number])
        batches = self.lists.shuffled(settings.batch, rng)
        self.model.train()
        start, total, seen = time.perf_counter(), 0.0, 0
        for position, numbers in enumerate(batches, start=1):
            batch = self.lists.batch(numbers, rng=rng, max_list=settings.max_list)
            total += self._step(batch, f"epoch {number}, batch {position} of {len(batches)}") * len(numbers)
            seen += len(numbers)
            speed = seen / (time.perf_counter() - start)
            reached = {} if self.reached is None else {self.metric.name: self.reached}
            progress(Step(number, settings.epochs, position, len(batches), {"loss": total / seen}, reached, speed))
        return total / seen, speed

    def _step(self, batch: Batch, where: str) -> float:
        """Change the weights by one batch and return its loss."""
        self.optimizer.zero_grad()
        outputs = self.model(self.lists.gather(batch.rows))
        if not outputs.isfinite().all():
            raise self._diverged("the scores", "NaN or infinite", batch, where)
        try:
            loss = self.loss(batch.pad(outputs), batch.labels, mask=batch.mask)
        except ValueError as error:
            raise TrainingError(f"{self.config.loss.name} refuses {where} ({self._named(batch)}): {error}") from None
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._diverged("the loss", str(value), batch, where)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.clip or math.inf)
        if not norm.isfinite():
            raise self._diverged("the gradient", "NaN or infinite", batch, where)
        self.optimizer.step()
        return value

    def _validate(self) -> float:
        values = measure(score(self.model, self.valid), self.valid, [self.metric])[self.metric.name]
        mean = float(values.nanmean())
        if math.isnan(mean):
            raise TrainingError(
                f"training.metric: {self.metric.name} is undefined on every list of data.valid "
                f"({', '.join(self.config.data.valid)}): none has a relevant document"
            )
        return mean

    def _is_better(self, value: float, than: float) -> bool:
        return value > than if self.metric.higher_is_better else value < than

    def _save(self, name: str, epoch: Epoch) -> None:
        parts: list[tuple[str, nn.Module]] = [("model", self.model), ("loss", self.loss)]
        tensors = {f"{part}.{key}": tensor for part, module in parts for key, tensor in module.state_dict().items()}
        about = {
            "epoch": epoch.epoch,
            "metric": self.metric.name,
            "value": epoch.metric,
            "features": self.lists.features,
            "grades": self.model.grades,
        }
        write_checkpoint(self.out / CHECKPOINTS / f"{name}.safetensors", tensors, about)

    def _diverged(self, what: str, found: str, batch: Batch, where: str) -> TrainingError:
        kept = "" if self.reached is None else f". Finished epochs are kept in {self.out}"
        return TrainingError(
            f"{self.config.loss.name}: {what} became {found} in {where} ({self._named(batch)}). "
            f"Try {', '.join(_advice(self.config))}{kept}"
        )

    def _named(self, batch: Batch) -> str:
        qids = [self.lists.qids[number] for number in batch.lists[:QIDS_SHOWN]]
        more = len(batch.lists) - len(qids)
        return f"qid {', '.join(qids)}" + (f" and {more} more" if more else "")


def _advice(config: RankerConfig) -> list[str]:
    """What may keep a training finite, the most likely first."""
    optimizer, data = config.optimizer, config.data
    advice = [f"a smaller optimizer.lr than {optimizer.lr:g}"]
    clip = optimizer.clip
    advice.append("optimizer.clip=1" if clip is None else f"a smaller optimizer.clip than {clip:g}")
    advice += [f"a larger {key} than {tau:g}" for key, tau in _temperatures(config.loss)]
    if not data.standardise:
        advice.append("data.standardise=true")
    if not data.log1p:
        advice.append("data.log1p=true if features have very large values")
    return advice


def _temperatures(loss: LossConfig) -> list[tuple[str, float]]:
    places = [("loss", loss.options)]
    places += [(f"loss.{key}", value) for key, value in loss.options.items() if isinstance(value, dict)]
    return [(f"{place}.tau", options["tau"]) for place, options in places if options.get("tau") is not None]


# --- what a training starts from ----------------------------------------------------------------------------------


def load_data(config: DataConfig) -> RankingData:
    """The prepared data of a configuration."""
    try:
        return RankingData.load(config.path)
    except ValueError as error:
        raise ConfigError(f"data.{error}") from None


def load_lists(data: RankingData, config: DataConfig, role: Role) -> Lists:
    """The lists of a configuration that are for training, validation or testing."""
    names = config.splits(role)
    if not names:
        raise ConfigError(f"data.{role}: no split is named, expected some of {', '.join(data)}")
    try:
        splits = [data[name] for name in names]
    except ValueError as error:
        raise ConfigError(f"data.{role}: {str(error).removeprefix('split: ')}") from None
    lists = Lists(splits)
    if len(lists) == 0:
        raise ConfigError(f"data.{role}: {', '.join(names)} of {data.path} has no lists")
    return lists


def _check_apart(data: RankingData, config: DataConfig) -> None:
    """Refuse parts of a split that overlap, whose names differ: ``all`` and ``all:1/5``."""
    for one, other in combinations([*config.train, *config.valid, *config.test], 2):
        if np.may_share_memory(data[one].features, data[other].features):
            raise ConfigError(f"data: {one} and {other} have lists in common; a list has one use")


def _fit_scaling(data: RankingData, config: DataConfig) -> FeatureScaling:
    recipe = data.manifest["recipe"]
    if config.log1p and (recipe["log1p"] or recipe["standardise"]):
        done = "log1p" if recipe["log1p"] else "standardisation"
        raise ConfigError(f"data.log1p: found true, but {data.path} was prepared with {done}; expected false")
    if not config.standardise:
        return FeatureScaling.identity(data.features, log1p=config.log1p)
    scaling = _log_moments(data, config).scaling() if config.log1p else data.scaling(config.train)
    return FeatureScaling(torch.tensor(scaling.mean), torch.tensor(scaling.deviation), log1p=config.log1p)


def _log_moments(data: RankingData, config: DataConfig) -> Moments:
    """Moments of the logarithms, for which what is stored of the values is no help."""
    logarithm = FeatureScaling.identity(data.features, log1p=True)
    chunks = Lists([data[name] for name in config.train]).chunks(CHUNK_ROWS)
    parts = [Moments.of(logarithm(chunk).numpy()) for chunk in chunks]
    return sum(parts[1:], start=parts[0])


def _grades(lists: Lists) -> int:
    labels = lists.labels
    if labels.min() < 0 or (labels != np.floor(labels)).any():
        raise ConfigError("loss.name: grade_softmax_loss needs labels 0, 1, 2, ...; the training lists have others")
    return max(2, int(labels.max()) + 1)


# --- the directory of a run ---------------------------------------------------------------------------------------


def load_run(directory: Path, *, checkpoint: Literal["best", "last"] = "best") -> tuple[RankerConfig, Ranker]:
    """The configuration of a run and its model, ready to score."""
    config = read_config(directory)
    if not isinstance(config, RankerConfig):
        raise ValueError(f"{directory} is the run of a cascade, expected that of a ranker")
    tensors, about = read_checkpoint(directory / CHECKPOINTS / f"{checkpoint}.safetensors")
    scaling = FeatureScaling.identity(about["features"], log1p=config.data.log1p)
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn and thrown away
        model = make_ranker(config.model, scaling, about["grades"])
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        raise ValueError(f"{directory}: the checkpoint {checkpoint} does not fit config.yaml: {error}") from None
    return config, model.eval()


def _with_absolute_path(config: RankerConfig) -> RankerConfig:
    """A run can be evaluated from any directory."""
    data = config.data.model_copy(update={"path": str(Path(config.data.path).absolute())})
    return config.model_copy(update={"data": data})
