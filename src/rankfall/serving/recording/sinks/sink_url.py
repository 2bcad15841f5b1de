"""URLs of sinks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

BROKERS = "nats://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC"
_QUERIES = {"file": (), "nats": (), "kafka": ("properties",)}  # names of options
_PORTS = {"nats": 4222, "kafka": 9092}
_NAMES = {  # subjects of NATS have dots between their parts
    "nats": ("stream", re.compile(r"[A-Za-z0-9_-]{1,255}"), "1 to 255 letters, digits, _ and -"),
    "kafka": ("topic", re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}"), "1 to 249 letters, digits, ., _ and -"),
}


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """Servers, and the stream or topic there."""

    scheme: str  # nats or kafka
    servers: tuple[str, ...]  # HOST:PORT
    name: str  # of the stream or topic
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    query: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the URL without user and password."""
        return f"{self.scheme}://{','.join(self.servers)}/{self.name}"


def parse_sink(target: str, *, expected: str = f"a directory, {BROKERS}") -> Path | BrokerUrl:
    """Return the directory or the URL that a text names.

    >>> str(parse_sink("nats://127.0.0.1/loop"))
    'nats://127.0.0.1:4222/loop'
    >>> parse_sink("file:///var/samples")
    PosixPath('/var/samples')

    Args:
        target: A directory or a URL.
        expected: The allowed forms, for error messages.

    Raises:
        ValueError: If it names none.
    """
    if "://" not in target:
        if not target or "\0" in target:
            raise ValueError(f"found {target!r}, expected {expected}")
        return Path(target)
    try:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise ValueError(f"{shown_target(target)} is not a URL ({error})") from None
    if parts.scheme not in _QUERIES:
        raise ValueError(f"found {shown_target(target)}, expected {expected}")
    unknown = sorted(query.keys() - set(_QUERIES[parts.scheme]))
    if unknown or parts.fragment:
        allowed = " or ".join(_QUERIES[parts.scheme]) or "nothing"
        raise ValueError(
            f"{shown_target(target)}: found {', '.join(unknown) or '#'} after the path, expected {allowed}"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise ValueError(f"found {shown_target(target)}, expected file:///DIR with an absolute path")
        return Path(unquote(parts.path))
    return _broker(target, parts, query)


def _broker(target: str, parts: SplitResult, query: Mapping[str, str]) -> BrokerUrl:
    word, pattern, rule = _NAMES[parts.scheme]
    name = parts.path.removeprefix("/")
    if not pattern.fullmatch(name):
        raise ValueError(f"{shown_target(target)}: found {name!r} as {word}, expected {rule}")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    if user and parts.scheme == "kafka":
        raise ValueError(
            f"{shown_target(target)}: Kafka takes no user in its URL; write ?properties=FILE with "
            "sasl.username and sasl.password"
        )
    servers = tuple(_server(target, host, _PORTS[parts.scheme]) for host in hosts.split(","))
    return BrokerUrl(
        parts.scheme, servers, name, unquote(user) if user else None, unquote(password) if password else None, query
    )


def _server(target: str, text: str, default: int) -> str:
    found = re.fullmatch(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?", text)
    port = int(found["port"] or default) if found else 0
    if found is None or not 0 < port < 65536:
        raise ValueError(f"{shown_target(target)}: found {text!r} as server, expected HOST:PORT")
    return f"{found['host']}:{port}"


def shown_target(target: str) -> str:
    """Return a URL without user and password."""
    return re.sub(r"://.*@", "://", target, flags=re.DOTALL)
