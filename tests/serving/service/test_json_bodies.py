"""JSON bodies: duplicate names, limits on names and levels, in linear time."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.serving.service import http_io as json_bodies
from rankfall.serving.service import settings as limits
from rankfall.serving.service.http_io import ApiError, parse_json

MANY = 10**9  # names, which no body has
Pairs = list[tuple[str, Any]]  # of an object, in which names may repeat


def refusal(body: bytes, max_names: int = MANY) -> str:
    """Return the message of the 400 for a body."""
    with pytest.raises(ApiError) as error:
        parse_json(body, max_names=max_names)
    assert error.value.status_code == 400
    return str(error.value.detail)


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("count", [1_000, 20_000])
def test_names_are_compared_a_constant_number_of_times(count: int) -> None:
    pairs: Pairs = [(Name(place), 0) for place in [*range(count), count - 1]]
    Name.compared = 0
    with pytest.raises(ApiError, match=f"'{count - 1}' twice"):
        json_bodies._refuse_duplicates(pairs)
    assert Name.compared < 100  # only names with equal hashes


def test_large_bodies_with_the_duplicate_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json, "loads")  # one call for all names, which would hold Python's lock for too long
    names = ",".join(f'"{place:06d}":1' for place in range(80_000))
    assert len(names) > 830_000
    for last in ('"079999":2', '"a":"\\u003a\\\\u003a","079999":2'):
        assert refusal(f"{{{names},{last}}}".encode()) == "body: found a key twice in one object, expected unique keys"
    assert len(parse_json(f"{{{names}}}".encode(), max_names=80_000)) == 80_000


DUPLICATES = {
    "plain": b'{"a":1,"b":2,"a":1}',
    "escaped": b'{"\\u0061":1,"a":2}',
    "escaped with a colon in a value": b'{"\\u0061":"\\u003a","a":2}',
    "balanced by escaped colons": b'{"a":1,"a":2,"b":"\\u003A"}',
    "in another object": b'{"x":[{"y":{"a":1,"a":2}}]}',
    "that is lost with its object": b'{"x":{"a":1,"a":2},"y":1,"x":3}',
    "empty": b'{"":1,"":2}',
    "long": b'{"%b":1,"%b":2}' % (b"k" * 5000, b"k" * 5000),
    "after a number of many digits": b'{"n":0.%b,"a":1,"a":2}' % (b"1" * 50_000),
    "in the deepest object": b'{"a":' * 253 + b'{"b":1,"b":2}' + b"}" * 253,
    "after many empty arrays": b'{"a":[%b],"a":1}' % b",".join([b"[]"] * 100_000),
}


@pytest.mark.parametrize("body", DUPLICATES.values(), ids=DUPLICATES)
def test_duplicates_are_found(body: bytes) -> None:
    message = refusal(body)
    assert "twice in one object" in message
    assert len(message) < 200


UNIQUE = {
    "same name in different objects": b'{"a":{"a":1},"b":[{"a":1},{"a":1}]}',
    "colons": b'{"a:":":","b":"\\u003a:"}',
    "different case": b'{"a":1,"A":2}',
    "composed and decomposed": '{"\u00e9":1,"e\u0301":2}'.encode(),
    "integers beyond 64 bits": b'{"a":%b,"b":"\\u003a"}' % (b"9" * 300),
}


@pytest.mark.parametrize("body", UNIQUE.values(), ids=UNIQUE)
def test_unique_names_are_accepted(body: bytes) -> None:
    expected = json.loads(body, parse_int=lambda digits: int(digits) if len(digits) < 19 else float(digits))
    assert parse_json(body, max_names=MANY) == expected


# JSON as lists of pairs, in which names may repeat
names = st.sampled_from(["", "a", "b", ":", '"', "\\", "\u003a", "é", "\x1f"])
values = st.recursive(
    st.none() | st.integers(-9, 9) | names,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(names, inner), max_size=3).map(tuple),
    max_leaves=12,
)


def written(value: Any, escape: bool) -> str:
    if isinstance(value, tuple):
        return "{" + " , ".join(f"{written(name, escape)} : {written(one, escape)}" for name, one in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(one, escape) for one in value) + "]"
    if isinstance(value, str) and escape:
        return '"' + "".join(f"\\u{ord(sign):04X}" for sign in value) + '"'
    return json.dumps(value)


def has_duplicates(value: Any) -> bool:
    if isinstance(value, tuple):
        found = [name for name, _ in value]
        return len(set(found)) < len(found) or any(has_duplicates(one) for _, one in value)
    return isinstance(value, list) and any(map(has_duplicates, value))


@given(st.lists(st.tuples(names, values), max_size=4).map(tuple), st.booleans())
def test_duplicates_are_those_of_a_simple_search(value: Any, escape: bool) -> None:
    body = written(value, escape).encode()
    if has_duplicates(value):
        assert "twice in one object" in refusal(body)
    else:
        assert parse_json(body, max_names=MANY) == json.loads(body)


# Pieces of strings: colons, escapes of them, what looks like one after an escaped backslash, and other escapes
pieces = st.sampled_from(
    [":", "\\u003a", "\\u003A", "\\\\", "u003a", '\\"', "\\n", "\\u005c", "\\u0061", "a", "{", "["]
)
strings = st.lists(pieces, max_size=4).map(lambda some: '"' + "".join(some) + '"')


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(strings, inner).map(" : ".join), max_size=4)
    return pairs.map(lambda some: "{" + ",".join(some) + "}")


texts = st.recursive(
    strings | st.just("0"),
    lambda inner: objects(inner) | st.tuples(inner, inner).map("[{0[0]},{0[1]}]".format),
    max_leaves=8,
)


def pairs_of(body: str) -> list[Pairs]:
    """Return the pairs of every object, as Python's own reader finds them."""
    found: list[Pairs] = []
    json.loads(body, object_pairs_hook=found.append)
    return found


@pytest.mark.parametrize("named_bytes", [0, limits.NAMED_KEY_BYTES])
@given(body=objects(texts))
def test_verdicts_are_those_of_pythons_reader(named_bytes: int, body: str) -> None:
    expected = pairs_of(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "NAMED_KEY_BYTES", named_bytes)
        if any(len(dict(pairs)) < len(pairs) for pairs in expected):
            assert ("found the key" if named_bytes else "found a key") in refusal(body.encode())
            return
        assert parse_json(body.encode(), max_names=MANY) == json.loads(body)
    names, groups = sum(map(len, expected)), len(expected) + arrays_in(json.loads(body))
    parse_json(body.encode(), max_names=max(names, groups))
    assert re.search(r"found \d+ (names|arrays)", refusal(body.encode(), max(names, groups) - 1))


def arrays_in(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, list) + sum(map(arrays_in, inner))


# --- limits -------------------------------------------------------------------------------------------------------


def test_number_of_names_is_limited() -> None:
    body = b'{"a":":::::","b":{"c:":[{"d":1}]}}'  # colons in text do not count
    assert parse_json(body, max_names=4)
    assert refusal(body, 3) == "body: found 4 names in its objects, expected at most 3"
    assert refusal(b'{"a":1,"a":2,"a":3}', 2) == "body: found 3 names in its objects, expected at most 2"
    assert limits.max_names(limits.BODY_BYTES) == 100_000


def test_number_of_arrays_and_objects_is_limited() -> None:
    body = b'{"[[[{\\"[":[[],{}]}'
    assert parse_json(body, max_names=4)
    assert refusal(body, 3) == "body: found 4 arrays and objects, expected at most 3"
    assert refusal(b'{"a":[%b]}' % b",".join([b"[]"] * 330_000), 100_000).startswith("body: found 330,002 arrays")


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"b":', b"}")], ids=["arrays", "objects"])
def test_number_of_levels_is_limited(opening: bytes, closing: bytes) -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' + opening * (levels - 1) + b"1" + closing * (levels - 1) + b"}"

    assert parse_json(nested(limits.JSON_LEVELS), max_names=MANY)
    for levels in (limits.JSON_LEVELS + 1, 1_000, 1_100, 200_000):
        assert refusal(nested(levels)) == "body: is nested too deeply, expected at most 254 levels"
    assert "nested too deeply" in refusal(b'{"a":' + opening * 200_000)
