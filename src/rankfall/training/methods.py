"""Methods: one interface to training and evaluation, whatever a configuration describes.

>>> from rankfall.training.config.load_config import validate_any
>>> config = validate_any({"data": {"path": "x", "train": "S1", "valid": "S2"}, "loss": {"name": "softmax_loss"}})
>>> method_of(config).title, method_of(config).unit
('softmax_loss', 'lists')
"""

from __future__ import annotations

import json
import os
import warnings
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar, Unpack, cast, get_args

import pyarrow as pa

from rankfall import registry
from rankfall._config import ConfigError, Section
from rankfall._errors import RankfallError, did_you_mean
from rankfall.data.impressions.compatibility import check_compatible
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.lists.list_loader import Lists
from rankfall.data.lists.ranking_data import RankingData
from rankfall.models.embedding import UnknownIdError
from rankfall.registry import config_value, explicit_operator
from rankfall.registry.references import changed, short_name
from rankfall.storage.disk import delete_tree
from rankfall.storage.files import checksum
from rankfall.storage.manifests import MANIFEST, verification
from rankfall.training import cascade_loaders, train_cascade, train_ranker
from rankfall.training import measured_lists as measure_cascade
from rankfall.training import run_directory as runs
from rankfall.training.build import check_loss, check_objective, make_loss, make_objective, with_depths
from rankfall.training.checkpoint import DamagedError
from rankfall.training.checks import trained_labels
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.component_checks import JOINT
from rankfall.training.config.load_config import dump_absolute
from rankfall.training.config.ranker_config import OwnModelConfig, RankerConfig
from rankfall.training.config.sections import Role
from rankfall.training.device import placement_of, seeded
from rankfall.training.distributed.group import ALONE
from rankfall.training.evaluation import Evaluation, evaluate
from rankfall.training.loop import Loop, finished, train_in
from rankfall.training.measured_lists import MeasuredLists, fit_warning, joined_warning, score, short_lists
from rankfall.training.start_weights import rows_of, used_features
from rankfall.training.train_ranker import load_data, load_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLoader
    from rankfall.registry import Kind
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.distributed.group import Group
    from rankfall.training.loop import OnEpoch, OnNotice, Prepared, Progress

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
    """Functions that a training run calls, besides `on_notice`; see :func:`train`."""

    progress: Progress
    on_epoch: OnEpoch
    stop: Callable[[], int]


class Method(ABC, Generic[Config, Data]):
    """What commands and studies need of a configuration: its data, its metrics, training and evaluation.

    :func:`rankfall.training.methods.method_of` returns the method of a configuration, so that no caller has to ask
    whether it configures a ranker, a cascade or a baseline.

    Attributes:
        kind: ``"ranker"``, ``"cascade"`` or the ``kind`` of a baseline.
        unit: What is ranked and counted: ``"lists"`` or ``"impressions"``.
        funnel: Relevant items and quotas of a cascade. None for everything else.
        title: The name of the loss, objective or baseline.
        metric: The validation metric.
        metrics: The metrics of the evaluation.
        main_metric: The metric that reports show in detail.
    """

    kind: ClassVar[str]
    unit: ClassVar[str]
    funnel: Funnel | None = None

    def __init__(self, config: Config, title: str, metric: str, metrics: list[str]) -> None:
        self.config, self.title, self.metric, self.metrics = config, title, metric, metrics
        self.main_metric = metric

    def check_components(self, where: str = "config") -> None:
        """Build the loss or objective and call it on one list, to find options that do not fit each other.

        Validation of a configuration checks each option by itself and builds nothing. A training run does both.

        Args:
            where: Prefix of error messages, such as the path of the file.

        Raises:
            ConfigError: If the loss or objective refuses its options.
        """
        try:
            with runs.own_code(self.config):
                self._build_loss()
        except (ConfigError, runs.OwnCodeError) as error:
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
    """A method trained by gradient descent: a ranker or a cascade.

    Attributes:
        prepare: Opens and checks the data of a training run, before anything is written or drawn.
    """

    prepare: ClassVar[Callable[..., Prepared]]

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

    def complete(
        self, directory: Path, *, on_notice: OnNotice = warnings.warn, **callbacks: Unpack[Callbacks]
    ) -> runs.TrainResult:
        """Train from the last checkpoint in a run directory, or from the beginning if there is none or all are damaged.

        Args:
            directory: Run directory, which need not exist.
            on_notice: Called with warnings, such as damaged checkpoints.
            **callbacks: Further ones of :func:`train`.
        """
        resume = partial(
            train, cast("TrainConfig", self.config), directory, resume=True, on_notice=on_notice, **callbacks
        )
        try:
            return resume()
        except DamagedError:
            on_notice(f"the checkpoints in {directory} are damaged: training starts again")
            delete_tree(directory)
            return resume()


def _fill(section: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    filled = section | {name: default for name, default in defaults.items() if name not in section}
    return filled | ({"topk": explicit_operator(filled["topk"])} if filled.get("topk") else {})


def _defaults(kind: Kind, name: str) -> dict[str, Any]:
    """Return the defaults of a component, except objects of users that no configuration can write."""
    return {option: default for option, default in registry.defaults(kind, name).items() if _is_plain(default)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)


class CascadeMethod(TrainingMethod[CascadeConfig, ImpressionLog]):
    """A cascade and its objective."""

    prepare = staticmethod(train_cascade.prepare)
    kind: ClassVar[str] = "cascade"
    unit: ClassVar[str] = "impressions"

    def __init__(self, config: CascadeConfig) -> None:
        super().__init__(config, short_name(config.objective.name), config.training.metric, config.metrics)
        self.main_metric = JOINT  # whatever the validation metric is
        self.funnel = Funnel(config.relevant, {stage.name: stage.quota for stage in config.stages})

    def describe(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return the options of the objective and of the model of each stage."""
        config = self.config
        stages = {
            f"stage {number}": (f"{stage.name} keeps {stage.quota}", stage.model)
            for number, stage in enumerate(config.stages, 1)
        }
        relevant: tuple[str, Mapping[str, Any]] = (f"the best {config.relevant}", {})
        labels = trained_labels(config)
        return {
            "objective": ("", config.objective.model_dump()),
            **({"labels": (labels, {})} if labels else {}),
            "relevant items": relevant,
            **stages,
        }

    def measured(self) -> list[Any]:
        """Return the values of the configuration that decide what validation measures."""
        data = self.config.data
        return [data.path, data.valid, data.length, data.length_from, self.funnel, self.metric]

    def with_defaults(self) -> dict[str, Any]:
        """Return the content of the configuration with every option of models and objective written out."""
        content = self.config.model_dump(mode="json")
        for stage in content["stages"]:
            stage["model"] = _fill(stage["model"], _defaults("model", stage["model"]["kind"]))
        # options whose values the stages define are left out
        objective, name = make_objective(with_depths(self.config, None))[0], self.config.objective.name
        of_stages = {"quotas"} if name != "lcron" else set()
        of_stages |= {"min_depth"} if any(stage.min_depth is not None for stage in self.config.stages) else set()
        defaults = {
            option: config_value(getattr(objective, option, None)) if default is None else default
            for option, default in _defaults("objective", name).items()
            if option not in of_stages
        }
        return content | {"objective": _fill(content["objective"], defaults)}

    def validation_warnings(self) -> list[str]:
        """Return warnings about short lists, and about measured days that the log was fitted to or that were joined."""
        loader, data = cascade_loaders.make_loader(self.open_data(), self.config, "valid"), self.config.data
        measured = [day.name for day in loader.log.choose([*data.valid, *data.test])]
        fitted = fit_warning(loader.log, measured, data.train)
        return [text for text in (short_lists(loader), fitted, joined_warning(loader.log, measured)) if text]

    def _build_loss(self) -> None:
        check_objective(make_objective(with_depths(self.config, None)), self.config)

    # --- data ---------------------------------------------------------------------------------------------------

    def open_data(self) -> ImpressionLog:
        """Open the impression log."""
        return cascade_loaders.load_log(self.config.data)

    def check_splits(self, data: ImpressionLog) -> None:
        """Check that all days exist, and all logged stages that the configuration names."""
        config = self.config.data
        data.choose([*config.train, *config.valid, *config.test])
        with_depths(self.config, data.spec.stage_names)
        cascade_loaders.check_feedback(self.config, data)

    def fingerprint(self, data: ImpressionLog) -> str:
        """Return the checksum of the log."""
        return data.checksum

    def checksums(self, data: ImpressionLog) -> dict[str, str]:
        """Check the days, and return the checksums of those of training and validation."""
        cascade_loaders.check_days(data, self.config.data)
        return cascade_loaders.checksums(data, self.config)

    def evaluate(
        self,
        directory: Path,
        split: str = "test",
        *,
        data: str | None = None,
        on_impressions: OnImpressions = lambda count, total: None,
        on_notice: OnNotice = lambda text: None,
    ) -> Evaluation:
        """Evaluate the best checkpoint of a run on days, in the order of time and without added negatives."""
        opened = self.open_split(directory, split, data=data, on_notice=on_notice)
        lists = MeasuredLists(opened.loader, opened.config, measure_cascade.scorer_of(opened.cascade))
        with runs.own_code(self.config), opened.refusing_new_ids():
            measured = measure_cascade.measure_cascade(
                opened.cascade,
                opened.loader,
                opened.config,
                on_batch=lambda count: on_impressions(count, opened.impressions),
                on_scored=lists.add,
            )
        return Evaluation.of_cascade(opened.requests(), measured, opened.notes, lists)

    def open_split(
        self,
        directory: Path,
        split: str = "test",
        *,
        data: str | None = None,
        on_notice: OnNotice = lambda text: None,
    ) -> OpenedSplit:
        """Load the best checkpoint of a run, and open the days to measure it on.

        Args:
            directory: Run directory.
            split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
            data: Directory of the log, if it was moved.
            on_notice: Called with each note about the log.
        """
        config, model = self.config, train_cascade.load_run(directory)[1].to(placement_of(self.config.training).device)
        log = ImpressionLog.load(data or config.data.path)
        notes = [*changed(runs.stored_sources(directory)), *_check_log(directory, model, log)]
        for note in notes:
            on_notice(note)
        roles = get_args(Role)
        if (meant := did_you_mean(split, roles)) and split not in (*roles, *log.days):
            raise RankfallError(
                f"split: found {split!r}{meant}, expected one of {', '.join(roles)}, or a day of the log"
            )
        try:
            found = [day.name for day in log.choose([split])] if split not in roles else []
        except ValueError as error:
            expected = f"expected {', '.join(roles)} of the configuration, or days of the log"
            raise RankfallError(f"split: found {split!r}, {expected}; {str(error).removeprefix('days: ')}") from None
        days = config.data.days(cast("Role", split)) if split in roles else found
        config = config.model_copy(update={"data": config.data.model_copy(update={"test": days})})
        loader = cascade_loaders.make_loader(log.limited_to(rows_of(model)), config, "test")
        return OpenedSplit(split, config, model, log, loader, notes)


@dataclass(frozen=True, slots=True)
class OpenedSplit:
    """A trained cascade and the days to measure it on.

    Attributes:
        split: Name of the split or day.
        config: Configuration of the measurement. Its test days are the days of the loader.
        cascade: The cascade, in evaluation mode.
        log: The log.
        loader: Impressions of the days, in the order of time and without added negatives.
        notes: Warnings about the log.
    """

    split: str
    config: CascadeConfig
    cascade: Cascade
    log: ImpressionLog
    loader: ImpressionLoader
    notes: list[str]

    @property
    def impressions(self) -> int:
        """The number of impressions."""
        return sum(len(self.log.days[day]) for day in self.loader.days)

    def requests(self) -> list[str]:
        """Return the id of each impression, in the order of the loader."""
        tables = [self.log.days[day].table()["request"].cast(pa.string()) for day in self.loader.days]
        ids: list[str] = pa.chunked_array([chunk for table in tables for chunk in table.chunks]).to_pylist()
        return ids

    @contextmanager
    def refusing_new_ids(self) -> Generator[None]:
        """Context for scoring: explain ids that the embedding tables of the run do not have."""
        try:
            yield
        except UnknownIdError as error:
            raise RankfallError(
                f"{self.split} of {self.log.path}: {error}. These ids are newer than the training run: train again on "
                "this log, or choose earlier days with --split"
            ) from None


def _check_log(directory: Path, model: Cascade, log: ImpressionLog) -> list[str]:
    """Refuse a log whose ids or numbers differ in meaning from those of the training run; return warnings."""
    runs.verify_run(directory, runs.LOG)
    try:
        trained = runs.read_json(directory / runs.LOG)
    except FileNotFoundError:
        return [
            f"{directory} has no {runs.LOG}, so it is unknown whether the ids of {log.path} are those it was trained on"
        ]
    return check_compatible(trained, log, used=used_features(model))


class ListMethod(Method[Config, RankingData]):
    """A method that scores the documents of prepared lists. Its configuration has the sections data and metrics."""

    unit: ClassVar[str] = "lists"
    config: Any

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
        for note in changed(runs.stored_sources(directory)):
            on_notice(note)
        prepared = RankingData.load(data or self.config.data.path)
        is_role = split in get_args(Role)
        lists = load_lists(prepared, self.config.data, cast("Role", split)) if is_role else Lists([prepared[split]])
        scores = self.score(directory, lists)
        with runs.own_code(self.config):
            return evaluate(scores, lists, self.metrics)

    @abstractmethod
    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of all documents by the model of a run."""


class RankerMethod(ListMethod[RankerConfig], TrainingMethod[RankerConfig, RankingData]):
    """A ranker and its loss."""

    prepare = staticmethod(train_ranker.prepare)
    kind: ClassVar[str] = "ranker"
    config: RankerConfig

    def __init__(self, config: RankerConfig) -> None:
        super().__init__(config, short_name(config.loss.name), config.training.metric, config.metrics)

    def describe(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return the options of the loss and of the model."""
        return {"loss": ("", self.config.loss.model_dump()), "model": ("", self.config.model.model_dump())}

    def measured(self) -> list[Any]:
        """Return the values of the configuration that decide what validation measures."""
        return [self.config.data.path, self.config.data.valid, self.metric]

    def with_defaults(self) -> dict[str, Any]:
        """Return the content of the configuration with every option of the loss written out."""
        content = self.config.model_dump(mode="json")
        content["loss"] = _fill(content["loss"], _defaults("loss", self.config.loss.name))
        if isinstance(self.config.model, OwnModelConfig):
            content["model"] = _fill(content["model"], _defaults("model", self.config.model.kind))
        return content

    def _build_loss(self) -> None:
        check_loss(make_loss(self.config.loss)[0], self.config.loss)

    def checksums(self, data: RankingData) -> dict[str, str]:
        """Check the splits, and return the checksums of all files."""
        self.check_splits(data)
        return dict(data.manifest["files"])

    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of all documents by the ranker of a run."""
        model = train_ranker.load_run(directory)[1].to(placement_of(self.config.training).device)
        if lists.features != len(model.scaling.mean):
            raise RankfallError(
                f"data: the lists have {lists.features} features, the model of {directory} was trained on "
                f"{len(model.scaling.mean)}"
            )
        with runs.own_code(self.config):
            return score(model, lists)


_METHODS: dict[type[TrainConfig], Callable[[Any], TrainingMethod[Any, Any]]] = {
    RankerConfig: RankerMethod,
    CascadeConfig: CascadeMethod,
}


def method_of(config: TrainConfig) -> TrainingMethod[Any, Any]:
    """Return the method of a training configuration. Nothing else asks which kind of configuration it is."""
    return _METHODS[type(config)](config)


def train(
    config: TrainConfig,
    out: Path,
    *,
    force: bool = False,
    resume: bool = False,
    progress: Progress = lambda step: None,
    on_epoch: OnEpoch = lambda epoch, learner: None,
    on_notice: OnNotice = warnings.warn,
    stop: Callable[[], int] = lambda: False,
    group: Group = ALONE,
) -> runs.TrainResult:
    """Train and write a run directory. The same configuration and data give the same weights, bit for bit.

    Processes that were restarted after a failure continue the run, whatever `force` and `resume` are.

    Args:
        config: Configuration of a ranker or a cascade.
        out: Run directory.
        force: Replace a run that exists in `out`.
        resume: Continue a run that exists in `out`. The result is the same as without an interruption.
        progress: Called after every batch.
        on_epoch: Called after every epoch with its line of ``metrics.jsonl`` and the learner.
        on_notice: Called with warnings, such as damaged checkpoints.
        stop: Called after every batch; a true value ends the run early and raises
            :class:`~rankfall.training.run_directory.Stopped`.
        group: Processes that train together. All of them call this function with the same arguments.

    Raises:
        ConfigError: If the configuration does not fit the data or the run in `out`.
        TrainingError: If training cannot continue, for example because the loss became NaN.
    """
    if group.restarted:
        with group.together():
            replaces = group.first and force and runs.is_marked_for_replacement(out)
        force = any(group.gather(replaces))
        resume = not force
    verifies = os.environ.get("LOCAL_RANK", "0") == "0"  # one process per machine reads the data for that
    with verification(verifies), runs.own_code(config, trains=True):
        with group.together():
            placement = placement_of(config.training, group)
            run = method_of(config).prepare(config, out, resume=resume, group=group)
        result = finished(out, run.config, run.data, force=force, resume=resume, on_notice=on_notice, group=group)
        if result is not None:
            return result
        with seeded(config.training.seed, config.training.threads, placement.device):
            with group.together():
                learner = run.make_learner(on_notice if group.first else lambda text: None)
                loop = Loop(learner, run.config, out, data=run.data, progress=progress, on_epoch=on_epoch, stop=stop)
            files = {
                runs.CONFIG: dump_absolute(run.config),
                **run.files,
                runs.DATA: json.dumps(run.data, indent=1) + "\n",
                **runs.component_files(run.config),
            }
            return train_in(loop, files, resume=resume, on_notice=on_notice)
