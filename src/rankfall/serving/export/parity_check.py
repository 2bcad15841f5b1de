"""Whether a bundle answers as the models do that it was made of, on real requests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall._lists import rank_order
from rankfall.models import TwoTower
from rankfall.serving.bundle import TOLERANCE, Bundle
from rankfall.serving.export.onnx_graphs import as_batch, user_vectors
from rankfall.serving.export.vector_index import exact_search
from rankfall.serving.onnx_stages import NO_ITEM
from rankfall.serving.request_encoder import padded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.cascade import Stage
    from rankfall.serving.export.item_table import ItemTable
    from rankfall.serving.request_encoder import Batch

    Rows = NDArray[np.int64]

_AT_ONCE = 64  # requests
_BLOCK = 2**13  # items, if all of them are scored


@dataclass(slots=True)
class Agreement:
    """What was compared; a funnel that is not the same is one of items with equal scores, or it was refused."""

    requests: int = 0
    scores: int = 0
    largest_difference: float = 0.0  # of a score
    same_with_candidates: int = 0  # of the funnels over the candidates of the log
    open_requests: int = 0
    same_without: int = 0  # of the funnels over all items
    found_by_index: float = 1.0  # share of the best items of the first stage


class DifferenceError(ValueError):
    """A bundle that answers otherwise than its models."""


def check(
    bundle: Bundle,
    stages: Sequence[Stage],
    items: ItemTable,
    batch: Batch,
    *,
    vectors: NDArray[np.float32] | None,
    open_requests: int,
    on_requests: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Compare scores and funnels on requests with the candidates they had, and on some over all items.

    `vectors` are those of the items if the first stage has an index.
    """
    models = _Models(stages, items)
    agreement = Agreement()
    for start in range(0, len(batch), _AT_ONCE):
        part = batch.take(range(start, min(start + _AT_ONCE, len(batch))))
        _compare_scores(bundle, models, part, agreement)
        _compare_funnels(bundle, models, part, agreement)
        first = part.take(range(min(len(part), max(0, open_requests - start))))
        if len(first):
            _compare_open(bundle, models, first, vectors, agreement)
        on_requests(len(part))
    if not agreement.scores:
        raise DifferenceError("items: none of those of the log's impressions is among them, so nothing can be compared")
    return asdict(agreement)


class _Models:
    """PyTorch's answers, for items as the bundle has them."""

    def __init__(self, stages: Sequence[Stage], items: ItemTable) -> None:
        self.stages = stages
        self._features = items.features
        self.count = len(items)

    @torch.no_grad()
    def score(self, stage: Stage, batch: Batch, rows: Rows) -> NDArray[np.float32]:
        """The scores of items; those of -1 mean nothing."""
        arrays = batch.arrays | {name: values[np.maximum(rows, 0)] for name, values in self._features.items()}
        scores = stage.model(as_batch({name: torch.from_numpy(array) for name, array in arrays.items()}))
        found: NDArray[np.float32] = scores.numpy()
        return found


def _compare_scores(bundle: Bundle, models: _Models, batch: Batch, agreement: Agreement) -> None:
    rows = padded(batch.candidates)
    real = rows != NO_ITEM
    for stage, served in zip(models.stages, bundle.stages, strict=True):
        expected, found = models.score(stage, batch, rows)[real], served.score(batch, rows)[real]
        if not np.isfinite(expected).all():
            raise DifferenceError(f"{stage.name}: its own scores of the log's impressions are not finite")
        difference = np.abs(expected - found)
        if (bad := difference > _tolerance(expected)).any():
            place = int(bad.argmax())
            raise DifferenceError(
                f"{stage.name}: ONNX Runtime scores {found[place]:.6g} where PyTorch scores {expected[place]:.6g}; "
                f"allowed is a difference of {TOLERANCE:g}"
            )
        agreement.largest_difference = max(agreement.largest_difference, float(difference.max(initial=0)))
        agreement.scores += int(real.sum())
    agreement.requests += len(batch)


def _compare_funnels(bundle: Bundle, models: _Models, batch: Batch, agreement: Agreement) -> None:
    """Every stage keeps what PyTorch keeps of the same items."""
    traces = [ranking.stages or [] for ranking in bundle.run(batch, explain=True).rankings]
    same = np.ones(len(batch), np.bool_)
    entered = padded(batch.candidates)
    for place, stage in enumerate(models.stages):
        kept = padded([bundle.items.rows(of[place].ids[: of[place].kept]) for of in traces])
        same &= _compare_stage(stage, models.score(stage, batch, entered), entered, kept)
        entered = kept
    agreement.same_with_candidates += int(same.sum())


def _compare_open(
    bundle: Bundle, models: _Models, batch: Batch, vectors: NDArray[np.float32] | None, agreement: Agreement
) -> None:
    """The same over all items, as far as the index finds the best of the first stage."""
    batch = batch.open()
    traces = [ranking.stages or [] for ranking in bundle.run(batch, explain=True).rankings]
    kept = padded([bundle.items.rows(of[0].ids[: of[0].kept]) for of in traces])
    best = _best_of_all(models, batch, vectors)
    hits = np.array([np.isin(wanted, found).mean() for wanted, found in zip(best, kept, strict=True)])
    same = hits == 1
    if bundle.manifest["stages"][0].get("index", {}).get("kind", "exact") == "exact":
        _compare_search(models, batch, best, kept)
    entered = kept
    for place, stage in enumerate(models.stages[1:], start=1):
        kept = padded([bundle.items.rows(of[place].ids[: of[place].kept]) for of in traces])
        same &= _compare_stage(stage, models.score(stage, batch, entered), entered, kept)
        entered = kept
    share = agreement.found_by_index * agreement.open_requests + hits.sum()
    agreement.open_requests += len(batch)
    agreement.found_by_index = float(share / agreement.open_requests)
    agreement.same_without += int(same.sum())


def _best_of_all(models: _Models, batch: Batch, vectors: NDArray[np.float32] | None) -> Rows:
    """The best of all items by the first stage."""
    stage = models.stages[0]
    quota = min(stage.quota, models.count)
    if vectors is not None:
        assert isinstance(stage.model, TwoTower)  # nothing else has vectors
        return exact_search(vectors, user_vectors(stage.model, batch.arrays), quota)
    blocks = [np.arange(start, min(start + _BLOCK, models.count)) for start in range(0, models.count, _BLOCK)]
    found = [models.score(stage, batch, np.broadcast_to(rows, (len(batch), len(rows)))) for rows in blocks]
    scores = torch.from_numpy(np.hstack(found))
    best: Rows = rank_order(scores, torch.ones_like(scores, dtype=torch.bool))[:, :quota].numpy()
    return best


def _compare_search(models: _Models, batch: Batch, best: Rows, kept: Rows) -> None:
    """What was found instead of the best of all items has to be as good as the last of those."""
    stage = models.stages[0]
    wanted, found = models.score(stage, batch, best), models.score(stage, batch, kept)
    threshold = wanted.min(axis=1, keepdims=True)
    missed = ~np.array([np.isin(rows, of) for rows, of in zip(best, kept, strict=True)])
    tolerance = _tolerance(threshold)
    wrong = (missed & (wanted > threshold + tolerance)).any() or (
        (kept != NO_ITEM) & (found < threshold - tolerance)
    ).any()
    if wrong or (kept != NO_ITEM).sum() != best.size:
        raise DifferenceError(f"{stage.name}: the search does not find the items with the best scores")


def _compare_stage(stage: Stage, scores: NDArray[np.float32], entered: Rows, kept: Rows) -> NDArray[np.bool_]:
    """Whether a stage kept what these scores would keep of what entered; a difference must be one of equal scores."""
    real = entered != NO_ITEM
    order = np.argsort(np.where(real, -scores, np.inf), axis=1, kind="stable")[:, : stage.quota]
    threshold = np.take_along_axis(np.where(real, scores, -np.inf), order[:, -1:], 1)
    expected = np.zeros_like(real)
    np.put_along_axis(expected, order, True, 1)
    expected &= real
    is_kept = real & np.array([np.isin(rows, of) for rows, of in zip(entered, kept, strict=True)])
    wrong = (expected != is_kept) & (np.abs(scores - threshold) > _tolerance(scores))
    if wrong.any():
        request, place = (int(at) for at in np.argwhere(wrong)[0])
        raise DifferenceError(
            f"{stage.name}: the item in row {entered[request, place]} scores {scores[request, place]:.6g} where the "
            f"last that is kept scores {threshold[request, 0]:.6g}, but the bundle "
            f"{'keeps' if is_kept[request, place] else 'drops'} it"
        )
    same: NDArray[np.bool_] = (expected == is_kept).all(axis=1)
    return same


def _tolerance(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    return (TOLERANCE * np.maximum(1, np.abs(scores))).astype(np.float32)
