"""JSON bodies: one pass of orjson, limits on names, values and levels, and no duplicate names.

Every step takes time in proportion to the size of the body, whatever the body contains, because small bodies are parsed
in the event loop. Large ones are parsed in a thread, but a call of a C function holds Python's lock until it returns,
so that everybody waits for the longest call: at most some hundredths of a second for each megabyte.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from rankfall.serving.service import limits
from rankfall.serving.service.http_io import ApiError, invalid_value
from rankfall.serving.value_checks import shown

_ESCAPED_COLONS = (b"\\u003a", b"\\u003A")
_TOO_DEEP = ("depth limit", "recursion limit")  # in messages of orjson about too many levels


def parse_json(body: bytes, *, max_names: int) -> dict[str, Any]:
    """Return the JSON object of a body.

    Args:
        body: The body.
        max_names: Maximum number of names in all objects of the body, and of its arrays and objects.

    Raises:
        ApiError: 400 if the body is not JSON, has too many levels, names, arrays or objects, or the same name twice in
            one object; 422 if it is not an object.
    """
    _check_counts(body, max_names)
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if any(text in error.msg.lower() for text in _TOO_DEEP):
            raise _too_deep() from None
        raise ApiError(400, f"body: is not valid JSON ({error.msg}, at byte {error.pos:,})") from None
    if not isinstance(content, dict):
        raise invalid_value("body", content, "an object")
    _check_duplicates(body, content)
    return content


def _check_counts(body: bytes, max_names: int) -> None:
    """Refuse too many names, arrays and objects before they are created.

    Python's garbage collector visits new arrays again and again while orjson creates them.
    """
    if max(body.count(b":"), body.count(b"[") + body.count(b"{")) <= max_names:
        return
    outside = _without_strings(body)
    names, groups = outside.count(b":"), outside.count(b"[") + outside.count(b"{")
    for count, what in ((names, "names in its objects"), (groups, "arrays and objects")):
        if count > max_names:
            raise ApiError(400, f"body: found {count:,} {what}, expected at most {max_names:,}")


def _without_strings(body: bytes) -> bytes:
    return b"".join(_without_escaped_backslashes(body).replace(b'\\"', b"").split(b'"')[::2])


def _without_escaped_backslashes(body: bytes) -> bytes:
    r"""Return a body without each ``\\``; every backslash that is left begins another escape."""
    return body.replace(b"\\\\", b"")


def _check_duplicates(body: bytes, content: dict[str, Any]) -> None:
    """Refuse the same name twice in one object, of which orjson keeps the last value.

    Every name is followed by a colon, and orjson writes colons in strings as they are. So the body has as many colons
    as the content when it is serialized again, unless a name was lost.
    """
    try:
        serialized = orjson.dumps(content)
    except TypeError:  # its limit is lower than that of loads
        raise _too_deep() from None
    if _colons(body) == serialized.count(b":"):
        return
    if len(body) <= limits.NAMED_KEY_BYTES:
        # Python converts numbers in quadratic time and refuses those of more than 4,300 digits.
        json.loads(body, object_pairs_hook=_refuse_duplicates, parse_int=len, parse_float=len)
    raise ApiError(400, "body: found a key twice in one object, expected unique keys")


def _colons(body: bytes) -> int:
    """Return the number of colons in a body, including those that are written as escapes."""
    count = body.count(b":")
    if any(escape in body for escape in _ESCAPED_COLONS):
        escapes = _without_escaped_backslashes(body)
        count += sum(escapes.count(escape) for escape in _ESCAPED_COLONS)
    return count


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        _raise_first_duplicate(pairs)


def _raise_first_duplicate(pairs: list[tuple[str, Any]]) -> NoReturn:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise ApiError(400, f"body: found the key {shown(name)} twice in one object, expected unique keys")
        seen.add(name)
    raise AssertionError("the pairs have no duplicate")


def _too_deep() -> ApiError:
    return ApiError(400, f"body: is nested too deeply, expected at most {limits.JSON_LEVELS} levels")
