"""Columns of a mapped day as arrays: a window of impressions, from which batches are taken.

The rows of a window are copied from the blocks of the file in the order of the file, so that a disk reads forward, and
lists are padded on the way. Batches are then gathered from memory. Nothing is done for one impression at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.impressions.loader.order import spans
from rankfall.data.impressions.log import impression_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rankfall.data.impressions.loader.order import Rows
    from rankfall.data.impressions.log import Day, ImpressionLog
    from rankfall.data.impressions.spec import Feature

    Arrays = dict[str, NDArray[Any]]

LIST = "item"  # the lists that all columns of items share their lengths with
LEFT_OUT = "left_out"  # relevant items that are not in the lists


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the file and the array it becomes."""

    name: str
    dtype: type[np.generic]
    size: int = 1  # numbers of one value
    padding: int = 0

    def shape(self, *leading: int) -> tuple[int, ...]:
        """Of an array of values."""
        return (*leading, self.size) if self.size > 1 else leading


@dataclass(frozen=True, slots=True)
class Lists:
    """Columns of lists of the same lengths, padded to one width."""

    name: str  # "item" or "sequence.NAME"
    width: int
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of impressions: single values, the lists of items, the sequences."""

    single: tuple[Column, ...]
    items: Lists
    sequences: tuple[Lists, ...]

    @property
    def lists(self) -> tuple[Lists, ...]:
        """Everything that is padded."""
        return (self.items, *self.sequences)

    def named(self) -> dict[str, dict[str, str]]:
        """The columns GROUP.NAME of each group by their names."""
        columns = [*self.single, *(column for lists in self.lists for column in lists.columns)]
        groups: dict[str, dict[str, str]] = {group: {} for group in ("user", "context", "item", "feedback")}
        for column in columns:
            group, dot, name = column.name.rpartition(".")
            if dot:
                groups.setdefault(group, {})[name] = column.name
        return groups


def layout_of(log: ImpressionLog, width: int) -> Layout:
    """The columns of the impressions of a log whose longest list has `width` items."""
    single = [_feature_column(feature) for feature in (*log.features.of("user"), *log.features.of("context"))]
    items = [Column("item", np.int32, padding=-1), *(_feature_column(feature) for feature in log.features.of("item"))]
    items += [Column("depth", np.int32, padding=-1), Column("rank", np.int32, padding=-1)]
    items += [Column("relevance", np.float32), Column("grade", np.int32)]
    items += [Column(f"feedback.{name}", np.float32) for name in log.spec.feedback]
    items += [Column("truth", np.float32)] if log.spec.truth is not None else []
    sequences = [
        Lists(
            f"sequence.{sequence.name}",
            sequence.max_length,
            tuple(Column(f"sequence.{sequence.name}.{name}", np.int32) for name in sequence.features),
        )
        for sequence in log.features.sequences
    ]
    return Layout((Column("time", np.int64), *single), Lists(LIST, width, tuple(items)), tuple(sequences))


def _feature_column(feature: Feature) -> Column:
    dtype = np.float32 if feature.embedding is None else np.int32
    return Column(f"{feature.group}.{feature.name}", dtype, feature.size)


# --- the file ---------------------------------------------------------------------------------------------------


class Blocks:
    """The blocks of a day's mapped file."""

    def __init__(self, log: ImpressionLog, day: Day) -> None:
        self.path = day.path / "impressions.arrow"
        table = day.table()
        names = table.schema.names
        request = table.schema.field("request").type if "request" in names else pa.int64()
        expected = impression_schema(log.spec, request=request)
        if missing := [name for name in expected.names if name not in names]:
            raise ValueError(f"path: {self.path} lacks columns that the spec of its log has: {', '.join(missing)}")
        if table.schema != expected:
            other = [field.name for field in expected if field not in table.schema] or ["more than it should have"]
            raise ValueError(f"path: {self.path} does not fit the spec of its log: see {', '.join(other)}")
        self._blocks: list[pa.RecordBatch] = table.to_batches()
        self.starts: Rows = np.cumsum([0, *(len(block) for block in self._blocks)])
        if self.starts[-1] != len(day):
            raise ValueError(f"path: {self.path} has {self.starts[-1]:,} impressions, its manifest says {len(day):,}")

    def lengths(self, name: str = LIST) -> Iterator[Rows]:
        """The lengths of the lists of a column, block by block."""
        for number in range(len(self._blocks)):
            yield np.diff(self.offsets(number, name))

    def items(self, name: str = LIST) -> pa.ChunkedArray:
        """All items of the lists of a column, one list after the other."""
        blocks = range(len(self._blocks))
        return pa.chunked_array([self.column(number, name).flatten() for number in blocks], pa.int32())

    def split(self, rows: Rows) -> Iterator[tuple[int, Rows, slice]]:
        """Rows of the day, which rise, by block: its number, the rows counted from its first, their places."""
        edges = np.searchsorted(rows, self.starts)
        for number in np.flatnonzero(np.diff(edges)):
            place = slice(edges[number], edges[number + 1])
            yield int(number), rows[place] - self.starts[number], place

    def column(self, number: int, name: str) -> pa.Array:
        """A column of a block."""
        try:
            array = self._blocks[number].column(name)
            array.validate()
        except pa.ArrowInvalid as error:
            raise self.damaged(number, name, str(error)) from None
        return array

    def offsets(self, number: int, name: str) -> Rows:
        """Where the lists of a block begin in its values, and where the last ends."""
        array = self.column(number, name)
        offsets: Rows = array.offsets.to_numpy().astype(np.int64)
        if (offsets[1:] < offsets[:-1]).any() or offsets[0] < 0 or offsets[-1] > len(array.values):
            raise self.damaged(number, name, "its lists end before they begin")
        return offsets

    def values(self, number: int, column: Column, offsets: Rows) -> NDArray[Any]:
        """The values of the lists of a block, which must have these offsets."""
        array = self.column(number, column.name)
        if not np.array_equal(array.offsets.to_numpy(), offsets):
            raise self.damaged(number, column.name, "its lists have not the lengths of those beside it")
        return numbers(array.values, column)

    def damaged(self, number: int, name: str, reason: str) -> ValueError:
        """What is wrong with a column of a block."""
        return ValueError(f"path: {self.path} is damaged in block {number}, column {name!r}: {reason}")


def numbers(array: pa.Array, column: Column) -> NDArray[Any]:
    """The values of a column without lists, as they lie in memory."""
    if column.size > 1:
        found: NDArray[Any] = array.values.to_numpy().reshape(-1, column.size)
    elif pa.types.is_timestamp(array.type):
        found = array.view(pa.int64()).to_numpy()
    else:
        found = array.to_numpy()
    return found


# --- the window -------------------------------------------------------------------------------------------------


class Window:
    """Room for the columns of some impressions of a day. Their memory is used again for the next ones."""

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

    def load(self, blocks: Blocks, rows: Rows) -> None:
        """Bring these rows of a day, which rise."""
        for number, inside, place in blocks.split(rows):
            self._load_block(blocks, number, inside, place)
        self._left_out = LeftOut(blocks, rows) if self._has_left_out else None

    def take(self, places: Rows) -> Arrays:
        """Copies of the rows at these places of the window."""
        return {name: array.take(places, axis=0) for name, array in self._arrays.items()}

    def left_out(self, places: Rows) -> Rows | None:
        """What the lists at these places leave out, see :meth:`LeftOut.take`."""
        return self._left_out.take(places) if self._left_out else None

    def _load_block(self, blocks: Blocks, number: int, rows: Rows, place: slice) -> None:
        first, last = rows[0], rows[-1] + 1
        together = last - first == len(rows)  # a slice, so that whole memory is copied
        chosen = slice(first, last) if together else rows
        for column in self._layout.single:
            self._arrays[column.name][place] = numbers(blocks.column(number, column.name), column)[chosen]
        for lists in self._layout.lists:
            offsets = blocks.offsets(number, lists.columns[0].name)
            lengths = np.diff(offsets)[chosen]
            if lengths.max() > lists.width:
                found = f"a list of {lengths.max()}, the maximum is {lists.width}"
                raise blocks.damaged(number, lists.columns[0].name, found)
            self._arrays[lengths_of(lists)][place] = lengths
            values = slice(offsets[first], offsets[last]) if together else spans(offsets[rows], lengths)
            mask = None if (lengths == lists.width).all() else mask_of(lengths, lists.width)
            for column in lists.columns:
                flat = blocks.values(number, column, offsets)[values]
                _pad(flat, mask, self._arrays[column.name][place], column.padding)


class LeftOut:
    """The relevant items that are not in the lists of some impressions: few, so they are not padded."""

    def __init__(self, blocks: Blocks, rows: Rows) -> None:
        self._lengths, items = np.zeros(len(rows), np.int64), [np.empty(0, np.int32)]
        for number, inside, place in blocks.split(rows):
            offsets = blocks.offsets(number, LEFT_OUT)
            self._lengths[place] = lengths = np.diff(offsets)[inside]
            items.append(blocks.values(number, Column(LEFT_OUT, np.int32), offsets)[spans(offsets[inside], lengths)])
        self._items = np.concatenate(items)
        self._starts: Rows = np.cumsum(self._lengths) - self._lengths

    def take(self, places: Rows) -> Rows | None:
        """What is left out at these places: of each item (number of the place) << 32 | item, sorted; None: nothing."""
        lengths = self._lengths[places]
        if not lengths.any():
            return None
        items = self._items[spans(self._starts[places], lengths)]
        return np.sort(np.repeat(np.arange(len(places)), lengths) << 32 | items)


def lengths_of(lists: Lists) -> str:
    """The array with the lengths of lists before they were padded."""
    return f"{lists.name}/lengths"


def mask_of(lengths: NDArray[np.integer[Any]], width: int) -> NDArray[np.bool_]:
    """True where lists that were padded to `width` have values."""
    mask: NDArray[np.bool_] = np.arange(width, dtype=np.int32) < lengths[:, None]
    return mask


def _pad(flat: NDArray[Any], mask: NDArray[np.bool_] | None, out: NDArray[Any], padding: int) -> None:
    """Write lists that stand one after the other into rows of one width; without a mask all have that width."""
    if mask is None:
        out[...] = flat.reshape(out.shape)
    else:
        out[...] = padding
        out[mask] = flat
