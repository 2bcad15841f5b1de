"""The recall that an export measures is that of `evaluate` over all items and that of the HTTP service."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("onnx", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.data import ImpressionLoader
from rankfall.serving import Bundle
from rankfall.serving.export.measure_bundle import Reactions, RequestSample, RunFigure, measure_bundle, run_figure
from rankfall.studies.evaluate import evaluate_run
from support.bundles import DAYS, RANKING, RETRIEVAL, exported, made_once, platform_log, raw_request, trained
from support.command_line import run
from support.services import running

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data import Impressions

PRERANK = {"name": "prerank", "quota": 250, "model": {"kind": "mlp", "hidden": [8], "dim": 4}}
STAGES = [RETRIEVAL | {"quota": 500}, PRERANK, RANKING | {"quota": 100}]


@cache
def three_stages() -> Path:
    """Return the run of a cascade of three stages on the platform."""
    log = platform_log().path
    data = {"path": str(log), "train": DAYS[0], "valid": DAYS[1], "test": DAYS[2], "length": 600}
    return made_once("run-3", lambda out: trained(log, out, STAGES, data=data))


@cache
def bundle_of_three() -> Path:
    """Return the bundle of that run with the items that occur in an impression, which `evaluate` ranks.

    The item table of a simulated log also has items that were only ever among those that were not sampled.
    """
    days = platform_log().days.values()
    found = {item for day in days for items in day.table()["item"].to_pylist() for item in items}
    found |= {item for day in days for items in day.table()["left_out"].to_pylist() for item in items}
    items = platform_log().items()
    occur = items.filter(pa.array([item in found for item in items["item"].to_pylist()]))

    def export(out: Path) -> None:
        pq.write_table(occur, out.with_suffix(".parquet"))
        exported(three_stages(), out, "--items", str(out.with_suffix(".parquet")))

    return made_once("bundle-3", export)


def measured_in(path: Path) -> dict[str, Any]:
    measured: dict[str, Any] = json.loads((path / "manifest.json").read_text())["measured"]
    return measured


def truth_by_hand(impressions: Impressions, place: int, relevant: int = 5) -> set[int]:
    """Return the best relevant items of an impression: by relevance, then by grade."""
    items = [
        (float(impressions.relevance[place, at]), int(impressions.grade[place, at]), int(impressions.item[place, at]))
        for at in range(impressions.item.shape[1])
        if impressions.mask[place, at] and impressions.relevance[place, at] > 0
    ]
    best = sorted(items, reverse=True)[:relevant]
    assert len({one[:2] for one in items}) == len(items)  # no ties, which would share places
    return {item for _, _, item in best}


@pytest.mark.slow
@pytest.mark.service
def test_evaluation_over_all_items_equals_the_http_service() -> None:
    """The same requests by three ways: PyTorch over all items, the export, and raw requests to the service."""
    measured = measured_in(bundle_of_three())
    summary = evaluate_run(three_stages(), overrides=["data.length=all"]).summary()
    assert summary.lists is not None
    assert summary.lists.catalogue == measured["items"]
    assert measured["requests"] == summary.impressions == 60
    assert measured["joint_recall"]["value"] == pytest.approx(summary.metrics["joint_recall"])
    assert 0 < measured["joint_recall"]["value"] < 1
    assert summary.funnel is not None
    for here, there in zip(measured["stages"], summary.funnel, strict=True):
        assert (here["stage"], here["quota"]) == (there.stage, there.quota)
        assert here["survived"]["value"] == pytest.approx(there.survived.value)
        assert here["kept"]["value"] == pytest.approx(there.kept.value)
        assert here["chance"] == pytest.approx(there.chance)

    impressions = next(iter(ImpressionLoader(platform_log(), DAYS[2], batch=60, shuffle=False)))
    left: list[list[float]] = []
    with running(bundle_of_three()) as service, service.client() as client:
        for place in range(60):
            answer = client.post("/rank?explain=true", raw_request(impressions, place)).json
            truth = truth_by_hand(impressions, place)
            kept = [set(stage["ids"][: stage["kept"]]) for stage in answer["stages"]]
            assert set(answer["ids"]) == kept[-1]
            left.append([len(truth & of) / len(truth) for of in kept])
    np.testing.assert_allclose(
        np.mean(left, axis=0), [stage["survived"]["value"] for stage in measured["stages"]], atol=1e-6
    )


def test_figures_of_stages_add_up() -> None:
    measured = measured_in(bundle_of_three())
    stages, recall = measured["stages"], measured["joint_recall"]
    assert np.prod([stage["kept"]["value"] for stage in stages]) == pytest.approx(recall["value"])
    assert sum(stage["lost"]["value"] for stage in stages) == pytest.approx(1 - recall["value"])
    assert sum(stage["loss_share"]["value"] for stage in stages) == pytest.approx(1)
    assert recall["low"] < recall["value"] < recall["high"]
    assert [stage["entered"] for stage in stages] == [measured["items"], 500, 250]
    assert (measured["not_exported"], measured["index_recall"]) == (0, 1.0)
    # a run that was trained and not evaluated: the recall of its best epoch on the validation day, on lists of 600
    best = json.loads((three_stages() / "result.json").read_text())["best_metric"]
    assert measured["run"] == {"joint_recall": best, "list_length": 600, "split": "valid"}


@pytest.mark.slow
def test_intervals_are_over_users_as_in_an_evaluation() -> None:
    measured = measured_in(bundle_of_three())
    summary = evaluate_run(three_stages(), overrides=["data.length=all"]).summary()
    assert measured["resampled"] == summary.resampled == "users"
    low, high = summary.intervals["joint_recall"]
    assert [measured["joint_recall"][end] for end in ("low", "high")] == pytest.approx([low, high], abs=0.01)
    bundle = Bundle.load(bundle_of_three())
    best = bundle.examples()[0]["ids"]
    sample = sample_of(bundle, np.ones(3), best[:3])
    assert sample.reactions is not None
    sample = sample._replace(reactions=replace(sample.reactions, request=np.arange(3)))
    assert not np.isnan(measure_bundle(bundle, sample, None).joint_recall.low)  # type: ignore[union-attr]
    alike = measure_bundle(bundle, sample._replace(users=np.array([7, 7, 7])), None)
    assert np.isnan(alike.joint_recall.low)  # type: ignore[union-attr]  # one user says nothing about others


def test_relevant_items_that_are_not_exported_are_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = platform_log().items()
    pq.write_table(items.slice(0, len(items) // 2), tmp_path / "half.parquet")
    out = tmp_path / "bundle"
    options = ["--stage", "retrieval", "--items", str(tmp_path / "half.parquet"), "--out", str(out)]
    assert run("export", str(three_stages()), *options) == 0
    measured = measured_in(out)
    assert measured["run"] is None  # one stage is not compared with the whole run
    assert [stage["stage"] for stage in measured["stages"]] == ["retrieval"]
    impressions = next(iter(ImpressionLoader(platform_log(), DAYS[2], batch=60, shuffle=False)))
    half = set(items["item"].to_pylist()[: len(items) // 2])
    truths = [truth_by_hand(impressions, place) for place in range(60)]
    missing = sum(len(truth - half) for truth in truths)
    assert (measured["relevant"], measured["not_exported"]) == (300, missing)
    assert 0 < missing < 300
    # what the service returns, item by item
    served = Bundle.load(out).rank([raw_request(impressions, place) for place in range(60)])
    found = [len(truth & set(ranking.ids)) / 5 for truth, ranking in zip(truths, served, strict=True)]
    assert measured["joint_recall"]["value"] == pytest.approx(np.mean(found))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{missing} of 300 relevant items are not exported; they count as lost by the first stage" in printed
    assert f"over {len(half):,} items, on 60 requests with relevant items" in printed


def sample_of(bundle: Bundle, share: NDArray[np.float64], ids: list[int]) -> RequestSample:
    """Return the first examples of a bundle as a sample whose first request has these relevant items."""
    requests = bundle.encode([example["request"] for example in bundle.examples()[:3]])
    none = np.zeros(len(ids), np.float32)
    rows = bundle.items.rows(ids)
    reactions = Reactions(np.zeros(len(ids), np.int64), rows, pa.array(ids), share, none, {})
    return RequestSample(requests, np.zeros(3, np.int64), reactions)


def test_ties_at_the_cut_share_their_places_and_requests_without_truth_do_not_count() -> None:
    bundle = Bundle.load(bundle_of_three())
    best = bundle.examples()[0]["ids"]
    absent = 10**9
    figures = measure_bundle(bundle, sample_of(bundle, np.array([1.0, 0.5, 0.5]), [best[0], best[1], absent]), None)
    assert figures is not None
    assert (figures.requests, figures.relevant, figures.not_exported) == (1, 3, 1)
    assert figures.joint_recall.value == pytest.approx(1.5 / 2)
    assert measure_bundle(bundle, sample_of(bundle, np.zeros(1), [best[0]]), None) is None
    assert measure_bundle(bundle, sample_of(bundle, np.zeros(1), [best[0]])._replace(reactions=None), None) is None


def test_figure_of_a_run_is_that_of_its_evaluation() -> None:
    lists = {"mean_length": 400.0, "longest": 400, "catalogue": 2000, "all_items": False}
    test = {"metrics": {"joint_recall": 0.5}, "lists": lists}
    training = {"best_metric": 0.4}
    options: dict[str, Any] = {"best_is_recall": True, "list_length": 40.0}
    assert run_figure({"test": test, "training": training}, **options) == RunFigure(0.5, 400.0)
    assert run_figure({"valid": test}, **options) == RunFigure(0.5, 400.0, "valid")
    assert run_figure({"training": training}, **options) == RunFigure(0.4, 40.0, "valid")
    assert run_figure({"training": training}, **options | {"best_is_recall": False}) is None
    assert run_figure({}, **options) is None
