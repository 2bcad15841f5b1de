"""The columns of a mapped day as arrays: a window of impressions, from which batches are taken.

The rows of a window are copied from the blocks of the file in the order of the file, so that disk reads are
sequential, and lists are padded at the same time. Batches are then gathered from memory, without a loop over
impressions.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, fields
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from torch import Tensor

from rankfall._errors import RankfallError
from rankfall.data.arrays import spans
from rankfall.data.impressions.items import check_schema, impression_schema
from rankfall.encoding import UNSEEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from numpy.typing import NDArray

    from rankfall.data.impressions.loader.impression_loader import Rows
    from rankfall.data.impressions.log import Day, ImpressionLog

    Arrays = dict[str, NDArray[Any]]

LIST = "item"  # the column whose list lengths all columns of items share
LEFT_OUT = "left_out"  # relevant items that were not sampled


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the file and the type of the array that it becomes."""

    name: str
    dtype: type[np.generic]
    size: int = 1  # numbers per value
    padding: int = 0
    rows: int | None = None  # ids from this number on are read as that of values never seen

    def limited(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values, with ids that the embedding table does not have replaced."""
        if self.rows is None or not (unknown := values >= self.rows).any():
            return values
        return np.where(unknown, values.dtype.type(UNSEEN), values)

    def shape(self, *leading: int) -> tuple[int, ...]:
        """Return the shape of an array of values."""
        return (*leading, self.size) if self.size > 1 else leading


@dataclass(frozen=True, slots=True)
class ListColumns:
    """Columns whose lists have the same lengths and are padded to one width."""

    name: str  # "item" or "sequence.NAME"
    width: int
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of impressions: single values, the lists of items, the sequences."""

    single: tuple[Column, ...]
    items: ListColumns
    sequences: tuple[ListColumns, ...]

    @property
    def lists(self) -> tuple[ListColumns, ...]:
        """All columns of lists, which are padded."""
        return (self.items, *self.sequences)

    def named(self) -> dict[str, dict[str, str]]:
        """Return the columns ``GROUP.NAME`` of each group by name."""
        columns = [*self.single, *(column for lists in self.lists for column in lists.columns)]
        groups: dict[str, dict[str, str]] = {group: {} for group in ("user", "context", "item", "feedback")}
        for column in columns:
            group, dot, name = column.name.rpartition(".")
            if dot:
                groups.setdefault(group, {})[name] = column.name
        return groups


_PADDING = {"item": -1, "depth": -1, "rank": -1, "position": -1, "inclusion": 1}  # 0 for all other columns


def layout_of(log: ImpressionLog, width: int) -> Layout:
    """Return the columns of the impressions of a log whose longest list has `width` items."""
    tables = {f"{feature.group}.{feature.name}": feature.embedding or "" for feature in log.features.features}
    single: list[Column] = []
    items: list[Column] = []
    sequences: dict[str, list[Column]] = {f"sequence.{sequence.name}": [] for sequence in log.features.sequences}
    for field in impression_schema(log.spec, request=pa.int64()):
        if field.name in ("request", LEFT_OUT):
            continue
        group, _, feature = field.name.rpartition(".")
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
        dtype = np.int64 if pa.types.is_timestamp(kind) else np.int32 if pa.types.is_integer(kind) else np.float32
        table = tables.get(f"item.{feature}" if group in sequences else field.name, "")
        column = Column(field.name, dtype, size, _PADDING.get(field.name, 0), log.limits.get(table))
        sequences.get(group, items if pa.types.is_list(field.type) else single).append(column)
    lengths = {f"sequence.{sequence.name}": sequence.max_length for sequence in log.features.sequences}
    lists = tuple(ListColumns(name, lengths[name], tuple(columns)) for name, columns in sequences.items())
    return Layout(tuple(single), ListColumns(LIST, width, tuple(items)), lists)


# --- the file ---------------------------------------------------------------------------------------------------


class DayBlocks:
    """The blocks of the mapped file of a day.

    Raises:
        ValueError: If the file does not match the spec of the log or the manifest of the day.
    """

    def __init__(self, log: ImpressionLog, day: Day) -> None:
        self.path = day.file
        table = day.table()
        check_schema(table.schema, log.spec, f"path: {self.path}")
        self._blocks: list[pa.RecordBatch] = table.to_batches()
        self.starts: Rows = np.cumsum([0, *(len(block) for block in self._blocks)])
        if self.starts[-1] != len(day):
            raise RankfallError(
                f"path: {self.path} has {self.starts[-1]:,} impressions, its manifest states {len(day):,}"
            )

    def lengths(self, name: str = LIST) -> Iterator[Rows]:
        """Iterate over the list lengths of a column, block by block."""
        for number in range(len(self._blocks)):
            yield np.diff(self.offsets(number, name))

    def items(self, name: str = LIST) -> pa.ChunkedArray:
        """Return the items of all lists of a column, one list after the other."""
        blocks = range(len(self._blocks))
        return pa.chunked_array([self.column(number, name).flatten() for number in blocks], pa.int32())

    def split(self, rows: Rows) -> Iterator[tuple[int, Rows, slice]]:
        """Split sorted rows of the day by block.

        Yields:
            The index of the block, the rows counted from its first one, and their positions in `rows`.
        """
        edges = np.searchsorted(rows, self.starts)
        for number in np.flatnonzero(np.diff(edges)):
            place = slice(edges[number], edges[number + 1])
            yield int(number), rows[place] - self.starts[number], place

    def column(self, number: int, name: str) -> pa.Array:
        """Return a column of a block, after checking it."""
        block = self._blocks[number]
        if name not in block.schema.names:
            raise RankfallError(f"path: {self.path} has no column {name!r}, which the manifest of the log describes")
        try:
            array = block.column(name)
            array.validate()
        except pa.ArrowInvalid as error:
            raise self.damaged(number, name, str(error)) from None
        return array

    def offsets(self, number: int, name: str) -> Rows:
        """Return where the lists of a block begin in its values, and where the last one ends."""
        array = self.column(number, name)
        offsets: Rows = array.offsets.to_numpy().astype(np.int64)
        if (offsets[1:] < offsets[:-1]).any() or offsets[0] < 0 or offsets[-1] > len(array.values):
            raise self.damaged(number, name, "a list ends before it begins")
        return offsets

    def values(self, number: int, column: Column, offsets: Rows) -> NDArray[Any]:
        """Return the values of the lists of a block, which must have these offsets."""
        array = self.column(number, column.name)
        if not np.array_equal(array.offsets.to_numpy(), offsets):
            raise self.damaged(number, column.name, "its lists differ in length from those of the other columns")
        return numbers(array.values, column)

    def damaged(self, number: int, name: str, reason: str) -> ValueError:
        """Return the error for a damaged column of a block."""
        return RankfallError(f"path: {self.path} is damaged in block {number}, column {name!r}: {reason}")


def numbers(array: pa.Array, column: Column) -> NDArray[Any]:
    """Return the values of a column without lists, without copying them."""
    if column.size > 1:
        found: NDArray[Any] = array.values.to_numpy().reshape(-1, column.size)
    elif pa.types.is_timestamp(array.type):
        found = array.view(pa.int64()).to_numpy()
    else:
        found = array.to_numpy()
    return found


# --- the window -------------------------------------------------------------------------------------------------


class Window:
    """A buffer for the columns of some impressions of a day; its memory is reused.

    Args:
        layout: The columns.
        capacity: The largest number of impressions.
        left_out: Also read the left-out items.
    """

    def __init__(self, layout: Layout, capacity: int, *, left_out: bool) -> None:
        self._layout = layout
        self._has_left_out = left_out
        self._left_out: LeftOut | None = None
        self._arrays: Arrays = {column.name: np.empty(column.shape(capacity), column.dtype) for column in layout.single}
        for lists in layout.lists:
            self._arrays |= {
                column.name: np.empty(column.shape(capacity, lists.width), column.dtype) for column in lists.columns
            }
            self._arrays[lengths_of(lists)] = np.empty(capacity, np.int32)

    def load(self, blocks: DayBlocks, rows: Rows) -> None:
        """Read these rows of a day, which are sorted."""
        for number, inside, place in blocks.split(rows):
            self._load_block(blocks, number, inside, place)
        self._left_out = LeftOut(blocks, rows) if self._has_left_out else None

    def take(self, places: Rows) -> Arrays:
        """Return copies of the rows at these positions of the window."""
        return {name: array.take(places, axis=0) for name, array in self._arrays.items()}

    def left_out(self, places: Rows) -> Rows | None:
        """Return the left-out items of these positions, see :meth:`LeftOut.take`."""
        return self._left_out.take(places) if self._left_out else None

    def _load_block(self, blocks: DayBlocks, number: int, rows: Rows, place: slice) -> None:
        first, last = rows[0], rows[-1] + 1
        together = last - first == len(rows)  # a slice is copied in one piece
        chosen = slice(first, last) if together else rows
        for column in self._layout.single:
            values = numbers(blocks.column(number, column.name), column)
            self._arrays[column.name][place] = column.limited(values[chosen])
        for lists in self._layout.lists:
            offsets = blocks.offsets(number, lists.columns[0].name)
            lengths = np.diff(offsets)[chosen]
            if lengths.max() > lists.width:
                found = f"found a list of {lengths.max()}, expected at most {lists.width}"
                raise blocks.damaged(number, lists.columns[0].name, found)
            self._arrays[lengths_of(lists)][place] = lengths
            places = slice(offsets[first], offsets[last]) if together else spans(offsets[rows], lengths)
            mask = None if (lengths == lists.width).all() else mask_of(lengths, lists.width)
            for column in lists.columns:
                flat = column.limited(blocks.values(number, column, offsets)[places])
                _pad(flat, mask, self._arrays[column.name][place], column.padding)


class LeftOut:
    """The relevant items that were not sampled; there are few of them, so they are not padded."""

    def __init__(self, blocks: DayBlocks, rows: Rows) -> None:
        self._lengths, items = np.zeros(len(rows), np.int64), [np.empty(0, np.int32)]
        for number, inside, place in blocks.split(rows):
            offsets = blocks.offsets(number, LEFT_OUT)
            self._lengths[place] = lengths = np.diff(offsets)[inside]
            items.append(blocks.values(number, Column(LEFT_OUT, np.int32), offsets)[spans(offsets[inside], lengths)])
        self._items = np.concatenate(items)
        self._starts: Rows = np.cumsum(self._lengths) - self._lengths

    def take(self, places: Rows) -> Rows | None:
        """Return the left-out items of these positions.

        Returns:
            One number per item, ``(index of the position) << 32 | item``, sorted; None if there is no item.
        """
        lengths = self._lengths[places]
        if not lengths.any():
            return None
        items = self._items[spans(self._starts[places], lengths)]
        return np.sort(np.repeat(np.arange(len(places)), lengths) << 32 | items)


def lengths_of(lists: ListColumns) -> str:
    """Return the name of the array with the list lengths before padding."""
    return f"{lists.name}/lengths"


def mask_of(lengths: NDArray[np.integer[Any]], width: int) -> NDArray[np.bool_]:
    """Return a mask that is True where lists padded to `width` have values."""
    mask: NDArray[np.bool_] = np.arange(width, dtype=np.int32) < lengths[:, None]
    return mask


def _pad(flat: NDArray[Any], mask: NDArray[np.bool_] | None, out: NDArray[Any], padding: int) -> None:
    """Write lists that follow one another into rows of equal width; without a mask all lists have that width."""
    if mask is None:
        out[...] = flat.reshape(out.shape)
    else:
        out[...] = padding
        out[mask] = flat


@dataclass(slots=True, repr=False)
class Impressions:
    """Impressions of one day: ``batch.user["age"]``, ``batch.items["author_id"]``.

    A batch has B impressions with lists of N items, both constant where the loader can keep them so. Ids are int32,
    numbers float32; vectors have a last dimension for their numbers. Where `mask` is False there is padding.
    """

    day: str
    rows: Tensor  # (B,) int64, the rows of the impressions in the file of the day
    time: Tensor  # (B,) int64, milliseconds since 1970
    user: dict[str, Tensor]  # (B,)
    context: dict[str, Tensor]  # (B,)
    sequences: dict[str, dict[str, Tensor]]  # (B, L) int32, oldest first, then 0 up to the sequence's maximum length
    sequence_mask: dict[str, Tensor]  # (B, L) bool
    item: Tensor  # (B, N) int32, -1 in padding
    items: dict[str, Tensor]  # (B, N), 0 in padding
    depth: Tensor  # (B, N) int32, -1 for added negatives and padding
    rank: Tensor  # (B, N) int32, -1 for none
    relevance: Tensor  # (B, N) float32, 0 for added negatives and padding
    grade: Tensor  # (B, N) int32, 0 for added negatives and padding
    feedback: dict[str, Tensor]  # (B, N) float32, 0 for added negatives and padding
    mask: Tensor  # (B, N) bool, True for items
    truth: Tensor | None = None  # (B, N) float32, NaN for added negatives, 0 in padding
    position: Tensor | None = None  # (B, N) int32, from 0 for the first; -1 for not shown, added negatives and padding
    inclusion: Tensor | None = None  # (B, N) float32, the probability of the draw; 1 for added negatives and padding

    def __len__(self) -> int:
        """The number of impressions."""
        return len(self.rows)

    def __repr__(self) -> str:
        """Names, types and shapes, one line per attribute."""
        lines = [f"    {field.name}={_shown(getattr(self, field.name))}" for field in fields(self)]
        return "\n".join(["Impressions(", *lines, ")"])

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        sizes: list[int] = []

        def note(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        self._map(note)
        return sum(sizes)

    def take(self, rows: slice) -> Impressions:
        """Return some of the impressions, without copying them."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Impressions:
        """Copy the batch to another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Impressions:
        """Copy the batch to pinned memory, from which a GPU can copy asynchronously."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Impressions:
        return Impressions(**{field.name: _mapped(getattr(self, field.name), change) for field in fields(self)})


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return {name: _mapped(part, change) for name, part in value.items()} if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        device = "" if value.device.type == "cpu" else f" {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{device}"
    if isinstance(value, dict):
        alike: dict[str, list[str]] = {}
        for name, part in value.items():
            alike.setdefault(_shown(part), []).append(name)
        return "{" + "; ".join(f"{', '.join(names)}: {shape}" for shape, names in alike.items()) + "}"
    return repr(value)


T = TypeVar("T")


class _End:
    """Marks the end of the results, with the error that caused it, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Exchange(Generic[T]):
    """The queues between the thread and the iterator.

    Simple queues can be used while garbage is collected, whatever the thread was doing at that moment.
    """

    def __init__(self, depth: int) -> None:
        self.results: SimpleQueue[T | _End] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()  # one entry per result that may still be queued
        self.stopped = False
        for _ in range(depth):
            self.room.put(None)

    def work(self, source: Iterator[T]) -> None:
        """Put results into the queue until the iterator stops."""
        end = _End()
        try:
            for result in source:
                self.room.get()
                if self.stopped:
                    return
                self.results.put(result)
                del result  # otherwise it would stay in memory until the next one is ready
        except BaseException as error:
            end = _End(error)
        self.results.put(end)

    def stop(self, thread: Thread) -> None:
        """Stop the thread after its current result."""
        self.stopped = True
        self.room.put(None)  # the thread may be waiting for room
        if thread is not current_thread():
            thread.join()


class Prefetcher(Generic[T]):
    """An iterator over `source` whose next results are computed in a thread.

    Errors of the thread are raised here, after the results before them. The thread ends with :meth:`close`, when the
    iterator is garbage collected and at the end of the program, in each case after its current result.

    Args:
        source: The iterator to run in the thread.
        depth: The largest number of results to compute ahead.
    """

    def __init__(self, source: Iterator[T], depth: int) -> None:
        self._exchange: _Exchange[T] = _Exchange(depth)
        # The thread must not refer to this object, or it would never be garbage collected.
        thread = Thread(target=self._exchange.work, args=(source,), name="rankfall-loader", daemon=True)
        self.close = weakref.finalize(self, self._exchange.stop, thread)
        thread.start()

    def __iter__(self) -> Iterator[T]:
        """Return the iterator itself."""
        return self

    def __next__(self) -> T:
        """Return the next result; wait for it if necessary."""
        result = self._exchange.results.get()
        if isinstance(result, _End):
            self.close()
            raise StopIteration if result.error is None else result.error
        self._exchange.room.put(None)
        return result
