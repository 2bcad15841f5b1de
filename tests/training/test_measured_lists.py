"""The production funnel beside the model, and warnings about lists that are much shorter than the catalogue."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
import yaml

from rankfall.data import ImpressionLoader
from rankfall.studies.compare import compare_methods
from rankfall.studies.comparison_plan import ComparisonConfig
from rankfall.studies.evaluate import evaluate_run
from rankfall.training.cascade_loaders import measuring_loader
from rankfall.training.cascade_metrics import ground_truth
from rankfall.training.checks import trained_labels
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.distributed.group import Group
from rankfall.training.measured_lists import measure_cascade as measure
from rankfall.training.measured_lists import production_left, short_lists
from rankfall.training.methods import train
from rankfall.training.train_cascade import load_run
from support.cascades import content, liked_log
from support.command_line import run
from support.logs import DAYS, ITEMS, random_log, spec
from support.streams import stream_content, streamed

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from rankfall.training.evaluation import EvaluationSummary

QUOTAS = [5, 3]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose relevance is feedback, not the stage of production."""
    path: Path = tmp_path_factory.mktemp("clicks") / "log"
    random_log(path, impressions=40, description=spec(relevant={"column": "click"}), change=_by_click)
    return path


def _by_click(days: dict[str, dict[str, list[list[float]]]]) -> None:
    for columns in days.values():
        columns["relevance"] = [list(values) for values in columns["feedback.click"]]


def left_by_loops(depth: list[int], rank: list[int], truth: list[float], quota: int) -> float | None:
    """Return the share of the ground truth among the first items of production, by sorting."""
    wanted = {place for place, value in enumerate(truth) if value}
    order = sorted(range(len(depth)), key=lambda place: (-depth[place], rank[place]))
    return len(wanted & set(order[:quota])) / len(wanted) if wanted else None


def test_production_is_its_own_order_cut_at_the_quotas(clicks: Path) -> None:
    loader = ImpressionLoader(clicks, DAYS[1], batch=16, shuffle=False)
    compared = 0
    for batch in loader:
        batch.rank[batch.depth < 0] = 50 + torch.arange(int((batch.depth < 0).sum())).int()  # no ties here
        truth = ground_truth(batch, 2)
        found = production_left(batch, truth, [*QUOTAS, 99])
        for row in range(len(batch)):
            lists = (batch.depth[row].tolist(), batch.rank[row].tolist(), truth[row].tolist())
            expected = [left_by_loops(*lists, quota) for quota in (*QUOTAS, 99)]
            if expected[0] is None:
                assert found[row].isnan().all()
            else:
                compared += 1
                assert found[row].tolist() == pytest.approx(expected)
    assert compared > 20


def test_items_without_a_rank_have_a_random_order(clicks: Path) -> None:
    batch = next(iter(ImpressionLoader(clicks, DAYS[1], batch=40, shuffle=False)))
    batch.rank.fill_(-1)
    batch.depth.fill_(0)
    truth = ground_truth(batch, 2)
    shares = []
    for seed in range(60):
        batch.rows[0] = seed
        shares.append(production_left(batch, truth, [4]).nanmean())
    assert float(torch.stack(shares).mean()) == pytest.approx(4 / 11, abs=0.02)


def test_production_is_measured_beside_the_model(clicks: Path, tmp_path: Path) -> None:
    train(validate_cascade(content(clicks, training={"epochs": 1})), tmp_path / "run")
    summary = evaluate_run(tmp_path / "run").summary()
    assert summary.production is not None
    assert [(stage.stage, stage.quota) for stage in summary.production] == [("retrieval", 5), ("ranking", 3)]
    loader = ImpressionLoader(clicks, DAYS[2], batch=32, shuffle=False)
    left = [production_left(batch, ground_truth(batch, 2), QUOTAS) for batch in loader]
    expected = torch.cat(left).nanmean(0).tolist()
    assert [stage.survived.value for stage in summary.production] == pytest.approx(expected)
    check_within_shown(summary, clicks, tmp_path / "run")
    assert summary.production_note is not None
    assert "favours it" in summary.production_note
    sampled = any(stage.sample is not None for stage in loader.log.spec.stages)
    assert ("The log holds a sample of its items" in summary.production_note) == sampled
    reached = []
    for batch in loader:
        truth = ground_truth(batch, 2)
        for row in range(len(batch)):
            depths = batch.depth[row][truth[row] > 0].tolist()
            reached += [[sum(depth >= least for depth in depths) / len(depths) for least in range(3)]] if depths else []
    shares = [sum(column) / len(reached) for column in zip(*reached, strict=True)]
    for name, share in zip(("dropped", "ranked", "shown"), shares, strict=True):
        assert f"{name} {share:.0%}" in summary.production_note
    # over all items, production's order is the same: it puts items that it did not log last
    every = evaluate_run(tmp_path / "run", overrides=["data.length=all"]).summary()
    assert every.production is not None
    assert [stage.survived.value for stage in every.production] == pytest.approx(expected)
    assert every.production[0].entered == ITEMS
    check_within_shown(every, clicks, tmp_path / "run")  # what was shown does not depend on what is ranked


def check_within_shown(summary: EvaluationSummary, log: Path, run: Path) -> None:
    """Compare AUC and NDCG within what was shown with loops over pairs and ranks."""
    _, cascade = load_run(run)
    found: dict[str, list[float]] = {name: [] for name in summary.metrics if "/shown/" in name}
    names = [f"{stage}/shown/{metric}" for stage in ("retrieval", "ranking") for metric in ("auc", "ndcg")]
    assert list(found) == names
    for batch in ImpressionLoader(log, DAYS[2], batch=32, shuffle=False):
        for stage, scores in zip(("retrieval", "ranking"), (one.detach() for one in cascade(batch)), strict=True):
            for row in range(len(batch)):
                shown = (batch.mask[row] & (batch.depth[row] == 2)).nonzero().flatten().tolist()
                pairs = [(float(scores[row, place]), bool(batch.relevance[row, place])) for place in shown]
                yes, no = ([score for score, label in pairs if label is wanted] for wanted in (True, False))
                if not yes or not no:
                    continue
                right = sum((one > other) + (one == other) / 2 for one in yes for other in no)
                found[f"{stage}/shown/auc"].append(right / (len(yes) * len(no)))
                order = [label for _, label in sorted(pairs, key=lambda pair: -pair[0])]
                gains = [label / math.log2(2 + place) for place, label in enumerate(order)]
                best = sum(1 / math.log2(2 + place) for place in range(len(yes)))
                found[f"{stage}/shown/ndcg"].append(sum(gains) / best)
    for name, values in found.items():
        assert len(values) == summary.impressions - summary.undefined[name] > 5
        assert summary.metrics[name] == pytest.approx(sum(values) / len(values), abs=1e-5)
        assert not name.endswith("auc") or summary.chance[name] == pytest.approx(0.5)


def test_production_is_not_shown_if_it_alone_decided_what_could_be_relevant(tmp_path: Path) -> None:
    """A column computed of feedback, such as 10 for a purchase, is feedback under another name."""
    random_log(tmp_path / "log", impressions=20, description=spec(relevant={"column": "worth"}), change=_shown_only)
    train(validate_cascade(content(tmp_path / "log", training={"epochs": 1})), tmp_path / "run")
    summary = evaluate_run(tmp_path / "run").summary()
    assert summary.production is None
    assert "1 by construction and is not shown" in str(summary.production_note)


def _shown_only(days: dict[str, dict[str, list[list[float]]]]) -> None:
    for columns in days.values():
        columns["relevance"] = [[float(depth == 2) for depth in depths] for depths in columns["depth"]]


PER_STAGE = {"name": "per_stage", "loss": {"name": "softmax_loss"}}
GRADES = "grades of the log"


def test_training_and_its_page_say_which_label_trains(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Relevance is the column of clicks, which is evaluated; per_stage learns the order of production by default."""
    for labels, words in (("full", GRADES), ("relevance", "relevance")):
        config = content(clicks, training={"epochs": 1}) | {"objective": PER_STAGE}
        config["data"]["labels"] = labels
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        out = tmp_path / labels
        assert run("train", str(tmp_path / "config.yaml"), "--out", str(out)) == 0
        printed, warned = (" ".join(text.split()) for text in capsys.readouterr())
        assert f"trained on {words}, evaluated on relevance" in printed
        assert ("per_stage trains on grades" in warned) == (labels == "full")
        assert ("data.labels=relevance trains on it" in warned) == (labels == "full")
        assert run("report", str(out)) == 0
        assert f"trained on {words}, evaluated on relevance" in (out / "report.html").read_text()
        capsys.readouterr()


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"name": "lcron", "topk": {"name": "lapsum_topk", "tau": 1.0}}, "relevance"),
        ({"name": "bce"}, "relevance"),
        ({"name": "fs_ranknet"}, GRADES),
        ({"name": "arf"}, f"{GRADES} and relevance"),
        (PER_STAGE | {"labels": "relevance"}, "relevance"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_labels_of_objectives(clicks: Path, objective: dict[str, Any], words: str) -> None:
    config = validate_cascade(content(clicks) | {"objective": objective})
    assert trained_labels(config) == f"trained on {words}, evaluated on relevance"


def test_an_inspection_says_what_uses_which_label(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", str(clicks)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "relevance: the column 'click'. Metrics, and objectives such as lcron and bce, use it" in printed
    assert "grade: the order of stages, then ranks." in printed


def test_without_a_funnel_grades_are_relevance_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def flatten(days: dict[str, dict[str, list[list[float]]]]) -> None:
        for columns in days.values():
            columns["depth"] = [[0 for _ in depths] for depths in columns["depth"]]

    described = spec(stages=[{"name": "logged"}], relevant={"column": "click"})
    log = random_log(tmp_path / "log", description=described, change=flatten).path
    assert run("data", str(log)) == 0
    assert "grade: the order of relevance, then ranks." in " ".join(capsys.readouterr().out.split())
    config = content(log, training={"epochs": 1}) | {"objective": PER_STAGE}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert run("train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")) == 0
    assert "per_stage trains on grades" not in " ".join(capsys.readouterr().err.split())


def test_relevance_by_production_is_said_and_not_shown(tmp_path: Path) -> None:
    log = liked_log(tmp_path / "log")
    train(validate_cascade(content(log, training={"epochs": 1})), tmp_path / "run")
    summary = evaluate_run(tmp_path / "run").summary()
    assert summary.production is None
    assert summary.production_note is not None
    assert "stage shown" in summary.production_note
    assert "1 by definition" in summary.production_note


def test_the_number_of_processes_does_not_change_what_is_measured_over_all_items(clicks: Path, tmp_path: Path) -> None:
    config = validate_cascade(content(clicks, data={"length": "all"}, training={"epochs": 1, "batch": 16}))
    train(config, tmp_path / "run")
    cascade = load_run(tmp_path / "run")[1]
    loader = measuring_loader(ImpressionLoader(clicks, "..").log, config, [DAYS[2]])
    values = measure(cascade, loader, config).values
    shares: list[dict[str, Tensor]] = []
    for rank in range(2):
        group = Group()
        group.rank, group.world = rank, 2
        shares.append(measure(cascade, loader, config, group=group).values)
    for name, expected in values.items():
        assert torch.equal((shares[0][name] + shares[1][name]).nan_to_num(-1), expected.nan_to_num(-1))
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["validation"]
    assert last["joint_recall"] < 0.9


# --- warnings -----------------------------------------------------------------------------------------------------


def test_only_much_shorter_lists_are_warned_of(clicks: Path) -> None:
    def warning(length: int | Literal["all"] | None) -> str | None:
        return short_lists(ImpressionLoader(clicks, DAYS[2], shuffle=False, length=length))

    assert "lists of 11 items, but the log has 40 items by 2024-01-15" in str(warning(None))
    assert "lists of 20 items" in str(warning(20))
    assert warning(21) is warning("all") is None


def test_training_and_a_comparison_warn(clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    settings = content(clicks, training={"epochs": 1})
    config.write_text(yaml.safe_dump(settings))
    assert run("train", str(config), "--out", str(tmp_path / "run"), "--json") == 0
    out, err = capsys.readouterr()
    (warning,) = json.loads(out)["warnings"]
    assert "lists of 11 items, but the log has 40 items by 2024-01-14" in warning
    assert warning in " ".join(err.split())
    compared = ComparisonConfig.model_validate({**settings, "seeds": [0, 1], "methods": {"a": {}}})
    result = compare_methods(compared, tmp_path / "compared")
    assert len(result.warnings) == 1
    assert "lists of 11 items" in result.warnings[0]
    settings["data"]["length"] = "all"
    compared = ComparisonConfig.model_validate({**settings, "seeds": [0], "methods": {"a": {}}})
    result = compare_methods(compared, tmp_path / "all")
    assert all("lists of 11" not in text for text in result.warnings)
    assert 0 < result.methods[0].metrics["joint_recall"].mean < 0.9


def test_a_stream_is_measured_over_all_items(clicks: Path, tmp_path: Path) -> None:
    short = streamed(stream_content(clicks), tmp_path / "short")
    assert "lists of 11 items, but the log has 40 items by 2024-01-15" in short.warnings[0]
    every = streamed(stream_content(clicks, data={"length": "all"}), tmp_path / "all")
    assert every.warnings == []
    recall = [day.methods[0].metrics["joint_recall"].mean for result in (every, short) for day in result.days]
    assert all(value < other for value, other in zip(recall[:2], recall[2:], strict=True))


def test_nothing_is_measured_without_a_catalogue(clicks: Path) -> None:
    loader = ImpressionLoader(clicks, DAYS[2], shuffle=False)
    loader.log.manifest["about"]["item_features"] = "per request"
    assert loader.catalogue_size() is None
    assert short_lists(loader) is None
    with pytest.raises(ValueError, match=r"depend on the request in .*, so no items can be added"):
        ImpressionLoader(loader.log, DAYS[2], length="all")
    fixed = ImpressionLoader(clicks, DAYS[2])
    with pytest.raises(ValueError, match="expected 'all'"):
        fixed.catalogue(DAYS[2])


def test_a_loader_that_draws_nothing_still_draws_nothing_after_counting(clicks: Path) -> None:
    loader = ImpressionLoader(clicks, DAYS[2], shuffle=False)
    before = [batch.item for batch in loader]
    assert loader.catalogue_size() == ITEMS
    assert all(torch.equal(one, other.item) for one, other in zip(before, loader, strict=True))
