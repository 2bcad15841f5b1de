"""nginx in front of a service, with the configuration that SECURITY.md shows."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SECURITY = Path(__file__).parents[2] / "SECURITY.md"
LISTEN, SERVICE, FILES = "listen 8080", "server 127.0.0.1:8000;", "/var/lib/rankfall-proxy"
START_SECONDS = 10.0


def configuration() -> str:
    """Return the configuration of nginx in SECURITY.md."""
    _, _, rest = SECURITY.read_text().partition("```nginx\n")
    text, end, _ = rest.partition("```\n")
    if not end:
        raise ValueError(f"{SECURITY}: found no block of nginx's configuration")
    return text


@contextmanager
def behind_nginx(port: int) -> Iterator[int]:
    """Start nginx in front of the service at a port of this machine; yield its port when it accepts connections."""
    if (program := shutil.which("nginx")) is None:
        raise FileNotFoundError("nginx is not installed; on Debian: apt-get install nginx-light")
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        public = free.getsockname()[1]
        free.close()
        text = configuration()
        places = {LISTEN: f"listen 127.0.0.1:{public}", SERVICE: f"server 127.0.0.1:{port};", FILES: scratch}
        for shown, here in places.items():
            if shown not in text:
                raise ValueError(f"{SECURITY}: the configuration of nginx has no {shown!r}")
            text = text.replace(shown, here)
        Path(scratch).chmod(0o755)  # nginx's workers have a user of their own
        file = Path(scratch) / "nginx.conf"
        file.write_text(text)
        options = ["-c", str(file), "-p", scratch, "-e", f"{scratch}/error.log", "-g", "daemon off;"]
        process = subprocess.Popen([program, *options])
        try:
            _wait(public, process)
            yield public
        finally:
            process.terminate()
            process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"nginx does not accept connections; its exit code is {process.poll()}") from None
            time.sleep(0.05)
