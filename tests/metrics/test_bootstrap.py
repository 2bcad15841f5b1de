"""Bootstrap intervals of means and ratios, against every possible resample and against scipy."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from rankfall.metrics.significance import interval, resampled_sums


def test_resamples_of_three_requests_are_those_of_an_enumeration() -> None:
    columns = torch.tensor([[1.0, 10.0], [2.0, 10.0], [4.0, 30.0]])
    sums = resampled_sums(columns, resamples=20_000)
    every = Counter(tuple(columns[list(drawn)].sum(0).tolist()) for drawn in itertools.product(range(3), repeat=3))
    found = Counter(map(tuple, sums.tolist()))
    assert set(found) == set(every)
    for total, count in every.items():
        assert found[total] / 20_000 == pytest.approx(count / 27, abs=0.012)  # 3.5 standard deviations


@pytest.mark.parametrize("count", [40, 300])
def test_intervals_of_means_and_ratios_are_those_of_scipy(count: int) -> None:
    rng = np.random.default_rng(count)
    whole = rng.random(count)
    part = whole * rng.beta(2, 1, count)
    sums = resampled_sums(torch.from_numpy(np.stack([part, whole], -1)), resamples=9000)
    figures = {
        "mean": (sums[:, 0] / count, lambda a, b: a.mean()),
        "ratio": (sums[:, 0] / sums[:, 1], lambda a, b: a.sum() / b.sum()),
    }
    for name, (ours, statistic) in figures.items():
        expected = stats.bootstrap(
            (part, whole), statistic, paired=True, vectorized=False, n_resamples=9000, method="percentile", rng=1
        ).confidence_interval
        low, high = interval(ours)
        width = expected.high - expected.low
        assert float(low) == pytest.approx(expected.low, abs=0.04 * width), name
        assert float(high) == pytest.approx(expected.high, abs=0.04 * width), name


def test_requests_of_a_user_are_drawn_together() -> None:
    columns = torch.tensor([[1.0, 1.0], [1.0, 1.0], [5.0, 1.0], [0.0, 1.0]])
    users = torch.tensor([7, 7, 3, -2])
    sums = resampled_sums(columns, units=users, resamples=500)
    by_user = [(2.0, 2.0), (5.0, 1.0), (0.0, 1.0)]
    possible = {tuple(np.sum(drawn, 0)) for drawn in itertools.product(by_user, repeat=3)}
    assert {tuple(row) for row in sums.tolist()} <= possible


def test_users_with_many_equal_requests_widen_the_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(50, generator=generator).repeat_interleave(20).unsqueeze(-1)
    widths = []
    for units in (None, torch.arange(50).repeat_interleave(20)):
        low, high = interval(resampled_sums(values, units=units) / 1000)
        widths.append(float(high - low))
    assert widths[1] / widths[0] == pytest.approx(20**0.5, rel=0.15)


def test_draws_repeat_and_are_made_in_blocks() -> None:
    columns = torch.rand(3000, 2)
    assert torch.equal(resampled_sums(columns), resampled_sums(columns))
    assert not torch.equal(resampled_sums(columns), resampled_sums(columns, seed=1))
    assert resampled_sums(columns, resamples=1001).shape == (1001, 2)  # the last block is smaller
    assert resampled_sums(torch.rand(0, 2), resamples=3).tolist() == [[0.0, 0.0]] * 3


def test_undefined_resamples_are_left_out_of_an_interval() -> None:
    low, high = interval(torch.tensor([float("nan"), *torch.linspace(0, 1, 101).tolist()], dtype=torch.double))
    assert (float(low), float(high)) == pytest.approx((0.025, 0.975))
