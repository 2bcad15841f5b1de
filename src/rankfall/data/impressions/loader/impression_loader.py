"""Load impression logs in batches.

::

    loader = ImpressionLoader("log", "2024-01-13..2024-02-03", batch=1024, negatives=25)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            scores = model(batch.to("cuda"))
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from zlib import crc32

import numpy as np
import pyarrow.compute as pc
import torch

from rankfall._config import MAX_COUNT
from rankfall._errors import RankfallError, checked, did_you_mean
from rankfall.data.arrays import rank_share, spans
from rankfall.data.impressions.compatibility import WITHOUT_THEM, depends_on_request
from rankfall.data.impressions.items import BLOCK
from rankfall.data.impressions.loader.negatives import (
    KnownItems,
    Labels,
    TargetLists,
    append,
    close_up,
    draw,
    first_ordered_depth,
    pool_of_batch,
    published_grades,
    rank_grades,
    relevance_grades,
)
from rankfall.data.impressions.loader.window import (
    LEFT_OUT,
    LIST,
    DayBlocks,
    Impressions,
    Prefetcher,
    Window,
    layout_of,
    lengths_of,
    mask_of,
)
from rankfall.data.impressions.log import ImpressionLog

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.data.impressions.loader.negatives import Pool
    from rankfall.data.impressions.loader.window import Arrays
    from rankfall.data.impressions.log import Day

    Rows = NDArray[np.int64]

PREFIX = "item."  # of the columns of item features


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """M items and their features in the item table, as a service has them.

    Attributes:
        day: The day.
        item: Item numbers ``(M,)``, sorted.
        features: Features by name, ``(M,)``, or ``(M, size)`` for vectors.
    """

    day: str
    item: Tensor
    features: dict[str, Tensor]

    def __len__(self) -> int:
        """The number of items."""
        return len(self.item)

    def places(self, item: Tensor, mask: Tensor) -> Tensor:
        """Return the places of items in the catalogue, in any shape; the number of items where masked.

        Raises:
            ValueError: If a real item is not in the catalogue.
        """
        found = torch.searchsorted(self.item, item)
        known = self.item[found.clamp(max=len(self) - 1)] == item
        if not bool((known | ~mask).all()):
            missing = int(item[~known & mask][0])
            raise RankfallError(f"path: item {missing} of {self.day} is not in the item table of its log")
        return found.masked_fill(~mask, len(self))


def catalogue_of(day: str, pool: Pool) -> Catalogue:
    """Return the catalogue of the items known at the end of a day."""
    chosen = slice(None) if pool.places is None else pool.places
    features = {
        name.removeprefix(PREFIX): torch.from_numpy(values[chosen].copy()) for name, values in pool.features.items()
    }
    return Catalogue(day, torch.from_numpy(pool.items.copy()), features)


class ItemFirstSeen:
    """The index of the first day on which an item is in an impression, as a candidate or among the left-out items.

    Each day is read once, also if several loaders share the object, as long as the days before it stay the same.
    """

    def __init__(self) -> None:
        self._days: list[tuple[str, str]] = []  # names and checksums
        self._items = np.empty(0, np.int32)  # sorted
        self._first = np.empty(0, np.int32)

    def numbers(self, log: ImpressionLog, days: Iterable[str], items: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the first day of each item as an index into `days`, or the number of days if no day has it."""
        chosen = [log.days[name] for name in days]
        for number, day in enumerate(chosen):
            key = day.name, str(day.manifest["sha256"])
            if self._days[number : number + 1] != [key]:
                self._discard(number)
                self._read(log, day)
                self._days.append(key)
        if not len(self._items):
            return np.full(len(items), len(chosen), np.int32)
        places = np.minimum(np.searchsorted(self._items, items), len(self._items) - 1)
        found = np.where(self._items[places] == items, self._first[places], len(chosen))
        return np.minimum(found, len(chosen)).astype(np.int32)

    def _discard(self, number: int) -> None:
        """Discard everything that was read from this day on."""
        kept = self._first < number
        self._days, self._items, self._first = self._days[:number], self._items[kept], self._first[kept]

    def _read(self, log: ImpressionLog, day: Day) -> None:
        blocks = DayBlocks(log, day)
        found = np.concatenate([pc.unique(blocks.items(column)).to_numpy() for column in (LIST, LEFT_OUT)])
        new = np.setdiff1d(found, self._items)
        places = np.searchsorted(self._items, new)
        self._items = np.insert(self._items, places, new)
        self._first = np.insert(self._first, places, len(self._days))


class RandomStream(IntEnum):
    """The independent streams of random numbers."""

    BLOCKS = 0
    WINDOW = 1
    NEGATIVES = 2


def generator(seed: int, epoch: int, day: str, use: RandomStream, number: int = 0) -> np.random.Generator:
    """Return the random numbers of one stream of a day in an epoch."""
    return np.random.default_rng([seed, epoch, crc32(day.encode()), use, number])


def block_shuffled(starts: Rows, first: int, last: int, *, seed: int, epoch: int, day: str) -> Rows:
    """Return the rows at the positions from `first` to `last`, a window of a shuffled day.

    The blocks are put in a random order on a circle, which is cut at a random position, so that all rows are equally
    likely at the end. The window takes its part of the circle and shuffles it.

    Args:
        starts: Where the blocks of the file begin, and where the last one ends.
        first: The first position.
        last: The position after the last.
        seed: The seed of the loader.
        epoch: The epoch.
        day: The name of the day.
    """
    rng = generator(seed, epoch, day, RandomStream.BLOCKS)
    blocks, count = rng.permutation(len(starts) - 1), int(starts[-1])
    begin = int(rng.integers(count)) + first
    parts = [_part(starts, blocks, begin - turn, begin - turn + last - first) for turn in (0, count)]
    return generator(seed, epoch, day, RandomStream.WINDOW, first).permutation(np.concatenate(parts))


def _part(starts: Rows, blocks: Rows, first: int, last: int) -> Rows:
    """Return the rows from `first` to `last` of the blocks in their order; positions below 0 have no rows."""
    sizes = np.diff(starts)[blocks]
    places = np.cumsum(sizes) - sizes
    begin, end = np.maximum(places, first), np.minimum(places + sizes, last)
    here = begin < end
    return spans((starts[blocks] + begin - places)[here], (end - begin)[here])


Source = Literal["items", "batch"]


class Position(NamedTuple):
    """A position in a pass: the index of the day, and the number of its batches that were received."""

    day: int = 0
    batch: int = 0


class ImpressionLoader:
    """Iterates over the impressions of some days in batches; one pass visits the days in their order.

    Args:
        log: An impression log, or its directory.
        days: Names of days, and ranges ``FIRST..LAST`` with both ends; ``".."`` is all days. Batches never mix days.
        batch: The number of impressions of a batch, over all ranks. The last batch of a day is smaller.
        shuffle: Use another order in each epoch, which depends on `seed`, the epoch and the day only. Blocks of 4,096
            impressions are put in a random order, and `window` impressions at a time are shuffled. Every impression is
            equally likely at every position, and a day that fits into a window is shuffled uniformly. If False,
            impressions have the order of the file.
        seed: Seed of the order and of negatives.
        window: The number of impressions in memory at a time.
        negatives: The number of items that are appended to each list. They differ from each other, from all items of
            the impression and from the relevant items that were not sampled. They are drawn uniformly from all items
            that occur in the log on the day or before it. Where there are not enough, the rest is masked.
        negatives_from: ``"items"`` draws negatives from the item table, ``"batch"`` from the items of the batch. Items
            from the table have the features from before the day; if some of them change, the logged items of the lists
            get these, too, so that features do not tell both apart.
        length: Instead of `negatives`: append items until each list has this length. ``"all"`` appends nothing; every
            list stands for all items of the day, which :meth:`catalogue` returns once per day instead of once per list.
        reads: The features that will be read, such as ``item.price``; by default all. Items cannot be added to lists if
            one of them is an item feature that depends on the request.
        first_days: The first days of items, which negatives need; loaders that share it read each day once.
        labels: ``"full"`` gives every item the full-stage grade of the log. ``"published"`` is the scheme of LCRON's
            table 1: only the items of the relevant stage are ordered among themselves, and every other stage has one
            grade. ``"rank"`` orders all items by their logged rank, whatever their stage. ``"relevance"`` orders them
            by their relevance alone, and irrelevant items share the grade 0.
        rank: The index of this process among `world` processes. It receives its share of every batch; together the
            shares are the batch of a single process, including negatives. All processes have the same number of
            batches; if a batch has fewer impressions than there are ranks, some shares are empty.
        world: The number of processes.
        drop_last: Leave out the last batch of a day if it is smaller than `batch`.
        prefetch: The number of batches that a thread prepares ahead; 0 for no thread.
        pin_memory: Load batches into pinned memory, from which a GPU copies while it computes
            (``batch.to("cuda", non_blocking=True)``). The thread of `prefetch` pins them.

    Raises:
        ValueError: If an argument is out of range, or if the days have no impressions or no items.
    """

    def __init__(
        self,
        log: ImpressionLog | str | Path,
        days: str | Iterable[str],
        *,
        batch: int = 1024,
        shuffle: bool = True,
        seed: int = 0,
        window: int = 1 << 15,
        negatives: int = 0,
        negatives_from: Source = "items",
        length: int | Literal["all"] | None = None,
        reads: Iterable[str] | None = None,
        first_days: ItemFirstSeen | None = None,
        labels: Labels = "full",
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> None:
        for name, value, least in (
            ("batch", batch, 1),
            ("seed", seed, 0),
            ("window", window, batch),
            ("negatives", negatives, 0),
            ("length", 1 if length in (None, "all") else length, 1),
            ("rank", rank, 0),
            ("world", world, 1),
            ("prefetch", prefetch, 0),
        ):
            _check_int(name, value, least)
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last), ("pin_memory", pin_memory)):
            if not isinstance(flag, bool):
                raise RankfallError(f"{name}: found {flag!r}, expected True or False")
        if rank >= world:
            raise RankfallError(f"rank: found {rank}, expected a number below world, which is {world}")
        for name, word, words in (
            ("negatives_from", negatives_from, get_args(Source)),
            ("labels", labels, get_args(Labels)),
        ):
            if word not in words:
                hint = did_you_mean(word, words)
                raise RankfallError(f"{name}: found {word!r}{hint}; allowed are {', '.join(words)}")
        if negatives and length is not None:
            raise RankfallError("length: extends lists as negatives does, give one of them")
        self.log = log if isinstance(log, ImpressionLog) else ImpressionLog.load(log)
        self.batch, self.shuffle, self.seed, self.drop_last = batch, shuffle, seed, drop_last
        self.negatives, self.negatives_from, self.length = negatives, negatives_from, length
        self.rank, self.world, self.prefetch, self.pin_memory = rank, world, prefetch, pin_memory
        self.labels = labels
        self._ordered_from = first_ordered_depth(self.log.spec) if labels == "published" else None
        self.window = window
        self._days = _choose(self.log, days)
        longest, shortest = _measure(self.log, self._days)
        if not longest:
            raise RankfallError(f"days: found {', '.join(self.days)}, whose impressions have no items")
        self._layout = layout_of(self.log, longest)
        self._named = self._layout.named()
        fixed = length if isinstance(length, int) else None
        self.width: int = fixed or longest + negatives  # list length of every batch
        self._drawn = self.width - (shortest if fixed else longest)
        self._reads = None if reads is None else frozenset(reads)
        self._check_lengths(longest)
        self._most_left_out = _most_left_out(self.log, self._days) if self._drawn else 0
        draws = (self._drawn and negatives_from == "items") or length == "all"
        has_drawn = bool(self.log.spec.negatives) and "versions" in self.log.manifest["items"]
        self._first_days = first_days or ItemFirstSeen()
        self._known = self._look_up_items() if draws or has_drawn else None
        # lists have features of the item table, as the items drawn from it; of all items only the catalogue is used
        self._looks_up = self._known is not None and length != "all"
        self._catalogue: Catalogue | None = None
        if not len(self):
            raise RankfallError(f"drop_last: no day has {batch:,} impressions, so no batch would be left")
        self._epoch = 0
        self._next = Position()  # where the next pass begins
        self._received = Position()
        self._spare: list[Window] = []  # the buffer of the last pass, which the next one reuses
        self._requests: tuple[str, pa.ChunkedArray] | None = None

    def _check_lengths(self, longest: int) -> None:
        if isinstance(self.length, int) and self.length < longest:
            raise RankfallError(f"length: found {self.length}, but the longest list of these days has {longest} items")
        name = "negatives" if self.length is None else "length"
        added = self._drawn or self.length == "all"
        if added and self._per_request:
            raise RankfallError(
                f"{name}: {depends_on_request(self._per_request)} in {self.log.path}, so no items can be added to "
                f"lists; {WITHOUT_THEM}"
            )
        if self._drawn and self.negatives_from == "batch" and self.batch == 1:
            raise RankfallError("negatives_from: a batch of 1 has no other impressions to draw items from")

    @property
    def _per_request(self) -> list[str]:
        """The item features that are read and depend on the request, so that an item cannot be ranked for another."""
        return [name for name in self.log.per_request if self._reads is None or name in self._reads]

    @property
    def can_add_items(self) -> bool:
        """Whether items can be added to lists: no item feature that is read depends on the request."""
        return not self._per_request

    def _look_up_items(self) -> KnownItems:
        return KnownItems(self.log, self._layout, self.last_day, self._first_days)

    def __repr__(self) -> str:
        """Path and size, in one line."""
        impressions = sum(len(day) for day in self._days)
        return f"ImpressionLoader({self.log.path}: {len(self._days)} days, {impressions:,} impressions)"

    def __len__(self) -> int:
        """The number of batches of a pass."""
        return sum(self._count(day) for day in self._days)

    @property
    def days(self) -> list[str]:
        """The names of the days, in the order of a pass."""
        return [day.name for day in self._days]

    @property
    def last_day(self) -> str:
        """The latest of the days in the order of the log."""
        order = list(self.log.days)
        return max(self.days, key=order.index)

    def requests(self, batch: Impressions) -> pa.ChunkedArray:
        """Return the request ids of a batch."""
        if self._requests is None or self._requests[0] != batch.day:
            self._requests = batch.day, self.log.days[batch.day].table()["request"]
        return self._requests[1].take(batch.rows.cpu().numpy())

    # --- all items --------------------------------------------------------------------------------------------------

    @property
    def longest_ranked(self) -> int:
        """The number of items in the longest list that a first stage ranks: all items with ``length="all"``."""
        if self.length != "all":
            return self.width
        assert self._known is not None
        return max(self._known.count_until(day) for day in self.days)

    def catalogue_size(self) -> int | None:
        """Return the number of items in the log by the end of the last day; None if items belong to single requests.

        A loader that draws no items reads the items of all days up to that day for it.
        """
        if not self.can_add_items or not len(self.log.items()):
            return None
        self._known = self._known or self._look_up_items()
        return self._known.count_until(self.last_day)

    def mean_length(self) -> float:
        """Return the mean length of the lists that a first stage ranks."""
        if self.length is not None:
            return float(self.longest_ranked)
        lengths = np.concatenate([found for day in self._days for found in DayBlocks(self.log, day).lengths()])
        return float(lengths.mean()) + self.negatives

    def catalogue(self, day: str) -> Catalogue:
        """Return all items that are in the log by the end of a day, for a loader with ``length="all"``."""
        if self.length != "all" or self._known is None:
            raise RankfallError(f"length: found {self.length!r}, expected 'all' for the catalogue of a day")
        if self._catalogue is None or self._catalogue.day != day:
            self._catalogue = catalogue_of(day, self._known.until(day))
        return self._catalogue

    def left_out(self) -> int:
        """Return the number of relevant items of all impressions that were not sampled."""
        return sum(int(lengths.sum()) for day in self._days for lengths in DayBlocks(self.log, day).lengths(LEFT_OUT))

    # --- position ---------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the next pass, which decides its order."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. If it changes, the pass begins at its first batch."""
        _check_int("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch, self._next, self._received = epoch, Position(), Position()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch received, as plain values."""
        return {
            "epoch": self._epoch,
            "day": self._days[self._received.day].name,
            "batch": self._received.batch,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position: the next pass returns exactly the remaining batches.

        The number of ranks may differ; all other settings that determine the batches must be the same.

        Raises:
            ValueError: If the state is invalid or was saved with other settings.
        """
        try:
            epoch, day, batch = state["epoch"], state["day"], state["batch"]
            settings = dict(state["settings"])
        except (KeyError, TypeError, ValueError):
            raise RankfallError("state: expected the result of state_dict()") from None
        for name, value in self._settings().items():
            if settings.get(name) != value:
                raise RankfallError(f"state: was saved with {name} = {settings.get(name)!r}, this loader has {value!r}")
        _check_int("epoch of state", epoch, 0)
        _check_int("batch of state", batch, 0)
        if day not in self.days or batch > self._count(self.log.days[day]):
            raise RankfallError(f"state: found batch {batch} of day {day!r}, which does not exist")
        self._epoch = epoch
        self._next = self._received = Position(self.days.index(day), batch)

    def _settings(self) -> dict[str, Any]:
        names = ("batch", "shuffle", "seed", "window", "negatives", "negatives_from", "length", "drop_last", "labels")
        days = {day.name: day.manifest["sha256"] for day in self._days}
        return {"days": days, **{name: getattr(self, name) for name in names}}

    # --- a pass -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Generator[Impressions]:
        """Iterate over one pass, from the first batch or from the position loaded last."""
        start, self._next = self._next, Position()
        self._received = start
        source = self._pass(self._epoch, start)
        ahead = Prefetcher(source, self.prefetch) if self.prefetch else source
        try:
            for position, batch in ahead:
                self._received = position
                yield batch
        finally:
            ahead.close()

    def _pass(self, epoch: int, start: Position) -> Generator[tuple[Position, Impressions], None, None]:
        window = self._spare.pop() if self._spare else self._room()
        try:
            for number in range(start.day, len(self._days)):
                first = start.batch if number == start.day else 0
                for batch in self._day(self._days[number], epoch, first, window):
                    first += 1
                    yield Position(number, first), batch.pin_memory() if self.pin_memory else batch
        finally:
            self._spare = [window]

    def _day(self, day: Day, epoch: int, first: int, window: Window) -> Iterator[Impressions]:
        """Iterate over the batches of a day from the `first` one on."""
        count, in_window = self._count(day), self._window_size() // self.batch
        if first == count:
            return
        blocks = DayBlocks(self.log, day)
        from_table = self._drawn and self.negatives_from == "items"
        known = self._known.until(day.name) if self._known and from_table else None
        while first < count:
            begin = first // in_window * in_window
            end = min(begin + in_window, count)
            place = begin * self.batch, min(end * self.batch, len(day))
            if self.shuffle:
                rows = block_shuffled(blocks.starts, *place, seed=self.seed, epoch=epoch, day=day.name)
            else:
                rows = np.arange(*place)
            batches = [rows[i : i + self.batch] for i in range((first - begin) * self.batch, len(rows), self.batch)]
            held = [batch[self._held(len(batch))] for batch in batches]
            places = _load(window, blocks, np.concatenate(held))
            for number, batch, mine in zip(range(first, end), batches, held, strict=True):
                here, places = places[: len(mine)], places[len(mine) :]
                arrays = window.take(here)
                if self._looks_up and self._known:
                    self._known.look_up(arrays, day.name)
                where = (epoch, day.name, number)
                mask = self._add_items(arrays, window.left_out(here), len(batch), known, where)
                yield self._batch(day.name, batch, arrays | {"mask": mask})
            first = end

    def _add_items(
        self, arrays: Arrays, left_out: Rows | None, rows: int, known: Pool | None, where: tuple[int, str, int]
    ) -> NDArray[np.bool_]:
        """Draw items for the lists of a batch and append them.

        Args:
            arrays: The columns of the impressions that this loader holds.
            left_out: Their left-out items.
            rows: The number of impressions of the whole batch.
            known: The items known on the day, if negatives are drawn from the item table.
            where: The epoch, the day and the index of the batch.

        Returns:
            The mask of the lists.
        """
        lists = self._layout.items
        if not self._drawn:
            return mask_of(arrays[lengths_of(lists)], lists.width)
        epoch, day, number = where
        rng = generator(self.seed, epoch, day, RandomStream.NEGATIVES, number)
        pool = known or pool_of_batch(arrays, self._layout)
        targets = TargetLists(arrays["item"], rows, self._held(rows), left_out, self._most_left_out)
        drawn = draw(targets, pool.items, self._drawn, rng)
        mask = append(arrays, self._layout, pool, drawn)
        return close_up(arrays, self._layout, mask, self.length) if isinstance(self.length, int) else mask

    def _batch(self, day: str, rows: Rows, arrays: Arrays) -> Impressions:
        """Return this rank's share of a batch of these rows."""
        mine = rank_share(len(rows), self.rank, self.world)
        if not self._takes_shares:
            arrays = {name: array[mine] for name, array in arrays.items()}
        if self._ordered_from is not None:
            graded, depth, mask = arrays["grade"], arrays["depth"], arrays["mask"]
            arrays = arrays | {"grade": published_grades(graded, depth, mask, ordered_from=self._ordered_from)}
        elif self.labels == "rank":
            arrays = arrays | {"grade": rank_grades(arrays["rank"], arrays["mask"])}
        elif self.labels == "relevance":
            arrays = arrays | {"grade": relevance_grades(arrays["relevance"], arrays["mask"])}
        return self._tensors(day, arrays | {"rows": rows[mine]})

    def _tensors(self, day: str, arrays: Arrays) -> Impressions:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        groups = {
            group: {name: tensors[column] for name, column in columns.items()} for group, columns in self._named.items()
        }
        masks = {
            lists.name: torch.from_numpy(mask_of(arrays[lengths_of(lists)], lists.width))
            for lists in self._layout.sequences
        }
        plain = {field.name: tensors[field.name] for field in fields(Impressions) if field.name in tensors}
        return Impressions(
            day=day,
            user=groups["user"],
            context=groups["context"],
            sequences={name.removeprefix("sequence."): groups[name] for name in masks},
            sequence_mask={name.removeprefix("sequence."): mask for name, mask in masks.items()},
            items=groups["item"],
            feedback=groups["feedback"],
            **plain,
        )

    @property
    def _takes_shares(self) -> bool:
        """Whether only this rank's rows are read. Negatives from the batch need the whole batch on every rank."""
        return not (self._drawn and self.negatives_from == "batch")

    def _held(self, rows: int) -> slice:
        return rank_share(rows, self.rank, self.world) if self._takes_shares else slice(None)

    def _window_size(self) -> int:
        """The number of impressions that are read together, a multiple of the batch size."""
        wanted = self.window if self.shuffle else min(self.window, max(BLOCK, self.batch))
        largest = max(self._count(day) for day in self._days)
        return min(wanted // self.batch, largest) * self.batch

    def _room(self) -> Window:
        """Return a window for the impressions that this loader holds at a time."""
        share_size = -(-self.batch // self.world) if self._takes_shares else self.batch
        capacity = self._window_size() // self.batch * share_size
        return Window(self._layout, capacity, left_out=self._most_left_out > 0)

    def _count(self, day: Day) -> int:
        return len(day) // self.batch if self.drop_last else -(-len(day) // self.batch)


def _check_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RankfallError(f"{name}: found {value!r}, expected a whole number of at least {least}")
    if value > MAX_COUNT and name != "seed":
        raise RankfallError(f"{name}: found {value!r}, expected at most {MAX_COUNT}")


@checked
def _choose(log: ImpressionLog, days: str | Iterable[str]) -> list[Day]:
    chosen = log.choose([days] if isinstance(days, str) else days)
    if not any(len(day) for day in chosen):
        raise RankfallError(
            f"days: found {', '.join(day.name for day in chosen) or 'none'}, expected days with impressions"
        )
    return chosen


def _measure(log: ImpressionLog, days: list[Day]) -> tuple[int, int]:
    """Return the lengths of the longest and the shortest list."""
    longest, shortest = 0, np.iinfo(np.int32).max
    for day in days:
        blocks = DayBlocks(log, day)
        for lengths in blocks.lengths():
            longest, shortest = max(longest, int(lengths.max())), min(shortest, int(lengths.min()))
    return longest, shortest


def _most_left_out(log: ImpressionLog, days: list[Day]) -> int:
    return max(int(lengths.max()) for day in days for lengths in DayBlocks(log, day).lengths(LEFT_OUT))


def _load(window: Window, blocks: DayBlocks, rows: Rows) -> Rows:
    """Read rows into the window, in the order of the file, and return their positions there."""
    order = np.argsort(rows)
    window.load(blocks, rows[order])
    places = np.empty_like(order)
    places[order] = np.arange(len(rows))
    return places
