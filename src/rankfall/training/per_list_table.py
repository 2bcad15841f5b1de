"""Table of metrics per list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

CHANCE = "chance "  # prefix of the columns with the values of a random scorer


def values_table(
    qids: pa.Array | pa.ChunkedArray, values: Mapping[str, Tensor], chance: Mapping[str, Tensor]
) -> pa.Table:
    """Return a table with one row per list: its id, each metric and its chance level. NaN where undefined."""
    columns = {"qid": qids}
    columns |= {name: pa.array(value.numpy()) for name, value in values.items()}
    columns |= {CHANCE + name: pa.array(value.numpy()) for name, value in chance.items()}
    return pa.table(columns)
