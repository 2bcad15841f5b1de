"""The interface of everything that can be trained, evaluated and compared."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar

from rankfall._disk import delete_tree
from rankfall._yaml_config import ConfigError, Section
from rankfall.training.checkpoint import DamagedError
from rankfall.training.own_parts import OwnCodeError, own_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Literal, Unpack

    from torch import nn

    from rankfall.training.distributed.group import Group
    from rankfall.training.evaluation import Evaluation
    from rankfall.training.loop import OnNotice, Progress
    from rankfall.training.run_directory import TrainResult

    OnImpressions = Callable[[int, int], None]

Config = TypeVar("Config", bound=Section)
Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class Funnel:
    """Sizes of a cascade.

    Attributes:
        relevant: Number of relevant items per impression.
        quotas: Number of items that each stage keeps, by its name.
    """

    relevant: int
    quotas: dict[str, int]


class Callbacks(TypedDict, total=False):
    """Functions that a training run calls."""

    progress: Progress
    on_notice: OnNotice
    stop: Callable[[], int]


class TrainOptions(Callbacks, total=False):
    """Keyword arguments of :func:`rankfall.training.train.train`."""

    force: bool
    resume: bool
    group: Group


class Method(ABC, Generic[Config, Data]):
    """What commands and studies need of a configuration: its data, its metrics, training and evaluation.

    :func:`rankfall.training.methods.method_of` returns the method of a configuration, so that no caller has to ask
    whether it configures a ranker, a cascade or a baseline.

    Attributes:
        kind: ``"ranker"``, ``"cascade"`` or the ``kind`` of a baseline.
        unit: What is ranked and counted: ``"lists"`` or ``"impressions"``.
        funnel: Relevant items and quotas of a cascade. None for everything else.
    """

    kind: ClassVar[str]
    unit: ClassVar[str]
    funnel: Funnel | None = None

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    @abstractmethod
    def title(self) -> str:
        """The name of the loss, objective or baseline."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """The validation metric."""

    @property
    @abstractmethod
    def metrics(self) -> list[str]:
        """The metrics of the evaluation."""

    @property
    def main_metric(self) -> str:
        """The metric that reports show in detail."""
        return self.metric

    @abstractmethod
    def higher_is_better(self, metric: str) -> bool:
        """Return whether higher values of a metric are better."""

    def check_components(self, where: str = "config") -> None:
        """Build the loss or objective and call it on one list, to find options that do not fit each other.

        Validation of a configuration checks each option by itself and builds nothing. A training run does both.

        Args:
            where: Prefix of error messages, such as the path of the file.

        Raises:
            ConfigError: If the loss or objective refuses its options.
        """
        try:
            with own_code(self.config):
                self._build_loss()
        except (ConfigError, OwnCodeError) as error:
            raise ConfigError(f"{where}: {error}") from None

    def _build_loss(self) -> None:
        """Build and check the loss or objective, if there is one."""

    # --- data ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def open_data(self) -> Data:
        """Open the data of the configuration; nothing large is read.

        Raises:
            ConfigError: If ``data.path`` is not a directory of prepared data of the right kind.
        """

    @abstractmethod
    def check_splits(self, data: Data) -> None:
        """Check that the splits or days of the configuration exist, and that the configuration fits the data.

        Raises:
            ConfigError: If a split, day or logged stage does not exist.
        """

    @abstractmethod
    def fingerprint(self, data: Data) -> str:
        """Return a checksum of all data, for the names of runs."""

    # --- a run --------------------------------------------------------------------------------------------------

    @abstractmethod
    def complete(self, directory: Path, *, on_notice: OnNotice = warnings.warn) -> object:
        """Train into a run directory, or continue what an interrupted process left there.

        Args:
            directory: Run directory. It may hold an unfinished run of the same configuration.
            on_notice: Called with warnings, such as damaged checkpoints.
        """

    @abstractmethod
    def evaluate(
        self,
        directory: Path,
        split: str = "test",
        *,
        data: str | None = None,
        on_impressions: OnImpressions = lambda count, total: None,
        on_notice: OnNotice = lambda text: None,
    ) -> Evaluation:
        """Evaluate the best checkpoint of a run.

        Args:
            directory: Run directory.
            split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a split or day.
            data: Directory of the prepared data, if they were moved.
            on_impressions: Called with the number of impressions measured since the last call, and of all.
            on_notice: Called with each note of the evaluation before measuring.
        """


class TrainingMethod(Method[Config, Data]):
    """A method trained by gradient descent: a ranker or a cascade."""

    @abstractmethod
    def checksums(self, data: Data) -> dict[str, str]:
        """Check the splits or days, and return the checksums of what a training run reads.

        Raises:
            ConfigError: If a split or day does not exist or has two uses.
        """

    @abstractmethod
    def measured(self) -> list[Any]:
        """Return the values of the configuration that decide what validation measures."""

    @abstractmethod
    def describe(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return a text and the options of each part that is trained: loss and model, or objective and stages."""

    @abstractmethod
    def with_defaults(self) -> dict[str, Any]:
        """Return the content of the configuration with every option of its components written out.

        The result validates to an equivalent configuration.
        """

    def validation_warnings(self) -> list[str]:
        """Return what a reader of the validation figures has to know."""
        return []

    @abstractmethod
    def train(self, out: Path, **options: Unpack[TrainOptions]) -> TrainResult:
        """Train and write a run directory; see :func:`rankfall.training.train.train`."""

    def complete(
        self,
        directory: Path,
        *,
        on_notice: OnNotice = warnings.warn,
        progress: Progress = lambda step: None,
        stop: Callable[[], int] = lambda: False,
    ) -> TrainResult:
        """Train from the last checkpoint in a run directory, or from the beginning if there is none or all are damaged.

        Args:
            directory: Run directory, which need not exist.
            on_notice: Called with warnings, such as damaged checkpoints.
            progress: Called after every batch.
            stop: Called after every batch; a true value ends the run early.
        """
        resume = partial(self.train, directory, resume=True, progress=progress, on_notice=on_notice, stop=stop)
        try:
            return resume()
        except DamagedError:
            on_notice(f"the checkpoints in {directory} are damaged: training starts again")
            delete_tree(directory)
            return resume()

    @abstractmethod
    def load(self, directory: Path, *, checkpoint: Literal["best", "last"] = "best") -> nn.Module:
        """Load the model of a run, in evaluation mode."""
