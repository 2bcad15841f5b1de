"""Damages to bytes and to structures of JSON or YAML, as strategies of hypothesis.

Damages are lists of plain values, so that a file of the corpus can hold them. They are applied to an undamaged original
that is made anew, and places are fractions of its size, so that they fit any original.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

# what readers get wrong: bounds of types, empty and long values, other types, paths, control characters
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308,
    "", " ", "x", "nan", "inf", "1", "1e5", "true", "null", "\x00", "\x1b[31m", "\u202e", "\ud800", "é" * 40,
    "x" * 5000, ".", "..", "/", "../../etc/passwd", "/dev/null", "%s%n", "{}", "a.b", "a:b", "2024-02-30", "9999-99-99",
    [], {}, [[]], [None], [{}], [1, "1"], {"": None}, {"kind": None}, {"name": "x"}, [0] * 300,
]  # fmt: skip

Change = tuple[str, float, Any]  # what is done, where, and with what
_PIECES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from(
        [b"\x00" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\n", b":", b"#", b'"', b"{"]
    ),
)
_PLACES = st.floats(0, 1, exclude_max=True)


def byte_changes(*, most: int = 4) -> st.SearchStrategy[list[Change]]:
    """Return a strategy of damages to bytes."""
    change = st.one_of(
        st.tuples(st.just("flip"), _PLACES, st.integers(1, 255)),
        st.tuples(st.sampled_from(["put", "insert"]), _PLACES, _PIECES.map(bytes.hex)),
        st.tuples(st.just("drop"), _PLACES, st.integers(1, 64)),
        st.tuples(st.just("repeat"), _PLACES, st.integers(1, 64)),
        st.tuples(st.just("cut"), _PLACES, st.none()),
        st.tuples(st.just("append"), st.just(0.0), _PIECES.map(bytes.hex)),
    )
    return st.lists(change, min_size=1, max_size=most)


def damaged(original: bytes, changes: list[Change]) -> bytes:
    """Return the bytes with the damages.

    >>> damaged(b"abcdef", [("flip", 0.0, 1), ("drop", 0.5, 2), ("append", 0.0, "7a")])
    b'`bcfz'
    """
    content = bytearray(original)
    for what, place, by in changes:
        at = int(place * len(content))
        match what:
            case "flip" if content:
                content[at] ^= by
            case "put":
                content[at : at + len(bytes.fromhex(by))] = bytes.fromhex(by)
            case "insert":
                content[at:at] = bytes.fromhex(by)
            case "drop":
                del content[at : at + by]
            case "repeat":
                content[at:at] = content[at : at + by]
            case "cut":
                del content[at:]
            case "append":
                content += bytes.fromhex(by)
    return bytes(content)


def hostile_values() -> st.SearchStrategy[Any]:
    """Return a strategy of values that no reader expects."""
    return st.one_of(
        st.sampled_from(HOSTILE),
        st.integers(-5, 5),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    )


def structure_changes(*, most: int = 3) -> st.SearchStrategy[list[Change]]:
    """Return a strategy of damages to nested mappings and lists."""
    change = st.one_of(
        st.tuples(st.just("set"), _PLACES, hostile_values()),
        st.tuples(st.just("set"), _PLACES, st.sampled_from(HOSTILE)),
        st.tuples(st.just("remove"), _PLACES, st.none()),
        st.tuples(st.just("add"), _PLACES, hostile_values()),
        st.tuples(st.just("take"), _PLACES, _PLACES),
    )
    return st.lists(change, min_size=1, max_size=most)


def changed(original: Any, changes: list[Change]) -> Any:
    """Return a copy of nested mappings and lists with the damages; `take` copies the value of another place.

    >>> changed({"a": 1, "b": [2, 3]}, [("set", 0.0, None), ("remove", 0.8, None)])
    {'a': None, 'b': [2]}
    """
    content = copy.deepcopy(original)
    for what, place, by in changes:
        places = list(_places(content))
        if not places:
            continue
        inside, key = places[int(place * len(places))]
        if what == "set":
            inside[key] = copy.deepcopy(by)
        elif what == "remove":
            del inside[key]
        elif what == "take":
            other, name = places[int(by * len(places))]
            inside[key] = copy.deepcopy(other[name])
        elif isinstance(inside, list):
            inside.insert(key, copy.deepcopy(by))
        else:
            inside[by if isinstance(by, str) else "added"] = copy.deepcopy(by)
    return content


def _places(content: Any) -> Any:
    """Iterate over the containers and keys of all values, in order."""
    for key, value in list(content.items()) if isinstance(content, dict) else list(enumerate(content)):
        yield content, key
        if isinstance(value, dict | list):
            yield from _places(value)
