"""Requests that show why relevant items are lost, a few for each cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rankfall.studies.diagnosis.diagnosis_result import LostRequest, ShownItem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.studies.diagnosis.attributes import Attribute, LogAttributes, TruthItems
    from rankfall.studies.diagnosis.diagnosis_result import Segment
    from rankfall.studies.diagnosis.funnel_lists import FunnelLists

NEAR = 1.5  # multiple of the quota up to which a rank is near the cut
PER_CAUSE = 2  # requests
SEGMENTS = 1  # of each stage that are causes of their own
LOST_SHOWN, KEPT_SHOWN = 5, 3


@dataclass(frozen=True, slots=True)
class _Cause:
    """Lost items of the ground truth with a common cause: `items` are their places among all items of it."""

    name: str
    stage: int
    items: NDArray[np.int64]


def worst_requests(
    lists: FunnelLists,
    truth: TruthItems,
    segments: Sequence[Sequence[Segment]],
    attributes: Sequence[Attribute],
    known: LogAttributes,
    *,
    reach: int | None = None,
) -> list[LostRequest]:
    """Return requests for each cause of lost items, the cause that loses most first.

    Args:
        lists: The lists.
        truth: The items of the ground truth.
        segments: The segments of each stage that suffer.
        attributes: Attributes of the ground truth.
        known: Attributes of requests and items.
        reach: Number of best items of the first stage that incomplete lists hold.
    """
    ranks = [lists.ranks(stage) for stage in range(len(lists.stages))]
    causes = list(_causes(lists, truth, ranks, segments, attributes))
    causes.sort(key=lambda cause: -truth.weight[cause.items].sum())
    shown: list[LostRequest] = []
    used: set[int] = set()
    for cause in causes:
        for request in _requests(cause, truth, used):
            used.add(request)
            shown.append(_shown(lists, truth, cause, request, ranks[cause.stage], known, reach))
    return shown


def _causes(
    lists: FunnelLists,
    truth: TruthItems,
    ranks: Sequence[Tensor],
    segments: Sequence[Sequence[Segment]],
    attributes: Sequence[Attribute],
) -> Iterator[_Cause]:
    for stage, name in enumerate(lists.stages):
        arrived, passed = (lists.arrived[at].numpy()[truth.request, truth.place] for at in (stage, stage + 1))
        lost = arrived & ~passed
        near = ranks[stage].numpy()[truth.request, truth.place] <= NEAR * lists.quotas[stage]
        yield _Cause(f"{name}, near the cut", stage, np.flatnonzero(lost & near))
        yield _Cause(f"{name}, far below the cut", stage, np.flatnonzero(lost & ~near))
        for segment in segments[stage][:SEGMENTS]:
            attribute = next(one for one in attributes if one.name == segment.attribute)
            inside = attribute.codes == attribute.labels.index(segment.value)
            yield _Cause(f"{name}, {segment.attribute}: {segment.value}", stage, np.flatnonzero(lost & inside))


def _requests(cause: _Cause, truth: TruthItems, used: set[int]) -> list[int]:
    """Return the requests with the most lost items of a cause, of equal ones those with the largest share."""
    if not len(cause.items):
        return []
    requests, at = np.unique(truth.request[cause.items], return_inverse=True)
    counts = np.bincount(at)
    shares = np.bincount(at, truth.weight[cause.items])
    order = np.lexsort((requests, -shares, -counts))
    return [request for request in requests[order].tolist() if request not in used][:PER_CAUSE]


def _shown(
    lists: FunnelLists,
    truth: TruthItems,
    cause: _Cause,
    request: int,
    ranks: Tensor,
    known: LogAttributes,
    reach: int | None,
) -> LostRequest:
    stage = cause.stage
    quota, row = lists.quotas[stage], int(lists.rows[request])
    rank, weight = ranks[request].numpy(), lists.weight[request].numpy()
    of_cause = truth.place[cause.items[truth.request[cause.items] == request]]
    lost = of_cause[rank[of_cause].argsort(kind="stable")][:LOST_SHOWN]
    kept = np.flatnonzero((rank > 0) & (rank <= quota) & (weight == 0))
    kept = kept[rank[kept].argsort(kind="stable")][:KEPT_SHOWN]
    censored = reach if stage == 0 and not lists.complete else None
    return LostRequest(
        cause=cause.name,
        request=known.scores.requests[row],
        day=known.scores.days[row],
        stage=lists.stages[stage],
        quota=quota,
        recall=float((weight * lists.arrived[-1][request].numpy()).sum()),
        items=int((weight > 0).sum()),
        attributes=known.describe_requests(np.array([request]))[0],
        lost_items=len(of_cause),
        lost=_items(known, request, row, lost, rank, censored),
        kept_instead=_items(known, request, row, kept, rank, None),
    )


def _items(
    known: LogAttributes,
    request: int,
    row: int,
    places: NDArray[np.int64],
    rank: NDArray[np.int32],
    censored: int | None,
) -> list[ShownItem]:
    requests = np.full(len(places), request)
    scores, numbers = known.scores, known.items(requests, places)
    return [
        ShownItem(
            item=item,
            relevance=float(scores.relevance[row, place]),
            rank=int(rank[place]),
            logged=_logged(known, int(scores.depth[row, place]), int(scores.rank[row, place])),
            attributes=attributes,
            at_least=censored is not None and int(rank[place]) > censored,
        )
        for item, place, attributes in zip(
            known.raw.item(numbers), places.tolist(), known.describe_items(requests, places), strict=True
        )
    ]


def _logged(known: LogAttributes, depth: int, rank: int) -> str:
    if depth < 0:
        return "not logged"
    name = known.log.spec.stage_names[depth]
    return name if rank < 0 else f"{name}, rank {rank}"
