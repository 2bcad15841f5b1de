"""Batches of whole lists from prepared ranking data, with little padding.

A batch has the row numbers of its documents, whose features :meth:`Lists.gather` reads without padding for models that
score one document at a time. Its labels and mask are padded to its longest list, for losses and metrics.
:meth:`ListBatch.pad` converts values per row to the shape of the lists. A batch has lists of similar length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankfall._errors import RankfallError
from rankfall.data.arrays import rank_share, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.data.lists.ranking_data import RankingSplit

    Indices = NDArray[np.int64]
    Place = tuple[int, dict[str, Any]]  # the number of finished batches, and the random state after them

POOL = 32  # batches that are drawn together and sorted by length: more gives less padding and a less random order
MEASURED_ROWS = 1 << 15  # padded documents per batch if lists are only evaluated


@dataclass(frozen=True, slots=True)
class ListBatch:
    """Some lists, padded to the length of the longest one."""

    lists: Indices  # (lists,) numbers of the lists
    rows: Indices  # (rows,) numbers of the rows of their documents, one list after the other
    labels: Tensor  # (lists, n)
    mask: Tensor  # (lists, n)
    slots: Tensor  # (rows,) the position of each document in the flattened padded lists

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.lists)

    def part(self, lists: slice) -> ListBatch:
        """Return some of the lists, with the same padded length."""
        width = self.mask.shape[1]
        before = [int(self.mask[:stop].sum()) for stop in (lists.start, lists.stop)]
        rows = slice(*before)
        return ListBatch(
            lists=self.lists[lists],
            rows=self.rows[rows],
            labels=self.labels[lists],
            mask=self.mask[lists],
            slots=self.slots[rows] - lists.start * width,
        )

    def to(self, device: torch.device, *, non_blocking: bool = False) -> ListBatch:
        """Copy the tensors to another device; the numbers of lists and rows stay NumPy arrays."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> ListBatch:
        """Copy the tensors to pinned memory, from which a GPU can copy asynchronously."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> ListBatch:
        return replace(self, labels=change(self.labels), mask=change(self.mask), slots=change(self.slots))

    def pad(self, values: Tensor) -> Tensor:
        """Pad values per document ``(rows, ...)`` to lists ``(lists, n, ...)``, with 0 in the padding."""
        return _pad(values, self.slots, self.mask.shape)


class Lists:
    """The lists of several splits as one sequence; features stay on disk until they are gathered."""

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
        """Return the features of some rows ``(rows, features)``, in that order."""
        found: NDArray[np.float32] = np.empty((len(rows), self.features), np.float32)
        part = np.searchsorted(self._first_rows, rows, side="right") - 1
        for number, split in enumerate(self.splits):
            here = np.flatnonzero(part == number)
            found[here] = split.features[rows[here] - self._first_rows[number]]
        return torch.from_numpy(found)

    def batch(
        self, lists: Indices, *, rng: np.random.Generator | None = None, max_list: int | None = None
    ) -> ListBatch:
        """Return the batch of these lists.

        Args:
            lists: The numbers of the lists.
            rng: Shuffles the documents of each list. Some losses order documents of equal labels by position; with
                shuffled documents a model cannot learn the order of the file.
            max_list: Sample at most this many documents of a list, with `rng`.
        """
        lengths = self.lengths[lists]
        rows = spans(self.starts[lists], lengths)
        if rng is not None:
            kept = lengths if max_list is None else np.minimum(lengths, max_list)
            # `kept` random documents of each list, in random order
            span = np.repeat(np.arange(len(lengths)), lengths)
            order = np.lexsort((rng.random(len(span)), span))
            place = spans(np.zeros_like(lengths), lengths)
            rows = rows[order[place < np.repeat(kept, lengths)]]
            lengths = kept
        elif max_list is not None:
            raise RankfallError("rng: found None, but max_list samples long lists and needs a generator")
        width = int(lengths.max())
        slots = torch.from_numpy(spans(np.arange(len(lists)) * width, lengths))
        mask = torch.arange(width) < torch.from_numpy(lengths)[:, None]
        return ListBatch(
            lists=lists,
            rows=rows,
            labels=_pad(torch.from_numpy(self.labels[rows]), slots, mask.shape),
            mask=mask,
            slots=slots,
        )

    def shuffled(self, size: int, rng: np.random.Generator) -> list[Indices]:
        """Return the numbers of lists in batches of about `size`, in an order that depends on `rng` only.

        Lists are shuffled and taken in pools; inside a pool they are sorted by length and cut into batches, and the
        batches are shuffled. Sizes differ by at most one, so there is no small remaining batch.
        """
        order = rng.permutation(len(self))
        batches: list[Indices] = []
        for pool in _cut(order, size * POOL):
            by_length = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += _cut(by_length, size)
        return [batches[i] for i in rng.permutation(len(batches))]

    def by_length(self) -> Iterator[ListBatch]:
        """Iterate over all lists, the shortest first, in batches of bounded size."""
        order = np.argsort(self.lengths, kind="stable")
        start = 0
        while start < len(order):
            # The last list of a batch is its longest, so the padded size grows with every list that is added.
            lengths = self.lengths[order[start:]]
            padded = np.arange(1, len(lengths) + 1) * lengths
            stop = start + max(1, int(np.searchsorted(padded, MEASURED_ROWS, side="right")))
            yield self.batch(order[start:stop])
            start = stop

    def chunks(self, rows: int) -> Iterator[Tensor]:
        """Iterate over the features of all documents in their order, `rows` at a time."""
        for split in self.splits:
            for first in range(0, split.rows, rows):
                yield torch.from_numpy(np.array(split.features[first : first + rows]))


class ListLoader:
    """Loads all lists in batches, in another order in each epoch; a pass can continue after any batch.

    Args:
        lists: The lists to load.
        batch: The approximate number of lists of a batch, over all ranks.
        seed: Seed of the order. The order of an epoch and the documents sampled from long lists depend on the seed and
            the epoch only.
        max_list: Sample at most this many documents of a list.
        rank: The index of this process among `world` processes; it receives its share of every batch, which may be
            empty.
        world: The number of processes.
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
        self._begin: Place | None = None  # where the next pass begins; None: at its first batch
        self._received: Place | None = None

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self._count

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. If it changes, the pass begins at its first batch."""
        if epoch != self._epoch:
            self._epoch, self._begin, self._received = epoch, None, None

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch received, as plain values."""
        batch, random = self._received or (0, None)
        return {"epoch": self._epoch, "batch": batch, "random": random, "settings": self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position: the next pass returns exactly the remaining batches.

        Raises:
            ValueError: If the state was saved with other settings.
        """
        for name, value in self._settings().items():
            found = state["settings"].get(name)
            if found != value:
                raise RankfallError(f"state: was saved with {name} = {found!r}, this loader has {value!r}")
        self._epoch = state["epoch"]
        self._begin = self._received = (state["batch"], state["random"]) if state["batch"] else None

    def _settings(self) -> dict[str, Any]:
        return {"lists": len(self.lists), "batch": self.batch, "seed": self.seed, "max_list": self.max_list}

    def __iter__(self) -> Iterator[ListBatch]:
        """Iterate over one epoch, from the first batch or from the position loaded last."""
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
            yield batch if self.world == 1 else batch.part(rank_share(len(batch), self.rank, self.world))


def _cut(numbers: Indices, size: int) -> list[Indices]:
    """Cut into as few pieces as possible of at most `size`, all of nearly equal length."""
    return np.array_split(numbers, -(-len(numbers) // size))


def _pad(values: Tensor, slots: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    flat: Any = values.new_zeros(shape[0] * shape[1], *values.shape[1:])
    padded: Tensor = flat.index_copy(0, slots, values).unflatten(0, tuple(shape))
    return padded
