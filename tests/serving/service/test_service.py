"""Routes of the service: answers, errors, tokens, and the command that starts it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

import pytest

from support.bundles import platform_bundle, platform_run
from support.command_line import run
from support.services import (
    TOKEN,
    Client,
    Program,
    Running,
    loaded,
    model_of,
    ranking_bundle,
    requests,
    running,
    spoiled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rankfall.serving import Ranking

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(platform_bundle(), other=ranking_bundle()) as service:
        yield service


@pytest.fixture
def client(served: Running) -> Iterator[Client]:
    with served.client() as client:
        yield client


def same(found: dict[str, Any], expected: Ranking) -> None:
    """Check that an answer equals that of a bundle."""
    assert found["ids"] == expected.ids
    assert found["scores"] == pytest.approx(expected.scores, abs=1e-5)
    assert found["unknown"] == expected.unknown
    assert [stage["ids"] for stage in found.get("stages", [])] == [stage.ids for stage in expected.stages or []]
    for stage, trace in zip(found.get("stages", []), expected.stages or [], strict=True):
        assert (stage["name"], stage["kept"]) == (trace.name, trace.kept)
        assert stage["scores"] == pytest.approx(trace.scores, abs=1e-5)
        assert stage["threshold"] == pytest.approx(trace.threshold, abs=1e-5)


# --- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"k": 3},
        {"candidates": [5, 8, 13, 10**9, 21], "k": 2},
        {"candidates": []},
        {"exclude": [1, 2, 3, 10**12]},
        {"explain": True},
        {"candidates": [5, 8, 13], "exclude": [8], "explain": True},
        {"k": None, "candidates": None, "exclude": None, "explain": None, "bundle": None, "deadline": None},
    ],
    ids=str,
)
def test_answer_equals_that_of_the_bundle(client: Client, wishes: dict[str, Any]) -> None:
    bundle = loaded(platform_bundle())
    for request in requests()[:3]:
        answer = client.post("/rank", {**request, **wishes})
        known = {name: value for name, value in wishes.items() if name in ("k", "candidates", "exclude")}
        assert answer.code == 200
        assert answer.json["model"] == model_of(platform_bundle())
        assert set(answer.json["milliseconds"]) == {"queue", *bundle.names}
        same(answer.json, bundle.rank(request, explain=bool(wishes.get("explain")), **known))


def test_query_parameter_requests_the_funnel(client: Client) -> None:
    request = requests()[0]
    expected = loaded(platform_bundle()).rank(request, explain=True)
    same(client.post("/rank?explain=true", request).json, expected)
    assert "stages" not in client.post("/rank?explain=false", request).json
    assert client.post("/rank?explain=maybe", request).json["field"] == "explain"
    assert "did you mean 'explain'" in client.post("/rank?explan=true", request).json["error"]


@pytest.mark.parametrize("explain", [False, True])
def test_several_requests_in_one_call(client: Client, explain: bool) -> None:
    several = requests()
    wishes: list[dict[str, Any]] = [{"k": 2}, {"candidates": [3, 4, 5]}, {"exclude": [956]}]
    wishes += [{}] * (len(several) - len(wishes))
    calls = [{**request, **wish} for request, wish in zip(several, wishes, strict=True)]
    answer = client.post("/rank", {"requests": calls, "explain": explain})
    expected = loaded(platform_bundle()).rank(
        several,
        k=[wish.get("k") for wish in wishes],
        candidates=[wish.get("candidates") for wish in wishes],
        exclude=[wish.get("exclude") for wish in wishes],
        explain=explain,
    )
    assert answer.code == 200
    assert len(answer.json["rankings"]) == len(expected)
    for found, ranking in zip(answer.json["rankings"], expected, strict=True):
        same(found, ranking)


def test_query_parameter_selects_the_other_bundle(client: Client) -> None:
    answer = client.post("/rank", {**requests()[0], "bundle": "other", "explain": True})
    assert answer.json["model"] == model_of(ranking_bundle()) != model_of(platform_bundle())
    same(answer.json, loaded(ranking_bundle()).rank(requests()[0], explain=True))


def test_scores_of_candidates(client: Client) -> None:
    request, candidates = requests()[0], [5, 10**9, 8]
    answer = client.post("/score", {**request, "candidates": candidates})
    expected = loaded(platform_bundle()).score(request, candidates)
    assert set(answer.json["scores"]) == set(expected)
    for stage, scores in answer.json["scores"].items():
        assert scores[1] is None  # unknown item
        assert scores[::2] == pytest.approx(expected[stage][::2], abs=1e-5)
    assert client.post("/score", request).json["field"] == "candidates"


def test_concurrent_calls_get_their_own_answers(served: Running) -> None:
    bundle = loaded(platform_bundle())
    asked: list[dict[str, Any]] = [
        {"user": {"user_id": user, "age": user % 8}, "k": 1 + user % 10} for user in range(96)
    ]
    expected = [bundle.rank({"user": one["user"]}, k=one["k"]) for one in asked]

    def ask(own: list[int]) -> None:
        with served.client() as client:
            for number in own:
                same(client.post("/rank", asked[number]).json, expected[number])

    with served.client() as client, ThreadPoolExecutor(12) as pool:
        before = client.metric("rankfall_batch_requests_sum"), client.metric("rankfall_batch_requests_count")
        list(pool.map(ask, [list(range(start, 96, 12)) for start in range(12)]))
        after = client.metric("rankfall_batch_requests_sum"), client.metric("rankfall_batch_requests_count")
    assert after[0] - before[0] == 96
    assert after[1] - before[1] < 96  # some calls shared a batch


# --- information ----------------------------------------------------------------------------------------------------


def test_health_readiness_and_models(client: Client) -> None:
    bundle = loaded(platform_bundle())
    assert client.get("/health").json == {"status": "ok"}
    assert client.get("/ready").json == {"status": "ready", "model": model_of(platform_bundle())}
    bundles = client.get("/model").json["bundles"]
    assert {slot: about["model"] for slot, about in bundles.items()} == {
        "main": model_of(platform_bundle()),
        "other": model_of(ranking_bundle()),
    }
    main = bundles["main"]
    assert main["path"] == platform_bundle().name
    assert main["items"] == len(bundle.items)
    assert [(stage["name"], stage["quota"]) for stage in main["stages"]] == list(
        zip(bundle.names, bundle.quotas, strict=True)
    )
    assert main["schema"] == bundle.schema()
    assert str(platform_bundle().parent) not in client.get("/model").body.decode()


def test_examples_equal_those_of_the_bundle(client: Client) -> None:
    bundle = loaded(platform_bundle())
    known = [{key: example[key] for key in ("relevant", "feedback")} for example in bundle.examples()]
    assert client.get("/examples").json == {"examples": requests(), "known": known}
    assert all(of["relevant"] for of in known)
    assert client.get("/examples?bundle=other").json["examples"]
    answer = client.get("/examples?bundle=third")
    assert (answer.code, answer.json["field"]) == (422, "bundle")


def test_attributes_of_items(client: Client) -> None:
    bundle = loaded(platform_bundle())
    ids = [5, 10**9, 8, 5]
    answer = client.post("/items", {"ids": ids}).json
    assert answer == {
        "model": model_of(platform_bundle()),
        "known": [True, False, True, True],
        "display": bundle.items.display(bundle.items.rows(ids)),
    }
    assert set(answer["display"]) == {"author_id", "category_level_two", "category_level_one"}
    assert answer["display"]["author_id"][1] is None
    assert client.post("/items", {"ids": [], "bundle": "other"}).json["known"] == []
    wrong = [({}, "ids"), ({"ids": [1, "x"]}, "ids[1]"), ({"ids": [0] * 10_001}, "ids"), ({"ids": [], "k": 1}, "k")]
    for content, field in [*wrong, ({"ids": [], "bundle": "third"}, "bundle")]:
        refused = client.post("/items", content)
        assert (refused.code, refused.json["field"]) == (422, field)
        assert refused.json["error"].startswith(f"{field}: found ")


def test_answers_note_values_never_seen(client: Client) -> None:
    unseen = {"user": {"user_id": 10**6}}
    note = "user.user_id: 1000000 was never seen in training"
    assert client.post("/rank", unseen).json["notes"] == [note]
    assert "notes" not in client.post("/rank", requests()[0]).json
    several = client.post("/rank", {"requests": [requests()[0], unseen]}).json["rankings"]
    assert [ranking.get("notes") for ranking in several] == [None, [note]]


def test_models_describe_what_was_measured(client: Client) -> None:
    main = client.get("/model").json["bundles"]["main"]
    manifest = loaded(platform_bundle()).manifest
    assert main["measured"] == manifest["measured"]
    assert main["measured"]["items"] == main["items"]
    assert main["display"] == manifest["display"]


def test_metrics_count_calls(client: Client) -> None:
    names = [
        'rankfall_requests_total{code="200",endpoint="/rank"}',
        'rankfall_requests_total{code="422",endpoint="/rank"}',
        'rankfall_request_seconds_count{endpoint="/rank"}',
        'rankfall_stage_seconds_count{stage="retrieval"}',
        'rankfall_requests_total{code="404",endpoint="other"}',
    ]
    before = [client.metric(name) for name in names]
    for _ in range(3):
        assert client.post("/rank", requests()[0]).code == 200
    client.post("/rank", {"k": 0})
    for path in ("/a", "/b"):
        client.get(path)
    assert [client.metric(name) - was for name, was in zip(names, before, strict=True)] == [3, 1, 4, 3, 2]
    assert client.metric(f'rankfall_model_info{{model="{model_of(platform_bundle())}",slot="main"}}') == 1
    assert client.metric("rankfall_queue_requests") == 0


def test_metrics_count_files_of_the_page_as_one_endpoint(client: Client) -> None:
    name = 'rankfall_requests_total{code="200",endpoint="page"}'
    before = client.metric(name)
    for path in ("/", "/page.js", "/page.css"):
        assert client.get(path).code == 200
    assert client.metric(name) == before + 3
    endpoints = set(re.findall(r'endpoint="([^"]*)"', client.get("/metrics").body.decode()))
    assert not {endpoint for endpoint in endpoints if endpoint == "/" or endpoint.endswith((".js", ".css"))}


def test_pages_load_no_external_resources(client: Client) -> None:
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self';")
        for attribute in re.findall(r'(?:src|href)="([^"]*)"', page.body.decode()):
            assert "//" not in attribute
            target = attribute.partition("#")[0]
            assert not target or client.get("/" + target.lstrip("./")).code == 200
        assert "<script>" not in page.body.decode()
        assert "style=" not in page.body.decode()


def test_answers_forbid_sniffing_and_caching(client: Client) -> None:
    for path in ("/health", "/metrics", "/docs", "/openapi.json", "/nothing", "/"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_page_can_be_disabled() -> None:
    with running(platform_bundle(), page=False) as service, service.client() as client:
        assert [client.get(path).code for path in ("/", "/page.js", "/examples")] == [404, 404, 404]
        assert client.post("/items", {"ids": []}).code == 404
        assert client.post("/score", {}).code == 404
        assert "/score" not in client.get("/openapi.json").json["paths"]
        assert client.get("/docs").code == 200
        assert client.post("/rank", {"bundle": "other"}).json["field"] == "bundle"  # the service has no other bundle


# --- the token ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ä"]
)
def test_wrong_token_is_refused(client: Client, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    answer = client.post("/reload", {"path": str(ranking_bundle())}, **headers)
    assert answer.code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())


def test_reload_is_disabled_without_a_token() -> None:
    with running(platform_bundle(), token=None) as service, service.client() as client:
        assert client.reload(ranking_bundle()).code == 403
        assert client.post("/rank", {}).json["model"] == model_of(platform_bundle())


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({}, "path"),
        ({"path": 3}, "path"),
        ({"path": "x", "bundle": "third"}, "bundle"),
        ({"path": "x", "y": 1}, "y"),
    ],
)
def test_error_of_a_reload_names_the_field(client: Client, content: dict[str, Any], field: str) -> None:
    answer = client.post("/reload", content, authorization=f"Bearer {TOKEN}")
    assert (answer.code, answer.json["field"]) == (422, field)


# --- the command ----------------------------------------------------------------------------------------------------


def test_command_prints_address_and_bundle() -> None:
    with Program(platform_bundle()) as program:
        assert model_of(platform_bundle()) in program.line
        assert "retrieval 25 -> ranking 10" in program.line
        with program.client() as client:
            same(client.post("/rank", requests()[0]).json, loaded(platform_bundle()).rank(requests()[0]))
        code, log = program.end()
        assert code == 0
        assert "Traceback" not in log


def test_bad_bundle_is_an_error_before_the_port_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(socket, "create_server", lambda *arguments, **options: opened.append(arguments))
    bad = spoiled(platform_bundle(), tmp_path / "bad")
    (tmp_path / "empty").mkdir()
    for path, word in (
        (bad, "answers its example 0 differently"),
        (tmp_path / "empty", "empty is a directory without bundles"),
        (tmp_path / "missing", "missing does not exist"),
        (bad / "examples.json", "is a file, expected a bundle"),
        (platform_run(), f"is a run, expected a bundle; first run: rankfall export {platform_run()} --out"),
    ):
        assert run("serve", path) == 1
        errors = capsys.readouterr().err
        assert word in errors
        assert f"error: bundle: {path}" in errors
        assert run("serve", platform_bundle(), "--other", path) == 1
        assert f"error: other: {path}" in capsys.readouterr().err
    for path in (tmp_path / "missing", platform_run(), bad):  # paths that never become directories of bundles
        assert run("serve", path, "--watch") == 1
    assert not opened


def test_port_in_use_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("serve", platform_bundle(), "--port", str(port)) == 1
    assert (
        f"cannot listen on 127.0.0.1 {port}: the address is in use; stop the other process" in capsys.readouterr().err
    )


@pytest.mark.parametrize("content", ["", "\n", "two words", "ä"])
def test_invalid_token_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "token").write_text(content)
    assert run("serve", platform_bundle(), "--token-file", tmp_path / "token") == 1
    assert "found no valid token" in capsys.readouterr().err


def test_unreadable_token_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "nofile", tmp_path, tmp_path / "bytes"):
        assert run("serve", platform_bundle(), "--token-file", path) == 1
        assert f"error: token-file: {path} " in capsys.readouterr().err


@pytest.mark.parametrize("package", ["uvicorn", "prometheus_client", "orjson", "starlette"])
def test_missing_package_is_named_before_the_service_starts(
    package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotInstalled(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [NotInstalled(), *sys.meta_path])
    for name in list(sys.modules):
        if name.startswith("rankfall.serving.service") or name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    assert run("serve", platform_bundle()) == 1
    needs = f"error: serve needs {package}, which is not installed: pip install 'rankfall[serve]'"
    assert capsys.readouterr().err.strip() == needs


def test_help_and_service_import_only_what_they_need() -> None:
    script = """
import sys
from rankfall.cli import main
try:
    main(["serve", "--help"])
except SystemExit:
    pass
print([name for name in ("torch", "polars", "pyarrow", "starlette", "uvicorn") if name in sys.modules])
import rankfall.serving.service.app, rankfall.serving.service.run_service
print([name for name in ("torch", "polars", "onnx", "rankfall.training") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()[-2:]] == [[], []]
