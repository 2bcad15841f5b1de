"""The bare model calls of a cascade: onnxruntime, faiss, and NumPy to gather item features.

Inputs are encoded beforehand, and nothing is checked or sorted. Everything a service needs beyond that is overhead.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import onnxruntime as ort

from rankfall.serving.bundle_files import (
    INDEX,
    ITEMS,
    SCORER_GRAPH,
    USER_GRAPH,
    numbers,
    one_array,
    read_file,
    read_table,
)
from rankfall.serving.onnx_stages import BLOCK, probing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.serving import Bundle

    Arrays = Mapping[str, NDArray[Any]]
    Rows = NDArray[np.int64]
    Scores = NDArray[np.float32]

PARTS = ("tower", "search", "gather", "scorers")


class BareCalls:
    """The calls of a first stage with an index and of the scorers after it, on one thread."""

    def __init__(self, bundle: Bundle) -> None:
        first, *others = bundle.manifest["stages"]
        if first["kind"] != "index":
            raise ValueError(f"bundle: the first stage of {bundle.path} has no index, expected a stage with an index")
        folder = bundle.path / "stages"
        self._quotas: list[int] = [stage["quota"] for stage in bundle.manifest["stages"]]
        self._tower = _Graph(folder / first["name"] / USER_GRAPH)
        self._index = faiss.read_index(str(folder / first["name"] / INDEX), faiss.IO_FLAG_MMAP_IFC)
        about = first["index"]
        self._parameters = probing(about["nprobe"]) if about.get("lists", 1) > 1 else faiss.SearchParameters()
        self._scorers = [_Scorer(stage, folder / stage["name"] / SCORER_GRAPH) for stage in others]
        table = read_table(read_file(bundle.path / ITEMS))
        self._items = {name: numbers(one_array(table, name)) for name in table.column_names if name.startswith("item.")}
        self.seconds = dict.fromkeys(PARTS, 0.0)  # of all calls

    def __call__(self, arrays: Arrays) -> tuple[Rows, Scores]:
        """Return the rows of the items that reach the last stage and their scores there, unsorted."""
        with self._timing("tower"):
            vectors = self._tower(arrays)
        with self._timing("search"):
            scores, rows = self._search(vectors)
        for place, scorer in enumerate(self._scorers):
            if place:
                kept = np.argpartition(-scores, self._quotas[place] - 1, axis=1)[:, : self._quotas[place]]
                rows = np.take_along_axis(rows, kept, axis=1)
            scores = self._score(scorer, arrays, rows)
        return rows, scores

    def score_all(self, arrays: Arrays, items: int) -> Scores:
        """Return the scores of the last stage for all items and one request."""
        if not self._scorers:
            raise ValueError("bundle: found no stage that scores candidates, expected one")
        return self._score(self._scorers[-1], arrays, np.arange(items)[None])

    @property
    def has_ranker(self) -> bool:
        """Whether the cascade has a stage that scores candidates."""
        return bool(self._scorers)

    def _search(self, vectors: NDArray[np.float32]) -> tuple[Scores, Rows]:
        if self._index.d > vectors.shape[1]:  # the index pads all items to equal length by one dimension
            vectors = np.hstack([vectors, np.zeros((len(vectors), 1), np.float32)])
        faiss.omp_set_num_threads(1)
        count = min(self._quotas[0], self._index.ntotal)
        found: tuple[Scores, Rows] = self._index.search(vectors, count, params=self._parameters)
        return found

    def _score(self, scorer: _Scorer, arrays: Arrays, rows: Rows) -> Scores:
        with self._timing("gather"):
            features = {name: self._items[name].take(rows, axis=0) for name in scorer.of_items}
        scores = np.empty(rows.shape, np.float32)
        requests, width = scorer.block_size(arrays, rows.shape[1])
        with self._timing("scorers"):
            for start in range(0, len(rows), requests):
                some = slice(start, start + requests)
                inputs = {name: arrays[name][some] for name in scorer.of_requests}
                for first in range(0, rows.shape[1], width):
                    here = some, slice(first, first + width)
                    scores[here] = scorer.graph(inputs | {name: of[here] for name, of in features.items()})
        return scores

    @contextmanager
    def _timing(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - begin


class _Graph:
    def __init__(self, path: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [one.name for one in self._session.get_inputs()]

    def __call__(self, arrays: Arrays) -> NDArray[np.float32]:
        (found,) = self._session.run(None, {name: arrays[name] for name in self.inputs})
        output: NDArray[np.float32] = found
        return output


class _Scorer:
    def __init__(self, about: Mapping[str, Any], path: Path) -> None:
        self.graph = _Graph(path)
        self.of_items = [name for name in self.graph.inputs if name.startswith("item.")]
        self.of_requests = [name for name in self.graph.inputs if not name.startswith("item.")]
        self._widths = about["width"], about["event_width"]  # floats per candidate, and per event and candidate

    def block_size(self, arrays: Arrays, candidates: int) -> tuple[int, int]:
        """Return the requests per call and the candidates per request, as in bundles; larger calls are not faster."""
        length = max((of.shape[1] for name, of in arrays.items() if name.startswith("sequence.")), default=0)
        numbers_of_one = max(self._widths[0], self._widths[1] * length)
        width = max(1, min(candidates, BLOCK // numbers_of_one))
        return max(1, BLOCK // (numbers_of_one * width)), width
