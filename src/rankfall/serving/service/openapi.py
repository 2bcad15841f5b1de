"""The OpenAPI document of a service: what it takes follows from the bundles that it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall import __version__
from rankfall.serving.bundle import MOST_IDS
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.settings import LONGEST_DEADLINE

if TYPE_CHECKING:
    from rankfall.serving.bundle import Bundle
    from rankfall.serving.service.bundle_slots import Slots
    from rankfall.serving.service.settings import Settings

_NUMBER = {"type": "number"}
_TEXT = {"type": "string"}
_ID = {"anyOf": [{"type": "integer"}, _TEXT]}
_IDS = {"type": "array", "items": _ID}
_MILLISECONDS = {"type": "object", "additionalProperties": _NUMBER}
_WHY = {
    400: "The body is not JSON.",
    401: "The token is wrong.",
    403: "The service is for this machine alone, and was called by another name.",
    408: "The body did not come in time.",
    409: "The bundle was refused; the one before keeps serving.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "A value is wrong; the field is named.",
    503: "The line is full or too slow, or no bundle is loaded; try again after the seconds in Retry-After.",
    504: "The deadline is over.",
}
_NOT_READY = "The service is ending, or no bundle is loaded yet."
_OF_BODIES = (400, 408, 413, 415, 422)


def openapi(settings: Settings, slots: Slots) -> dict[str, Any]:
    """The document."""
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


def _paths(settings: Settings, slots: Slots) -> dict[str, Any]:
    explain = _parameter("explain", {"type": "boolean"}, "Whether to say what every stage did.")
    bundle = _parameter("bundle", {"enum": list(slots.models())}, "Whose examples.")
    busy = (*_OF_BODIES, 503, 504)
    ready = _asked("Whether it can rank", "Status", (503,))
    ready["responses"]["503"]["description"] = _NOT_READY
    reload = _posted("Serve another bundle", "Reload", "Reloaded", (401, 409, *_OF_BODIES))
    reload["responses"]["403"]["description"] = f"The service was started without a token. Or: {_WHY[403]}"
    paths = {
        "/rank": {"post": _posted("The best items for a request, or for several", "Call", "Answer", busy, [explain])},
        "/model": {"get": _asked("The bundles that are served", "Models")},
        "/health": {"get": _asked("Whether the process answers", "Status")},
        "/ready": {"get": ready},
        "/metrics": {"get": _asked("What Prometheus reads", None)},
        "/reload": {"post": {**reload, "security": [{"token": []}]}},
    }
    if settings.page:
        paths["/score"] = {"post": _posted("The scores of candidates by every stage", "ScoreCall", "Scores", busy)}
        paths["/examples"] = {"get": _asked("Requests to try", "Examples", (422,), [bundle])}
    return paths


def _parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _posted(
    summary: str, takes: str, gives: str, codes: tuple[int, ...], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": _ref(takes)}}}
    return {**_asked(summary, gives, codes, parameters), "requestBody": body}


def _asked(
    summary: str, gives: str | None, codes: tuple[int, ...] = (), parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    kind = {"text/plain": {"schema": _TEXT}} if gives is None else {"application/json": {"schema": _ref(gives)}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": kind}}
    for code in sorted({403, *codes}):
        responses[str(code)] = {
            "description": _WHY[code],
            "content": {"application/json": {"schema": _ref("Error")}},
            **({"headers": {"Retry-After": {"schema": {"type": "string"}, "required": True}}} if code == 503 else {}),
        }
    return {"summary": summary, "parameters": parameters or [], "responses": responses}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


# --- what is taken ------------------------------------------------------------------------------------------------


def _schemas(settings: Settings, slots: Slots) -> dict[str, Any]:
    served = slots[MAIN]
    parts = {} if served is None else served.bundle.schema()["properties"]
    needed = [] if served is None else served.bundle.schema().get("required", [])
    wishes = {} if served is None else _wishes(served.bundle)
    options = _options(slots)
    several = {"type": "array", "items": _ref("Request"), "minItems": 1, "maxItems": settings.queue}
    candidates = {**wishes.get("candidates", _IDS), "type": "array"}
    return {
        "Request": _object({**parts, **wishes}, needed),
        "OneRequest": _object({**parts, **wishes, **options}, needed),
        "Requests": _object({"requests": several, **options}, ["requests"]),
        "Call": {"anyOf": [_ref("OneRequest"), _ref("Requests")]},
        "ScoreCall": _object({**parts, **wishes, **options, "candidates": candidates}, [*needed, "candidates"]),
        "Reload": _object(
            {"path": {"type": "string", "pattern": "^[^\\x00]+$"}, "bundle": {"enum": list(SLOTS)}}, ["path"]
        ),
        **_answers(),
    }


def _wishes(bundle: Bundle) -> dict[str, Any]:
    whole = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    ids = {"anyOf": [_TEXT, whole]} if bundle.items.lookup.is_text else whole
    some = {"type": ["array", "null"], "items": ids, "maxItems": MOST_IDS}
    last = bundle.stages[-1]
    return {
        "k": {"type": ["integer", "null"], "minimum": 1, "maximum": last.quota, "description": f"default {last.quota}"},
        "candidates": {**some, "description": "rank these items, not all"},
        "exclude": {**some, "description": "never answer with these"},
    }


def _options(slots: Slots) -> dict[str, Any]:
    return {
        "explain": {"type": ["boolean", "null"], "description": "say what every stage did"},
        "bundle": {"enum": [*slots.models(), None], "description": f"which bundle, by default {MAIN}"},
        "deadline": {
            "type": ["number", "null"],
            "minimum": 1,
            "maximum": LONGEST_DEADLINE,
            "description": "milliseconds",
        },
    }


# --- what is given ------------------------------------------------------------------------------------------------


def _answers() -> dict[str, Any]:
    stage = {
        "name": _TEXT,
        "ids": _IDS,
        "scores": {"type": "array", "items": _NUMBER},
        "kept": {"type": "integer"},
        "threshold": {"type": ["number", "null"]},
        "milliseconds": _NUMBER,
    }
    ranking = {
        "ids": _IDS,
        "scores": {"type": "array", "items": _NUMBER},
        "unknown": {"type": "array"},
        "stages": {"type": "array", "items": _ref("Stage")},
    }
    head = {"model": _TEXT, "milliseconds": _MILLISECONDS}
    always = ["ids", "scores", "unknown"]
    several = {"type": "array", "items": _ref("Ranking")}
    about = {"anyOf": [{"type": "object"}, {"type": "null"}]}
    scores = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}}}
    return {
        "Stage": _object(stage, list(stage)),
        "Ranking": _object(ranking, always),
        "OneAnswer": _object({**head, **ranking}, [*head, *always]),
        "Answers": _object({**head, "rankings": several}, [*head, "rankings"]),
        "Answer": {"anyOf": [_ref("OneAnswer"), _ref("Answers")]},
        "Scores": _object({"model": _TEXT, "scores": scores}, ["model", "scores"]),
        "Models": _object({"bundles": _object({"main": about, "other": about}, ["main", "other"])}, ["bundles"]),
        "Examples": _object({"examples": {"type": "array", "items": {"type": "object"}}}, ["examples"]),
        "Status": _object({"status": _TEXT, "model": _TEXT}, ["status"]),
        "Reloaded": _object({"model": _TEXT, "before": {"type": ["string", "null"]}}, ["model", "before"]),
        "Error": _object({"error": _TEXT, "field": _TEXT}, ["error"]),
    }


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    needed = {"required": required} if required else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **needed}
