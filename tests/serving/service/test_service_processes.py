"""Services that watch for new bundles, and services of several processes."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
from http.client import HTTPException
from pathlib import Path

import pytest

from rankfall.serving import bundle_files as files
from rankfall.serving.service import bundle_slots as slots
from rankfall.serving.service.app import Service
from rankfall.serving.service.bundle_slots import SharedState, load_initial_bundles
from rankfall.serving.service.settings import Settings
from rankfall.storage.files import checksum
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

pytestmark = pytest.mark.service


# --- a watched directory ------------------------------------------------------------------------------------------


def placed(source: Path, out: Path, age: int) -> Path:
    """Copy a bundle and set the modification time of its manifest."""
    shutil.copytree(source, out)
    os.utime(out / "manifest.json", (age, age))
    return out


def test_newest_bundle_of_a_directory_is_served(tmp_path: Path) -> None:
    place = tmp_path / "bundles"
    placed(ranking_bundle(), place / "older", 1000)
    placed(platform_bundle(), place / "newer", 2000)
    with running(place, watch=True) as service, service.client() as client:
        assert client.get("/ready").json["model"] == model_of(platform_bundle())
        spoiled(platform_bundle(), tmp_path / "bad").rename(place / "bad")
        os.utime(place / "bad" / "manifest.json", (3000, 3000))
        eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())
        # Unfinished bundles are ignored.
        placed(ranking_bundle(), place / ".new.x.unfinished", 5000)
        (placed(ranking_bundle(), place / "half", 5000) / "manifest.json").unlink()
        placed(ranking_bundle(), place / "newest", 4000)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        assert client.metric('rankfall_swaps_total{result="refused"}') == 1
        assert client.metric('rankfall_swaps_total{result="taken"}') == 1


def test_replaced_bundle_is_reloaded(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(platform_bundle(), place)
    shutil.copytree(ranking_bundle(), tmp_path / "next")
    with running(place, watch=True) as service, service.client() as client:
        assert client.get("/ready").json["model"] == model_of(platform_bundle())
        place.rename(tmp_path / "before")
        (tmp_path / "next").rename(place)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        assert client.post("/rank", requests()[0]).json["ids"] == loaded(ranking_bundle()).rank(requests()[0]).ids


def test_refused_bundle_is_retried_when_it_changes(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(platform_bundle(), place)
    with running(place, watch=True) as service, service.client() as client:
        place.rename(tmp_path / "before")
        shutil.copytree(ranking_bundle(), tmp_path / "next")
        scorer = tmp_path / "next" / "stages" / "ranking" / "scorer.onnx"
        content = scorer.read_bytes()
        scorer.write_bytes(content[:100])  # an incomplete copy
        (tmp_path / "next").rename(place)
        eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        assert client.get("/ready").json["model"] == model_of(platform_bundle())
        (place / "stages" / "ranking" / "scorer.onnx").write_bytes(content)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))


def test_worker_without_a_good_bundle_waits(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "bundle", shared=tmp_path)
    (tmp_path / "copies").mkdir()
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


def test_bad_newest_bundle_does_not_prevent_a_start(tmp_path: Path) -> None:
    place = tmp_path / "bundles"
    placed(platform_bundle(), place / "good", 1000)
    bad = spoiled(ranking_bundle(), place / "bad")
    assert run("serve", place) == 1  # an error without --watch
    with Program(place, "--watch") as program, program.client() as client:
        assert model_of(platform_bundle()) in program.line
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())
        assert client.post("/reload", {"path": "x"}, authorization="Bearer a-guess").code == 401
        shutil.rmtree(bad)
        placed(ranking_bundle(), place / "next", 2000)
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        code, log = program.end()
    assert code == 0, log
    warning, guess, swap = [line for line in log.splitlines() if re.match(r"\d{4}-", line)]
    assert f" {program.process.pid} WARNING {bad} is not served: " in warning
    assert "/reload with a wrong token from 127.0.0.1" in guess
    assert f" {program.process.pid} INFO main serves " in swap
    assert TOKEN not in log
    assert "a-guess" not in log


def test_watched_directory_may_be_empty_at_the_start(tmp_path: Path) -> None:
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
        code, log = program.end()
    assert code == 0, log
    assert "main has no bundle: " in log


def without_a_bundle(source: Path, out: Path, manifest: str) -> Path:
    """Copy a bundle and replace its manifest by a newer one."""
    shutil.copytree(source, out)
    (out / "manifest.json").write_text(manifest)
    return out


OTHER_MANIFESTS = {
    "not valid JSON": '{"format": "rankfall bun',
    "not the manifest of a bundle": '{"format": "rankfall log"}',
}


@pytest.mark.parametrize("why", OTHER_MANIFESTS)
def test_newest_directory_that_is_not_a_bundle_is_logged(
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
        (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("rankfall")]
        assert f"{place / 'strange' / 'manifest.json'} is {why}" in message
        # It is logged once, and a newer bundle is loaded.
        shutil.copytree(ranking_bundle(), tmp_path / "next")
        (tmp_path / "next" / "manifest.json").touch()
        (tmp_path / "next").rename(place / "next")
        eventually(lambda: client.get("/ready").json["model"] == model_of(ranking_bundle()))
        assert client.metric(refused) == 1


def test_bundle_is_kept_if_its_directory_becomes_invalid(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(platform_bundle(), place)
    without_a_bundle(ranking_bundle(), tmp_path / "strange", "[]")
    with running(place, watch=True) as service, service.client() as client:
        place.rename(tmp_path / "before")
        (tmp_path / "strange").rename(place)
        eventually(lambda: client.metric('rankfall_swaps_total{result="refused"}') == 1)
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())


def test_unreadable_bundle_is_loaded_once_it_is_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few file handles, for example: the files of the bundle do not change afterwards."""
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


def test_start_logs_skipped_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "bundles"
    strange = without_a_bundle(ranking_bundle(), place / "strange", "")
    for path in (place, strange):
        assert run("serve", path) == 1
        assert f"{strange / 'manifest.json'} is not valid JSON" in capsys.readouterr().err
    placed(platform_bundle(), place / "good", 1000)
    with Program(place) as program:
        assert model_of(platform_bundle()) in program.line
        with program.client() as client:
            assert client.reload(place).json["model"] == model_of(platform_bundle())
        code, log = program.end()
    assert code == 0
    assert log.count(f"WARNING {strange} is skipped") == 2  # at the start, and at the reload


# --- processes ----------------------------------------------------------------------------------------------------


def models(program: Program, count: int = 8) -> set[str]:
    """Return the models that answer on new connections; an empty set if a connection fails."""
    found = set()
    for _ in range(count):
        try:
            with program.client() as client:
                found.add(client.post("/rank", {}).json["model"])
        except (OSError, HTTPException):  # the worker of the connection was killed
            return set()
    return found


def test_workers_share_bundle_and_metrics_and_are_replaced(tmp_path: Path) -> None:
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
        # New workers serve the reloaded bundle, not that of the start.
        eventually(lambda: models(program) == {model_of(ranking_bundle())})
        with program.client() as client:
            assert client.metric(calls) >= before + 28  # counts of killed workers are kept
        code, log = program.end()
        assert code == 0, log
        assert "Traceback" not in log
        assert log.count(" ended by signal 9 and is replaced") == 2
    assert not list(tmp_path.iterdir())  # no temporary files are left


def test_workers_agree_after_a_bundle_directory_was_replaced(tmp_path: Path) -> None:
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


def test_workers_exit_with_their_parent(tmp_path: Path) -> None:
    with Program(platform_bundle(), "--workers", "2", TMPDIR=str(tmp_path)) as program:
        eventually(lambda: models(program))
        workers = program.workers()
        assert len(workers) == 2
        program.process.kill()
        program.process.wait()
        eventually(lambda: not any(is_alive(worker) for worker in workers))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_are_answered_at_shutdown(number: int) -> None:
    body = json.dumps({"requests": requests() * 16, "deadline": 60_000}).encode()
    head = HEADERS.replace(b"100", str(len(body)).encode()).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with (
        Program(platform_bundle(), "--max-body", "100000000") as program,
        socket.create_connection(("127.0.0.1", program.port), timeout=60) as connection,
    ):
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the service waits for the body
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
def test_service_can_be_stopped_once_it_has_printed_its_address(workers: str, number: signal.Signals) -> None:
    with Program(platform_bundle(), "--workers", workers) as program:
        children = program.workers()
        if number == signal.SIGINT:  # a terminal sends it to all processes
            for child in children:
                os.kill(child, number)
        code, log = program.end(number)
    assert code == 0, log
    assert "Traceback" not in log


def test_token_is_not_shown() -> None:
    with running(platform_bundle()) as service, service.client() as client:
        assert TOKEN not in repr(service.service.settings)
        assert all(TOKEN.encode() not in client.get(path).body for path in ("/model", "/metrics", "/docs"))


def copies_of(program: Program) -> list[set[str]]:
    """Return the copies of bundle files that each worker has mapped: inode and name."""
    found = []
    for worker in program.workers():
        lines = [line.split() for line in Path(f"/proc/{worker}/maps").read_text().splitlines() if "/copies/" in line]
        found.append({f"{line[4]} {line[5]}" for line in lines})
    return found


def names(copies: set[str]) -> set[str]:
    return {copy.rpartition("/")[2] for copy in copies}


def test_workers_share_the_memory_of_a_bundle_that_may_be_changed(tmp_path: Path) -> None:
    path = shutil.copytree(platform_bundle(), tmp_path / "bundle")
    temporary = tmp_path / "temporary"
    abandoned = temporary / ".rankfall-serve.00c0ffee.unfinished"
    abandoned.mkdir(parents=True)
    expected = loaded(platform_bundle()).rank(requests()[0]).ids
    with Program(path, "--workers", "2", TMPDIR=str(temporary)) as program:
        assert not abandoned.exists()
        needed = {checksum(path / name) for name in ("items.arrow", "stages/retrieval/items.faiss")}

        def are_shared() -> bool:
            """Whether both workers have mapped the same copies; each maps one file after the other."""
            first, second = copies_of(program)
            return first == second and names(first) >= needed

        eventually(lambda: len(copies_of(program)) == 2 and are_shared())
        first, _ = copies_of(program)
        for file in (file for file in path.rglob("*") if file.is_file()):
            os.truncate(file, 0)
        for _ in range(4):  # new connections, which either worker may accept
            with program.client() as client:
                assert client.post("/rank", requests()[0]).json["ids"] == expected
        with program.client() as client:
            assert client.reload(ranking_bundle()).code == 200
        entries = json.loads((ranking_bundle() / "manifest.json").read_text())["files"].values()
        kept = {entry["sha256"] for entry in entries}
        (copies,) = temporary.glob(".rankfall-serve.*.unfinished/copies")
        assert not kept >= names(first)  # the new bundle has no index
        eventually(lambda: all(names(mapped) <= kept for mapped in copies_of(program)))
        passed = {one.name for one in copies.glob("*.passed")}  # of bundles that were tried
        eventually(lambda: {one.name for one in copies.iterdir()} <= kept | {"copies.lock", "trial.lock"} | passed)
        assert program.end()[0] == 0
    assert list(temporary.iterdir()) == []
