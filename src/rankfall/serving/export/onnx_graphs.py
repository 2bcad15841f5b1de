"""Export the models of a cascade as ONNX graphs, for any number of requests, candidates and events."""

from __future__ import annotations

import copy
import logging
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import onnx
import torch
from torch import Tensor, nn

from rankfall._disk import make_directory, open_new
from rankfall.models import DIN, Scorer, TwoTower
from rankfall.models.attention import AttentionPooling
from rankfall.models.build import describe_model, has_vectors, is_own
from rankfall.serving.bundle_files import DATA
from rankfall.serving.export.export_errors import explain_export_error
from rankfall.serving.request_encoder import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from rankfall.cascade import Stage
    from rankfall.data.impressions.spec import Features
    from rankfall.models.build import ModelDescription
    from rankfall.models.inputs import ImpressionFeatures

_LARGEST_FILE = 2**30  # protocol buffers end at 2 GiB; weights beyond this go into a file of their own
_BATCH, _CANDIDATES = 3, 5  # of the example; none may be 1, which would be taken as fixed,
_LENGTH = 6  # and that of the first sequence; all sizes differ, so that none is taken for another


def described(stage: Stage) -> ModelDescription:
    """Return the description of the model of a stage; raise ValueError if there is none, so it cannot be exported."""
    found = describe_model(stage.model)
    if found is None:
        raise ValueError(
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
    served = _Served(_with_served_attention(stage.model), names, of_users).eval()
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

        raise ValueError(f"{stage.name}: {explain_export_error(error, described(stage), trace)}") from error
    assert program is not None  # of the exporter that was asked for
    _save(_without_origin(program.model_proto), path)


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
    return SimpleNamespace(
        user=parts["user"],
        context=parts["context"],
        items=parts["item"],
        sequences=sequences,
        sequence_mask=masks,
        mask=_all_real(parts["item"]) if mask else None,
    )


def _all_real(items: Mapping[str, Tensor]) -> Tensor | None:
    first = next(iter(dict.values(items)), None)  # type: ignore[arg-type]  # reads no input
    return None if first is None else torch.ones(first.shape[:2], dtype=torch.bool)


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
    """The function of :class:`~rankfall.models.attention.AttentionPooling` in fewer passes over the pairs.

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


def _with_served_attention(model: nn.Module) -> nn.Module:
    pools = [pool for pool in model.modules() if isinstance(pool, AttentionPooling)]
    if type(model) is not DIN or not all(isinstance(pool.activation, nn.ReLU) for pool in pools):
        return model
    served = copy.copy(model)  # which shares all weights
    served._modules = {**model._modules, "attention": nn.ModuleList(_ServedAttention(pool) for pool in pools)}
    return served


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


def _without_origin(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Without the lines of code that nodes come from, which name directories of this machine."""
    parts: list[Any] = [proto, proto.graph, *proto.graph.node, *proto.graph.input, *proto.graph.output]
    for part in (*parts, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return proto


def _save(proto: onnx.ModelProto, path: Path) -> None:
    make_directory(path.parent)
    if proto.ByteSize() < _LARGEST_FILE:
        with open_new(path) as file:
            onnx.save(proto, file)
    else:
        onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}{DATA}")
    onnx.checker.check_model(path)
