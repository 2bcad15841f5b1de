"""The bare calls, and the benchmark of a service beside them."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from benchmarks import service as serve
from benchmarks.answer_check import expected_answers
from benchmarks.bare_calls import BareCalls
from rankfall.benchmarks.serve import BATCHES, SETTINGS, requests_like_examples
from rankfall.serving import Bundle
from rankfall.serving.service.settings import default_threads
from support.bundles import platform_bundle

pytestmark = pytest.mark.xdist_group("bench serve")  # tests share bundles and measurements


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


def test_bare_calls_return_the_answers_of_the_bundle(bundle: Bundle) -> None:
    requests = requests_like_examples(bundle, 40)
    bare = BareCalls(bundle)
    rows, scores = bare(bundle.encode(requests).arrays)
    ids = np.array(bundle.items.ids(np.arange(len(bundle.items))))
    for place, answer in enumerate(expected_answers(bundle, requests, lambda count: None)):
        best = np.argsort(-scores[place])[: len(answer["ids"])]
        assert ids[rows[place, best]].tolist() == answer["ids"]
        np.testing.assert_allclose(scores[place, best], answer["scores"], atol=1e-5)
    assert all(seconds > 0 for seconds in bare.seconds.values())
    everything = bare.score_all(bundle.encode(requests[:1]).arrays, len(bundle.items))
    np.testing.assert_allclose(everything[0], bundle.score(requests[0], ids.tolist())["ranking"], atol=1e-5)


@pytest.fixture(scope="module")
def measured(bundle: Bundle) -> serve.Report:
    reports: list[str] = []
    found = serve.measure(bundle.path, seconds=0.6, turns=1, report=reports.append)
    assert len(reports) == serve.steps(1)
    return found


@pytest.mark.trial
@pytest.mark.service
def test_service_and_bare_calls_are_measured(bundle: Bundle, measured: serve.Report) -> None:
    threads = sorted({1, default_threads(workers=1)})
    settings = [(row.threads, row.clients, row.requests_in_call) for row in measured.rows]
    assert settings == [(count, *setting) for count in threads for setting in SETTINGS]
    for row in measured.rows:
        assert row.not_answered == {}
        assert row.requests_per_second > 0
        assert row.parts_ms.keys() == {"queue", *bundle.names}
        assert 0 < row.call_ms.p50 <= row.call_ms.p99
        # a service cannot answer before its stages
        assert row.call_ms.p99 > sum(row.parts_ms[name].p50 for name in bundle.names)
    assert [one.batch for one in measured.bare] == list(BATCHES)
    halves = [(half.threads, half.even) for half in measured.half_rates]
    assert halves == [(whose, even) for whose in (None, *threads) for even in (True, False)]
    for half in measured.half_rates:
        rates = [row.requests_per_second for row in measured.rows if row.threads == half.threads]
        rates = rates or [measured.bare[0].requests_per_second]
        assert half.requests_per_second in [pytest.approx(rate / 2) for rate in rates]
    # bare calls use one thread, so only services with one thread can be compared with them
    assert {row.threads for row in measured.rows if row.overhead is not None} == {1}
    assert measured.score_all is not None
    assert measured.score_all.items == len(bundle.items)


def test_cpu_time_of_bare_calls_excludes_other_threads() -> None:
    """Another thread may draw a progress bar."""

    class Idle:
        seconds: dict[str, float]

        def __call__(self, arrays: Any) -> None:
            time.sleep(0.02)

    ended, turns, idle = threading.Event(), serve._BareTurns(), Idle()

    def spin() -> None:
        while not ended.is_set():
            sum(range(1000))

    spinning = threading.Thread(target=spin)
    spinning.start()
    try:
        serve._bare_turn(cast("BareCalls", idle), [{}], 1, 0.5, turns)
    finally:
        ended.set()
        spinning.join()
    assert turns.cpu_ms[0] < np.mean(turns.walls[0]) / 5


@pytest.mark.trial
@pytest.mark.service
def test_promises_use_full_batches(measured: serve.Report) -> None:
    one = [row for row in measured.rows if row.threads == 1]
    rows = [replace(row, overhead=0.2 if row.requests_in_call == 1 else 0.3) for row in one]
    halves = [replace(measured.half_rates[-1], tail=tail, not_answered={503: 1}) for tail in (3.1, 2.9)]
    met = {what: met for what, _, _, met in serve.promises(replace(measured, rows=rows, half_rates=halves))}
    assert list(met.values()) == [True, False, False, True, False]
    assert "32 x 1" in next(iter(met))


@pytest.mark.trial
@pytest.mark.service
def test_report_has_all_settings(
    bundle: Bundle, measured: serve.Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "measure", lambda path, seconds, report: measured)
    met = all(met for *_, met in serve.promises(measured))
    assert serve.main([str(bundle.path)]) == (0 if met else 1)
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["call_ms"]["p50"] == measured.rows[0].call_ms.p50
    assert all(one.keys() == {"promise", "target", "measured", "met"} for one in found["promises"])
    assert {(row["clients"], row["requests_in_call"]) for row in found["rows"]} == set(SETTINGS)
