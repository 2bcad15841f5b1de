"""What was measured list by list, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

CHANCE = "chance "  # before a metric's name: what a random scorer gets


def values_table(
    qids: pa.Array | pa.ChunkedArray, values: Mapping[str, Tensor], chance: Mapping[str, Tensor]
) -> pa.Table:
    """A row a list: its id, each metric and its chance level; NaN where a metric is undefined."""
    columns = {"qid": qids}
    columns |= {name: pa.array(value.numpy()) for name, value in values.items()}
    columns |= {CHANCE + name: pa.array(value.numpy()) for name, value in chance.items()}
    return pa.table(columns)
