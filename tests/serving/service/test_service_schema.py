"""Every request gets an answer that the OpenAPI document describes, and never 500."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok

from support.bundles import platform_bundle
from support.fuzzing import cases, is_long
from support.services import TOKEN, Client, Running, loaded, ranking_bundle, requests, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    samples = str(tmp_path_factory.mktemp("samples"))
    with running(platform_bundle(), other=ranking_bundle(), max_body=1_000_000, samples=samples) as service:
        yield service


@pytest.fixture
def client(served: Running) -> Iterator[Client]:
    with served.client() as client:
        yield client


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"user": {"age": "old"}}, "user.age"),
        ({"user": {"age": -1}}, "user.age"),
        ({"user": {"age": 1.5}}, "user.age"),
        ({"user": {"age": 1e300}}, "user.age"),
        ({"user": {"age": 2**64 - 1}}, "user.age"),
        ({"user": {"age": 2**200}}, "user.age"),
        ({"user": {"age": [1]}}, "user.age"),
        ({"user": {"age": {"id": 10**9}}}, "user.age"),
        ({"user": {"agee": 3}}, "user.agee"),
        ({"user": {"a: b": 3}}, "user"),
        ({"user": {"a" * 1000: 3}}, "user"),
        ({"user": [1]}, "user"),
        ({"user": "x"}, "user"),
        ({"context": {"hour": "noon"}}, "context.hour"),
        ({"sequences": {"history": [{"video_id": 1}, {"video_id": "x"}]}}, "sequences.history[1].video_id"),
        ({"sequences": {"history": {"video_id": [1, 2], "author_id": [1]}}}, "sequences.history"),
        ({"sequences": {"history": 3}}, "sequences.history"),
        ({"sequences": {"past": []}}, "sequences.past"),
        ({"time": "yesterday"}, "time"),
        ({"time": 10**18}, "time"),
        ({"k": 0}, "k"),
        ({"k": 11}, "k"),
        ({"k": True}, "k"),
        ({"k": "3"}, "k"),
        ({"candidates": 3}, "candidates"),
        ({"candidates": [1, "two"]}, "candidates[1]"),
        ({"exclude": {"a": 1}}, "exclude"),
        ({"candidates": [0] * 100_001}, "candidates"),
        ({"explain": "yes"}, "explain"),
        ({"bundle": "third"}, "bundle"),
        ({"bundle": ["main"]}, "bundle"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": 10**9}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"usr": {}}, "usr"),
        ({"requests": []}, "requests"),
        ({"requests": {}}, "requests"),
        ({"requests": [{}] * 257}, "requests"),
        ({"requests": [{}], "k": 3}, "k"),
        ({"requests": [{}, 3]}, "requests[1]"),
        ({"requests": [{}, {"explain": True}]}, "requests[1].explain"),
        ({"requests": [{}, {}, {"user": {"age": "old"}}]}, "requests[2].user.age"),
        ({"requests": [{"k": 99}]}, "requests[0].k"),
        ([], "body"),
        (None, "body"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_value_is_named(client: Client, content: Any, field: str) -> None:
    answer = client.post("/rank", content)
    assert answer.code == 422
    assert answer.json["field"] == field
    assert answer.json["error"].startswith(f"{field}: found ")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"\xff\xfe{}",
        b'{"k": NaN}',
        b'{"k": Infinity}',
        b'{"user": {"age": 1e400}}',
        b'{"user": {"age": ' + b"9" * 5000 + b"}}",
        b'{"user": {"age": "\\ud800"}}',
        b'{"user": {"age": "\xed\xa0\x80"}}',
        b'{"k": 1, "k": 2}',
        b'{"user": {"age": 1, "age" : 2}}',
        b'{"user": {"age": 1, "\\u0061ge": 2}, "time": "2024\\u002d01-01T00\\u003a00"}',
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b"[" * 100_000,
    ],
    ids=lambda body: str(body)[:40],
)
def test_invalid_json_is_reported(client: Client, body: bytes) -> None:
    answer = client.post("/rank", body)
    assert answer.code == 400
    assert answer.json["error"].startswith("body: ")
    assert client.post("/rank", {}).code == 200


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"user": None, "context": None, "sequences": None, "time": None},
        {"user": {"user_id": 10**15, "age": 999}},  # never seen
        {"user": {"age": None}},
        {"sequences": {"history": []}},
        {"sequences": {"history": {}}},
        {"sequences": {"history": [{}] * 500}},
        {"candidates": []},
        {"candidates": [10**15]},
        {"exclude": list(range(1000))},
        {"time": "2024-01-15T10:30:00+08:00"},
        {"time": 1705300000000},
    ],
    ids=lambda value: str(value)[:40],
)
def test_missing_and_unknown_values_are_answered(client: Client, content: dict[str, Any]) -> None:
    answer = client.post("/rank", content)
    assert answer.code == 200
    assert len(answer.json["ids"]) == (0 if "candidates" in content else 10)
    assert not set(answer.json["ids"]) & set(content.get("exclude", []))
    assert answer.json["unknown"] == content.get("candidates", [])


def test_large_bodies_are_refused_without_side_effects(client: Client) -> None:
    body = b" " * 10_000_000
    assert client.post("/rank", body).code == 413
    assert client.post("/score", body).code == 413
    assert client.post("/reload", body, authorization=f"Bearer {TOKEN}").code == 413
    assert client.post("/rank", {}).code == 200  # on the same connection


def test_chunked_body_is_refused_once_it_is_too_large(served: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request(
        "POST", "/rank", (b"x" * 65536 for _ in range(40)), {"Content-Type": "application/json"}, encode_chunked=True
    )
    assert connection.getresponse().status == 413
    connection.close()


def test_large_body_within_the_limit_is_answered(client: Client) -> None:
    several = requests() * 8  # hundreds of kilobytes
    assert len(json.dumps(several)) > 2**17
    answer = client.post("/rank", {"requests": several})
    assert answer.code == 200
    expected = loaded(platform_bundle()).rank(several)
    assert [ranking["ids"] for ranking in answer.json["rankings"]] == [ranking.ids for ranking in expected]
    assert client.post("/rank", {"requests": [*several, {"k": 0}]}).json["field"] == f"requests[{len(several)}].k"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_content_type_must_be_json(client: Client, kind: str) -> None:
    assert client.call("POST", "/rank", b"{}", content_type=kind).code == 415
    assert client.post("/rank", b"{}", content_encoding="gzip").code == 415
    assert client.call("POST", "/rank", b"{}", content_type="application/json; charset=utf-8").code == 200


def test_document_describes_why_a_service_is_not_ready(client: Client) -> None:
    paths = client.get("/openapi.json").json["paths"]
    ready, rank = (paths[path][how]["responses"]["503"] for path, how in (("/ready", "get"), ("/rank", "post")))
    assert "queue" in rank["description"]
    assert "queue" not in ready["description"]  # requests to /ready are not queued


def test_unknown_paths_and_methods(client: Client) -> None:
    assert client.get("/nothing").code == 404
    assert client.get("/rank/").code == 404
    assert client.get("/../../etc/passwd").code == 404
    wrong = client.get("/rank")
    assert (wrong.code, wrong.headers["allow"]) == (405, "POST")
    assert client.call("DELETE", "/model").code == 405
    assert client.call("HEAD", "/health").code == 200


# --- the document ---------------------------------------------------------------------------------------------------


def test_document_accepts_what_the_service_accepts(client: Client) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = client.get("/openapi.json").json
    call = {**document["components"]["schemas"]["Call"], "components": document["components"]}
    jsonschema.Draft202012Validator.check_schema(call)
    validator = jsonschema.Draft202012Validator(call)
    for request in requests():
        assert validator.is_valid({**request, "k": 3, "explain": True})
        assert validator.is_valid({"requests": [{**request, "exclude": [1]}]})
    assert not validator.is_valid({"k": 0})
    assert not validator.is_valid({"requests": [{"explain": True}]})


CONFORMANCE = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "allow_header_conformance",
)


@pytest.mark.fuzz
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_generated_request_breaks_the_service(
    served: Running, mode: GenerationMode, record_property: Callable[[str, object], None]
) -> None:
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{served.port}/openapi.json")
    checks = CHECKS.get_by_names(CONFORMANCE)
    tried: Counter[str] = Counter()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if mode is GenerationMode.POSITIVE or operation.body or operation.query:  # others cannot be invalid
            tried += Counter({operation.path: asked(operation, mode, checks)})
    record_property("cases", tried.total())
    assert {path for path, methods in schema.raw_schema["paths"].items() if "post" in methods} <= set(tried)


def asked(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, checks: Any) -> int:
    """Send generated requests to an operation; return their number."""
    headers = {"Authorization": f"Bearer {TOKEN}"} if operation.path == "/reload" else {}
    count = 0

    @settings(cases(5 if is_long() else 25), suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(mode))
    def ask(case: Case[Any]) -> None:
        nonlocal count
        count += 1
        response = case.call(headers=headers)
        assert response.status_code != 500
        case.validate_response(response, checks=checks)

    ask()
    return count
