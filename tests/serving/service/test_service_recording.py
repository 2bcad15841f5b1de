"""What a service records: samples that repeat its answers, and events that are on disk before they are acknowledged."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.serving.recording.record_segments import recover, segments
from rankfall.serving.service import settings as limits
from rankfall.storage.disk import intercepted
from support.bundles import platform_bundle
from support.command_line import run
from support.records import ids_in
from support.services import Program, Running, eventually, loaded, ranking_bundle, requests, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.services import Client

pytestmark = pytest.mark.service
RANDOM_ID = re.compile("[0-9a-f]{32}")
CLICK = {"id": "e", "request": "r", "item": 7, "kind": "click"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    place = tmp_path_factory.mktemp("recorded")
    with running(platform_bundle(), samples=str(place), sample_items=(5, 3)) as service:
        yield service, place


@pytest.fixture
def client(recorded: tuple[Running, Path]) -> Iterator[Client]:
    with recorded[0].client() as client:
        yield client


def records(directory: Path) -> list[dict[str, Any]]:
    """Return the records of complete segments."""
    return [row for segment in segments(directory) for batch in segment.batches() for row in batch.to_pylist()]


def written(client: Client, count: int) -> None:
    """Wait until that many requests are recorded."""
    results = ("written", "unsampled")
    eventually(lambda: sum(client.metric(f'rankfall_samples_total{{result="{one}"}}') for one in results) >= count)


# --- request ids --------------------------------------------------------------------------------------------------


def test_every_answer_has_an_id() -> None:
    with running(platform_bundle()) as service, service.client() as client:
        own = client.post("/rank", {"request": "mine: ä 1"}).json
        assert own["request"] == "mine: ä 1"
        others = [client.post("/rank", {}).json["request"] for _ in range(2)]
        several = client.post("/rank", {"requests": [{}, {"request": "x"}, {"request": None}]}).json["rankings"]
        assert several[1]["request"] == "x"
        made = [*others, several[0]["request"], several[2]["request"]]
        assert len(set(made)) == 4
        assert all(RANDOM_ID.fullmatch(one) for one in made)
        unknown = client.post("/events", {"events": [CLICK]})
        assert unknown.code == 404
        assert "--samples" in unknown.json["error"]
        assert "/events" not in client.get("/openapi.json").json["paths"]


@pytest.mark.parametrize("given", ["", "a" * 129, "a\nb", "\x7f", "\u0085", 7, True, ["a"], {}])
def test_wrong_id_of_a_request_is_named(client: Client, given: Any) -> None:
    for content, field in (
        ({"request": given}, "request"),
        ({"requests": [{}, {"request": given}]}, "requests[1].request"),
    ):
        answer = client.post("/rank", content)
        assert (answer.code, answer.json["field"]) == (422, field)
        assert "expected text of 1 to 128 characters" in answer.json["error"]
    assert client.post("/rank", {"request": "a" * 128}).code == 200
    assert client.post("/rank", {"requests": [{}], "request": "a"}).json["field"] == "request"


# --- samples ------------------------------------------------------------------------------------------------------


def test_samples_repeat_the_answers(tmp_path: Path) -> None:
    """The body of a record is all that the answer depends on: its time, too, if the client gave none."""
    with running(platform_bundle(), samples=str(tmp_path), sample_items=(5, 3)) as service, service.client() as client:
        answers = [client.post("/rank", {**request, "k": 4}).json for request in requests()[:4]]
        answers.append(client.post("/rank", {"request": "no time", "k": 4}).json)
        several = client.post("/rank", {"requests": [{"k": 4, **request} for request in requests()[:5]]}).json
        refused = client.post("/rank", {"request": "refused", "k": 0})
        assert refused.code == 422
    answers += several["rankings"]
    found = {row["request"]: row for row in records(tmp_path / "samples")}
    assert list(found) == [answer["request"] for answer in answers]
    bundle = loaded(platform_bundle())
    for answer in answers:
        row = found[answer["request"]]
        assert row["sampled"]
        assert (row["model"], row["bundle"]) == (several["model"], str(platform_bundle().resolve()))
        shown = [item for item, stage in zip(row["item"], row["stage"], strict=True) if stage == 2]
        assert shown == answer["ids"]
        assert [row["stage"].count(stage) for stage in range(3)] == [5, 3, 4]
        body = json.loads(row["body"])
        again = bundle.rank(body, k=4)
        assert again.ids == answer["ids"]
        assert row["time"] == datetime.fromisoformat(body["time"])
        assert abs((datetime.now(UTC) - row["received"]).total_seconds()) < 600
        scores = bundle.score(body, row["item"])
        for item, stage, score in zip(range(12), row["stage"], row["score"], strict=True):
            assert score == pytest.approx(scores[("retrieval", "ranking", "ranking")[stage]][item], abs=1e-4)


def test_share_of_requests_is_sampled(tmp_path: Path) -> None:
    names = [f"request {place}" for place in range(60)]
    sampled: list[dict[str, list[int]]] = []
    for number in range(3):  # the same ones after a restart, others by a service with another secret
        place = tmp_path / f"{number // 2}"
        with running(platform_bundle(), samples=str(place), sample_share=0.3) as service, service.client() as client:
            assert client.post("/rank", {"requests": [{"request": name} for name in names]}).code == 200
        found = records(place / "samples")[-len(names) :]
        assert [row["request"] for row in found] == names
        sampled.append({row["request"]: row["item"] for row in found if row["sampled"]})
        assert all((row["body"] is None) != row["sampled"] for row in found)
    assert sampled[0] == sampled[1]
    assert sampled[0].keys() != sampled[2].keys()
    assert 5 <= len(sampled[0]) <= 31  # 18 in expectation


def test_full_disk_does_not_touch_the_answers(tmp_path: Path) -> None:
    """On a file system of 200 kB: samples are dropped and counted until there is room again; events get 503."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no program mount")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        with running(platform_bundle(), samples=str(place)) as service, service.client() as client:
            filler = place / "filler"
            free = os.statvfs(place)
            filler.write_bytes(bytes(free.f_bavail * free.f_frsize))
            expected = loaded(platform_bundle()).rank(requests()[0]).ids
            assert client.post("/rank", requests()[0]).json["ids"] == expected
            eventually(lambda: client.metric('rankfall_samples_total{result="dropped"}') == 1)
            refused = client.post("/events", {"events": [CLICK]})
            assert (refused.code, refused.headers["retry-after"]) == (503, "1")
            assert client.metric('rankfall_sink_errors_total{kind="samples"}') >= 1
            assert client.metric('rankfall_sink_errors_total{kind="events"}') >= 1
            assert client.metric('rankfall_refused_total{reason="events"}') == 1
            filler.unlink()
            assert client.post("/rank", {**requests()[0], "request": "late"}).json["ids"] == expected
            assert client.post("/events", {"events": [{**CLICK, "id": "late"}]}).code == 200
            written(client, 1)
        assert ids_in(place / "samples") == ids_in(place / "events") == ["late"]
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_slow_disk_delays_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk does not respond, requests are answered and the queue of samples is bounded."""
    monkeypatch.setattr(limits, "SAMPLE_QUEUE", 10)
    monkeypatch.setattr(limits, "EVENT_SECONDS", 0.2)
    opened = threading.Event()

    def hook(operation: str, path: Path) -> None:
        if operation == "write":
            assert opened.wait(60)

    with running(platform_bundle(), samples=str(tmp_path)) as service, service.client() as client, intercepted(hook):
        for _ in range(30):
            assert client.post("/rank", {}).code == 200
        assert client.metric("rankfall_sample_queue_requests") == 10  # with those that are being written
        assert client.metric('rankfall_samples_total{result="dropped"}') == 20
        late = client.post("/events", {"events": [CLICK]})
        assert (late.code, late.headers["retry-after"]) == (503, "1")
        opened.set()
        written(client, 10)
        eventually(lambda: client.metric('rankfall_events_total{result="written"}') == 1)


def test_new_bundle_with_other_stages_is_sampled(tmp_path: Path) -> None:
    with running(platform_bundle(), samples=str(tmp_path), sample_items=(5, 3)) as service, service.client() as client:
        before = client.post("/rank", {}).json["model"]
        assert client.reload(ranking_bundle()).code == 200
        after = client.post("/rank", {}).json["model"]
    first, second = records(tmp_path / "samples")
    assert (first["model"], second["model"]) == (before, after)
    assert [first["stage"].count(stage) for stage in range(3)] == [5, 3, 10]
    assert [second["stage"].count(stage) for stage in range(3)] == [5, 10, 0]


def test_clock_of_requests(tmp_path: Path) -> None:
    """Records of a replay have its times."""
    with running(platform_bundle(), samples=str(tmp_path), clock="requests") as service, service.client() as client:
        for path, content, field in (
            ("/rank", {}, "time"),
            ("/rank", {"requests": [{}]}, "requests[0].time"),
            ("/events", {"events": [CLICK]}, "events[0].time"),
        ):
            answer = client.post(path, content)
            assert (answer.code, answer.json["field"]) == (422, field)
        times = ["2024-01-15T10:00:00", "2024-01-15T12:00:00", "2024-01-15T11:00:00", None]
        for place, time in enumerate(times):
            assert client.post("/rank", {"request": str(place), "time": time}).code == 200
            written(client, place + 1)
        assert client.post("/events", {"events": [CLICK, {**CLICK, "time": "2024-01-15T11:30:00"}]}).code == 200
    found = records(tmp_path / "samples")
    hours = [(row["time"].isoformat()[11:13], row["received"].isoformat()[11:13]) for row in found]
    assert [int(received) - int(time) for time, received in hours] == [0, 0, 1, 0]
    assert len({row["received"] for row in found[1:]} | {row["received"] for row in records(tmp_path / "events")}) == 1
    events = records(tmp_path / "events")
    assert [(events[0]["time"] - row["time"]).total_seconds() for row in events] == [0, 1800]


def test_sample_is_received_before_the_events_of_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the limit of a day separates an event from a sample that is written later, and the event is lost."""
    monkeypatch.setattr("rankfall.serving.recording.recorder._SECONDS", 60.0)  # written when the service ends
    hours = [f"2024-01-20T0{hour}:00:00+00:00" for hour in range(3)]
    with running(platform_bundle(), samples=str(tmp_path), clock="requests") as service, service.client() as client:
        for hour in hours:
            assert client.post("/rank", {**requests()[0], "time": hour, "request": hour}).code == 200
            assert client.post("/events", {"events": [{**CLICK, "request": hour}]}).code == 200
    samples = {row["request"]: row["received"] for row in records(tmp_path / "samples")}
    events = {row["request"]: row["received"] for row in records(tmp_path / "events")}
    assert samples == events == {hour: datetime.fromisoformat(hour) for hour in hours}


def test_workers_write_segments_of_their_own(tmp_path: Path) -> None:
    with Program(platform_bundle(), "--samples", tmp_path, "--workers", "2") as program:

        def ask(place: int) -> str:
            with program.client() as client:
                answer = client.post("/rank", {"request": str(place), "deadline": 30_000})
                assert answer.code == 200
                assert client.post("/events", {"events": [{**CLICK, "id": str(place)}]}).code == 200
                return str(answer.json["request"])

        with ThreadPoolExecutor(8) as pool:
            asked = list(pool.map(ask, range(60)))
        code, log = program.end()
    assert code == 0, log
    assert sorted(ids_in(tmp_path / "samples")) == sorted(asked) == sorted(ids_in(tmp_path / "events"))
    assert {path.suffix for path in tmp_path.glob("*/*")} == {".arrows"}


# --- events -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (3, ""),
        ({}, ".id"),
        ({**CLICK, "id": ""}, ".id"),
        ({**CLICK, "id": "a" * 129}, ".id"),
        ({**CLICK, "id": 7}, ".id"),
        ({**CLICK, "request": None}, ".request"),
        ({**CLICK, "request": "a\x00"}, ".request"),
        ({**CLICK, "item": None}, ".item"),
        ({**CLICK, "item": True}, ".item"),
        ({**CLICK, "item": 1.5}, ".item"),
        ({**CLICK, "item": 2**63}, ".item"),
        ({**CLICK, "item": "a" * 1025}, ".item"),
        ({**CLICK, "item": [7]}, ".item"),
        ({**CLICK, "kind": None}, ".kind"),
        ({**CLICK, "kind": ""}, ".kind"),
        ({**CLICK, "kind": "a b"}, ".kind"),
        ({**CLICK, "kind": "click\n"}, ".kind"),
        ({**CLICK, "kind": "ä"}, ".kind"),
        ({**CLICK, "kind": "a" * 65}, ".kind"),
        ({**CLICK, "value": "1"}, ".value"),
        ({**CLICK, "value": True}, ".value"),
        ({**CLICK, "value": []}, ".value"),
        ({**CLICK, "time": "yesterday"}, ".time"),
        ({**CLICK, "time": 1.5}, ".time"),
        ({**CLICK, "user": 3}, ".user"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_wrong_event_is_named_and_refuses_the_call(client: Client, event: Any, field: str) -> None:
    before = client.metric('rankfall_events_total{result="written"}')
    answer = client.post("/events", {"events": [CLICK, event]})
    assert (answer.code, answer.json["field"]) == (422, f"events[1]{field}")
    assert answer.json["error"].startswith(f"events[1]{field}: found ")
    assert client.metric('rankfall_events_total{result="written"}') == before


@pytest.mark.parametrize(
    ("content", "field"),
    [({}, "events"), ({"events": {}}, "events"), ({"events": []}, "events"), ({"events": [CLICK] * 1001}, "events"),
     ({"events": [CLICK], "x": 1}, "x"), ([CLICK], "body")],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_wrong_call_is_named(client: Client, content: Any, field: str) -> None:
    answer = client.post("/events", content)
    assert (answer.code, answer.json["field"]) == (422, field)
    assert client.post("/events", b"{").code == 400
    assert client.call("POST", "/events", b"{}", content_type="text/plain").code == 415
    assert client.get("/events").code == 405


def test_events_are_recorded_as_sent(tmp_path: Path) -> None:
    with running(platform_bundle(), samples=str(tmp_path)) as service, service.client() as client:
        given = [
            {**CLICK, "id": "a", "value": 2, "time": "2024-01-15T10:30:00+08:00"},
            {**CLICK, "id": "b", "item": "text ä", "kind": "long_view-2", "value": -0.5},
            {**CLICK, "id": "c", "item": 8.0, "value": None, "time": None},
            {**CLICK, "id": "a", "item": -(2**63)},  # a repetition, which joining removes
        ]
        answer = client.post("/events", {"events": given})
        assert (answer.code, answer.json) == (200, {"accepted": 4})
        open_one = [path for path in (tmp_path / "events").iterdir() if path.suffix == ".open"]
        assert open_one  # acknowledged, although no reader sees it yet
        many = [{**CLICK, "id": f"{'x' * 100}{place}"} for place in range(1000)]
        assert len(json.dumps(many)) > limits.LARGE_BODY_BYTES
        assert client.post("/events", {"events": many}).json == {"accepted": 1000}
    found = records(tmp_path / "events")
    assert [row["id"] for row in found] == ["a", "b", "c", "a", *(event["id"] for event in many)]
    assert [row["item"] for row in found[:4]] == ["7", "text ä", "8", str(-(2**63))]
    assert [(row["kind"], row["value"]) for row in found[:4]] == [
        ("click", 2.0), ("long_view-2", -0.5), ("click", 1.0), ("click", 1.0)
    ]  # fmt: skip
    assert found[0]["time"] == datetime(2024, 1, 15, 2, 30, tzinfo=UTC)
    now = datetime.now(UTC)
    assert all(abs((now - row["received"]).total_seconds()) < 600 for row in found)
    assert all(abs((row["time"] - row["received"]).total_seconds()) < 60 for row in found[1:])


def test_failing_sync_is_no_acknowledgement(tmp_path: Path) -> None:
    def hook(operation: str, path: Path) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with running(platform_bundle(), samples=str(tmp_path)) as service, service.client() as client:
        with intercepted(hook):
            assert client.post("/events", {"events": [CLICK]}).code == 503
        assert client.post("/events", {"events": [CLICK]}).code == 200


def test_no_acknowledged_event_is_lost_by_a_kill(tmp_path: Path) -> None:
    """The service is killed under load, twice; what it acknowledged is in the recovered segments."""
    acknowledged: list[str] = []
    ranked: list[str] = []
    for life in range(2):
        with Program(platform_bundle(), "--samples", tmp_path, "--workers", "1") as program:

            def report(user: int, program: Program = program, life: int = life) -> None:
                with program.client() as client:
                    for number in range(10_000):
                        name = f"{life}-{user}-{number}"
                        try:
                            if user == 0:
                                if client.post("/rank", {"request": name}).code == 200:
                                    ranked.append(name)
                            elif client.post("/events", {"events": [{**CLICK, "id": name}]}).code == 200:
                                acknowledged.append(name)
                        except (OSError, http.client.HTTPException):  # the service is dead
                            return

            with ThreadPoolExecutor(5) as pool:
                before = len(acknowledged)
                users = [pool.submit(report, user) for user in range(5)]
                eventually(lambda: len(acknowledged) >= before + 60)  # noqa: B023
                program.process.send_signal(signal.SIGKILL)
                for user in users:
                    user.result()
    for kind in ("events", "samples"):
        recover(tmp_path / kind)
    found = ids_in(tmp_path / "events")
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    sampled = ids_in(tmp_path / "samples")
    assert len(sampled) == len(set(sampled))
    assert len(set(sampled) - set(ranked)) <= 2  # recorded, but killed before the answer was sent


# --- the start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample-items", "1,2,3"], "sample-items: found 1,2,3, expected one number, or 2 numbers for the stages"),
        (["--sample-items", "1,x"], "sample-items: found '1,x', expected whole numbers"),
        (["--sample-items", "-1"], "sample-items"),
        (["--sample-share", "1.5"], "sample-share"),
        (["--clock", "sun"], "clock"),
    ],
    ids=str,
)
def test_wrong_option_is_an_error_at_the_start(
    tmp_path: Path, options: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", str(platform_bundle()), "--samples", str(tmp_path / "new"), "--port", "0", *options) != 0
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("options", [["--sample-share", "0.5"], ["--sample-items", "3"], ["--clock", "requests"]])
def test_option_of_records_without_records_is_an_error(options: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run("serve", str(platform_bundle()), "--port", "0", *options) == 1
    assert f"{options[0].removeprefix('--')}: requires --samples" in capfd.readouterr().err


def test_directory_that_cannot_be_written_is_an_error_at_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run("serve", str(platform_bundle()), "--samples", str(tmp_path / "file"), "--port", "0") == 1

    def hook(operation: str, path: Path) -> None:
        if operation == "write" and path.name.startswith(".probe"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with intercepted(hook):
        assert run("serve", str(platform_bundle()), "--samples", str(tmp_path / "new"), "--port", "0") == 1
    error = capfd.readouterr().err
    assert error.count("cannot be written") == 2
    assert "Read-only file system" in error
    assert "Traceback" not in error
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
