"""Cascades on impression logs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args

import pyarrow as pa

from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.compatibility import check_compatible
from rankfall.data.impressions.log import ImpressionLog
from rankfall.models.embedding import UnknownIdError
from rankfall.registry.stored_sources import changed, short_name
from rankfall.training import cascade_loaders, measure_cascade, train_cascade
from rankfall.training.build_cascade import check_objective, make_objective, try_depths, with_depths
from rankfall.training.cascade_metrics import JOINT, higher_is_better
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.defaults import cascade_with_defaults
from rankfall.training.config.sections import Role
from rankfall.training.device import placement_of
from rankfall.training.evaluation import Evaluation
from rankfall.training.grow_tables import rows_of
from rankfall.training.label_checks import trained_labels
from rankfall.training.measured_lists import MeasuredLists, fit_warning, short_lists
from rankfall.training.methods.method import Funnel, TrainingMethod
from rankfall.training.own_parts import own_code, stored_sources
from rankfall.training.run_directory import LOG, read_json
from rankfall.training.run_manifest import verify_run
from rankfall.training.start_weights import used_features

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path
    from typing import Literal, Unpack

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLoader
    from rankfall.training.loop import OnNotice
    from rankfall.training.methods.method import OnImpressions, TrainOptions
    from rankfall.training.run_directory import TrainResult


class CascadeMethod(TrainingMethod[CascadeConfig, ImpressionLog]):
    """A cascade and its objective."""

    kind: ClassVar[str] = "cascade"
    unit: ClassVar[str] = "impressions"

    def __init__(self, config: CascadeConfig) -> None:
        super().__init__(config)
        self.funnel = Funnel(config.relevant, {stage.name: stage.quota for stage in config.stages})

    @property
    def title(self) -> str:
        """The name of the objective."""
        return short_name(self.config.objective.name)

    @property
    def metric(self) -> str:
        """The validation metric."""
        return self.config.training.metric

    @property
    def metrics(self) -> list[str]:
        """The metrics of the evaluation."""
        return self.config.metrics

    @property
    def main_metric(self) -> str:
        """The joint recall, whatever the validation metric is."""
        return JOINT

    def higher_is_better(self, metric: str) -> bool:
        """Return whether higher values of a metric are better."""
        return higher_is_better(metric)

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
        return cascade_with_defaults(self.config)

    def validation_warnings(self) -> list[str]:
        """Return warnings if lists are much shorter than the catalogue, or if the log was fitted to measured days."""
        loader, data = cascade_loaders.make_loader(self.open_data(), self.config, "valid"), self.config.data
        measured = [day.name for day in loader.log.choose([*data.valid, *data.test])]
        return [text for text in (short_lists(loader), fit_warning(loader.log, measured, data.train)) if text]

    def _build_loss(self) -> None:
        built = make_objective(try_depths(self.config))
        check_objective(
            *built,
            stages=len(self.config.stages),
            classifies=self.config.objective.classifies,
            weighted=self.config.weight is not None,
        )

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

    # --- a run --------------------------------------------------------------------------------------------------

    def train(self, out: Path, **options: Unpack[TrainOptions]) -> TrainResult:
        """Train the cascade and write a run directory."""
        with own_code(self.config, trains=True):
            return train_cascade.train(self.config, out, **options)

    def load(self, directory: Path, *, checkpoint: Literal["best", "last"] = "best") -> Cascade:
        """Load the cascade of a run, in evaluation mode."""
        return train_cascade.load_run(directory, checkpoint=checkpoint)[1]

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
        with own_code(self.config), opened.refusing_new_ids():
            measured = measure_cascade.measure(
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
        config, model = self.config, self.load(directory).to(placement_of(self.config.training).device)
        log = ImpressionLog.load(data or config.data.path)
        notes = [*changed(stored_sources(directory)), *_check_log(directory, model, log)]
        for note in notes:
            on_notice(note)
        roles = get_args(Role)
        if (meant := did_you_mean(split, roles)) and split not in (*roles, *log.days):
            raise ValueError(f"split: found {split!r}{meant}, expected one of {', '.join(roles)}, or a day of the log")
        days = config.data.days(cast("Role", split)) if split in roles else _chosen(log, split)
        config = config.model_copy(update={"data": config.data.model_copy(update={"test": days})})
        loader = cascade_loaders.make_loader(log.limited_to(rows_of(model)), config, "test")
        return OpenedSplit(split, config, model, log, loader, notes)


def _chosen(log: ImpressionLog, split: str) -> list[str]:
    """Return the days that a split names which is none of the configuration."""
    try:
        return [day.name for day in log.choose([split])]
    except ValueError as error:
        expected = f"expected {', '.join(get_args(Role))} of the configuration, or days of the log"
        raise ValueError(f"split: found {split!r}, {expected}; {str(error).removeprefix('days: ')}") from None


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
            raise ValueError(
                f"{self.split} of {self.log.path}: {error}. These ids are newer than the training run: train again on "
                "this log, or choose earlier days with --split"
            ) from None


def _check_log(directory: Path, model: Cascade, log: ImpressionLog) -> list[str]:
    """Refuse a log whose ids or numbers differ in meaning from those of the training run; return warnings."""
    verify_run(directory, LOG)
    try:
        trained = read_json(directory / LOG)
    except FileNotFoundError:
        return [f"{directory} has no {LOG}, so it is unknown whether the ids of {log.path} are those it was trained on"]
    return check_compatible(trained, log, used=used_features(model))
