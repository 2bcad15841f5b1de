"""``rankfall collect``: what it prints, its exit codes, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import rankfall as rf
from rankfall.serving.recording.sinks import open_sink
from support.command_line import run
from support.nats_server import NatsServer
from support.records import events, ids_in, samples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with NatsServer(tmp_path) as server:
        url = f"nats://{server.address}/S"
        sink = open_sink(url)
        sink.check()
        sink.write("samples", samples("r", "s"), durable=True)
        sink.write("events", events("a"), durable=True)
        assert run("collect", url, out, "--json") == 0
        counts = {"messages": 2, "samples": 2, "events": 1, "repeated": 0, "rejected": 0, "missed": 0}
        assert json.loads(capsys.readouterr().out) == counts
        assert run("collect", url, out) == 0
        assert capsys.readouterr().out == "0 samples and 0 events of 0 messages; repeated: 0, rejected: 0, missed: 0\n"
        sink.write("events", events("b"), durable=True)
        result = rf.collect(url, out, progress=False)
        assert result.events == 1
        assert result.directory == out
        assert result.to_polars()["events"].to_list() == [1]
        _end_by_signal(url, tmp_path / "followed")
        sink.close()
    for words, message in (
        ((url, out), f"error: {url}: connection refused"),
        (("records", out), "error: url: found 'records', expected nats://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC"),
        (("nats://me:secret@h/a b", out), "error: url: nats://h/a b: found 'a b' as stream"),
    ):
        assert run("collect", *words) == 1
        printed = capsys.readouterr().err
        assert message in printed
        assert "secret" not in printed


def _end_by_signal(url: str, out: Path) -> None:
    """Ctrl-C ends the command that waits for messages, and completes its segments."""
    command = [sys.executable, "-c", "from rankfall.cli import main; main()", "collect", url, str(out), "--follow"]
    sink = open_sink(url)
    sink.check()
    sink.write("events", events("c"), durable=True)
    sink.close()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob("events/*.open")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert printed == "0 samples and 1 events of 1 messages; repeated: 0, rejected: 0, missed: 0\n"
    assert "Traceback" not in errors
    assert ids_in(out / "events") == ["c"]
