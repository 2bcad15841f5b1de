"""Notices connections to other machines: of this process by audit events, of whole programs by strace."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LOCAL = ("127.", "::1", "::ffff:127.", "0.0.0.0", "::")
_ADDRESS = re.compile(r'sin6?_port=htons\((\d+)\).*?(?:inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)")')


@cache
def _own_names() -> frozenset[str]:
    return frozenset({"", "localhost", "localhost.localdomain", "ip6-localhost", socket.gethostname()})


def is_local(host: object) -> bool:
    """Return whether a host name or address is one of this machine."""
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else "" if host is None else str(host)
    if name in _own_names() or name.startswith(_LOCAL):
        return True
    return _is_own_address(name)


@cache
def _is_own_address(address: str) -> bool:
    """Return whether the machine has this address, to which then a socket can be bound."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except (OSError, UnicodeError):
        return False
    return True


# --- this process ---------------------------------------------------------------------------------------------------


class Watch:
    """The connections of this process to other machines, and the names of others that it looked up."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._inside = False
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._inside or event not in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"):
            return
        self._inside = True  # whether an address is local is found by a socket
        try:
            host = _host(event, arguments)
            if host is not None and not is_local(host):
                self.seen.append(f"{event} {host}")
        finally:
            self._inside = False


def _host(event: str, arguments: tuple[Any, ...]) -> object:
    """Return the host of an event, None if nothing leaves the machine by it."""
    if event == "socket.getaddrinfo":
        return arguments[0]
    connection, address = arguments[:2]
    if event == "socket.connect" and connection.type == socket.SOCK_DGRAM:
        return None  # sends nothing; programs find their own address by it
    is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
    return address[0] if is_internet and isinstance(address, tuple) else None


# --- a program ------------------------------------------------------------------------------------------------------


def connections_of(command: Sequence[str | Path], trace: Path, **options: Any) -> list[str]:
    """Run a program under strace and return the system calls that name another machine, of all its processes.

    Args:
        command: The program and its arguments.
        trace: File for the output of strace.
        **options: Options of :func:`subprocess.run`.
    """
    strace = shutil.which("strace")
    assert strace is not None
    calls = "connect,sendto,sendmsg,sendmmsg"
    under = [strace, "-f", "--seccomp-bpf", "-qq", "-e", f"trace={calls}", "-o", str(trace)]
    subprocess.run([*under, *map(str, command)], check=True, **options)
    return [line for line in trace.read_text(errors="replace").splitlines() if _leaves(line)]


def _leaves(line: str) -> bool:
    return any(not is_local(one or other) for _, one, other in _ADDRESS.findall(line))
