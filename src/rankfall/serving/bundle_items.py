"""The items of a bundle: their ids, and their features ready to be gathered by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.serving.bundle_files import map_table, numbers, one_array
from rankfall.serving.lookup import Lookup
from rankfall.serving.value_checks import ids_like

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]
    Id = int | str


class Items:
    """A table of items, mapped into memory."""

    def __init__(self, path: Path) -> None:
        table = map_table(path)
        self.lookup = Lookup(
            one_array(table, "id"), numbers(one_array(table, "hash")), numbers(one_array(table, "place"))
        )
        self._features = {
            name: numbers(one_array(table, name)) for name in table.column_names if name.startswith("item.")
        }
        self._numbers = None if self.lookup.is_text else numbers(self.lookup.values)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.lookup.values)

    def gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """A feature of the items in these rows."""
        return self._features[name].take(rows, axis=0)

    def ids(self, rows: Rows) -> list[Id]:
        """The source's ids of rows (n,)."""
        if self._numbers is not None:
            found: list[Id] = self._numbers[rows].tolist()
        else:
            found = self.lookup.values.take(rows).to_pylist()
        return found

    def rows(self, ids: Sequence[Any]) -> Rows:
        """Where items stand, -1 for those that the bundle does not have."""
        return self.lookup.find(ids_like(self.lookup, ids, self.expected))

    @property
    def expected(self) -> str:
        """In words, what an id is."""
        return "an id of an item, text" if self.lookup.is_text else "an id of an item, a whole number"
