"""The fields of request bodies, and the OpenAPI document that derives from them and from the bundles of a service.

The endpoints read bodies by these tables. Features, ``k`` and lists of items are checked by the bundle, whose encoding
rules have their schemas.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rankfall import __version__
from rankfall.option_types import LARGEST
from rankfall.serving.bundle import MOST_IDS
from rankfall.serving.request_encoder import object_schema
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.http_io import invalid_value
from rankfall.serving.value_encoders import is_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.serving.service.bundle_slots import BundleSlots
    from rankfall.serving.service.settings import Settings

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


# --- the document ---------------------------------------------------------------------------------------------------

_NUMBER = {"type": "number"}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_IDS = _array({"anyOf": [{"type": "integer"}, TEXT]})
_ATTRIBUTE = {"type": ["string", "number", "boolean", "null"]}
_MILLISECONDS = {"type": "object", "additionalProperties": _NUMBER}
_ERRORS = {
    400: "The body is not valid JSON.",
    401: "The token is missing or wrong.",
    403: "The service is restricted to this machine, and the Host header is not a local name.",
    408: "The body did not arrive in time.",
    409: "The new bundle was refused; the previous bundle stays in service.",
    413: "The body is too large.",
    415: "The content type of the body is not JSON.",
    422: "A value is invalid; the key 'field' names it.",
    503: "The queue is full or too slow, or no bundle is loaded; try again after the seconds in Retry-After.",
    504: "The deadline was exceeded.",
}
_NOT_READY = "The service is shutting down, or no bundle is loaded yet."
_NOT_WRITTEN = "The events are not known to be written; send them again after the seconds in Retry-After."
_NOT_PARSED = "The body was not parsed in time; none of its events is written."
_BODY_ERRORS = (400, 408, 413, 415, 422)


def openapi_document(settings: Settings, slots: BundleSlots) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rankfall",
            "version": __version__,
            "description": "Ranks items for requests with a cascade of models.",
        },
        "paths": _paths(settings, slots),
        "components": {
            "schemas": _schemas(settings, slots),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths(settings: Settings, slots: BundleSlots) -> dict[str, Any]:
    explain = _parameter("explain", {"type": "boolean"}, "Whether to include what every stage did.")
    bundle = _parameter("bundle", {"enum": list(slots.models())}, "The bundle whose examples to return.")
    busy = (*_BODY_ERRORS, 503, 504)
    no_token = f"The service was started without a token, or: {_ERRORS[403]}"
    paths = {
        "/rank": _operation("Rank items for one request or several", "Answer", busy, "Call", parameters=[explain]),
        "/model": _operation("Describe the bundles that are served", "Models"),
        "/health": _operation("Whether the process responds", "Status"),
        "/ready": _operation("Whether the service can rank", "Status", (503,), meanings={503: _NOT_READY}),
        "/metrics": _operation("Metrics in the text format of Prometheus", None),
        "/reload": _operation(
            "Replace a bundle", "Reloaded", (401, 409, *_BODY_ERRORS), "Reload", meanings={403: no_token}
        ),
    }
    paths["/reload"]["post"]["security"] = [{"token": []}]
    if settings.samples is not None:
        paths["/events"] = _operation(
            "Record what users did with items of answers",
            "Accepted",
            busy,
            "Events",
            meanings={503: _NOT_WRITTEN, 504: _NOT_PARSED},
        )
    if settings.page:
        paths["/score"] = _operation("Score candidates by every stage", "Scores", busy, "ScoreCall")
        paths["/items"] = _operation("Attributes of items, to show to people", "Items", busy[:-1], "ItemsCall")
        paths["/examples"] = _operation("Example requests of a bundle", "Examples", (422,), parameters=[bundle])
    return paths


def _parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _operation(
    summary: str,
    response: str | None,
    codes: tuple[int, ...] = (),
    request: str | None = None,
    *,
    parameters: Sequence[dict[str, Any]] = (),
    meanings: Mapping[int, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the operation of a path: POST if it has a request body, otherwise GET.

    Args:
        summary: What it does.
        response: The schema of its response; None for text.
        codes: Status codes of errors besides 403.
        request: The schema of the request body.
        parameters: Parameters of the query.
        meanings: What status codes mean here, if it is not what they mean elsewhere.
    """
    kind = {"text/plain": {"schema": TEXT}} if response is None else {"application/json": {"schema": _ref(response)}}
    responses: dict[str, Any] = {"200": {"description": "Success.", "content": kind}}
    for code in sorted({403, *codes}):
        responses[str(code)] = {
            "description": meanings.get(code, _ERRORS[code]),
            "content": {"application/json": {"schema": _ref("Error")}},
            **({"headers": {"Retry-After": {"schema": {"type": "string"}, "required": True}}} if code == 503 else {}),
        }
    operation = {"summary": summary, "parameters": list(parameters), "responses": responses}
    if request is None:
        return {"get": operation}
    body = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    return {"post": {**operation, "requestBody": body}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


# --- request schemas ----------------------------------------------------------------------------------------------


def _schemas(settings: Settings, slots: BundleSlots) -> dict[str, Any]:
    served = slots[MAIN]
    features = {} if served is None else served.bundle.schema()["properties"]
    required = [] if served is None else served.bundle.schema().get("required", [])
    item: dict[str, Any] = {"anyOf": [{"type": "integer"}, TEXT]}
    options: dict[str, Any] = {}
    if served is not None:
        item = {"anyOf": [TEXT, INTEGER]} if served.bundle.items.lookup.is_text else INTEGER
        ids = {"type": ["array", "null"], "items": item, "maxItems": MOST_IDS}
        quota = served.bundle.quotas[-1]
        number = {"type": ["integer", "null"], "minimum": 1, "maximum": quota}
        options = {
            "k": {**number, "description": f"number of items, {quota} by default"},
            "candidates": {**ids, "description": "rank only these items"},
            "exclude": {**ids, "description": "items to leave out"},
            "request": {**ID.schema, "type": ["string", "null"], "description": "id of the request, random by default"},
        }
    bundle = {**CALL["bundle"].schema, "enum": [*slots.models(), None]}
    call_options = {**schemas(CALL), "bundle": bundle}
    time = features.get("time", {})
    events = {**_array(_ref("Event")), "minItems": 1, "maxItems": limits.EVENTS}
    several = {**_array(_ref("Request")), "minItems": 1, "maxItems": settings.queue}
    candidates = {**options.get("candidates", _IDS), "type": "array"}
    return {
        "Request": object_schema({**features, **options}, required),
        "OneRequest": object_schema({**features, **options, **call_options}, required),
        "Requests": object_schema({"requests": several, **call_options}, ["requests"]),
        "Call": {"anyOf": [_ref("OneRequest"), _ref("Requests")]},
        "ScoreCall": object_schema(
            {**features, **options, **call_options, "candidates": candidates}, [*required, "candidates"]
        ),
        "ItemsCall": object_schema(
            {"ids": {**_array(item), "maxItems": limits.SHOWN_ITEMS}, "bundle": bundle}, ["ids"]
        ),
        "Reload": object_schema(schemas(RELOAD), ["path"]),
        "Event": object_schema({**schemas(EVENT), "time": {**time, "description": "now by default"}}, list(EVENT)[:-1]),
        "Events": object_schema({"events": events}, ["events"]),
        **_response_schemas(),
    }


# --- response schemas ---------------------------------------------------------------------------------------------


def _response_schemas() -> dict[str, Any]:
    stage = {
        "name": TEXT,
        "ids": _IDS,
        "scores": _array(_NUMBER),
        "kept": {"type": "integer"},
        "threshold": {"type": ["number", "null"]},
        "milliseconds": _NUMBER,
    }
    ranking = {
        "request": {**TEXT, "description": "the id of the request, to which events refer"},
        "ids": _IDS,
        "scores": _array(_NUMBER),
        "unknown": {"type": "array"},
        "notes": {**_array(TEXT), "description": "values that were never seen in training, if any"},
        "stages": _array(_ref("Stage")),
    }
    head = {"model": TEXT, "milliseconds": _MILLISECONDS}
    required = ["request", "ids", "scores", "unknown"]
    several = _array(_ref("Ranking"))
    bundle = {"anyOf": [{"type": "object"}, {"type": "null"}]}
    scores = {"type": "object", "additionalProperties": _array({"type": ["number", "null"]})}
    display = {"type": "object", "additionalProperties": _array(_ATTRIBUTE)}
    pair = {**_array({"anyOf": [TEXT, _NUMBER]}), "minItems": 2, "maxItems": 2}
    known = {
        "relevant": {"anyOf": [_IDS, {"type": "null"}], "description": "ids of the ground truth in the log"},
        "feedback": {"type": ["object", "null"], "additionalProperties": _array(pair)},
    }
    return {
        "Stage": object_schema(stage, list(stage)),
        "Ranking": object_schema(ranking, required),
        "OneAnswer": object_schema({**head, **ranking}, [*head, *required]),
        "Answers": object_schema({**head, "rankings": several}, [*head, "rankings"]),
        "Answer": {"anyOf": [_ref("OneAnswer"), _ref("Answers")]},
        "Scores": object_schema({"model": TEXT, "scores": scores}, ["model", "scores"]),
        "Models": object_schema(
            {"bundles": object_schema({"main": bundle, "other": bundle}, ["main", "other"])}, ["bundles"]
        ),
        "Items": object_schema(
            {"model": TEXT, "known": _array({"type": "boolean"}), "display": display}, ["model", "known", "display"]
        ),
        "Examples": object_schema(
            {"examples": _array({"type": "object"}), "known": _array(object_schema(known, list(known)))},
            ["examples", "known"],
        ),
        "Status": object_schema({"status": TEXT, "model": TEXT}, ["status"]),
        "Reloaded": object_schema({"model": TEXT, "before": {"type": ["string", "null"]}}, ["model", "before"]),
        "Accepted": object_schema({"accepted": {"type": "integer"}}, ["accepted"]),
        "Error": object_schema({"error": TEXT, "field": TEXT}, ["error"]),
    }
