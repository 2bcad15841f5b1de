"""Build the index of item vectors and measure its recall against an exact search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from rankfall._disk import open_new
from rankfall.serving.bundle_files import INDEX
from rankfall.serving.onnx_stages import probing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

EXACT_BELOW = 100_000  # items, all of which are searched in milliseconds
LARGEST_SHARE = 4  # searching a 4th of the lists is no faster than an exact search
_BLOCK = 2**16  # vectors at a time
_SAMPLE = 64  # vectors per list to train the lists on
_SEED = 0


def write_index(
    vectors: Vectors,
    queries: Vectors,
    directory: Path,
    *,
    quota: int,
    recall: float,
    exact_below: int = EXACT_BELOW,
    on_items: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Write the index of item vectors and return its entry in the manifest.

    The index is exact for few items or a recall of 1. Otherwise the vectors are in lists, and the smallest number of
    lists is searched that reaches the recall in each half of the queries; the lower recall is reported.

    Args:
        vectors: Vectors of items (n, size).
        queries: Vectors of requests (m, size).
        directory: The directory of the stage.
        quota: The number of items to find per request.
        recall: The share of the `quota` best items that must be found.
        exact_below: The number of items below which the index is exact.
        on_items: Receives the number of items that were added.

    Raises:
        ValueError: The index does not reach the recall.
    """
    count, size = vectors.shape
    quota = min(quota, count)
    if count < exact_below or recall >= 1:
        index = faiss.IndexFlatIP(size)
        for _, block in _blocks(vectors):
            index.add(block)
            on_items(len(block))
        about: dict[str, Any] = {"kind": "exact", "size": size, "recall": 1.0}
    else:
        index, lists = _lists(vectors, on_items)
        truth = exact_search(vectors, queries, quota)
        curve = _choose(index, queries, truth, lists, recall)
        probed = max(curve)
        about = {"kind": "lists", "size": size, "lists": lists, "nprobe": probed, "recall": curve[probed]}
        about |= {"recall_by_nprobe": {str(key): round(curve[key], 6) for key in sorted(curve)}}
        about |= {"queries": len(queries)}
    _save(index, directory / INDEX)
    return about | {"items": count, "asked_recall": recall, "quota": quota}


def exact_search(vectors: Vectors, queries: Vectors, count: int) -> NDArray[np.int64]:
    """Return the rows of the largest dot products with each query, best first."""
    best = np.full((len(queries), count), -1, np.int64)
    scores = np.full(best.shape, -np.inf, np.float32)
    for start, block in _blocks(vectors):
        found_scores, found = faiss.knn(queries, block, min(count, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        joined, joined_scores = np.hstack([best, found + start]), np.hstack([scores, found_scores])
        order = np.argsort(-joined_scores, axis=1, kind="stable")[:, :count]
        best, scores = np.take_along_axis(joined, order, 1), np.take_along_axis(joined_scores, order, 1)
    return best


def _lists(vectors: Vectors, on_items: Callable[[int], None]) -> tuple[Any, int]:
    """Return an index in lists of near vectors; one more dimension makes all of them equally long."""
    count, size = vectors.shape
    lists = int(4 * np.sqrt(count))
    longest = max(float((block * block).sum(axis=1).max()) for _, block in _blocks(vectors))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(size + 1), size + 1, lists)
    index.cp.seed, index.cp.max_points_per_centroid = _SEED, _SAMPLE
    sample = np.random.default_rng(_SEED).choice(count, min(count, _SAMPLE * lists), replace=False)
    index.train(_longer(np.asarray(vectors[np.sort(sample)]), longest))
    for _, block in _blocks(vectors):
        index.add(_longer(block, longest))
        on_items(len(block))
    index.make_direct_map()
    return index, lists


def _longer(vectors: Vectors, longest: float) -> Vectors:
    rest = np.sqrt(np.maximum(longest - (vectors * vectors).sum(axis=1, dtype=np.float64), 0))
    return np.hstack([vectors, rest[:, None].astype(np.float32)])


def _save(index: Any, path: Path) -> None:
    """Write an index. The library's own writer does not notice that a disk is full when it closes the file."""
    failed: list[OSError] = []
    with open_new(path) as file:

        def write(part: bytes) -> None:
            try:
                if not failed:
                    file.write(part)
            except OSError as error:  # must not pass through the library
                failed.append(error)

        faiss.write_index(index, faiss.PyCallbackIOWriter(write))  # type: ignore[attr-defined]
    if failed:
        raise failed[0]


def _choose(index: Any, queries: Vectors, truth: NDArray[np.int64], lists: int, recall: float) -> dict[int, float]:
    """Return the recall by number of lists; the largest number is the smallest that reaches the recall."""
    curve: dict[int, float] = {}

    def measure(probed: int) -> float:
        if probed not in curve:
            curve[probed] = _recall(index, queries, truth, probed)
        return curve[probed]

    most = max(1, lists // LARGEST_SHARE)
    high = 1
    while measure(high) < recall:
        if high == most:
            figures = ", ".join(f"{share:.4f} with {probed:,}" for probed, share in sorted(curve.items()))
            raise ValueError(
                f"recall: asked for {recall:g} of the {truth.shape[1]} best items, but the index finds {figures} of "
                f"{lists:,} lists, and with more of them it is no faster than an exact search. Ask for less, or for "
                "--recall 1, which makes an exact index"
            )
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if measure(middle) >= recall else (middle, high)
    return {probed: share for probed, share in curve.items() if probed <= high}


def _recall(index: Any, queries: Vectors, truth: NDArray[np.int64], probed: int) -> float:
    """Return the lower recall of the two halves of the queries.

    A setting that is chosen by a measurement looks a little better there than on other queries; requiring the recall in
    both halves makes up for it.
    """
    queries = np.pad(queries, ((0, 0), (0, 1)))
    _, found = index.search(queries, truth.shape[1], params=probing(probed))
    owner = np.arange(len(truth))[:, None] * index.ntotal
    hits = np.isin(truth + owner, np.where(found < 0, -1, found + owner))
    return float(min(hits[half::2].mean() for half in range(min(2, len(hits)))))


def _blocks(vectors: Vectors) -> Iterator[tuple[int, Vectors]]:
    for start in range(0, len(vectors), _BLOCK):
        yield start, np.ascontiguousarray(vectors[start : start + _BLOCK], np.float32)
