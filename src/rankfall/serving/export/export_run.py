"""Exporting a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall._files import checksum
from rankfall.cascade import Cascade
from rankfall.data.impressions.compatibility import check_compatible
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.serving.export.encoder_parity import check_reading
from rankfall.serving.export.encoding_rules import request_rules, vocabularies_of
from rankfall.serving.export.item_table import load_items
from rankfall.serving.export.logged_requests import check_features, draw
from rankfall.serving.export.onnx_graphs import inputs_of
from rankfall.serving.export.write_bundle import QUERIES, Source, has_index, scorer_of, write_bundle
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.run_directory import CHECKPOINTS, CONFIG, LOG, is_finished, read_config, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from rankfall.cascade import Stage
    from rankfall.serving.export.write_bundle import OnStep


FEW_QUERIES = 100  # on which a share of 0.99 is hardly known


@dataclass(frozen=True, slots=True)
class Exported:
    """The manifest of a bundle, and what whoever made it should know."""

    manifest: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Trained:
    """Weights, and what has to be known of them to serve them."""

    run: Path  # the directory, in which stands what the ids and numbers of the training mean
    config: CascadeConfig
    checkpoint: Path
    log: ImpressionLog
    days: Sequence[str]  # of the log, whose requests everything is checked on
    metrics: Mapping[str, Any]  # what was measured of them


def export_run(
    run: Path,
    out: Path,
    *,
    items: Path | None = None,
    data: Path | None = None,
    stage: str | None = None,
    recall: float = 0.99,
    examples: int = 16,
    force: bool = False,
    on_step: OnStep = lambda step, done, total: None,
) -> Exported:
    """Write the best weights of a run as a bundle, or one `stage` of them.

    items: a prepared log or a file, by default the log of the run. data: where that log is now, if not where it
    was; its test days, or its validation days if there are none, give the requests on which everything is checked.
    recall: share of the best items that the index of a first stage has to find. examples: how many of these
    requests the bundle keeps. `on_step` hears what is done, how much of it, and of how much.
    """
    config = _cascade_config(run)
    log = ImpressionLog.load(data or config.data.path)
    days = config.data.days("test") or config.data.days("valid")
    trained = Trained(run, config, run / CHECKPOINTS / "best.safetensors", log, days, _metrics(run))
    exported = export_trained(
        trained, out, items=items, stage=stage, recall=recall, examples=examples, force=force, on_step=on_step
    )
    if not is_finished(run):
        exported.notes.insert(0, f"the training of {run} did not finish; these are its best weights so far")
    return exported


def export_trained(
    trained: Trained,
    out: Path,
    *,
    items: Path | None = None,
    without: NDArray[np.int32] | None = None,
    stage: str | None = None,
    recall: float = 0.99,
    examples: int = 16,
    force: bool = False,
    on_step: OnStep = lambda step, done, total: None,
) -> Exported:
    """Write weights as a bundle, or one `stage` of them, with the options of :func:`export_run`.

    Of the items of the log some may be left out, by their numbers there (`without`).
    """
    if not 0 < recall <= 1:
        raise ValueError(f"recall: found {recall:g}, expected more than 0 and at most 1")
    if examples < 0:
        raise ValueError(f"examples: found {examples}, expected 0 or more")
    log = trained.log
    on_step("reading the checkpoint", 0, None)
    stages = _stages(trained.checkpoint, stage)
    seen = list(dict.fromkeys(name for one in stages for name in inputs_of(scorer_of(one))))
    notes = _check_logs(trained.run, seen, [log, *_log_of(items)])
    features = scorer_of(stages[0]).features
    names = [name for name in seen if name.startswith("item.")]
    table = load_items(items, log, features, names, without=without)
    inputs = [name for name in seen if not name.startswith("item.")]
    on_step("reading impressions", 0, None)
    sample, logged = draw(log, trained.days, table, features, inputs, count=QUERIES, k=stages[-1].quota)
    per_request = log.manifest["about"].get("item_features") == "per request"
    notes += [*table.notes, *check_features(logged, table, per_request=per_request)]
    rules = request_rules(log, features, inputs)
    vocabularies = vocabularies_of(log, rules)
    check_reading(log, rules, vocabularies)
    source = Source(stages, table, rules, vocabularies, sample, _about(trained))
    notes += _slow(stages, len(table))
    manifest = write_bundle(source, out, recall=recall, examples=examples, force=force, on_step=on_step)
    return Exported(manifest, notes + measured_notes(manifest["stages"][0]))


def _cascade_config(run: Path) -> CascadeConfig:
    """The configuration of a run, if it is that of a cascade."""
    # a directory of runs may have a configuration of its own, as that of a demo
    if not (run / CHECKPOINTS).is_dir() and (below := _runs_below(run)):
        raise ValueError(f"{run} is not the directory of a run; those below it are {', '.join(map(str, below))}")
    config = read_config(run)
    if not isinstance(config, CascadeConfig):
        raise ValueError(f"{run} is the run of a ranker, expected that of a cascade")
    return config


def _runs_below(directory: Path) -> list[Path]:
    """The runs at most three levels below."""
    found = (checkpoints.parent for depth in (1, 2, 3) for checkpoints in directory.glob("*/" * depth + CHECKPOINTS))
    return sorted(path for path in found if (path / CONFIG).is_file())


def _stages(checkpoint: Path, name: str | None) -> list[Stage]:
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint} is not there: the training has not finished an epoch yet")
    if name is not None:
        return [Cascade.load_stage(checkpoint, name)]
    return Cascade.load(checkpoint).eval().stages


def _log_of(items: Path | None) -> list[ImpressionLog]:
    """The prepared log whose items are served, if they come from one."""
    if items is None:
        return []
    path = items.parent if items.name == "items.arrow" else items
    return [ImpressionLog.load(path)] if is_log(path) else []


def _check_logs(run: Path, inputs: Sequence[str], logs: Sequence[ImpressionLog]) -> list[str]:
    """Refuse logs whose ids or numbers mean something else than those of the training; what is worth a warning."""
    try:
        trained = read_json(run / LOG)
    except FileNotFoundError:
        return [f"{run} has no {LOG}, so nobody knows whether the ids of its log are those of the training"]
    used = {address for name in inputs for address in _addresses(name)}
    return list(dict.fromkeys(note for log in logs for note in check_compatible(trained, log, used=used)))


def _addresses(name: str) -> list[str]:
    """The features an input is made of: ``sequence.history.video`` has the ids of ``item.video``."""
    group, first, *feature = name.split(".")
    return [f"{group}.{first}", *(f"item.{one}" for one in feature)]


def _metrics(run: Path) -> dict[str, Any]:
    """What was measured of the best weights of a run."""
    files = (("test", "evaluation.json"), ("valid", "evaluation-valid.json"), ("training", "result.json"))
    return {name: read_json(run / file) for name, file in files if (run / file).is_file()}


def _about(trained: Trained) -> dict[str, Any]:
    return {
        "run": trained.run.resolve().name,
        "checkpoint": checksum(trained.checkpoint),
        "log": trained.log.checksum,
        "objective": trained.config.objective.name,
        "metrics": dict(trained.metrics),
    }


def measured_notes(stage: Mapping[str, Any]) -> list[str]:
    """What the recall of an index in lists leaves open."""
    index = stage.get("index", {"kind": "exact"})
    if index["kind"] == "exact":
        return []
    if index["queries"] >= FEW_QUERIES:
        return []
    return [f"the recall of {stage['name']} was measured on {index['queries']} requests only"]


def _slow(stages: Sequence[Stage], count: int) -> list[str]:
    if has_index(stages[0], 0):
        return []
    return [
        f"{stages[0].name} is not a two-tower model, so without a list of candidates it scores all {count:,} items for "
        "every request"
    ]
