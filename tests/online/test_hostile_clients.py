"""Clients that send what no log may have: it is refused or set apart and counted, and the loop goes on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import rankfall as rf
from rankfall.data import ImpressionLog
from rankfall.encoding import Lookup
from rankfall.online.parity import ParityError, _difference_of_scores
from rankfall.serving.bundle import Bundle
from rankfall.serving.recording.recorder import KEY, sample_requests, sampling_key
from rankfall.studies.results import StreamResult
from support.command_line import run
from support.join_kills import copy_of
from support.served_loops import Shop, make_shop, start, stream_line
from support.served_records import (
    DAY,
    HOUR,
    ITEMS,
    MIDNIGHT,
    Traffic,
    bundle_traffic,
    random_request,
    random_sample,
    random_traffic,
    served_spec,
    write_segments,
)
from support.services import PATIENCE, Program, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.data.impressions.spec import Spec
    from rankfall.online.join_results import JoinResult

TIMES = [MIDNIGHT + 2 * DAY + hour * HOUR for hour in range(0, 24, 2)]
FIRST_DAY = "2024-01-15"
FAR = int(datetime(2099, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop that all tests read."""
    return make_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def traffic(shop: Shop) -> Traffic:
    """What the bundle answered on one day."""
    return bundle_traffic(Bundle.load(shop.bundle), TIMES)


def click(sample: dict[str, Any], name: str, value: float, **changes: Any) -> dict[str, Any]:
    """Return an event of the first item of a sample."""
    moment = sample["received"] + 10
    event = {"id": name, "request": sample["request"], "item": str(sample["item"][0]), "kind": "click", "value": value}
    return {**event, "time": moment, "received": moment, **changes}


def join(shop: Shop, records: Path, log: Path, **options: Any) -> JoinResult:
    """Join records, with every request checked."""
    given = {"spec": served_spec(), "items": shop.items, "parity": 1, "progress": False, **options}
    return rf.join(records, log, **given)


def with_body(traffic: Traffic, place: int, change: Callable[[dict[str, Any]], object]) -> Traffic:
    """Return traffic with another body in one sample."""
    samples = [dict(sample) for sample in traffic.samples]
    body = json.loads(samples[place]["body"])
    change(body)
    samples[place]["body"] = json.dumps(body, sort_keys=True)
    return Traffic(samples, traffic.events)


def clicks_of(log: Path, sample: dict[str, Any], day: str = FIRST_DAY) -> float:
    """Return the clicks that the log has of the first item of a sample."""
    table = ImpressionLog.load(log).days[day].table()
    row = next(one for one in table.to_pylist() if one["request"] == sample["request"])
    return float(row["feedback.click"][row["item"].index(sample["item"][0])])


# --- values of events ---------------------------------------------------------------------------------------------


def test_values_beyond_the_bound_are_set_apart_and_the_log_is_streamed(
    shop: Shop, traffic: Traffic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of these values once ended the join, or the stream that read the joined day."""
    one, two, *others = traffic.samples[:8]
    values = ([1e39], [1.7e308, 1.7e308], [1e11], [-1e300], [float("inf")], [float("nan")])
    events = [
        click(sample, f"e{number}", value)
        for sample, of_sample in zip(others, values, strict=True)
        for number, value in enumerate(of_sample)
    ]
    events += [click(one, "a", 1e10), click(one, "b", 1e10), click(two, "c", 1.0)]
    write_segments(tmp_path / "records", traffic.with_events(*events))
    log = copy_of(shop.directory, tmp_path / "log")
    assert run(*shop.join_line(tmp_path / "records", log, "--parity", "1")) == 0
    assert f"{FIRST_DAY}: set apart 7 (event: value out of range), such as event 'e" in capsys.readouterr().err
    assert [clicks_of(log, sample) for sample in (one, two, *others)] == [1e10, 1, *[0] * len(others)]
    assert run(*stream_line(log, tmp_path / "stream")) == 0
    (warning,) = [text for text in StreamResult.load(tmp_path / "stream/stream.json").warnings if "answered" in text]
    assert warning.startswith(f"on {FIRST_DAY} users saw only what a cascade had answered")  # no other day was joined
    quiet: dict[str, Any] = {"progress": False, "on_notice": lambda text: None}
    assert warning in rf.evaluate(shop.directory / "run", FIRST_DAY, data=log, **quiet).warnings
    config = json.loads(log.with_name("log.stream.yaml").read_text())
    config["data"] |= {"train": "2024-01-13", "valid": FIRST_DAY}
    del config["methods"]
    trained = rf.train(config, tmp_path / "run", **quiet)
    assert warning in trained.warnings
    assert warning in rf.export(trained, tmp_path / "bundle", **quiet).notes


@pytest.mark.service
def test_the_service_has_the_same_bound(shop: Shop, tmp_path: Path) -> None:
    with running(shop.bundle, samples=str(tmp_path)) as service, service.client() as client:
        for value in ("1e39", "1.7e308", "1e11", "-1e11", "1e999", "NaN", '"1"', "true"):
            body = '{"events": [{"id": "e", "request": "r", "item": 1, "kind": "click", "value": VALUE}]}'
            assert client.post("/events", body.replace("VALUE", value).encode()).code in (400, 422), value
        kept = {"id": "e", "request": "r", "item": 1, "kind": "click", "value": 1e10}
        assert client.post("/events", {"events": [kept]}).code == 200


def test_negative_values_cancel_nothing_unless_the_description_allows_them(
    shop: Shop, traffic: Traffic, tmp_path: Path
) -> None:
    of_others = [click(sample, "honest", 1.0) for sample in traffic.samples[:-1]]
    hostile = [click(sample, "hostile", -1.0) for sample in traffic.samples[:-1]]
    write_segments(tmp_path / "records", traffic.with_events(*of_others, *hostile))
    log = copy_of(shop.directory, tmp_path / "log")
    report = join(shop, tmp_path / "records", log).days[0]
    assert report.apart == {"event: value out of range": len(TIMES)}
    assert [clicks_of(log, sample) for sample in traffic.samples[:-1]] == [1.0] * len(TIMES)
    allowed = served_spec(events={"click": {"least": -1}})
    report = join(shop, tmp_path / "records", tmp_path / "new", spec=allowed, parity=0).days[0]
    assert report.apart == {}
    assert [clicks_of(tmp_path / "new", sample) for sample in traffic.samples[:-1]] == [0.0] * len(TIMES)


@pytest.mark.parametrize("age", [1e12, 1e9])  # beyond 1e10, and beyond 1e4 standard deviations from the mean
def test_numbers_are_bounded_as_the_log_scales_them(shop: Shop, traffic: Traffic, tmp_path: Path, age: float) -> None:
    """A bundle that scales them otherwise, or ignores them, accepts larger ones, which would end the training."""
    given = with_body(traffic, 4, lambda body: body["user"].update(age=age))
    write_segments(tmp_path / "records", given)
    log = copy_of(shop.directory, tmp_path / "log")
    scaling = ImpressionLog.load(log).manifest["about"]["scalings"]["user.age"]
    ends = [scaling["mean"][0] + sign * 1e4 * scaling["deviation"][0] for sign in (-1, 1)]
    for path, (low, high) in ((log, ends), (tmp_path / "new", (-1e10, 1e10))):
        report = join(shop, tmp_path / "records", path, parity=0).days[0]
        expected = f"request 's4': user.age: found {age}, expected a number from {low:g} to {high:g}"
        assert report.apart_because == ({} if age < high else {"request: value": [expected]})
        if age > high:
            ages = ImpressionLog.load(path).days[FIRST_DAY].table()["user.age"].to_pylist()
            assert max(map(abs, ages)) < 100


@pytest.mark.service
def test_the_service_refuses_numbers_that_the_log_sets_apart(shop: Shop) -> None:
    with running(shop.bundle) as service, service.client() as client:
        assert client.post("/rank", {"user": {"age": 1e3}, "k": 5}).code == 200
        for age in (1e9, -1e9):
            answer = client.post("/rank", {"user": {"age": age}, "k": 5})
            assert answer.code in (400, 422)
            assert f"user.age: found {age}, expected a number from -" in str(answer.json)


def test_kinds_and_days_that_clients_choose_do_not_fill_the_reports(
    shop: Shop, traffic: Traffic, tmp_path: Path
) -> None:
    first = traffic.samples[0]
    events = [click(first, f"e{number}", 1.0, kind=f"kind{number}") for number in range(3_000)]
    late = [
        {"request": f"late{number}", "time": number * DAY, "received": first["received"], "sampled": False}
        for number in range(3_000)
    ]
    write_segments(tmp_path / "records", Traffic([*traffic.samples, *late], events))
    report = join(shop, tmp_path / "records", copy_of(shop.directory, tmp_path / "log"), parity=0).days[0]
    for counts in (report.unused_events, report.late_requests):
        assert sum(counts.values()) == 3_000
        assert len(counts) < 1_100


# --- bodies and parity --------------------------------------------------------------------------------------------


def test_an_id_for_a_feature_that_is_derived_from_time_is_set_apart(
    shop: Shop, traffic: Traffic, tmp_path: Path
) -> None:
    given = with_body(traffic, 4, lambda body: body["context"].update(hour={"id": 3}))
    write_segments(tmp_path / "records", given)
    report = join(shop, tmp_path / "records", copy_of(shop.directory, tmp_path / "log"), parity_limit=0).days[0]
    assert report.apart == {"request: value": 1}
    assert "context.hour: derived from `time`" in report.apart_because["request: value"][0]
    assert report.models == {traffic.samples[0]["model"]: len(TIMES) - 1}


@pytest.mark.service
def test_a_history_with_an_item_that_the_catalogue_lacks_is_the_same_in_the_log(shop: Shop, tmp_path: Path) -> None:
    """The service cannot look the item up, so that the log must not either, although the table of items has it."""
    items = pl.read_parquet(shop.items)
    gone = pl.DataFrame({"item": [77], "topic": ["news"], "price": [3.0]}, schema=items.schema)
    pl.concat([items, gone]).write_parquet(tmp_path / "items.parquet")
    with running(shop.bundle, samples=str(tmp_path / "records")) as service, service.client() as client:
        for past in ([{"item": 77}], [{"item": 3}, {"item": 77}], {"item": [77, 5]}):
            assert client.post("/rank", {"sequences": {"history": past}, "k": 5}).code == 200
    log = copy_of(shop.directory, tmp_path / "log")
    options = {"items": tmp_path / "items.parquet", "close": True, "parity_limit": 0}
    report = join(shop, tmp_path / "records", log, **options).days[0]
    assert (report.checked, report.apart) == (3, {})
    day = ImpressionLog.load(log).days[report.day].table()
    topics = sorted(day["sequence.history.topic"].to_pylist(), key=len)
    assert topics[0] == [0]  # missing
    assert all(0 in one for one in topics)


def test_a_rate_of_differences_above_the_limit_stops_the_day_until_a_decision(
    shop: Shop, traffic: Traffic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [dict(sample) for sample in traffic.samples]
    samples[2]["score"] = [score + 1 for score in samples[2]["score"]]
    write_segments(tmp_path / "records", Traffic(samples))
    log = copy_of(shop.directory, tmp_path / "log")
    for _ in range(2):
        with pytest.raises(ParityError, match=r"1 of 12 checked requests \(8\.3%\) differ"):
            join(shop, tmp_path / "records", log)
        assert FIRST_DAY not in ImpressionLog.load(log).days
    assert run(*shop.join_line(tmp_path / "records", log, "--parity", "1", "--parity-limit", "0.1")) == 0
    shown = capsys.readouterr().err
    assert f"{FIRST_DAY}: set apart 1 (request: parity, 8.3% of 12 checked), such as request 's2'" in shown
    assert len(ImpressionLog.load(log).days[FIRST_DAY].table()) == len(TIMES) - 1


def test_rounding_of_scores_is_that_of_the_largest_of_the_request() -> None:
    """Numbers of clients make scores large, and those of some items nearly cancel: 100 is 1e-7 of their terms."""
    bundle: Any = SimpleNamespace(names=["retrieval"], path="bundle")
    record = {"item": [1, 2], "stage": [0, 0], "score": [-2e9, 37.0]}
    assert _difference_of_scores(bundle, record, {"retrieval": [-2e9, 137.0]}) is None
    assert "137" in str(_difference_of_scores(bundle, {**record, "score": [-2e9, 1e6]}, {"retrieval": [-2e9, 137.0]}))
    assert _difference_of_scores(bundle, {**record, "score": [3.0, 1.0]}, {"retrieval": [3.0, 1.001]}) is not None


@pytest.mark.service
def test_a_client_does_not_decide_the_type_of_ids_of_a_new_log(shop: Shop, tmp_path: Path) -> None:
    """The model was trained on text, and 7 has another hash than "7": all requests of the first day would differ."""
    with running(shop.bundle, samples=str(tmp_path / "records")) as service, service.client() as client:
        for place in (7, 8, None):
            assert client.post("/rank", {"context": {"place": place}, "k": 5}).code == 200
    options: dict[str, Any] = {"close": True, "parity_limit": 0, "on_notice": lambda text: None}
    report = join(shop, tmp_path / "records", tmp_path / "new", **options).days[0]
    assert (report.checked, report.apart) == (3, {})


@pytest.mark.service
def test_requests_to_a_bundle_with_other_stages_are_set_apart(shop: Shop, tmp_path: Path) -> None:
    settings = {"other": shop.other, "samples": str(tmp_path / "records")}
    with running(shop.bundle, **settings) as service, service.client() as client:
        for bundle in ("main", "other", "main"):
            assert client.post("/rank", {"bundle": bundle, "k": 5}).code == 200
    report = join(shop, tmp_path / "records", copy_of(shop.directory, tmp_path / "log"), close=True).days[0]
    assert report.apart == {"request: number of stages": 1}
    assert "has 1 stages" in report.apart_because["request: number of stages"][0]
    assert sum(report.models.values()) == 2


def test_a_day_of_which_most_requests_are_set_apart_is_a_warning(
    shop: Shop, traffic: Traffic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = traffic
    for place in range(7):
        bad = with_body(bad, place, lambda body: body["user"].update(age=1e12))
    write_segments(tmp_path / "records", bad)
    assert run(*shop.join_line(tmp_path / "records", tmp_path / "new", "--close", "--parity", "0")) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert (
        f"warning: {FIRST_DAY} is closed without 7 of its 12 sampled requests, which are set apart, mostly 7 for "
        "'request: value', such as request 's"
    ) in shown
    write_segments(tmp_path / "half", with_body(traffic, 0, lambda body: body["user"].update(age=1e12)))
    assert join(shop, tmp_path / "half", tmp_path / "other", close=True, parity=0).days[0].warning() is None


def test_a_day_with_requests_to_another_bundle_only_is_closed(shop: Shop, traffic: Traffic, tmp_path: Path) -> None:
    """Also the first day of a log that does not exist, if the records of later days fit the spec."""
    other = {**traffic.samples[0], "request": "other", "model": "m", "stage": [1] * len(traffic.samples[0]["item"])}
    later = [{**one, "time": one["time"] + 2 * DAY, "received": one["received"] + 2 * DAY} for one in traffic.samples]
    write_segments(tmp_path / "records", Traffic([other, *later]))
    for log in (copy_of(shop.directory, tmp_path / "log"), tmp_path / "new"):
        with pytest.warns(rf.RankfallWarning, match="is closed without 1 of its 1 sampled requests"):
            first, second = join(shop, tmp_path / "records", log, close=True, parity=0).days
        assert (first.apart, first.items) == ({"request: number of stages": 1}, 0)
        assert second.items > 0


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, Spec]:
    """A shop whose spec has two features of one column, and histories of the log's own feedback."""
    features = served_spec().model_dump(mode="json", exclude_none=True)["features"]
    features["user"]["twin"] = {"kind": "categorical", "hash_bucket_size": 17, "column": "user"}
    history = {"max_length": 4, "features": ["item", "topic"], "feedback": "click"}
    changes = {"features": features, "sequences": {"history": history}}
    return make_shop(tmp_path_factory.mktemp("twins"), **changes), served_spec(**changes)


CLIENT = "request: parity, sent by the client"


@pytest.mark.service
@pytest.mark.parametrize("others", [{"k": 5}, {"candidates": []}, {"exclude": list(range(ITEMS))}])
def test_two_values_of_one_column_stop_no_day(twins: tuple[Shop, Spec], tmp_path: Path, others: dict[str, Any]) -> None:
    """The log has one value, and the model received two; also beside requests whose samples have no item."""
    shop, spec = twins
    bodies = [
        others,
        {"user": {"user": "new", "twin": "else"}},
        {"user": {"twin": "new"}},
        {"user": {"user": "new", "twin": "new"}},
    ]
    with running(shop.bundle, samples=str(tmp_path / "records")) as service, service.client() as client:
        for body in bodies:
            assert client.post("/rank", body).code == 200
    log = copy_of(shop.directory, tmp_path / "log")
    report = join(shop, tmp_path / "records", log, spec=spec, close=True, parity_limit=0).days[0]
    assert report.apart == {CLIENT: 2}


@pytest.mark.service
def test_a_wrong_history_sets_no_later_request_of_the_user_apart(twins: tuple[Shop, Spec], tmp_path: Path) -> None:
    """Later histories lack the events of a request that is set apart, but what the client sent was right."""
    shop, spec = twins
    begin, past = datetime.now(UTC) - timedelta(seconds=30), [3]
    with running(shop.bundle, samples=str(tmp_path / "records")) as service, service.client() as client:
        for number in range(12):
            body = {
                "user": {"user": "new", "twin": "new"},
                "sequences": {"history": [{"item": one} for one in past[-4:]]},
            }
            moment = (begin + timedelta(seconds=number)).isoformat()
            items = client.post("/rank", {**body, "request": f"r{number}", "time": moment}).json["ids"]
            event = {"id": "e", "request": f"r{number}", "item": items[0], "kind": "click"}
            assert client.post("/events", {"events": [event]}).code == 200
            past = [*(past if number else []), items[0]]
    log = copy_of(shop.directory, tmp_path / "log")
    report = join(shop, tmp_path / "records", log, spec=spec, close=True, parity_limit=0).days[0]
    assert report.apart == {CLIENT: 1, "event: request set apart": 1}
    assert "request 'r0': sequence.history.item" in report.apart_because[CLIENT][0]


@pytest.mark.service
def test_an_item_of_the_history_that_the_bundle_lacks_is_named(twins: tuple[Shop, Spec], tmp_path: Path) -> None:
    """The log has the topic of an item that left the catalogue; the service could not look it up."""
    shop, spec = twins
    pl.read_parquet(shop.items).filter(pl.col("item") != 3).write_parquet(tmp_path / "left.parquet")
    run_directory, bundle = shop.directory / "run", tmp_path / "bundle"
    rf.export(run_directory, bundle, items=tmp_path / "left.parquet", progress=False, on_notice=lambda text: None)
    user, now = {"user": "new", "twin": "new"}, datetime.now(UTC)
    log, records = copy_of(shop.directory, tmp_path / "log"), tmp_path / "records"
    for served, past in ((shop.bundle, []), (bundle, [{"item": 3}])):  # the user clicks item 3, then it leaves
        with running(served, samples=str(records)) as service, service.client() as client:
            moment = (now - timedelta(seconds=30 - len(past))).isoformat()
            body = {"request": f"r{len(past)}", "time": moment, "user": user, "sequences": {"history": past}}
            assert client.post("/rank", body | {"candidates": [3, 4]}).code == 200
            event = {"id": "e", "request": "r0", "item": 3, "kind": "click"}
            assert client.post("/events", {"events": [event]}).code == 200
    report = join(shop, records, log, spec=spec, close=True, parity_limit=0).days[0]
    assert report.apart == {CLIENT: 1}
    (text,) = report.apart_because[CLIENT]
    assert "sequence.history.topic of an item of the history that the bundle lacks: " in text


@pytest.mark.service
def test_histories_with_several_events_of_one_time_are_those_of_the_log(
    twins: tuple[Shop, Spec], tmp_path: Path
) -> None:
    """Each user clicks on three items of an answer, in any order; a client knows their places, and so does the log."""
    shop, spec = twins
    chance, begin = random.Random(3), datetime.now(UTC) - timedelta(seconds=60)
    for order in ("of places", "of clicks"):
        past: list[int] = []
        records = tmp_path / order
        with running(shop.bundle, samples=str(records)) as service, service.client() as client:
            for number in range(12):
                request = f"r{number}"
                body = {
                    "request": request,
                    "time": (begin + timedelta(seconds=number)).isoformat(),
                    "user": {"user": "new", "twin": "new"},
                    "sequences": {"history": [{"item": one} for one in past[-4:]]},
                }
                items = client.post("/rank", body).json["ids"]
                clicked = chance.sample(range(len(items)), 3)
                events = [{"id": str(place), "request": request, "item": items[place]} for place in clicked]
                assert client.post("/events", {"events": [one | {"kind": "click"} for one in events]}).code == 200
                past += [items[place] for place in (sorted(clicked) if order == "of places" else clicked)]
        log = copy_of(shop.directory, tmp_path / f"log {order}")
        options: dict[str, Any] = {"close": True, "parity_limit": 0, "on_notice": lambda text: None}
        report = join(shop, records, log, spec=spec, **options).days[0]
        assert report.checked == 12
        if order == "of places":
            assert report.apart == {}
        else:
            assert report.apart[CLIENT] > 3
            assert "(events oldest first; those of the same time by position or rank" in report.apart_because[CLIENT][0]


# --- times --------------------------------------------------------------------------------------------------------


def test_a_request_of_a_future_day_hides_no_later_day(shop: Shop, traffic: Traffic, tmp_path: Path) -> None:
    future = {**traffic.samples[0], "request": "future", "time": FAR}
    write_segments(tmp_path / "records", Traffic([*traffic.samples[:-1], future]))
    log = copy_of(shop.directory, tmp_path / "log")
    first = join(shop, tmp_path / "records", log, close=True)
    assert first.closed == [FIRST_DAY]
    assert first.days[0].apart == {"request: time in the future": 1}
    following = [
        {**one, "request": f"next {one['request']}", "time": one["time"] + DAY, "received": one["received"] + DAY}
        for one in traffic.samples[:-1]
    ]
    write_segments(tmp_path / "records", Traffic(following))
    second = join(shop, tmp_path / "records", log, close=True, parity=0)
    assert second.closed == ["2024-01-16"]
    assert second.days[1].items > 0


@pytest.mark.service
def test_times_far_from_the_clock_are_counted_and_shown(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC)
    past = (now - timedelta(days=600)).replace(hour=12)
    settings = {"samples": str(tmp_path / "records"), "time_window": DAY}
    with running(shop.bundle, **settings) as service, service.client() as client:
        for moment, count in ((past, 120), (now.replace(year=2099, day=1), 3), (now, 5)):
            body = {"requests": [{"time": moment.isoformat(), "k": 5}] * count}
            assert client.post("/rank", body).code == 200
    log = copy_of(shop.directory, tmp_path / "log")
    assert run(*shop.join_line(tmp_path / "records", log, "--close", "--json")) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert len(result["closed"]) == 1
    (report,) = result["days"]
    assert report["requests"] == 8  # with those of 2099, on the day of their receipt
    assert report["sampled"] == 5
    assert sum(report["late_requests"].values()) == 120
    assert f"120 requests came too late for their day: 120 of {past.date()}" in shown.err


# --- poisoning ----------------------------------------------------------------------------------------------------


def test_a_client_cannot_choose_ids_that_are_sampled(tmp_path: Path) -> None:
    guessed = sampling_key(str(tmp_path / "own"))
    names = [f"r{number}" for number in range(20_000)]
    chosen = [name for name, good in zip(names, sample_requests(names, 0.05, guessed)[0], strict=True) if good]
    key = sampling_key(str(tmp_path / "service"))
    assert sampling_key(str(tmp_path / "service")) == key  # after a restart
    assert sample_requests(chosen, 0.05, key)[0].mean() < 0.12
    assert (tmp_path / "service" / KEY).stat().st_mode & 0o777 == 0o600


def made_up(count: int, user: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return samples of one day whose users are made up."""
    chance = random.Random(0)
    samples = []
    for number in range(count):
        moment = MIDNIGHT + 2 * DAY + number
        body = {**random_request(chance, moment), "user": {"user": user(number), "age": 20}}
        sample = {"sampled": False}
        while not sample["sampled"]:
            sample = random_sample(chance, f"q{number}", moment, moment + 5)
        samples.append({**sample, "body": json.dumps(body)})
    return samples


def test_made_up_users_grow_a_vocabulary_by_a_bounded_number(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_segments(tmp_path / "records", Traffic(made_up(10_000, lambda number: f"made up {number}")))
    log = copy_of(shop.directory, tmp_path / "log")
    before = ImpressionLog.load(log).features.tables["user.user"]
    line = shop.join_line(tmp_path / "records", log, "--close", "--grow", "--parity", "0")
    assert run(*line) == 0
    assert ImpressionLog.load(log).features.tables["user.user"] == before + 1_000
    assert "user.user has 10,000 new values; 1,000 got ids" in capsys.readouterr().err


def test_values_of_one_hash_and_long_ones_end_no_export(shop: Shop, traffic: Traffic, tmp_path: Path) -> None:
    """Bundles find values by their hashes, and refuse two of the same hash: no bundle of the log was written again."""
    signs = ["ab"[number.bit_count() % 2] for number in range(1024)]  # any polynomial modulo 2^64 has this collision
    users = ["".join(signs), "".join(signs).translate(str.maketrans("ab", "ba")), "long" * 257, "new"]
    for place, user in enumerate(users):
        traffic = with_body(traffic, place, lambda body, user=user: body["user"].update(user=user))  # type: ignore[misc]
    write_segments(tmp_path / "records", traffic)
    log = copy_of(shop.directory, tmp_path / "log")
    before = ImpressionLog.load(log).features.tables["user.user"]
    report = join(shop, tmp_path / "records", log, parity=0, grow=True).days[0]
    assert report.apart == {"request: value": 1}
    assert "text of at most 1,024 characters" in report.apart_because["request: value"][0]
    known = ImpressionLog.load(log).vocabulary("user.user")
    assert len(known) == before  # which counts missing and unseen, too
    Lookup.of(known, name="users")


def test_a_user_has_a_bounded_number_of_requests(shop: Shop, tmp_path: Path) -> None:
    samples = made_up(60, lambda number: "greedy" if number % 2 else f"u{number}")
    write_segments(tmp_path / "records", Traffic(samples))
    log = copy_of(shop.directory, tmp_path / "log")
    report = join(shop, tmp_path / "records", log, close=True, parity=0, user_requests=10).days[0]
    assert report.apart == {"request: too many of one user": 20}
    assert "more than 10 of 'greedy'" in report.apart_because["request: too many of one user"][0]
    assert sum(report.models.values()) == 40


def test_ids_that_the_log_has_and_events_of_others_are_set_apart(shop: Shop, traffic: Traffic, tmp_path: Path) -> None:
    taken = {**traffic.samples[0], "request": "old3"}
    events = [
        click(traffic.samples[1], "a", 1.0, request="never served"),
        click(traffic.samples[1], "b", 1.0, item="9" * 1024),
        click(taken, "c", 1.0),
    ]
    write_segments(tmp_path / "records", Traffic([taken, *traffic.samples], events))
    report = join(shop, tmp_path / "records", copy_of(shop.directory, tmp_path / "log")).days[0]
    assert report.apart == {
        "event: item not in the sample": 1,
        "event: request set apart": 1,
        "event: unknown request": 1,
        "request: id": 1,
    }
    stored = pl.read_parquet(tmp_path / "log.join" / "days" / FIRST_DAY / "apart.parquet")
    assert sorted(stored["reason"]) == sorted(report.apart)


# --- processes that are killed ------------------------------------------------------------------------------------


def killed_when(line: list[str], begun: Callable[[], bool]) -> int:
    """Start a command, kill it once it has begun, and return its exit code."""
    process = start(line)
    end = time.monotonic() + PATIENCE
    while not begun() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    return process.returncode


@pytest.mark.slow
@pytest.mark.service
def test_the_loop_goes_on_after_every_process_is_killed(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, log, out = tmp_path / "records", copy_of(shop.directory, tmp_path / "log"), tmp_path / "stream"
    hostile: list[dict[str, Any]] = [
        {"context": {"hour": {"id": 3}}},
        {"bundle": "other"},
        {"time": "2099-01-01T00:00:00Z"},
        {"time": (datetime.now(UTC) - timedelta(days=600)).isoformat()},
        {"sequences": {"history": [{"item": 77}]}},
        {"user": {"user": {"id": 1}}},
    ]
    for number in range(2):
        with Program(shop.bundle, "--other", shop.other, "--samples", records) as service, service.client() as client:
            for place, body in enumerate([*hostile, *[{}] * 20]):
                answer = client.post("/rank", {"request": f"{number} {place}", "k": 5, **body})
                assert answer.code in (200, 422)
                item = answer.json["ids"][0] if answer.code == 200 else 1
                event = {"id": "e", "request": f"{number} {place}", "item": item, "kind": "click", "value": -place}
                assert client.post("/events", {"events": [event]}).code == 200
            time.sleep(1)  # until samples are written
            service.end(signal.SIGKILL)
    line = shop.join_line(records, log, "--close", "--parity", "1", "--parity-limit", "0")
    assert killed_when(line, lambda: (tmp_path / "log.join").exists()) == -signal.SIGKILL
    assert run(*line) == 0
    shown = capsys.readouterr().err
    for reason in ("request: number of stages", "request: value", "event: value out of range"):
        assert f"({reason}), such as" in shown
    assert len(ImpressionLog.load(log).days) == 3
    assert killed_when(stream_line(log, out), lambda: (out / "runs").exists()) == -signal.SIGKILL
    assert run(*stream_line(log, out, "--resume")) == 0


@pytest.mark.slow
def test_hostile_records_are_the_same_after_a_kill_at_any_rename(shop: Shop, tmp_path: Path) -> None:
    traffic = random_traffic(3, requests=8, hostile=True)
    traffic.samples.append({**next(one for one in traffic.samples if one["sampled"]), "request": "far", "time": FAR})
    write_segments(tmp_path / "records", traffic)
    words = [tmp_path / "records", shop.directory, tmp_path, 7]
    command = [sys.executable, "-m", "support.join_kills", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
    result = json.loads(done.stdout)
    assert result["kills"] > 0
    assert result["wrong"] == []
