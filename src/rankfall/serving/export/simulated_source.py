"""An untrained cascade over any number of items, to measure the speed and the size of bundles.

Items have authors, and authors have categories; items of the same author or category have similar embeddings, and users
watch items of their category. The vectors are therefore as clustered as those of trained models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from rankfall.cascade import Stage
from rankfall.data.impressions.spec import Feature, Features, Sequence
from rankfall.encoding import FIRST_KNOWN, Lookup, NumberedIds, TimePart
from rankfall.models import DIN, Scorer, TwoTower
from rankfall.serving.export.item_table import ItemTable
from rankfall.serving.export.measure_bundle import RequestSample
from rankfall.serving.export.write_bundle import BundleSource
from rankfall.serving.request_encoder import MASK, EncodedRequests

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

CATEGORIES, ITEMS_OF_AUTHOR, CANDIDATES = 64, 50, 40
_NOON = 1_705_147_200_000  # of 2024-01-13 in UTC, in ms
_IDS = ("item_id", "author_id", "category_id")


def simulated_source(
    items: int = 1_000_000,
    *,
    users: int = 100_000,
    length: int = 50,
    quotas: tuple[int, int] = (200, 20),
    requests: int = 1024,
    seed: int = 0,
) -> BundleSource:
    """Return a two-tower model and a DIN with these quotas, items, and requests for them."""
    random = np.random.default_rng(seed)
    authors = max(1, items // ITEMS_OF_AUTHOR)
    author_category = random.integers(0, CATEGORIES, authors)
    author = random.integers(0, authors, items)
    ids = [np.arange(items), author, author_category[author]]
    counts = {"user_id": users, "age": 8, **dict(zip(_IDS, (items, authors, CATEGORIES), strict=True))}
    features = _features(counts, length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        towers, ranker = TwoTower(features).eval(), DIN(features).eval()
    user_category = random.integers(0, CATEGORIES, users)
    for model in (towers, ranker):
        _arrange(model, random, author_category, author, user_category)
    columns = {f"item.{name}": (of + FIRST_KNOWN).astype(np.int32) for name, of in zip(_IDS, ids, strict=True)}
    table = ItemTable(Lookup.of(pa.array(np.arange(items)), name="items"), columns)
    encoded = _requests(random, columns, user_category, length, requests, quotas[1])
    stages = [Stage("retrieval", towers, quotas[0]), Stage("ranking", ranker, quotas[1])]
    about = {"simulated": {"items": items, "users": users, "length": length, "seed": seed}, "metrics": {}}
    sample = RequestSample(encoded, np.full(requests, _NOON))
    return BundleSource(stages, table, _rules(counts, length), {}, sample, about)


def _features(counts: dict[str, int], length: int) -> Features:
    rows = {name: count + FIRST_KNOWN for name, count in counts.items()}
    user = [Feature(name, "user", name, rows[name]) for name in ("user_id", "age")]
    item = [Feature(name, "item", name, rows[name]) for name in _IDS]
    hour = Feature("hour", "context", "hour", 24 + FIRST_KNOWN)
    return Features((*user, hour, *item), (Sequence("history", length, _IDS),))


def _rules(counts: dict[str, int], length: int) -> dict[str, Any]:
    rules = {name: NumberedIds(count + FIRST_KNOWN).to_json() for name, count in counts.items()}
    hour = TimePart(24 + FIRST_KNOWN, "hour", "ms", "UTC", of_request=True)
    events = {"max_length": length, "item": "item_id", "features": {name: rules[name] for name in _IDS}, "ignored": []}
    return {
        "time": {"unit": "ms", "zone": "UTC"},
        "user": {name: rules[name] for name in ("user_id", "age")},
        "context": {"hour": hour.to_json()},
        "sequences": {"history": events},
        "ignored": [],
    }


def _arrange(
    model: Scorer, random: np.random.Generator, author_category: Integers, author: Integers, user_category: Integers
) -> None:
    """Set the embeddings so that items of the same author or category are similar."""
    size = model.embedding.dim

    def near(centres: NDArray[np.float64], of: Integers) -> NDArray[np.float64]:
        return centres[of] + 0.6 * random.normal(size=(len(of), size))

    category = random.normal(size=(CATEGORIES, size))
    authors = near(category, author_category)
    found = {"category_id": category, "author_id": authors, "item_id": near(authors, author)}
    found["user_id"] = near(category, user_category)
    with torch.no_grad():
        for name, rows in found.items():
            model.embedding.tables[name].weight[FIRST_KNOWN:] = torch.from_numpy(rows * 0.5).float()


def _requests(
    random: np.random.Generator,
    columns: dict[str, NDArray[np.int32]],
    user_category: Integers,
    length: int,
    count: int,
    k: int,
) -> EncodedRequests:
    """Return requests of users who watched items of their category."""
    user = random.integers(0, len(user_category), count)
    by_category = np.argsort(columns["item.category_id"], kind="stable")
    edges = np.searchsorted(columns["item.category_id"][by_category], np.arange(CATEGORIES + 1) + FIRST_KNOWN)
    first, last = edges[user_category[user]], edges[user_category[user] + 1]
    span = np.maximum(last - first, 1)[:, None]
    watched = by_category[np.minimum(first[:, None] + random.integers(0, span, (count, length)), len(by_category) - 1)]
    events = random.integers(length // 2, length + 1, count)
    mask = np.arange(length) < events[:, None]
    arrays: dict[str, NDArray[Any]] = {
        "user.user_id": (user + FIRST_KNOWN).astype(np.int32),
        "user.age": random.integers(FIRST_KNOWN, 8 + FIRST_KNOWN, count).astype(np.int32),
        "context.hour": np.full(count, 12 + FIRST_KNOWN, np.int32),
        f"sequence.history.{MASK}": mask,
        **{f"sequence.history.{name}": np.where(mask, columns[f"item.{name}"][watched], 0) for name in _IDS},
    }
    candidates = [np.unique(row) for row in random.integers(0, len(by_category), (count, CANDIDATES))]
    return EncodedRequests.with_candidates(arrays, candidates, k)
