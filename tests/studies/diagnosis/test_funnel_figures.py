"""Figures of the funnel in a diagnosis, each against a plain loop over requests and items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats

from rankfall.metrics import funnel
from rankfall.studies.diagnosis.segments import (
    FACTORS,
    QUANTILES,
    FunnelLists,
    agreement,
    cut_distance,
    oracle,
    quantiles,
)
from rankfall.training.cascade_metrics import Resampler
from support.stage_scores import pruned, random_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.studies.evaluate import StageScores

QUOTAS = [8, 5, 2]
NOW = Resampler()
SEEDS = [0, 1, 2]

Order = "Callable[[int, int], float]"  # of a request and an item; the largest is the best


def requests_of(scores: StageScores) -> list[int]:
    return [request for request in range(len(scores)) if scores.truth[request].sum() > 0]


def by_scores(scores: StageScores, stage: int) -> Callable[[int, int], float]:
    return lambda request, item: float(scores.scores[stage][request, item])


def perfect(scores: StageScores, stage: int) -> Callable[[int, int], float]:
    return lambda request, item: (
        float(scores.scores[stage][request, item]) + 1e6 * float(scores.truth[request, item] > 0)
    )


def run(
    scores: StageScores, request: int, orders: Sequence[Callable[[int, int], float]], quotas: Sequence[int]
) -> list[list[int]]:
    """Return the items that arrive at each stage, and the survivors, one request at a time."""
    alive = [[item for item in range(scores.mask.shape[1]) if scores.mask[request, item]]]
    for order, quota in zip(orders, quotas, strict=True):
        alive.append(sorted(alive[-1], key=lambda item, order=order: -order(request, item))[:quota])  # type: ignore[misc]
    return alive


def joint_recall(
    scores: StageScores, orders: Sequence[Callable[[int, int], float]], quotas: Sequence[int] = QUOTAS
) -> float:
    shares = []
    for request in requests_of(scores):
        survivors = run(scores, request, orders, quotas)[-1]
        shares.append(
            sum(float(scores.truth[request, item]) for item in survivors) / float(scores.truth[request].sum())
        )
    return float(np.mean(shares))


def own_orders(scores: StageScores) -> list[Callable[[int, int], float]]:
    return [by_scores(scores, stage) for stage in range(3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_arrivals_and_ranks_are_those_of_a_loop(seed: int) -> None:
    scores = random_scores(seed)
    lists = FunnelLists.of_scores(scores, QUOTAS)
    assert lists.rows.tolist() == requests_of(scores)
    for place, request in enumerate(requests_of(scores)):
        arrived = run(scores, request, own_orders(scores), QUOTAS)
        for stage in range(3):
            assert lists.arrived[stage][place].nonzero().squeeze(-1).tolist() == sorted(arrived[stage])
            order = sorted(arrived[stage], key=lambda item, s=stage: -float(scores.scores[s][request, item]))  # type: ignore[misc]
            ranks = {item: int(rank) for item, rank in enumerate(lists.ranks(stage)[place]) if rank}
            assert ranks == {item: rank for rank, item in enumerate(order, 1)}
    known = funnel(scores.scores, scores.truth, quotas=QUOTAS, mask=scores.mask)
    torch.testing.assert_close(lists.recall(lists.arrived[-1]).float(), known.joint_recall[lists.rows])


def test_equal_scores_have_a_random_order() -> None:
    scores = random_scores(0, requests=400, items=20, longest_only=True)
    flat = [torch.zeros_like(stage) for stage in scores.scores]
    changed = {field: getattr(scores, field) for field in type(scores).__dataclass_fields__} | {"scores": flat}
    lists = FunnelLists.of_scores(type(scores)(**changed), [8, 5, 2])
    assert float(lists.recall(lists.arrived[-1]).mean()) == pytest.approx(0.1, abs=0.03)
    assert float(lists.recall(lists.arrived[1]).mean()) == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_item_would_survive_if_it_beats_what_arrives_later(seed: int) -> None:
    scores = random_scores(seed)
    lists = FunnelLists.of_scores(scores, QUOTAS)
    for stage in range(3):
        would = lists.would_survive(stage)
        for place, request in enumerate(requests_of(scores)):
            arrived = run(scores, request, own_orders(scores), QUOTAS)
            for item in set(arrived[stage]) - set(arrived[stage + 1]):
                survives = all(
                    sum(
                        float(scores.scores[later][request, other]) > float(scores.scores[later][request, item])
                        for other in arrived[later]
                    )
                    < QUOTAS[later]
                    for later in range(stage + 1, 3)
                )
                assert bool(would[place, item]) == survives


@pytest.mark.parametrize("seed", SEEDS)
def test_oracles_are_those_of_a_loop(seed: int) -> None:
    scores = random_scores(seed)
    lists = FunnelLists.of_scores(scores, QUOTAS)
    ideal = [lists.perfect_order(stage) for stage in range(3)]
    own, best = own_orders(scores), [perfect(scores, stage) for stage in range(3)]
    now = joint_recall(scores, own)
    for stage in range(3):
        found = oracle(lists, ideal, stage, NOW)
        one = joint_recall(scores, [best[at] if at == stage else own[at] for at in range(3)])
        assert found.perfect.value == pytest.approx(one)
        assert found.gain.value == pytest.approx(one - now)
        others = joint_recall(scores, [own[at] if at == stage else best[at] for at in range(3)])
        assert found.others_perfect.value == pytest.approx(others)
        assert found.perfect.low <= found.perfect.value <= found.perfect.high


def test_a_perfect_cascade_loses_only_what_does_not_fit() -> None:
    scores = random_scores(0, relevant=3)
    lists = FunnelLists.of_scores(scores, QUOTAS)
    ideal = [lists.perfect_order(stage) for stage in range(3)]
    found = oracle(lists, ideal, 0, NOW)
    # the last quota is 2 and up to three items are relevant
    assert found.others_perfect.value <= 2 / 3 + 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_distances_to_the_cut_are_those_of_a_loop(seed: int) -> None:
    scores = random_scores(seed, requests=40, signal=0.3)
    lists = FunnelLists.of_scores(scores, QUOTAS)
    for stage, quota in enumerate(QUOTAS):
        recovered = dict.fromkeys(FACTORS, 0.0)
        multiples: list[float] = []
        distances: list[float] = []
        weights: list[float] = []
        with_losses = 0
        for request in requests_of(scores):
            arrived = run(scores, request, own_orders(scores), QUOTAS)
            values = {item: float(scores.scores[stage][request, item]) for item in arrived[stage]}
            lost = [item for item in arrived[stage] if scores.truth[request, item] and item not in arrived[stage + 1]]
            with_losses += bool(lost)
            for item in lost:
                rank = 1 + sum(value > values[item] for value in values.values())
                weight = 1 / float(scores.truth[request].sum())
                multiples.append(rank / quota)
                distances.append(
                    (min(values[one] for one in arrived[stage + 1]) - values[item]) / float(np.std([*values.values()]))
                )
                weights.append(weight)
                for factor in FACTORS:
                    limit = round(quota * factor) if stage == 0 else min(round(quota * factor), QUOTAS[stage - 1])
                    recovered[factor] += weight * (rank <= limit)
        found = cut_distance(lists, stage, NOW)
        assert (found.items, found.requests, found.known_up_to) == (len(multiples), with_losses, None)
        for values_of, name in ((multiples, "rank_over_quota"), (distances, "score_distance")):
            assert getattr(found, name) == pytest.approx(weighted_quantiles(values_of, weights), rel=1e-4)
        assert [one.quota for one in found.larger_quotas] == [[10, 12, 14], [6, 8], [3, 4]][stage]
        for larger in found.larger_quotas:
            assert larger.passes.value == pytest.approx(recovered[larger.factor] / sum(weights), rel=1e-5)
            quotas = [larger.quota if at == stage else one for at, one in enumerate(QUOTAS)]
            recall = joint_recall(scores, own_orders(scores), quotas)
            assert larger.joint_recall.value == pytest.approx(recall)
            assert larger.gain.value == pytest.approx(recall - joint_recall(scores, own_orders(scores)), abs=1e-7)


def weighted_quantiles(values: Sequence[float], weights: Sequence[float]) -> dict[str, float]:
    """Return the smallest value up to which a share of the weight lies, by adding one after the other."""
    pairs, found = sorted(zip(values, weights, strict=True)), {}
    for percent in QUANTILES:
        total = 0.0
        for value, weight in pairs:
            total += weight
            if total >= percent / 100 * sum(weights) - 1e-9:
                found[str(percent)] = value
                break
    return found


def test_quantiles_of_equal_weights_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).normal(size=101)
    found = quantiles(values, np.ones(101, np.float32))
    expected = np.quantile(values, np.array(QUANTILES) / 100, method="inverted_cdf")
    assert list(found.values()) == pytest.approx(expected.tolist())
    assert all(np.isnan(value) for value in quantiles(np.empty(0), np.empty(0, np.float32)).values())


def test_lists_over_all_items_give_the_same_figures_up_to_their_reach() -> None:
    scores = random_scores(3, requests=60, items=40, signal=0.3)
    whole, part = (FunnelLists.of_scores(one, QUOTAS) for one in (scores, pruned(scores, 20)))
    for stage in range(3):
        exact, found = (cut_distance(one, stage, NOW, reach=20) for one in (whole, part))
        assert (exact.items, exact.requests) == (found.items, found.requests)
        assert exact.larger_quotas == found.larger_quotas
        known = found.known_up_to if stage == 0 else None
        assert known == (2.5 if stage == 0 else None)
        capped = {name: min(value, 2.5) if stage == 0 else value for name, value in exact.rank_over_quota.items()}
        assert found.rank_over_quota == capped
        ideal = [[one.perfect_order(at) for at in range(3)] for one in (whole, part)]
        assert oracle(whole, ideal[0], stage, NOW) == oracle(part, ideal[1], stage, NOW)


def test_ranks_beyond_the_reach_are_not_used() -> None:
    scores = random_scores(3, requests=60, items=40, signal=0.0)
    part = FunnelLists.of_scores(pruned(scores, 8), QUOTAS)
    found = cut_distance(part, 0, NOW, reach=8)
    assert found.known_up_to == 1
    assert set(found.rank_over_quota.values()) == {1.0}
    assert found.larger_quotas == []


@pytest.mark.parametrize("seed", SEEDS)
def test_agreement_is_that_of_a_loop(seed: int) -> None:
    scores = random_scores(seed, requests=30)
    lists = FunnelLists.of_scores(scores, QUOTAS)
    for stage in range(2):
        first, second = QUOTAS[stage : stage + 2]
        correlations, same, wanted, chance, wanted_chance = [], [], [], [], []
        for request in requests_of(scores):
            before, passed, kept = run(scores, request, own_orders(scores), QUOTAS)[stage : stage + 3]
            a, b = (scores.scores[at][request].tolist() for at in (stage, stage + 1))
            correlations.append(stats.spearmanr([a[item] for item in passed], [b[item] for item in passed]).statistic)
            if len(passed) > second:
                same.append(len(set(sorted(passed, key=lambda item: -a[item])[:second]) & set(kept)) / second)
                chance.append(second / len(passed))
            if len(before) > first:
                wants = sorted(before, key=lambda item: -b[item])[:second]
                wanted.append(len(set(wants) & set(passed)) / second)
                wanted_chance.append(first / len(before))
        found = agreement(lists, stage, NOW)
        assert found.correlation.value == pytest.approx(np.mean(correlations))
        assert found.overlap.value == pytest.approx(np.mean(same))
        assert found.overlap_chance == pytest.approx(np.mean(chance))
        assert found.wanted is not None
        assert found.wanted.value == pytest.approx(np.mean(wanted))
        assert found.wanted_chance == pytest.approx(np.mean(wanted_chance))


def test_random_stages_agree_by_chance() -> None:
    scores = random_scores(0, requests=600, items=30, signal=0.0, longest_only=True)
    lists = FunnelLists.of_scores(scores, [15, 8, 4])
    for stage in range(2):
        found = agreement(lists, stage, NOW)
        assert found.wanted is not None
        assert found.wanted_chance is not None
        pairs = [(found.correlation, 0.0), (found.overlap, found.overlap_chance), (found.wanted, found.wanted_chance)]
        for estimate, chance in pairs:  # the width of an interval is 3.9 standard errors
            assert abs(estimate.value - chance) < estimate.high - estimate.low


def test_agreement_over_all_items_needs_complete_lists() -> None:
    lists = FunnelLists.of_scores(pruned(random_scores(3, items=40), 10), QUOTAS)
    assert agreement(lists, 0, NOW).wanted is None
    assert agreement(lists, 1, NOW).wanted is not None


def test_intervals_are_those_of_scipy() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=300))
    (found,) = NOW.means([values])
    known = stats.bootstrap((values.numpy(),), np.mean, method="percentile", n_resamples=4000, random_state=0)
    assert found.low == pytest.approx(known.confidence_interval.low, abs=0.02)
    assert found.high == pytest.approx(known.confidence_interval.high, abs=0.02)
    (nothing,) = NOW.ratios([(values, torch.zeros_like(values))])
    assert np.isnan(nothing.value)


def test_requests_of_one_user_are_drawn_together() -> None:
    values = torch.arange(50.0).repeat_interleave(20)
    users = torch.arange(50).repeat_interleave(20)
    (alone,), (together,) = Resampler().means([values]), Resampler(users).means([values])
    assert together.value == alone.value
    assert together.high - together.low > 3 * (alone.high - alone.low)
    assert torch.equal(Resampler(users).per_unit(values.unsqueeze(-1))[:, 0], 20 * torch.arange(50.0).double())


def test_requests_without_relevant_items_are_an_error() -> None:
    scores = random_scores(0)
    scores.truth.zero_()
    with pytest.raises(ValueError, match="no request has a relevant item"):
        FunnelLists.of_scores(scores, QUOTAS)
