"""The survival that LCRON maximises, a product of soft inclusions, against what the funnel of a run really keeps."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from rankfall import ops
from rankfall.metrics.cascade_survival import check_claims, survival_of
from rankfall.studies.diagnosis.diagnosis_result import CalibrationBin, ClaimCheck, SurvivalBound
from rankfall.studies.diagnosis.operator_conflict import operator_text
from rankfall.training.stage_figures import Resampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from rankfall.metrics.cascade_survival import Survival
    from rankfall.studies.diagnosis.funnel_lists import FunnelLists

DEFAULT = {"name": "neural_sort", "tau": 50.0}  # the operator of LCRON's experiments
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # of the product of inclusions
MOST_LISTS = 500
SHORT_LENGTH = 10  # items of lists whose sets are enumerated
_BLOCK = 50  # lists that are computed at once: NeuralSort needs a matrix per list
_TINY = 1e-30  # an inclusion of exactly 0 has no logarithm


def survival_bound(lists: FunnelLists, own: Mapping[str, Any] | None) -> SurvivalBound:
    """Compare the product of inclusions with the survival of the funnel, for the ground truth of some requests.

    Args:
        lists: The lists of the run.
        own: Options of `rankfall.ops.topk` that the run was trained with, if there are some.
    """
    options = DEFAULT if own is None else own
    operator = ops.topk(**options)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(lists), generator=generator)[:MOST_LISTS]
    inclusion = [
        torch.cat([_inclusion(operator, lists, stage, part) for part in chosen.split(_BLOCK)])
        for stage in range(len(lists.stages))
    ]
    product = torch.stack(inclusion).prod(0)
    weight, alive = lists.weight[chosen].double(), lists.arrived[-1][chosen]
    bound, survived = Resampler().means([(weight * product).sum(-1), (weight * alive).sum(-1)])
    short = list(_short_lists(operator, lists, chosen, generator))
    checks = check_claims(short) if short else []
    return SurvivalBound(
        operator=operator_text(options),
        own=own is not None,
        requests=len(chosen),
        bound=bound,
        survived=survived,
        gap_bound=float((weight * gap_bound(*inclusion)).sum(-1).mean()) if len(inclusion) == 2 else float("nan"),
        calibration=calibration(product, alive, weight),
        claims=[ClaimCheck(one.claim, one.items, one.failures, one.worst) for one in checks],
        short_lists=sum(len(one.first) for one in short),
        short_length=SHORT_LENGTH,
    )


def _inclusion(operator: ops.TopK, lists: FunnelLists, stage: int, chosen: Tensor) -> Tensor:
    mask = lists.mask[chosen]
    scores = lists.scores[stage][chosen].double().masked_fill(~mask, 0.0)
    log_p, _ = ops.log_inclusion(operator, scores, lists.quotas[stage], mask=mask)
    return log_p.detach().exp().masked_fill(~mask, 0.0)


def gap_bound(first: Tensor, last: Tensor) -> Tensor:
    """Return the upper bound of the gap between the expected survival and the product (eq. 14), per item.

    Args:
        first: Inclusions ``(lists, items)`` of the first stage.
        last: Inclusions of the second stage.
    """
    total, shared = last.sum(-1, keepdim=True), (first * last).sum(-1, keepdim=True)
    return last * (total / shared.clamp(min=_TINY) - 1)


def calibration(product: Tensor, alive: Tensor, weight: Tensor) -> list[CalibrationBin]:
    """Return the survival of the ground truth by ranges of the product of inclusions; empty ranges are left out."""
    bins = []
    for low, high in itertools.pairwise(EDGES):
        inside = (weight > 0) & (product >= low) & ((product < high) | (high == EDGES[-1]))
        if inside.any():
            total = weight[inside].sum()
            bins.append(
                CalibrationBin(
                    low=low,
                    high=high,
                    items=int(inside.sum()),
                    bound=float((weight * product)[inside].sum() / total),
                    survived=float((weight * alive)[inside].sum() / total),
                )
            )
    return bins


def _short_lists(
    operator: ops.TopK, lists: FunnelLists, chosen: Tensor, generator: torch.Generator
) -> Iterator[Survival]:
    """Yield the survival in short lists of items that arrive at a stage, for each pair of neighbouring stages."""
    n = SHORT_LENGTH
    for stage in range(len(lists.stages) - 1):
        arrived = lists.arrived[stage][chosen]
        long = chosen[arrived.sum(-1) >= n]
        if not len(long):
            continue
        arrived = lists.arrived[stage][long]
        places = torch.rand(arrived.shape, generator=generator).masked_fill(~arrived, -1.0).topk(n, -1).indices
        share = n / float(arrived.sum(-1).double().mean())
        first = min(n - 1, max(2, round(lists.quotas[stage] * share)))
        last = min(first - 1, max(1, round(lists.quotas[stage + 1] * share)))
        inclusions = []
        for at, quota in ((stage, first), (stage + 1, last)):
            log_p, _ = ops.log_inclusion(operator, lists.scores[at][long].gather(-1, places).double(), quota)
            inclusions.append(log_p.detach().exp().clamp(min=_TINY))
        yield survival_of(inclusions[0], inclusions[1], first)
