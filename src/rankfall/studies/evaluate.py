"""Evaluate a run and write the result into its directory."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F

from rankfall._errors import RankfallError
from rankfall.storage.disk import make_directory
from rankfall.storage.files import write_file
from rankfall.storage.trust import stored_code
from rankfall.studies.results import SplitEvaluation
from rankfall.training.cascade_metrics import ground_truth, user_feature, user_numbers, values_table
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import with_evaluation_overrides
from rankfall.training.measured_lists import scorer_for
from rankfall.training.methods import CascadeMethod, method_of
from rankfall.training.run_directory import CONFIG, DATA, read_config, read_config_as, read_json, verify_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.data import ImpressionLoader, ImpressionLog
    from rankfall.training.cascade_metrics import ScoreBatch, ScoredBatch
    from rankfall.training.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class StageScores:
    """Scores of all stages on R lists, padded to the longest one.

    Attributes:
        stages: Names of the stages.
        requests: Id of each request.
        days: Day of each request.
        rows: Row ``(R,)`` of each request in the file of its day.
        scores: Scores ``(R, N)`` of each stage.
        mask: Real items ``(R, N)``.
        truth: Membership ``(R, N)`` in the ground truth.
        relevance: Relevance ``(R, N)`` of each item.
        item: Item numbers ``(R, N)``, -1 in padding.
        depth: Deepest logged stage ``(R, N)`` of each item, -1 for items that were added to the list.
        rank: Logged rank ``(R, N)``, -1 for none.
        ranked: Number of items ``(R,)`` that the first stage ranked.
        complete: Whether the lists hold every item that the first stage ranked; see
            :class:`~rankfall.training.cascade_metrics.ScoredBatch`.
    """

    stages: list[str]
    requests: list[str]
    days: list[str]
    rows: Tensor
    scores: list[Tensor]
    mask: Tensor
    truth: Tensor
    relevance: Tensor
    item: Tensor
    depth: Tensor
    rank: Tensor
    ranked: Tensor
    complete: bool

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.requests)

    def select(self, places: Tensor) -> StageScores:
        """Return the same for the requests at some places."""
        per_request = ("rows", "mask", "truth", "relevance", "item", "depth", "rank", "ranked")
        return replace(
            self,
            requests=[self.requests[place] for place in places.tolist()],
            days=[self.days[place] for place in places.tolist()],
            scores=[stage[places] for stage in self.scores],
            **{name: getattr(self, name)[places] for name in per_request},
        )


def collect_scores(
    score: ScoreBatch,
    loader: ImpressionLoader,
    *,
    stages: Sequence[str],
    relevant: int,
    on_batch: Callable[[int], None] = lambda count: None,
) -> StageScores:
    """Score all impressions of a loader.

    Args:
        score: Returns a batch with the scores of each stage.
        loader: Batches of impressions.
        stages: Names of the stages.
        relevant: Number of relevant items per impression.
        on_batch: Called with the size of each batch.
    """
    parts: list[ScoredBatch] = []
    requests: list[str] = []
    for loaded in loader:
        parts.append(score(loaded))
        requests += loader.requests(loaded).cast(pa.string()).to_pylist()
        on_batch(len(loaded))
    batches = [part.batch for part in parts]
    return StageScores(
        stages=list(stages),
        requests=requests,
        days=[batch.day for batch in batches for _ in range(len(batch))],
        rows=torch.cat([batch.rows for batch in batches]),
        scores=[_stack([part.scores[stage].float() for part in parts]) for stage in range(len(stages))],
        mask=_stack(batch.mask for batch in batches),
        truth=_stack(ground_truth(batch, relevant) for batch in batches),
        relevance=_stack(batch.relevance for batch in batches),
        item=_stack((batch.item for batch in batches), padding=-1),
        depth=_stack((batch.depth for batch in batches), padding=-1),
        rank=_stack((batch.rank for batch in batches), padding=-1),
        ranked=torch.cat([part.ranked for part in parts]),
        complete=all(part.complete for part in parts),
    )


def _stack(parts: Iterable[Tensor], padding: int = 0) -> Tensor:
    """Return the rows of all parts in one tensor, padded to the same length."""
    parts = list(parts)
    width = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[-1]), value=padding) for part in parts])


def evaluate_run(
    run_dir: Path,
    split: str = "test",
    *,
    data: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    trust: bool = False,
    on_impressions: Callable[[int, int], None] = lambda count, of: None,
    on_notice: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate the best checkpoint of a run and write the result to :func:`result_directory`.

    Args:
        run_dir: Run directory.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a split or day.
        data: Directory of the prepared data, if they were moved.
        overrides: ``key=value`` strings that change what is measured, such as ``"data.length=all"``.
        out: Directory of the result. Default: the run directory, if the run is measured as its configuration says.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall.storage.trust`.
        on_impressions: Called, for a cascade, with the number of impressions measured since the last call, and of all.
        on_notice: Called with each note of the evaluation before measuring.
    """
    # overrides are the caller's: their code is imported in any case
    method = method_of(with_evaluation_overrides(read_config(run_dir, trust=trust), overrides))
    with stored_code(run_dir, trust=trust):
        evaluation = method.evaluate(run_dir, split, data=data, on_impressions=on_impressions, on_notice=on_notice)
        directory = result_directory(run_dir, data=data, overrides=overrides, out=out)
    if directory is not None:
        make_directory(directory)
        write_evaluation(directory, evaluation, split, overrides=overrides)
    return evaluation


def result_directory(
    run_dir: Path, *, data: str | None = None, overrides: Sequence[str] = (), out: Path | None = None
) -> Path | None:
    """Return the directory that an evaluation is written to.

    The files of a run directory are those of the run's own configuration and data. Every other evaluation is written to
    `out` alone, or not at all.

    Args:
        run_dir: Run directory.
        data: Directory of the prepared data, if it is not that of the configuration.
        overrides: Overrides of the configuration.
        out: Directory that the caller names.

    Raises:
        ValueError: If `out` holds a run, whose own evaluation would be replaced.
    """
    if out is not None:
        if (out / CONFIG).exists():
            raise RankfallError(
                f"out: {out} holds a run, whose own evaluation would be replaced; name another directory"
            )
        return out
    return run_dir if not overrides and (data is None or _is_same_data(run_dir, data)) else None


def _is_same_data(run_dir: Path, data: str) -> bool:
    """Return whether a directory holds the data that a run was trained on, perhaps at another place."""
    verify_run(run_dir, DATA)
    if not (run_dir / DATA).is_file():  # of a baseline
        return True
    config = with_evaluation_overrides(read_config(run_dir), [f"data.path={json.dumps(data)}"])
    method = method_of(config)
    try:
        found = method.checksums(method.open_data())
    except ValueError:
        return False
    return found == read_json(run_dir / DATA)


class Measuring(TypedDict, total=False):
    """Arguments of everything that scores the lists of a run.

    Attributes:
        data: Directory of the log, if it was moved.
        overrides: ``key=value`` strings that change what is measured, such as ``"data.length=all"``.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall.storage.trust`.
        on_impressions: Called with the number of impressions scored since the last call, and of all.
        on_notice: Called with each note about the log.
    """

    data: str | None
    overrides: Sequence[str]
    trust: bool
    on_impressions: Callable[[int, int], None]
    on_notice: Callable[[str], None]


def scores_of_run(
    run_dir: Path,
    split: str = "test",
    *,
    reach: Callable[[CascadeConfig], int | None] = lambda config: None,
    **measuring: Unpack[Measuring],
) -> tuple[CascadeConfig, StageScores, ImpressionLog]:
    """Score the lists of a split by all stages of a run's best checkpoint. Nothing is written.

    Args:
        run_dir: Run directory of a cascade.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        reach: With ``data.length: all``, returns the number of best items of the first stage that the lists keep; None:
            its quota. Lists of a fixed length always hold all their items.
        measuring: See :class:`Measuring`.

    Returns:
        The configuration of the measurement, the scores, and the log.
    """
    trust = measuring.get("trust", False)
    on_impressions: Callable[[int, int], None] = measuring.get("on_impressions") or (lambda count, of: None)
    stored = read_config_as(CascadeConfig, run_dir, trust=trust)
    config = with_evaluation_overrides(stored, measuring.get("overrides", ()))
    assert isinstance(config, CascadeConfig)
    with stored_code(run_dir, trust=trust):
        opened = CascadeMethod(config).open_split(
            run_dir, split, data=measuring.get("data"), on_notice=measuring.get("on_notice", lambda text: None)
        )
        total = opened.impressions
        with opened.refusing_new_ids():
            scores = collect_scores(
                scorer_for(opened.cascade, opened.loader, opened.config, reach=reach(config)),
                opened.loader,
                stages=opened.cascade.names,
                relevant=config.relevant,
                on_batch=lambda count: on_impressions(count, total),
            )
    return opened.config, scores, opened.log


def user_groups(log: ImpressionLog, scores: StageScores) -> Tensor | None:
    """Return a number ``(R,)`` for the user of each request, own numbers for unknown users; None without users."""
    feature = user_feature(log.spec)
    if feature is None:
        return None
    days, ids = np.array(scores.days), torch.zeros(len(scores), dtype=torch.int64)
    for day in dict.fromkeys(scores.days):
        places = torch.from_numpy(np.flatnonzero(days == day))
        column = log.days[day].table()[f"user.{feature}"].to_numpy()
        ids[places] = torch.from_numpy(column.astype(np.int64))[scores.rows[places]]
    return user_numbers(ids)


def evaluation_files(run_dir: Path, split: str = "test") -> tuple[Path, Path]:
    """Return the paths of the means and of the values per list; splits other than test have their own files."""
    suffix = "" if split == "test" else f"-{split.replace('/', '_').replace(':', '_')}"
    return run_dir / f"evaluation{suffix}.json", run_dir / f"values{suffix}.parquet"


def write_evaluation(
    directory: Path, evaluation: Evaluation, split: str = "test", *, overrides: Sequence[str] = ()
) -> None:
    """Write the means and the values of every list to :func:`evaluation_files`; the values mark a tested run."""
    summary, values = evaluation_files(directory, split)
    SplitEvaluation(**vars(evaluation.summary()), split=split, overrides=list(overrides) or None).save(summary)
    table = values_table(pa.array(evaluation.qids, pa.string()), evaluation.values, evaluation.chance)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_file(values, sink.getvalue().to_pybytes())
