"""Where a value stands in a long column, found by binary search in sorted hashes.

A dictionary of a million values takes seconds to build and belongs to one process; sorted hashes lie in a file that
all processes map into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall._ids import hash_numbers, hash_strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOWHERE = -1


class Lookup:
    """The places of `values`, whole numbers or text, each of which stands there once."""

    def __init__(self, values: pa.Array, hashes: NDArray[np.uint64], places: NDArray[np.int32]) -> None:
        self.values = values
        self._hashes = hashes  # sorted,
        self._places = places  # and where each of them stands in the values

    @classmethod
    def of(cls, values: pa.Array, *, name: str) -> Lookup:
        """Sort the hashes of values; `name` is what errors call them."""
        hashes = hash_column(values)
        places = np.argsort(hashes, kind="stable").astype(np.int32)
        hashes = hashes[places]
        if (same := np.flatnonzero(hashes[1:] == hashes[:-1])).size:
            one, other = (values[int(places[place])].as_py() for place in (same[0], same[0] + 1))
            what = "stands there twice" if one == other else f"and {other!r} cannot be told apart by their hashes"
            raise ValueError(f"{name}: {one!r} {what}")
        return cls(values, hashes, places)

    @property
    def is_text(self) -> bool:
        """Whether the values are text."""
        return is_text(self.values)

    def columns(self) -> dict[str, Any]:
        """The sorted hashes and their places, as files keep them beside the values."""
        return {"hash": self._hashes, "place": self._places}

    def find(self, asked: pa.Array) -> NDArray[np.int64]:
        """The place of each value that is asked for, of the same sort as those known; -1 if it is none of them."""
        if not len(self.values):
            return np.full(len(asked), NOWHERE)
        at = np.searchsorted(self._hashes, hash_column(asked))
        places = self._places[np.minimum(at, len(self._places) - 1)].astype(np.int64)
        # a number that is asked for may be larger than those that are known can be
        found = pc.equal(self.values.take(pa.array(places)).cast(asked.type), asked)
        return np.where(found.to_numpy(zero_copy_only=False), places, NOWHERE)


def is_text(values: pa.Array) -> bool:
    """Whether a column is text, not whole numbers."""
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def hash_column(values: pa.Array) -> NDArray[np.uint64]:
    """The hashes of whole numbers or text."""
    if is_text(values):
        return hash_strings(values)
    return hash_numbers(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
