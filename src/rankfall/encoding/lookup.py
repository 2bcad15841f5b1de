"""Positions of values in a long column, found by binary search in sorted hashes or by a hash table.

Sorted hashes are stored in a file that all processes map into memory; a dictionary of a million values takes seconds to
build in each process. A temporary hash table is faster when a whole column is looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall.encoding.hashing import hash_array, is_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Places = NDArray[np.int32]

NOWHERE = -1
_MANY = 1024  # queries from which on a hash table may be built,
_PER_QUERY = 16  # if it has at most this number of values per query


class Lookup:
    """Index of the positions of distinct values.

    Args:
        values: Integers or strings without duplicates.
        hashes: Their sorted hashes, and
        places: the position in `values` of each hash; by default both are computed when they are first needed.
    """

    def __init__(self, values: pa.Array, hashes: Hashes | None = None, places: Places | None = None) -> None:
        self.values = values
        self._sorted = None if hashes is None or places is None else (hashes, places)

    @classmethod
    def of(cls, values: pa.Array, *, name: str) -> Lookup:
        """Build the index of values and check that they are distinct.

        Args:
            values: Integers or strings.
            name: Name of the values in error messages.

        Raises:
            ValueError: A value occurs twice, or two values have the same hash.
        """
        hashes, places = _sort_hashes(values)
        if (same := np.flatnonzero(hashes[1:] == hashes[:-1])).size:
            one, other = (values[int(places[place])].as_py() for place in (same[0], same[0] + 1))
            what = "occurs twice" if one == other else f"and {other!r} have the same hash"
            raise ValueError(f"{name}: {one!r} {what}")
        return cls(values, hashes, places)

    @property
    def is_text(self) -> bool:
        """Whether the values are strings."""
        return is_text(self.values)

    def columns(self) -> dict[str, Any]:
        """Return the sorted hashes and their positions as columns to store beside the values."""
        hashes, places = self._hashes()
        return {"hash": hashes, "place": places}

    def find(self, queries: pa.Array) -> NDArray[np.int64]:
        """Return the position of each query, -1 for those that are not among the values.

        Args:
            queries: Integers or strings as the values are, without nulls.
        """
        if not len(self.values):
            return np.full(len(queries), NOWHERE)
        if len(queries) >= max(_MANY, len(self.values) // _PER_QUERY):
            found = pc.index_in(queries, value_set=self.values.cast(queries.type))
            return np.asarray(found.fill_null(NOWHERE)).astype(np.int64)
        hashes, places = self._hashes()
        at = np.searchsorted(hashes, hash_array(queries))
        candidates = places[np.minimum(at, len(places) - 1)].astype(np.int64)
        # cast the values, not the queries: a query may exceed the range of the values' type
        same = pc.equal(self.values.take(pa.array(candidates)).cast(queries.type), queries)
        return np.where(same.to_numpy(zero_copy_only=False), candidates, NOWHERE)

    def _hashes(self) -> tuple[Hashes, Places]:
        if self._sorted is None:
            self._sorted = _sort_hashes(self.values)
        return self._sorted


def _sort_hashes(values: pa.Array) -> tuple[Hashes, Places]:
    hashes = hash_array(values)
    places = np.argsort(hashes, kind="stable").astype(np.int32)
    return hashes[places], places


def plain_values(values: pa.Array) -> pa.Array:
    """Return integers and booleans as int64, everything else as strings."""
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.large_string())
