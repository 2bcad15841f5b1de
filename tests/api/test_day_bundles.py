"""Bundles after each day of a stream: they hold the weights of the day, also after kills and restarts."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

pytest.importorskip("onnx", reason="needs the extra serve")
pytest.importorskip("onnxscript", reason="needs the extra serve")
pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

import numpy as np
import pyarrow as pa
import torch

import rankfall as rf
from rankfall.api.studies import DayBundles
from rankfall.cascade import Cascade
from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.serving import Bundle
from rankfall.simulation.simulate import Simulation, append_days, simulate_log
from rankfall.studies.results import StreamResult
from reporting.test_report import Page
from studies.stream.test_run_stream import start, stopped, wait_for
from support.command_line import run as command
from support.streams import stream_content, stream_outcome, streamed
from support.week_log import WEEK, log_of

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions
    from support.forks import Fork, Forks

# modules that a fork would import to export
EXPORTING = ("rankfall.serving.export.export_run", "torch.onnx._internal.exporter._core", "onnxscript.optimizer")
PLATFORM: dict[str, Any] = {"preset": "tiny", "requests_per_day": 30, "seed": 3}


def content(log: Path) -> dict[str, Any]:
    """Return a configuration with one stage that is quick to export and is trained with random noise."""
    topk = {"name": "neural_sort", "gumbel_samples": 2, "tau": 5.0}
    return {
        "data": {"path": str(log)},
        "relevant": 5,
        "stages": [{"name": "only", "quota": 10, "model": {"kind": "two_tower", "hidden": [8], "dim": 4}}],
        "objective": {"name": "lcron", "topk": topk},
        "training": {"batch": 8},
    }


def weights_of(out: Path, day: str) -> Path:
    return out / f"runs/lcron-0/days/{day}.safetensors"


def request_of(batch: Impressions, place: int) -> dict[str, Any]:
    """Return a request of the log with encoded ids, as some of its items are newer than the tables of raw values."""
    history, real = batch.sequences["history"], batch.sequence_mask["history"][place]
    events = {name: [{"id": number} for number in values[place][real].tolist()] for name, values in history.items()}
    return {
        "time": int(batch.time[place]),
        "user": {name: {"id": int(values[place])} for name, values in batch.user.items()},
        "sequences": {"history": events},
    }


def check_bundle(out: Path, log: Path, day: str) -> Bundle:
    """Check that the bundle answers, and scores like the stored weights of the day."""
    bundle = Bundle.load(out / "bundles/lcron" / day)
    bundle.check()
    batch = next(iter(ImpressionLoader(ImpressionLog.load(log), day, batch=4, shuffle=False)))
    with torch.no_grad():
        (expected,) = Cascade.load(weights_of(out, day)).eval()(batch)
    for place in range(4):
        candidates = batch.item[place][batch.mask[place]].tolist()
        scores = bundle.score(request_of(batch, place), candidates)["only"]
        assert np.allclose(scores, expected[place][batch.mask[place]], atol=1e-5)
    return bundle


def written(out: Path) -> dict[str, int]:
    """Return the existing bundles and the times when they were written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("bundles/lcron/*/manifest.json")}


# --- with --follow --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xdist_group("forks")
def test_following_writes_a_bundle_after_each_day_also_after_a_kill(forks: Forks, tmp_path: Path) -> None:
    log, out, config = tmp_path / "log", tmp_path / "out", tmp_path / "stream.yaml"
    simulate_log(Simulation(days=1, **PLATFORM), log)
    config.write_text(yaml.safe_dump(content(log)))

    def follow(*options: str) -> Fork:
        return start(forks, config, out, "--bundles", "2", *options, first=EXPORTING)

    process = follow()
    for number in (1, 2):
        wait_for(lambda number=number: WEEK[number - 1] in written(out), process)  # type: ignore[misc]
        check_bundle(out, log, WEEK[number - 1])
        append_days(Simulation(days=number + 1, **PLATFORM), log)
    half = f"bundles/lcron/.{WEEK[2]}.*.unfinished"
    wait_for(lambda: any(out.glob(half)), process)  # trained on, and not exported yet
    process.kill()
    process.communicate()
    before = written(out)
    assert sorted(before) == WEEK[:2]
    assert any(out.glob(half))

    process = follow("--resume")
    wait_for(lambda: len(list((out / "bundles/lcron").iterdir())) == 2 and WEEK[2] in written(out), process)
    stopped(process, signal.SIGTERM)
    assert sorted(written(out)) == WEEK[1:3]
    assert written(out)[WEEK[1]] == before[WEEK[1]]
    assert check_bundle(out, log, WEEK[2]).manifest["source"]["metrics"]["stream"]["day"] == WEEK[2]


# --- without --follow -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate_log(Simulation(days=3, **PLATFORM), tmp_path_factory.mktemp("stream") / "log").path


def seen_on(log: ImpressionLog, days: list[str]) -> set[int]:
    tables = [log.days[day].table() for day in days]
    return {
        item for table in tables for name in ("item", "left_out") for row in table[name].to_pylist() for item in row
    }


@pytest.mark.slow
def test_bundles_hold_the_items_of_the_day_and_do_not_change_training(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    streamed(content(log), out, on_day=DayBundles(out / "bundles", 2))
    assert sorted(written(out)) == WEEK[1:3]
    opened = ImpressionLog.load(log)
    everything = set(opened.items()["item"].to_pylist())
    later = seen_on(opened, WEEK[2:3]) - seen_on(opened, WEEK[:2])
    assert later
    for day, expected in ((WEEK[1], everything - later), (WEEK[2], everything)):
        assert set(check_bundle(out, log, day).items.lookup.values.to_pylist()) == expected

    streamed(content(log), tmp_path / "without")
    for path in out.glob("runs/*/days/*.safetensors"):
        path.unlink()
    assert stream_outcome(out) == stream_outcome(tmp_path / "without")


@pytest.mark.slow
def test_bundles_may_hold_the_items_of_a_file(log: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "items.arrow"
    some = ImpressionLog.load(log).items().slice(20, 300)
    with pa.OSFile(str(file), "wb") as opened, pa.ipc.new_file(opened, some.schema) as writer:
        writer.write_table(some)
    two_days = content(log) | {"data": {"path": str(log), "days": f"{WEEK[0]}..{WEEK[1]}"}}
    streamed(two_days, out, on_day=DayBundles(out / "bundles", 1, items=file))
    bundle = Bundle.load(out / "bundles/lcron" / WEEK[1])
    bundle.check()
    assert bundle.items.lookup.values.to_pylist() == some["item"].to_pylist()


def test_items_of_bundles_need_bundles(log: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"items: found items\.arrow without bundles"):
        rf.stream(content(log), tmp_path / "out", items="items.arrow")


@pytest.mark.slow
def test_only_missing_bundles_are_written(log: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", content(log)
    streamed(whole | {"seeds": [0, 1]}, out)  # without bundles
    bundles = DayBundles(out / "bundles", 1)
    streamed(whole | {"seeds": [0, 1]}, out, resume=True, on_day=bundles)
    before, place = written(out), out / "bundles/lcron" / WEEK[2]
    assert list(before) == WEEK[2:3]
    check_bundle(out, log, WEEK[2])
    streamed(whole | {"seeds": [0, 1]}, out, resume=True, on_day=bundles)
    assert written(out) == before
    manifest = (place / "manifest.json").read_bytes()
    place.rename(out / "elsewhere")
    streamed(whole | {"seeds": [0, 1]}, out, resume=True, on_day=bundles)
    assert (place / "manifest.json").read_bytes() == manifest
    assert not list(out.glob("runs/lcron-1/days/*.safetensors"))

    before = written(out)
    (out / "runs").rename(out / "lost")  # so that all days are trained on again
    streamed(whole, out, resume=True, on_day=DayBundles(out / "bundles", 3))
    assert written(out) == before  # a service never returns to an older day


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_training_continues_after_a_refused_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    log = log_of(tmp_path / "log", range(2))  # the price of an item differs between impressions
    methods: dict[str, Any] = {"LCRON": {}} | ({"BCE": {"objective": {"name": "bce"}}} if jobs == 1 else {})
    config, out = tmp_path / "stream.yaml", tmp_path / "out"
    config.write_text(json.dumps(stream_content(log) | {"methods": methods}))
    assert command("stream", config, "--out", out, "--bundles", "1", "--jobs", str(jobs)) == 1
    printed = capsys.readouterr().err
    result = StreamResult.load(out / "stream.json")
    assert result.learned == WEEK[:2]
    assert not result.failed
    assert [one.method for one in result.refused] == list(methods)
    for method, one in zip(methods, result.refused, strict=True):
        assert f"no bundle of {WEEK[1]}: item.price depends on the request" in one.message
        assert f"note: {method}, seed 0: {one.message}" in printed
        assert f"error: {method}, seed 0: {one.message}" in printed
    assert not list(out.glob("bundles/*/*"))
    assert "Bundles that were not written" in Page(out / "report.html").headings


def test_a_missing_extra_is_reported_at_once(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rankfall.serving.export.export_run", None)
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(content(log)))
    assert command("stream", tmp_path / "stream.yaml", "--out", tmp_path / "out", "--bundles", "1") == 1
    printed = capsys.readouterr().err
    assert (
        "error: --bundles needs rankfall.serving.export.export_run, which is not installed: pip install 'rankfall"
        in printed
    )
    assert not (tmp_path / "out").exists()
