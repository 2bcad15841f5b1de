"""Train one ranker."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from rankfall._config import ConfigError
from rankfall._errors import RankfallError
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data.arrays import Moments
from rankfall.data.lists.list_loader import ListLoader, Lists
from rankfall.data.lists.ranking_data import RankingData
from rankfall.metrics.named import parse
from rankfall.models import FeatureScaling
from rankfall.registry.references import check_weights_fit
from rankfall.storage.trust import stored_code
from rankfall.training import build
from rankfall.training import run_directory as runs
from rankfall.training.checks import Ranker, check_label_values, check_lists, check_metrics, make_ranker
from rankfall.training.config.ranker_config import RankerConfig
from rankfall.training.config.sections import Role
from rankfall.training.device import moved, placement_of
from rankfall.training.distributed.group import ALONE
from rankfall.training.learner import Learner, Network
from rankfall.training.loop import Loop, Prepared
from rankfall.training.measured_lists import measure_scores as measure
from rankfall.training.measured_lists import score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rankfall.data.lists.list_loader import ListBatch
    from rankfall.data.lists.ranking_data import RankingSplit
    from rankfall.metrics.named import NamedMetric
    from rankfall.training.config.ranker_config import DataConfig
    from rankfall.training.device import Placement
    from rankfall.training.distributed.group import Group
    from rankfall.training.learner import Position
    from rankfall.training.loop import OnNotice

    BuiltLoss = tuple[nn.Module, list[build.Temperature]]

QIDS_SHOWN = 5
CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Epoch:
    """Results of an epoch: one line of ``metrics.jsonl``."""

    epoch: int
    loss: float
    metric: float
    lists_per_second: float
    seconds: float  # working time since the start of the run
    trained: dict[str, float | list[float]]  # trained weights of the loss, such as alpha of ARF


# --- a training run -----------------------------------------------------------------------------------------------


def prepare(config: RankerConfig, out: Path, *, resume: bool, group: Group) -> Prepared:
    """Open and check the lists of a training run; see :func:`rankfall.training.methods.train`."""
    data = load_data(config.data)
    lists = {role: load_lists(data, config.data, role) for role in get_args(Role) if config.data.splits(role)}
    for one, other in combinations([*config.data.train, *config.data.valid, *config.data.test], 2):
        if np.may_share_memory(data[one].features, data[other].features):  # such as `all` and `all:1/5`
            raise ConfigError(f"data: {one} and {other} have lists in common; a list has one use")
    built = build.make_loss(config.loss)
    build.check_loss(built[0], config.loss)
    check_metrics([*config.metrics, config.training.metric])
    check_lists(lists["train"], config.loss.name)
    if not placement_of(config.training, group).is_cpu and not build.classifies(config.loss):
        check_label_values(built[0], lists["train"], config.loss.name)

    def make_learner(on_notice: OnNotice) -> RankerLearner:
        grades = count_grades(lists["train"], config.loss.name) if build.classifies(config.loss) else None
        model = make_ranker(config.model, fit_scaling(data, config.data), grades)
        return RankerLearner(config, out, model, built, lists["train"], lists["valid"], group)

    return Prepared(config, data.manifest["files"], make_learner)


class _Network(Network):
    """A ranker and its loss in one module."""

    def __init__(self, model: Ranker, loss: nn.Module, placement: Placement) -> None:
        super().__init__(placement, dynamic=True)
        self.model, self.loss = model, loss

    def scores(self, features: Tensor, batch: ListBatch) -> dict[str, Tensor]:
        return {"the scores": self.model(features)}

    def terms(self, scores: list[Tensor], features: Tensor, batch: ListBatch) -> dict[str, Tensor]:
        return {"loss": self.loss(batch.pad(scores[0]), batch.labels, mask=batch.mask)}


class RankerLearner(Learner["ListBatch"]):
    """Learner of a ranker."""

    section = "loss"
    causes = (
        "The options of the loss may leave no documents to compare (m or k of at least the length of the lists), or "
        "its order may be too certain to change"
    )
    config: RankerConfig

    def __init__(
        self,
        config: RankerConfig,
        out: Path,
        model: Ranker,
        built: BuiltLoss,
        lists: Lists,
        valid: Lists,
        group: Group,
    ) -> None:
        super().__init__(config, out, group)
        self.model, self.lists, self.valid = model, lists, valid
        self.measured = parse(config.training.metric)
        self.metric, self.higher_is_better = self.measured.name, self.measured.higher_is_better
        self.loss, self.temperatures = built
        self.modules = {"model": model, "loss": self.loss}
        self.network = _Network(model, self.loss, self.placement).to(self.placement.device)
        self.optimizer = build.Optimizers(config.optimizer, model, self.loss)
        settings = config.training
        self.loader = ListLoader(
            lists,
            batch=settings.batch,
            seed=settings.seed,
            max_list=settings.max_list,
            rank=group.rank,
            world=group.world,
        )
        self.batches = settings.epochs * len(self.loader)

    def terms(self, batch: ListBatch, position: Position) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the loss of a batch."""
        if not len(batch) and self.group.world > 1 and runs.sources_of(self.config):
            batch = self.lists.batch(np.arange(1))  # of the weight 0: losses of users need not know empty shares
        features = self.lists.gather(batch.rows)
        if self.placement.pins:
            features, batch = features.pin_memory(), batch.pin_memory()
        device = self.placement.device
        try:
            terms, finite = self.network(moved(features, device), moved(batch, device))
        except ValueError as error:
            raise runs.TrainingError(
                f"{self.config.loss.name} refuses {self.where(batch, position)}: {error}"
            ) from None
        return terms, finite

    def validate(self) -> dict[str, float]:
        """Return the validation metric."""
        values = measure(score(self.model, self.valid, self.group), self.valid, [self.measured])[self.metric]
        mean = float(values.nanmean())
        if math.isnan(mean):
            with self.group.together():
                raise runs.TrainingError(
                    f"training.metric: {self.metric} is undefined on every list of data.valid "
                    f"({', '.join(self.config.data.valid)}): none has a relevant document"
                )
        return {self.metric: mean}

    def line(self, position: Position) -> Epoch:
        """Return the results of an epoch."""
        values = {name: parameter.detach().flatten().tolist() for name, parameter in self.loss.named_parameters()}
        trained = {name: value[0] if len(value) == 1 else value for name, value in values.items()}
        reached, loss = position.validation[self.metric], position.parts["loss"]
        return Epoch(position.epoch, loss, reached, position.per_second, position.seconds, trained)

    def save(self, path: Path, position: Position) -> None:
        """Write the weights of the model and of the loss."""
        parts = self.modules.items()
        tensors = {f"{part}.{key}": tensor for part, module in parts for key, tensor in module.state_dict().items()}
        metadata = {
            "epoch": position.epoch,
            "metric": self.metric,
            "value": position.validation[self.metric],
            "features": self.lists.features,
            "grades": self.model.grades,
        }
        write_checkpoint(path, tensors, metadata)

    def hints(self) -> list[str]:
        """Return changes to try after a divergence, the most promising first."""
        found = super().hints()
        if not self.config.data.standardise:
            found.append("data.standardise=true")
        if not self.config.data.log1p:
            found.append("data.log1p=true if features have very large values")
        return found

    def where(self, batch: ListBatch, position: Position) -> str:
        """Return the place of a batch, and its queries."""
        qids = ", ".join(self.lists.qids[number] for number in batch.lists[:QIDS_SHOWN])
        more = len(batch.lists) - QIDS_SHOWN
        of = f"epoch {position.epoch}, batch {position.batch + 1} of {len(self.loader)}"
        return f"{of} (qid {qids}{f' and {more} more' if more > 0 else ''})"


# --- data ---------------------------------------------------------------------------------------------------------


def load_data(config: DataConfig) -> RankingData:
    """Open the prepared data of a configuration."""
    try:
        return RankingData.load(config.path)
    except ValueError as error:
        raise ConfigError(f"data.{error}") from None


def load_lists(data: RankingData, config: DataConfig, role: Role) -> Lists:
    """Return the lists of a configuration for training, validation or testing."""
    names = config.splits(role)
    if not names:
        raise ConfigError(f"data.{role}: found no split, expected some of {', '.join(data)}")
    try:
        splits = [data[name] for name in names]
    except ValueError as error:
        raise ConfigError(f"data.{role}: {str(error).removeprefix('split: ')}") from None
    lists = Lists(splits)
    if len(lists) == 0:
        raise ConfigError(f"data.{role}: {', '.join(names)} of {data.path} has no lists")
    return lists


def fit_scaling(data: RankingData, config: DataConfig) -> FeatureScaling:
    """Return the scaling of the features, fitted to the training lists of a configuration."""
    recipe = data.manifest["recipe"]
    if config.log1p and (recipe["log1p"] or recipe["standardise"]):
        done = "log1p" if recipe["log1p"] else "standardisation"
        raise ConfigError(f"data.log1p: found true, but {data.path} was prepared with {done}; expected false")
    if not config.standardise:
        return FeatureScaling.identity(data.features, log1p=config.log1p)
    scaling = data.scaling(config.train)
    if config.log1p:  # the stored moments are those of the values, not of their logarithms
        logarithm = FeatureScaling.identity(data.features, log1p=True)
        chunks = Lists([data[name] for name in config.train]).chunks(CHUNK_ROWS)
        parts = [Moments.of(logarithm(chunk).numpy()) for chunk in chunks]
        scaling = sum(parts[1:], start=parts[0]).scaling()
    return FeatureScaling(torch.tensor(scaling.mean), torch.tensor(scaling.deviation), log1p=config.log1p)


def count_grades(lists: Lists, name: str) -> int:
    """Return the number of label grades of training lists, for a loss that classifies; `name` is its name."""
    labels = lists.labels
    if labels.min() < 0 or (labels != np.floor(labels)).any():
        raise ConfigError(f"loss.name: {name} needs labels 0, 1, 2, ...; the training lists have others")
    return max(2, int(labels.max()) + 1)


# --- a finished run -----------------------------------------------------------------------------------------------


def load_run(
    directory: Path, *, checkpoint: Literal["best", "last"] = "best", trust: bool = False
) -> tuple[RankerConfig, Ranker]:
    """Load the configuration of a run and its model, in evaluation mode."""
    config = runs.read_config_as(RankerConfig, directory, trust=trust)
    with stored_code(directory, trust=trust):
        check_weights_fit([one for one in runs.stored_sources(directory) if one.kind == "model"], directory)
    runs.verify_run(directory, f"{runs.CHECKPOINTS}/{checkpoint}.safetensors")
    tensors, metadata = read_checkpoint(directory / runs.CHECKPOINTS / f"{checkpoint}.safetensors")
    scaling = FeatureScaling.identity(metadata["features"], log1p=config.data.log1p)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn and then replaced
        model = make_ranker(config.model, scaling, metadata["grades"])
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        raise RankfallError(f"{directory}: the checkpoint {checkpoint} does not fit config.yaml: {error}") from None
    return config, model.eval()


class ListLearner(RankerLearner):
    """Learner of lists in memory, with weights of rows and any number of evaluation sets."""

    def __init__(
        self,
        config: RankerConfig,
        out: Path,
        model: Ranker,
        built: BuiltLoss,
        lists: Lists,
        evaluated: Mapping[str, RankingSplit],
        metrics: Sequence[NamedMetric],
        weights: Tensor | None,
    ) -> None:
        self.evaluated = {name: Lists([split]) for name, split in evaluated.items()}
        super().__init__(config, out, model, built, lists, next(iter(self.evaluated.values()), lists), ALONE)
        self.weights = weights
        self.metrics = metrics
        self.results: dict[str, dict[str, list[float]]] = {
            name: {metric.name: [] for metric in metrics} for name in self.evaluated
        }
        self.losses: list[float] = []

    def terms(self, batch: ListBatch, position: Position) -> Any:
        """Compute the loss of a batch."""
        if self.weights is not None:
            padded = batch.pad(self.weights[torch.from_numpy(batch.rows)])
            self.loss.weight = moved(padded.pin_memory() if self.placement.pins else padded, self.placement.device)
        return super().terms(batch, position)

    def validate(self) -> dict[str, float]:
        """Measure all evaluation sets, and return the metric that decides: NaN without a set, so that the last wins."""
        for name, lists in self.evaluated.items():
            measured = measure(score(self.model, lists), lists, self.metrics)
            for metric, values in measured.items():
                self.results[name][metric].append(mean_over_lists(values, metric, f"eval_set, {name}"))
        first = next(iter(self.results.values()), {self.metric: [float("nan")]})
        return {self.metric: first[self.metric][-1]}

    def line(self, position: Position) -> Epoch:
        """Return the results of an epoch."""
        self.losses.append(position.parts["loss"])
        return super().line(position)

    def hints(self) -> list[str]:
        """Return changes to try after a divergence; arguments of a fit do not need those of the data."""
        return Learner.hints(self)

    def diverged(self, what: str, batch: ListBatch, position: Position) -> runs.TrainingError:
        """Return the error for a batch; nothing of a fit is kept."""
        return super().diverged(what, batch, replace(position, best_epoch=0))

    def load_best(self, path: Path) -> None:
        """Load the weights of the best epoch."""
        tensors, _ = read_checkpoint(path, lambda name: name.startswith("model."))
        self.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})


class ListLoop(Loop["ListBatch"]):
    """The loop of a fit. It keeps the best weights and writes no checkpoints, because a fit cannot be resumed."""

    def save(self) -> None:
        """Do nothing instead of writing a checkpoint."""


class WeightedLoss(nn.Module):
    """A loss that is called with the weights of the rows of the current batch, which the learner sets."""

    weight: Tensor

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
        value: Tensor = self.loss(scores, labels, mask=mask, weight=self.weight)
        return value


def mean_over_lists(values: Tensor, metric: str, where: str) -> float:
    """Return the mean of a metric over the lists on which it is defined.

    Args:
        values: One value per list; NaN where the metric is undefined.
        metric: Name of the metric.
        where: What the lists are, for the error message.

    Raises:
        ValueError: If the metric is undefined on all lists.
    """
    mean = float(values.nanmean())
    if np.isnan(mean):
        raise RankfallError(f"{where}: {metric} is undefined on every list: none has a relevant row")
    return mean
