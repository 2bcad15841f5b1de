"""Notes on values never seen in training, and features that events leave out."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.encoding import FIRST_KNOWN, MISSING, UNSEEN
from rankfall.serving import Bundle
from rankfall.storage.manifests import seal
from support.bundles import platform_bundle, platform_log

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = ("video_id", "author_id", "category_level_two", "category_level_one", "upload_type")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


def events(ids: list[int]) -> list[dict[str, Any]]:
    """Return events with all features of items, from the table of the log."""
    table = {row["item"]: row for row in platform_log().items().to_pylist()}
    return [{name: table[one][f"item.{name}"] - FIRST_KNOWN for name in FEATURES} for one in ids]


def history(given: Any) -> dict[str, Any]:
    return {"time": 1705300000000, "sequences": {"history": given}}


# --- features of items ----------------------------------------------------------------------------------------------


def test_events_with_ids_alone_get_the_features_of_their_items(bundle: Bundle) -> None:
    ids = [3, 141, 59, 26]
    whole = bundle.encode([history(events(ids))]).arrays
    alone = [history([{"video_id": one} for one in ids]), history({"video_id": ids})]
    half = [{**event} for event in events(ids)]
    for event in half[::2]:
        del event["author_id"]
    for request in [*alone, history(half)]:
        for name, values in bundle.encode([request]).arrays.items():
            np.testing.assert_array_equal(values, whole[name], err_msg=name)
    assert bundle.rank(alone[0]).ids == bundle.rank(history(events(ids))).ids
    # several requests at once, of different lengths, with the last events of a long sequence
    many = [{"video_id": one} for one in range(120)]
    both = bundle.encode([{}, alone[0], history(many), history(events(ids))]).arrays
    author = both["sequence.history.author_id"]
    np.testing.assert_array_equal(author[1], author[3])
    expected = [event["author_id"] + FIRST_KNOWN for event in events(list(range(70, 120)))]
    assert author[2].tolist() == expected


def test_only_what_is_left_out_is_filled(bundle: Bundle) -> None:
    given = [
        {"video_id": 3, "author_id": None},  # the log had no value
        {"video_id": 3, "author_id": 7},  # another one than that of the table
        {"video_id": 10**6},  # not an item of the bundle
        {"video_id": None},
        {"video_id": {"id": 5}},  # the row of an embedding table is not the id of an item
        {"author_id": 7},
    ]
    author = bundle.encode([history(given)]).arrays["sequence.history.author_id"][0].tolist()
    assert author == [MISSING, 7 + FIRST_KNOWN, MISSING, MISSING, MISSING, 7 + FIRST_KNOWN]


def test_bundles_of_early_releases_fill_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    shutil.copytree(platform_bundle(), path)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["request"]["sequences"]["history"]["item"], manifest["measured"], manifest["display"]
    (path / "manifest.json").write_text(json.dumps(manifest | {"sha256": seal(manifest)}))
    early = Bundle.load(path)
    early.check()
    arrays = early.encode([history([{"video_id": 3}])]).arrays
    assert arrays["sequence.history.author_id"].tolist() == [[MISSING]]
    assert arrays["sequence.history.video_id"].tolist() == [[3 + FIRST_KNOWN]]


# --- values never seen ----------------------------------------------------------------------------------------------


def test_values_never_seen_are_noted(bundle: Bundle) -> None:
    known, unseen = bundle.examples()[0]["request"], {"user": {"user_id": 10**6, "age": 99}}
    of_events = history([{"video_id": 3}, {"video_id": 10**6}, {"video_id": 10**7}])
    given = history({"video_id": [3, 10**7], "author_id": [{"id": UNSEEN}, None]})
    found = bundle.rank([known, unseen, of_events, given])
    assert [ranking.notes for ranking in found] == [
        [],
        ["user.user_id: 1000000 was never seen in training", "user.age: 99 was never seen in training"],
        [
            "sequences.history.video_id: 2 of 3 events have a value that was never seen in training, such as 1000000",
        ],
        [
            "sequences.history.video_id: 1 of 2 events have a value that was never seen in training, such as 10000000",
            "sequences.history.author_id: 1 of 2 events have a value that was never seen in training, such as "
            "{'id': 1}",
        ],
    ]
    assert bundle.rank(unseen).notes == found[1].notes
    joined = bundle.encode([unseen]).join([bundle.encode([known]), bundle.encode([unseen])])
    assert [len(ranking.notes) for ranking in bundle.run(joined).rankings] == [0, 2]


def test_notes_are_bounded(bundle: Bundle) -> None:
    """There is one note per feature, with a short example, however many values are unseen."""
    request = {
        "user": dict.fromkeys(("user_id", "device_id", "age", "gender", "province"), 2**62),
        **history([dict.fromkeys(FEATURES, 2**62)] * 500),
    }
    notes = bundle.rank(request).notes
    assert len(notes) == 10
    assert max(map(len, notes)) < 160
    assert notes[-1].startswith("sequences.history.upload_type: 50 of 50 events")  # the last 50 are used


def test_missing_values_are_not_unseen(bundle: Bundle) -> None:
    assert bundle.rank({}).notes == []
    assert bundle.rank({"user": {"age": None}, **history([{"author_id": None}])}).notes == []
