"""The stages of a bundle: ONNX graphs and an index of vectors.

A stage finds items for requests (`search`) and scores given ones (`score`). Both work on batches; the size of what is
computed at once is bounded, whatever the batch.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import faiss
import numpy as np
import onnxruntime as ort

from rankfall.serving.bundle_files import INDEX, SCORER_GRAPH, USER_GRAPH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.serving.bundle_items import Items
    from rankfall.serving.request_encoder import Batch

    Rows = NDArray[np.int64]
    Scores = NDArray[np.float32]

NO_ITEM = -1  # in rows of items: there is none
# Numbers of the largest tensor inside a graph, which bounds the memory of a call; larger blocks were not faster.
BLOCK = 2**21
_REQUESTS_AT_ONCE = 1024
_VECTORS_AT_ONCE = 2**18
_GATHERED_AT_ONCE = 2**16  # candidates whose features are looked up
_LARGE = 1e15  # the square of what is smaller is finite, and so are sums of as many of them as vectors have numbers


class NotFiniteError(ArithmeticError):
    """A request whose numbers are too large for a model; `place` is its place in the batch."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


@contextmanager
def at(places: Sequence[int] | Rows) -> Iterator[None]:
    """Name a request by its place among all when only those at some places are worked on."""
    try:
        yield
    except NotFiniteError as error:
        raise NotFiniteError(int(places[error.place])) from None


class Stage(Protocol):
    """A model and how many items it keeps."""

    name: str
    quota: int

    def search(self, batch: Batch, *, scored: bool) -> tuple[Rows, Scores | None]:
        """The best items of all for each request (B, quota), rows that rise and then -1, and their scores if asked."""

    def score(self, batch: Batch, rows: Rows) -> Scores:
        """The scores (B, N) of these items, which are finite; those of -1 are -inf."""


def by_row(array: NDArray[Any], places: Rows) -> NDArray[Any]:
    """What stands at places of each row."""
    return array[np.arange(len(array))[:, None], places]


def rising(rows: Rows) -> Rows:
    """Each row sorted, -1 behind everything else."""
    return np.sort(rows.view(np.uint64), axis=1).view(np.int64)


def load_stage(about: Mapping[str, Any], directory: Path, items: Items, threads: int) -> Stage:
    """The stage that a manifest describes."""
    if about["kind"] == "index":
        return TwoTowerStage(about, directory, items, threads)
    return ScorerStage(about, directory, items, threads)


class Graph:
    """An ONNX graph with one output. Many threads may run it at once."""

    def __init__(self, path: Path, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others need the cores between calls
        options.log_severity_level = 3
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of many classes, which have nothing in common
            raise ValueError(f"path: {path} is no graph that onnxruntime {ort.__version__} reads ({error})") from None
        self.inputs = [one.name for one in self._session.get_inputs()]

    def __call__(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        (found,) = self._session.run(None, {name: arrays[name] for name in self.inputs})
        output: NDArray[np.float32] = found
        return output


# --- two towers ---------------------------------------------------------------------------------------------------


class TwoTowerStage:
    """A graph for the vectors of requests, an index of those of items; scores are their dot products."""

    def __init__(self, about: Mapping[str, Any], directory: Path, items: Items, threads: int) -> None:
        self.name: str = about["name"]
        self.quota: int = about["quota"]
        self._tower = Graph(directory / USER_GRAPH, threads)
        self._index = Index(directory / INDEX, about["index"], threads)
        if len(self._index) != len(items):
            raise ValueError(f"path: {directory / INDEX} has {len(self._index):,} items, expected {len(items):,}")

    def search(self, batch: Batch, *, scored: bool) -> tuple[Rows, Scores | None]:
        """The best items by the index, whose own distances are rounded otherwise than scores."""
        vectors = self._vectors(batch)
        rows = rising(self._index.search(vectors, self.quota, batch.exclude))
        return rows, self._products(vectors, rows) if scored else None

    def score(self, batch: Batch, rows: Rows) -> Scores:
        """The dot products of vectors."""
        return self._products(self._vectors(batch), rows)

    def _vectors(self, batch: Batch) -> NDArray[np.float32]:
        if len(batch) <= _REQUESTS_AT_ONCE:
            vectors = self._tower(batch.arrays)
        else:
            starts = range(0, len(batch), _REQUESTS_AT_ONCE)
            vectors = np.concatenate([self._tower(batch.part(start, start + _REQUESTS_AT_ONCE)) for start in starts])
        if not np.abs(vectors).max() < _LARGE:  # nor if it is NaN
            with np.errstate(over="ignore"):
                lengths = (vectors * vectors).sum(axis=1)
            if not np.isfinite(lengths).all():  # no search would ever find anything
                raise NotFiniteError(int((~np.isfinite(lengths)).argmax()))
        return vectors

    def _products(self, vectors: NDArray[np.float32], rows: Rows) -> Scores:
        scores = np.empty(rows.shape, np.float32)
        step = max(1, _VECTORS_AT_ONCE // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            items = self._index.vectors(np.maximum(rows[part], 0))
            scores[part] = (items @ vectors[part, :, None])[:, :, 0]
        return _finite(scores, rows)


class Index:
    """Vectors of items, in which the largest dot products are found: all of them, or those in some lists.

    An index in lists has one dimension more, which makes all vectors equally long, so that the nearest ones are those
    with the largest dot products (Bachrach et al. 2014).
    """

    def __init__(self, path: Path, about: Mapping[str, Any], threads: int) -> None:
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise ValueError(f"path: {path} is no index that faiss {faiss.__version__} reads ({error})") from None
        self._size: int = about["size"]
        self._lists: int = about.get("lists", 1)
        self._probed: int = about.get("nprobe", 1)
        self._threads = threads
        self._usual = self._parameters(self._probed, None)

    def __len__(self) -> int:
        """The number of vectors."""
        return int(self._index.ntotal)

    def vectors(self, rows: Rows) -> NDArray[np.float32]:
        """The vectors of items (..., size)."""
        with self._own_threads():
            found = self._index.reconstruct_batch(rows.ravel())
        vectors: NDArray[np.float32] = found[:, : self._size].reshape(*rows.shape, self._size)
        return vectors

    def search(self, queries: NDArray[np.float32], count: int, exclude: Sequence[Rows]) -> Rows:
        """The rows of the largest dot products with each query (n, count), without what is excluded."""
        if self._index.d > self._size:
            longer = np.zeros((len(queries), self._index.d), np.float32)
            longer[:, : self._size] = queries
            queries = longer
        most = min(count, len(self))
        plain = [place for place, of in enumerate(exclude) if not len(of)]
        if len(plain) == len(queries):
            rows = self._find(queries, most, self._usual)
            if most == count and rows.min() != NO_ITEM:
                return rows
            rows = np.pad(rows, ((0, 0), (0, count - most)), constant_values=NO_ITEM)
        else:
            rows = np.full((len(queries), count), NO_ITEM, np.int64)
            if plain:
                rows[plain, :most] = self._find(queries[plain], most, self._usual)
        wanted = np.minimum(count, len(self) - np.array([len(of) for of in exclude]))
        for place in np.flatnonzero((rows != NO_ITEM).sum(axis=1) < wanted).tolist():
            with at([place]):
                found = self._search_further(queries[place], most, int(wanted[place]), exclude[place])
            rows[place, : len(found)] = found
        return rows

    def _search_further(self, query: NDArray[np.float32], count: int, wanted: int, exclude: Rows) -> Rows:
        """The best for one query, in as many lists more as what is excluded may fill, and until there is enough."""
        probed = min(self._lists, -(-self._probed * (count + len(exclude)) // count))
        # Both selectors have names here until the search is over: not all releases of faiss keep what they point to.
        excluded = faiss.IDSelectorBatch(exclude) if len(exclude) else None
        selector = faiss.IDSelectorNot(excluded) if excluded is not None else None
        while True:
            (found,) = self._find(query[None], count, self._parameters(probed, selector))
            if (found != NO_ITEM).sum() >= wanted:
                best: Rows = found
                return best
            if probed == self._lists:
                raise NotFiniteError(0)  # there is more, but its distance is no number
            probed = min(2 * probed, self._lists)

    def _find(self, queries: NDArray[np.float32], count: int, parameters: Any) -> Rows:
        with self._own_threads():
            _, found = self._index.search(queries, count, params=parameters)
        rows: Rows = found
        return rows

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        """As many threads as the index may have; the number is one of the calling thread's own."""
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(self._threads)
        try:
            yield
        finally:
            faiss.omp_set_num_threads(before)

    def _parameters(self, probed: int, selector: Any) -> Any:
        if self._lists > 1:
            return probing(probed, selector)
        return faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]  # its types do not know what it takes


def probing(count: int, selector: Any = None) -> Any:
    """Look at so many lists, and at what a selector selects; it has to live until the search is over."""
    return faiss.SearchParametersIVF(nprobe=count, sel=selector)  # type: ignore[call-arg]


# --- scorers ------------------------------------------------------------------------------------------------------


class ScorerStage:
    """A graph that scores every pair of a request and a candidate."""

    def __init__(self, about: Mapping[str, Any], directory: Path, items: Items, threads: int) -> None:
        self.name: str = about["name"]
        self.quota: int = about["quota"]
        self._width: int = about["width"]  # numbers for each candidate,
        self._event_width: int = about["event_width"]  # and for each event of each candidate
        self._graph = Graph(directory / SCORER_GRAPH, threads)
        self._items = items
        self._of_items = [name for name in self._graph.inputs if name.startswith("item.")]
        self._of_requests = [name for name in self._graph.inputs if not name.startswith("item.")]

    def score(self, batch: Batch, rows: Rows) -> Scores:
        """The scores of these items, some requests and candidates at a time."""
        scores = np.empty(rows.shape, np.float32)
        step = max(1, _GATHERED_AT_ONCE // rows.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            self._score(batch, part, rows[part], scores[part])
        return _finite(scores, rows)

    def _score(self, batch: Batch, part: slice, rows: Rows, scores: Scores) -> None:
        """Fill in the scores of items for some of the requests."""
        of_requests = {name: batch.arrays[name][part] for name in self._of_requests}
        here = np.maximum(rows, 0)
        of_items = {name: self._items.gather(name, here) for name in self._of_items}
        width, requests = self._at_once(batch, rows.shape[1])
        for start in range(0, len(rows), requests):
            some = slice(start, start + requests)
            inputs = {name: array[some] for name, array in of_requests.items()}
            for first in range(0, rows.shape[1], width):
                place = some, slice(first, first + width)
                scores[place] = self._graph(inputs | {name: array[place] for name, array in of_items.items()})

    def search(self, batch: Batch, *, scored: bool) -> tuple[Rows, Scores | None]:
        """The best of all items, all of which are scored."""
        width, requests = self._at_once(batch, len(self._items))
        found = []
        for start in range(0, len(batch), requests):
            places = range(start, min(start + requests, len(batch)))
            with at(places):
                found.append(self._search(batch.take(places), width))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found])

    def _search(self, batch: Batch, width: int) -> tuple[Rows, Scores]:
        """The same for as many requests as fit into a block with so many items."""
        count = len(self._items)
        best = np.full((len(batch), self.quota), NO_ITEM, np.int64)
        best_scores = np.full(best.shape, -np.inf, np.float32)
        for first in range(0, count, width):
            rows = np.broadcast_to(np.arange(first, min(first + width, count)), (len(batch), min(width, count - first)))
            scores = self.score(batch, rows)
            for place, excluded in enumerate(batch.exclude):
                here = excluded[(excluded >= first) & (excluded < first + width)] - first
                scores[place, here] = -np.inf
            joined, joined_scores = np.hstack([best, rows]), np.hstack([best_scores, scores])
            order = np.argsort(-joined_scores, axis=1, kind="stable")[:, : self.quota]
            best, best_scores = by_row(joined, order), by_row(joined_scores, order)
        best = np.where(best_scores == -np.inf, NO_ITEM, best)
        order = np.argsort(best.view(np.uint64), axis=1)
        return by_row(best, order), by_row(best_scores, order)

    def _at_once(self, batch: Batch, candidates: int) -> tuple[int, int]:
        """How many candidates, and of how many requests, fit into a block."""
        length = max(
            (array.shape[1] for name, array in batch.arrays.items() if name.startswith("sequence.")), default=0
        )
        numbers = max(self._width, self._event_width * length)
        width = max(1, min(candidates, BLOCK // numbers))
        return width, max(1, BLOCK // (numbers * width))


def _finite(scores: Scores, rows: Rows) -> Scores:
    """Scores, if all those of items are numbers; those of -1 become -inf."""
    good = np.isfinite(scores)
    nobody = rows == NO_ITEM
    if not good.all() and (bad := ~(good | nobody)).any():
        raise NotFiniteError(int(bad.any(axis=1).argmax()))
    return np.where(nobody, np.float32(-np.inf), scores) if nobody.any() else scores
