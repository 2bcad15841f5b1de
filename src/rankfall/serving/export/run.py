"""Exporting a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall._files import checksum
from rankfall.cascade import Cascade
from rankfall.data.log import ImpressionLog, is_log
from rankfall.data.meaning import check_meaning
from rankfall.serving.export.graphs import inputs_of
from rankfall.serving.export.impressions import check_features, draw
from rankfall.serving.export.items import load_items
from rankfall.serving.export.rules import request_rules, vocabularies_of
from rankfall.serving.export.write import QUERIES, Source, has_index, scorer_of, write_bundle
from rankfall.training.cascade_config import CascadeConfig
from rankfall.training.run import CHECKPOINTS, LOG, is_finished, read_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rankfall.cascade import Stage
    from rankfall.serving.export.write import OnStep


FEW_QUERIES = 100  # on which a share of 0.99 is hardly known


@dataclass(frozen=True, slots=True)
class Exported:
    """The manifest of a bundle, and what whoever made it should know."""

    manifest: dict[str, Any]
    notes: list[str]


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
    if not 0 < recall <= 1:
        raise ValueError(f"recall: found {recall:g}, expected more than 0 and at most 1")
    if examples < 0:
        raise ValueError(f"examples: found {examples}, expected 0 or more")
    config = read_config(run)
    if not isinstance(config, CascadeConfig):
        raise ValueError(f"{run} is the run of a ranker, expected that of a cascade")
    notes = [] if is_finished(run) else [f"the training of {run} did not finish; these are its best weights so far"]
    checkpoint = run / CHECKPOINTS / "best.safetensors"
    on_step("reading the checkpoint", 0, None)
    stages = _stages(checkpoint, stage)
    log = ImpressionLog.load(data or config.data.path)
    seen = list(dict.fromkeys(name for one in stages for name in inputs_of(scorer_of(one))))
    notes += _check_logs(run, seen, [log.path, *([items] if items is not None else [])])
    features = scorer_of(stages[0]).features
    table = load_items(items or log.path, log, features, [name for name in seen if name.startswith("item.")])
    inputs = [name for name in seen if not name.startswith("item.")]
    on_step("reading impressions", 0, None)
    days = config.data.days("test") or config.data.days("valid")
    sample, logged = draw(log, days, table, features, inputs, count=QUERIES, k=stages[-1].quota)
    per_request = log.manifest["about"].get("item_features") == "per request"
    notes += [*table.notes, *check_features(logged, table, per_request=per_request)]
    rules = request_rules(log, features, inputs)
    source = Source(stages, table, rules, vocabularies_of(log, rules), sample, _about(run, checkpoint, log, config))
    notes += _slow(stages, len(table))
    manifest = write_bundle(source, out, recall=recall, examples=examples, force=force, on_step=on_step)
    return Exported(manifest, notes + measured_notes(manifest["stages"][0]))


def _stages(checkpoint: Path, name: str | None) -> list[Stage]:
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint} is not there: the training has not finished an epoch yet")
    if name is not None:
        return [Cascade.load_stage(checkpoint, name)]
    return Cascade.load(checkpoint).eval().stages


def _check_logs(run: Path, inputs: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """Refuse logs whose ids or numbers mean something else than those of the training; what is worth a warning."""
    try:
        trained = json.loads((run / LOG).read_text())
    except FileNotFoundError:
        return [f"{run} has no {LOG}, so nobody knows whether the ids of its log are those of the training"]
    except ValueError:
        raise ValueError(f"{run / LOG} is damaged: it is no JSON") from None
    used = {address for name in inputs for address in _addresses(name)}
    logs = [ImpressionLog.load(path) for path in dict.fromkeys(paths) if is_log(path)]
    return list(dict.fromkeys(note for log in logs for note in check_meaning(trained, log, used=used)))


def _addresses(name: str) -> list[str]:
    """The features an input is made of: ``sequence.history.video`` has the ids of ``item.video``."""
    group, first, *feature = name.split(".")
    return [f"{group}.{first}", *(f"item.{one}" for one in feature)]


def _about(run: Path, checkpoint: Path, log: ImpressionLog, config: CascadeConfig) -> dict[str, Any]:
    metrics = {}
    for name, file in (("test", "evaluation.json"), ("valid", "evaluation-valid.json"), ("training", "result.json")):
        if (run / file).is_file():
            metrics[name] = json.loads((run / file).read_text())
    return {
        "run": run.resolve().name,
        "checkpoint": checksum(checkpoint),
        "log": log.checksum,
        "objective": config.objective.name,
        "metrics": metrics,
    }


def measured_notes(stage: Mapping[str, Any]) -> list[str]:
    """What the recall of an index in lists leaves open."""
    index = stage.get("index", {"kind": "exact"})
    if index["kind"] == "exact":
        return []
    notes = []
    if index["queries"] < FEW_QUERIES:
        notes.append(f"the recall of {stage['name']} was measured on {index['queries']} requests only")
    if index["recall"] < index["asked_recall"]:
        notes.append(
            f"{stage['name']} finds {index['recall']:.4f} of the best items, within chance of the "
            f"{index['asked_recall']:g} that were asked for"
        )
    return notes


def _slow(stages: Sequence[Stage], count: int) -> list[str]:
    if has_index(stages[0], 0):
        return []
    return [
        f"{stages[0].name} is not a two-tower model, so without a list of candidates it scores all {count:,} items for "
        "every request"
    ]
