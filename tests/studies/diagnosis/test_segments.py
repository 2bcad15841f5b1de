"""Segments that suffer: a planted defect is found, noise is not, and every figure is that of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats

from rankfall.studies.diagnosis.attributes import Attribute
from rankfall.studies.diagnosis.segments import FunnelLists, TruthItems, benjamini_hochberg, find_segments, score_test
from rankfall.training.cascade_metrics import Resampler
from support.stage_scores import random_scores

if TYPE_CHECKING:
    from rankfall.studies.evaluate import StageScores

QUOTAS = [12, 6]
CATEGORIES = ["books", "games", "shoes", "toys", "wine"]


def two_stages(seed: int, *, requests: int = 300, signal: float = 1.0) -> StageScores:
    return random_scores(seed, requests=requests, items=30, stages=("first", "second"), relevant=4, signal=signal)


def random_attribute(name: str, truth: TruthItems, seed: int, values: int = 5) -> Attribute:
    codes = np.random.default_rng(seed).integers(0, values, len(truth.request))
    return Attribute(name, codes, [f"{name} {value}" for value in range(values)])


def category_of(truth: TruthItems) -> Attribute:
    """An attribute of items: places of lists are items."""
    return Attribute("item.category", truth.place % len(CATEGORIES), CATEGORIES)


def ignoring(scores: StageScores, stage: int, category: str) -> StageScores:
    """Return scores of which one stage gives every item of a category a random score below the median."""
    places = torch.arange(scores.mask.shape[1]) % len(CATEGORIES) == CATEGORIES.index(category)
    noise = torch.rand(scores.mask.shape, generator=torch.Generator().manual_seed(9)) * 0.5 - 1
    scores.scores[stage].copy_(torch.where(places, noise, scores.scores[stage]))
    return scores


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_ignores_a_category_is_found(stage: int) -> None:
    lists = FunnelLists.of_scores(ignoring(two_stages(0), stage, "shoes"), QUOTAS)
    truth = lists.truth
    attributes = [random_attribute(f"noise {seed}", truth, seed, 6) for seed in range(10)]
    attributes.insert(4, category_of(truth))
    found = [find_segments(lists, at, attributes, Resampler()) for at in range(2)]
    worst = found[stage].worse[0]
    assert (worst.attribute, worst.value) == ("item.category", "shoes")
    assert worst.kept.high < worst.kept_elsewhere
    assert worst.at_stake.low > 0
    assert worst.share_of_lost > worst.share_of_items
    assert [one.value for one in found[stage].worse if one.explained_by is None] == ["shoes"]
    assert ("item.category", "shoes") not in [(one.attribute, one.value) for one in found[1 - stage].worse]
    assert found[stage].tested == 5 + 10 * 6


def test_the_figures_of_a_segment_are_those_of_a_loop() -> None:
    lists = FunnelLists.of_scores(ignoring(two_stages(0), 0, "toys"), QUOTAS)
    truth = lists.truth
    (worst, *_) = find_segments(lists, 0, [category_of(truth)], Resampler()).worse
    inside, outside = {"arrived": 0.0, "lost": 0.0, "recoverable": 0.0}, {"arrived": 0.0, "lost": 0.0}
    items, requests, would = 0, set(), lists.would_survive(0)
    for request in range(len(lists)):
        for item in range(30):
            weight = float(lists.weight[request, item])
            if not weight:
                continue
            lost = not lists.arrived[1][request, item]
            if item % 5 == CATEGORIES.index("toys"):
                items += 1
                requests.add(request)
                inside["arrived"] += weight
                inside["lost"] += weight * lost
                inside["recoverable"] += weight * lost * bool(would[request, item])
            else:
                outside["arrived"] += weight
                outside["lost"] += weight * lost
    assert (worst.items, worst.requests) == (items, len(requests))
    assert worst.kept.value == pytest.approx(1 - inside["lost"] / inside["arrived"], rel=1e-5)
    assert worst.kept_elsewhere == pytest.approx(1 - outside["lost"] / outside["arrived"], rel=1e-5)
    assert worst.share_of_items == pytest.approx(inside["arrived"] / (inside["arrived"] + outside["arrived"]), rel=1e-5)
    assert worst.share_of_lost == pytest.approx(inside["lost"] / (inside["lost"] + outside["lost"]), rel=1e-5)
    excess = inside["lost"] - inside["arrived"] * outside["lost"] / outside["arrived"]
    stake = excess * inside["recoverable"] / inside["lost"] / len(lists)
    assert worst.at_stake.value == pytest.approx(stake, rel=1e-4)
    assert worst.at_stake.low < stake < worst.at_stake.high


def test_noise_is_rarely_a_finding() -> None:
    """Of 40 diagnoses with 60 random segments each, the corrected level allows about two with a finding."""
    findings = 0
    for seed in range(40):
        lists = FunnelLists.of_scores(two_stages(seed, requests=120), QUOTAS)
        truth = lists.truth
        attributes = [random_attribute(f"noise {at}", truth, 1000 * seed + at, 6) for at in range(10)]
        found = find_segments(lists, 0, attributes, Resampler())
        assert found.tested > 50
        findings += bool(found.worse or found.better)
    assert findings <= 6


def test_p_values_are_uniform_where_items_of_a_request_share_their_fate() -> None:
    """Requests lose all or none of their items; a test that took items for independent would reject far too often."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(400):
        lost = np.repeat(rng.random(150) < 0.4, 4)
        request = np.repeat(np.arange(150), 4)
        inside = np.repeat(rng.random(150) < 0.3, 4)  # an attribute of the request

        def sums(weights: np.ndarray, request: np.ndarray = request) -> torch.Tensor:
            return torch.from_numpy(np.bincount(request, weights / 4, minlength=150))

        values.append(score_test(sums(lost & inside), sums(inside), sums(lost), sums(np.ones(600))))
    assert stats.kstest(values, "uniform").pvalue > 0.01
    assert np.mean(np.array(values) < 0.05) == pytest.approx(0.05, abs=0.035)


def test_single_items_are_tested_as_two_shares() -> None:
    """With one item per request the test is close to the classical one without correction of continuity."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        inside, lost = rng.random(1000) < 0.4, rng.random(1000) < 0.3
        counts = [[int((lost & of).sum()), int((~lost & of).sum())] for of in (inside, ~inside)]
        known = stats.chi2_contingency(counts, correction=False).pvalue
        given = [torch.from_numpy(values.astype(float)) for values in (lost & inside, inside, lost, np.ones(1000))]
        assert score_test(*given) == pytest.approx(known, abs=0.02)


def test_the_correction_is_that_of_scipy() -> None:
    values = np.random.default_rng(0).random(40) ** 3
    assert benjamini_hochberg(values.tolist()) == pytest.approx(stats.false_discovery_control(values).tolist())
    assert benjamini_hochberg([]) == []


def test_a_segment_that_another_one_causes_is_explained() -> None:
    lists = FunnelLists.of_scores(ignoring(two_stages(0, requests=500), 0, "shoes"), QUOTAS)
    truth = lists.truth
    category = category_of(truth)
    rng = np.random.default_rng(0)
    brand = np.where(
        category.codes == CATEGORIES.index("shoes"),
        (rng.random(len(truth.request)) < 0.8),
        rng.random(len(truth.request)) < 0.1,
    )
    attributes = [Attribute("item.brand", brand.astype(np.int64), ["other", "acme"]), category]
    found = find_segments(lists, 0, attributes, Resampler())
    names = {(one.attribute, one.value): one.explained_by for one in found.worse}
    assert names["item.category", "shoes"] is None
    assert names["item.brand", "acme"] == "item.category = shoes"


def test_two_defects_are_both_listed() -> None:
    scores = ignoring(ignoring(two_stages(0, requests=500), 0, "shoes"), 0, "wine")
    lists = FunnelLists.of_scores(scores, QUOTAS)
    truth = lists.truth
    found = find_segments(lists, 0, [category_of(truth)], Resampler())
    assert {one.value for one in found.worse if one.explained_by is None} == {"shoes", "wine"}


def test_small_segments_are_not_compared() -> None:
    lists = FunnelLists.of_scores(two_stages(0), QUOTAS)
    truth = lists.truth
    codes = np.zeros(len(truth.request), np.int64)
    codes[1::45] = 1  # 27 items
    codes[2::20] = -1  # rare values have no code
    assert find_segments(lists, 0, [Attribute("few", codes, ["many", "few"])], Resampler()).tested == 1
