"""The tables of a platform whose cascade is a service: rows of its past, items, request bodies and events.

Rows have one of four stages: dropped by one of three models, or answered. The platform's own cascade has these three
models, too: pre-ranking, coarse ranking and ranking. What it drops is sampled, and ``inclusion`` is the probability
with which an item was drawn.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.recflow_spec import (
    FEEDBACK,
    HISTORY,
    HISTORY_LENGTH,
    ITEM_IDS,
    USER_IDS,
    ZONE,
    sequence_column,
)
from rankfall.simulation.matching import NO_ITEM
from rankfall.simulation.production import MIX, PRERANK
from rankfall.simulation.recflow_tables import item_columns
from rankfall.simulation.world import AGES, GENDERS, PROVINCES, UPLOAD_TYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec
    from rankfall.simulation.live_users import LivePortion, LiveReactions
    from rankfall.simulation.platform import Platform, ServedPortion
    from rankfall.simulation.presets import Production
    from rankfall.simulation.relevance import Requests
    from rankfall.simulation.world import Items

    Integers = NDArray[np.int64]

STAGES = ("retrieval_neg", "preranking_neg", "ranking_neg", "answered")
RELEVANT = "effective_view"
INCLUSION = "inclusion"
ITEM = "video_id"
_PARTS = ("weekday", "hour")
SECOND = 1000  # ms


def loop_spec(platform: Platform) -> Spec:
    """Return the description of the platform's log.

    Users, items and authors have vocabularies, which can grow. Relevant items are those that were viewed: stages are
    what the models of earlier days decided, and a model that learned from them would imitate itself.
    """
    preset = platform.preset
    counts = {
        "age": AGES,
        "gender": GENDERS,
        "province": PROVINCES,
        "category_level_two": preset.categories * preset.subcategories,
        "category_level_one": preset.categories,
        "upload_type": UPLOAD_TYPES,
    }
    ids = {name: _ids(counts.get(name)) for name in (*USER_IDS, *ITEM_IDS)}
    times = {part: {"kind": "time", "part": part, "embedding": part} for part in _PARTS}
    upload = {"column": "upload_timestamp", "unit": "s"}
    content: dict[str, Any] = {
        "request": "request_id",
        "item": "video_id",
        "user": "user_id",
        "time": {"column": "request_timestamp", "unit": "ms", "zone": ZONE},
        "stage": "stage",
        "rank": "rank",
        "stages": [{"name": name} for name in STAGES],
        "relevant": {"column": RELEVANT},
        "feedback": list(FEEDBACK),
        "position": "position",
        "inclusion": INCLUSION,
        "features": {
            "user": {name: ids[name] for name in USER_IDS},
            "context": times,
            "item": {
                **{name: ids[name] for name in ITEM_IDS},
                **{f"upload_{part}": {**times[part], **upload} for part in _PARTS},
            },
        },
        "sequences": {
            HISTORY: {
                "max_length": HISTORY_LENGTH,
                "features": list(ITEM_IDS),
                "columns": {name: sequence_column(name) for name in ITEM_IDS},
            }
        },
    }
    return validate_spec(content)


def _ids(count: int | None) -> dict[str, Any]:
    return {"kind": "categorical", **({"vocabulary": True} if count is None else {"num_buckets": count})}


def item_rows(items: Items, chosen: Integers) -> pl.DataFrame:
    """Return one row per item."""
    return pl.DataFrame(item_columns(items, chosen))


def past_rows(platform: Platform, portion: ServedPortion) -> pl.DataFrame:
    """Return one row per request and item that the platform's own cascade logged, without features."""
    served = portion.served
    real = portion.items != NO_ITEM
    is_answered = served.last_model == MIX
    rank = np.where(is_answered, served.rerank_index, served.rank_index)
    columns = {
        "request_id": _request_ids(portion.requests)[np.nonzero(real)[0]],
        "video_id": portion.items[real].astype(np.int64),
        "stage": np.array(STAGES)[served.last_model[real] - PRERANK],  # models are numbered in their order
        "rank": rank[real],
        "position": np.where(is_answered, rank, -1)[real],
        INCLUSION: _inclusion(platform.preset.production, portion)[real],
        **{name: portion.feedback[name][real] for name in FEEDBACK},
    }
    unknown = pl.when(pl.col("rank") >= 0).then(pl.col("rank"))
    return pl.DataFrame(columns).with_columns(unknown)


def _inclusion(production: Production, portion: ServedPortion) -> NDArray[np.float32]:
    """Return the probability with which each logged item was drawn from what its model dropped."""
    candidates = (portion.candidates != NO_ITEM).sum(axis=1)
    keeps = [np.minimum(candidates, most) for most in (production.prerank_keeps, production.coarse_keeps)]
    keeps = [candidates, *keeps, np.minimum(candidates, production.rank_keeps)]
    inclusion = np.ones(portion.items.shape, np.float32)
    for model, (entered, kept) in enumerate(pairwise(keeps), PRERANK):
        share = np.minimum(1, production.logged / np.maximum(1, entered - kept)).astype(np.float32)
        inclusion = np.where(portion.served.last_model == model, share[:, None], inclusion)
    return inclusion


def request_rows(platform: Platform, requests: Requests) -> pl.DataFrame:
    """Return one row per request: its id and time, the features of its user, and earlier views as lists."""
    columns = {
        "request_id": _request_ids(requests),
        "request_timestamp": requests.time,
        **_user_columns(platform, requests),
    }
    lists = {sequence_column(name): values for name, values in _history(platform.items, requests).items()}
    return pl.DataFrame(columns).with_columns(pl.Series(name, values) for name, values in lists.items())


def request_bodies(platform: Platform, requests: Requests, k: int) -> list[dict[str, Any]]:
    """Return the bodies of ``POST /rank``. Items that the user viewed lately are not wanted again."""
    ids, times = _request_ids(requests).tolist(), requests.time.tolist()
    users = pl.DataFrame(_user_columns(platform, requests)).to_dicts()
    history = pl.DataFrame(_history(platform.items, requests)).to_dicts()
    return [
        {
            "request": request,
            "time": time,
            "user": user,
            "sequences": {HISTORY: events},
            "k": k,
            "exclude": sorted(set(events[ITEM])),
        }
        for request, time, user, events in zip(ids, times, users, history, strict=True)
    ]


def request_events(portion: LivePortion, reactions: LiveReactions) -> list[list[dict[str, Any]]]:
    """Return the events of each request for ``POST /events``: one per item and kind of feedback that is not 0."""
    events: list[list[dict[str, Any]]] = [[] for _ in portion.requests.user]
    ids, times = _request_ids(portion.requests).tolist(), portion.requests.time.tolist()
    for kind, values in reactions.feedback.items():
        rows, places = np.nonzero(values)
        found = zip(rows.tolist(), places.tolist(), reactions.answers[rows, places].tolist(), strict=True)
        for row, place, item in found:
            events[row].append(
                {
                    "id": f"{ids[row]}-{item}-{kind}",
                    "request": ids[row],
                    "item": item,
                    "kind": kind,
                    "value": int(values[row, place]),
                    "time": times[row] + SECOND * (1 + place),
                }
            )
    return events


def _request_ids(requests: Requests) -> NDArray[np.str_]:
    return requests.number.astype(str)


def _user_columns(platform: Platform, requests: Requests) -> dict[str, Integers]:
    users, user = platform.users, requests.user
    return {
        "user_id": user,
        "device_id": requests.device,
        "age": users.age[user],
        "gender": users.gender[user],
        "province": users.province[user],
    }


def _history(items: Items, requests: Requests) -> dict[str, list[list[int]]]:
    """Return the ids of earlier views, oldest first."""
    viewed = requests.history.item
    columns = item_columns(items, viewed)
    return {
        name: [row[-count:].tolist() if count else [] for row, count in zip(columns[name], counts, strict=True)]
        for counts in [(viewed != NO_ITEM).sum(axis=1).tolist()]
        for name in ITEM_IDS
    }
