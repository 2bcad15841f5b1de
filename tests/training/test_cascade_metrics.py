"""Ground truth, value and feedback of a cascade, against plain loops over the rows of a log."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rankfall as rf
from rankfall._config import ConfigError
from rankfall._lists import top_labels
from rankfall.data.impressions.log import ImpressionLog
from rankfall.metrics.named import forms
from rankfall.training import cascade_loaders
from rankfall.training import measured_lists as measure_cascade
from rankfall.training.build import make_cascade
from rankfall.training.cascade_metrics import (
    MeasuredFunnel,
    ScoredBatch,
    graded_truth,
    ground_truth,
    measure_lists,
    user_feature,
)
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.component_checks import RESERVED, shown_name
from rankfall.training.distributed.group import Group
from rankfall.training.evaluation import Evaluation
from rankfall.training.methods import train
from support.cascades import content, liked_log, sized_log
from support.logs import DAYS, spec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions
    from support.logs import Columns

QUOTAS = {"first": 6, "second": 3}


# --- ground truth -------------------------------------------------------------------------------------------------


def batch_of(relevance: torch.Tensor, grade: torch.Tensor, mask: torch.Tensor) -> Any:
    return SimpleNamespace(relevance=relevance * mask, grade=grade.int() * mask, mask=mask)


def truth_of(relevance: list[float], grade: list[int], mask: list[bool], k: int) -> list[float]:
    """Take the k best by relevance, then by grade, one group of equal items after the other."""
    left, found = k, [0.0] * len(mask)
    keys = [(relevance[i], grade[i]) for i in range(len(mask)) if mask[i] and relevance[i] > 0]
    for key in sorted(set(keys), reverse=True):
        tied = [i for i in range(len(mask)) if mask[i] and (relevance[i], grade[i]) == key]
        for i in tied:
            found[i] = min(1.0, left / len(tied))
        left = max(0, left - len(tied))
    return found


@pytest.mark.parametrize("sizes", [[0, 1], [0, 1, 10], [0, 0.25, 0.5, 3], [0, 2]])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_ground_truth_is_that_of_a_loop(sizes: list[float], k: int) -> None:
    rng = np.random.default_rng(k)
    relevance = torch.from_numpy(rng.choice(sizes, (60, 12)).astype(np.float32))
    grade = torch.from_numpy(rng.integers(0, 5, (60, 12)))
    mask = torch.from_numpy(rng.random((60, 12)) < 0.8)
    found = ground_truth(batch_of(relevance, grade, mask), k)
    for i in range(60):
        expected = truth_of(relevance[i].tolist(), grade[i].tolist(), mask[i].tolist(), k)
        assert found[i].tolist() == pytest.approx(expected)
    if len(sizes) == 2:  # what it was when relevance had no size
        before = top_labels((grade.float() + 1) * (relevance > 0), k, mask)
        assert torch.equal(found, before)


def test_a_purchase_comes_before_a_click_of_a_better_grade() -> None:
    batch = batch_of(torch.tensor([[1.0, 10.0, 0.0, 1.0]]), torch.tensor([[5, 1, 9, 3]]), torch.ones(1, 4).bool())
    assert ground_truth(batch, 1).tolist() == [[0, 1, 0, 0]]
    truth = ground_truth(batch, 3)
    assert graded_truth(batch, truth).tolist() == [[2, 3, 0, 1]]


# --- value and feedback -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="sized_log")
def _sized_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which relevant items have relevance 1, 2 or 10, and some requests have no feedback."""
    path: Path = tmp_path_factory.mktemp("sized") / "log"
    return sized_log(path)


def score(batch: Impressions) -> ScoredBatch:
    return ScoredBatch.of_lists(batch, [torch.sin(batch.item.float() * 3), torch.cos(batch.item.float() * 5)])


def loader_of(log: Path) -> rf.data.ImpressionLoader:
    return rf.data.ImpressionLoader(log, DAYS[1], batch=16, shuffle=False)


def measured_on(log: Path, **options: Any) -> MeasuredFunnel:
    return measure_lists(score, loader_of(log), names=list(QUOTAS), quotas=list(QUOTAS.values()), relevant=3, **options)


def survivors(row: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the places that survive both stages, by sorting."""
    items = row["item"]
    first = sorted(range(len(items)), key=lambda i: -math.sin(items[i] * 3))[:6]
    return first, sorted(first, key=lambda i: -math.cos(items[i] * 5))[:3]


def test_value_and_feedback_are_those_of_a_loop(sized_log: Path) -> None:
    found = measured_on(sized_log, feedback={"like": "sum", "click": "rate"})
    rows = ImpressionLog.load(sized_log).days[DAYS[1]].table().to_pylist()
    kept: dict[str, list[float]] = {"first": [], "second": []}
    total = []
    for i, row in enumerate(rows):
        truth = truth_of(row["relevance"], row["grade"], [True] * len(row["item"]), 3)
        worth = [a * b for a, b in zip(row["relevance"], truth, strict=True)]
        clicks, likes = row["feedback.click"], row["feedback.like"]
        total.append(sum(likes))
        for name, left in zip(QUOTAS, survivors(row), strict=True):
            kept[name].append(sum(likes[j] for j in left))
            value = found.values["joint_value" if name == "second" else "first/value"][i]
            clicked = found.values["joint/click" if name == "second" else "first/click"][i]
            assert value.isnan() == (sum(worth) == 0)
            if sum(worth):
                assert value == pytest.approx(sum(worth[j] for j in left) / sum(worth))
            assert clicked.isnan() == (sum(clicks) == 0)
            if sum(clicks):
                assert clicked == pytest.approx(sum(clicks[j] for j in left) / sum(clicks))
        assert found.left[i].isnan().any() == (sum(truth) == 0)
    assert sum(total) > 0
    assert min(total) == 0
    summary = Evaluation.of_cascade([str(i) for i in range(len(rows))], found).summary()
    assert summary.metrics["joint/like"] == pytest.approx(sum(kept["second"]) / sum(total))
    assert summary.metrics["first/like"] == pytest.approx(sum(kept["first"]) / sum(total))
    assert float(found.values["joint/like"].nanmean()) == pytest.approx(sum(kept["second"]) / sum(total))
    assert summary.metrics["second/like"] == summary.metrics["joint/like"]
    assert summary.metrics["second/value"] == summary.metrics["joint_value"]
    assert summary.chance["joint/like"] == pytest.approx(3 / 11)
    assert summary.chance["joint_value"] == pytest.approx(3 / 11)
    assert summary.chance["first/click"] == pytest.approx(6 / 11)
    low, high = summary.intervals["joint/like"]
    rng = np.random.default_rng(0)
    users = np.array([row["user.id"] for row in rows])
    pools = [np.flatnonzero(users == user) for user in np.unique(users)]
    ratios = []
    for _ in range(3000):
        drawn = np.concatenate([pools[u] for u in rng.integers(0, len(pools), len(pools))])
        ratios.append(np.array(kept["second"])[drawn].sum() / np.array(total)[drawn].sum())
    expected = np.quantile(ratios, [0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(expected), abs=0.08 * float(expected[1] - expected[0]))
    assert summary.resampled == "users"


class _Threads(Group):
    """A group of two threads that sum tensors."""

    world = 2

    def __init__(self, rank: int, barrier: threading.Barrier, given: dict[int, torch.Tensor]) -> None:
        self.rank, self._barrier, self._given = rank, barrier, given

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        self._given[self.rank] = numbers
        self._barrier.wait(10)
        result = self._given[0] + self._given[1]
        self._barrier.wait(10)
        return result


def test_processes_measure_what_one_process_measures(sized_log: Path) -> None:
    options: dict[str, Any] = {"feedback": {"like": "sum", "click": "rate"}, "further": ["ndcg_value@4"]}
    alone = measured_on(sized_log, **options)
    barrier = threading.Barrier(2)
    given: dict[int, torch.Tensor] = {}
    with ThreadPoolExecutor(2) as threads:
        groups = [_Threads(rank, barrier, given) for rank in range(2)]
        for found in threads.map(lambda group: measured_on(sized_log, group=group, **options), groups):
            for ours, theirs in (
                (found.values, alone.values),
                (found.chance, alone.chance),
                (found.wholes, alone.wholes),
            ):
                assert list(ours) == list(theirs)
                for name in ours:
                    assert torch.equal(ours[name].nan_to_num(-1), theirs[name].nan_to_num(-1)), name
            assert torch.equal(found.left.nan_to_num(-1), alone.left.nan_to_num(-1))
            assert torch.equal(found.ranked, alone.ranked)
            assert found.users is not None
            assert alone.users is not None
            assert torch.equal(found.users, alone.users)


def test_ndcg_value_has_the_relevance_as_gain(sized_log: Path) -> None:
    found = measured_on(sized_log, further=["ndcg_value@4"]).values["second/alone/ndcg_value@4"]
    discounts = 1 / np.log2(np.arange(2, 6))
    for i, row in enumerate(ImpressionLog.load(sized_log).days[DAYS[1]].table().to_pylist()):
        order = sorted(range(len(row["item"])), key=lambda j: -math.cos(row["item"][j] * 5))
        gains = np.array(row["relevance"])
        assert found[i].isnan() == (gains.sum() == 0)
        if gains.sum():
            expected = gains[order[:4]] @ discounts / (np.sort(gains)[::-1][:4] @ discounts)
            assert found[i] == pytest.approx(expected)


def test_relevance_of_one_size_has_no_value_metrics_unless_asked(tmp_path: Path) -> None:
    log = liked_log(tmp_path / "log")
    found = measured_on(log)
    assert not any("value" in name for name in found.values)
    asked = measured_on(log, value=True)
    torch.testing.assert_close(asked.values["joint_value"], asked.values["joint_recall"])
    config = validate_cascade(content(log, training={"metric": "joint_value"}))
    cascade = make_cascade(config, ImpressionLog.load(log).features)
    loader = cascade_loaders.make_loader(ImpressionLog.load(log), config, "valid")
    assert "joint_value" in measure_cascade.measure_cascade(cascade, loader, config).values


def test_negative_feedback_has_no_share(tmp_path: Path) -> None:
    def change(days: dict[str, Columns]) -> None:
        days[DAYS[1]]["feedback.like"][4][2] = -1.5

    log = liked_log(tmp_path / "log", change=change)
    with pytest.raises(ValueError, match=r"feedback: like is -1\.5 for an item of .*, expected values of at least 0"):
        measured_on(log, feedback={"like": "sum"})


# --- all items ----------------------------------------------------------------------------------------------------


def test_figures_over_all_items_use_the_number_of_ranked_items(sized_log: Path) -> None:
    changes = {"data": {"length": "all"}, "feedback": {"like": "sum"}}
    config = validate_cascade(content(sized_log, **changes))
    log = ImpressionLog.load(sized_log)
    loader = cascade_loaders.make_loader(log, config, "test")
    cascade = make_cascade(config, log.features)
    found = measure_cascade.measure_cascade(cascade, loader, config)
    assert [name for name in found.values if not name.endswith("value")] == config.metrics
    assert "retrieval/alone/recall" in found.values
    assert not {"retrieval/alone/ndcg", "ranking/alone/recall", "ranking/alone/ndcg"} & set(found.values)
    items = len(loader.catalogue(DAYS[2]))
    assert set(found.ranked.tolist()) == {items}
    retrieval, ranking = Evaluation.of_cascade([""] * len(found.ranked), found).summary().funnel or []
    assert (retrieval.entered, ranking.entered) == (items, 5)
    assert retrieval.chance == pytest.approx(5 / items)
    assert ranking.chance == pytest.approx(3 / 5)
    assert retrieval.alone is not None
    assert retrieval.alone.value == pytest.approx(retrieval.survived.value)
    assert ranking.alone is None


# --- users --------------------------------------------------------------------------------------------------------


def test_users_are_known_by_a_feature_of_the_user_column() -> None:
    named = {"kind": "categorical", "num_buckets": 30, "column": "user"}
    other = {"kind": "categorical", "num_buckets": 30, "column": "country"}
    item = spec().features.model_dump(exclude_none=True)["item"]
    assert user_feature(spec(features={"user": {"country": other, "number": named}, "item": item})) == "number"
    assert user_feature(spec(features={"user": {"country": other}, "item": item})) is None


def test_impressions_of_users_never_seen_are_units_of_their_own(tmp_path: Path) -> None:
    def change(days: dict[str, Columns]) -> None:
        days[DAYS[1]]["user.id"][:6] = [0, 0, 1, 1, 5, 5]

    users = measured_on(liked_log(tmp_path / "log", change=change, description=spec(user="id"))).users
    assert users is not None
    assert len(set(users[:6].tolist())) == 5
    assert users[4] == users[5]


# --- configurations and names -------------------------------------------------------------------------------------


def test_feedback_that_the_log_does_not_have_is_refused(sized_log: Path, tmp_path: Path) -> None:
    config = validate_cascade(content(sized_log, feedback={"likes": "sum", "click": "rate"}))
    with pytest.raises(ConfigError, match=r"feedback: found 'likes', did you mean 'like'; .* is click, like"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feedback": {"recall": "sum"}}, "found 'recall', whose metric would have the name of another one"),
        ({"feedback": {"click": "mean"}}, "feedback.click"),
        ({"feedback": {"click": "sum"}, "training": {"metric": "joint/like"}}, "found 'joint/like', expected"),
        (
            {"data": {"length": "all"}, "training": {"metric": "ranking/alone/ndcg"}},
            "not measured with data.length all",
        ),
    ],
)
def test_wrong_names_of_metrics_are_refused(sized_log: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_cascade(content(sized_log, **changes))


def test_metrics_of_a_stage_and_of_feedback_are_accepted(sized_log: Path) -> None:
    config = validate_cascade(content(sized_log, training={"metric": "ranking/alone/recall"}))
    assert config.training.metric == "ranking/alone/recall"
    feedback = {"click": "rate"}
    for metric in ("joint/click", "retrieval/click"):
        config = validate_cascade(content(sized_log, feedback=feedback, training={"metric": metric}))
        assert config.training.metric in config.metrics
    with pytest.raises(ConfigError, match="found 'ranking/recall', expected joint_recall, STAGE/alone/recall"):
        validate_cascade(content(sized_log, training={"metric": "ranking/recall"}))


def test_feedback_cannot_have_the_name_of_a_metric() -> None:
    words = {form.partition("@")[0] for form in forms()}
    assert words <= RESERVED
    figures = {*(f"ranking/alone/{word}" for word in words), "ranking/lost", "joint/click", "ndcg@10"}
    assert {shown_name(name) for name in figures} == figures
