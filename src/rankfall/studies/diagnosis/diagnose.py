"""Diagnose a run: where and why its cascade loses relevant items."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np
import torch

from rankfall.studies.diagnosis.attributes import LogAttributes
from rankfall.studies.diagnosis.diagnosis_result import (
    DIAGNOSIS,
    Diagnosis,
    Finding,
    LostRequest,
    ShownItem,
    StageDiagnosis,
)
from rankfall.studies.diagnosis.segments import FunnelLists, agreement, cut_distance, find_segments, oracle
from rankfall.studies.evaluate import Measuring, scores_of_run, user_groups
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.cascade_metrics import Resampler
from rankfall.training.measured_lists import SHORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.studies.diagnosis.attributes import Attribute
    from rankfall.studies.diagnosis.diagnosis_result import Agreement, Segment
    from rankfall.studies.evaluate import StageScores
    from rankfall.training.cascade_metrics import Estimate
    from rankfall.training.config.cascade_config import CascadeConfig

    OnStep = Callable[[str, int, int], None]

SEGMENTS = 3  # of each stage
LEAST_STAKE = 0.001  # joint recall
USEFUL = 0.5  # share of lost items that would survive later stages below which these limit what a stage can gain
DISAGREES = 0.8  # share of wanted items that pass below which stages disagree


def find(joint_recall: Estimate, stages: Sequence[StageDiagnosis], agreement: Sequence[Agreement]) -> list[Finding]:
    """Return the findings, those with the largest stake first and those without a measured one last.

    Args:
        joint_recall: Joint recall of the run.
        stages: What each stage loses, and why.
        agreement: Agreement of neighbouring stages.
    """
    found = [
        *(
            finding
            for number, stage in enumerate(stages)
            for finding in _of_stage(joint_recall, number, stage, last=number == len(stages) - 1)
        ),
        *(finding for one in agreement for finding in _of_agreement(one)),
    ]
    return sorted(found, key=lambda finding: -1.0 if finding.at_stake is None else finding.at_stake.value, reverse=True)


def _of_stage(joint_recall: Estimate, number: int, stage: StageDiagnosis, *, last: bool) -> Iterator[Finding]:
    gain, cut, share = stage.oracle.gain, stage.cut, stage.recoverable.value
    median = cut.rank_over_quota["50"]
    is_beyond = cut.known_up_to is not None and median >= cut.known_up_to
    depth = f"beyond {cut.known_up_to:g} times" if is_beyond else f"within {_times(median)} times"
    later = "" if share >= USEFUL else f" Only {_percent(share)} of them would survive the later stages."
    if gain.value >= LEAST_STAKE:
        yield Finding(
            kind="stage",
            stage=stage.stage,
            text=f"{stage.stage} loses {_percent(stage.lost.value)} of the relevant items. If it were perfect and "
            f"nothing else changed, joint recall would be {stage.oracle.perfect.value:.3f} instead of "
            f"{joint_recall.value:.3f}. If all other stages were perfect, it would be "
            f"{stage.oracle.others_perfect.value:.3f}. Half of the lost items are ranked {depth} its quota.{later}",
            at_stake=gain,
        )
    helpful = [one for one in stage.cut.larger_quotas if one.gain.low > 0 and one.gain.value >= LEAST_STAKE]
    selecting = [one for one in helpful if one.passes.value < 1]  # a quota that drops nothing makes the stage useless
    if selecting:
        best = max(selecting, key=lambda one: one.gain.value)
        yield Finding(
            kind="quota",
            stage=stage.stage,
            text=f"{_percent(best.passes.value)} of what {stage.stage} loses is ranked from {stage.quota + 1} to "
            f"{best.quota}. With a quota of {best.quota} instead of {stage.quota}, joint recall would be "
            f"{best.joint_recall.value:.3f}: stages.{number}.quota={best.quota}."
            + (" It is the last stage, so more items would be returned." if last else ""),
            at_stake=best.gain,
        )
    for segment in [one for one in stage.segments if one.explained_by is None][:SEGMENTS]:
        if segment.at_stake.value >= LEAST_STAKE:
            yield Finding("segment", stage.stage, _segment(stage, segment), segment.at_stake)


def _segment(stage: StageDiagnosis, segment: Segment) -> str:
    return (
        f"{stage.stage} keeps {_percent(segment.kept.value)} ({_percent(segment.kept.low)} to "
        f"{_percent(segment.kept.high)}) of the relevant items with {segment.attribute} = {segment.value}, and "
        f"{_percent(segment.kept_elsewhere)} of all others. They are {_percent(segment.share_of_items)} of the "
        f"relevant items that arrive (n = {segment.items:,}) and {_percent(segment.share_of_lost)} of what it loses."
    )


def _of_agreement(agreement: Agreement) -> Iterator[Finding]:
    if agreement.wanted is None or agreement.wanted_chance is None or agreement.wanted.high >= DISAGREES:
        return
    first, second = agreement.stages
    yield Finding(
        kind="agreement",
        stage=first,
        text=f"Of the {agreement.quotas[1]} items that {second} would keep of all that arrive at {first}, {first} "
        f"passes {_percent(agreement.wanted.value)}; a random stage would pass {_percent(agreement.wanted_chance)}. "
        f"An objective that trains both stages together, or {second} as a teacher of {first}, aligns them.",
    )


def _times(factor: float) -> str:
    """Return two digits of a factor, never as a power of ten.

    >>> _times(1.23), _times(123.4)
    ('1.2', '123')
    """
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


NEAR = 1.5  # multiple of the quota up to which a rank is near the cut
PER_CAUSE = 2  # requests
SEGMENT_CAUSES = 1  # of each stage that are causes of their own
LOST_SHOWN, KEPT_SHOWN = 5, 3


class _Cause(NamedTuple):
    """Lost items of the ground truth with a common cause: `items` are their places among all items of it."""

    name: str
    stage: int
    items: NDArray[np.int64]


def worst_requests(
    lists: FunnelLists,
    segments: Sequence[Sequence[Segment]],
    attributes: Sequence[Attribute],
    known: LogAttributes,
    *,
    reach: int | None = None,
) -> list[LostRequest]:
    """Return requests for each cause of lost items, the cause that loses most first.

    Args:
        lists: The lists.
        segments: The segments of each stage that suffer.
        attributes: Attributes of the ground truth.
        known: Attributes of requests and items.
        reach: Number of best items of the first stage that incomplete lists hold.
    """
    truth, ranks, names = lists.truth, [lists.ranks(stage) for stage in range(len(lists.quotas))], lists.scores.stages
    causes = []
    for stage, name in enumerate(names):
        lost = truth.arrived[stage] & ~truth.arrived[stage + 1]
        near = ranks[stage].numpy()[truth.request, truth.place] <= NEAR * lists.quotas[stage]
        causes.append(_Cause(f"{name}, near the cut", stage, np.flatnonzero(lost & near)))
        causes.append(_Cause(f"{name}, far below the cut", stage, np.flatnonzero(lost & ~near)))
        for segment in segments[stage][:SEGMENT_CAUSES]:
            attribute = next(one for one in attributes if one.name == segment.attribute)
            inside = attribute.codes == attribute.labels.index(segment.value)
            causes.append(_Cause(f"{name}, {segment.attribute}: {segment.value}", stage, np.flatnonzero(lost & inside)))
    causes.sort(key=lambda cause: -truth.weight[cause.items].sum())
    shown: list[LostRequest] = []
    used: set[int] = set()
    for cause in causes:
        # requests with the most lost items of the cause, of equal ones those with the largest share
        requests, at = np.unique(truth.request[cause.items], return_inverse=True)
        shares = np.bincount(at, truth.weight[cause.items], minlength=len(requests))
        order = np.lexsort((requests, -shares, -np.bincount(at, minlength=len(requests))))
        for request in [request for request in requests[order].tolist() if request not in used][:PER_CAUSE]:
            used.add(request)
            censored = reach if cause.stage == 0 and not lists.scores.complete else None
            shown.append(_shown(lists, cause, request, ranks[cause.stage][request].numpy(), known, censored))
    return shown


def _shown(
    lists: FunnelLists,
    cause: _Cause,
    request: int,
    rank: NDArray[np.int32],
    known: LogAttributes,
    censored: int | None,
) -> LostRequest:
    """Return a request with some items that a stage lost and kept; ranks beyond `censored` are lower bounds."""
    scores, truth, quota = lists.scores, lists.truth, lists.quotas[cause.stage]
    weight = lists.weight[request].numpy()
    of_cause = truth.place[cause.items[truth.request[cause.items] == request]]
    lost = of_cause[rank[of_cause].argsort(kind="stable")][:LOST_SHOWN]
    kept = np.flatnonzero((rank > 0) & (rank <= quota) & (weight == 0))
    kept = kept[rank[kept].argsort(kind="stable")][:KEPT_SHOWN]
    places = np.concatenate([lost, kept])

    def logged(depth: int, rank: int) -> str:
        name = known.log.spec.stage_names[depth]
        return "not logged" if depth < 0 else name if rank < 0 else f"{name}, rank {rank}"

    requests = np.full(len(places), request)
    items = [
        ShownItem(
            item=item,
            relevance=float(scores.relevance[request, place]),
            rank=int(rank[place]),
            logged=logged(int(scores.depth[request, place]), int(scores.rank[request, place])),
            attributes=attributes,
            at_least=censored is not None and int(rank[place]) > censored,  # no kept item is beyond the quota
        )
        for item, place, attributes in zip(
            known.raw.item(known.items(requests, places)),
            places.tolist(),
            known.describe_items(requests, places),
            strict=True,
        )
    ]
    return LostRequest(
        cause=cause.name,
        request=scores.requests[request],
        day=scores.days[request],
        stage=scores.stages[cause.stage],
        quota=quota,
        recall=float((weight * lists.arrived[-1][request].numpy()).sum()),
        items=int((weight > 0).sum()),
        attributes=known.describe_requests(np.array([request]))[0],
        lost_items=len(of_cause),
        lost=items[: len(lost)],
        kept_instead=items[len(lost) :],
    )


REACH = 4  # lists over all items hold this multiple of the quota of the first stage


def diagnose_run(
    run_dir: Path,
    split: str = "test",
    *,
    on_step: OnStep = lambda name, number, of: None,
    **measuring: Unpack[Measuring],
) -> Diagnosis:
    """Diagnose the best checkpoint of a run. Nothing is written.

    Args:
        run_dir: Run directory of a cascade.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        on_step: Called with the name of each step, its number from 0 and the number of steps.
        measuring: See :class:`~rankfall.studies.evaluate.Measuring`.

    Raises:
        ValueError: The run is not one of a cascade, or no request has a relevant item.
    """
    config, scores, log = scores_of_run(run_dir, split, reach=_reach, **measuring)
    return diagnose(scores, config, log, split=split, reach=_reach(config), on_step=on_step)


def _reach(config: CascadeConfig) -> int:
    return REACH * config.stages[0].quota


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
    numbers, steps = count(), 3 + len(config.stages)
    quotas = [stage.quota for stage in config.stages]
    on_step("sorting", next(numbers), steps)
    lists = FunnelLists.of_scores(scores, quotas)
    on_step("reading attributes", next(numbers), steps)
    known = LogAttributes(log, lists, log.choose(config.data.train))
    attributes = list(known.attributes())
    groups = user_groups(log, scores)
    resampler = Resampler(groups if groups is None else groups[lists.rows])
    perfect = [lists.perfect_order(stage) for stage in range(len(quotas))]
    (joint_recall,) = resampler.means([lists.recall(lists.arrived[-1])])
    stages = []
    for number, name in enumerate(scores.stages):
        on_step(f"losses of {name}", next(numbers), steps)
        segments = find_segments(lists, number, attributes, resampler)
        before, after = (lists.recall(lists.arrived[at]) for at in (number, number + 1))
        recoverable = lists.recall(lists.arrived[number] & ~lists.arrived[number + 1] & lists.would_survive(number))
        every = torch.ones_like(before)
        figures = [(before, every), (before - after, every), (recoverable, before - after)]
        arrived, lost, recovered = resampler.ratios(figures)
        stages.append(
            StageDiagnosis(
                stage=name,
                quota=quotas[number],
                arrived=arrived,
                lost=lost,
                recoverable=recovered,
                cut=cut_distance(lists, number, resampler, reach=reach),
                oracle=oracle(lists, perfect, number, resampler),
                segments=segments.worse,
                tested=segments.tested,
                best_segments=segments.better,
            )
        )
    neighbours = [agreement(lists, stage, resampler) for stage in range(len(quotas) - 1)]
    on_step("requests", next(numbers), steps)
    notes = []
    if without := len(scores) - len(lists):
        notes.append(f"{without:,} of {len(scores):,} requests have no relevant item and are left out")
    if known.users is None:
        notes.append(
            "The log has no categorical feature with the id of the user, so that activity of users is unknown and "
            "intervals are over requests"
        )
    if not scores.complete:
        notes.append(
            "The lists hold the best items of the first stage and all relevant items, not all items: agreement of the "
            "first two stages over all items is unknown"
        )
    worse = [stage.segments for stage in stages]
    return Diagnosis(
        split=split,
        requests=len(lists),
        all_items=not scores.complete,
        joint_recall=joint_recall,
        findings=[*_unseen_items(config, log, stages[0]), *find(joint_recall, stages, neighbours)],
        stages=stages,
        agreement=neighbours,
        worst_requests=worst_requests(lists, worse, attributes, known, reach=reach or quotas[0]),
        notes=notes,
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
