"""Batches of whole lists from prepared data, with little padding.

A batch says which rows its documents are, whose features :meth:`Lists.gather` brings without padding for models
that look at one document at a time; its labels and mask are padded to its longest list, for losses and metrics.
:meth:`Batch.pad` puts what a model says about rows into the shape of the lists. Lists of similar length come into
one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankfall.data.impressions.loader.order import share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.data.lists.ranking_data import RankingSplit

    Indices = NDArray[np.int64]
    Place = tuple[int, dict[str, Any]]  # batches that are done, and the state of the random numbers behind them

POOL = 32  # batches that are drawn together and sorted by length: more means less padding and a less random order
MEASURED_ROWS = 1 << 15  # padded documents of a batch that is only measured


@dataclass(frozen=True, slots=True)
class Batch:
    """Some lists, padded to the longest of them."""

    lists: Indices  # (lists,) their numbers
    rows: Indices  # (rows,) of their documents, one list after the other
    labels: Tensor  # (lists, n)
    mask: Tensor  # (lists, n)
    slots: Tensor  # (rows,) where in the padded lists, written in a row, each document stands

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.lists)

    def part(self, lists: slice) -> Batch:
        """Some of its lists, as long as they are padded here."""
        width = self.mask.shape[1]
        before = [int(self.mask[:stop].sum()) for stop in (lists.start, lists.stop)]
        rows = slice(*before)
        return Batch(
            lists=self.lists[lists],
            rows=self.rows[rows],
            labels=self.labels[lists],
            mask=self.mask[lists],
            slots=self.slots[rows] - lists.start * width,
        )

    def pad(self, values: Tensor) -> Tensor:
        """Values of the documents ``(rows, ...)`` as lists ``(lists, n, ...)``, 0 where there is padding."""
        return _pad(values, self.slots, self.mask.shape)


class Lists:
    """The lists of several splits as if they were one; features stay on disk until a batch gathers them."""

    def __init__(self, splits: Sequence[RankingSplit]) -> None:
        self.splits = list(splits)
        rows = [split.rows for split in self.splits]
        self._first_rows = np.cumsum([0, *rows])
        starts = [split.offsets[:-1] + first for split, first in zip(self.splits, self._first_rows, strict=False)]
        self.starts: Indices = np.concatenate(starts)
        self.lengths: Indices = np.concatenate([np.diff(split.offsets) for split in self.splits])
        self.labels: NDArray[np.float32] = np.concatenate([split.labels for split in self.splits])

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.lengths)

    @property
    def rows(self) -> int:
        """The number of documents of all lists."""
        return len(self.labels)

    @property
    def features(self) -> int:
        """The number of features."""
        return int(self.splits[0].features.shape[1])

    @cached_property
    def qids(self) -> list[str]:
        """The query id of each list."""
        return [qid for split in self.splits for qid in split.qids.to_pylist()]

    def gather(self, rows: Indices) -> Tensor:
        """The features of some rows ``(rows, features)``, in that order."""
        found: NDArray[np.float32] = np.empty((len(rows), self.features), np.float32)
        part = np.searchsorted(self._first_rows, rows, side="right") - 1
        for number, split in enumerate(self.splits):
            here = np.flatnonzero(part == number)
            found[here] = split.features[rows[here] - self._first_rows[number]]
        return torch.from_numpy(found)

    def batch(self, lists: Indices, *, rng: np.random.Generator | None = None, max_list: int | None = None) -> Batch:
        """The lists of these numbers. With `rng` their documents are shuffled, and at most `max_list` of each kept.

        Some losses put documents of equal labels in an order, the one they stand in. Shuffled, no model learns the
        order of a file.
        """
        lengths = self.lengths[lists]
        rows = _spans(self.starts[lists], lengths)
        if rng is not None:
            kept = lengths if max_list is None else np.minimum(lengths, max_list)
            rows = rows[_draw(lengths, kept, rng)]
            lengths = kept
        elif max_list is not None:
            raise ValueError("rng: max_list draws a sample of long lists and needs a generator, got None")
        width = int(lengths.max())
        slots = torch.from_numpy(_spans(np.arange(len(lists)) * width, lengths))
        mask = torch.arange(width) < torch.from_numpy(lengths)[:, None]
        return Batch(
            lists=lists,
            rows=rows,
            labels=_pad(torch.from_numpy(self.labels[rows]), slots, mask.shape),
            mask=mask,
            slots=slots,
        )

    def shuffled(self, size: int, rng: np.random.Generator) -> list[Indices]:
        """Numbers of lists in batches of about `size`, in an order that `rng` alone decides.

        Lists are shuffled and taken in pools; inside a pool they are sorted by length and cut into batches, and the
        batches are shuffled. Sizes differ by at most one, so that no batch is a small rest.
        """
        order = rng.permutation(len(self))
        batches: list[Indices] = []
        for pool in _cut(order, size * POOL):
            by_length = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += _cut(by_length, size)
        return [batches[i] for i in rng.permutation(len(batches))]

    def by_length(self) -> Iterator[Batch]:
        """Every list once, the shortest first, in batches of bounded size."""
        order = np.argsort(self.lengths, kind="stable")
        start = 0
        while start < len(order):
            # The longest list of a batch is its last one, so the padded size grows with every list that joins.
            lengths = self.lengths[order[start:]]
            padded = np.arange(1, len(lengths) + 1) * lengths
            stop = start + max(1, int(np.searchsorted(padded, MEASURED_ROWS, side="right")))
            yield self.batch(order[start:stop])
            start = stop

    def chunks(self, rows: int) -> Iterator[Tensor]:
        """The features of all documents in their order, so many rows at a time."""
        for split in self.splits:
            for first in range(0, split.rows, rows):
                yield torch.from_numpy(np.array(split.features[first : first + rows]))


class ListLoader:
    """Batches of all lists, in another order in each epoch, which can begin behind any of them.

    `batch` lists make a batch, about. The order of an epoch, and what is drawn of long lists (`max_list`), follow from
    `seed` and the epoch's number alone. The loader of one of several processes gives the `rank`-th of `world` shares of
    every batch, some of which may be empty.
    """

    def __init__(
        self,
        lists: Lists,
        *,
        batch: int,
        seed: int,
        max_list: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.lists, self.batch, self.seed, self.max_list = lists, batch, seed, max_list
        self.rank, self.world = rank, world
        pools = _cut(np.arange(len(lists)), batch * POOL)
        self._count = sum(-(-len(pool) // batch) for pool in pools)
        self._epoch = 0
        self._begin: Place | None = None  # where the next pass begins, if not at the beginning
        self._received: Place | None = None

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self._count

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass. Another epoch than before begins at its beginning."""
        if epoch != self._epoch:
            self._epoch, self._begin, self._received = epoch, None, None

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was received, as plain values."""
        batch, random = self._received or (0, None)
        return {"epoch": self._epoch, "batch": batch, "random": random, "settings": self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin where another one was; it gives exactly the batches that were left."""
        for name, value in self._settings().items():
            found = state["settings"].get(name)
            if found != value:
                raise ValueError(f"state: was saved with {name} = {found!r}, this loader has {value!r}")
        self._epoch = state["epoch"]
        self._begin = self._received = (state["batch"], state["random"]) if state["batch"] else None

    def _settings(self) -> dict[str, Any]:
        return {"lists": len(self.lists), "batch": self.batch, "seed": self.seed, "max_list": self.max_list}

    def __iter__(self) -> Iterator[Batch]:
        """One epoch: from the beginning, or from the position that was loaded since the last one."""
        first, self._begin = self._begin, None
        self._received = first
        rng = np.random.default_rng([self.seed, self._epoch + 1])
        batches = self.lists.shuffled(self.batch, rng)
        done = 0
        if first is not None:
            done, rng.bit_generator.state = first
        for number, numbers in enumerate(batches[done:], start=done + 1):
            batch = self.lists.batch(numbers, rng=rng, max_list=self.max_list)
            self._received = number, dict(rng.bit_generator.state)
            yield batch if self.world == 1 else batch.part(share(len(batch), self.rank, self.world))


def _spans(starts: Indices, lengths: Indices) -> Indices:
    """The numbers from each start on, as many as its length says, one span after another."""
    ends = np.cumsum(lengths)
    spans: Indices = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return spans


def _draw(lengths: Indices, kept: Indices, rng: np.random.Generator) -> Indices:
    """Places in spans of these lengths that follow each other: from each span so many as are kept, in random order."""
    span = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((rng.random(len(span)), span))
    rank = _spans(np.zeros_like(lengths), lengths)
    return order[rank < np.repeat(kept, lengths)]


def _cut(numbers: Indices, size: int) -> list[Indices]:
    """As few pieces as possible of at most `size`, all of nearly one length."""
    return np.array_split(numbers, -(-len(numbers) // size))


def _pad(values: Tensor, slots: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    flat: Any = values.new_zeros(shape[0] * shape[1], *values.shape[1:])
    padded: Tensor = flat.index_copy(0, slots, values).unflatten(0, tuple(shape))
    return padded
