"""Recording under load: a small trial, and planted errors that the checks have to find."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from benchmarks import services
from benchmarks.load_client import Outcome
from benchmarks.services import CheckedLoad, MedianRatio, Spread
from rankfall.serving.recording.record_segments import segments
from support.bundles import platform_bundle
from trials import recording
from trials.attack import honest
from trials.recording import RecordCheck, check_records

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("bench serve")


@pytest.fixture(scope="module")
def bundle() -> Path:
    return platform_bundle()


def rows(directory: Path) -> list[dict[str, Any]]:
    return [row for one in segments(directory) for batch in one.batches() for row in batch.to_pylist()]


@pytest.mark.trial
@pytest.mark.service
def test_records_under_load_equal_the_answers(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(services, "POOL", 8)
    monkeypatch.setattr(recording, "SENT", 0.0)  # whatever else the machine does
    options = "--minutes", "0.02", "--window", "1.2", "--rate", "0.1", "--events", "0.5", "--finding", "0.5"
    assert recording.main([str(bundle), *options, "--samples", str(tmp_path / "records")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    off, samples, events = found["measured"]
    assert [one["kind"] for one in (off, samples, events)] == ["off", "samples", "samples and events"]
    for one in (off, samples, events):
        assert one["requests"]["answered"] == one["requests"]["verdicts"]["same"] > 0
    records = found["records"]
    assert records["samples"] >= samples["requests"]["answered"] + events["requests"]["answered"]  # and the warm-up
    assert found["counters"]["samples written"] == records["samples"]
    assert found["counters"]["events written"] == records["events"] == found["events_acknowledged"] > 0
    _check_planted_errors(bundle, tmp_path)


def _check_planted_errors(bundle: Path, directory: Path) -> None:
    """Wrong expectations are found in the records of the run."""
    samples = rows(directory / "records" / "samples")
    answered = [row["request"] for row in samples]
    events = [row["id"] for row in rows(directory / "records" / "events")]
    load = CheckedLoad([bundle], directory, on_step=lambda step, done, total: None)
    found = check_records(directory / "records", load, answered, events)
    assert (found.samples, found.events) == (len(answered), len(events))
    assert found.missing == found.unanswered == found.lost_events == found.repeated == found.wrong == 0
    found = check_records(directory / "records", load, [*answered[1:], "other"], [*events, "other"])
    assert (found.missing, found.unanswered, found.lost_events) == (1, 1, 1)
    (model,) = load.models
    expected = json.loads(load.expected.read_text())
    expected[model][3]["scores"][0] += 1
    load.expected.write_text(json.dumps(expected))
    body = json.dumps(load.requests[3], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    is_planted = [row["body"] == body for row in samples]
    assert check_records(directory / "records", load, answered, events).wrong == sum(is_planted) > 0


def test_what_the_counters_tell_is_a_problem() -> None:
    """A full disk: samples are dropped and counted, events refused; both are told, and nothing else."""
    outcome = Outcome(seconds=1.0, sent=2, latency={200: [1.0, 3.0]}, verdicts={"same": 2})
    same = MedianRatio(1.0, None, None)
    measured = [recording.Measured(kind, honest([outcome]), 1.0, same, same, same) for kind in recording.KINDS]

    def report(dropped: float, missing: int) -> recording.Report:
        return recording.Report(
            bundle="small",
            items=10,
            largest_rate=10.0,
            requests_per_second=6.0,
            measured=measured,
            events_acknowledged=5,
            events_refused={"503": 2},
            event_ms=Spread(1.0, 2.0),
            counters={"samples dropped": dropped},
            records=RecordCheck(missing=missing),
            memory={},
            load_average=[1.0],
        )

    told = recording._problems(report(3.0, 3))
    assert told == ["3 samples were dropped", "2 events were not acknowledged: {'503': 2}"]
    assert "4 samples are missing, but 3 were counted as dropped" in recording._problems(report(3.0, 4))
