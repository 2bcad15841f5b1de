"""Nothing talks to other machines; the fixture `network` in conftest.py checks the same for every test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.network import connections_of, is_local
from support.paths import PYTHONPATH

if TYPE_CHECKING:
    from pathlib import Path

    from support.network import Watch

ELSEWHERE = "192.0.2.1"  # reserved for documentation: no machine has it
# connects a socket for datagrams, which sends nothing
_CONNECT = f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('{ELSEWHERE}', 9))"


def _strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


def test_addresses_of_this_machine_are_local() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", socket.gethostname(), b"localhost", None):
        assert is_local(host)
    for host in (ELSEWHERE, "example.org", "8.8.8.8", "2001:db8::1", "localhost.example.org"):
        assert not is_local(host)


def test_watch_notices_names_and_connections(network: Watch) -> None:
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("name.invalid", 80, flags=socket.AI_NUMERICHOST)  # asks no name server
    with socket.socket() as connection:
        connection.setblocking(False)
        sys.audit("socket.connect", connection, (ELSEWHERE, 9))  # as connect would, without a packet
        sys.audit("socket.connect", connection, ("127.0.0.1", 9))
    assert network.seen == ["socket.getaddrinfo name.invalid", f"socket.connect {ELSEWHERE}"]
    network.seen.clear()


@pytest.mark.slow
def test_no_command_talks_to_other_machines(tmp_path: Path) -> None:
    """All system calls of the commands, also those of libraries in C++, name only this machine."""
    if not _strace_works():
        pytest.skip("strace is not installed or not permitted here; `make strace` installs it")
    noticed = connections_of([sys.executable, "-c", _CONNECT], tmp_path / "witness.txt")
    assert len(noticed) == 1, "strace notices a connection"
    assert ELSEWHERE in noticed[0]
    (tmp_path / "work").mkdir()
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command: list[str | Path] = [sys.executable, "-m", "support.all_commands", tmp_path / "work"]
    assert connections_of(command, tmp_path / "trace.txt", env=environment, capture_output=True) == []
    assert (tmp_path / "work" / "bundle" / "manifest.json").is_file()
