"""All attacks: how many clients repeat each, how often, and which responses the service may return.

Each kind of attack is a module with small functions: one call of such a function is one attempt, which `attacker`
repeats in a process of its own. An attempt only connects to 127.0.0.1 and is bounded in bytes and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.load_client import LOST
from trials.attacks import bad_bundles as bundles
from trials.attacks import (
    connection_flood,
    duplicate_keys,
    huge_bodies,
    malformed_http,
    pipelining,
    slow_clients,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trials.attacks.target import Target

ALWAYS_ALLOWED = frozenset({LOST, 408, 429, 503, 504})  # the service closes the connection, or has no time
_ANSWERED = frozenset({200})
_REFUSED = frozenset({400, 413, 422})
_NOT_HTTP = frozenset({400, 403, 404, 405, 411, 413, 414, 415, 431, 501, 505})


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        kind: Group of attacks, which can be selected.
        name: Name within the kind.
        attempt: Makes one attempt.
        clients: Number of clients that repeat the attempt at the same time.
        every: Seconds between two attempts of one client.
        allowed: Status codes that the service may return, besides `ALWAYS_ALLOWED`.
    """

    kind: str
    name: str
    attempt: Callable[[Target], Awaitable[None]]
    clients: int = 1
    every: float = 1.0
    allowed: frozenset[int] = frozenset()


ATTACKS = (
    Attack("duplicate-keys", "65 KB, the last", duplicate_keys.small_duplicate_last, 4, 0.5, _REFUSED),
    Attack("duplicate-keys", "830 KB, the last", duplicate_keys.large_duplicate_last, 1, 5.0, _REFUSED),
    Attack("duplicate-keys", "deep nesting", duplicate_keys.deep_nesting, 1, 2.0, _REFUSED),
    Attack("duplicate-keys", "many names", duplicate_keys.many_names, 1, 5.0, _REFUSED),
    Attack("pipelining", "GET /health", pipelining.unread_health, 1, 1.0),
    Attack("pipelining", "POST /rank", pipelining.unread_rank, 1, 1.0),
    Attack("slow-clients", "slow headers", slow_clients.slow_headers, 20, 1.0),
    Attack("slow-clients", "slow bodies", slow_clients.slow_bodies, 20, 1.0),
    Attack("slow-clients", "slow readers", slow_clients.slow_readers, 8, 1.0),
    Attack("slow-clients", "idle connections", slow_clients.idle_connections, 200, 1.0),
    Attack("huge-bodies", "at the limit", huge_bodies.at_the_limit, 1, 5.0, _ANSWERED | {422}),
    Attack("huge-bodies", "over the limit", huge_bodies.over_the_limit, 1, 1.0, _REFUSED),
    Attack("huge-bodies", "endless length", huge_bodies.endless_length, 1, 1.0, _REFUSED),
    Attack("huge-bodies", "endless chunks", huge_bodies.endless_chunks, 1, 1.0, _REFUSED),
    Attack("huge-bodies", "tiny chunks", huge_bodies.tiny_chunks, 1, 1.0, _REFUSED),
    Attack("huge-bodies", "wrong lengths", huge_bodies.wrong_lengths, 1, 1.0, _REFUSED),
    Attack("huge-bodies", "missing rest", huge_bodies.missing_rest, 4, 1.0),
    Attack("malformed-http", "invalid messages", malformed_http.invalid_messages, 1, 1.0, _NOT_HTTP),
    Attack("connection-flood", "dropped", connection_flood.dropped_connections, 1, 1.0),
    Attack("connection-flood", "kept", connection_flood.kept_connections, 200, 1.0, _ANSWERED),
    Attack("bad-bundles", "offered", bundles.offered, 1, 5.0, frozenset({409})),
    Attack("bad-bundles", "in the watched directory", bundles.appearing, 1, 6.0),
    Attack("bad-bundles", "half-written", bundles.half_written, 1, 6.0),
    Attack("bad-bundles", "overwritten in place", bundles.overwritten, 1, 5.0),
    Attack("bad-bundles", "truncated in place", bundles.truncated, 1, 10.0),
)
KINDS = tuple(dict.fromkeys(attack.kind for attack in ATTACKS))
