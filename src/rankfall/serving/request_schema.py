"""The JSON schema of requests, from the encoding rules in a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.serving.request_encoder import GROUPS, ignored_names
from rankfall.serving.value_checks import INTEGER_TEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHOLE = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_TEXT = {"type": "string"}
_BOOLEAN = {"type": "boolean"}
_NULL = {"type": "null"}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_TIMES = -62_000_000_000, 253_000_000_000  # seconds since 1970, in the years 5 to 9987, which have a date in every zone


def request_schema(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a request.

    Args:
        rules: The entry ``request`` of the manifest.
    """
    sequences = {name: _sequence(rule) for name, rule in rules["sequences"].items()}
    parts: dict[str, Any] = {"time": {"anyOf": [*_times((rules["time"] or {}).get("unit")), _NULL]}}
    for group in GROUPS:
        features = {name: feature_schema(rule) for name, rule in rules[group].items()}
        needed = [name for name, rule in rules[group].items() if _is_needed(rule)]
        parts[group] = _object(features, ignored_names(rules["ignored"], group), needed)
    parts["sequences"] = _object(sequences, ignored_names(rules["ignored"], "sequence"), [])
    return _object(parts, [], [group for group in GROUPS if parts[group].get("required")])


def feature_schema(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a feature from its rule."""
    if rule["kind"] == "dense":
        number: dict[str, Any] = {"type": "number"}
        if rule["size"] > 1:
            number = {"type": "array", "items": number, "minItems": rule["size"], "maxItems": rule["size"]}
        kinds = [number, *([] if _is_needed(rule) else [_NULL])]
    else:
        kinds = [*_values(rule), _NULL]
    if rule["rows"]:
        number = {
            "type": "integer",
            "minimum": 0,
            "maximum": rule["rows"] - 1,
            "description": "the row of an embedding table",
        }
        kinds.append(_object({"id": number}, [], ["id"]))
    return {"anyOf": kinds}


def _values(rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    if rule["kind"] == "time":
        return [] if rule["of_request"] else _times(rule["unit"])  # it follows from the time of the request
    if rule["ids"] == "numbers":
        return [{**_WHOLE, "minimum": 0}, _BOOLEAN]
    if rule["ids"] == "hash" and rule["text"] is False:
        return [{**_TEXT, "pattern": f"^({INTEGER_TEXT.pattern})$"}, _WHOLE, _BOOLEAN]
    if rule["ids"] == "hash" or rule["text"]:
        return [_TEXT, _WHOLE, _BOOLEAN]
    return [_WHOLE, _BOOLEAN]


def _times(unit: str | None) -> list[dict[str, Any]]:
    numbers = []
    if unit is not None:
        first, last = (_PER_SECOND[unit] * seconds for seconds in _TIMES)
        numbers = [{"type": "integer", "minimum": first, "maximum": last, "description": f"{unit} since 1970"}]
    return [{"type": "string", "format": "date-time"}, *numbers]


def _sequence(rule: Mapping[str, Any]) -> dict[str, Any]:
    features = {name: feature_schema(of) for name, of in rule["features"].items()}
    needed = [name for name, of in rule["features"].items() if _is_needed(of)]
    lists = {name: {"type": "array", "items": features.get(name, {})} for name in (*features, *rule["ignored"])}
    columns = _object(lists, [], [])
    if needed:  # without any column there are no events
        columns["dependentRequired"] = dict.fromkeys(lists, needed)
    kept = f"the last {rule['max_length']} are used"
    return {
        "anyOf": [
            {
                "type": "array",
                "items": _object(features, rule["ignored"], needed),
                "description": f"oldest first; {kept}",
            },
            {**columns, "description": f"one column per feature, all of the same length; {kept}"},
            _NULL,
        ]
    }


def _is_needed(rule: Mapping[str, Any]) -> bool:
    return rule["kind"] == "dense" and rule["missing"] is None


def _object(properties: Mapping[str, Any], ignored: list[str], required: list[str]) -> dict[str, Any]:
    content = {"type": "object", "properties": {**properties, **{name: {} for name in ignored}}}
    return {**content, "additionalProperties": False, **({"required": required} if required else {})}
