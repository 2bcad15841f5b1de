"""The items of a bundle: their ids and features by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.encoding import BadValueError
from rankfall.encoding.lookup import NOWHERE
from rankfall.serving.bundle_files import DISPLAY, numbers, one_array, read_lookup, read_table
from rankfall.serving.value_checks import values_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.serving.memory_files import MemoryFile

    Rows = NDArray[np.int64]
    Id = int | str


class Items:
    """The table of items.

    Args:
        file: The file ``items.arrow`` of a bundle.
    """

    def __init__(self, file: MemoryFile) -> None:
        table = read_table(file)
        self.lookup = read_lookup(table, "id")
        self._features = {
            name: numbers(one_array(table, name)) for name in table.column_names if name.startswith("item.")
        }
        self._display = {
            name.removeprefix(DISPLAY): one_array(table, name)
            for name in table.column_names
            if name.startswith(DISPLAY)
        }
        self._numbers = None if self.lookup.is_text else numbers(self.lookup.values)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lookup.values)

    def gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return a feature of the items in these rows."""
        return self._features[name].take(rows, axis=0)

    def extremes(self) -> Rows:
        """Return the rows of the items that have the smallest or the largest id of a feature."""
        ids = [of for of in self._features.values() if len(of) and np.issubdtype(of.dtype, np.integer)]
        return np.unique(np.array([row for of in ids for row in (of.argmin(), of.argmax())], np.int64))

    @property
    def features(self) -> list[str]:
        """The names of the features, such as ``item.author``."""
        return list(self._features)

    def display(self, rows: Rows) -> dict[str, list[Any]]:
        """Return the attributes that are shown to people of the items in rows (n,), None for the row -1."""
        found = {name: values.take(np.maximum(rows, 0)).to_pylist() for name, values in self._display.items()}
        if (rows == NOWHERE).any():
            absent = np.flatnonzero(rows == NOWHERE).tolist()
            for values in found.values():
                for place in absent:
                    values[place] = None
        return found

    def ids(self, rows: Rows) -> list[Id]:
        """Return the ids of the items in rows (n,)."""
        if self._numbers is not None:
            found: list[Id] = self._numbers[rows].tolist()
        else:
            found = self.lookup.values.take(rows).to_pylist()
        return found

    def id_array(self, rows: Rows) -> pa.Array:
        """Return the ids of the items in rows (n,) as an Arrow array."""
        return self.lookup.values.take(pa.array(rows, pa.int64()))

    def rows(self, ids: Sequence[Any]) -> Rows:
        """Return the rows of items, -1 for those that the bundle does not have."""
        return self.lookup.find(values_like(self.lookup, ids, self._expected))

    def find(self, values: Sequence[Any]) -> Rows:
        """Return the rows of items, -1 for values that are not ids of items of the bundle."""
        try:
            return self.rows(values)
        except BadValueError:
            return np.array([self._find_one(value) for value in values], np.int64)

    def _find_one(self, value: Any) -> int:
        try:
            return int(self.rows([value])[0])
        except BadValueError:
            return NOWHERE

    @property
    def _expected(self) -> str:
        return "an id of an item, text" if self.lookup.is_text else "an id of an item, a whole number"
