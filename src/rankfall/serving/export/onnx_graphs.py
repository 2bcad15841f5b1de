"""Export the models of a cascade as ONNX graphs, for any number of requests, candidates and events."""

from __future__ import annotations

import copy
import logging
import re
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import onnx
import torch
from torch import Tensor, nn

from rankfall._errors import RankfallError
from rankfall.data.impressions.spec import column_of
from rankfall.encoding import FIRST_KNOWN, Numbers
from rankfall.models import DIN, Scorer, TwoTower
from rankfall.models.build import describe_model, has_vectors, is_own
from rankfall.models.layers import AttentionPooling
from rankfall.registry.references import short_name
from rankfall.serving.bundle_files import DATA, INDEX
from rankfall.serving.onnx_stages import probing
from rankfall.serving.request_encoder import MASK
from rankfall.storage.disk import make_directory, open_new

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall.cascade import Stage
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.spec import Feature, Features
    from rankfall.encoding import Rule
    from rankfall.models.build import ModelDescription
    from rankfall.models.embedding import ImpressionFeatures

    Vectors = NDArray[np.float32]

_OPERATION = re.compile(r"op='([\w.]+)'|target=torch\.ops\.([\w.]+?)(?:\.default)?\]")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_ADVICE = (
    "ONNX has no such operation. Compute it from others (see the operators of ONNX), or leave it out of forward when "
    "the model is exported: torch.compiler.is_exporting() is then true"
)
_DATA_DEPENDENT = (
    "the path through forward depends on the values of tensors, and a graph has one path; choose by torch.where"
)


def explain_export_error(error: BaseException, model: ModelDescription, trace: Callable[[], Any]) -> str:
    """Return one sentence about why a model cannot be exported.

    Args:
        error: The exception of ``torch.onnx.export``.
        model: The model.
        trace: Returns the traced program of the model, whose nodes know the lines that they come from.
    """
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None:
        chain.append(one)
        one = one.__cause__ or one.__context__
    name, file = short_name(model.config["kind"]), (model.source or {}).get("file", "")
    found = next((found for one in chain if (found := _OPERATION.search(str(one)))), None)
    if found is not None and any("No ONNX function" in str(one) for one in chain):
        operation = found[1] or found[2]
        return f"{name} cannot be exported: it uses {operation}{_at(_line_of(operation, trace, file))}. {_ADVICE}"
    root = next((one for one in reversed(chain) if type(one).__module__.startswith("torch.fx")), chain[-1])
    at = _at(_last_line(str(root), file))
    if type(root).__name__ == "GuardOnDataDependentSymNode":
        return f"{name} cannot be exported{at}: {_DATA_DEPENDENT}"
    first = (str(root).strip() or type(root).__name__).splitlines()[0]
    return f"{name} cannot be exported{at}: {type(root).__name__}: {first}"


def _line_of(operation: str, trace: Callable[[], Any], file: str) -> str | None:
    """Return the line of a file from which an operation of a model comes, if torch knows it."""
    try:
        nodes = trace().graph.nodes
    except Exception:  # the error itself is reported without a line
        return None
    word = operation.rpartition(".")[2].lstrip("_")
    for node in nodes:
        if word in str(node.target) and (line := _last_line(str(node.meta.get("stack_trace", "")), file)):
            return line
    return None


def _last_line(text: str, file: str) -> str | None:
    """Return the last line of a file in a stack trace."""
    lines = [f"{path}, line {number}" for path, number in _LINE.findall(text) if path == file]
    return lines[-1] if lines else None


def _at(line: str | None) -> str:
    return f" ({line})" if line else ""


_LARGEST_FILE = 2**30  # protocol buffers end at 2 GiB; weights beyond this go into a file of their own
_BATCH, _CANDIDATES = 3, 5  # of the example; none may be 1, which would be taken as fixed,
_LENGTH = 6  # and that of the first sequence; all sizes differ, so that none is taken for another


def described(stage: Stage) -> ModelDescription:
    """Return the description of the model of a stage; raise ValueError if there is none, so it cannot be exported."""
    found = describe_model(stage.model)
    if found is None:
        raise RankfallError(
            f"stages: the model of {stage.name} was not built from a configuration, so that its features are unknown; "
            "models of rankfall and those that a configuration names can be exported"
        )
    return found


def has_index(stage: Stage, place: int) -> bool:
    """Return whether a stage is served by an index of vectors: a two-tower model in the first place."""
    return place == 0 and has_vectors(stage.model)


def inputs_of(stage: Stage, *, of_users: bool = False) -> list[str]:
    """Return the inputs that a model uses, such as ``user.age``, ``sequence.history.mask`` and ``item.author``."""
    seen: list[str] = []
    batch = as_batch(_example(described(stage).features), seen, mask=is_own(stage.model))
    with torch.no_grad():
        _call(stage.model, batch, of_users)
    return list(dict.fromkeys(seen))


def write_graph(stage: Stage, path: Path, *, of_users: bool = False) -> None:
    """Write the graph of the model of a stage, with the same bytes for the same weights.

    Args:
        stage: The stage.
        path: The file to write.
        of_users: Whether the graph returns the vectors of requests, not scores.

    Raises:
        ValueError: If torch cannot export the model.
    """
    names = inputs_of(stage, of_users=of_users)
    example = _example(described(stage).features)
    model, pools = stage.model, [one for one in stage.model.modules() if isinstance(one, AttentionPooling)]
    if type(model) is DIN and all(isinstance(pool.activation, nn.ReLU) for pool in pools):
        model = copy.copy(model)  # which shares all weights
        attention = nn.ModuleList(_ServedAttention(pool) for pool in pools)
        model._modules = {**stage.model._modules, "attention": attention}
    served = _Served(model, names, of_users).eval()
    inputs = tuple(example[name] for name in names)
    try:
        with _quiet():
            program = torch.onnx.export(
                served,
                inputs,
                dynamo=True,
                input_names=names,
                output_names=["vectors" if of_users else "scores"],
                dynamic_shapes=(_dimensions(names),),
                verbose=False,
            )
    except Exception as error:
        if not is_own(stage.model):
            raise

        def trace() -> Any:
            with _quiet():
                return torch.export.export(served, inputs, dynamic_shapes=(_dimensions(names),))

        raise RankfallError(f"{stage.name}: {explain_export_error(error, described(stage), trace)}") from error
    assert program is not None  # of the exporter that was asked for
    proto = program.model_proto
    parts: list[Any] = [proto, proto.graph, *proto.graph.node, *proto.graph.input, *proto.graph.output]
    for part in (*parts, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")  # the lines of code that nodes come from, which name directories
        part.ClearField("doc_string")
    make_directory(path.parent)
    if proto.ByteSize() < _LARGEST_FILE:
        with open_new(path) as file:
            onnx.save(proto, file)
    else:
        onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}{DATA}")
    onnx.checker.check_model(path)


def widths_of(stage: Stage) -> tuple[int, int]:
    """Return the width of the largest layer per candidate, and per pair of a candidate and an event."""
    model = stage.model
    layers = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
    if isinstance(model, Scorer) and not is_own(model):
        of_pairs = [pool.hidden.out_features for pool in model.modules() if isinstance(pool, AttentionPooling)]
        return max([model.embedding.item_width, *layers]), max(of_pairs, default=0)
    # what a model of a user computes is unknown: all its embeddings side by side, and pairs if it reads events
    names = inputs_of(stage)
    dims = [table.embedding_dim for table in model.modules() if isinstance(table, nn.Embedding)]
    sizes = sum(one.size for one in described(stage).features.of("item") if one.embedding is None)
    width = max([len(names) * max(dims, default=1) + sizes, *layers])
    return width, width if any(name.startswith("sequence.") for name in names) else 0


# --- the traced module --------------------------------------------------------------------------------------------


class _Served(nn.Module):
    """A model whose inputs are positional."""

    def __init__(self, model: nn.Module, names: Sequence[str], of_users: bool) -> None:
        super().__init__()
        self.model = model
        self._names = names
        self._of_users = of_users

    def forward(self, *values: Tensor) -> Tensor:
        batch = as_batch(dict(zip(self._names, values, strict=True)), mask=is_own(self.model))
        return _call(self.model, batch, self._of_users)


def _call(model: nn.Module, batch: ImpressionFeatures, of_users: bool) -> Tensor:
    if of_users:
        assert isinstance(model, TwoTower)  # nothing else has vectors of requests
        return model.user_vectors(batch)
    scores: Tensor = model(batch)
    return scores


def user_vectors(model: TwoTower, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """PyTorch's vectors of requests."""
    with torch.no_grad():
        vectors = model.user_vectors(as_batch({name: torch.from_numpy(array) for name, array in arrays.items()}))
    found: NDArray[np.float32] = vectors.numpy()
    return found


def as_batch(tensors: Mapping[str, Tensor], seen: list[str] | None = None, *, mask: bool = False) -> Any:
    """Return tensors by input name as a batch of a model, which adds the names of used inputs to `seen`.

    All candidates are real. Models of users may read the mask of the batch, so with `mask` it is there; the models of
    rankfall need none.
    """
    parts: dict[str, Any] = {part: _Named(f"{part}.", seen) for part in ("user", "context", "item")}
    sequences: dict[str, _Named] = {}
    masks = _Named("sequence.", seen, f".{MASK}")
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        sequence, _, feature = rest.partition(".")
        if part != "sequence":
            parts[part][rest] = tensor
        elif feature == MASK:
            masks[sequence] = tensor
        else:
            sequences.setdefault(sequence, _Named(f"sequence.{sequence}.", seen))[feature] = tensor
    first = next(iter(dict.values(parts["item"])), None)  # reads no input
    return SimpleNamespace(
        user=parts["user"],
        context=parts["context"],
        items=parts["item"],
        sequences=sequences,
        sequence_mask=masks,
        mask=torch.ones(first.shape[:2], dtype=torch.bool) if mask and first is not None else None,
    )


class _Named(dict[str, Tensor]):
    """Tensors by name; the names of used ones are recorded."""

    def __init__(self, before: str, seen: list[str] | None, after: str = "") -> None:
        super().__init__()
        self._before, self._seen, self._after = before, seen, after

    def __getitem__(self, name: str) -> Tensor:
        self._note([name])
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._note([name] if name in self else [])
        return super().get(name, default)

    def values(self) -> Any:
        self._note(self)
        return super().values()

    def items(self) -> Any:
        self._note(self)
        return super().items()

    def _note(self, names: Iterable[str]) -> None:
        if self._seen is not None:
            self._seen += [f"{self._before}{name}{self._after}" for name in names]


def _example(features: Features) -> dict[str, Tensor]:
    """Return example tensors of all features, filled with zeros."""
    tensors: dict[str, Tensor] = {}
    for feature in features.features:
        shape: tuple[int, ...] = (_BATCH, _CANDIDATES) if feature.group == "item" else (_BATCH,)
        shape += (feature.size,) if feature.embedding is None and feature.size > 1 else ()
        dtype = torch.float32 if feature.embedding is None else torch.int32
        tensors[f"{feature.group}.{feature.name}"] = torch.zeros(shape, dtype=dtype)
    for length, sequence in enumerate(features.sequences, start=_LENGTH):
        for name in sequence.features:
            tensors[f"sequence.{sequence.name}.{name}"] = torch.zeros((_BATCH, length), dtype=torch.int32)
        tensors[f"sequence.{sequence.name}.{MASK}"] = torch.ones((_BATCH, length), dtype=torch.bool)
    return tensors


def _dimensions(names: Sequence[str]) -> tuple[dict[int, Any], ...]:
    """Return the dynamic dimensions of each input; every sequence has its own length."""
    sequences = list(dict.fromkeys(name.split(".")[1] for name in names if name.startswith("sequence.")))
    found = []
    for name in names:
        group, rest, *_ = name.split(".")
        dimensions = ["batch"]
        if group == "item":
            dimensions.append("candidates")
        elif group == "sequence":
            dimensions.append(f"length_{sequences.index(rest)}")  # names of sequences may not be identifiers
        found.append({place: torch.export.Dim(dimension) for place, dimension in enumerate(dimensions)})
    return tuple(found)


class _ServedAttention(nn.Module):
    """The function of :class:`~rankfall.models.layers.AttentionPooling` in fewer passes over the pairs.

    relu(e + t) = max(e, -t) + t, and the softmax cancels t, which is the same for all events.
    """

    def __init__(self, pool: AttentionPooling) -> None:
        super().__init__()
        of_events, of_targets = pool.hidden.weight.detach().chunk(2, dim=1)
        self.of_events = nn.Parameter(of_events.T.contiguous())
        self.of_targets = nn.Parameter(-of_targets.T.contiguous())
        self.bias = nn.Parameter(pool.hidden.bias.detach())
        self.out = nn.Parameter(pool.out.weight.detach().T.contiguous())

    def forward(self, events: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.maximum(
            (events @ self.of_events + self.bias).unsqueeze(1), (targets @ self.of_targets).unsqueeze(2)
        )
        logits = (hidden @ self.out).squeeze(-1)
        mask = mask.unsqueeze(1)
        weights = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1) * mask
        return weights @ events


# --- files --------------------------------------------------------------------------------------------------------


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's messages about optional packages and axes with the same name, and its prints."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


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
        on_items: Receives the number of items that were added so far.

    Raises:
        ValueError: The index does not reach the recall.
    """
    count, size = vectors.shape
    quota = min(quota, count)
    if count < exact_below or recall >= 1:
        index = faiss.IndexFlatIP(size)
        for start, block in _blocks(vectors):
            index.add(block)
            on_items(start + len(block))
        about: dict[str, Any] = {"kind": "exact", "size": size, "recall": 1.0}
    else:
        index, lists = _lists(vectors, on_items)
        truth = exact_search(vectors, queries, quota)
        curve = _choose(index, queries, truth, lists, recall)
        probed = max(curve)
        about = {"kind": "lists", "size": size, "lists": lists, "nprobe": probed, "recall": curve[probed]}
        about |= {"recall_by_nprobe": {str(key): round(curve[key], 6) for key in sorted(curve)}}
        about |= {"queries": len(queries)}
    _save_index(index, directory / INDEX)
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
    for start, block in _blocks(vectors):
        index.add(_longer(block, longest))
        on_items(start + len(block))
    index.make_direct_map()
    return index, lists


def _longer(vectors: Vectors, longest: float) -> Vectors:
    rest = np.sqrt(np.maximum(longest - (vectors * vectors).sum(axis=1, dtype=np.float64), 0))
    return np.hstack([vectors, rest[:, None].astype(np.float32)])


def _save_index(index: Any, path: Path) -> None:
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
            raise RankfallError(
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


Rules = dict[str, Any]


def request_rules(encoding: Encoding, features: Features, inputs: Collection[str]) -> Rules:
    """Return the rules of all values that a request may hold.

    Args:
        encoding: The encoding of the log that the models were trained on.
        features: The features of the models.
        inputs: The inputs of the models, such as ``user.age``; requests may hold other features, which are ignored.
    """
    time = encoding.spec.time
    rules: Rules = {
        "time": None if time is None else {"unit": time.unit, "zone": time.zone},
        "user": {},
        "context": {},
        "sequences": {},
        "ignored": [],
    }
    for feature in features.features:
        if feature.group == "item":
            continue
        if f"{feature.group}.{feature.name}" in inputs:
            rules[feature.group][feature.name] = feature_rule(encoding, feature).to_json()
        else:
            rules["ignored"].append(f"{feature.group}.{feature.name}")
    for sequence in features.sequences:
        if not any(name.startswith(f"sequence.{sequence.name}.") for name in inputs):
            rules["ignored"].append(f"sequence.{sequence.name}")
            continue
        spec, of_items = encoding.spec, encoding.spec.features.item
        item = next((name for name in sequence.features if column_of(spec, name, of_items[name]) == spec.item), None)
        rules["sequences"][sequence.name] = {
            **({} if item is None else {"item": item}),
            "max_length": sequence.max_length,
            "features": {name: feature_rule(encoding, features.item(name)).to_json() for name in sequence.features},
            "ignored": [feature.name for feature in features.of("item") if feature.name not in sequence.features],
        }
    return rules


def feature_rule(encoding: Encoding, feature: Feature) -> Rule:
    """Return the rule that a log was prepared with, limited to the ids for which the model has rows."""
    rule = encoding.rule(feature.group, feature.name)
    return rule if isinstance(rule, Numbers) else replace(rule, rows=feature.rows)


def request_vocabularies(encoding: Encoding, rules: Rules) -> dict[str, pa.Array]:
    """Return the values of the vocabularies that the rules name, as far as the models have rows for them."""
    groups = [rules["user"], rules["context"], *(sequence["features"] for sequence in rules["sequences"].values())]
    lengths = {
        rule["vocabulary"]: rule["rows"] - FIRST_KNOWN
        for group in groups
        for rule in group.values()
        if "vocabulary" in rule
    }
    return {table: encoding.lookup(table).values.slice(0, length) for table, length in lengths.items()}
