"""The log of a simulated platform in RecFlow's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall.data.sources.recflow_spec import (
    FEEDBACK,
    ITEM_IDS,
    POSITION,
    TRUTH,
    position_expression,
    rank_expression,
    recflow_spec,
    sequence_column,
)
from rankfall.simulation.matching import NO_ITEM
from rankfall.simulation.production import COARSE, POSITIVES, PRERANK
from rankfall.simulation.world import AGES, GENDERS, PROVINCES, UPLOAD_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec
    from rankfall.simulation.platform import Platform, ServedPortion
    from rankfall.simulation.recent_events import RecentViews
    from rankfall.simulation.world import Items

    Integers = NDArray[np.int64]


class RecFlowTables:
    """Converts served requests to rows and sequences."""

    per_request = False  # the features of an item never change

    def __init__(self, platform: Platform, days: int) -> None:
        preset = platform.preset
        self._platform = platform
        self._stages: Literal[2, 3] = 3 if len(preset.sample) == 5 else 2
        self.id_counts = {
            "user_id": len(platform.users),
            "device_id": platform.users.devices,
            "age": AGES,
            "gender": GENDERS,
            "province": PROVINCES,
            "video_id": len(platform.items) + (days - 1) * preset.births,
            "author_id": preset.authors,
            "category_level_two": preset.categories * preset.subcategories,
            "category_level_one": preset.categories,
            "upload_type": UPLOAD_TYPES,
        }
        spec = recflow_spec(self.id_counts, stages=self._stages, sample=preset.sample)
        self.spec: Spec = spec.model_copy(update={"position": POSITION})

    def rows(self, portion: ServedPortion) -> pl.DataFrame:
        """Return one row per request and logged item."""
        users, requests, served = self._platform.users, portion.requests, portion.served
        real = portion.items != NO_ITEM
        row = np.nonzero(real)[0]
        user, item = requests.user[row], portion.items[real]
        rank_index, rerank_index = served.rank_index[real], served.rerank_index[real]
        columns: dict[str, Integers] = {
            "request_id": requests.number[row],
            "request_timestamp": requests.time[row],
            "user_id": user,
            "device_id": requests.device[row],
            "age": users.age[user],
            "gender": users.gender[user],
            "province": users.province[user],
            **item_columns(self._platform.items, item),
            "rerank_pos": (rerank_index >= 0) & (rerank_index < POSITIVES),
            "rerank_neg": rerank_index >= POSITIVES,
            "rank_pos": (rank_index >= 0) & (rank_index < POSITIVES),
            "rank_neg": rank_index >= POSITIVES,
            "coarse_neg": served.last_model[real] == COARSE,
            "prerank_neg": served.last_model[real] == PRERANK,
            "rank_index": rank_index,
            "rerank_index": rerank_index,
            **{name: portion.feedback[name][real] for name in FEEDBACK},
        }
        frame = pl.DataFrame({name: values.astype(np.int64, copy=False) for name, values in columns.items()})
        truth = pl.Series(TRUTH, portion.relevance[real])
        return frame.with_columns(rank_expression(self._stages), position_expression(), truth)

    def requests(self, portion: ServedPortion) -> pl.DataFrame:
        """Return one row per request with the earlier views of its user, as lists."""
        history = portion.requests.history
        real = history.item != NO_ITEM
        edges = pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(real.sum(axis=1))]))
        columns = item_columns(self._platform.items, history.item[real])
        lists = {sequence_column(name): pa.LargeListArray.from_arrays(edges, columns[name]) for name in ITEM_IDS}
        frame = pl.from_arrow(pa.table({"request_id": portion.requests.number, **lists}))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def items(self, seen: Integers) -> pl.DataFrame:
        """Return one row per item."""
        return pl.DataFrame(item_columns(self._platform.items, seen))


def item_columns(items: Items, chosen: NDArray[np.integer]) -> dict[str, Integers]:
    """Return RecFlow's columns of items."""
    return {
        "video_id": chosen.astype(np.int64),
        "author_id": items.author[chosen],
        "category_level_one": items.category[chosen],
        "category_level_two": items.subcategory[chosen],
        "upload_type": items.upload_type[chosen],
        "upload_timestamp": items.upload_time[chosen],
        "duration": items.duration[chosen],
    }


def event_arrays(history: RecentViews, items: Items) -> NDArray[np.int64]:
    """Return the earlier views of users, (users, 50, 10) as in RecFlow's pickles: zeros before the first view."""
    columns: Mapping[str, Integers] = item_columns(items, history.item)
    names = (*ITEM_IDS, "upload_timestamp", "duration")
    events = np.stack([*(columns[name] for name in names), history.time, history.playing_time, history.request], axis=2)
    return np.where((history.item == NO_ITEM)[:, :, None], 0, events)
