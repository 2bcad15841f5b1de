"""JSON bodies that are expensive to check for duplicate keys: the duplicate comes last, is deep, or names are many."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from trials.attacks.target import exchange, post

if TYPE_CHECKING:
    from trials.attacks.target import Target

SMALL = 65_000  # bytes: just below the size from which the service parses in a thread
LARGE = 830_000
_DEEP = (200, 1_000, 30_000)  # levels


async def small_duplicate_last(target: Target) -> None:
    """Send a body that the event loop parses; only its last key occurs twice."""
    await exchange(target, post("/rank", _duplicate_last(SMALL)))


async def large_duplicate_last(target: Target) -> None:
    """Send a body that a thread parses; only its last key occurs twice."""
    await exchange(target, post("/rank", _duplicate_last(LARGE)))


async def deep_nesting(target: Target) -> None:
    """Send objects with a duplicate key at every level, and lists of many levels."""
    for levels in _DEEP:
        objects = b'{"a":0,"a":' * levels + b"0" + b"}" * levels
        await exchange(target, post("/rank", objects))
        await exchange(target, post("/rank", b'{"user":' + b"[" * levels + b"]" * levels + b"}"))


async def many_names(target: Target) -> None:
    """Send very many different names, plain ones and such with escaped colons, which hide duplicates from counting."""
    for name in (b'"n%d":0', b'"\\u003a%d":0'):
        await exchange(target, post("/rank", _many_names(name)))


@cache
def _duplicate_last(size: int) -> bytes:
    """Return an object of nearly `size` bytes."""
    names, length = list[bytes](), 0
    while length < size - 32:
        names.append(b'"%x":0' % len(names))
        length += len(names[-1]) + 1
    return b"{" + b",".join([*names, b'"last":0', b'"last":1']) + b"}"


@cache
def _many_names(name: bytes) -> bytes:
    count = LARGE // (len(name % 10**5) + 1)
    return b'{"user":{' + b",".join(name % number for number in range(count)) + b"}}"
