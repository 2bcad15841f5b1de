"""Attributes of requests and items, against the rows of the log, and encoded values as those of its source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

import rankfall as rf
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.log import ImpressionLog
from rankfall.studies.diagnosis.attributes import (
    ACTIVITY,
    AGE,
    POPULARITY,
    LogAttributes,
    RawValues,
    _ranges,
    _values,
)
from rankfall.studies.diagnosis.segments import FunnelLists
from rankfall.studies.evaluate import collect_scores, user_groups
from rankfall.training.cascade_metrics import ScoredBatch
from support.logs import DAYS, SPEC, random_log, spec

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions


def score(batch: Impressions) -> ScoredBatch:
    return ScoredBatch.of_lists(batch, [(batch.item * 7 % 11).float(), (batch.item * 3 % 13).float()])


def known_of(path: Path, **options: Any) -> LogAttributes:
    log = ImpressionLog.load(path)
    loader = rf.data.ImpressionLoader(path, DAYS[1:], batch=7, shuffle=False, **options)
    scores = collect_scores(score, loader, stages=["a", "b"], relevant=2)
    lists = FunnelLists.of_scores(scores, [5, 3])
    return LogAttributes(log, lists, log.choose(DAYS[:1]))


USER = {"id": {"kind": "categorical", "num_buckets": 30, "column": "user"}, "taste": {"kind": "dense", "size": 3}}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    described = spec(features=SPEC["features"] | {"user": USER})  # the column `user` of the log is a feature
    return random_log(tmp_path_factory.mktemp("attributes") / "log", description=described).path


def rows_of(path: Path, day: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ImpressionLog.load(path).days[day].table().to_pylist()
    return rows


def test_counts_are_those_of_the_rows(log: Path) -> None:
    known = known_of(log, length=20)  # with items that were added
    training = rows_of(log, DAYS[0])
    requests = Counter(row["user.id"] for row in training)
    lists = Counter(item for row in training for item in row["item"])
    measured = [(day, row) for day in DAYS[1:] for row in rows_of(log, day)]
    assert known.activity is not None
    assert known.activity.tolist() == [requests[row["user.id"]] for _, row in measured]
    first: dict[int, int] = {}
    for number, day in enumerate(DAYS):
        for row in rows_of(log, day):
            for item in [*row["item"], *row["left_out"]]:
                first.setdefault(item, number)
    truth = known.lists.truth
    items = known.items(truth.request, truth.place).tolist()
    assert known.popularity(truth.request, truth.place).tolist() == [lists[item] for item in items]
    days = [DAYS.index(measured[request][0]) for request in truth.request.tolist()]
    ages = [day - first[item] for day, item in zip(days, items, strict=True)]
    assert known.age(truth.request, truth.place).tolist() == ages
    expected = {(request, item) for request, (_, row) in enumerate(measured) for item in relevant(row)}
    assert set(zip(truth.request.tolist(), items, strict=True)) == expected


def relevant(row: dict[str, Any]) -> list[int]:
    return [item for item, value in zip(row["item"], row["relevance"], strict=True) if value > 0]


def test_features_are_those_of_the_rows(log: Path) -> None:
    known = known_of(log)
    measured = [row for day in DAYS[1:] for row in rows_of(log, day)]
    truth = known.lists.truth
    by_name = {attribute.name: attribute for attribute in known.attributes()}
    hours = [str(measured[request]["context.hour"] - 2) for request in truth.request.tolist()]
    hour = by_name["context.hour"]
    assert [hour.labels[code] for code in hour.codes.tolist()] == hours
    items = known.items(truth.request, truth.place)
    author = by_name["item.author"]
    assert [author.labels[code] for code in author.codes.tolist()] == [
        f"hash {item * 7 % 300}" for item in items.tolist()
    ]
    assert {"user.id", "context.load", "item.price", ACTIVITY} <= set(by_name)
    assert "user.taste" not in by_name  # a vector
    assert "list length" not in by_name  # all lists have the same length


def test_features_that_depend_on_the_request_are_read_from_its_list(tmp_path: Path) -> None:
    path = random_log(tmp_path / "log").path
    known = known_of(path)
    known.log.manifest["about"]["per_request"] = ["item.price"]  # as prepare marks it
    measured = [row for day in DAYS[1:] for row in rows_of(path, day)]
    truth = known.lists.truth
    found = known.of_items("price", truth.request, truth.place)
    expected = [measured[r]["item.price"][p] for r, p in zip(truth.request.tolist(), truth.place.tolist(), strict=True)]
    assert found.tolist() == pytest.approx(expected)


def test_users_are_grouped(log: Path) -> None:
    known = known_of(log)
    groups = user_groups(known.log, known.scores)
    assert groups is not None
    assert known.users is not None
    for a in range(0, len(groups), 7):
        for b in range(len(groups)):
            assert bool(groups[a] == groups[b]) == bool(known.users[a] == known.users[b])


def test_a_log_without_users_has_no_activity(tmp_path: Path) -> None:
    features = SPEC["features"] | {"user": {"taste": {"kind": "dense", "size": 3}}}
    described = spec(features=features)

    def drop(days: dict[str, Any]) -> None:
        for columns in days.values():
            del columns["user.id"]

    path = random_log(tmp_path / "log", change=drop, description=described).path
    known = known_of(path)
    assert known.activity is None
    assert user_groups(known.log, known.scores) is None
    assert ACTIVITY not in [attribute.name for attribute in known.attributes()]


def test_requests_and_items_are_described(log: Path) -> None:
    known = known_of(log)
    (described,) = known.describe_requests(np.array([3]))
    row = [row for day in DAYS[1:] for row in rows_of(log, day)][3]
    assert described["id"] == str(row["user.id"] - 2)
    assert described["hour"] == str(row["context.hour"] - 2)
    (item,) = known.describe_items(np.array([3]), np.array([0]))
    assert item["author"] == f"hash {row['item'][0] * 7 % 300}"
    assert item[POPULARITY].endswith("lists in training")
    assert item[AGE].endswith(("day", "days"))


# --- values -----------------------------------------------------------------------------------------------------

FEATURES: dict[str, Any] = {
    "category": {"kind": "categorical", "vocabulary": True},
    "brand": {"kind": "categorical", "num_buckets": 9},
    "shop": {"kind": "categorical", "hash_bucket_size": 5},
    "price": {"kind": "dense", "standardise": True, "log1p": True},
    "weight": {"kind": "dense"},
    "rating": {"kind": "dense", "bucketize": [1.0, 3.0], "log1p": False},
    "sold": {"kind": "dense", "bucketize": [float(np.log1p(9)), float(np.log1p(99))], "log1p": True},
    "made": {"kind": "time", "part": "weekday", "column": "made"},
}
RAW: dict[str, tuple[list[Any], list[str]]] = {
    "category": (["shoes", "toys", None, "never"], ["shoes", "toys", "missing", "value without an id"]),
    "brand": ([3, 8, None, 0], ["3", "8", "missing", "0"]),
    "price": ([9.99, 120.0, 0.0, 3.5], ["9.99", "120", "0", "3.5"]),
    "weight": ([0.25, 3.0, -7.5, 1e6], ["0.25", "3", "-7.5", "1,000,000"]),
    "rating": ([0.5, 1.0, 2.9, 3.0], ["below 1", "1 to below 3", "1 to below 3", "3 or more"]),
    "sold": ([0, 9, 98, 99], ["below 9", "9 to below 99", "9 to below 99", "99 or more"]),
    "made": (["2024-01-15", "2024-01-21", None, "2024-01-16"], ["Monday", "Sunday", "missing", "Tuesday"]),
}


def test_encoded_values_are_decoded() -> None:
    """What the encoder of logs makes of raw values is turned back; it was written without regard to this."""
    described = spec(features=SPEC["features"] | {"item": FEATURES}, sequences={})
    scaling = {"mean": 2.0, "deviation": 1.5}
    encoding = Encoding(
        described,
        vocabularies={"item.category": pl.Series(["shoes", "toys"])},
        scalings={"item.price": (np.array(2.0), np.array(1.5))},
    )
    about = {"scalings": {"item.price": scaling}}

    class Log:
        spec, manifest = described, {"about": about}

        def vocabulary(self, table: str) -> Any:
            return encoding.vocabularies[table].to_arrow()

    raw = RawValues(Log())  # type: ignore[arg-type]
    for name, (values, texts) in RAW.items():
        encoded = encoding.encode("item", name, pl.Series(name, values))
        assert raw.texts("item", name, encoded) == texts, name
    hashed = encoding.encode("item", "shop", pl.Series("shop", ["a", "b"]))
    assert raw.texts("item", "shop", hashed) == [f"hash {one - 2}" for one in hashed.tolist()]


def test_numbers_become_ranges() -> None:
    numbers = np.array([0, 0, 0, *range(1, 101)])
    attribute = _ranges("seen", numbers, "list", "lists")
    assert attribute.labels[0] == "0 lists"
    assert attribute.labels[1].startswith("1 to ")
    sizes = np.bincount(attribute.codes)
    assert sizes[0] == 3
    assert sizes[1:].min() >= 19
    assert len(sizes) == 6
    few = _ranges("age", np.array([1, 0, 1, 3]), "day", "days")
    assert [few.labels[code] for code in few.codes] == ["1 day", "0 days", "1 day", "3 days"]


def test_rare_values_have_no_code() -> None:
    ids = np.concatenate([np.repeat(np.arange(200), 2), np.arange(300, 400)])
    attribute = _values("item.id", ids, lambda given: [str(one) for one in given.tolist()])
    assert len(attribute.labels) == 200
    assert (attribute.codes[:400] >= 0).all()
    assert (attribute.codes[400:] == -1).all()
    assert [attribute.labels[code] for code in attribute.codes[:400]] == [str(one) for one in ids[:400].tolist()]
