"""Impression logs in batches.

::

    loader = ImpressionLoader("log", "2024-01-13..2024-02-03", batch=1024, negatives=25)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            scores = model(batch.to("cuda"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from rankfall._suggest import did_you_mean
from rankfall.data.impressions.loader.batch import Impressions
from rankfall.data.impressions.loader.item_first_seen import FirstDays
from rankfall.data.impressions.loader.negatives import KnownItems, Takers, append, close_up, draw, pool_of_batch
from rankfall.data.impressions.loader.order import Use, block_shuffled, generator, in_file_order, share
from rankfall.data.impressions.loader.prefetch import Ahead
from rankfall.data.impressions.loader.window import LEFT_OUT, Blocks, Window, layout_of, lengths_of, mask_of
from rankfall.data.impressions.log import BLOCK, ImpressionLog

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall.data.impressions.loader.negatives import Pool
    from rankfall.data.impressions.loader.order import Rows
    from rankfall.data.impressions.loader.window import Arrays
    from rankfall.data.impressions.log import Day

Source = Literal["items", "batch"]


class Position(NamedTuple):
    """How far a pass has come: the number of the day, and how many batches of it were received."""

    day: int = 0
    batch: int = 0


class ImpressionLoader:
    """Iterates over the impressions of some days, in batches: one pass over the days in their order.

    `log`
        an impression log, or its directory.
    `days`
        names of days, and ranges ``FIRST..LAST`` with both ends; ``".."`` is all of them. Batches never mix days.
    `batch`
        impressions of a batch, of all ranks together. The last of a day is smaller; `drop_last` leaves it out.
    `shuffle`
        another order in each epoch, from `seed`, the epoch and the day alone. Blocks of 4,096 impressions are put in
        a random order and `window` impressions at a time are shuffled among each other. Every impression is as likely
        at one place as at any other; a day that is not larger than a window has every order alike. Without it,
        impressions come as they stand in the file.
    `window`
        impressions in memory at a time.
    `negatives`
        so many items are added behind each list. They are different from each other, from all items of the impression
        and from the relevant ones of its request that the sample left out, drawn evenly from all items that the log
        has until the end of the day, on this day or before, or (`negatives_from`) from those of the batch. Where
        there are not enough, the rest is masked.
    `length`
        in place of `negatives`: add as many to each list as it needs to have this length.
    `first_days`
        what is known of the days before, from which such items are drawn; loaders that share it read each day once.
    `rank`, `world`
        the loader of one of several processes gives the `rank`-th of `world` shares of every batch. Together they
        are the batch of a single process, negatives included. All have the same number of batches; if one has
        fewer impressions than there are ranks, some shares are empty.
    `prefetch`
        batches that a thread prepares while the last one is being used; 0 for none.
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
        length: int | None = None,
        first_days: FirstDays | None = None,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
        prefetch: int = 2,
    ) -> None:
        for name, value, least in (
            ("batch", batch, 1),
            ("seed", seed, 0),
            ("window", window, batch),
            ("negatives", negatives, 0),
            ("length", 1 if length is None else length, 1),
            ("rank", rank, 0),
            ("world", world, 1),
            ("prefetch", prefetch, 0),
        ):
            _check_int(name, value, least)
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name}: found {flag!r}, expected True or False")
        if rank >= world:
            raise ValueError(f"rank: found {rank}, expected a number below world, which is {world}")
        if negatives_from not in get_args(Source):
            hint = did_you_mean(negatives_from, get_args(Source))
            raise ValueError(f"negatives_from: found {negatives_from!r}{hint}; allowed are 'items' and 'batch'")
        if negatives and length is not None:
            raise ValueError("length: extends lists as negatives does, give one of them")
        self.log = log if isinstance(log, ImpressionLog) else ImpressionLog.load(log)
        self.batch, self.shuffle, self.seed, self.drop_last = batch, shuffle, seed, drop_last
        self.negatives, self.negatives_from, self.length = negatives, negatives_from, length
        self.rank, self.world, self.prefetch = rank, world, prefetch
        self.window = window
        self._days = _choose(self.log, days)
        longest, shortest = _measure(self.log, self._days)
        if not longest:
            raise ValueError(f"days: {', '.join(self.days)} chosen, whose impressions have no items")
        self._layout = layout_of(self.log, longest)
        self._named = self._layout.named()
        self.width: int = length or longest + negatives  # of the lists of every batch
        self._drawn = self.width - (shortest if length else longest)
        self._check_lengths(longest)
        self._most_left_out = _most_left_out(self.log, self._days) if self._drawn else 0
        draws = self._drawn and negatives_from == "items"
        self._known = self._look_up_items(first_days or FirstDays()) if draws else None
        if not len(self):
            raise ValueError(f"drop_last: no day has as many as {batch:,} impressions, nothing would be left")
        self._epoch = 0
        self._next = Position()  # where the next pass begins
        self._received = Position()
        self._spare: list[Window] = []  # the memory of the last pass, for the next one
        self._requests: tuple[str, pa.ChunkedArray] | None = None

    def _check_lengths(self, longest: int) -> None:
        if self.length is not None and self.length < longest:
            raise ValueError(f"length: found {self.length}, but the longest list of these days has {longest} items")
        name = "negatives" if self.length is None else "length"
        if self._drawn and self.log.manifest["about"].get("item_features") == "per request":
            raise ValueError(
                f"{name}: {self.log.path} has item features that depend on the request, so that no items can be added"
            )
        if self._drawn and self.negatives_from == "batch" and self.batch == 1:
            raise ValueError("negatives_from: a batch of 1 has no other impressions to draw items from")

    def _look_up_items(self, first_days: FirstDays) -> KnownItems:
        order = list(self.log.days)
        return KnownItems(self.log, self._layout, max(self.days, key=order.index), first_days)

    def __repr__(self) -> str:
        """What there is."""
        impressions = sum(len(day) for day in self._days)
        return f"ImpressionLoader({self.log.path}: {len(self._days)} days, {impressions:,} impressions)"

    def __len__(self) -> int:
        """The number of batches of a pass over all days."""
        return sum(self._count(day) for day in self._days)

    @property
    def days(self) -> list[str]:
        """The days of a pass, in their order."""
        return [day.name for day in self._days]

    def requests(self, batch: Impressions) -> pa.ChunkedArray:
        """The ids of the requests of a batch."""
        if self._requests is None or self._requests[0] != batch.day:
            self._requests = batch.day, self.log.days[batch.day].table()["request"]
        return self._requests[1].take(batch.rows.cpu().numpy())

    # --- where a pass is ----------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Which of the orders the next pass has."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass. Another epoch than before begins at its beginning."""
        _check_int("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch, self._next, self._received = epoch, Position(), Position()

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was received, as plain values."""
        return {
            "epoch": self._epoch,
            "day": self._days[self._received.day].name,
            "batch": self._received.batch,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin where another one was; it gives exactly the batches that were left.

        Everything that decides what batches hold must be as it was. The number of ranks may be another one.
        """
        try:
            epoch, day, batch = state["epoch"], state["day"], state["batch"]
            settings = dict(state["settings"])
        except (KeyError, TypeError, ValueError):
            raise ValueError("state: found something else than what state_dict() gives") from None
        for name, value in self._settings().items():
            if settings.get(name) != value:
                raise ValueError(f"state: was saved with {name} = {settings.get(name)!r}, this loader has {value!r}")
        _check_int("epoch of state", epoch, 0)
        _check_int("batch of state", batch, 0)
        if day not in self.days or batch > self._count(self.log.days[day]):
            raise ValueError(f"state: there is no batch {batch} of day {day!r}")
        self._epoch = epoch
        self._next = self._received = Position(self.days.index(day), batch)

    def _settings(self) -> dict[str, Any]:
        names = ("batch", "shuffle", "seed", "window", "negatives", "negatives_from", "length", "drop_last")
        days = {day.name: day.manifest["sha256"] for day in self._days}
        return {"days": days, **{name: getattr(self, name) for name in names}}

    # --- a pass -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Impressions]:
        """One pass over the days: from the beginning, or from the position that was loaded since the last one."""
        start, self._next = self._next, Position()
        self._received = start
        source = self._pass(self._epoch, start)
        ahead = Ahead(source, self.prefetch) if self.prefetch else source
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
                    yield Position(number, first), batch
        finally:
            self._spare = [window]

    def _day(self, day: Day, epoch: int, first: int, window: Window) -> Iterator[Impressions]:
        """The batches of a day from the `first` on."""
        count, in_window = self._count(day), self._window_size() // self.batch
        if first == count:
            return
        blocks = Blocks(self.log, day)
        known = self._known.until(day.name) if self._known else None
        while first < count:
            begin = first // in_window * in_window
            end = min(begin + in_window, count)
            rows = self._order(blocks, day, epoch, begin * self.batch, min(end * self.batch, len(day)))
            batches = [rows[i : i + self.batch] for i in range((first - begin) * self.batch, len(rows), self.batch)]
            held = [batch[self._held(len(batch))] for batch in batches]
            places = _load(window, blocks, np.concatenate(held))
            for number, batch, mine in zip(range(first, end), batches, held, strict=True):
                here, places = places[: len(mine)], places[len(mine) :]
                arrays = window.take(here)
                where = (epoch, day.name, number)
                mask = self._add_items(arrays, window.left_out(here), len(batch), known, where)
                yield self._batch(day.name, batch, arrays | {"mask": mask})
            first = end

    def _order(self, blocks: Blocks, day: Day, epoch: int, first: int, last: int) -> Rows:
        if not self.shuffle:
            return in_file_order(first, last)
        return block_shuffled(blocks.starts, first, last, seed=self.seed, epoch=epoch, day=day.name)

    def _add_items(
        self, arrays: Arrays, left_out: Rows | None, rows: int, known: Pool | None, where: tuple[int, str, int]
    ) -> NDArray[np.bool_]:
        """Draw items for the lists of a batch of `rows` impressions, of which arrays has what this loader holds.

        `where` is the epoch, the day and the number of the batch. Returns the mask of the lists.
        """
        lists = self._layout.items
        if not self._drawn:
            return mask_of(arrays[lengths_of(lists)], lists.width)
        epoch, day, number = where
        rng = generator(self.seed, epoch, day, Use.NEGATIVES, number)
        pool = known or pool_of_batch(arrays, self._layout)
        takers = Takers(arrays["item"], rows, self._held(rows), left_out, self._most_left_out)
        drawn = draw(takers, pool.items, self._drawn, rng)
        mask = append(arrays, self._layout, pool, drawn)
        return mask if self.length is None else close_up(arrays, self._layout, mask, self.length)

    def _batch(self, day: str, rows: Rows, arrays: Arrays) -> Impressions:
        """What this rank gives of a batch of these rows."""
        mine = share(len(rows), self.rank, self.world)
        if not self._takes_shares:
            arrays = {name: array[mine] for name, array in arrays.items()}
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
        return Impressions(
            day=day,
            rows=tensors["rows"],
            time=tensors["time"],
            user=groups["user"],
            context=groups["context"],
            sequences={name.removeprefix("sequence."): groups[name] for name in masks},
            sequence_mask={name.removeprefix("sequence."): mask for name, mask in masks.items()},
            item=tensors["item"],
            items=groups["item"],
            depth=tensors["depth"],
            rank=tensors["rank"],
            relevance=tensors["relevance"],
            grade=tensors["grade"],
            feedback=groups["feedback"],
            mask=tensors["mask"],
            truth=tensors.get("truth"),
        )

    @property
    def _takes_shares(self) -> bool:
        """Whether only this rank's rows are read. Negatives from the batch need all of it on every rank."""
        return not (self._drawn and self.negatives_from == "batch")

    def _held(self, rows: int) -> slice:
        return share(rows, self.rank, self.world) if self._takes_shares else slice(None)

    def _window_size(self) -> int:
        """Impressions that are read together, whole batches of them."""
        wanted = self.window if self.shuffle else min(self.window, max(BLOCK, self.batch))
        largest = max(self._count(day) for day in self._days)
        return min(wanted // self.batch, largest) * self.batch

    def _capacity(self) -> int:
        """Impressions of a window that this loader holds."""
        share_size = -(-self.batch // self.world) if self._takes_shares else self.batch
        return self._window_size() // self.batch * share_size

    def _room(self) -> Window:
        return Window(self._layout, self._capacity(), left_out=self._most_left_out > 0)

    def _count(self, day: Day) -> int:
        return len(day) // self.batch if self.drop_last else -(-len(day) // self.batch)


def _check_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: found {value!r}, expected a whole number of at least {least}")


def _choose(log: ImpressionLog, days: str | Iterable[str]) -> list[Day]:
    chosen = log.choose([days] if isinstance(days, str) else days)
    if not any(len(day) for day in chosen):
        raise ValueError(f"days: {', '.join(day.name for day in chosen) or 'none'} chosen, which have no impressions")
    return chosen


def _measure(log: ImpressionLog, days: list[Day]) -> tuple[int, int]:
    """The lengths of the longest and of the shortest list."""
    longest, shortest = 0, np.iinfo(np.int32).max
    for day in days:
        blocks = Blocks(log, day)
        for lengths in blocks.lengths():
            longest, shortest = max(longest, int(lengths.max())), min(shortest, int(lengths.min()))
    return longest, shortest


def _most_left_out(log: ImpressionLog, days: list[Day]) -> int:
    return max(int(lengths.max()) for day in days for lengths in Blocks(log, day).lengths(LEFT_OUT))


def _load(window: Window, blocks: Blocks, rows: Rows) -> Rows:
    """Bring rows into the window, in the order of the file; where each of them stands there."""
    order = np.argsort(rows)
    window.load(blocks, rows[order])
    places = np.empty_like(order)
    places[order] = np.arange(len(rows))
    return places
