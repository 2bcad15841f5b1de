"""Write a bundle and compare it with its PyTorch models before it gets its name."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import onnx
import onnxruntime
import onnxscript
import pyarrow as pa
import torch

import rankfall
from rankfall._errors import RankfallError
from rankfall._lists import rank_order
from rankfall.encoding import Lookup
from rankfall.models import TwoTower
from rankfall.models.build import is_own
from rankfall.serving.bundle import TOLERANCE, Bundle
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
from rankfall.serving.export.item_table import known_reactions, raw_requests
from rankfall.serving.export.measure_bundle import measure_bundle
from rankfall.serving.export.onnx_graphs import (
    EXACT_BELOW,
    as_batch,
    described,
    exact_search,
    has_index,
    inputs_of,
    user_vectors,
    widths_of,
    write_graph,
    write_index,
)
from rankfall.serving.request_encoder import NO_ITEM, padded
from rankfall.storage.disk import allocate, delete, make_directory
from rankfall.storage.files import fresh_directory, write_file
from rankfall.storage.manifests import MANIFEST, SEAL, about_files, sealed, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.cascade import Stage
    from rankfall.serving.export.item_table import ItemTable
    from rankfall.serving.export.measure_bundle import RequestSample, RunFigure
    from rankfall.serving.export.onnx_graphs import Rules
    from rankfall.serving.request_encoder import EncodedRequests

    Rows = NDArray[np.int64]
    OnStep = Callable[[str, int, int | None], None]  # step, finished units, total
    Vectors = NDArray[np.float32]

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


class DifferenceError(RankfallError):
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
        on_requests: Receives the number of requests that were compared so far.

    Raises:
        DifferenceError: Scores or kept items differ by more than the tolerance.
    """
    agreement = Agreement()
    for start in range(0, len(requests), _AT_ONCE):
        part = requests.take(range(start, min(start + _AT_ONCE, len(requests))))
        _compare_scores(bundle, stages, items, part, agreement)
        same = _compare_stages(stages, items, part, [padded(part.candidates), *_kept(bundle, part)])
        agreement.same_with_candidates += int(same.sum())
        first = part.take(range(min(len(part), max(0, open_requests - start))))
        if len(first):
            _compare_open(bundle, stages, items, first.without_candidates(), vectors, agreement)
        on_requests(start + len(part))
    if not agreement.scores:
        raise DifferenceError("items: none of those of the log's impressions is among them, so nothing can be compared")
    return asdict(agreement)


@torch.no_grad()
def _score(stage: Stage, items: ItemTable, requests: EncodedRequests, rows: Rows) -> NDArray[np.float32]:
    """Return PyTorch's scores of items, any number for -1."""
    arrays = requests.arrays | {name: values[np.maximum(rows, 0)] for name, values in items.features.items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    scores: NDArray[np.float32] = stage.model(as_batch(tensors, mask=is_own(stage.model))).numpy()
    return scores


def _kept(bundle: Bundle, requests: EncodedRequests) -> list[Rows]:
    """Return the items that each stage of a bundle keeps."""
    traces = [ranking.stages or [] for ranking in bundle.run(requests, explain=True).rankings]
    return [padded([bundle.items.rows(one.ids[: one.kept]) for one in of]) for of in zip(*traces, strict=True)]


def _compare_scores(
    bundle: Bundle, stages: Sequence[Stage], items: ItemTable, requests: EncodedRequests, agreement: Agreement
) -> None:
    rows = padded(requests.candidates)
    real = rows != NO_ITEM
    for stage, served in zip(stages, bundle.stages, strict=True):
        expected, found = _score(stage, items, requests, rows)[real], served.score(requests, rows)[real]
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


def _compare_open(
    bundle: Bundle,
    stages: Sequence[Stage],
    items: ItemTable,
    requests: EncodedRequests,
    vectors: NDArray[np.float32] | None,
    agreement: Agreement,
) -> None:
    """Check what stages keep of all items, of which the index may miss some of the best."""
    kept, first = _kept(bundle, requests), stages[0]
    quota = min(first.quota, len(items))
    if vectors is not None:
        assert isinstance(first.model, TwoTower)  # no other model has vectors
        best = exact_search(vectors, user_vectors(first.model, requests.arrays), quota)
    else:
        blocks = np.array_split(np.arange(len(items)), range(_BLOCK, len(items), _BLOCK))
        found = [_score(first, items, requests, np.broadcast_to(of, (len(requests), len(of)))) for of in blocks]
        scores = torch.from_numpy(np.hstack(found))
        best = rank_order(scores, torch.ones_like(scores, dtype=torch.bool))[:, :quota].numpy()
    if bundle.manifest["stages"][0].get("index", {}).get("kind", "exact") == "exact":
        _compare_search(first, items, requests, best, kept[0])
    hits = np.array([np.isin(wanted, found).mean() for wanted, found in zip(best, kept[0], strict=True)])
    same = (hits == 1) & _compare_stages(stages[1:], items, requests, kept)
    share = agreement.found_by_index * agreement.open_requests + hits.sum()
    agreement.open_requests += len(requests)
    agreement.found_by_index = float(share / agreement.open_requests)
    agreement.same_without += int(same.sum())


def _compare_search(stage: Stage, items: ItemTable, requests: EncodedRequests, best: Rows, kept: Rows) -> None:
    """Check that an exact search finds the best items except for ties."""
    wanted, found = _score(stage, items, requests, best), _score(stage, items, requests, kept)
    threshold = wanted.min(axis=1, keepdims=True)
    missed = ~np.array([np.isin(rows, of) for rows, of in zip(best, kept, strict=True)])
    tolerance = _tolerance(threshold)
    is_wrong = (missed & (wanted > threshold + tolerance)).any()
    is_wrong |= ((kept != NO_ITEM) & (found < threshold - tolerance)).any()
    if is_wrong or (kept != NO_ITEM).sum() != best.size:
        raise DifferenceError(f"{stage.name}: the search does not find the items with the best scores")


def _compare_stages(
    stages: Sequence[Stage], items: ItemTable, requests: EncodedRequests, lists: Sequence[Rows]
) -> NDArray[np.bool_]:
    """Return for which requests all stages kept the items with the best scores; a difference must be a tie.

    Args:
        stages: The stages.
        items: The items.
        requests: The requests.
        lists: The items that the first stage receives, and those that each stage keeps.
    """
    same = np.ones(len(requests), np.bool_)
    for stage, (entered, kept) in zip(stages, pairwise(lists), strict=True):
        scores, real = _score(stage, items, requests, entered), entered != NO_ITEM
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
                f"{stage.name}: the item in row {entered[request, place]} scores {scores[request, place]:.6g} where "
                f"the last kept item scores {threshold[request, 0]:.6g}, but the bundle "
                f"{'keeps' if is_kept[request, place] else 'drops'} it"
            )
        same &= (expected == is_kept).all(axis=1)
    return same


def _tolerance(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    return (TOLERANCE * np.maximum(1, np.abs(scores))).astype(np.float32)


CHECKED = 256  # requests whose answers are compared with PyTorch's
QUERIES = 1024  # requests on which the recall of an index is measured
_OPEN = 64  # requests that are also answered for all items,
_OPEN_SCORED = 200_000  # which are at most this number of items in all if each has to be scored
_VECTOR_BLOCK = 2**15  # items whose vectors are computed at once
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
    exact_below: int = EXACT_BELOW,
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
        manifest = writer.write(recall, exact_below)
        writer.finish(manifest, examples)
    return manifest


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
        self._scratch = directory / "vectors.scratch"

    def write(self, recall: float, exact_below: int) -> dict[str, Any]:
        """Write the stages, items and vocabularies; return the manifest without the checks."""
        source = self._source
        stages = [self._stage(stage, place, recall, exact_below) for place, stage in enumerate(source.stages)]
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
        source, requests = self._source, self._requests(CHECKED)
        most = _OPEN if self._vectors is not None else max(1, _OPEN_SCORED // len(source.items))
        manifest["checks"] = check(
            bundle,
            source.stages,
            source.items,
            requests,
            vectors=self._vectors,
            open_requests=min(_OPEN, len(requests), most),
            on_requests=lambda done: self._on_step("comparing with PyTorch", done, len(requests)),
        )
        raw = raw_requests(source.sample, source.rules, source.vocabularies, max(CHECKED, examples))
        self._check_requests(bundle, raw)
        measured = measure_bundle(bundle, source.sample, source.run, partial(self._on_step, "measuring recall"))
        manifest["measured"] = None if measured is None else measured.to_json()
        kept = raw[:examples]
        known = known_reactions(source.sample.reactions, len(kept))
        answered = [
            {"request": request, "ids": ranking.ids, "scores": ranking.scores, **reactions}
            for request, ranking, reactions in zip(kept, bundle.rank(kept), known, strict=True)
        ]
        write_file(self._directory / EXAMPLES, json.dumps(answered, indent=1) + "\n")
        self._put(manifest)
        Bundle.load(self._directory).check()

    def _put(self, manifest: dict[str, Any]) -> None:
        delete(self._directory / MANIFEST, missing_ok=True)
        delete(self._scratch, missing_ok=True)  # the vectors stay mapped
        manifest["files"] = about_files(self._directory)
        manifest[SEAL] = sealed(manifest)[SEAL]
        write_manifest(self._directory / MANIFEST, manifest)

    # --- stages ---

    def _stage(self, stage: Stage, place: int, recall: float, exact_below: int) -> dict[str, Any]:
        model = stage.model
        directory = self._directory / "stages" / stage.name
        make_directory(directory)
        config = described(stage).config
        served = {**config, "kind": portable_name(config["kind"])}  # without directories of this machine
        about = {"name": stage.name, "quota": stage.quota, "model": served}
        self._on_step(f"{stage.name}: graph", 0, None)
        if has_index(stage, place):
            assert isinstance(model, TwoTower)  # has_index
            write_graph(stage, directory / USER_GRAPH, of_users=True)
            vectors = self._vectors = self._item_vectors(stage, model)
            index = write_index(
                vectors,
                user_vectors(model, self._requests(QUERIES).arrays),
                directory,
                quota=stage.quota,
                recall=recall,
                exact_below=exact_below,
                on_items=lambda done: self._on_step(f"{stage.name}: index", done, len(vectors)),
            )
            return about | {"kind": "index", "index": index}
        write_graph(stage, directory / SCORER_GRAPH)
        width, event_width = widths_of(stage)
        return about | {"kind": "scorer", "width": width, "event_width": event_width}

    def _item_vectors(self, stage: Stage, model: TwoTower) -> Vectors:
        """Return the vectors of all items in a file that is mapped into memory."""
        count = len(self._source.items)

        @torch.no_grad()
        def computed(some: slice) -> Vectors:
            features = self._source.items.features.items()
            found: Vectors = model.item_vectors(
                {name.removeprefix("item."): torch.from_numpy(of[some].copy()) for name, of in features}
            ).numpy()
            return found

        size = computed(slice(1)).shape[-1]
        allocate(self._scratch, 4 * count * size)
        vectors = np.memmap(self._scratch, np.float32, "r+", shape=(count, size))
        for start in range(0, count, _VECTOR_BLOCK):
            vectors[start : start + _VECTOR_BLOCK] = computed(slice(start, start + _VECTOR_BLOCK))
            self._on_step(f"{stage.name}: item vectors", min(count, start + _VECTOR_BLOCK), count)
        with np.errstate(over="ignore"):  # dot products of vectors of finite length are finite
            lengths = [
                (part * part).sum(axis=1)
                for part in np.array_split(vectors, range(_VECTOR_BLOCK, count, _VECTOR_BLOCK))
            ]
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
