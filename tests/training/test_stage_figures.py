"""Figures of stages: by hand, by their sums and products, and against a random cascade."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rankfall.metrics import funnel
from rankfall.training import cascade_metrics as figures_module
from rankfall.training.cascade_metrics import Resampler, estimates, stage_figures


def test_figures_by_hand() -> None:
    # Three requests with lists of 10, 10 and 4 items; the last one has no relevant item and does not count.
    left = torch.tensor([[1.0, 0.5], [0.5, 0.0], [math.nan, math.nan]])
    first, second = stage_figures(["a", "b"], [5, 2], left, torch.tensor([10, 4, 4]), alone={"a": left[:, 0]})
    assert (first.stage, first.quota, first.entered) == ("a", 5, 7.0)
    assert (second.stage, second.quota, second.entered) == ("b", 2, 4.5)
    assert [one.survived.value for one in (first, second)] == [0.75, 0.25]
    assert [one.kept.value for one in (first, second)] == pytest.approx([0.75, 1 / 3])
    assert [one.lost.value for one in (first, second)] == pytest.approx([0.25, 0.5])
    assert [one.loss_share.value for one in (first, second)] == pytest.approx([1 / 3, 2 / 3])
    assert first.chance == pytest.approx((0.5 + 1.0) / 2)
    assert second.chance == pytest.approx((1.0 * 2 / 5 + 0.5 * 2 / 4) / 1.5)  # weighted by what arrived
    assert first.alone is not None
    assert first.alone.value == 0.75
    assert first.alone_chance == pytest.approx(0.75)
    assert second.alone is None
    assert second.alone_chance is None


def random_shares(requests: int = 400, stages: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    left = torch.rand(requests, stages, generator=generator).cumprod(-1)
    left[::7] = math.nan
    return left


def test_kept_multiplies_to_the_joint_recall_and_losses_sum_to_one() -> None:
    left = random_shares()
    figures = stage_figures("abc", [30, 20, 10], left, torch.full((400,), 100))
    joint = float(left[:, -1].double().nanmean())
    assert math.prod(one.kept.value for one in figures) == pytest.approx(joint)
    assert sum(one.lost.value for one in figures) == pytest.approx(1 - joint)
    assert sum(one.loss_share.value for one in figures) == pytest.approx(1)
    for one in figures:
        for estimate in (one.survived, one.kept, one.lost, one.loss_share):
            assert estimate.low < estimate.value < estimate.high
    assert [one.entered for one in figures] == [100, 30, 20]


def test_intervals_of_ratios_are_those_of_a_plain_loop() -> None:
    left = random_shares()
    second = stage_figures("abc", [30, 20, 10], left, torch.full((400,), 100))[1]
    defined = left[~left[:, 0].isnan()].double().numpy()
    rng = np.random.default_rng(5)
    drawn = [defined[rng.integers(0, len(defined), len(defined))].mean(0) for _ in range(4000)]
    for estimate, figure in (
        (second.survived, [mean[1] for mean in drawn]),
        (second.kept, [mean[1] / mean[0] for mean in drawn]),
        (second.lost, [mean[0] - mean[1] for mean in drawn]),
        (second.loss_share, [(mean[0] - mean[1]) / (1 - mean[2]) for mean in drawn]),
    ):
        low, high = np.quantile(figure, [0.025, 0.975])
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.08 * (high - low))


def test_a_random_cascade_keeps_what_chance_says() -> None:
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(8, 40, (3000,), generator=generator)
    mask = torch.arange(40) < lengths.unsqueeze(-1)
    relevant = (torch.rand(3000, 40, generator=generator) < 0.2) & mask
    scores = [torch.rand(3000, 40, generator=generator) for _ in range(3)]
    result = funnel(scores, relevant, quotas=[12, 6, 3], mask=mask)
    left = result.survived.masked_fill(~result.defined.unsqueeze(-1), math.nan)
    for one in stage_figures("abc", [12, 6, 3], left, lengths):
        assert one.kept.low < one.chance < one.kept.high


def test_nothing_lost_has_no_shares_of_losses() -> None:
    (one,) = stage_figures(["a"], [5], torch.ones(20, 1), torch.full((20,), 9))
    assert (one.survived.low, one.survived.value, one.survived.high) == (1, 1, 1)
    assert all(math.isnan(value) for value in (one.loss_share.value, one.loss_share.low, one.loss_share.high))


def test_one_user_says_nothing_about_others() -> None:
    left = random_shares(20)
    of_one_user = stage_figures("abc", [30, 20, 10], left, torch.full((20,), 50), units=torch.full((20,), 4))
    assert not math.isnan(of_one_user[0].survived.value)
    assert math.isnan(of_one_user[0].survived.low)
    assert math.isnan(estimates({"m": left[:, 0]}, {}, Resampler(torch.full((20,), 4)))["m"].high)


def test_means_leave_undefined_lists_out_and_can_be_pooled() -> None:
    values = {
        "plain": torch.tensor([0.2, math.nan, 0.6, 1.0]),
        "pooled": torch.tensor([1.5, 0.25, math.nan, 0.0]),
        "never": torch.full((4,), math.nan),
    }
    wholes = {"pooled": torch.tensor([3.0, 1.0, math.nan, 0.0])}
    found = estimates(values, wholes, Resampler())
    assert found["plain"].value == pytest.approx(0.6)
    assert found["pooled"].value == pytest.approx((1.5 + 0.25) / 4)
    assert 0.2 <= found["plain"].low <= found["plain"].value <= found["plain"].high <= 1
    assert math.isnan(found["never"].value)
    assert math.isnan(found["never"].low)
    assert estimates({}, {}, Resampler()) == {}


def test_equal_figures_have_equal_intervals() -> None:
    left, units = random_shares(200), torch.arange(200) // 3
    first, _, last = stage_figures("abc", [30, 20, 10], left, torch.full((200,), 50), units=units)
    means = estimates({"first": left[:, 0], "joint": left[:, 2]}, {}, Resampler(units))
    assert first.survived == first.kept == means["first"]
    assert last.survived == means["joint"]


def test_a_metric_that_one_request_has_has_no_interval() -> None:
    values = torch.full((30,), math.nan)
    values[4] = 0.5
    found = estimates({"rare": values, "usual": torch.linspace(0, 1, 30)}, {}, Resampler())
    assert found["rare"].value == 0.5
    assert math.isnan(found["rare"].low)
    assert found["usual"].low < found["usual"].high


def test_figures_that_share_draws_are_those_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    left, units = random_shares(200), torch.arange(200) // 3
    own = stage_figures("abc", [30, 20, 10], left, torch.full((200,), 50), units=units, alone={"a": left[:, 0]})
    resampler = Resampler(units)
    estimates({"a": left[:, 0], "b": left[:, 1], "c": left[:, 2]}, {}, resampler)
    monkeypatch.setattr(figures_module, "resampled_sums", lambda *args, **options: pytest.fail("drawn again"))
    shared = stage_figures(
        "abc", [30, 20, 10], left, torch.full((200,), 50), alone={"a": left[:, 0]}, resampler=resampler
    )
    assert shared == own


def test_ratios_and_means_are_those_of_estimates() -> None:
    generator = torch.Generator().manual_seed(0)
    part, whole = torch.rand(60, 2, generator=generator).double().unbind(-1)
    units = torch.randint(20, (60,), generator=generator)
    resampler = Resampler(units)
    expected = estimates({"ratio": part, "mean": part}, {"ratio": whole}, resampler)
    (ratio,), (mean,) = resampler.ratios([(part, whole)]), resampler.means([part])
    for found, known in ((ratio, expected["ratio"]), (mean, expected["mean"])):
        assert (found.value, found.low, found.high) == pytest.approx((known.value, known.low, known.high))


def test_one_unit_has_no_interval_of_a_ratio() -> None:
    part, whole = torch.tensor([0.5, 0.25, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    own, together = Resampler(), Resampler(torch.tensor([7, 7, 3, 4]))
    (known,), (unknown,) = own.ratios([(part, whole)]), together.ratios([(part, whole)])
    assert known.value == unknown.value == 0.375
    assert known.low < known.high
    assert math.isnan(unknown.low)
    assert math.isnan(unknown.high)
