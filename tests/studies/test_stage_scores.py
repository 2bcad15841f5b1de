"""The scores of all stages that diagnosis and planning read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import rankfall as rf
from rankfall.metrics import funnel
from rankfall.studies.evaluate import collect_scores
from rankfall.training.cascade_metrics import ScoredBatch, measure_lists
from support.cascades import liked_log
from support.logs import DAYS

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("scores") / "log"
    return liked_log(path)


def score(batch: Impressions) -> ScoredBatch:
    return ScoredBatch.of_lists(batch, [torch.sin(batch.item.float() * 3), torch.cos(batch.item.float() * 5)])


def test_collected_scores_give_the_measured_joint_recall(log: Path) -> None:
    loader = rf.data.ImpressionLoader(log, "..", batch=7, shuffle=False)
    seen: list[int] = []
    collected = collect_scores(score, loader, stages=["a", "b"], relevant=2, on_batch=seen.append)
    values = measure_lists(score, loader, names=["a", "b"], quotas=[6, 3], relevant=2).values
    result = funnel(collected.scores, collected.truth, quotas=[6, 3], mask=collected.mask)
    assert torch.equal(result.joint_recall, values["joint_recall"])
    assert sum(seen) == len(collected) == len(collected.rows) == len(collected.days)
    assert collected.complete
    assert torch.equal(collected.ranked, collected.mask.sum(-1))


def test_requests_and_rows_are_those_of_the_log(log: Path) -> None:
    loader = rf.data.ImpressionLoader(log, DAYS, batch=7, shuffle=False)
    collected = collect_scores(score, loader, stages=["a", "b"], relevant=2)
    for place in (0, len(collected) - 1):
        row = loader.log.days[collected.days[place]].table().slice(int(collected.rows[place]), 1).to_pylist()[0]
        assert collected.requests[place] == str(row["request"])
        assert collected.item[place][collected.mask[place]].tolist() == row["item"]
        assert collected.relevance[place][collected.mask[place]].tolist() == row["relevance"]
