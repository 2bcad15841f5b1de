"""The cost of samples: services with and without them, measured in turns."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from benchmarks import samples
from support.bundles import platform_bundle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.trial
@pytest.mark.service
def test_services_are_measured_with_and_without_samples(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(samples, "POOL", 32)
    monkeypatch.setattr(samples, "SHARES", (None, 1.0))
    monkeypatch.setattr(samples, "CLIENTS", (2,))
    done: list[str] = []
    report = samples.measure(platform_bundle(), seconds=0.3, turns=1, report=done.append)
    assert len(done) == samples.steps(1)
    assert [(row.share, row.clients) for row in report.rows] == [(None, 2), (None, 0), (1.0, 2), (1.0, 0)]
    for row in report.rows:
        assert row.not_answered == row.dropped == 0
        assert row.call_ms.p99 >= row.call_ms.p50 > 0
        assert all(ratio is None or math.isfinite(ratio.value) for ratio in (row.p50, row.p99, row.cpu))
        assert row.p50.value == 1 or row.share is not None
        assert (row.written > 0) == (row.share is not None)

    def measured(path: Path, seconds: float, report: object, found: samples.Report = report) -> samples.Report:
        return found

    monkeypatch.setattr(samples, "measure", measured)
    capsys.readouterr()  # what exporting the bundle printed
    assert samples.main([str(platform_bundle())]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][2]["written"] == report.rows[2].written
