"""Estimators of examination: exact where the model holds exactly, against hand computations and brute force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rankfall.examination import Naive, Pairs, RegressionEM, Shows, varies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CURVE = np.array([1.0, 0.6, 0.5, 0.2])


def shows_of(position: Any, click: Any, **values: Any) -> Shows:
    position = np.asarray(position)
    rows = np.arange(len(position))
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return Shows(position, np.asarray(click, bool), rows, rows, "requests", arrays)


def expected_clicks(attraction: Floats, counts: Floats) -> tuple[Shows, Floats]:
    """Return rows whose weights are the expected clicks and misses of every group at every position.

    Args:
        attraction: Probability of a click on an examined item of each group.
        counts: Shows (groups, positions).
    """
    group, position = np.nonzero(counts)
    click = counts[group, position] * CURVE[position] * attraction[group]
    weight = np.concatenate([click, counts[group, position] - click])
    shows = shows_of(np.tile(position, 2), np.repeat([True, False], len(group)), group=np.tile(group, 2))
    return shows, weight


def confounded() -> tuple[Shows, Floats]:
    """Return groups of which the attractive ones are shown first, and far more often."""
    attraction = np.array([0.9, 0.5, 0.3, 0.1])
    counts = np.array([[900.0, 90, 0, 0], [80, 300, 50, 0], [0, 40, 200, 60], [0, 0, 30, 400]])
    return expected_clicks(attraction, counts)


def test_the_naive_curve_is_the_click_rate() -> None:
    shows = shows_of([0, 0, 0, 0, 1, 1], [1, 1, 1, 0, 1, 0])
    np.testing.assert_allclose(Naive(shows)(np.ones(6)), [1, (1 / 2) / (3 / 4)])
    np.testing.assert_allclose(Naive(shows)(np.array([1.0, 0, 0, 1, 3, 1])), [1, (3 / 4) / (1 / 2)])


def test_better_items_first_make_the_naive_curve_too_steep() -> None:
    shows, weight = confounded()
    assert (Naive(shows)(weight)[1:] < 0.8 * CURVE[1:]).all()


def test_pairs_separate_position_from_attraction() -> None:
    shows, weight = confounded()
    np.testing.assert_allclose(Pairs(shows)(weight), CURVE, rtol=1e-6)


def test_pairs_by_hand() -> None:
    # Both groups have as many shows at both positions, so the ratio is that of all clicks: 3 to 4. Group 9 was shown at
    # one position and group 8 has no click: neither tells anything.
    rows = [
        (0, 0, 1),
        (0, 0, 1),
        (0, 1, 1),
        (0, 1, 0),
        (1, 0, 1),
        (1, 0, 1),
        (1, 1, 1),
        (1, 1, 1),
        (9, 0, 0),
        (9, 0, 0),
    ]
    rows += [(8, 0, 0), (8, 1, 0)]
    group, position, click = np.array(rows).T
    pairs = Pairs(shows_of(position, click, group=group))
    assert pairs.groups == 2
    np.testing.assert_allclose(pairs(np.ones(len(rows))), [1, 3 / 4])


def test_pairs_maximise_the_likelihood_of_click_positions() -> None:
    random = np.random.default_rng(0)
    group, position = random.integers(30, size=2000), random.integers(4, size=2000)
    click = random.random(2000) < CURVE[position] * (1 + group) / 40
    estimate = Pairs(shows_of(position, click, group=group))(np.ones(2000))

    def likelihood(curve: Floats) -> float:
        total = 0.0
        for one in range(30):
            of_group = group == one
            chances = curve[position[of_group]]
            total += float(np.log(chances[click[of_group]] / chances.sum()).sum())
        return total

    best = likelihood(estimate)
    for _ in range(50):
        assert likelihood(estimate * np.exp(0.05 * random.standard_normal(4))) < best


def test_pairs_need_items_that_connect_the_positions() -> None:
    shows = shows_of([0, 1, 2, 3], [1, 1, 1, 1], group=[0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"given: found group, .* the positions 2, 3 with the first"):
        Pairs(shows)


def test_groups_are_combinations_of_all_values() -> None:
    same = {"position": [0, 1, 0, 1], "click": [1, 1, 1, 0]}
    assert Pairs(shows_of(**same, a=[1, 1, 2, 2], b=[0.5, 0.5, 0.5, 0.5])).groups == 2
    assert Pairs(shows_of(**same, a=[1, 1, 1, 1], b=[0.5, 0.5, 0.5, 0.5])).groups == 1
    with pytest.raises(ValueError, match="given: found a, b"):
        Pairs(shows_of(**same, a=[1, 1, 2, 2], b=[0, 1, 2, 3]))


# --- regression-EM --------------------------------------------------------------------------------------------------


def test_em_separates_position_from_attraction() -> None:
    shows, weight = confounded()
    np.testing.assert_allclose(RegressionEM(shows)(1e4 * weight), CURVE, rtol=1e-3)


def test_em_uses_numbers_of_any_scale() -> None:
    number = np.array([-300.0, -100, 100, 300])
    attraction = 1 / (1 + np.exp(-number / 200))
    counts = np.array([[10.0, 20, 40, 300], [20, 40, 80, 60], [80, 60, 40, 20], [300, 60, 20, 10]])
    shows, weight = expected_clicks(attraction, counts)
    given = shows_of(shows.position, shows.click, number=number[shows.values["group"]])
    np.testing.assert_allclose(RegressionEM(given)(1000 * weight), CURVE, rtol=2e-3)


def random_em() -> tuple[RegressionEM, Shows, Floats]:
    random = np.random.default_rng(1)
    position, kind = random.integers(3, size=400), random.integers(3, size=400)
    shows = shows_of(position, random.random(400) < 0.4, kind=kind, numbers=random.standard_normal((400, 2)))
    return RegressionEM(shows), shows, random.poisson(1.0, 400).astype(float)


def test_the_gradient_of_em_is_that_of_finite_differences() -> None:
    em, _, weight = random_em()
    point = np.random.default_rng(2).standard_normal(3 + 4 + 2)
    _, gradient = em.loss(point, weight)
    for place in range(len(point)):
        step = np.zeros(len(point))
        step[place] = 1e-6
        slope = (em.loss(point + step, weight)[0] - em.loss(point - step, weight)[0]) / 2e-6
        assert gradient[place] == pytest.approx(slope, abs=1e-7)


def test_the_curve_of_em_is_a_fixed_point_of_the_alternation() -> None:
    shows, weight = confounded()
    em = RegressionEM(shows)
    em(weight)
    solution = em._start.numpy()
    seen = (1 / (1 + np.exp(-solution[:4])))[shows.position]
    liked = 1 / (1 + np.exp(-solution[4] - solution[5:][shows.values["group"]]))
    # expectation: a click was examined, a miss with this probability; maximisation: the mean of each position
    examined = np.where(shows.click, 1, seen * (1 - liked) / (1 - seen * liked))
    again = np.bincount(shows.position, weight * examined) / np.bincount(shows.position, weight)
    np.testing.assert_allclose(again, 1 / (1 + np.exp(-solution[:4])), rtol=1e-3)


def test_a_regression_that_remembers_single_shows_flattens_the_curve() -> None:
    random = np.random.default_rng(3)
    position = random.integers(2, size=3000)
    click = random.random(3000) < np.array([0.8, 0.4])[position]
    one = RegressionEM(shows_of(position, click, kind=np.zeros(3000, int)))(np.ones(3000))
    every = RegressionEM(shows_of(position, click, kind=np.arange(3000)))(np.ones(3000))
    assert one[1] == pytest.approx(0.5, abs=0.05)
    assert every[1] > one[1] + 0.02


def test_ranks_that_are_positions_do_not_vary() -> None:
    position = np.tile(np.arange(4), 100)
    assert not varies(position, position)
    assert varies(np.where(np.arange(400) < 40, 3 - position, position), position)
