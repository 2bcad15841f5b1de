"""Parsed rows on disk, so that memory does not grow with the number of rows.

The number of features is known only after the last line, and regrouped lists take rows from anywhere. So rows are first
written in the order of the text, each block as compact as possible, and then read in spans of rows of the final width.
"""

from __future__ import annotations

import bisect
import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rankfall._disk import make_directory, open_new

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.sources.letor.parse import ParsedBlock


class _Piece(NamedTuple):
    """The position of the features of one block."""

    first_row: int
    rows: int
    first_id: int  # in a dense block, every row has `width` features from this id on
    width: int  # 0 in a sparse block
    values: int  # positions, in items, in the files of the same names
    ids: int
    counts: int


class _Column:
    """A file of numbers of one type that is appended to and read at any position."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._file = open_new(path, "w+b")
        self.items = 0

    def append(self, items: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(items, self._dtype).data)
        self.items += len(items)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        size = self._dtype.itemsize
        data = os.pread(self._file.fileno(), (stop - start) * size, start * size)
        return np.frombuffer(data, self._dtype)

    def close(self) -> None:
        self._file.close()


class LetorSpool:
    """The rows of one split, in the order in which they were read."""

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self._pieces: list[_Piece] = []
        self._labels = _Column(directory / "labels", "f4")
        self._values = _Column(directory / "values", "f4")
        self._ids = _Column(directory / "ids", "i4")
        self._counts = _Column(directory / "counts", "i4")
        self._docid_ends = _Column(directory / "docid_ends", "i8")
        self._docid_bytes = _Column(directory / "docid_bytes", "u1")
        self._offsets = functools.lru_cache(maxsize=8)(self._read_offsets)
        self.rows = 0
        self.has_docids = False
        self.least_id = np.iinfo(np.int32).max
        self.largest_id = -1
        self.missing_ids: NDArray[np.int32] = np.empty(0, np.int32)

    def append(self, block: ParsedBlock) -> None:
        """Append the rows of a block."""
        if len(block.labels) == 0:
            return
        self._append_features(block)
        self._append_docids(block)
        self._labels.append(block.labels)
        self.rows += len(block.labels)

    def labels(self, start: int, stop: int) -> NDArray[np.float32]:
        """Read the labels of a span of rows."""
        return self._labels.read(start, stop)

    def docids(self, start: int, stop: int) -> pa.LargeStringArray:
        """Read the document ids of a span of rows, empty for rows without one."""
        ends = self._docid_ends.read(max(start - 1, 0), stop)
        edges = ends if start else np.concatenate([np.zeros(1, np.int64), ends])
        data = self._docid_bytes.read(int(edges[0]), int(edges[-1]))
        edges = edges - edges[0]
        return pa.LargeStringArray.from_buffers(stop - start, pa.py_buffer(edges), pa.py_buffer(data))

    def features(self, start: int, stop: int, *, first_id: int, width: int) -> NDArray[np.float32]:
        """Read the features of a span of rows, (rows, width): 0 for absent features, NaN for missing values."""
        features = np.zeros((stop - start, width), np.float32)
        place = bisect.bisect_right(self._pieces, start, key=lambda piece: piece.first_row) - 1
        while start < stop:
            piece = self._pieces[place]
            end = min(stop, piece.first_row + piece.rows)
            target = features[start - stop : end - stop or None]
            self._read_piece(piece, start - piece.first_row, end - piece.first_row, first_id, target)
            start = end
            place += 1
        return features

    def close(self) -> None:
        """Close every file."""
        columns = (self._labels, self._values, self._ids, self._counts, self._docid_ends, self._docid_bytes)
        for column in columns:
            column.close()

    def _append_features(self, block: ParsedBlock) -> None:
        rows, width = len(block.counts), int(block.counts[0])
        first_id = int(block.ids[0]) if len(block.ids) else 0
        dense = width > 0 and bool((block.counts == width).all())
        dense = dense and bool((block.ids.reshape(rows, width) == np.arange(first_id, first_id + width)).all())
        places = (self._values.items, self._ids.items, self._counts.items)
        self._pieces.append(_Piece(self.rows, rows, first_id, width if dense else 0, *places))
        self._values.append(block.values)
        if not dense:
            self._ids.append(block.ids)
            self._counts.append(block.counts)
        if len(block.ids):
            self.least_id = min(self.least_id, int(block.ids.min()))
            self.largest_id = max(self.largest_id, int(block.ids.max()))
        missing = np.isnan(block.values)
        if missing.any():
            self.missing_ids = np.union1d(self.missing_ids, block.ids[missing])

    def _append_docids(self, block: ParsedBlock) -> None:
        start = self._docid_bytes.items
        if block.docids is None:
            self._docid_ends.append(np.full(len(block.labels), start))
            return
        self.has_docids = True
        _, edges, data = block.docids.cast(pa.large_string()).buffers()
        ends = np.frombuffer(edges, np.int64)[1 : len(block.labels) + 1]
        self._docid_ends.append(start + ends)
        if data is not None:
            self._docid_bytes.append(np.frombuffer(data, np.uint8)[: int(ends[-1])])

    def _read_offsets(self, piece: _Piece) -> NDArray[np.int64]:
        """Return where the features of each row of a sparse piece begin."""
        counts = self._counts.read(piece.counts, piece.counts + piece.rows)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    def _read_piece(self, piece: _Piece, start: int, stop: int, first_id: int, target: NDArray[np.float32]) -> None:
        if piece.width:
            values = self._values.read(piece.values + start * piece.width, piece.values + stop * piece.width)
            left = piece.first_id - first_id
            target[:, left : left + piece.width] = values.reshape(-1, piece.width)
            return
        offsets = self._offsets(piece)
        low, high = int(offsets[start]), int(offsets[stop])
        rows = np.repeat(np.arange(stop - start), np.diff(offsets[start : stop + 1]))
        ids = self._ids.read(piece.ids + low, piece.ids + high)
        target[rows, ids - first_id] = self._values.read(piece.values + low, piece.values + high)
