"""Diagnose a run: where and why its cascade loses relevant items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.data.impressions.log import ImpressionLog
from rankfall.studies.diagnosis.attributes import LogAttributes, TruthItems
from rankfall.studies.diagnosis.cut_distance import cut_distance, oracle
from rankfall.studies.diagnosis.diagnosis_result import DIAGNOSIS, Diagnosis, Finding, StageDiagnosis
from rankfall.studies.diagnosis.findings import find
from rankfall.studies.diagnosis.funnel_lists import FunnelLists
from rankfall.studies.diagnosis.segments import find_segments
from rankfall.studies.diagnosis.stage_agreement import agreement
from rankfall.studies.diagnosis.worst_requests import worst_requests
from rankfall.studies.evaluate import scores_of_run
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.evaluation_overrides import with_evaluation_overrides
from rankfall.training.measured_lists import SHORT
from rankfall.training.run_directory import read_config_as
from rankfall.training.stage_figures import Resampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.studies.diagnosis.segments import FoundSegments
    from rankfall.studies.stage_scores import StageScores

    OnStep = Callable[[str, int, int], None]

REACH = 4  # lists over all items hold this multiple of the quota of the first stage


def diagnose_run(
    run_dir: Path,
    split: str = "test",
    *,
    data: str | None = None,
    overrides: Sequence[str] = (),
    trust: bool = False,
    on_impressions: Callable[[int, int], None] = lambda count, of: None,
    on_notice: Callable[[str], None] = lambda text: None,
    on_step: OnStep = lambda name, number, of: None,
) -> Diagnosis:
    """Diagnose the best checkpoint of a run. Nothing is written.

    Args:
        run_dir: Run directory of a cascade.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        data: Directory of the log, if it was moved.
        overrides: ``key=value`` strings that change what is measured, such as ``"data.length=all"``.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall._trust`.
        on_impressions: Called with the number of impressions scored since the last call, and of all.
        on_notice: Called with each note about the log.
        on_step: Called with the name of each step, its number from 0 and the number of steps.

    Raises:
        ValueError: The run is not one of a cascade, or no request has a relevant item.
    """
    own = with_evaluation_overrides(read_config_as(CascadeConfig, run_dir, trust=trust), overrides)
    assert isinstance(own, CascadeConfig)
    reach = REACH * own.stages[0].quota
    config, scores = scores_of_run(
        run_dir,
        split,
        data=data,
        overrides=overrides,
        reach=reach,
        trust=trust,
        on_impressions=on_impressions,
        on_notice=on_notice,
    )
    log = ImpressionLog.load(data or config.data.path)
    return diagnose(scores, config, log, split=split, reach=reach, on_step=on_step)


def diagnosis_file(run_dir: Path, split: str = "test") -> Path:
    """Return the path of the diagnosis of a split; splits other than test have their own files."""
    return run_dir / (DIAGNOSIS if split == "test" else f"diagnosis-{split.replace('/', '_').replace(':', '_')}.json")


def diagnose(
    scores: StageScores,
    config: CascadeConfig,
    log: ImpressionLog,
    *,
    split: str = "test",
    reach: int | None = None,
    on_step: OnStep = lambda name, number, of: None,
) -> Diagnosis:
    """Diagnose the scores of a cascade.

    Args:
        scores: Scores of all stages.
        config: Configuration of the measurement.
        log: The log that was scored.
        split: Name of what was scored.
        reach: Number of best items of the first stage that incomplete lists hold. Default: its quota.
        on_step: Called with the name of each step, its number from 0 and the number of steps.

    Raises:
        ValueError: No request has a relevant item.
    """
    steps = _Steps(on_step, len(config.stages))
    quotas = [stage.quota for stage in config.stages]
    steps.next("sorting")
    lists = FunnelLists.of_scores(scores, quotas)
    steps.next("reading attributes")
    known = LogAttributes(log, scores, lists, log.choose(config.data.train))
    truth = TruthItems.of(lists)
    attributes = list(known.attributes(truth))
    resampler = Resampler(known.user_groups())
    perfect = [lists.perfect_order(stage) for stage in range(len(quotas))]
    (joint_recall,) = resampler.means([lists.recall(lists.arrived[-1])])
    stages = []
    for number, name in enumerate(lists.stages):
        steps.next(f"losses of {name}")
        found = find_segments(lists, number, truth, attributes, resampler)
        stages.append(_diagnose_stage(lists, number, found, perfect, resampler, reach))
    neighbours = [agreement(lists, stage, resampler) for stage in range(len(quotas) - 1)]
    steps.next("requests")
    return Diagnosis(
        split=split,
        requests=len(lists),
        all_items=not scores.complete,
        joint_recall=joint_recall,
        findings=[*_unseen_items(config, log, stages[0]), *find(joint_recall, stages, neighbours)],
        stages=stages,
        agreement=neighbours,
        worst_requests=worst_requests(
            lists, truth, [stage.segments for stage in stages], attributes, known, reach=reach or quotas[0]
        ),
        notes=list(_notes(scores, lists, known)),
    )


def _diagnose_stage(
    lists: FunnelLists,
    number: int,
    segments: FoundSegments,
    perfect: list[Tensor],
    resampler: Resampler,
    reach: int | None,
) -> StageDiagnosis:
    """Return what a stage lost, and how it could be kept; `perfect` has the perfect order of each stage."""
    before, after = (lists.recall(lists.arrived[at]) for at in (number, number + 1))
    recoverable = lists.recall(lists.arrived[number] & ~lists.arrived[number + 1] & lists.would_survive(number))
    every = torch.ones_like(before)
    figures = [(before, every), (before - after, every), (recoverable, before - after)]
    arrived, lost, recovered = resampler.ratios(figures)
    return StageDiagnosis(
        stage=lists.stages[number],
        quota=lists.quotas[number],
        arrived=arrived,
        lost=lost,
        recoverable=recovered,
        cut=cut_distance(lists, number, resampler, reach=reach),
        oracle=oracle(lists, perfect, number, resampler),
        segments=segments.worse,
        tested=segments.tested,
        best_segments=segments.better,
    )


def _unseen_items(config: CascadeConfig, log: ImpressionLog, first: StageDiagnosis) -> list[Finding]:
    """Return a finding if the training lists held few items of the catalogue, and no random ones."""
    loader = make_loader(log, config, "train")
    catalogue, length = loader.catalogue_size(), loader.mean_length()
    if config.data.negatives or log.spec.negatives or catalogue is None or catalogue < SHORT * length:
        return []
    text = (
        f"{first.stage} was never trained on items outside the lists: a training list holds {length:,.0f} of the "
        f"{catalogue:,} items of the log, and data.negatives is 0. A service ranks all items, also those that no list "
        "taught it to drop: train with data.negatives=100, and measure with data.length=all."
    )
    return [Finding("negatives", first.stage, text, first.oracle.gain if config.data.length == "all" else None)]


class _Steps:
    """Counts the steps of a diagnosis."""

    def __init__(self, on_step: OnStep, stages: int) -> None:
        self._on_step, self._of, self._number = on_step, 3 + stages, 0

    def next(self, name: str) -> None:
        self._on_step(name, self._number, self._of)
        self._number += 1


def _notes(scores: StageScores, lists: FunnelLists, known: LogAttributes) -> list[str]:
    notes = []
    without = len(scores) - len(lists)
    if without:
        notes.append(f"{without:,} of {len(scores):,} requests have no relevant item and are left out")
    if known.users is None:
        notes.append(
            "The log has no categorical feature with the id of the user, so that activity of users is unknown and "
            "intervals are over requests"
        )
    if not lists.complete:
        notes.append(
            "The lists hold the best items of the first stage and all relevant items, not all items: agreement of the "
            "first two stages over all items is unknown"
        )
    return notes
