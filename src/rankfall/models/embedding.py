"""Embedding of the features of impressions: ids become rows of embedding tables, numbers are passed through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rankfall._checks import WIDEST, check_count, check_real
from rankfall._errors import RankfallError, did_you_mean
from rankfall.encoding import UNSEEN
from rankfall.option_types import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankfall.data.impressions.spec import Feature, Features, Sequence


class UnknownIdError(RankfallError):
    """An id is outside the rows of its embedding table."""


class FeatureEmbedding(nn.Module):
    """The embedding tables of a model, one per table name of `features`, and the lookup of features in them.

    Row 0 of a table is for missing values and padding; it is 0 and is not trained.

    Args:
        features: Features of the impression log that the model is built for.
        dim: Width of the embedding tables, at least 1.
        std: Standard deviation of the normal distribution of the initial embedding rows. With a large value, rows that
            training rarely meets keep their random values; with a small value, all rows need many steps.
        only: Names of the features that the model uses, such as ``user.age``, ``context.hour``, ``item.author`` and
            ``sequence.history``. Default: all features.
        tables: Embedding tables ``(rows, dim)`` by name that are used instead of new ones, such as those of another
            model.
        sparse: Whether the gradients of the tables hold only the rows of the batch. A number: only for tables with at
            least that many rows.
    """

    def __init__(
        self,
        features: Features,
        *,
        dim: int = 8,
        std: float = 0.2,
        only: Iterable[str] | None = None,
        tables: Mapping[str, nn.Embedding] | None = None,
        sparse: bool | int = False,
    ) -> None:
        super().__init__()
        check_count("dim", dim, most=WIDEST)
        if not 0 <= check_real("std", std) <= LARGEST:
            raise RankfallError(f"std must be from 0 to {LARGEST:g}, got {std}")
        if not isinstance(sparse, bool | int):
            raise TypeError(f"sparse must be True, False or a number of rows, got {type(sparse).__name__}")
        seen = _check_only(features, only)
        self.dim = dim
        self.request_features = [
            feature for group in ("context", "user") for feature in features.of(group) if address(feature) in seen
        ]
        self.item_features = [feature for feature in features.of("item") if address(feature) in seen]
        self.sequences = [sequence for sequence in features.sequences if _sequence_address(sequence) in seen]
        self._item_by_name = {feature.name: feature for feature in features.of("item")}
        used = [*self.request_features, *self.item_features]
        used += [self._item_by_name[name] for sequence in self.sequences for name in sequence.features]
        given = _check_tables(tables or {}, features, dim)
        for name, rows in {f.embedding: f.rows for f in used if f.embedding is not None}.items():
            self.add_module(_module(name), given.get(name) or _new_table(rows, dim, std, sparse))

    @property
    def tables(self) -> dict[str, nn.Embedding]:
        """The tables by name."""
        return {_table(name): module for name, module in self.named_children() if isinstance(module, nn.Embedding)}

    @property
    def request_width(self) -> int:
        """Total width of :meth:`request`."""
        return sum(map(self._width, self.request_features))

    @property
    def item_width(self) -> int:
        """Width of :meth:`items`."""
        return sum(map(self._width, self.item_features))

    def event_width(self, sequence: Sequence) -> int:
        """Return the width of an event of a sequence."""
        return len(sequence.features) * self.dim

    def request(self, batch: RequestFeatures) -> list[Tensor]:
        """Return the features of the context and of the user, ``(B, width)`` each."""
        groups = {"context": batch.context, "user": batch.user}
        return [self._embed(feature, groups[feature.group]) for feature in self.request_features]

    def items(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return all features of items ``(..., width)``, with the leading dimensions of the values."""
        return torch.cat([self._embed(feature, values) for feature in self.item_features], dim=-1)

    def by_name(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the features of items, and those that events hold, by name."""
        names = [feature.name for feature in self.item_features]
        names += [name for sequence in self.sequences for name in sequence.features]
        return {name: self._embed(self._item_by_name[name], values) for name in dict.fromkeys(names)}

    def events(self, batch: RequestFeatures, sequence: Sequence) -> Tensor:
        """Return the events of a sequence, ``(B, L, width)``."""
        values = batch.sequences[sequence.name]
        return torch.cat([self._embed(self._item_by_name[name], values) for name in sequence.features], dim=-1)

    def mean_events(self, batch: RequestFeatures) -> list[Tensor]:
        """Return the mean event of each sequence, ``(B, width)``; 0 for a sequence without events."""
        means = []
        for sequence in self.sequences:
            events = self.events(batch, sequence)
            real = batch.sequence_mask[sequence.name].to(events.dtype)
            share = real / real.sum(-1, keepdim=True).clamp_min(1)
            means.append((share.unsqueeze(-2) @ events).squeeze(-2))
        return means

    def grow(self, features: Features) -> None:
        """Enlarge the tables in place, for values that were added to the vocabularies of the log.

        New rows start as row 1, that of values never seen. The parameters stay the same objects.

        Args:
            features: The same features, with at least as many rows.
        """
        rows = features.tables
        for name, table in self.tables.items():
            new = rows[name] - table.num_embeddings
            if new > 0:  # a table that stages share has grown already
                weight = table.weight
                weight.data = torch.cat([weight.data, weight.data[UNSEEN].expand(new, -1)])
                weight.grad, table.num_embeddings = None, rows[name]
        by_address = {address(feature): feature for feature in features.features}
        self.request_features = [by_address[address(feature)] for feature in self.request_features]
        self.item_features = [by_address[address(feature)] for feature in self.item_features]
        self._item_by_name = {feature.name: feature for feature in features.of("item")}

    def _width(self, feature: Feature) -> int:
        return feature.size if feature.embedding is None else self.dim

    def _embed(self, feature: Feature, values: Mapping[str, Tensor]) -> Tensor:
        if feature.name not in values:
            raise RankfallError(f"the batch has no feature {address(feature)}")
        value = values[feature.name]
        if feature.embedding is None:
            return value.unsqueeze(-1) if feature.size == 1 else value
        table: nn.Embedding = getattr(self, _module(feature.embedding))
        try:
            return lookup(table, value)
        except IndexError:
            raise UnknownIdError(
                f"{address(feature)}: found ids from {value.min()} to {value.max()}, "
                f"expected 0 to {feature.rows - 1}, the rows of the table {feature.embedding!r}"
            ) from None


def lookup(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Return rows of a table, equal to ``table(ids)``."""
    if table.sparse or ids.device.type != "cpu" or torch.compiler.is_compiling():
        rows: Tensor = table(ids)
    else:
        rows = _Rows.apply(table.weight, ids)  # type: ignore[no-untyped-call]
    return rows


class _Rows(torch.autograd.Function):
    """Embedding lookup with a faster dense gradient on a CPU: a third of the time of torch's own.

    The gradient of torch runs one operator per row. The order of additions here does not depend on the number of
    threads.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = weight.shape
        return nn.functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        rows, dim = ctx.shape
        places = ids.reshape(-1, 1).long() * dim + torch.arange(dim)
        of_weight = grad.new_zeros(rows * dim).scatter_add_(0, places.view(-1), grad.reshape(-1)).view(rows, dim)
        of_weight[0] = 0  # padding is not trained
        return of_weight, None


def address(feature: Feature) -> str:
    """Return the name of a feature with its group, such as ``user.age``."""
    return f"{feature.group}.{feature.name}"


def _sequence_address(sequence: Sequence) -> str:
    return f"sequence.{sequence.name}"


def _check_only(features: Features, only: Iterable[str] | None) -> set[str]:
    known = [*map(address, features.features), *map(_sequence_address, features.sequences)]
    if only is None:
        return set(known)
    if isinstance(only, str):
        raise RankfallError(f"only must be a list of names, got {only!r}")
    only = set(only)
    for name in sorted(only - set(known)):
        raise RankfallError(f"only: found {name!r}{did_you_mean(name, known)}; allowed are {', '.join(known)}")
    return only


def _check_tables(given: Mapping[str, nn.Embedding], features: Features, dim: int) -> dict[str, nn.Embedding]:
    for name, table in given.items():
        if name not in features.tables:
            known = ", ".join(features.tables)
            raise RankfallError(f"tables: found {name!r}{did_you_mean(name, features.tables)}; allowed are {known}")
        expected = (features.tables[name], dim)
        if tuple(table.weight.shape) != expected:
            raise RankfallError(f"tables: {name!r} has the shape {tuple(table.weight.shape)}, expected {expected}")
        if table.padding_idx != 0:
            raise RankfallError(f"tables: {name!r} must have padding_idx=0, got {table.padding_idx}")
    return dict(given)


def _new_table(rows: int, dim: int, std: float, sparse: bool | int) -> nn.Embedding:
    table = nn.Embedding(rows, dim, padding_idx=0, sparse=bool(sparse) and rows >= sparse)
    with torch.no_grad():
        table.weight.mul_(std)  # which is drawn from the standard normal distribution
    return table


# Names of tables may contain dots or be names of module attributes, which names of submodules must not.


def _module(table: str) -> str:
    return "table/" + table.replace(".", "/")


def _table(module: str) -> str:
    return module.removeprefix("table/").replace("/", ".")


class RequestFeatures(Protocol):
    """Features of requests, without candidates. Ids are int32 or int64: 0 is missing or padding, 1 is unknown."""

    @property
    def user(self) -> Mapping[str, Tensor]:
        """Features by name, ``(B,)``, or ``(B, size)`` for vectors."""

    @property
    def context(self) -> Mapping[str, Tensor]:
        """Features by name, ``(B,)``, or ``(B, size)`` for vectors."""

    @property
    def sequences(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Ids ``(B, L)`` by the names of the sequence and of the feature."""

    @property
    def sequence_mask(self) -> Mapping[str, Tensor]:
        """Boolean tensors ``(B, L)`` by the name of the sequence, True for real events."""


class ImpressionFeatures(RequestFeatures, Protocol):
    """The features of a batch of impressions: requests and their candidates."""

    @property
    def items(self) -> Mapping[str, Tensor]:
        """Features of the candidates by name, ``(B, N)``, or ``(B, N, size)`` for vectors."""

    @property
    def mask(self) -> Tensor:
        """Boolean tensor ``(B, N)``, True for real candidates."""
