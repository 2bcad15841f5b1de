"""The stages of a bundle: ONNX graphs and an index of vectors.

A stage finds items for requests (`search`) and scores given items (`score`). Both take any number of requests
and compute them in blocks of bounded size.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import faiss
import numpy as np
import onnxruntime as ort

from rankfall._errors import RankfallError
from rankfall.serving.bundle_files import DATA, INDEX, SCORER_GRAPH, USER_GRAPH, check_graph, check_index
from rankfall.serving.request_encoder import NO_ITEM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.serving.bundle_files import Items, MemoryFile
    from rankfall.serving.request_encoder import EncodedRequests

    Rows = NDArray[np.int64]
    Scores = NDArray[np.float32]

# Elements of the largest tensor inside a graph, which bounds the memory of a call; larger blocks were not faster.
BLOCK = 2**21
_REQUESTS_AT_ONCE = 1024
_VECTORS_AT_ONCE = 2**18
_GATHERED_AT_ONCE = 2**16  # candidates whose features are gathered
_LARGE = 1e15  # a vector of smaller numbers has a finite length


class NotFiniteError(ArithmeticError):
    """A request whose numbers are too large for a model; `place` is its index in the batch."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


@contextmanager
def at_places(places: Sequence[int] | Rows) -> Iterator[None]:
    """Convert the index in errors from one among some requests, those at `places`, to one among all."""
    try:
        yield
    except NotFiniteError as error:
        raise NotFiniteError(int(places[error.place])) from None


class Stage(Protocol):
    """A model and the number of items it keeps."""

    name: str
    quota: int

    def search(self, requests: EncodedRequests, *, scored: bool) -> tuple[Rows, Scores | None]:
        """Return the best of all items for each request (B, quota), in ascending order and then -1, and their scores.

        Without `scored` a stage may return None for the scores.
        """

    def score(self, requests: EncodedRequests, rows: Rows) -> Scores:
        """Return the scores (B, N) of items, which are finite, and -inf for -1."""


def by_row(array: NDArray[Any], places: Rows) -> NDArray[Any]:
    """Return the elements at `places` of each row."""
    return array[np.arange(len(array))[:, None], places]


def best_order(scores: Scores) -> Rows:
    """Return the order of scores, best first; ties keep their order, and -inf comes last."""
    return np.argsort(-scores, axis=1, kind="stable")


def ascending(rows: Rows) -> Rows:
    """Sort each row, with -1 last."""
    return np.sort(rows.view(np.uint64), axis=1).view(np.int64)


def load_stage(about: Mapping[str, Any], files: Mapping[str, MemoryFile], items: Items, threads: int) -> Stage:
    """Load a stage from its entry in the manifest and the files of the bundle."""
    if about["kind"] == "index":
        return TwoTowerStage(about, files, items, threads)
    return ScorerStage(about, files, items, threads)


class Graph:
    """An ONNX graph with one output, which several threads may run at once.

    Args:
        file: The graph.
        threads: The number of threads that one call may use.
        data: The file of its weights, if they are not in the graph.
    """

    def __init__(self, file: MemoryFile, threads: int, *, data: MemoryFile | None = None) -> None:
        check_graph(file, data)
        options = ort.SessionOptions()
        options.add_session_config_entry("session.load_model_format", "ONNX")  # the only format that was checked
        options.intra_op_num_threads = threads
        if data is not None:
            options.add_external_initializers_from_files_in_memory(
                [data.path.name], [data.content], [len(data.content)]
            )
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves the cores to others
        options.log_severity_level = 4  # its errors are raised
        try:
            self._session = ort.InferenceSession(bytes(file.content), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise RankfallError(
                f"path: {file.path} is not a graph that onnxruntime {ort.__version__} can read ({error})"
            ) from None
        self._path = file.path
        self.inputs = [one.name for one in self._session.get_inputs()]

    def __call__(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        try:
            (found,) = self._session.run(None, {name: arrays[name] for name in self.inputs})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise RankfallError(
                f"path: {self._path} cannot be computed, it does not fit the bundle ({error})"
            ) from error
        output: NDArray[np.float32] = found
        return output


class _StageGraph(Graph):
    """The graph of a stage, whose inputs and output are compared with what the stage needs.

    Args:
        about: Entry of the stage in the manifest.
        files: Files of the bundle.
        name: Name of the graph.
        threads: The number of threads that one call may use.
        features: Names of the inputs of items that the stage has, such as ``item.author``.

    Raises:
        ValueError: The graph has other inputs of items.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        files: Mapping[str, MemoryFile],
        name: str,
        threads: int,
        features: Sequence[str],
    ) -> None:
        file = f"stages/{about['name']}/{name}"
        super().__init__(files[file], threads, data=files.get(f"{file}{DATA}"))
        self._misplaced = f"path: {self._path} is not the graph of stage {about['name']}: it"
        if unknown := [name for name in self.inputs if name.startswith("item.") and name not in features]:
            raise RankfallError(f"{self._misplaced} needs {', '.join(unknown)}, which the stage does not have")

    def __call__(self, arrays: Mapping[str, NDArray[Any]], shape: tuple[int, ...] = ()) -> NDArray[np.float32]:
        """Return the output; raise ValueError if it has another shape."""
        found = super().__call__(arrays)
        if found.shape != shape:
            raise RankfallError(f"{self._misplaced} returns an array of shape {found.shape}, expected {shape}")
        return found


# --- two towers ---------------------------------------------------------------------------------------------------


class TwoTowerStage:
    """A graph for the vectors of requests and an index of the vectors of items; scores are their dot products."""

    def __init__(self, about: Mapping[str, Any], files: Mapping[str, MemoryFile], items: Items, threads: int) -> None:
        self.name: str = about["name"]
        self.quota: int = about["quota"]
        self._tower = _StageGraph(about, files, USER_GRAPH, threads, ())
        self._size: int = about["index"]["size"]
        index = files[f"stages/{self.name}/{INDEX}"]
        self._index = Index(index, about["index"], threads)
        if len(self._index) != len(items):
            raise RankfallError(f"path: {index.path} has {len(self._index):,} items, expected {len(items):,}")

    def search(self, requests: EncodedRequests, *, scored: bool) -> tuple[Rows, Scores | None]:
        """Search the index; scores are computed again, as its distances are rounded differently."""
        vectors = self._vectors(requests)
        rows = ascending(self._index.search(vectors, self.quota, requests.exclude))
        return rows, self._products(vectors, rows) if scored else None

    def score(self, requests: EncodedRequests, rows: Rows) -> Scores:
        """Return the dot products of the vectors."""
        return self._products(self._vectors(requests), rows)

    def _vectors(self, requests: EncodedRequests) -> NDArray[np.float32]:
        if len(requests) <= _REQUESTS_AT_ONCE:
            vectors = self._tower(requests.arrays, (len(requests), self._size))
        else:
            found = []
            for start in range(0, len(requests), _REQUESTS_AT_ONCE):
                stop = min(start + _REQUESTS_AT_ONCE, len(requests))
                part = {name: array[start:stop] for name, array in requests.arrays.items()}
                found.append(self._tower(part, (stop - start, self._size)))
            vectors = np.concatenate(found)
        if not np.abs(vectors).max() < _LARGE:  # also true for NaN
            with np.errstate(over="ignore"):
                lengths = (vectors * vectors).sum(axis=1)
            if not np.isfinite(lengths).all():  # a search would find nothing
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
    """Index of item vectors for the largest dot products: exact, or in lists of which some are searched.

    An index in lists has one more dimension, which makes all vectors equally long, so that the nearest ones are those
    with the largest dot products (Bachrach et al. 2014).
    """

    def __init__(self, file: MemoryFile, about: Mapping[str, Any], threads: int) -> None:
        check_index(file, about["size"])
        self._memory = np.frombuffer(file.content, np.uint8)  # the index refers to it, but does not keep it
        try:
            reader = faiss.ZeroCopyIOReader(  # type: ignore[attr-defined]  # missing in faiss's types
                faiss.swig_ptr(self._memory), len(self._memory)
            )
            self._index = faiss.read_index(reader)
        except RuntimeError as error:
            raise RankfallError(
                f"path: {file.path} is not an index that faiss {faiss.__version__} can read ({error})"
            ) from None
        self._size: int = about["size"]
        self._lists: int = about.get("lists", 1)
        self._probed: int = about.get("nprobe", 1)
        if not 1 <= self._probed <= self._lists:  # the search for more items would not end
            raise RankfallError(f"path: {file.path} cannot be searched in {self._probed} of {self._lists} lists")
        self._threads = threads
        self._usual = self._parameters(self._probed, None)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return int(self._index.ntotal)

    def vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Return the vectors of items (..., size)."""
        with self._own_threads():
            found = self._index.reconstruct_batch(rows.ravel())
        vectors: NDArray[np.float32] = found[:, : self._size].reshape(*rows.shape, self._size)
        return vectors

    def search(self, queries: NDArray[np.float32], count: int, exclude: Sequence[Rows]) -> Rows:
        """Return the rows of the largest dot products with each query (n, count), without excluded ones."""
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
            with at_places([place]):
                found = self._search_further(queries[place], most, int(wanted[place]), exclude[place])
            rows[place, : len(found)] = found
        return rows

    def _search_further(self, query: NDArray[np.float32], count: int, wanted: int, exclude: Rows) -> Rows:
        """Search more lists for one query: as many more as excluded items may fill, and then until enough are found."""
        probed = min(self._lists, -(-self._probed * (count + len(exclude)) // count))
        # Both selectors are kept until the search is over: some releases of faiss do not hold a reference to them.
        excluded = faiss.IDSelectorBatch(exclude) if len(exclude) else None
        selector = faiss.IDSelectorNot(excluded) if excluded is not None else None
        while True:
            (found,) = self._find(query[None], count, self._parameters(probed, selector))
            if (found != NO_ITEM).sum() >= wanted:
                best: Rows = found
                return best
            if probed == self._lists:
                raise NotFiniteError(0)  # the distances of the others are NaN
            probed = min(2 * probed, self._lists)

    def _find(self, queries: NDArray[np.float32], count: int, parameters: Any) -> Rows:
        with self._own_threads():
            _, found = self._index.search(queries, count, params=parameters)
        rows: Rows = found
        return rows

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        """Set the number of threads of faiss, which is a setting of the calling thread."""
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(self._threads)
        try:
            yield
        finally:
            faiss.omp_set_num_threads(before)

    def _parameters(self, probed: int, selector: Any) -> Any:
        if self._lists > 1:
            return probing(probed, selector)
        return faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]  # missing in faiss's types


def probing(count: int, selector: Any = None) -> Any:
    """Return the parameters to search `count` lists; the selector must live until the search is over."""
    return faiss.SearchParametersIVF(nprobe=count, sel=selector)  # type: ignore[call-arg]


# --- scorers ------------------------------------------------------------------------------------------------------


class ScorerStage:
    """A graph that scores pairs of a request and a candidate."""

    def __init__(self, about: Mapping[str, Any], files: Mapping[str, MemoryFile], items: Items, threads: int) -> None:
        self.name: str = about["name"]
        self.quota: int = about["quota"]
        self._width: int = about["width"]  # elements of the largest layer per candidate,
        self._event_width: int = about["event_width"]  # and per event of a candidate
        self._graph = _StageGraph(about, files, SCORER_GRAPH, threads, items.features)
        self._items = items
        self._of_items = [name for name in self._graph.inputs if name.startswith("item.")]
        self._of_requests = [name for name in self._graph.inputs if not name.startswith("item.")]

    def score(self, requests: EncodedRequests, rows: Rows) -> Scores:
        """Return the scores of items, computed in blocks of requests and candidates."""
        scores = np.empty(rows.shape, np.float32)
        step = max(1, _GATHERED_AT_ONCE // rows.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            self._score(requests, part, rows[part], scores[part])
        return _finite(scores, rows)

    def _score(self, requests: EncodedRequests, part: slice, rows: Rows, scores: Scores) -> None:
        """Write the scores of items for some of the requests to `scores`."""
        of_requests = {name: requests.arrays[name][part] for name in self._of_requests}
        here = np.maximum(rows, 0)
        of_items = {name: self._items.gather(name, here) for name in self._of_items}
        width, count = self._block(requests, rows.shape[1])
        for start in range(0, len(rows), count):
            some = slice(start, start + count)
            inputs = {name: array[some] for name, array in of_requests.items()}
            for first in range(0, rows.shape[1], width):
                place = some, slice(first, first + width)
                of_block = {name: array[place] for name, array in of_items.items()}
                scores[place] = self._graph(inputs | of_block, scores[place].shape)

    def search(self, requests: EncodedRequests, *, scored: bool) -> tuple[Rows, Scores | None]:
        """Score all items and return the best."""
        width, count = self._block(requests, len(self._items))
        found = []
        for start in range(0, len(requests), count):
            places = range(start, min(start + count, len(requests)))
            with at_places(places):
                found.append(self._search(requests.take(places), width))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found])

    def _search(self, requests: EncodedRequests, width: int) -> tuple[Rows, Scores]:
        """Search for as many requests as fit into a block with `width` items."""
        count = len(self._items)
        best = np.full((len(requests), self.quota), NO_ITEM, np.int64)
        best_scores = np.full(best.shape, -np.inf, np.float32)
        for first in range(0, count, width):
            some = np.arange(first, min(first + width, count))
            rows = np.broadcast_to(some, (len(requests), len(some)))
            scores = self.score(requests, rows)
            for place, excluded in enumerate(requests.exclude):
                here = excluded[(excluded >= first) & (excluded < first + width)] - first
                scores[place, here] = -np.inf
            joined, joined_scores = np.hstack([best, rows]), np.hstack([best_scores, scores])
            order = np.argsort(-joined_scores, axis=1, kind="stable")[:, : self.quota]
            best, best_scores = by_row(joined, order), by_row(joined_scores, order)
        best = np.where(best_scores == -np.inf, NO_ITEM, best)
        order = np.argsort(best.view(np.uint64), axis=1)
        return by_row(best, order), by_row(best_scores, order)

    def _block(self, requests: EncodedRequests, candidates: int) -> tuple[int, int]:
        """Return the numbers of candidates and of requests that fit into a block."""
        length = max(
            (array.shape[1] for name, array in requests.arrays.items() if name.startswith("sequence.")), default=0
        )
        numbers = max(self._width, self._event_width * length)
        width = max(1, min(candidates, BLOCK // numbers))
        return width, max(1, BLOCK // (numbers * width))


def _finite(scores: Scores, rows: Rows) -> Scores:
    """Return the scores with -inf for -1; raise NotFiniteError if that of an item is not finite."""
    good = np.isfinite(scores)
    no_item = rows == NO_ITEM
    if not good.all() and (bad := ~(good | no_item)).any():
        raise NotFiniteError(int(bad.any(axis=1).argmax()))
    return np.where(no_item, np.float32(-np.inf), scores) if no_item.any() else scores
