"""Compare the answers of a bundle with those of its PyTorch models on requests of the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall._lists import rank_order
from rankfall.models import TwoTower
from rankfall.models.build import is_own
from rankfall.serving.encoded_requests import NO_ITEM, padded
from rankfall.serving.export.onnx_graphs import as_batch, user_vectors
from rankfall.serving.export.vector_index import exact_search
from rankfall.serving.rankings import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.cascade import Stage
    from rankfall.serving.bundle import Bundle
    from rankfall.serving.encoded_requests import EncodedRequests
    from rankfall.serving.export.item_table import ItemTable

    Rows = NDArray[np.int64]

_AT_ONCE = 64  # requests
_BLOCK = 2**13  # items to score at once, of all items


@dataclass(slots=True)
class Agreement:
    """The result of a comparison, in which the kept items may differ only by ties.

    Attributes:
        requests: Requests with the candidates of the log.
        scores: Scores of these.
        largest_difference: The largest difference of a score.
        same_with_candidates: Requests for which every stage keeps the same candidates.
        open_requests: Requests for all items.
        same_without: Those for which every stage keeps the same items.
        found_by_index: Share of the best items of the first stage that its search finds.
    """

    requests: int = 0
    scores: int = 0
    largest_difference: float = 0.0
    same_with_candidates: int = 0
    open_requests: int = 0
    same_without: int = 0
    found_by_index: float = 1.0


class DifferenceError(ValueError):
    """A bundle answers differently than its models."""


def check(
    bundle: Bundle,
    stages: Sequence[Stage],
    items: ItemTable,
    requests: EncodedRequests,
    *,
    vectors: NDArray[np.float32] | None,
    open_requests: int,
    on_requests: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Compare scores and kept items on requests with the candidates of the log, and on some for all items.

    Args:
        bundle: The bundle.
        stages: The stages with PyTorch models.
        items: The items of the bundle.
        requests: The requests.
        vectors: The vectors of the items if the first stage has an index.
        open_requests: The number of requests that are also answered for all items.
        on_requests: Receives the number of requests that were compared.

    Raises:
        DifferenceError: Scores or kept items differ by more than the tolerance.
    """
    models = _Models(stages, items)
    agreement = Agreement()
    for start in range(0, len(requests), _AT_ONCE):
        part = requests.take(range(start, min(start + _AT_ONCE, len(requests))))
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
    """The PyTorch models, applied to the items of the bundle."""

    def __init__(self, stages: Sequence[Stage], items: ItemTable) -> None:
        self.stages = stages
        self._features = items.features
        self.count = len(items)

    @torch.no_grad()
    def score(self, stage: Stage, requests: EncodedRequests, rows: Rows) -> NDArray[np.float32]:
        """Return the scores of items, any number for -1."""
        arrays = requests.arrays | {name: values[np.maximum(rows, 0)] for name, values in self._features.items()}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        scores = stage.model(as_batch(tensors, mask=is_own(stage.model)))
        found: NDArray[np.float32] = scores.numpy()
        return found


def _compare_scores(bundle: Bundle, models: _Models, requests: EncodedRequests, agreement: Agreement) -> None:
    rows = padded(requests.candidates)
    real = rows != NO_ITEM
    for stage, served in zip(models.stages, bundle.stages, strict=True):
        expected, found = models.score(stage, requests, rows)[real], served.score(requests, rows)[real]
        if not np.isfinite(expected).all():
            raise DifferenceError(f"{stage.name}: PyTorch's scores of the log's impressions are not finite")
        difference = np.abs(expected - found)
        if (bad := difference > _tolerance(expected)).any():
            place = int(bad.argmax())
            raise DifferenceError(
                f"{stage.name}: ONNX Runtime scores {found[place]:.6g} where PyTorch scores {expected[place]:.6g}; "
                f"allowed is a difference of {TOLERANCE:g}"
            )
        agreement.largest_difference = max(agreement.largest_difference, float(difference.max(initial=0)))
        agreement.scores += int(real.sum())
    agreement.requests += len(requests)


def _compare_funnels(bundle: Bundle, models: _Models, requests: EncodedRequests, agreement: Agreement) -> None:
    """Check that every stage keeps what PyTorch keeps of the same candidates."""
    traces = [ranking.stages or [] for ranking in bundle.run(requests, explain=True).rankings]
    same = np.ones(len(requests), np.bool_)
    entered = padded(requests.candidates)
    for place, stage in enumerate(models.stages):
        kept = padded([bundle.items.rows(of[place].ids[: of[place].kept]) for of in traces])
        same &= _compare_stage(stage, models.score(stage, requests, entered), entered, kept)
        entered = kept
    agreement.same_with_candidates += int(same.sum())


def _compare_open(
    bundle: Bundle,
    models: _Models,
    requests: EncodedRequests,
    vectors: NDArray[np.float32] | None,
    agreement: Agreement,
) -> None:
    """Check the same for all items, of which the index may miss some of the best."""
    requests = requests.without_candidates()
    traces = [ranking.stages or [] for ranking in bundle.run(requests, explain=True).rankings]
    kept = padded([bundle.items.rows(of[0].ids[: of[0].kept]) for of in traces])
    best = _best_of_all(models, requests, vectors)
    hits = np.array([np.isin(wanted, found).mean() for wanted, found in zip(best, kept, strict=True)])
    same = hits == 1
    if bundle.manifest["stages"][0].get("index", {}).get("kind", "exact") == "exact":
        _compare_search(models, requests, best, kept)
    entered = kept
    for place, stage in enumerate(models.stages[1:], start=1):
        kept = padded([bundle.items.rows(of[place].ids[: of[place].kept]) for of in traces])
        same &= _compare_stage(stage, models.score(stage, requests, entered), entered, kept)
        entered = kept
    share = agreement.found_by_index * agreement.open_requests + hits.sum()
    agreement.open_requests += len(requests)
    agreement.found_by_index = float(share / agreement.open_requests)
    agreement.same_without += int(same.sum())


def _best_of_all(models: _Models, requests: EncodedRequests, vectors: NDArray[np.float32] | None) -> Rows:
    """Return the best of all items by the first stage."""
    stage = models.stages[0]
    quota = min(stage.quota, models.count)
    if vectors is not None:
        assert isinstance(stage.model, TwoTower)  # no other model has vectors
        return exact_search(vectors, user_vectors(stage.model, requests.arrays), quota)
    blocks = [np.arange(start, min(start + _BLOCK, models.count)) for start in range(0, models.count, _BLOCK)]
    found = [models.score(stage, requests, np.broadcast_to(rows, (len(requests), len(rows)))) for rows in blocks]
    scores = torch.from_numpy(np.hstack(found))
    best: Rows = rank_order(scores, torch.ones_like(scores, dtype=torch.bool))[:, :quota].numpy()
    return best


def _compare_search(models: _Models, requests: EncodedRequests, best: Rows, kept: Rows) -> None:
    """Check that an exact search finds the best items except for ties."""
    stage = models.stages[0]
    wanted, found = models.score(stage, requests, best), models.score(stage, requests, kept)
    threshold = wanted.min(axis=1, keepdims=True)
    missed = ~np.array([np.isin(rows, of) for rows, of in zip(best, kept, strict=True)])
    tolerance = _tolerance(threshold)
    wrong = (missed & (wanted > threshold + tolerance)).any() or (
        (kept != NO_ITEM) & (found < threshold - tolerance)
    ).any()
    if wrong or (kept != NO_ITEM).sum() != best.size:
        raise DifferenceError(f"{stage.name}: the search does not find the items with the best scores")


def _compare_stage(stage: Stage, scores: NDArray[np.float32], entered: Rows, kept: Rows) -> NDArray[np.bool_]:
    """Return for which requests a stage kept the items with the best scores; a difference must be a tie."""
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
            f"last kept item scores {threshold[request, 0]:.6g}, but the bundle "
            f"{'keeps' if is_kept[request, place] else 'drops'} it"
        )
    same: NDArray[np.bool_] = (expected == is_kept).all(axis=1)
    return same


def _tolerance(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    return (TOLERANCE * np.maximum(1, np.abs(scores))).astype(np.float32)
