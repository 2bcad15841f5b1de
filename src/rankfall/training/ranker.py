"""Training one ranker."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch

from rankfall._checkpoint import read_checkpoint, write_checkpoint
from rankfall._settings import ConfigError, dump
from rankfall.data.batches import Batch, ListLoader, Lists
from rankfall.data.ranking import Moments, RankingData
from rankfall.metrics.named import parse
from rankfall.models import FeatureScaling
from rankfall.training.build import Ranker, classifies, make_loss, make_optimizer, make_ranker
from rankfall.training.config import RankerConfig, Role
from rankfall.training.loop import Learner, Loop, finished, train_in
from rankfall.training.run import CHECKPOINTS, CONFIG, TrainingError, check_free, read_config, repeatable
from rankfall.training.scoring import measure, score

if TYPE_CHECKING:
    from rankfall.training.config import DataConfig, LossConfig
    from rankfall.training.loop import OnNotice, Position, Progress
    from rankfall.training.run import TrainResult

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
) -> TrainResult:
    """Train a ranker and leave a run directory; the same configuration and data give the same weights.

    A run that exists is replaced with `force` only. With `resume` it is continued, and ends as if it had never been
    interrupted. `progress` hears of every batch, `on_validation` of every epoch, with the model as it is then,
    `on_notice` of damaged checkpoints and the like. `stop` is asked after every batch whether to end early.
    """
    data = load_data(config.data)
    lists = {role: load_lists(data, config.data, role) for role in get_args(Role) if config.data.splits(role)}
    _check_apart(data, config.data)

    check_free(out, force=force, resume=resume)
    if resume and (result := finished(out, config, on_notice)):
        return result
    with repeatable(config.training.seed, config.training.threads):
        grades = _grades(lists["train"]) if classifies(config.loss) else None
        model = make_ranker(config.model, _fit_scaling(data, config.data), grades)
        loop = Loop(
            _Learner(config, out, model, lists["train"], lists["valid"]),
            config,
            out,
            data=data.manifest["files"],
            progress=progress,
            on_epoch=lambda epoch: on_validation(epoch, model),
            stop=stop,
        )
        files = {CONFIG: dump(_with_absolute_path(config))}
        return train_in(loop, files, resume=resume, on_notice=on_notice)


class _Learner(Learner[Batch]):
    """A ranker and its loss."""

    def __init__(self, config: RankerConfig, out: Path, model: Ranker, lists: Lists, valid: Lists) -> None:
        self.config = config
        self.out = out
        self.model = model
        self.lists = lists
        self.valid = valid
        self.measured = parse(config.training.metric)
        self.metric = self.measured.name
        self.loss = make_loss(config.loss)
        self.trained = [*model.parameters(), *self.loss.parameters()]
        self.modules = {"model": model, "loss": self.loss}
        self.optimizer = make_optimizer(config.optimizer, model.parameters(), self.loss.parameters())
        settings = config.training
        self.loader = ListLoader(lists, batch=settings.batch, seed=settings.seed, max_list=settings.max_list)

    def step(self, batch: Batch, position: Position) -> dict[str, float]:
        """Change the weights by one batch; its loss."""
        self.optimizer.zero_grad()
        outputs = self.model(self.lists.gather(batch.rows))
        if not outputs.isfinite().all():
            raise self._diverged("the scores", "NaN or infinite", batch, position)
        try:
            loss = self.loss(batch.pad(outputs), batch.labels, mask=batch.mask)
        except ValueError as error:
            where = f"{self._where(position)} ({self._named(batch)})"
            raise TrainingError(f"{self.config.loss.name} refuses {where}: {error}") from None
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._diverged("the loss", str(value), batch, position)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.config.optimizer.clip or math.inf)
        if not norm.isfinite():
            raise self._diverged("the gradient", "NaN or infinite", batch, position)
        self.optimizer.step()
        return {"loss": value}

    def validate(self) -> dict[str, float]:
        """The metric that training looks at."""
        values = measure(score(self.model, self.valid), self.valid, [self.measured])[self.metric]
        mean = float(values.nanmean())
        if math.isnan(mean):
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

    def _diverged(self, what: str, found: str, batch: Batch, position: Position) -> TrainingError:
        kept = f". Finished epochs are kept in {self.out}" if position.best_epoch else ""
        return TrainingError(
            f"{self.config.loss.name}: {what} became {found} in {self._where(position)} ({self._named(batch)}). "
            f"Try {', '.join(_advice(self.config))}{kept}"
        )

    def _where(self, position: Position) -> str:
        return f"epoch {position.epoch}, batch {position.batch + 1} of {len(self.loader)}"

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
