"""Training one ranker."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from rankfall._settings import ConfigError
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data.lists.list_loader import Batch, ListLoader, Lists
from rankfall.data.lists.ranking_data import Moments, RankingData
from rankfall.metrics.named import parse
from rankfall.models import FeatureScaling
from rankfall.training.build import Ranker, check_loss, classifies, make_loss, make_optimizer, make_ranker
from rankfall.training.config.overrides import dump_absolute
from rankfall.training.config.ranker_config import RankerConfig
from rankfall.training.config.sections import Role
from rankfall.training.distributed.group import ALONE
from rankfall.training.divergence_hints import advice
from rankfall.training.learner import Learner
from rankfall.training.loop import Loop, finished, train_in
from rankfall.training.run_directory import CHECKPOINTS, CONFIG, DATA, TrainingError, read_config_as, repeatable
from rankfall.training.scoring import measure, score

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.training.config.ranker_config import DataConfig
    from rankfall.training.distributed.group import Group
    from rankfall.training.learner import Position
    from rankfall.training.loop import OnNotice, Progress
    from rankfall.training.run_directory import TrainResult

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


OnValidation = Callable[[Epoch, Ranker], None]


# --- one training -------------------------------------------------------------------------------------------------


def train(
    config: RankerConfig,
    out: Path,
    *,
    force: bool = False,
    resume: bool = False,
    progress: Progress = lambda step: None,
    on_validation: OnValidation = lambda epoch, model: None,
    on_notice: OnNotice = warnings.warn,
    stop: Callable[[], int] = lambda: False,
    group: Group = ALONE,
) -> TrainResult:
    """Train a ranker and leave a run directory; the same configuration and data give the same weights.

    A run that exists is replaced with `force` only. With `resume` it is continued, and ends as if it had never been
    interrupted. `progress` hears of every batch, `on_validation` of every epoch, with the model as it is then,
    `on_notice` of damaged checkpoints and the like. `stop` is asked after every batch whether to end early. All
    processes of a `group` call this with the same arguments.
    """
    with group.together():
        data = load_data(config.data)
        lists = {role: load_lists(data, config.data, role) for role in get_args(Role) if config.data.splits(role)}
        _check_apart(data, config.data)
        loss = make_loss(config.loss)
        check_loss(loss, config.loss)
        checksums = data.manifest["files"]
    result = finished(out, config, checksums, force=force, resume=resume, on_notice=on_notice, group=group)
    if result is not None:
        return result
    with repeatable(config.training.seed, config.training.threads):
        with group.together():
            grades = _grades(lists["train"]) if classifies(config.loss) else None
            model = make_ranker(config.model, _fit_scaling(data, config.data), grades)
            loop = Loop(
                _Learner(config, out, model, loss, lists["train"], lists["valid"], group),
                config,
                out,
                data=checksums,
                progress=progress,
                on_epoch=lambda epoch: on_validation(epoch, model),
                stop=stop,
            )
        files = {CONFIG: dump_absolute(config), DATA: json.dumps(checksums, indent=1) + "\n"}
        return train_in(loop, files, resume=resume, on_notice=on_notice)


class _Network(nn.Module):
    """A ranker and its loss: from features, as they stand in a batch, to its value."""

    def __init__(self, model: Ranker, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, features: Tensor, batch: Batch) -> tuple[Tensor, bool]:
        """The value, and whether scores are NaN or infinite."""
        outputs = self.model(features)
        if not outputs.isfinite().all():
            return outputs.sum(), True
        return self.loss(batch.pad(outputs), batch.labels, mask=batch.mask), False


class _Learner(Learner[Batch]):
    """A ranker and its loss."""

    def __init__(
        self,
        config: RankerConfig,
        out: Path,
        model: Ranker,
        loss: nn.Module,
        lists: Lists,
        valid: Lists,
        group: Group,
    ) -> None:
        self.group = group
        self.config = config
        self.out = out
        self.model = model
        self.lists = lists
        self.valid = valid
        self.measured = parse(config.training.metric)
        self.metric = self.measured.name
        self.loss = loss
        self.modules = {"model": model, "loss": self.loss}
        self.network = _Network(model, self.loss)
        self.clip = config.optimizer.clip
        self.optimizer = make_optimizer(config.optimizer, model.parameters(), self.loss.parameters())
        settings = config.training
        self.loader = ListLoader(
            lists,
            batch=settings.batch,
            seed=settings.seed,
            max_list=settings.max_list,
            rank=group.rank,
            world=group.world,
        )

    def terms(self, batch: Batch, position: Position) -> tuple[dict[str, Tensor], str]:
        """The loss."""
        try:
            loss, bad = self.network(self.lists.gather(batch.rows), batch)
        except ValueError as error:
            where = f"{self._where(position)} ({self._named(batch)})"
            raise TrainingError(f"{self.config.loss.name} refuses {where}: {error}") from None
        return {"loss": loss}, "the scores" if bad else ""

    def validate(self) -> dict[str, float]:
        """The metric that training looks at."""
        values = measure(score(self.model, self.valid, self.group), self.valid, [self.measured])[self.metric]
        mean = float(values.nanmean())
        if math.isnan(mean):
            with self.group.together():
                raise TrainingError(
                    f"training.metric: {self.metric} is undefined on every list of data.valid "
                    f"({', '.join(self.config.data.valid)}): none has a relevant document"
                )
        return {self.metric: mean}

    def is_better(self, value: float, than: float) -> bool:
        """Higher or lower, as the metric has it."""
        return value > than if self.measured.higher_is_better else value < than

    def line(self, position: Position) -> Epoch:
        """What is known after an epoch."""
        trained = {name: parameter.item() for name, parameter in self.loss.named_parameters()}
        reached, loss = position.validation[self.metric], position.parts["loss"]
        return Epoch(position.epoch, loss, reached, position.per_second, position.seconds, trained)

    def save(self, path: Path, position: Position) -> None:
        """Write the weights of the model and of the loss."""
        parts = self.modules.items()
        tensors = {f"{part}.{key}": tensor for part, module in parts for key, tensor in module.state_dict().items()}
        about = {
            "epoch": position.epoch,
            "metric": self.metric,
            "value": position.validation[self.metric],
            "features": self.lists.features,
            "grades": self.model.grades,
        }
        write_checkpoint(path, tensors, about)

    def parameters(self) -> int:
        """Of the model and of the loss."""
        return sum(parameter.numel() for parameter in self.trained)

    def diverged(self, what: str, batch: Batch, position: Position) -> TrainingError:
        """With the queries of the batch."""
        kept = f". Finished epochs are kept in {self.out}" if position.best_epoch else ""
        return TrainingError(
            f"{self.config.loss.name}: {what} became NaN or infinite in {self._where(position)} "
            f"({self._named(batch)}). Try {', '.join(_advice(self.config))}{kept}"
        )

    def _where(self, position: Position) -> str:
        return f"epoch {position.epoch}, batch {position.batch + 1} of {len(self.loader)}"

    def _named(self, batch: Batch) -> str:
        qids = [self.lists.qids[number] for number in batch.lists[:QIDS_SHOWN]]
        more = len(batch.lists) - len(qids)
        return f"qid {', '.join(qids)}" + (f" and {more} more" if more else "")


def _advice(config: RankerConfig) -> list[str]:
    """What may keep a training finite, the most likely first."""
    found = advice(config.optimizer, "loss", config.loss.options)
    if not config.data.standardise:
        found.append("data.standardise=true")
    if not config.data.log1p:
        found.append("data.log1p=true if features have very large values")
    return found


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
    config = read_config_as(RankerConfig, directory)
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
