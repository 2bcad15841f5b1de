"""The log of a simulated platform in the style of advertising: few ads per queue, described by statistics.

The queues are those of ARF's industrial data sets: Q2 are the ads found by matching, Q3 those kept by pre-ranking, Q4
those kept by ranking. An ad is logged in the last queue it reached, with its rank by the score of the ranking model
among all candidates, even if production did not score it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.recflow import TRUTH, ZONE
from rankfall.simulation.platform import MIX, RANK
from rankfall.simulation.world import AGES, GENDERS, NO_ITEM, PROVINCES, UPLOAD_TYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.simulation.platform import Platform, ServedPortion
    from rankfall.simulation.presets import Preset

    Integers = NDArray[np.int64]
    Numbers = NDArray[np.float64]

QUEUES = ("q2", "q3", "q4")
COUNTED = ("user", "ad", "advertiser", "category", "user_category")  # keys for which shows and views are counted
RATE, PRIOR = 0.5, 10.0  # view rates are smoothed with PRIOR additional shows at rate RATE


class IndustryTables:
    """Converts served requests to rows with the statistics of the time before them."""

    per_request = True  # the statistics of an ad differ between requests

    def __init__(self, platform: Platform, days: int) -> None:
        self._platform = platform
        preset, users = platform.preset, len(platform.users)
        ads = len(platform.items) + (days - 1) * preset.births
        self._categories = preset.categories * preset.subcategories
        sizes = (users, ads, preset.authors, self._categories, users * self._categories)
        self._shows = {name: np.zeros(size) for name, size in zip(COUNTED, sizes, strict=True)}
        self._views = {name: np.zeros(size) for name, size in zip(COUNTED, sizes, strict=True)}
        self._count_past_views()
        id_counts = {
            "user_id": users,
            "age": AGES,
            "gender": GENDERS,
            "province": PROVINCES,
            "ad_id": ads,
            "advertiser_id": preset.authors,
            "category_id": self._categories,
            "format_id": UPLOAD_TYPES,
        }
        self.spec = validate_spec(_description(preset, id_counts))

    def rows(self, portion: ServedPortion) -> pl.DataFrame:
        """Return one row per request and logged ad, then update the statistics."""
        users, requests, served = self._platform.users, portion.requests, portion.served
        real = portion.items != NO_ITEM
        row = np.nonzero(real)[0]
        user, item = requests.user[row], portion.items[real].astype(np.int64)
        by_rank = np.argsort(np.argsort(-portion.scores.rank, axis=1, kind="stable"), axis=1, kind="stable")
        keys = self._keys(user, item)
        columns: dict[str, NDArray[Any]] = {
            "request_id": requests.number[row],
            "request_timestamp": requests.time[row],
            "user_id": user,
            "age": users.age[user],
            "gender": users.gender[user],
            "province": users.province[user],
            **self._item_columns(item, requests.time[row] // 1000),
            **self._statistics(keys),
            "queue": (served.last_model[real] >= RANK).astype(np.int64) + (served.last_model[real] == MIX),
            "rank": np.take_along_axis(by_rank, served.place, axis=1)[real],
            "position": np.where(portion.feedback["realshow"] > 0, served.rerank_index, -1)[real],
            "view": portion.feedback["effective_view"][real],
            TRUTH: portion.relevance[real],
        }
        self._learn(keys, portion.feedback["realshow"][real], portion.feedback["effective_view"][real])
        return pl.DataFrame(columns)

    def requests(self, portion: ServedPortion) -> None:
        """Return None: requests have no further columns."""

    def items(self, seen: Integers) -> pl.DataFrame:
        """Return one row per ad, with the statistics at the end of the log and those of an unknown user."""
        keys = self._keys(np.zeros(len(seen), np.int64), seen)
        statistics = self._statistics({name: keys[name] for name in ("ad", "advertiser", "category")})
        unknown = {f"user_category_{name}": np.zeros(len(seen)) for name in ("shows", "views")}
        unknown["user_category_rate"] = np.full(len(seen), RATE)
        end = np.full(len(seen), int(self._platform.items.upload_time.max()))
        return pl.DataFrame({**self._item_columns(seen, end), **statistics, **unknown})

    def _item_columns(self, item: Integers, time: Integers) -> dict[str, NDArray[Any]]:
        items = self._platform.items
        return {
            "ad_id": item,
            "advertiser_id": items.author[item],
            "category_id": items.subcategory[item],
            "format_id": items.upload_type[item],
            "age_hours": np.maximum(time - items.upload_time[item], 0) / 3600,
            "duration_seconds": items.duration[item] / 1000,
        }

    def _keys(self, user: Integers, item: Integers) -> dict[str, Integers]:
        items = self._platform.items
        category = items.subcategory[item]
        values = (user, item, items.author[item], category, user * self._categories + category)
        return dict(zip(COUNTED, values, strict=True))

    def _statistics(self, keys: dict[str, Integers]) -> dict[str, Numbers]:
        columns = {}
        for name, key in keys.items():
            shows, views = self._shows[name][key], self._views[name][key]
            columns[f"{name}_shows"], columns[f"{name}_views"] = shows, views
            columns[f"{name}_rate"] = (views + RATE * PRIOR) / (shows + PRIOR)
        return columns

    def _learn(self, keys: dict[str, Integers], shown: Integers, viewed: Integers) -> None:
        for name, key in keys.items():
            size = len(self._shows[name])
            self._shows[name] += np.bincount(key, shown, minlength=size)
            self._views[name] += np.bincount(key, viewed, minlength=size)

    def _count_past_views(self) -> None:
        """Count the views before the log, as if twice as many ads had been shown."""
        recent = self._platform.recent
        user, place = np.nonzero(recent.item != NO_ITEM)
        ones = np.ones(len(user), np.int64)
        self._learn(self._keys(user, recent.item[user, place].astype(np.int64)), 2 * ones, ones)


def _description(preset: Preset, id_counts: dict[str, int]) -> dict[str, Any]:
    def ids(*names: str) -> dict[str, Any]:
        return {name: {"kind": "categorical", "num_buckets": id_counts[name]} for name in names}

    def statistics(*names: str) -> dict[str, Any]:
        counts = {f"{name}_{what}": {"kind": "dense", "log1p": True} for name in names for what in ("shows", "views")}
        return counts | {f"{name}_rate": {"kind": "dense"} for name in names}

    numbers = {name: {"kind": "dense", "log1p": True} for name in ("age_hours", "duration_seconds")}
    return {
        "request": "request_id",
        "item": "ad_id",
        "user": "user_id",
        "time": {"column": "request_timestamp", "unit": "ms", "zone": ZONE},
        "stage": "queue",
        "rank": "rank",
        "stages": [{"name": name, "sample": count} for name, count in zip(QUEUES, preset.sample, strict=True)],
        "relevant": QUEUES[-1],
        "feedback": ["view"],
        "position": "position",
        "features": {
            "user": {**ids("user_id", "age", "gender", "province"), **statistics("user")},
            "context": {part: {"kind": "time", "part": part} for part in ("weekday", "hour")},
            "item": {
                **ids("ad_id", "advertiser_id", "category_id", "format_id"),
                **numbers,
                **statistics("ad", "advertiser", "category", "user_category"),
            },
        },
    }
