"""Services for tests: in a thread of this process, where tests can inspect them, or as a program."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvicorn import Server

from rankfall.serving import Bundle
from rankfall.serving.service.app import Service
from rankfall.serving.service.bundle_slots import SharedState, load_initial_bundles
from rankfall.serving.service.run_service import listen, server_config
from rankfall.serving.service.settings import Settings
from rankfall.storage.files import checksum
from rankfall.storage.manifests import seal
from support.bundles import exported, made_once, platform_bundle, platform_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "a-token-of-tests"
# headers of a request without its body
HEADERS = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
PATIENCE = 60.0  # seconds, enough for a busy machine


@cache
def ranking_bundle() -> Path:
    """Return the bundle of the second stage alone, whose answers differ."""
    return made_once("ranking", lambda out: exported(platform_run(), out, "--stage", "ranking"))


@cache
def loaded(path: Path) -> Bundle:
    """Load a bundle, to compare answers with."""
    return Bundle.load(path)


def model_of(path: Path) -> str:
    """Return the name of a bundle's model in the service."""
    return str(json.loads((path / "manifest.json").read_text())["sha256"])[:12]


def requests() -> list[dict[str, Any]]:
    """Return the example requests of the platform bundle."""
    return [example["request"] for example in loaded(platform_bundle()).examples()]


def spoiled(path: Path, out: Path) -> Path:
    """Copy a bundle and change an expected score; the checksums match."""
    shutil.copytree(path, out)
    examples = json.loads((out / "examples.json").read_text())
    examples[0]["scores"][0] += 1
    (out / "examples.json").write_text(json.dumps(examples))
    manifest = json.loads((out / "manifest.json").read_text())
    entry = manifest["files"]["examples.json"]
    entry["bytes"], entry["sha256"] = (out / "examples.json").stat().st_size, checksum(out / "examples.json")
    manifest["sha256"] = seal(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


@dataclass(frozen=True)
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A persistent connection to a service."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, given)
        response = self._connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, content: object, **headers: str) -> Answer:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.call("POST", path, body, **{"content_type": "application/json", **headers})

    def reload(self, path: Path, bundle: str = "main") -> Answer:
        return self.post("/reload", {"path": str(path), "bundle": bundle}, authorization=f"Bearer {TOKEN}")

    def metric(self, name: str) -> float:
        """Return a value of /metrics, 0 if it does not exist yet."""
        found = re.findall(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        return float(found[0]) if found else 0.0


def eventually(holds: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if it never does."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.02)


def is_listening(port: int) -> bool:
    """Return whether the port accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except ConnectionError:
        return False
    return True


@dataclass(frozen=True)
class Running:
    """A service in this process."""

    service: Service
    port: int
    server: Server

    def client(self) -> Client:
        return Client(self.port)


@contextmanager
def running(bundle: Path, **changes: Any) -> Iterator[Running]:
    """Run a service of a bundle."""
    settings = Settings(bundle, **{"token": TOKEN, "deadline": 30_000, **changes})
    shared = SharedState(None)
    with serving(Service(settings, shared, load_initial_bundles(settings, shared))) as service:
        yield service


@contextmanager
def serving(service: Service) -> Iterator[Running]:
    """Run a service on a free port, by uvicorn in a thread."""
    listening = listen("127.0.0.1", 0)
    server = Server(server_config(service.app, service.settings))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        yield Running(service, listening.getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Program:
    """``rankfall serve`` as a program."""

    def __init__(self, *arguments: str | Path, prelude: str = "", **environment: str) -> None:
        """Start the program; `prelude` is Python code that runs before it."""
        code = f"{prelude}\nimport runpy; runpy.run_module('rankfall', run_name='__main__', alter_sys=True)"
        start = ["-c", code] if prelude else ["-m", "rankfall"]
        command = [sys.executable, *start, "serve", *map(str, arguments), "--port", "0"]
        environment = {**os.environ, "RANKFALL_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        assert self.line, self.process.communicate()[1]
        self.port = int(re.findall(r":(\d+) serves", self.line)[0])

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def client(self) -> Client:
        return Client(self.port)

    def workers(self) -> set[int]:
        """Return the ids of the worker processes, without Python's resource tracker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(child) for child in children if b"resource_tracker" not in _command(child)}

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and the standard error."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, log


def _command(child: str) -> bytes:
    try:
        return Path(f"/proc/{child}/cmdline").read_bytes()
    except FileNotFoundError:  # the process has just ended
        return b"resource_tracker"
