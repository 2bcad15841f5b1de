"""Rankers, and what they share with every other method on prepared lists."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args

from rankfall._files import checksum
from rankfall._manifest import MANIFEST
from rankfall._yaml_config import ConfigError
from rankfall.data.lists.list_loader import Lists
from rankfall.data.lists.ranking_data import RankingData
from rankfall.metrics.named import parse
from rankfall.registry.stored_sources import changed, short_name
from rankfall.training import train_ranker
from rankfall.training.build_components import check_loss, make_loss
from rankfall.training.config.defaults import ranker_with_defaults
from rankfall.training.config.ranker_config import RankerConfig
from rankfall.training.config.sections import Role
from rankfall.training.device import placement_of
from rankfall.training.evaluation import evaluate
from rankfall.training.methods.method import Config, Method, TrainingMethod
from rankfall.training.own_parts import own_code, stored_sources
from rankfall.training.scoring import score
from rankfall.training.train_ranker import load_data, load_lists

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Literal, Unpack

    from torch import Tensor

    from rankfall.training.build_ranker import Ranker
    from rankfall.training.evaluation import Evaluation
    from rankfall.training.loop import OnNotice
    from rankfall.training.methods.method import OnImpressions, TrainOptions
    from rankfall.training.run_directory import TrainResult


class ListMethod(Method[Config, RankingData]):
    """A method that scores the documents of prepared lists. Its configuration has the sections data and metrics."""

    unit: ClassVar[str] = "lists"
    config: Any

    @property
    def metrics(self) -> list[str]:
        """The metrics of the evaluation."""
        found: list[str] = self.config.metrics
        return found

    def higher_is_better(self, metric: str) -> bool:
        """Return whether higher values of a metric are better."""
        return parse(metric).higher_is_better

    def open_data(self) -> RankingData:
        """Open the prepared lists."""
        return load_data(self.config.data)

    def check_splits(self, data: RankingData) -> None:
        """Check that all splits of the configuration exist."""
        for role in get_args(Role):
            for name in self.config.data.splits(role):
                try:
                    data[name]
                except ValueError as error:
                    raise ConfigError(f"data.{role}: {str(error).removeprefix('split: ')}") from None

    def fingerprint(self, data: RankingData) -> str:
        """Return the checksum of the manifest, which holds those of all files."""
        return checksum(data.path / MANIFEST)

    def evaluate(
        self,
        directory: Path,
        split: str = "test",
        *,
        data: str | None = None,
        on_impressions: OnImpressions = lambda count, total: None,
        on_notice: OnNotice = lambda text: None,
    ) -> Evaluation:
        """Evaluate the best checkpoint of a run on lists; notes say which components have changed since training."""
        for note in changed(stored_sources(directory)):
            on_notice(note)
        prepared = RankingData.load(data or self.config.data.path)
        is_role = split in get_args(Role)
        lists = load_lists(prepared, self.config.data, cast("Role", split)) if is_role else Lists([prepared[split]])
        return evaluate(self.score(directory, lists), lists, self.metrics)

    @abstractmethod
    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of all documents by the model of a run."""


class RankerMethod(ListMethod[RankerConfig], TrainingMethod[RankerConfig, RankingData]):
    """A ranker and its loss."""

    kind: ClassVar[str] = "ranker"
    config: RankerConfig

    @property
    def title(self) -> str:
        """The name of the loss."""
        return short_name(self.config.loss.name)

    @property
    def metric(self) -> str:
        """The validation metric."""
        return self.config.training.metric

    def describe(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return the options of the loss and of the model."""
        return {"loss": ("", self.config.loss.model_dump()), "model": ("", self.config.model.model_dump())}

    def measured(self) -> list[Any]:
        """Return the values of the configuration that decide what validation measures."""
        return [self.config.data.path, self.config.data.valid, self.metric]

    def with_defaults(self) -> dict[str, Any]:
        """Return the content of the configuration with every option of the loss written out."""
        return ranker_with_defaults(self.config)

    def _build_loss(self) -> None:
        check_loss(make_loss(self.config.loss)[0], self.config.loss)

    def checksums(self, data: RankingData) -> dict[str, str]:
        """Check the splits, and return the checksums of all files."""
        self.check_splits(data)
        return dict(data.manifest["files"])

    def train(self, out: Path, **options: Unpack[TrainOptions]) -> TrainResult:
        """Train the ranker and write a run directory."""
        with own_code(self.config, trains=True):
            return train_ranker.train(self.config, out, **options)

    def load(self, directory: Path, *, checkpoint: Literal["best", "last"] = "best") -> Ranker:
        """Load the ranker of a run, in evaluation mode."""
        return train_ranker.load_run(directory, checkpoint=checkpoint)[1]

    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of all documents by the ranker of a run."""
        model = self.load(directory).to(placement_of(self.config.training).device)
        if lists.features != len(model.scaling.mean):
            raise ValueError(
                f"data: the lists have {lists.features} features, the model of {directory} was trained on "
                f"{len(model.scaling.mean)}"
            )
        with own_code(self.config):
            return score(model, lists)
