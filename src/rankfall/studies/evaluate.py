"""All metrics of a run, list by list, beside what a random scorer gets."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rankfall._files import write_file
from rankfall.data.impressions.compatibility import check_compatible
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.lists.list_loader import Lists
from rankfall.data.lists.ranking_data import RankingData
from rankfall.metrics.named import parse
from rankfall.models import Scorer
from rankfall.models.embedding import UnknownIdError, address
from rankfall.training import train_cascade as cascade
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.ranker_config import Role
from rankfall.training.per_list_table import values_table
from rankfall.training.run_directory import LOG, read_config, read_json
from rankfall.training.scoring import measure, score
from rankfall.training.train_ranker import load_lists, load_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.cascade import Cascade

    OnImpressions = Callable[[int, int], None]

__all__ = ["Evaluation", "evaluate", "evaluate_run", "measure", "score"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Per list, the value of each metric and of its chance level; NaN where the metric is undefined."""

    qids: list[str]
    values: dict[str, Tensor]
    chance: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)  # what whoever reads the figures should know

    def summary(self) -> dict[str, Any]:
        """Means over the lists on which a metric is defined, as ``rankfall evaluate --json`` prints them.

        Of a cascade, `kept_whole` counts, among the impressions that the means are over, those that are not longer
        than the quota of a stage, which drops nothing of them.
        """
        # a random scorer keeps every item of such an impression
        whole = {
            name.removesuffix("/recall"): int((values == 1).sum())
            for name, values in self.chance.items()
            if name.endswith("/recall")
        }
        return {
            "metrics": {name: _mean(values) for name, values in self.values.items()},
            "chance": {name: _mean(values) for name, values in self.chance.items()},
            "impressions": len(self.qids),
            "undefined": {name: int(values.isnan().sum()) for name, values in self.values.items()},
            **({"kept_whole": whole} if whole else {}),
        }


def evaluate(scores: Tensor, lists: Lists, metrics: Sequence[str]) -> Evaluation:
    """Metrics by name of the scores ``(rows,)`` of all documents of the lists."""
    parsed = [parse(name) for name in metrics]
    constant = torch.zeros(lists.rows)
    return Evaluation(lists.qids, measure(scores, lists, parsed), measure(constant, lists, parsed))


def evaluate_run(
    run_dir: Path,
    split: str = "test",
    *,
    data: str | None = None,
    on_impressions: OnImpressions = lambda count, of: None,
    on_notice: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate the best checkpoint of a run and write what comes out into its directory.

    split: what the configuration calls train, valid or test, or else a split or a day of the data. data: where
    the prepared data are now, if not where they were. `on_impressions` hears, of a cascade, how many more were measured
    and of how many in all, `on_notice` beforehand what whoever reads the figures should know.
    """
    if isinstance(read_config(run_dir), CascadeConfig):
        evaluation = _evaluate_cascade(run_dir, split, data, on_impressions, on_notice)
    else:
        evaluation = _evaluate_ranker(run_dir, split, data)
    write_evaluation(run_dir, evaluation, split)
    return evaluation


def _evaluate_cascade(
    run_dir: Path, split: str, data: str | None, on_impressions: OnImpressions, on_notice: Callable[[str], None]
) -> Evaluation:
    config, model = cascade.load_run(run_dir)
    log = ImpressionLog.load(data or config.data.path)
    notes = _check_log(run_dir, model, log)
    for note in notes:
        on_notice(note)
    # measured as test days are, also those of training: in order and without added negatives
    days = config.data.days(cast("Role", split)) if split in get_args(Role) else [split]
    config = config.model_copy(update={"data": config.data.model_copy(update={"test": days})})
    loader = cascade.make_loader(log, config, "test")
    total = sum(len(log.days[day]) for day in loader.days)
    try:
        values, chance = cascade.measure(model, loader, config, on_batch=lambda count: on_impressions(count, total))
    except UnknownIdError as error:
        raise ValueError(
            f"{split} of {log.path}: {error}. These ids came after the training: train again on "
            "this log, or choose days of before by --split"
        ) from None
    tables = [log.days[day].table()["request"].cast(pa.string()) for day in loader.days]
    return Evaluation(pa.chunked_array([c for t in tables for c in t.chunks]).to_pylist(), values, chance, notes)


def _check_log(run_dir: Path, model: Cascade, log: ImpressionLog) -> list[str]:
    """Refuse a log whose ids or numbers mean something else than those of the training; what is worth a warning."""
    try:
        trained = read_json(run_dir / LOG)
    except FileNotFoundError:
        return [f"{run_dir} has no {LOG}, so nobody knows whether the ids of {log.path} are those of the training"]
    return check_compatible(trained, log, used=_features_of(model))


def _features_of(model: Cascade) -> set[str]:
    """The features that any stage looks at, those of events included."""
    used: set[str] = set()
    for stage in model.models.values():
        if isinstance(stage, Scorer):
            seen = stage.embedding
            used |= {address(feature) for feature in (*seen.request_features, *seen.item_features)}
            used |= {f"sequence.{sequence.name}" for sequence in seen.sequences}
            used |= {f"item.{name}" for sequence in seen.sequences for name in sequence.features}
    return used


def _evaluate_ranker(run_dir: Path, split: str, data: str | None) -> Evaluation:
    config, model = load_run(run_dir)
    prepared = RankingData.load(data or config.data.path)
    if prepared.features != len(model.scaling.mean):
        raise ValueError(
            f"{prepared.path} has {prepared.features} features, the model of {run_dir} was trained on "
            f"{len(model.scaling.mean)}"
        )
    is_role = split in get_args(Role)
    lists = load_lists(prepared, config.data, cast("Role", split)) if is_role else Lists([prepared[split]])
    return evaluate(score(model, lists), lists, config.metrics)


def write_evaluation(run_dir: Path, evaluation: Evaluation, split: str = "test") -> None:
    """Write ``evaluation.json`` and ``values.parquet``; those of another split than test have its name in theirs."""
    suffix = "" if split == "test" else f"-{split.replace('/', '_').replace(':', '_')}"
    table = values_table(pa.array(evaluation.qids, pa.string()), evaluation.values, evaluation.chance)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_file(run_dir / f"values{suffix}.parquet", sink.getvalue().to_pybytes())
    summary = {"split": split, **evaluation.summary()}
    write_file(run_dir / f"evaluation{suffix}.json", json.dumps(_null_for_nan(summary), indent=2) + "\n")


def _mean(values: Tensor) -> float:
    return float(values.double().nanmean())


def _null_for_nan(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _null_for_nan(value) for key, value in content.items()}
    return None if isinstance(content, float) and math.isnan(content) else content
