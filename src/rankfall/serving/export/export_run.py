"""Export a run as a bundle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rankfall._errors import RankfallError, did_you_mean
from rankfall.cascade import Cascade
from rankfall.data.impressions.compatibility import check_compatible
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.serving.export.item_table import load_items
from rankfall.serving.export.measure_bundle import check_features, run_figure, sample_requests
from rankfall.serving.export.onnx_graphs import described, has_index, inputs_of, request_rules, request_vocabularies
from rankfall.serving.export.write_bundle import QUERIES, BundleSource, portable_name, write_bundle
from rankfall.storage.files import checksum
from rankfall.storage.trust import stored_code
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.component_checks import JOINT
from rankfall.training.measured_lists import joined_warning
from rankfall.training.run_directory import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    RESULT,
    is_finished,
    own_code,
    read_config_as,
    read_json,
    sources_of,
    stored_sources,
    verify_run,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from rankfall.cascade import Stage
    from rankfall.serving.export.write_bundle import OnStep


FEW_QUERIES = 100  # on which a recall of 0.99 is measured with little precision


@dataclass(frozen=True, slots=True)
class Exported:
    """The manifest of a bundle, and notes for the user who exported it."""

    manifest: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Trained:
    """A checkpoint with everything that is needed to serve it.

    Attributes:
        run: The run directory, which stores the encoding of the training log.
        config: The configuration of the run.
        checkpoint: The file of weights.
        log: The log of the run.
        days: The days of the log whose requests the bundle is checked on.
        metrics: The metrics of the weights.
    """

    run: Path
    config: CascadeConfig
    checkpoint: Path
    log: ImpressionLog
    days: Sequence[str]
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What a bundle holds, and what is required of it.

    Attributes:
        items: A prepared log or a file of items; by default the log of the run.
        known: The items of the log with their features, if they are not the newest ones.
        stage: Export only this stage.
        quotas: Number of items that stages keep in the bundle; by default that of the run.
        recall: Share of the best items that the index of the first stage must find.
        examples: The number of requests of the log that the bundle keeps.
        display: Attributes of items that are shown to people: columns of the file of items, or features of items; by
            default a few categorical features.
        force: Replace a bundle at the same place.
    """

    items: Path | None = None
    known: pa.Table | None = None
    stage: str | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)
    recall: float = 0.99
    examples: int = 16
    display: Sequence[str] | None = None
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that no bundle can have."""
        if not 0 < self.recall <= 1:
            raise RankfallError(f"recall: found {self.recall:g}, expected more than 0 and at most 1")
        if self.examples < 0:
            raise RankfallError(f"examples: found {self.examples}, expected 0 or more")


_DEFAULTS = ExportOptions()


def export_run(
    run: Path,
    out: Path,
    options: ExportOptions = _DEFAULTS,
    *,
    data: Path | None = None,
    trust: bool = False,
    on_step: OnStep = lambda step, done, total: None,
) -> Exported:
    """Write the best weights of a run as a bundle.

    Args:
        run: The run directory.
        out: The directory of the bundle.
        options: What the bundle holds.
        data: The current path of the log of the run, if it was moved. Its test days, or its validation days if there
            are none, provide the requests that the bundle is checked on.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall.storage.trust`.
        on_step: Receives the current step, the number of its finished units and their total.

    Raises:
        ValueError: The run, its log and the items do not fit together, the bundle answers differently than PyTorch, or
            the index does not reach the recall.
    """
    with stored_code(run, trust=trust):
        # a directory of runs, such as that of a demo, may have a configuration of its own
        if not (run / CHECKPOINTS).is_dir():
            places = [of.parent for depth in ("*/", "*/*/", "*/*/*/") for of in run.glob(depth + CHECKPOINTS)]
            if below := sorted(path for path in places if (path / CONFIG).is_file()):
                raise RankfallError(f"{run} is not a run directory; the runs below it are {', '.join(map(str, below))}")
        config = read_config_as(CascadeConfig, run)
        log = ImpressionLog.load(data or config.data.path)
        days = config.data.days("test") or config.data.days("valid")
        checkpoint = run / CHECKPOINTS / "best.safetensors"
        verify_run(run, f"{CHECKPOINTS}/{checkpoint.name}")
        verify_run(run, RESULT)
        files = {"test": "evaluation.json", "valid": "evaluation-valid.json", "training": RESULT}
        metrics = {name: read_json(run / file) for name, file in files.items() if (run / file).is_file()}
        trained = Trained(run, config, checkpoint, log, days, metrics)
        exported = export_trained(trained, out, options, on_step=on_step)
    if joined := joined_warning(log, days):
        exported.notes.append(joined)
    if not is_finished(run):
        exported.notes.insert(0, f"the training run {run} did not finish; these are its best weights so far")
    return exported


def export_trained(
    trained: Trained,
    out: Path,
    options: ExportOptions = _DEFAULTS,
    *,
    on_step: OnStep = lambda step, done, total: None,
) -> Exported:
    """Write a checkpoint as a bundle, with the arguments of :func:`export_run`."""
    with own_code(trained.config):
        log = trained.log
        on_step("reading the checkpoint", 0, None)
        if not trained.checkpoint.is_file():
            raise RankfallError(f"{trained.checkpoint} does not exist: the training run has not finished an epoch yet")
        if options.stage is not None:
            stages = [Cascade.load_stage(trained.checkpoint, options.stage)]
        else:
            stages = Cascade.load(trained.checkpoint).eval().stages
        stages = with_quotas(stages, options.quotas)
        inputs = list(dict.fromkeys(name for one in stages for name in inputs_of(one)))
        notes = _check_logs(trained.run, inputs, log, options.items)
        features = described(stages[0]).features
        of_items = [name for name in inputs if name.startswith("item.")]
        of_requests = [name for name in inputs if not name.startswith("item.")]
        table = load_items(options.items, log, features, of_items, known=options.known, display=options.display)
        on_step("reading impressions", 0, None)
        sample, logged = sample_requests(
            log,
            trained.days,
            table,
            features,
            of_requests,
            count=QUERIES,
            k=stages[-1].quota,
            relevant=trained.config.relevant,
        )
        notes += [*table.notes, *check_features(logged, table, per_request=log.per_request)]
        encoding = Encoding.of_log(log)
        try:
            rules = request_rules(encoding, features, of_requests)
        except ValueError as error:
            raise RankfallError(f"{log.path}: {error}") from None
        about = {
            "run": trained.run.resolve().name,
            "checkpoint": checksum(trained.checkpoint),
            "log": log.checksum,
            "objective": portable_name(trained.config.objective.name),
            "metrics": dict(trained.metrics),
        }
        if options.quotas:
            about["run_quotas"] = {stage.name: stage.quota for stage in trained.config.stages}
        figure = None  # of the run, if it was evaluated with the stages and quotas of the bundle
        if [(one.name, one.quota) for one in stages] == [(one.name, one.quota) for one in trained.config.stages]:
            length = trained.config.data.length
            figure = run_figure(
                trained.metrics,
                best_is_recall=trained.config.training.metric == JOINT,
                list_length=None if length == "all" else float(sample.length if length is None else length),
            )
        source = BundleSource(
            stages,
            table,
            rules,
            request_vocabularies(encoding, rules),
            sample,
            about,
            figure,
            _components(trained),
        )
        if not has_index(stages[0], 0):
            notes.append(
                f"{stages[0].name} is not a two-tower model, so without a list of candidates it scores all "
                f"{len(table):,} items for every request"
            )
        manifest = write_bundle(
            source, out, recall=options.recall, examples=options.examples, force=options.force, on_step=on_step
        )
    return Exported(manifest, notes + recall_notes(manifest["stages"][0]))


def _components(trained: Trained) -> list[dict[str, str]]:
    """Return the components of users: the code of models as it was exported, of all others as it was in training."""
    before = {(one.kind, one.name): one.sha256 for one in stored_sources(trained.run)}
    return [
        {
            "kind": one.kind,
            "name": portable_name(one.name),
            "sha256": one.sha256 if one.kind == "model" else before.get((one.kind, one.name), one.sha256),
        }
        for one in sources_of(trained.config)
    ]


def with_quotas(stages: Sequence[Stage], quotas: Mapping[str, int]) -> list[Stage]:
    """Return stages that keep other numbers of items.

    Raises:
        ValueError: There is no such stage, or a stage would keep more items than the one before it passes on.
    """
    names = [stage.name for stage in stages]
    for name, quota in quotas.items():
        if name not in names:
            raise RankfallError(
                f"quota: found the stage {name!r}, expected one of {', '.join(names)}{did_you_mean(name, names)}"
            )
        if quota < 1:
            raise RankfallError(f"quota: found {name}={quota}, expected at least 1")
    changed = [replace(stage, quota=quotas.get(stage.name, stage.quota)) for stage in stages]
    for one, after in pairwise(changed) if quotas else ():
        if after.quota > one.quota:
            raise RankfallError(
                f"quota: {after.name} would keep {after.quota}, expected at most {one.quota}, which {one.name} keeps"
            )
    return changed


def _check_logs(run: Path, inputs: Sequence[str], log: ImpressionLog, items: Path | None) -> list[str]:
    """Refuse logs that encode values differently than the log of the training run; return warnings.

    Args:
        run: The run directory.
        inputs: The inputs of the models.
        log: The log.
        items: Where the items come from: a file, or another prepared log.
    """
    verify_run(run, LOG)
    try:
        trained = read_json(run / LOG)
    except FileNotFoundError:
        return [f"{run} has no {LOG}, so it is unknown whether the ids of its log are those of the training run"]
    logs = [log]
    if items is not None and is_log(path := items.parent if items.name == "items.arrow" else items):
        logs.append(ImpressionLog.load(path))
    used = set()  # sequence.history.video has the ids of item.video
    for group, first, *feature in (name.split(".") for name in inputs):
        used.update([f"{group}.{first}", *(f"item.{one}" for one in feature)])
    return list(dict.fromkeys(note for log in logs for note in check_compatible(trained, log, used=used)))


def recall_notes(stage: Mapping[str, Any]) -> list[str]:
    """Return a note if the recall of an index was measured on few requests."""
    index = stage.get("index", {"kind": "exact"})
    if index["kind"] == "exact" or index["queries"] >= FEW_QUERIES:
        return []
    return [f"the recall of {stage['name']} was measured on {index['queries']} requests only"]
