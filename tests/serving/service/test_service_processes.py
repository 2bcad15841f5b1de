"""A service that watches for new bundles, and one of several processes."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
from http.client import HTTPException
from typing import TYPE_CHECKING

import pytest

from rankfall.serving import bundle_files as files
from rankfall.serving.service import bundle_slots as slots
from rankfall.serving.service.app import Service
from rankfall.serving.service.settings import Settings
from rankfall.serving.service.shared_state import SharedState, load_initial_bundles
from support.bundles import platform_bundle
from support.command_line import run
from support.forks import is_alive
from support.services import (
    HEADERS,
    TOKEN,
    Program,
    eventually,
    is_listening,
    loaded,
    model_of,
    ranking_bundle,
    requests,
    running,
    serving,
    spoiled,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service


# --- a watched place ----------------------------------------------------------------------------------------------


def placed(source: Path, out: Path, age: int) -> Path:
    """A copy of a bundle whose manifest was written at some time."""
    shutil.copytree(source, out)
    os.utime(out / "manifest.json", (age, age))
    return out


def test_the_newest_bundle_of_a_directory_is_taken(tmp_path: Path) -> None:
    place = tmp_path / "bundles"
    placed(ranking_bundle(), place / "older", 1000)
    placed(platform_bundle(), place / "newer", 2000)
    with running(place, watch=True) as service, service.client() as client:
        assert client.get("/ready").json["model"] == model_of(platform_bundle())
        spoiled(platform_bundle(), tmp_path / "bad").rename(place / "bad")
        os.utime(place / "bad" / "manifest.json", (3000, 3000))
        eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())
        # What is not finished is not even tried.
        placed(ranking_bundle(), place / ".new.x.unfinished", 5000)
        (placed(ranking_bundle(), place / "half", 5000) / "manifest.json").unlink()
        placed(ranking_bundle(), place / "newest", 4000)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        assert client.metric('rankfall_swaps_total{result="refused"}') == 1
        assert client.metric('rankfall_swaps_total{result="taken"}') == 1


def test_a_bundle_that_is_replaced_is_taken(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(platform_bundle(), place)
    shutil.copytree(ranking_bundle(), tmp_path / "next")
    with running(place, watch=True) as service, service.client() as client:
        assert client.get("/ready").json["model"] == model_of(platform_bundle())
        place.rename(tmp_path / "before")
        (tmp_path / "next").rename(place)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        assert client.post("/rank", requests()[0]).json["ids"] == loaded(ranking_bundle()).rank(requests()[0]).ids


def test_a_refused_bundle_is_tried_again_when_it_changes(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(platform_bundle(), place)
    with running(place, watch=True) as service, service.client() as client:
        place.rename(tmp_path / "before")
        shutil.copytree(ranking_bundle(), tmp_path / "next")
        scorer = tmp_path / "next" / "stages" / "ranking" / "scorer.onnx"
        content = scorer.read_bytes()
        scorer.write_bytes(content[:100])  # as if the copy were not complete
        (tmp_path / "next").rename(place)
        eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        assert client.get("/ready").json["model"] == model_of(platform_bundle())
        (place / "stages" / "ranking" / "scorer.onnx").write_bytes(content)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))


def test_a_worker_without_a_good_bundle_waits_for_one(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "bundle", shared=tmp_path)
    shutil.copytree(platform_bundle(), tmp_path / "bundle")
    load_initial_bundles(settings, SharedState(tmp_path))
    (tmp_path / "bundle").rename(tmp_path / "away")
    with serving(Service(settings)) as service, service.client() as client:
        assert client.get("/health").code == 200
        for answer in (client.get("/ready"), client.post("/rank", {})):
            assert (answer.code, answer.headers["retry-after"]) == (503, "1")
        (tmp_path / "away").rename(tmp_path / "bundle")
        eventually(lambda: client.get("/ready").code == 200)
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())


def test_a_bad_newest_bundle_does_not_stop_a_start(tmp_path: Path) -> None:
    place = tmp_path / "bundles"
    placed(platform_bundle(), place / "good", 1000)
    bad = spoiled(ranking_bundle(), place / "bad")
    assert run("serve", place) == 1  # who does not watch is told
    with Program(place, "--watch") as program, program.client() as client:
        assert model_of(platform_bundle()) in program.line
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())
        assert client.post("/reload", {"path": "x"}, authorization="Bearer a-guess").code == 401
        shutil.rmtree(bad)
        placed(ranking_bundle(), place / "next", 2000)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        code, said = program.end()
    assert code == 0, said
    warning, guess, taken = [line for line in said.splitlines() if re.match(r"\d{4}-", line)]
    assert f" {program.process.pid} WARNING {bad} is not served: " in warning
    assert "/reload with a wrong token from 127.0.0.1" in guess
    assert f" {program.process.pid} INFO main serves " in taken
    assert TOKEN not in said
    assert "a-guess" not in said


def test_a_watched_directory_may_have_no_bundle_yet(tmp_path: Path) -> None:
    place = tmp_path / "bundles"
    place.mkdir()
    with Program(place, "--watch") as program, program.client() as client:
        assert "serves nothing yet" in program.line
        assert [client.get(path).code for path in ("/health", "/docs", "/openapi.json", "/model", "/")] == [200] * 5
        for answer in (client.get("/ready"), client.post("/rank", {})):
            assert (answer.code, answer.headers["retry-after"]) == (503, "1")
        spoiled(ranking_bundle(), tmp_path / "bad").rename(place / "bad")
        eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        placed(platform_bundle(), tmp_path / "good", 1000).rename(place / "good")  # older than the bad one
        eventually(lambda: client.get("/ready").code == 200)
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())
        code, said = program.end()
    assert code == 0, said
    assert "main has no bundle: " in said


def without_a_bundle(source: Path, out: Path, manifest: str) -> Path:
    """A copy of a bundle with another manifest, newer than those of all bundles."""
    shutil.copytree(source, out)
    (out / "manifest.json").write_text(manifest)
    return out


OTHER_MANIFESTS = {"no JSON": '{"format": "rankfall bun', "not that of a bundle": '{"format": "rankfall log"}'}


@pytest.mark.parametrize("why", OTHER_MANIFESTS)
def test_a_newest_directory_that_is_no_bundle_is_refused_aloud(
    why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bundles"
    placed(platform_bundle(), place / "good", 1000)
    refused = 'rankfall_swaps_total{result="refused"}'
    with running(place, watch=True) as service, service.client() as client:
        monkeypatch.setattr(logging.getLogger("rankfall.serving.service"), "propagate", True)
        strange = without_a_bundle(ranking_bundle(), tmp_path / "strange", OTHER_MANIFESTS[why])
        strange.rename(place / "strange")
        eventually(lambda: client.metric(refused) == 1)
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())
        (message,) = [record.getMessage() for record in caplog.records]
        assert f"{place / 'strange' / 'manifest.json'} is {why}" in message
        # It is not said again, and whatever is newer than that is taken.
        shutil.copytree(ranking_bundle(), tmp_path / "next")
        (tmp_path / "next" / "manifest.json").touch()
        (tmp_path / "next").rename(place / "next")
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        assert client.metric(refused) == 1


def test_a_bundle_that_is_replaced_by_something_else_is_kept(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(platform_bundle(), place)
    without_a_bundle(ranking_bundle(), tmp_path / "strange", "[]")
    with running(place, watch=True) as service, service.client() as client:
        place.rename(tmp_path / "before")
        (tmp_path / "strange").rename(place)
        eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())


def test_a_bundle_that_could_not_be_read_is_taken_when_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with too few file handles: nothing of the bundle changes afterwards."""
    place = tmp_path / "bundles"
    placed(platform_bundle(), place / "good", 1000)
    shutil.copytree(ranking_bundle(), tmp_path / "next")
    (tmp_path / "next" / "manifest.json").touch()
    with running(place, watch=True) as service, service.client() as client:
        with monkeypatch.context() as patched:
            patched.setattr(slots, "is_bundle", lambda path: path.name != "next" and files.is_bundle(path))
            patched.setattr(
                slots, "why_no_bundle", lambda path: "no handle" if path.name == "next" else files.why_no_bundle(path)
            )
            (tmp_path / "next").rename(place / "next")
            eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        assert client.post("/rank", {}).json["model"] == model_of(ranking_bundle())


def test_a_start_says_what_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "bundles"
    strange = without_a_bundle(ranking_bundle(), place / "strange", "")
    for path in (place, strange):
        assert run("serve", path) == 1
        assert f"{strange / 'manifest.json'} is no JSON" in capsys.readouterr().err
    placed(platform_bundle(), place / "good", 1000)
    with Program(place) as program:
        assert model_of(platform_bundle()) in program.line
        with program.client() as client:
            assert client.reload(place).json["model"] == model_of(platform_bundle())
        code, said = program.end()
    assert code == 0
    assert said.count(f"WARNING {strange} is skipped") == 2  # at the start, and at the reload


# --- processes ----------------------------------------------------------------------------------------------------


def models(program: Program, count: int = 8) -> set[str]:
    """Which models answer on fresh connections; none if one fails."""
    found = set()
    for _ in range(count):
        try:
            with program.client() as client:
                found.add(client.post("/rank", {}).json["model"])
        except (OSError, HTTPException):  # a worker was killed with the connection in its hands
            return set()
    return found


def test_workers_agree_add_up_and_are_replaced(tmp_path: Path) -> None:
    with Program(platform_bundle(), "--workers", "2", TMPDIR=str(tmp_path)) as program:
        eventually(lambda: models(program) == {model_of(platform_bundle())})
        with program.client() as client:
            calls = 'rankfall_requests_total{code="200",endpoint="/rank"}'
            before = client.metric(calls)
            models(program, 20)
            assert client.metric(calls) == before + 20
            assert client.reload(ranking_bundle()).code == 200
            eventually(lambda: client.metric('rankfall_swaps_total{result="taken"}') == 2)
        assert models(program) == {model_of(ranking_bundle())}
        for worker in program.workers():
            os.kill(worker, signal.SIGKILL)
            eventually(lambda gone=worker: gone not in program.workers() and len(program.workers()) == 2)  # type: ignore[misc]
        # Those who came in their place serve what was reloaded, not what the service was started with.
        eventually(lambda: models(program) == {model_of(ranking_bundle())})
        with program.client() as client:
            assert client.metric(calls) >= before + 28  # what the dead have counted is not lost
        code, said = program.end()
        assert code == 0, said
        assert "Traceback" not in said
        assert said.count(" ended by signal 9 and is replaced") == 2
    assert not list(tmp_path.iterdir())  # neither of ours nor of anything that we call


def test_workers_agree_though_a_bundle_was_replaced_behind_their_back(tmp_path: Path) -> None:
    bundle, other = tmp_path / "bundle", tmp_path / "other"
    shutil.copytree(platform_bundle(), bundle)
    shutil.copytree(ranking_bundle(), other)
    with Program(bundle, "--workers", "2") as program:
        eventually(lambda: len(program.workers()) == 2 and models(program) == {model_of(platform_bundle())})
        bundle.rename(tmp_path / "before")
        other.rename(bundle)
        killed = min(program.workers())
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: killed not in program.workers() and models(program, 20) == {model_of(ranking_bundle())})
        assert program.end()[0] == 0


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with Program(platform_bundle(), "--workers", "2", TMPDIR=str(tmp_path)) as program:
        eventually(lambda: models(program))
        workers = program.workers()
        assert len(workers) == 2
        program.process.kill()
        program.process.wait()
        eventually(lambda: not any(is_alive(worker) for worker in workers))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_under_way_is_answered_at_the_end(number: int) -> None:
    body = json.dumps({"requests": requests() * 16, "deadline": 60_000}).encode()
    head = HEADERS.replace(b"100", str(len(body)).encode()).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with (
        Program(platform_bundle(), "--max-body", "100000000") as program,
        socket.create_connection(("127.0.0.1", program.port), timeout=60) as connection,
    ):
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        program.process.send_signal(number)
        eventually(lambda: not is_listening(program.port))
        connection.sendall(body)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["rankings"]) == 256
        assert program.process.wait(60) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_whoever_has_read_the_line_may_end_the_service(workers: str, number: signal.Signals) -> None:
    with Program(platform_bundle(), "--workers", workers) as program:
        children = program.workers()
        if number == signal.SIGINT:  # a terminal sends it to all
            for child in children:
                os.kill(child, number)
        code, said = program.end(number)
    assert code == 0, said
    assert "Traceback" not in said


def test_the_token_of_administrators_is_not_shown() -> None:
    with running(platform_bundle()) as service, service.client() as client:
        assert TOKEN not in repr(service.service.settings)
        assert all(TOKEN.encode() not in client.get(path).body for path in ("/model", "/metrics", "/docs"))
