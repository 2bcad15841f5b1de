"""The impressions of a mapped file as arrays, one block at a time; only damaged blocks are copied."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.impressions.schema import check_no_nulls, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day
    from rankfall.data.impressions.spec import Spec


class ImpressionBlock:
    """Impressions with lists of consistent lengths, as arrays."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        """The number of impressions."""
        return len(self.batch)

    def values(self, column: str) -> NDArray[Any]:
        """Return the values of a column, flattened over lists; (n, size) for vectors."""
        return flat(self.batch[column])

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the length of each list of a column."""
        return _lengths(self.batch[column])

    @cached_property
    def item_counts(self) -> NDArray[np.int64]:
        """The number of items of each impression."""
        return self.lengths("item")

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The impression of each item."""
        return np.repeat(np.arange(len(self)), self.item_counts)

    @cached_property
    def relevant(self) -> NDArray[np.bool_]:
        """Which items are relevant."""
        above: NDArray[np.bool_] = self.values("relevance") > 0
        return above

    def per_impression(self, marked: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of marked items of each impression."""
        ends = np.cumsum(self.item_counts)
        sums = np.concatenate([[0], np.cumsum(marked)])
        counts: NDArray[np.int64] = sums[ends] - sums[ends - self.item_counts]
        return counts


def read_blocks(day: Day, spec: Spec) -> Iterator[tuple[ImpressionBlock, int]]:
    """Iterate over the blocks of a day.

    Yields:
        A block, and the number of impressions left out of it because their lists have different lengths.

    Raises:
        ValueError: If the file does not match the spec of the log, or is damaged.
    """
    table = day.table()
    check_schema(table.schema, spec, f"path: {day.file}")
    if len(table) != len(day):
        raise ValueError(f"path: {day.file} has {len(table):,} impressions, its manifest states {len(day):,}")
    groups = _lists_of_one_length(table.schema)
    for batch in table.to_batches():
        _check_content(batch, str(day.file))
        even = _even(batch, groups)
        uneven = len(batch) - int(np.count_nonzero(even))
        yield ImpressionBlock(batch.filter(pa.array(even)) if uneven else batch), uneven


def _check_content(batch: pa.RecordBatch, path: str) -> None:
    try:
        batch.validate(full=True)  # invalid offsets must not be dereferenced
    except pa.ArrowInvalid as error:
        raise ValueError(f"path: {path} is damaged ({error})") from None
    check_no_nulls(batch, f"path: {path}")


def _lists_of_one_length(schema: pa.Schema) -> list[list[str]]:
    """Group columns whose lists must have equal lengths: those of items, and those of each sequence."""
    groups: dict[str, list[str]] = {}
    for field in schema:
        if pa.types.is_list(field.type) and field.name != "left_out":  # its items are not the candidates
            of = field.name.split(".")[1] if field.name.startswith("sequence.") else ""
            groups.setdefault(of, []).append(field.name)
    return list(groups.values())


def _even(batch: pa.RecordBatch, groups: list[list[str]]) -> NDArray[np.bool_]:
    even = np.ones(len(batch), np.bool_)
    for first, *others in groups:
        lengths = _lengths(batch[first])
        for column in others:
            even &= _lengths(batch[column]) == lengths
    return even


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return lengths


def flat(values: pa.Array) -> NDArray[Any]:
    """Return the values of an Arrow array, flattened over lists; (n, size) for vectors."""
    if pa.types.is_list(values.type):
        values = values.flatten()
    if pa.types.is_fixed_size_list(values.type):
        return flat(values.flatten()).reshape(-1, values.type.list_size)
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    array: NDArray[Any] = values.to_numpy()
    return array
