"""Parity of training and serving: joined logs have what bundles received, and any difference stops the day."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from rankfall.data import ImpressionLog
from rankfall.online.join_log import Joiner, JoinSettings
from rankfall.online.parity import ParityError
from rankfall.serving.bundle import Bundle
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.methods import train
from support.bundles import exported
from support.join_kills import copy_of, tree
from support.served_records import (
    DAY,
    HOUR,
    MIDNIGHT,
    Traffic,
    bundle_traffic,
    prepared_log,
    served_spec,
    topic_of,
    write_segments,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.online.join_results import JoinResult

STAGES = [
    {"name": "retrieval", "quota": 15, "model": {"kind": "two_tower", "hidden": [8], "dim": 4}},
    {"name": "ranking", "quota": 10, "model": {"kind": "din", "hidden": [8], "dim": 4, "attention": 4}},
]
TIMES = [MIDNIGHT + 2 * DAY + hour * HOUR for hour in range(0, 24, 2)]


@dataclass(frozen=True)
class Served:
    """A log, a bundle that was trained on it, and what it answered on the next day."""

    directory: Path
    bundle: Path
    traffic: Traffic


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    directory = tmp_path_factory.mktemp("served")
    log = prepared_log(directory, directory / "log")
    config = {
        "data": {
            "path": str(log.path),
            "train": "2024-01-13",
            "valid": "2024-01-14",
            "labels": "relevance",
            "length": 30,
        },
        "relevant": 3,
        "stages": STAGES,
        "objective": {"name": "bce", "min_depth": 0},
        "training": {"epochs": 1, "batch": 16},
    }
    train(validate_cascade(config), directory / "run")
    exported(directory / "run", directory / "bundle")
    traffic = bundle_traffic(Bundle.load(directory / "bundle"), TIMES)
    return Served(directory, directory / "bundle", traffic)


def joined(served: Served, place: Path, traffic: Traffic, *, items: Path | None = None, **settings: Any) -> JoinResult:
    """Join traffic to a copy of the log, or to a new one if `log` is given, and check all requests."""
    write_segments(place / "records", traffic)
    log = settings.pop("log", None) or copy_of(served.directory, place / "log")
    chosen = JoinSettings(items=items or served.directory / "items.parquet", parity=1, **settings)
    joiner = Joiner(place / "records", log, served_spec(), chosen)
    with joiner.locked():
        return joiner.close_days()


def changed(traffic: Traffic, **columns: Any) -> Traffic:
    """The traffic with other values in the sample of one request."""
    samples = [dict(sample) for sample in traffic.samples]
    samples[4] |= {name: make(samples[4][name]) for name, make in columns.items()}
    return Traffic(samples, traffic.events)


def body(change: Any) -> Any:
    """Return a function that changes the body of a sample."""

    def apply(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json.dumps(content, sort_keys=True)

    return apply


def test_served_requests_are_the_same_in_the_log(served: Served, tmp_path: Path) -> None:
    result = joined(served, tmp_path, served.traffic)
    assert [report.checked for report in result.days] == [len(TIMES)]
    day = ImpressionLog.load(tmp_path / "log").days["2024-01-15"].table()
    assert len(day) == len(TIMES)


def test_a_new_log_has_the_same_values_under_other_ids(served: Served, tmp_path: Path) -> None:
    notices: list[str] = []
    write_segments(tmp_path / "records", served.traffic)
    settings = JoinSettings(items=served.directory / "items.parquet", parity=1)
    joiner = Joiner(tmp_path / "records", tmp_path / "new", served_spec(), settings, on_notice=notices.append)
    with joiner.locked():
        assert joiner.close_days().days[0].checked == len(TIMES)
    assert len(notices) == 1  # what was fitted to other days, and only that
    assert notices[0].startswith("parity: item.price")
    later = bundle_traffic(Bundle.load(served.bundle), [time + DAY for time in TIMES])
    for record in (*later.samples, *later.events):
        record["request"] += "-later"
    write_segments(tmp_path / "records", later)
    with joiner.locked():
        assert [report.checked for report in joiner.close_days().days] == [len(TIMES)] * 2
    assert len(notices) == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"score": lambda scores: [scores[0] + 0.01, *scores[1:]]}, "stage ranking gave item"),
        ({"score": lambda scores: [*scores[:-1], scores[-1] - 0.01]}, "stage retrieval gave item"),
    ],
)
def test_another_score_stops_the_day(served: Served, tmp_path: Path, columns: Any, message: str) -> None:
    with pytest.raises(ParityError, match=f"request 's4': {message}"):
        joined(served, tmp_path, changed(served.traffic, **columns))
    assert tree(tmp_path / "log") == tree(served.directory / "log")
    assert list((tmp_path / "log.join").iterdir()) == []


def test_a_score_may_be_rounded(served: Served, tmp_path: Path) -> None:
    joined(served, tmp_path, changed(served.traffic, score=lambda scores: [one + 5e-5 for one in scores]))


@pytest.mark.parametrize(
    ("column", "field"), [("price", r"item\.price of item \d+"), ("topic", r"sequence\.history\.topic")]
)
def test_other_features_of_items_stop_the_day(served: Served, tmp_path: Path, column: str, field: str) -> None:
    table = pl.read_parquet(served.directory / "items.parquet")
    other = {"topic": pl.lit("news"), "price": pl.col("price") * 1.01}[column].alias(column)
    table.with_columns(other).write_parquet(tmp_path / "items.parquet")
    with pytest.raises(ParityError, match=rf"request 's\d+': {field}: .* received .* and the log would have"):
        joined(served, tmp_path, served.traffic, items=tmp_path / "items.parquet")
    assert tree(tmp_path / "log") == tree(served.directory / "log")


def test_sequences_that_the_log_makes_itself_are_compared(served: Served, tmp_path: Path) -> None:
    """The items of events have other topics in the table than when they were served."""

    def short(content: dict[str, Any]) -> None:
        content["sequences"]["history"] = [{"item": 3}]

    traffic = changed(served.traffic, body=body(short))
    bundle = Bundle.load(served.bundle)
    sample = traffic.samples[4]
    scores = bundle.score(json.loads(sample["body"]), sample["item"])
    sample["score"] = [scores[bundle.names[min(stage, 1)]][place] for place, stage in enumerate(sample["stage"])]
    joined(served, tmp_path / "same", traffic)
    table = pl.read_parquet(served.directory / "items.parquet")
    other = pl.when(pl.col("item") == 3).then(pl.lit("news")).otherwise("topic").alias("topic")
    assert topic_of(3) != "news"
    table.with_columns(other).write_parquet(tmp_path / "items.parquet")
    only = Traffic([sample, traffic.samples[-1]])
    for one in only.samples[:1]:
        keep = [place for place, item in enumerate(one["item"]) if item != 3]
        for name in ("item", "stage", "rank", "score", "inclusion"):
            one[name] = [one[name][place] for place in keep]
    message = r"request 's4': sequence\.history\.topic: .* received 'food' .* have 'news' \(events oldest first"
    with pytest.raises(ParityError, match=message):
        joined(served, tmp_path / "other", only, items=tmp_path / "items.parquet")


def test_a_bundle_that_is_gone_is_found_elsewhere_or_named(served: Served, tmp_path: Path) -> None:
    shutil.copytree(served.bundle, tmp_path / "kept" / "method" / "day")
    moved = [sample | ({"bundle": "/nowhere"} if sample["sampled"] else {}) for sample in served.traffic.samples]
    with pytest.raises(ValueError, match=r"the bundle of model [0-9a-f]{12} is not at /nowhere any more; keep bundles"):
        joined(served, tmp_path / "a", Traffic(moved))
    assert joined(served, tmp_path / "b", Traffic(moved), bundles=tmp_path / "kept").days[0].checked == len(TIMES)
