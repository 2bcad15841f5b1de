"""The OpenAPI document of a service, whose request schema is that of the bundles it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall import __version__
from rankfall.serving.bundle import MOST_IDS
from rankfall.serving.request_encoder import object_schema
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bodies import CALL, EVENT, ID, INTEGER, RELOAD, TEXT, schemas
from rankfall.serving.service.bundle_slots import MAIN

if TYPE_CHECKING:
    from rankfall.serving.bundle import Bundle
    from rankfall.serving.service.bundle_slots import BundleSlots
    from rankfall.serving.service.settings import Settings

_NUMBER = {"type": "number"}
_ID = {"anyOf": [{"type": "integer"}, TEXT]}
_IDS = {"type": "array", "items": _ID}
_BOOLEANS = {"type": "array", "items": {"type": "boolean"}}
_ATTRIBUTE = {"type": ["string", "number", "boolean", "null"]}
_SHOWN = {"maxItems": limits.SHOWN_ITEMS}
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
    optional = {"in": "query", "required": False}
    about = {"schema": {"type": "boolean"}, "description": "Whether to include what every stage did."}
    explain = {"name": "explain", **optional, **about}
    about = {"schema": {"enum": list(slots.models())}, "description": "The bundle whose examples to return."}
    bundle = {"name": "bundle", **optional, **about}
    busy, busy_items = (*_BODY_ERRORS, 503, 504), (*_BODY_ERRORS, 503)
    ready = _get("Whether the service can rank", "Status", (503,))
    ready["responses"]["503"]["description"] = _NOT_READY
    reload = _post("Replace a bundle", "Reload", "Reloaded", (401, 409, *_BODY_ERRORS))
    reload["responses"]["403"]["description"] = f"The service was started without a token, or: {_ERRORS[403]}"
    paths = {
        "/rank": {"post": _post("Rank items for one request or several", "Call", "Answer", busy, [explain])},
        "/model": {"get": _get("Describe the bundles that are served", "Models")},
        "/health": {"get": _get("Whether the process responds", "Status")},
        "/ready": {"get": ready},
        "/metrics": {"get": _get("Metrics in the text format of Prometheus", None)},
        "/reload": {"post": {**reload, "security": [{"token": []}]}},
    }
    if settings.samples is not None:
        events = _post("Record what users did with items of answers", "Events", "Accepted", (*_BODY_ERRORS, 503, 504))
        events["responses"]["503"]["description"] = _NOT_WRITTEN
        events["responses"]["504"]["description"] = _NOT_PARSED
        paths["/events"] = {"post": events}
    if settings.page:
        paths["/score"] = {"post": _post("Score candidates by every stage", "ScoreCall", "Scores", busy)}
        paths["/items"] = {"post": _post("Attributes of items, to show to people", "ItemsCall", "Items", busy_items)}
        paths["/examples"] = {"get": _get("Example requests of a bundle", "Examples", (422,), [bundle])}
    return paths


def _post(
    summary: str, request: str, response: str, codes: tuple[int, ...], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    return {**_get(summary, response, codes, parameters), "requestBody": body}


def _get(
    summary: str, response: str | None, codes: tuple[int, ...] = (), parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    kind = {"text/plain": {"schema": TEXT}} if response is None else {"application/json": {"schema": _ref(response)}}
    responses: dict[str, Any] = {"200": {"description": "Success.", "content": kind}}
    for code in sorted({403, *codes}):
        responses[str(code)] = {
            "description": _ERRORS[code],
            "content": {"application/json": {"schema": _ref("Error")}},
            **({"headers": {"Retry-After": {"schema": {"type": "string"}, "required": True}}} if code == 503 else {}),
        }
    return {"summary": summary, "parameters": parameters or [], "responses": responses}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


# --- request schemas ----------------------------------------------------------------------------------------------


def _schemas(settings: Settings, slots: BundleSlots) -> dict[str, Any]:
    served = slots[MAIN]
    features = {} if served is None else served.bundle.schema()["properties"]
    required = [] if served is None else served.bundle.schema().get("required", [])
    options = {} if served is None else _request_options(served.bundle)
    bundle = {**CALL["bundle"].schema, "enum": [*slots.models(), None]}
    call_options = {**schemas(CALL), "bundle": bundle}
    time = features.get("time", {})
    events = {"type": "array", "items": _ref("Event"), "minItems": 1, "maxItems": limits.EVENTS}
    several = {"type": "array", "items": _ref("Request"), "minItems": 1, "maxItems": settings.queue}
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
            {
                "ids": {"type": "array", "items": _ID if served is None else _item_id(served.bundle), **_SHOWN},
                "bundle": bundle,
            },
            ["ids"],
        ),
        "Reload": object_schema(schemas(RELOAD), ["path"]),
        "Event": object_schema({**schemas(EVENT), "time": {**time, "description": "now by default"}}, list(EVENT)[:-1]),
        "Events": object_schema({"events": events}, ["events"]),
        **_response_schemas(),
    }


def _item_id(bundle: Bundle) -> dict[str, Any]:
    return {"anyOf": [TEXT, INTEGER]} if bundle.items.lookup.is_text else INTEGER


def _request_options(bundle: Bundle) -> dict[str, Any]:
    optional_ids = {"type": ["array", "null"], "items": _item_id(bundle), "maxItems": MOST_IDS}
    last = bundle.stages[-1]
    return {
        "k": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": last.quota,
            "description": f"number of items, {last.quota} by default",
        },
        "candidates": {**optional_ids, "description": "rank only these items"},
        "exclude": {**optional_ids, "description": "items to leave out"},
        "request": {**ID.schema, "type": ["string", "null"], "description": "id of the request, random by default"},
    }


# --- response schemas ---------------------------------------------------------------------------------------------


def _response_schemas() -> dict[str, Any]:
    stage = {
        "name": TEXT,
        "ids": _IDS,
        "scores": {"type": "array", "items": _NUMBER},
        "kept": {"type": "integer"},
        "threshold": {"type": ["number", "null"]},
        "milliseconds": _NUMBER,
    }
    ranking = {
        "request": {**TEXT, "description": "the id of the request, to which events refer"},
        "ids": _IDS,
        "scores": {"type": "array", "items": _NUMBER},
        "unknown": {"type": "array"},
        "notes": {"type": "array", "items": TEXT, "description": "values that were never seen in training, if any"},
        "stages": {"type": "array", "items": _ref("Stage")},
    }
    head = {"model": TEXT, "milliseconds": _MILLISECONDS}
    required = ["request", "ids", "scores", "unknown"]
    several = {"type": "array", "items": _ref("Ranking")}
    bundle = {"anyOf": [{"type": "object"}, {"type": "null"}]}
    scores = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}}}
    display = {"type": "object", "additionalProperties": {"type": "array", "items": _ATTRIBUTE}}
    pair = {"type": "array", "items": {"anyOf": [TEXT, _NUMBER]}, "minItems": 2, "maxItems": 2}
    known = {
        "relevant": {"anyOf": [_IDS, {"type": "null"}], "description": "ids of the ground truth in the log"},
        "feedback": {"type": ["object", "null"], "additionalProperties": {"type": "array", "items": pair}},
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
        "Items": object_schema({"model": TEXT, "known": _BOOLEANS, "display": display}, ["model", "known", "display"]),
        "Examples": object_schema(
            {
                "examples": {"type": "array", "items": {"type": "object"}},
                "known": {"type": "array", "items": object_schema(known, list(known))},
            },
            ["examples", "known"],
        ),
        "Status": object_schema({"status": TEXT, "model": TEXT}, ["status"]),
        "Reloaded": object_schema({"model": TEXT, "before": {"type": ["string", "null"]}}, ["model", "before"]),
        "Accepted": object_schema({"accepted": {"type": "integer"}}, ["accepted"]),
        "Error": object_schema({"error": TEXT, "field": TEXT}, ["error"]),
    }
