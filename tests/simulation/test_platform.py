"""The simulated platform, part by part, against loops, formulas and counts."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.platform_study import Study, funnel_recalls, variance_shares
from rankfall.simulation.platform import Models, Platform, RecentViews, Views
from rankfall.simulation.presets import PRESETS, Preset, Shares
from rankfall.simulation.world import (
    ATTENTION,
    DAY,
    ENOUGH_OF_AUTHOR,
    ENOUGH_OF_CATEGORY,
    FIRST_DAY,
    FRESHNESS_DAYS,
    LIFETIME,
    LIFETIME_SPREAD,
    NO_ITEM,
    PEAK,
    RECENCY,
    Catalogue,
    Items,
    World,
    mixed,
)

if TYPE_CHECKING:
    from rankfall.simulation.platform import Scores, ServedPortion

TINY = PRESETS["tiny"]
DAYS = 3


@pytest.fixture(scope="module")
def lived() -> tuple[Platform, list[ServedPortion]]:
    platform = Platform(TINY, 2, 400)
    return platform, list(platform.run(DAYS))


# --- users and items --------------------------------------------------------------------------------------------


def test_items_are_as_many_and_as_old_as_if_births_had_gone_on_forever() -> None:
    preset = replace(TINY, births=500)
    world = World(preset, 0)
    first = world.first_items()
    # the witness: births and deaths, day after day, over a time that few outlive
    days = 400
    random = np.random.default_rng(1)
    born = np.repeat(np.arange(days), preset.births) + random.random(days * preset.births)
    lifetime = LIFETIME * np.exp(LIFETIME_SPREAD * random.standard_normal(len(born)))
    alive = born + lifetime > days
    age = (FIRST_DAY - first.upload_time) / DAY
    assert len(first.alive(FIRST_DAY)) == len(first)
    assert len(first) == pytest.approx(alive.sum(), rel=0.05)
    for share in (0.25, 0.5, 0.75):
        assert np.quantile(age, share) == pytest.approx(np.quantile(days - born[alive], share), rel=0.15)


def test_items_are_matched_only_while_they_live(lived: tuple[Platform, list[ServedPortion]]) -> None:
    platform, portions = lived
    for number, portion in enumerate(portions):
        start = FIRST_DAY + DAY * (number // 8)
        found = np.unique(portion.candidates[portion.candidates != NO_ITEM])
        assert (platform.items.upload_time[found] < start).all()
        assert (platform.items.death[found] > start).all()


def test_interests_drift_further_every_day() -> None:
    platform = Platform(TINY, 0, 100)
    study = Study(platform)
    study.run(6)
    for name in study.drift[0]:
        values = [day[name] for day in study.drift]
        assert values[0] == pytest.approx(1)
        assert values == sorted(values, reverse=True)
        assert values[-1] < 0.97


def test_some_users_come_much_more_often_than_others(lived: tuple[Platform, list[ServedPortion]]) -> None:
    counts = Counter(user for portion in lived[1] for user in portion.requests.user.tolist())
    busiest = sum(count for _, count in counts.most_common(TINY.users // 10))
    assert busiest > 0.3 * counts.total()


# --- matching ---------------------------------------------------------------------------------------------------


def test_candidates_are_new_to_the_user_and_different(lived: tuple[Platform, list[ServedPortion]]) -> None:
    for portion in lived[1][::5]:
        for candidates, viewed in zip(portion.candidates.tolist(), portion.requests.history.item.tolist(), strict=True):
            found = [item for item in candidates if item != NO_ITEM]
            assert len(found) == len(set(found)) > TINY.production.prerank_keeps
            assert not set(found) & set(viewed)


def test_every_channel_draws_by_its_weights() -> None:
    world = World(TINY, 0)
    items = world.first_items()
    views = np.random.default_rng(0).integers(0, 50, len(items)).astype(np.float64)
    catalogue = Catalogue(world, items, views, FIRST_DAY)
    viewed = np.full((4000, 50), NO_ITEM, np.int32)
    viewed[:, 7] = 3
    vectors = np.zeros((4000, world.category_vectors.shape[1]), np.float32)

    def drawn(channel: str) -> Counter[int]:
        one = replace(TINY.production.channels, interest=0, authors=0, popular=0, fresh=0, random=0)
        found = catalogue.match(np.random.default_rng(5), vectors, viewed, replace(one, **{channel: 1}))
        return Counter(found[found != NO_ITEM].tolist())

    weights = (1 + views) ** 0.75
    weights[3] = 0  # viewed already
    assert_drawn(drawn("popular"), weights, items.author)
    assert_drawn(drawn("fresh"), np.exp((items.upload_time - FIRST_DAY) / DAY), items.author)
    assert_drawn(drawn("random"), np.ones(len(items)), items.author)
    # with no interest at all a category is drawn by the root of its size, and an item by the root of its weight
    size = np.bincount(items.subcategory)[items.subcategory]
    inside = np.sqrt((1 + views) ** 0.75)
    total = np.bincount(items.subcategory, inside)[items.subcategory]
    assert_drawn(drawn("interest"), np.sqrt(size) * inside / total, items.subcategory)
    same = set(np.flatnonzero(items.author == items.author[3]).tolist()) - {3}
    assert set(drawn("authors")) == same


def assert_drawn(found: Counter[int], weights: np.ndarray, groups: np.ndarray) -> None:
    """The counts of groups of items are those of independent draws, within five standard deviations."""
    total = found.total()
    expected = np.bincount(groups, weights / weights.sum()) * total
    counts = np.bincount(groups[list(found)], list(found.values()), minlength=len(expected))
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected + 1)).all()
    assert total > 3900


# --- relevance --------------------------------------------------------------------------------------------------


def test_parts_of_relevance_are_their_formulas(lived: tuple[Platform, list[ServedPortion]]) -> None:
    platform, portions = lived
    portion, users, items, relevance = portions[-1], platform.users, platform.items, platform.relevance
    requests = portion.requests
    found: dict[str, list[float]] = {name: [] for name in portion.parts}
    expected: dict[str, list[float]] = {name: [] for name in portion.parts}
    for row in range(0, len(requests.user), 7):
        user = int(requests.user[row])
        seconds = int(requests.time[row]) // 1000 + 8 * 3600
        hour, weekday = seconds // 3600 % 24, (seconds // DAY + 3) % 7
        for column, item in enumerate(portion.candidates[row].tolist()):
            if item == NO_ITEM:
                continue
            upload_hour = (int(items.upload_time[item]) + 8 * 3600) // 3600 % 24
            angles = (
                hour * math.tau / 24
                + relevance._hour_of_age[users.age[user]]
                - relevance._hour_of_subcategory[items.subcategory[item]],
                relevance._province[users.province[user]]
                + relevance._weekday[weekday]
                - relevance._author[items.author[item]],
                relevance._segment[users.age[user], users.gender[user]]
                - relevance._type[items.upload_type[item]]
                - upload_hour * math.tau / 24,
            )
            values = {
                "interest": sum(p * q for p, q in zip(users.vectors[user], items.vector[item], strict=True)),
                "quality": items.quality[item],
                "freshness": math.exp((items.upload_time[item] - requests.time[row] / 1000) / FRESHNESS_DAYS / DAY),
                "cross": sum(math.exp(PEAK * (math.cos(angle) - 1)) for angle in angles),
                "history": history_part(items, requests.history.item[row].tolist(), item),
            }
            for name, value in values.items():
                expected[name].append(float(value))
                found[name].append(float(portion.parts[name][row, column]))
    for name in found:
        slope, offset = np.polyfit(expected[name], found[name], 1)  # a part is its formula, on the common scale
        assert slope > 0
        assert np.abs(slope * np.array(expected[name]) + offset - found[name]).max() < 2e-3


def history_part(items: Items, history: list[int], item: int) -> float:
    weights = [math.exp(-age / RECENCY) for age in range(len(history))]
    total = 0.0
    for group, enough in ((items.subcategory, ENOUGH_OF_CATEGORY), (items.author, ENOUGH_OF_AUTHOR)):
        same = 0.0
        for age, event in enumerate(reversed(history)):
            if event != NO_ITEM and group[event] == group[item]:
                same += weights[age]
        share = same / sum(weights) / enough
        total += share * math.exp(1 - share)
    return total


def test_parts_have_the_shares_of_the_preset(lived: tuple[Platform, list[ServedPortion]]) -> None:
    found = [variance_shares(portion, TINY.shares) for portion in lived[1]]
    for name in found[0]:
        assert np.mean([shares[name] for shares in found]) == pytest.approx(getattr(TINY.shares, name), rel=0.15)


def test_relevance_is_the_parts_and_noise(lived: tuple[Platform, list[ServedPortion]]) -> None:
    noise = np.concatenate(
        [
            (p.relevance - np.take_along_axis(mixed(p.parts, TINY.shares), p.served.place, axis=1)).ravel()
            for p in lived[1]
        ]
    )
    assert abs(noise.mean()) < 5 * noise.std() / math.sqrt(len(noise))
    assert noise.var() == pytest.approx(TINY.shares.noise, rel=0.05)


@pytest.mark.parametrize("shares", [{"cross": 0.5}, {"noise": -0.12, "cross": 0.58}])
def test_shares_must_be_shares(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^shares: found .* sum to 1"):
        Shares(**shares)


# --- production -------------------------------------------------------------------------------------------------


def test_later_models_see_more_of_the_truth(lived: tuple[Platform, list[ServedPortion]]) -> None:
    portion = lived[1][-1]
    truth = mixed(portion.parts, TINY.shares)

    def agreement(scores: np.ndarray) -> float:
        real = portion.candidates != NO_ITEM
        rows = range(len(truth))
        return float(np.mean([spearmanr(scores[r][real[r]], truth[r][real[r]]).statistic for r in rows]))

    found = [agreement(s) for s in (portion.scores.prerank, portion.scores.coarse, portion.scores.rank)]
    assert 0.2 < found[0] < found[1] < found[2] < 0.97


def test_each_model_keeps_the_best_by_its_own_score(lived: tuple[Platform, list[ServedPortion]]) -> None:
    production = TINY.production
    portion = lived[1][3]
    for row in range(0, len(portion.items), 5):
        prerank, coarse, rank = (s[row] for s in (portion.scores.prerank, portion.scores.coarse, portion.scores.rank))
        real = [c for c in range(len(prerank)) if portion.candidates[row, c] != NO_ITEM]
        kept = sorted(real, key=lambda c: -prerank[c])[: production.prerank_keeps]
        ranked = sorted(kept, key=lambda c: -coarse[c])[: production.coarse_keeps]
        order = sorted(ranked, key=lambda c: -rank[c])
        served = portion.served
        for column, place in enumerate(served.place[row].tolist()):
            model = served.last_model[row, column]
            assert (place in kept) == (model > 1)
            assert (place in ranked) == (model > 2)
            assert (place in order[: production.rank_keeps]) == (model == 4)
            assert served.rank_index[row, column] == (order.index(place) if place in ranked else -1)


def test_noisy_early_stages(lived: tuple[Platform, list[ServedPortion]]) -> None:
    platform, portions = lived
    portion = portions[-1]
    parts = portion.parts

    def scores(**changes: Any) -> Scores:
        preset = replace(TINY, production=replace(TINY.production, **changes))
        models = Models(preset, platform.users, platform.items, FIRST_DAY)
        return models.score(np.random.default_rng(7), portion.requests, portion.candidates, parts)

    plain, noisy = scores(), scores(early_noise=3.0, early_favour=1.5, rank_favour=-3.0)
    real = portion.candidates != NO_ITEM
    quality = parts["quality"][real]
    np.testing.assert_allclose(noisy.rank[real] - plain.rank[real], -3 * quality, atol=1e-4)
    noise = [
        after[real] - before[real] - 1.5 * quality for before, after in zip(_early(plain), _early(noisy), strict=True)
    ]
    error = 4 / math.sqrt(len(quality))  # four standard errors
    for values in noise:
        assert abs(values.mean()) < 3 * error
        assert values.std() == pytest.approx(3, rel=error)
    assert abs(np.corrcoef(noise)[0, 1]) < error


def _early(scores: Scores) -> tuple[Any, Any]:
    return scores.prerank, scores.coarse


def test_mix_ranking_prefers_variety(lived: tuple[Platform, list[ServedPortion]]) -> None:
    platform, portions = lived
    first: dict[str, list[int]] = {"rank_index": [], "rerank_index": []}
    for portion in portions:
        kinds = platform.items.subcategory[portion.items]
        for name, found in first.items():
            places = getattr(portion.served, name)
            for row in range(len(kinds)):
                found.append(len(set(kinds[row][(places[row] >= 0) & (places[row] < 10)].tolist())))
    assert np.mean(first["rerank_index"]) > np.mean(first["rank_index"]) + 0.2


def test_lower_places_get_fewer_looks(lived: tuple[Platform, list[ServedPortion]]) -> None:
    looks, shows = np.zeros(10), np.zeros(10)
    for portion in lived[1]:
        shown = portion.feedback["realshow"] > 0
        place = portion.served.rerank_index[shown]
        shows += np.bincount(place, minlength=10)
        looks += np.bincount(place, portion.feedback["playing_time"][shown] > 0, minlength=10)
    expected = (1.0 + np.arange(10)) ** -ATTENTION
    assert (np.abs(looks / shows - expected) < 4 * np.sqrt(0.25 / shows) + 1e-9).all()


def test_what_is_relevant_is_viewed_more_often(lived: tuple[Platform, list[ServedPortion]]) -> None:
    relevance = np.concatenate([p.relevance[p.feedback["realshow"] > 0] for p in lived[1]])
    viewed = np.concatenate([p.feedback["effective_view"][p.feedback["realshow"] > 0] for p in lived[1]])
    rates = [part.mean() for part in np.array_split(viewed[np.argsort(relevance)], 5)]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0] + 0.2


def test_recalls_leave_room_between_chance_and_the_truth(lived: tuple[Platform, list[ServedPortion]]) -> None:
    recalls = funnel_recalls(lived[1][-1], np.random.default_rng(0))
    assert recalls["chance"] == pytest.approx(0.5)
    assert 0.6 < recalls["pre-ranking"] < recalls["truth"] - 0.05
    assert recalls["the ranking model"] > 0.95


# --- what users viewed ------------------------------------------------------------------------------------------


def test_recent_views_are_the_last_fifty() -> None:
    random = np.random.default_rng(0)
    recent = RecentViews.empty(5)
    queues: list[deque[tuple[int, int]]] = [deque(maxlen=50) for _ in range(5)]
    for round_ in range(12):
        count = int(random.integers(0, 120))
        user, item = random.integers(0, 5, count), random.integers(0, 1000, count)
        time = np.arange(count) + 1000 * round_ + 1
        recent.add(Views(user, item, time, 2 * time, 3 * time))
        for one in zip(user.tolist(), item.tolist(), time.tolist(), strict=True):
            queues[one[0]].append(one[1:])
        for number, queue in enumerate(queues):
            padding = 50 - len(queue)
            assert recent.item[number].tolist() == [NO_ITEM] * padding + [item for item, _ in queue]
            assert recent.time[number].tolist() == [0] * padding + [time for _, time in queue]
            assert recent.playing_time[number].tolist() == [0] * padding + [2 * time for _, time in queue]
            assert recent.request[number].tolist() == [0] * padding + [3 * time for _, time in queue]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_stages_have_what_the_sample_takes(preset: Preset) -> None:
    production = preset.production
    assert production.logged >= max(preset.sample)
    assert production.rank_keeps >= 20
    assert production.prerank_keeps >= production.coarse_keeps > production.rank_keeps + production.logged
