"""The fields of request bodies, each with its check and its JSON schema.

The endpoints read bodies by these tables, and the OpenAPI document derives from them. Features, ``k`` and lists of
items are checked by the bundle, whose encoding rules have their schemas.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rankfall.option_types import LARGEST
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.http_io import invalid_value
from rankfall.serving.value_encoders import is_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INTEGER = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
TEXT = {"type": "string"}


class Field(NamedTuple):
    """A field of a body: its JSON schema, which values it accepts, and these in words."""

    schema: Mapping[str, Any]
    accepts: Callable[[Any], object]
    expected: str

    def read(self, content: Mapping[str, Any], name: str, where: str = "", default: object = None) -> Any:
        """Return the value of an object's field, refuse one that is not accepted."""
        value = content.get(name, default)
        if not self.accepts(value):
            raise invalid_value(f"{where}{name}", value, self.expected)
        return value

    def described(self, text: str) -> Field:
        """Return the field with a description in its schema."""
        return self._replace(schema={**self.schema, "description": text})


def _text(pattern: str, expected: str) -> Field:
    """Return a field of text that matches a pattern as a whole."""
    matches = re.compile(pattern).fullmatch
    return Field({**TEXT, "pattern": f"^{pattern}$"}, lambda value: isinstance(value, str) and matches(value), expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_item(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= limits.ITEM_LENGTH
    return not isinstance(value, bool) and is_integer(value) and -(2**63) <= value < 2**63


ID = _text(
    rf"[^\x00-\x1f\x7f-\x9f]{{1,{limits.ID_LENGTH}}}",
    f"text of 1 to {limits.ID_LENGTH} characters, none of which is a control character",
)
BUNDLE = Field({"enum": list(SLOTS)}, SLOTS.__contains__, " or ".join(SLOTS))

# of the whole call; None is the default
CALL = {
    "explain": Field(
        {"type": ["boolean", "null"], "description": "include what every stage did"},
        lambda value: value is None or isinstance(value, bool),
        "true or false",
    ),
    "bundle": BUNDLE.described(f"bundle that ranks, {MAIN} by default"),
    "deadline": Field(
        {
            "type": ["number", "null"],
            "minimum": 1,
            "maximum": limits.MAX_DEADLINE_MS,
            "description": "milliseconds until the request fails",
        },
        lambda value: value is None or (_is_number(value) and 1 <= value <= limits.MAX_DEADLINE_MS),
        f"1 to {limits.MAX_DEADLINE_MS:,} milliseconds",
    ),
}
RELOAD = {
    "path": Field(
        {**TEXT, "pattern": "^[^\\x00]+$"},
        lambda value: isinstance(value, str) and value and "\0" not in value,
        "the path of a bundle",
    ),
    "bundle": BUNDLE,
}
EVENT = {  # and its time, whose form is that of the times of a bundle
    "id": ID.described("an event with the id of an earlier one is a repetition"),
    "request": ID.described("the id that the answer has"),
    "item": Field(
        {"anyOf": [{**TEXT, "maxLength": limits.ITEM_LENGTH}, INTEGER], "description": "an id of the answer"},
        _is_item,
        f"an id of an item, a whole number or text of at most {limits.ITEM_LENGTH:,} characters",
    ),
    "kind": _text(
        rf"[A-Za-z0-9_-]{{1,{limits.KIND_LENGTH}}}",
        f"a name of 1 to {limits.KIND_LENGTH} letters, digits, _ and -, such as click",
    ).described("view, click, purchase or any other name"),
    "value": Field(
        {"type": ["number", "null"], "description": "1 by default"},
        lambda value: value is None or (_is_number(value) and abs(value) <= LARGEST),
        f"a number from {-LARGEST:g} to {LARGEST:g}",
    ),
}


def schemas(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the schema of each field."""
    return {name: field.schema for name, field in fields.items()}
