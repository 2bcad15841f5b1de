"""Write a bundle and compare it with its PyTorch models before it gets its name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import onnx
import onnxruntime
import onnxscript
import pyarrow as pa
import torch

import rankfall
from rankfall._disk import allocate, delete, make_directory
from rankfall._files import fresh_directory, write_file
from rankfall._manifest import MANIFEST
from rankfall._seal import SEAL, about_files, sealed, write_manifest
from rankfall.encoding.lookup import Lookup
from rankfall.models import TwoTower
from rankfall.serving.bundle import Bundle
from rankfall.serving.bundle_files import (
    DISPLAY,
    EXAMPLES,
    FORMAT,
    ITEMS,
    SCORER_GRAPH,
    USER_GRAPH,
    VERSION,
    is_bundle,
    write_table,
)
from rankfall.serving.export.example_requests import known_reactions, raw_requests
from rankfall.serving.export.measure_bundle import measure_bundle
from rankfall.serving.export.onnx_graphs import (
    described,
    has_index,
    inputs_of,
    user_vectors,
    widths_of,
    write_graph,
)
from rankfall.serving.export.parity_check import DifferenceError, check
from rankfall.serving.export.vector_index import write_index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.cascade import Stage
    from rankfall.models.build import ModelDescription
    from rankfall.serving.encoded_requests import EncodedRequests
    from rankfall.serving.export.encoding_rules import Rules
    from rankfall.serving.export.item_table import ItemTable
    from rankfall.serving.export.logged_requests import RequestSample
    from rankfall.serving.export.measure_bundle import RunFigure

    OnStep = Callable[[str, int, int | None], None]  # step, finished units, total
    Vectors = NDArray[np.float32]

CHECKED = 256  # requests whose answers are compared with PyTorch's
QUERIES = 1024  # requests on which the recall of an index is measured
_OPEN = 64  # requests that are also answered for all items,
_OPEN_SCORED = 200_000  # which are at most this number of items in all if each has to be scored
_BLOCK = 2**15  # items whose vectors are computed at once
_PACKAGES = (rankfall, torch, onnx, onnxscript, onnxruntime, faiss, np, pa)


@dataclass(frozen=True, slots=True)
class BundleSource:
    """The parts of a bundle.

    Attributes:
        stages: The stages with PyTorch models.
        items: The items.
        rules: The encoding rules of requests.
        vocabularies: The vocabularies that the rules name.
        sample: Requests of the log.
        about: The origin of all this, for the manifest.
        run: What the evaluation of the run reported, to store beside what is measured.
        components: Kind, name and hash of each component of a user that the run names.
    """

    stages: Sequence[Stage]
    items: ItemTable
    rules: Rules
    vocabularies: Mapping[str, pa.Array]
    sample: RequestSample
    about: Mapping[str, Any] = field(default_factory=dict)
    run: RunFigure | None = None
    components: Sequence[Mapping[str, str]] = ()


def write_bundle(
    source: BundleSource,
    out: Path,
    *,
    recall: float = 0.99,
    examples: int = 16,
    force: bool = False,
    exact_below: int | None = None,
    on_step: OnStep = lambda step, done, total: None,
) -> dict[str, Any]:
    """Write a bundle, check it and return its manifest.

    Args:
        source: The parts of the bundle.
        out: The directory of the bundle.
        recall: Share of the best items that an index must find.
        examples: The number of requests that the bundle keeps.
        force: Replace a bundle at `out`.
        exact_below: The number of items below which an index is exact.
        on_step: Receives the current step, the number of its finished units and their total.
    """
    with fresh_directory(out, is_bundle, force=force) as directory:
        writer = _Writer(source, directory, on_step)
        manifest = writer.write(recall, {} if exact_below is None else {"exact_below": exact_below})
        writer.finish(manifest, examples)
    return manifest


def served_config(model: ModelDescription) -> dict[str, Any]:
    """Return the kind and options of a model without directories of this machine."""
    return {**model.config, "kind": portable_name(model.config["kind"])}


def portable_name(name: str) -> str:
    """Return the name of a component without the directory of its file.

    >>> portable_name("/home/ada/losses.py:focal"), portable_name("softmax_loss")
    ('losses.py:focal', 'softmax_loss')
    """
    return name.rpartition("/")[2]


class _Writer:
    def __init__(self, source: BundleSource, directory: Path, on_step: OnStep) -> None:
        self._source = source
        self._directory = directory
        self._on_step = on_step
        self._vectors: Vectors | None = None

    def write(self, recall: float, options: Mapping[str, int]) -> dict[str, Any]:
        """Write the stages, items and vocabularies; return the manifest without the checks."""
        source = self._source
        stages = [self._stage(stage, place, recall, options) for place, stage in enumerate(source.stages)]
        write_table(self._directory / ITEMS, self._items())
        for table, values in source.vocabularies.items():
            lookup = Lookup.of(values, name=f"the vocabulary {table}")
            columns = pa.table({"value": values, **lookup.columns()})
            write_table(self._directory / "vocabularies" / f"{table}.arrow", columns)
        return {
            "format": FORMAT,
            "version": VERSION,
            "made_by": {package.__name__: str(package.__version__) for package in _PACKAGES},
            "source": dict(source.about),
            "components": list(source.components),
            "items": {"count": len(source.items), "ids": "text" if source.items.lookup.is_text else "numbers"},
            "display": list(source.items.display),
            "stages": stages,
            "vocabularies": list(source.vocabularies),
            "request": source.rules,
        }

    def finish(self, manifest: dict[str, Any], examples: int) -> None:
        """Check the bundle, and add the checks and the examples."""
        write_file(self._directory / EXAMPLES, "[]\n")
        self._put(manifest)
        bundle = Bundle.load(self._directory)
        manifest["checks"] = self._check(bundle)
        source = self._source
        requests = raw_requests(source.sample, source.rules, source.vocabularies, max(CHECKED, examples))
        self._check_requests(bundle, requests)
        measured = measure_bundle(bundle, source.sample, source.run, self._on_measured)
        manifest["measured"] = None if measured is None else measured.to_json()
        kept = requests[:examples]
        known = known_reactions(source.sample.reactions, len(kept))
        answered = [
            {"request": request, "ids": ranking.ids, "scores": ranking.scores, **reactions}
            for request, ranking, reactions in zip(kept, bundle.rank(kept), known, strict=True)
        ]
        write_file(self._directory / EXAMPLES, json.dumps(answered, indent=1) + "\n")
        self._put(manifest)
        Bundle.load(self._directory).check()

    def _on_measured(self, done: int, total: int) -> None:
        self._on_step("measuring recall", done, total)

    def _put(self, manifest: dict[str, Any]) -> None:
        delete(self._directory / MANIFEST, missing_ok=True)
        if self._vectors is not None:
            delete(self._scratch, missing_ok=True)  # the vectors stay mapped
        manifest["files"] = about_files(self._directory)
        manifest[SEAL] = sealed(manifest)[SEAL]
        write_manifest(self._directory / MANIFEST, manifest)

    # --- stages ---

    def _stage(self, stage: Stage, place: int, recall: float, options: Mapping[str, int]) -> dict[str, Any]:
        model = stage.model
        directory = self._directory / "stages" / stage.name
        make_directory(directory)
        about = {"name": stage.name, "quota": stage.quota, "model": served_config(described(stage))}
        self._on_step(f"{stage.name}: graph", 0, None)
        if has_index(stage, place):
            assert isinstance(model, TwoTower)  # has_index
            write_graph(stage, directory / USER_GRAPH, of_users=True)
            return about | {"kind": "index", "index": self._index(stage, model, directory, recall, options)}
        write_graph(stage, directory / SCORER_GRAPH)
        width, event_width = widths_of(stage)
        return about | {"kind": "scorer", "width": width, "event_width": event_width}

    def _index(
        self, stage: Stage, model: TwoTower, directory: Path, recall: float, options: Mapping[str, int]
    ) -> dict[str, Any]:
        self._vectors = self._item_vectors(stage, model)
        queries = user_vectors(model, self._requests(QUERIES).arrays)
        count, done = len(self._vectors), 0

        def on_items(more: int) -> None:
            nonlocal done
            self._on_step(f"{stage.name}: index", done := done + more, count)

        return write_index(
            self._vectors, queries, directory, quota=stage.quota, recall=recall, on_items=on_items, **options
        )

    @property
    def _scratch(self) -> Path:
        return self._directory / "vectors.scratch"

    def _item_vectors(self, stage: Stage, model: TwoTower) -> Vectors:
        """Return the vectors of all items in a file that is mapped into memory."""
        features, count = self._source.items.features, len(self._source.items)
        one = {name.removeprefix("item."): torch.from_numpy(of[:1].copy()) for name, of in features.items()}
        with torch.no_grad():
            size = model.item_vectors(one).shape[-1]
        allocate(self._scratch, 4 * count * size)
        vectors = np.memmap(self._scratch, np.float32, "r+", shape=(count, size))
        for start in range(0, count, _BLOCK):
            block = slice(start, start + _BLOCK)
            values = {name.removeprefix("item."): torch.from_numpy(of[block].copy()) for name, of in features.items()}
            with torch.no_grad():
                vectors[block] = model.item_vectors(values).numpy()
            self._on_step(f"{stage.name}: item vectors", min(count, start + _BLOCK), count)
        with np.errstate(over="ignore"):  # dot products of vectors of finite length are finite
            lengths = [(part * part).sum(axis=1) for part in np.array_split(vectors, range(_BLOCK, count, _BLOCK))]
        if not all(np.isfinite(some).all() for some in lengths):
            raise DifferenceError(f"{stage.name}: vectors of items are not finite")
        return vectors

    def _items(self) -> pa.Table:
        """Return the table of items: features of stages without an index, features of events, and what is shown."""
        items, rules = self._source.items, self._source.rules
        scorers = [stage for place, stage in enumerate(self._source.stages) if not has_index(stage, place)]
        of_stages = [name for stage in scorers for name in inputs_of(stage) if name.startswith("item.")]
        of_events = [f"item.{name}" for sequence in rules["sequences"].values() for name in sequence["features"]]
        kept = dict.fromkeys([*of_stages, *(name for name in of_events if name in items.features)])
        display = [f"{DISPLAY}{name}" for name in items.display]
        return items.table().select(["id", *kept, *display, "hash", "place"])

    # --- checks ---

    def _requests(self, most: int) -> EncodedRequests:
        requests = self._source.sample.requests
        return requests.take(range(min(most, len(requests))))

    def _check(self, bundle: Bundle) -> dict[str, Any]:
        source = self._source
        requests = self._requests(CHECKED)
        few = max(1, _OPEN_SCORED // len(source.items))
        done = 0

        def on_requests(more: int) -> None:
            nonlocal done
            self._on_step("comparing with PyTorch", done := done + more, len(requests))

        return check(
            bundle,
            source.stages,
            source.items,
            requests,
            vectors=self._vectors,
            open_requests=min(_OPEN, len(requests), few if self._vectors is None else _OPEN),
            on_requests=on_requests,
        )

    def _check_requests(self, bundle: Bundle, requests: Sequence[Mapping[str, Any]]) -> None:
        """Check that the values of requests are encoded as in the log."""
        arrays = bundle.encode(list(requests)).arrays
        for name, expected in self._requests(len(requests)).arrays.items():
            found = arrays[name]
            if name.startswith("sequence."):
                expected = expected[:, : found.shape[1]]
            same = np.allclose if found.dtype == np.float32 else np.array_equal
            if found.dtype != expected.dtype or not same(found, expected):
                raise DifferenceError(f"{name}: requests are encoded differently than the log")
