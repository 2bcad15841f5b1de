"""Soaking of a small service, planted errors that it has to find, and its report; invalid bundles."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from benchmarks import services
from benchmarks.answer_check import expected_answers, model_name, wrong_unexpected_items
from rankfall.serving import Bundle
from rankfall.serving.bundle_files import EXAMPLES
from rankfall.storage.manifests import MANIFEST
from support.bundles import platform_bundle
from trials import soak
from trials.invalid_bundles import bad_bundles, seal_again

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("bench serve")  # tests share bundles and measurements
OPTIONS = ("--every", "1", "--rate", "0.05", "--finding", "0.5", "--overload", "0.5")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


@pytest.fixture(scope="module")
def narrower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle with half the quota in the last stage, so that no answer fits both."""
    path = tmp_path_factory.mktemp("narrower") / "bundle"
    shutil.copytree(platform_bundle(), path)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["stages"][-1]["quota"] //= 2
    (path / MANIFEST).write_text(json.dumps(manifest))
    kept = manifest["stages"][-1]["quota"]
    examples = json.loads((path / EXAMPLES).read_text())
    examples = [{**one, "ids": one["ids"][:kept], "scores": one["scores"][:kept]} for one in examples]
    (path / EXAMPLES).write_text(json.dumps(examples))
    seal_again(path)
    Bundle.load(path).check()
    return path


def test_each_bad_bundle_is_refused_with_its_own_reason(bundle: Bundle, tmp_path: Path) -> None:
    reasons = [
        "has changed since",
        "is not a graph: it is damaged",
        "shape",
        "differently than at export",
        "is not a graph that 'rankfall export' writes",
        "items.faiss is not an index that",
    ]
    for path, reason in zip(bad_bundles(bundle.path, tmp_path).values(), reasons, strict=True):
        with pytest.raises(ValueError, match=reason):
            Bundle.load(path).check()
    Bundle.load(bundle.path).check()  # the bad bundles share files with it


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests with long deadlines, so that results do not depend on the speed of the machine."""
    monkeypatch.setattr(services, "POOL", 64)
    monkeypatch.setattr(soak, "DEADLINE", 30_000.0)
    monkeypatch.setattr(soak, "SLOWEST", 30_000.0)
    monkeypatch.setattr(soak, "SENT", 0.0)


@pytest.mark.trial
@pytest.mark.service
@pytest.mark.usefixtures("calm")
def test_soak_swaps_bundles_without_wrong_answers(
    bundle: Bundle, narrower: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = soak.main([str(bundle.path), str(narrower), "--minutes", "0.1", *OPTIONS])
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert code == 0
    assert found["failed"] == found["refused"] == found["verdicts"].get("wrong", 0) == 0
    assert found["answered"] == found["asked"] > 0
    assert found["swaps"]["taken"] >= 2
    assert sum(found["swaps"]["refused"].values()) >= 3
    assert set(found["by_model"]) == {model_name(bundle.manifest), model_name(Bundle.load(narrower).manifest)}
    assert sum(found["overload"]["codes"].values()) > 0


@pytest.mark.trial
@pytest.mark.service
@pytest.mark.usefixtures("calm")
def test_soak_reports_wrong_answers(
    bundle: Bundle, narrower: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answers of one bundle are expected of both, so those of the other are wrong."""
    monkeypatch.setattr(services, "expected_answers", lambda of, *rest: expected_answers(bundle, *rest))
    assert soak.main([str(bundle.path), str(narrower), "--minutes", "0.2", *OPTIONS]) == 1
    err = capsys.readouterr().err
    assert "answers were wrong" in err
    assert "for example wrong, request" in err


@pytest.mark.trial
@pytest.mark.service
@pytest.mark.usefixtures("calm")
def test_soak_scores_unexpected_items(bundle: Bundle, narrower: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected answers have another last item, so the service's last item is unexpected and its score is checked."""

    def with_other_last_item(of: Bundle, *rest: Any) -> list[dict[str, Any]]:
        return [{**one, "ids": [*one["ids"][:-1], 10**12]} for one in expected_answers(of, *rest)]

    monkeypatch.setattr(services, "expected_answers", with_other_last_item)
    reasons: list[str] = []

    def all_are_wrong(bundles: Any, requests: Any, unexpected: list[Any]) -> list[str]:
        reasons.extend(wrong_unexpected_items(bundles, requests, unexpected))
        return ["why"] * len(unexpected)

    monkeypatch.setattr(services, "wrong_unexpected_items", all_are_wrong)
    settings = soak.Settings(minutes=0.02, every=10.0, rate=0.05, finding=0.5, overload=0.5)
    found = soak.soak(bundle.path, narrower, settings, on_step=lambda *step: None)
    assert reasons == []
    assert found.verdicts == {"tied": 0, "wrong": found.answered}
    assert "for example wrong, why" in found.problems


def report_of(**overload: Any) -> soak.Report:
    """Return the report of a good run with these values of the overload."""
    times = services.Spread(1.0, 2.0)
    good: dict[str, Any] = {
        "requests_per_second": 300.0,
        "sent_per_second": 300.0,
        "sent_share": 1.0,
        "unsent": 0,
        "codes": {200: 1000, 503: 2000},
        "slowest_ms": 900.0,
        "answered_ms": times,
        "late_ms": 1.0,
        "verdicts": {"same": 1000},
        "well_after": True,
    }
    return soak.Report(
        bundles=["a", "b"],
        largest_rate=100.0,
        requests_per_second=80.0,
        sent_per_second=80.0,
        sent_share=1.0,
        minutes=1.0,
        asked=4800,
        unsent=0,
        answered=4800,
        refused=0,
        failed=0,
        verdicts={"same": 4790, "tied": 10},
        by_model={"a": 4800},
        call_ms=times,
        slowest_ms=3.0,
        late_ms=1.0,
        swaps=soak.Swaps(),
        memory=None,
        overload=soak.Overload(**good | overload),
        problems=[],
    )


def test_slow_generator_is_reported_before_the_service() -> None:
    assert soak._problems(report_of()) == []
    assert "could not send 7 requests" in soak._problems(report_of(unsent=7, slowest_ms=9000.0))[0]
    generator, service = soak._problems(report_of(sent_share=0.7, sent_per_second=210.0, slowest_ms=9000.0))
    assert generator == "the generator could send only 210 of 300 requests/s, so that the overload was not reached"
    assert "an answer took 9,000 ms" in service


def test_slow_answer_under_load_is_a_problem() -> None:
    (problem,) = soak._problems(replace(report_of(), slowest_ms=6000.0))
    assert problem == "under load an answer took 6,000 ms"


def test_many_ties_are_a_problem() -> None:
    assert soak._problems(report_of(verdicts={"same": 960, "tied": 40})) == []  # 50 of 5,800
    assert len(soak._problems(report_of(verdicts={"same": 940, "tied": 60}))) == 1


def test_growing_memory_is_a_problem() -> None:
    settings = soak.Settings(every=20.0)

    def memory(per_minute: float, without: float, seconds: int = 600) -> soak.Memory | None:
        """A larger bundle in every second interval of 20 s, and less memory at the start."""
        noise = np.random.default_rng(0).normal(size=(seconds, 2))
        steps = [30.0 * (second // 20 % 2) - 200.0 * (second < 90) for second in range(seconds)]
        return soak._memory(
            [
                (float(s), 500.0 + steps[s] + per_minute * s / 60 + a, 200.0 + without * s / 60 + b)
                for s, (a, b) in enumerate(noise)
            ],
            settings,
        )

    level, slow = memory(0.0, 0.0), memory(3.0, 1.0)
    assert level is not None
    assert level.flat
    assert abs(level.whole.per_minute) < 3 * level.whole.error < 1.0
    assert level.whole.megabytes == pytest.approx(515, abs=1)
    assert slow is not None
    assert slow.flat  # 0.6 and 0.5 %
    assert slow.whole.per_minute == pytest.approx(3, abs=0.3)
    for leak in (memory(8.0, 0.0), memory(4.0, 4.0)):  # 1.5 %, and 2 % of the memory without files
        assert leak is not None
        assert not leak.flat
    assert memory(60.0, 60.0, seconds=290) is None  # too short


def test_growth_equals_least_squares() -> None:
    linregress = pytest.importorskip("scipy.stats").linregress
    random = np.random.default_rng(0)
    seconds = np.arange(12) * 40.0
    megabytes = 400 + seconds / 30 + random.normal(size=12)
    found, right = soak._growth(seconds.tolist(), megabytes.tolist()), linregress(seconds, megabytes)
    assert (found.per_minute, found.error) == pytest.approx((60 * right.slope, 60 * right.stderr))
    assert found.is_real == (found.per_minute - 2 * found.error > 0.01 * megabytes.mean())


def test_soak_needs_two_bundles(bundle: Bundle) -> None:
    with pytest.raises(SystemExit, match="found 1 bundles, expected 2"):
        soak.main([str(bundle.path)])
