"""The items of a bundle: their ids and features by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.serving.bundle_files import map_lookup, map_table, numbers, one_array
from rankfall.serving.value_checks import values_like

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]
    Id = int | str


class Items:
    """A table of items that is mapped into memory.

    Args:
        path: The file ``items.arrow`` of a bundle.
    """

    def __init__(self, path: Path) -> None:
        table = map_table(path)
        self.lookup = map_lookup(table, "id")
        self._features = {
            name: numbers(one_array(table, name)) for name in table.column_names if name.startswith("item.")
        }
        self._numbers = None if self.lookup.is_text else numbers(self.lookup.values)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lookup.values)

    def gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return a feature of the items in these rows."""
        return self._features[name].take(rows, axis=0)

    def ids(self, rows: Rows) -> list[Id]:
        """Return the ids of the items in rows (n,)."""
        if self._numbers is not None:
            found: list[Id] = self._numbers[rows].tolist()
        else:
            found = self.lookup.values.take(rows).to_pylist()
        return found

    def rows(self, ids: Sequence[Any]) -> Rows:
        """Return the rows of items, -1 for those that the bundle does not have."""
        return self.lookup.find(values_like(self.lookup, ids, self._expected))

    @property
    def _expected(self) -> str:
        return "an id of an item, text" if self.lookup.is_text else "an id of an item, a whole number"
