"""The label scheme of LCRON's table 1: only the relevant stage is ordered, every other stage has one grade."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.data import ImpressionLoader
from rankfall.data.impressions.loader.negatives import (
    first_ordered_depth,
    published_grades,
    rank_grades,
    relevance_grades,
)
from rankfall.data.impressions.requests import full_stage_grades
from rankfall.data.impressions.spec import validate_spec
from rankfall.simulation.simulate import Simulation, simulate_log

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec

STAGES = ("prerank_neg", "coarse_neg", "rank_neg", "rank_pos")


def of_list(grade: list[int], depth: list[int], *, ordered_from: int, mask: list[bool] | None = None) -> list[int]:
    real = np.array([mask or [True] * len(grade)])
    grades = published_grades(np.array([grade]), np.array([depth]), real, ordered_from=ordered_from)
    return [int(value) for value in grades[0]]


def test_table_1_by_hand() -> None:
    # two items of each stage; rank_neg has the ranks 14 and 40, rank_pos the ranks 1 and 7
    depth = [3, 0, 2, 1, 3, 2, 0, 1]
    full = [5, 0, 3, 1, 4, 2, 0, 1]
    lcron = [1, 23, 21, 22, 7, 21, 23, 22]  # the paper's labels, smallest is best
    found = of_list(full, depth, ordered_from=3)
    assert found == [4, 0, 2, 1, 3, 2, 0, 1]
    for i, j in product(range(8), repeat=2):
        assert (found[i] > found[j]) == (lcron[i] < lcron[j])


def test_three_stages_by_hand() -> None:
    # prerank_neg, coarse_neg, rank_neg, rerank_neg, rerank_pos: only the last one is ordered
    depth = [0, 1, 2, 2, 3, 3, 4, 4]
    full = [0, 1, 2, 3, 4, 5, 6, 7]
    assert of_list(full, depth, ordered_from=4) == [0, 1, 2, 2, 3, 3, 4, 5]


def test_stages_behind_the_relevant_one_stay_ordered() -> None:
    assert of_list([0, 1, 2, 3, 4], [0, 0, 1, 1, 2], ordered_from=1) == [0, 0, 1, 2, 3]


def test_relevance_alone_by_hand() -> None:
    relevance = np.array([[0.0, 2.5, 1.0, -0.0, 2.5], [3.0, 3.0, 1.0, 9.0, 0.0], [0.0] * 5], np.float32)
    mask = np.array([[True] * 5, [True, True, True, True, False], [True] * 5])
    # the second list has no irrelevant item: its lowest grade is still above that of irrelevant items
    assert relevance_grades(relevance, mask).tolist() == [[0, 2, 1, 0, 2], [2, 2, 1, 3, 0], [0] * 5]


def test_padding_and_added_items_have_the_lowest_grade() -> None:
    # the third item was added at random (depth -1, grade 0), the last one is padding
    found = of_list([3, 0, 0, 1, 9], [1, 0, -1, 0, -1], ordered_from=1, mask=[True, True, True, True, False])
    assert found == [1, 0, 0, 0, 0]


@settings(deadline=None)
@given(st.data())
def test_naive_derivation(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    depth = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    rank = np.array(data.draw(st.lists(st.integers(-1, 5), min_size=count, max_size=count)))
    ordered_from = data.draw(st.integers(0, 3))
    full = full_stage_grades(np.zeros(count, np.int64), depth, rank)

    def badness(i: int) -> tuple[int, ...]:
        in_order = (99 if rank[i] < 0 else int(rank[i])) if depth[i] >= ordered_from else 0
        return (-int(depth[i]), in_order)

    places = sorted({badness(i) for i in range(count)}, reverse=True)
    expected = [places.index(badness(i)) for i in range(count)]
    assert of_list(full.tolist(), depth.tolist(), ordered_from=ordered_from) == expected


def test_ranks_by_hand() -> None:
    # the fourth item has no rank, the last one is padding
    found = rank_grades(np.array([[5, 2, 5, -1, 9, 0]]), np.array([[True, True, True, True, True, False]]))
    assert found.tolist() == [[2, 3, 2, 0, 1, 0]]


def test_ranks_order_ads_of_all_queues(tmp_path: Path) -> None:
    """ARF, B.1: the rank by the score of the ranking model is the label, whatever the queue."""
    log = simulated(tmp_path / "log", "industry-hard")
    full, ranked = (
        next(iter(ImpressionLoader(log, "..", batch=64, shuffle=False, labels=labels))) for labels in ("full", "rank")
    )
    for ranks, grades in zip(ranked.rank.tolist(), ranked.grade.tolist(), strict=True):
        assert [sorted(ranks, reverse=True).index(rank) for rank in ranks] == grades
    assert full.item.equal(ranked.item)
    assert not full.grade.equal(ranked.grade)  # some ads that pre-ranking dropped are better than some that it kept


def simulated(path: Path, preset: str = "tiny") -> ImpressionLog:
    return simulate_log(Simulation(preset=preset, days=2, requests_per_day=40, seed=3), path)


def test_loader_on_a_simulated_log(tmp_path: Path) -> None:
    log = simulated(tmp_path / "log")
    full, published = (
        list(ImpressionLoader(log, "..", batch=32, seed=1, labels=labels)) for labels in ("full", "published")
    )
    for one, other in zip(full, published, strict=True):
        assert one.item.equal(other.item)
        assert one.depth.equal(other.depth)
        for depth in range(3):
            assert set(other.grade[other.depth == depth].tolist()) == {depth}
        for grades, ranks, depths in zip(other.grade, other.rank, other.depth, strict=True):
            best_first = grades[depths == 3][ranks[depths == 3].argsort()]
            assert best_first.tolist() == list(range(12, 2, -1))
        assert (one.grade[one.depth == 2]).unique().numel() > 1  # the full grades order rank_neg as well


def test_three_stages_of_a_simulated_log(tmp_path: Path) -> None:
    log = simulated(tmp_path / "log", "recflow-like-3")
    batch = next(iter(ImpressionLoader(log, "..", batch=16, labels="published")))
    assert sorted(batch.grade[0].tolist()) == sorted([0, 1, 2, 3] * 10 + list(range(4, 14)))


def test_negatives_tie_with_the_first_stage(tmp_path: Path) -> None:
    log = simulated(tmp_path / "log")
    batch = next(iter(ImpressionLoader(log, "..", batch=16, labels="published", negatives=5)))
    assert (batch.depth == -1).any()
    assert set(batch.grade[batch.depth <= 0].tolist()) == {0}


def test_states_of_loaders_with_other_labels_are_refused(tmp_path: Path) -> None:
    log = simulated(tmp_path / "log")
    loader = ImpressionLoader(log, "..", batch=16)
    state = loader.state_dict()
    loader.load_state_dict(state)
    other = ImpressionLoader(log, "..", batch=16, labels="published")
    with pytest.raises(ValueError, match="saved with labels = 'full'"):
        other.load_state_dict(state)


def spec(relevant: Any) -> Spec:
    stages = [{"name": name} for name in STAGES]
    return validate_spec({"time": "time", "stage": "stage", "stages": stages, "relevant": relevant})


def test_relevant_stage() -> None:
    assert first_ordered_depth(spec("rank_pos")) == 3
    assert first_ordered_depth(spec("rank_neg")) == 2
    with pytest.raises(ValueError, match="relevance is the column 'clicked'"):
        first_ordered_depth(spec({"column": "clicked"}))


def test_wrong_labels(tmp_path: Path) -> None:
    log = simulated(tmp_path / "log")
    with pytest.raises(ValueError, match="labels: found 'publshed', did you mean 'published'"):
        ImpressionLoader(log, "..", labels="publshed")  # type: ignore[arg-type]
