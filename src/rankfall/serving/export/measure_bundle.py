"""The recall of a bundle over its own items, measured by asking the bundle for requests of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from rankfall._results import Number, Result
from rankfall.training.cascade_metrics import user_numbers
from rankfall.training.stage_figures import Estimate, StageFigures, stage_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from rankfall.serving.bundle import Bundle
    from rankfall.serving.export.logged_requests import Reactions, RequestSample

_BATCH = 64  # requests that are asked for at once
_SCORED = 5_000_000  # pairs of requests and items at most, if the first stage scores every item
_LEAST = 32  # requests in that case


@dataclass(frozen=True)
class RunFigure(Result):
    """The joint recall that the run reported, the mean length of the lists it was measured on, and their days."""

    joint_recall: Number
    list_length: Number | None
    split: str = "test"


@dataclass(frozen=True)
class ServedFigures(Result):
    """What a bundle keeps of the relevant items of logged requests when it ranks all its items.

    Relevant items that were not exported are lost by the first stage.
    """

    requests: int
    """Number of requests with a relevant item."""
    items: int
    """Number of items of the bundle."""
    joint_recall: Estimate
    stages: list[StageFigures]
    index_recall: Number | None
    """Share of the best items that the index of the first stage finds; None without an index."""
    run: RunFigure | None
    """None if the run was not evaluated, or with other stages or quotas."""
    relevant: int
    """Number of relevant items of all these requests."""
    not_exported: int
    """Number of these that the bundle does not have."""
    resampled: Literal["requests", "users"] = "requests"
    """What intervals are over, as in an evaluation."""


def measure_bundle(
    bundle: Bundle,
    sample: RequestSample,
    run: RunFigure | None,
    on_requests: Callable[[int, int], None] = lambda done, total: None,
) -> ServedFigures | None:
    """Measure a bundle on the requests of a sample that have a relevant item.

    Args:
        bundle: The bundle, which is asked without candidates.
        sample: Requests of the log.
        run: The figure of the run.
        on_requests: Receives the number of requests that were answered, and their total.

    Returns:
        The figures, None if no request has a relevant item.
    """
    reactions = sample.reactions
    if reactions is None or not (reactions.share > 0).any():
        return None
    places = np.unique(reactions.request[reactions.share > 0])
    if "index" not in bundle.manifest["stages"][0]:
        places = places[: max(_LEAST, _SCORED // len(bundle.items))]
    left = _left(bundle, sample, reactions, places, on_requests)
    counted = np.isin(reactions.request, places) & (reactions.share > 0)
    ranked = torch.full((len(places),), len(bundle.items))
    users = None if sample.users is None else user_numbers(torch.from_numpy(sample.users[places]))
    stages = stage_figures(bundle.names, bundle.quotas, torch.from_numpy(left), ranked, units=users)
    return ServedFigures(
        requests=len(places),
        items=len(bundle.items),
        joint_recall=stages[-1].survived,
        stages=stages,
        index_recall=bundle.manifest["stages"][0].get("index", {}).get("recall"),
        run=run,
        relevant=int(counted.sum()),
        resampled="requests" if users is None else "users",
        not_exported=int((reactions.row[counted] < 0).sum()),
    )


def _left(
    bundle: Bundle,
    sample: RequestSample,
    reactions: Reactions,
    places: NDArray[np.int64],
    on_requests: Callable[[int, int], None],
) -> NDArray[np.float64]:
    """Return the share of the ground truth of each request that is left after each stage ``(R, T)``."""
    left = np.zeros((len(places), len(bundle.stages)))
    requests = sample.requests.without_candidates()
    first, last = (np.searchsorted(reactions.request, places, side=side) for side in ("left", "right"))
    for start in range(0, len(places), _BATCH):
        some = places[start : start + _BATCH]
        for at, ranking in enumerate(bundle.run(requests.take(some), explain=True).rankings, start):
            known = slice(first[at], last[at])
            share, ids = reactions.share[known], reactions.ids[known].to_pylist()
            assert ranking.stages is not None  # asked for
            for stage, trace in enumerate(ranking.stages):
                kept = set(trace.ids[: trace.kept])
                left[at, stage] = share[[one in kept for one in ids]].sum() / share.sum()
        on_requests(min(start + _BATCH, len(places)), len(places))
    return left


def run_figure(metrics: Mapping[str, Any], *, best_is_recall: bool, list_length: float | None) -> RunFigure | None:
    """Return the joint recall that a run stored: that of its evaluation, otherwise that of its best epoch.

    Args:
        metrics: The content of its evaluations by name of the split, and of ``result.json`` as ``training``.
        best_is_recall: Whether the joint recall chose the best epoch.
        list_length: Length of the lists of the configuration, for a run that was not evaluated.
    """
    for split in ("test", "valid"):
        evaluation = metrics.get(split)
        if evaluation is not None and (recall := evaluation["metrics"].get("joint_recall")) is not None:
            return RunFigure(recall, evaluation["lists"]["mean_length"], split)
    if best_is_recall and (best := metrics.get("training", {}).get("best_metric")) is not None:
        return RunFigure(best, list_length, "valid")
    return None
