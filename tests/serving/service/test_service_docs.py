"""The example call on the documentation page works as printed."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rankfall.serving.request_encoder import request_schema
from rankfall.serving.service.docs_page import docs_example
from support.bundles import platform_bundle
from support.services import Running, requests, running

if TYPE_CHECKING:
    from rankfall.serving.service.bundle_slots import ServedBundle


def printed(page: str) -> tuple[list[str], dict[str, Any]]:
    """Return the printed command, split as by a shell, and the printed answer."""
    command, answer = re.findall(r'<pre class="(?:command|answer)"[^>]*>(.*?)</pre>', page, re.DOTALL)
    return shlex.split(unescape(command)), json.loads(unescape(answer))


def tried(service: Running) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the printed request, the printed answer, and the answer of the service."""
    with service.client() as client:
        words, answer = printed(client.get("/docs").body.decode())
        curl, quiet, address, header, kind, data, body = words
        assert (curl, quiet, header, kind, data) == ("curl", "-s", "-H", "content-type: application/json", "-d")
        assert address == f"http://127.0.0.1:{service.port}/rank"
        found = client.post("/rank", body.encode())
    assert found.code == 200
    return json.loads(body), answer, found.json


@pytest.mark.service
def test_printed_call_is_an_example_and_returns_the_printed_answer() -> None:
    with running(platform_bundle()) as service:
        request, answer, found = tried(service)
    assert {name: value for name, value in request.items() if name != "k"} in requests()
    assert set(answer["milliseconds"]) == set(found["milliseconds"])
    assert (answer["model"], answer["ids"], answer["unknown"]) == (found["model"], found["ids"], found["unknown"])
    assert answer["scores"] == pytest.approx(found["scores"], abs=1e-5)
    assert list(answer) == list(found)


@pytest.mark.service
def test_without_the_page_the_printed_call_is_invented() -> None:
    with running(platform_bundle(), page=False) as service:
        request, answer, found = tried(service)
        with service.client() as client:
            page = client.get("/docs").body.decode()
    assert set(request["user"]) == set(requests()[0]["user"])
    assert request["sequences"]["history"]
    assert not any(kept["time"] in page for kept in requests())
    assert not any(request["user"] == kept["user"] for kept in requests())
    assert {name: type(value) for name, value in answer.items()} == {name: type(found[name]) for name in found}
    assert len(answer["ids"]) == len(answer["scores"]) == len(found["ids"])


@pytest.mark.service
@pytest.mark.parametrize("host", ["$(id)", "x'y", "x" * 300])
def test_unusual_host_header_is_not_printed(host: str) -> None:
    with running(platform_bundle()) as service, service.client() as client:
        page = client.call("GET", "/docs", host=host).body.decode()
        assert printed(page)[0][2] == f"http://127.0.0.1:{service.port}/rank"
        named = client.call("GET", "/docs", host="ranks.example:81").body.decode()
        assert printed(named)[0][2] == "http://ranks.example:81/rank"


RULES: dict[str, Any] = {
    "time": {"unit": "ms"},
    "ignored": ["user.old"],
    "user": {
        "name": {"kind": "categorical", "rows": 9, "ids": "vocabulary", "text": True},
        "number": {"kind": "categorical", "rows": 9, "ids": "vocabulary", "text": False},
        "bucket": {"kind": "categorical", "rows": 9, "ids": "hash", "text": False},
        "hashed": {"kind": "categorical", "rows": 9, "ids": "hash", "text": True},
        "id": {"kind": "categorical", "rows": 9, "ids": "numbers"},
        "born": {"kind": "time", "unit": "s", "rows": 9, "of_request": False},
        "price": {"kind": "dense", "size": 1, "rows": None, "missing": None},
        "vector": {"kind": "dense", "size": 3, "rows": None, "missing": None},
    },
    "context": {"hour": {"kind": "time", "unit": "ms", "rows": 24, "of_request": True}},
    "sequences": {
        "bought": {
            "features": {"cost": {"kind": "dense", "size": 1, "rows": None, "missing": 0.0}},
            "ignored": ["shop"],
            "max_length": 5,
        }
    },
}


class Items:
    """Nine items whose ids are text."""

    def __len__(self) -> int:
        return 9

    def ids(self, rows: Any) -> list[str]:
        return [f"item {row}" for row in rows]


def served(*kept: dict[str, Any]) -> ServedBundle:
    """A bundle with features of every kind, which computes nothing."""
    bundle = SimpleNamespace(
        examples=lambda: list(kept),
        schema=lambda: request_schema(RULES),
        quotas=[40, 20],
        names=["a", "b"],
        items=Items(),
    )
    return cast("ServedBundle", SimpleNamespace(bundle=bundle, model="0123456789ab"))


def test_invented_request_has_a_value_for_every_kind_of_feature() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    request = json.loads(shlex.split(docs_example(served(), real=True).command)[-1])
    assert request.pop("k") == 3
    jsonschema.Draft202012Validator(request_schema(RULES)).validate(request)
    assert set(request["user"]) == set(RULES["user"])
    assert request["context"] == {}  # the hour follows from the time
    assert "time" in request
    assert len(request["sequences"]["bought"]) == 1


def test_command_quotes_any_text_for_the_shell() -> None:
    texts = ["it's", '"$(id)"', "`id`\n\\", "ä 🙂", "http://ADDRESS"]
    kept = {"request": {"user": {"name": texts}}, "ids": ["x", "y"], "scores": [2.0, 1.0]}
    made = docs_example(served(kept), real=True)
    assert made.is_real
    assert json.loads(shlex.split(made.command)[-1]) == {"user": {"name": texts}, "k": 3}
    assert made.command.startswith("curl -s 'http://ADDRESS/rank' ")
    assert json.loads(made.answer)["ids"] == ["x", "y"]
