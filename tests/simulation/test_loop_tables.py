"""Tables, request bodies and events of a platform that a service answers, against loops over what was simulated."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rankfall.data.impressions.spec import validate_spec
from rankfall.simulation.live_users import (
    STAGES,
    LiveUsers,
    item_rows,
    loop_spec,
    past_rows,
    request_bodies,
    request_events,
    request_rows,
)
from rankfall.simulation.platform import Platform
from rankfall.simulation.presets import LOOP
from rankfall.simulation.world import NO_ITEM

if TYPE_CHECKING:
    from rankfall.simulation.platform import ServedPortion


@pytest.fixture(scope="module")
def lived() -> tuple[LiveUsers, list[ServedPortion]]:
    users = LiveUsers(Platform(LOOP, 1, 80), 1)
    return users, list(users.past())


def test_rows_have_the_stage_rank_place_and_inclusion_of_each_item(
    lived: tuple[LiveUsers, list[ServedPortion]],
) -> None:
    users, portions = lived
    production = LOOP.production
    portion = portions[2]
    rows = past_rows(users.platform, portion).to_dicts()
    by_request: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_request[row["request_id"]][row["video_id"]] = row
    assert len(rows) == sum(map(len, by_request.values())) == (portion.items != NO_ITEM).sum()
    for place, number in enumerate(portion.requests.number.tolist()):
        found = by_request[str(number)]
        real = int((portion.candidates[place] != NO_ITEM).sum())
        kept = [real, production.prerank_keeps, production.coarse_keeps, production.rank_keeps]
        assert real > production.prerank_keeps
        for stage, (entered, left) in zip(STAGES[:3], pairwise(kept), strict=True):
            of_stage = [row for row in found.values() if row["stage"] == stage]
            # each of the dropped items is drawn with the same probability, so that weights of 1 / inclusion count them
            assert sum(1 / row["inclusion"] for row in of_stage) == pytest.approx(entered - left, rel=1e-5)
            assert all(row["position"] == -1 for row in of_stage)
            assert all((row["rank"] is None) == (stage != STAGES[2]) for row in of_stage)
        answered = sorted((row for row in found.values() if row["stage"] == STAGES[3]), key=lambda row: row["position"])
        assert [row["position"] for row in answered] == [row["rank"] for row in answered] == list(range(len(answered)))
        assert all(row["inclusion"] == 1 for row in answered)
        shown = [row["position"] for row in answered if row["realshow"]]
        assert shown == list(range(len(shown)))
        assert 4 <= len(shown) <= 10


def test_requests_have_the_features_of_their_user_and_the_views_before(
    lived: tuple[LiveUsers, list[ServedPortion]],
) -> None:
    users, portions = lived
    platform, requests = users.platform, portions[-1].requests
    rows = request_rows(platform, requests).to_dicts()
    bodies = request_bodies(platform, requests, 7)
    for place, (row, body) in enumerate(zip(rows, bodies, strict=True)):
        user = int(requests.user[place])
        viewed = [item for item in requests.history.item[place].tolist() if item != NO_ITEM]
        assert row["request_id"] == body["request"] == str(requests.number[place])
        assert row["request_timestamp"] == body["time"] == requests.time[place]
        assert body["user"] == {name: row[name] for name in ("user_id", "device_id", "age", "gender", "province")}
        assert (row["user_id"], row["age"]) == (user, platform.users.age[user])
        assert row["sequence.history.video_id"] == body["sequences"]["history"]["video_id"] == viewed
        authors = platform.items.author[viewed].tolist()
        assert row["sequence.history.author_id"] == body["sequences"]["history"]["author_id"] == authors
        assert body["exclude"] == sorted(set(viewed))
        assert body["k"] == 7


def test_events_are_the_feedback() -> None:
    users = LiveUsers(Platform(LOOP, 1, 80), 1)
    for _ in users.past():
        pass
    users.react(first := users.arrive(), first.best)
    portion = users.arrive()
    reactions = users.react(portion, portion.best)
    events = request_events(portion, reactions)
    ids = [event["id"] for of_request in events for event in of_request]
    assert len(ids) == len(set(ids)) > 0
    for place, of_request in enumerate(events):
        found = {(event["item"], event["kind"]): event["value"] for event in of_request}
        expected = {
            (int(item), kind): int(values[place, column])
            for kind, values in reactions.feedback.items()
            for column, item in enumerate(portion.best[place])
            if values[place, column]
        }
        assert found == expected
        for event in of_request:
            assert event["request"] == str(portion.requests.number[place])
            assert event["time"] > portion.requests.time[place]


def test_the_description_names_columns_that_the_tables_have(lived: tuple[LiveUsers, list[ServedPortion]]) -> None:
    users, portions = lived
    spec = loop_spec(users.platform)
    assert validate_spec(spec.model_dump(mode="json", exclude_unset=True)) == spec
    items = item_rows(users.platform.items, np.arange(5))
    tables = [past_rows(users.platform, portions[0]), request_rows(users.platform, portions[0].requests), items]
    columns = {name for table in tables for name in table.columns}
    features = {feature.column or name for _, name, feature in spec.features if feature.kind != "time"}
    named = {spec.request, spec.item, spec.user, spec.stage, spec.rank, spec.position, *spec.feedback, *features}
    assert named <= columns
    assert set(spec.sequences["history"].columns or {}) <= set(items.columns)
    assert spec.stage_names == list(STAGES)
