"""Samples of a cascade: what is drawn from what each stage dropped, with which probability, score and rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.serving.drawing import draw_from_all, draw_samples
from rankfall.serving.request_encoder import NO_ITEM, EncodedRequests
from support.bundles import platform_bundle
from support.services import loaded, ranking_bundle, requests

if TYPE_CHECKING:
    from rankfall.serving.bundle import Bundle, Ranking
    from rankfall.serving.drawing import Sample

SEEDS = np.random.default_rng(5)


def sampled(
    bundle: Bundle, encoded: EncodedRequests, *counts: int, seeds: Any = None, explain: bool = False
) -> tuple[list[Ranking], list[Sample]]:
    """Rank items for requests, all of which are sampled; return the rankings and samples."""
    answers = bundle.run(encoded, explain=explain, sampled=np.ones(len(encoded), np.bool_))
    trails = [ranking.trail for ranking in answers.rankings if ranking.trail is not None]
    assert len(trails) == len(encoded)
    seeds = SEEDS.integers(2**64, size=len(encoded), dtype=np.uint64) if seeds is None else seeds
    samples = [sample for sample in draw_samples(trails, seeds, counts) if sample is not None]
    assert len(samples) == len(encoded)
    return answers.rankings, samples


def drawn_by(sample: Sample, stage: int) -> np.ndarray[Any, Any]:
    """Return the positions in a sample of the items of a stage."""
    return np.flatnonzero((sample.stages == stage) & (sample.rows != NO_ITEM))


def sample_of(bundle: Bundle, *counts: int, **options: Any) -> tuple[Any, Sample]:
    (ranking,), (sample,) = sampled(bundle, bundle.encode([requests()[0]], **options), *counts, explain=True)
    return ranking, sample


OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": [3]},
    {"exclude": [list(range(0, 40, 3))]},
    {"candidates": [list(range(60))]},
    {"candidates": [list(range(60))], "exclude": [list(range(0, 60, 7))], "k": [4]},
    {"candidates": [list(range(7))]},
    {"candidates": [[]]},
]


@pytest.mark.parametrize("bundle", [platform_bundle, ranking_bundle])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_dropped_item_is_drawn_if_there_are_few(bundle: Any, options: dict[str, Any]) -> None:
    """With more draws than items, a sample has every item exactly once, where plain Python says it was dropped."""
    bundle = loaded(bundle())
    request, last = requests()[0], len(bundle.stages) - 1
    ids = bundle.items.ids(np.arange(len(bundle.items)))
    excluded = set(options.get("exclude", [[]])[0])
    left = [one for one in options.get("candidates", [ids])[0] if one in set(ids) - excluded]
    is_search = "candidates" not in options
    ranking, sample = sample_of(bundle, 100_000, **options)
    names = dict(zip(range(len(ids)), ids, strict=True))
    seen = 0
    for number, stage in enumerate(bundle.stages):
        scores = dict(zip(left, bundle.score(request, left)[stage.name] if left else [], strict=True))
        order = sorted(left, key=lambda one: -scores[one])
        kept = options.get("k", [stage.quota])[0] if number == last else stage.quota
        found = set(ranking.stages[number].ids[: stage.quota]) if is_search and number == 0 else set(order[:kept])
        if number == last:
            found = set(ranking.ids)
        at = drawn_by(sample, number)
        assert {names[row] for row in sample.rows[at].tolist()} == set(left) - found
        assert len(at) == len(left) - len(found)
        assert np.allclose(sample.scores[at], [scores[names[row]] for row in sample.rows[at].tolist()], atol=1e-5)
        assert (sample.inclusion[at] == 1).all()
        for row, rank in zip(sample.rows[at].tolist(), sample.ranks[at].tolist(), strict=True):
            if not (is_search and number == 0):
                assert abs(scores[order[rank]] - scores[names[row]]) < 1e-5  # ties may be in any order
                assert rank >= kept
        seen += len(at)
        left = [one for one in left if one in found]
    answered = drawn_by(sample, len(bundle.stages))
    assert [names[row] for row in sample.rows[answered].tolist()] == ranking.ids
    assert sample.ranks[answered].tolist() == list(range(len(ranking.ids)))
    assert np.array_equal(sample.scores[answered], np.array(ranking.scores, np.float32))
    assert (sample.inclusion[answered] == 1).all()


@pytest.mark.parametrize("options", [{}, {"candidates": list(range(60)), "k": 4}], ids=["search", "candidates"])
def test_items_are_drawn_as_often_as_their_probability_says(options: dict[str, Any]) -> None:
    """20,000 draws: each dropped item within five standard deviations, others never; 1/inclusion counts the items."""
    bundle, tries, counts = loaded(platform_bundle()), 20_000, (30, 4)
    given = {name: [value] for name, value in options.items()}
    encoded = bundle.encode([requests()[0]], exclude=[list(range(0, 200, 3))], **given)
    (ranking,), (all_of_it,) = sampled(bundle, encoded, 10**6)
    assert ranking.trail is not None
    times_drawn = np.zeros((2, len(bundle.items)), np.int64)
    weights = np.zeros(2)
    for _ in range(tries // 1000):
        seeds = SEEDS.integers(2**64, size=1000, dtype=np.uint64)
        for sample in draw_samples([ranking.trail] * 1000, seeds, counts):
            assert sample is not None
            for stage in (0, 1):
                at = drawn_by(sample, stage)
                np.add.at(times_drawn[stage], sample.rows[at], 1)
                weights[stage] += (1 / sample.inclusion[at]).sum()
    for stage, count in enumerate(counts):
        dropped = all_of_it.rows[drawn_by(all_of_it, stage)]
        share = min(1.0, count / len(dropped))
        deviation = np.sqrt(tries * share * (1 - share))
        assert (np.abs(times_drawn[stage][dropped] - tries * share) <= 5 * deviation).all()
        assert times_drawn[stage].sum() == times_drawn[stage][dropped].sum() == tries * min(count, len(dropped))
        assert weights[stage] / tries == pytest.approx(len(dropped), rel=1e-5)


def test_pairs_are_drawn_without_replacement() -> None:
    """Both ways to draw from all items: all pairs are equally likely, and no item is drawn twice."""
    for items, without in ((12, np.arange(2)), (40, np.arange(6, 40))):  # random rows, and random keys
        left = np.setdiff1d(np.arange(items), without)
        tries = 20_000
        seeds = np.random.default_rng(7).integers(2**64, size=tries, dtype=np.uint64)
        taken = np.broadcast_to(without, (tries, len(without)))
        drawn, inclusion = draw_from_all(items, taken, [np.empty(0, np.int64)] * tries, seeds, 2)
        assert np.isin(drawn, left).all()
        assert (drawn[:, 0] != drawn[:, 1]).all()
        assert inclusion == pytest.approx(2 / len(left))
        pairs = np.unique(np.sort(drawn, axis=1), axis=0, return_counts=True)[1]
        expected = tries / (len(left) * (len(left) - 1) / 2)
        assert len(pairs) == len(left) * (len(left) - 1) / 2
        assert (np.abs(pairs - expected) < 5 * np.sqrt(expected)).all()


def test_draws_from_a_large_index_are_spread_evenly() -> None:
    items, tries = 3_000_000, 2_000
    seeds = np.random.default_rng(8).integers(2**64, size=tries, dtype=np.uint64)
    exclude = [np.arange(100_000)] + [np.empty(0, np.int64)] * (tries - 1)
    taken = np.full((tries, 50), NO_ITEM)
    taken[:, :40] = np.arange(items - 40, items)
    drawn, inclusion = draw_from_all(items, taken, exclude, seeds, 25)
    assert not np.isin(drawn, taken[0, :40]).any()
    assert drawn[0].min() >= 100_000
    assert all(len(set(row)) == 25 for row in drawn.tolist())
    assert inclusion[:2] == pytest.approx([25 / (items - 100_040), 25 / (items - 40)])
    tenths = np.bincount(drawn.ravel() * 10 // items, minlength=10)
    assert (np.abs(tenths - 5_000) < 5 * np.sqrt(5_000 * 0.9)).all()


def test_a_request_is_sampled_alike_in_any_batch() -> None:
    """Batches mix sampled and unsampled requests, lists of candidates and searches."""
    bundle, given = loaded(platform_bundle()), requests()[:6]
    options: dict[str, Any] = {
        "candidates": [None, list(range(200)), None, list(range(50)), None, None],
        "exclude": [None, [1, 2], [3, 4, 5], None, None, None],
        "k": [None, 2, 3, None, 5, None],
    }
    encoded = bundle.encode(given, **options)
    flags, seeds = np.array([True, True, False, True, True, False]), SEEDS.integers(2**64, size=6, dtype=np.uint64)
    answers = bundle.run(encoded, sampled=flags).rankings
    assert [ranking.ids for ranking in answers] == [ranking.ids for ranking in bundle.run(encoded).rankings]
    assert [ranking.trail is not None for ranking in answers] == flags.tolist()
    trails = [ranking.trail for ranking in answers if ranking.trail is not None]
    together, order = draw_samples(trails, seeds[flags], (7, 3)), [2, 0, 3, 1]
    shuffled = draw_samples([trails[place] for place in order], seeds[flags][order], (7, 3))
    for number, place in enumerate(np.flatnonzero(flags).tolist()):
        _, (expected,) = sampled(bundle, encoded.take([place]), 7, 3, seeds=seeds[place : place + 1])
        for found in (together[number], shuffled[order.index(number)]):
            assert found is not None
            assert items_of(found) == items_of(expected)


def items_of(sample: Sample) -> set[tuple[int, int]]:
    """Return the pairs of stage and item of a sample."""
    return {(stage, row) for stage, row in zip(sample.stages.tolist(), sample.rows.tolist(), strict=True) if row >= 0}


def test_counts_of_further_stages_are_those_of_the_last_one() -> None:
    bundle = loaded(platform_bundle())
    for counts, expected in (((4,), [4, 4]), ((2, 3), [2, 3]), ((0, 5), [0, 5]), ((1, 2, 3), [1, 2])):
        _, sample = sample_of(bundle, *counts)
        assert [len(drawn_by(sample, stage)) for stage in (0, 1)] == expected
