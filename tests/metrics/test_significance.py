"""The tests of significance, against scipy and against values derived by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

from rankfall import metrics
from rankfall.metrics import compare, holm, paired_test, two_sample_test

NAN = float("nan")
ALTERNATIVES = ["two-sided", "greater", "less"]


def samples(size: int, *, shift: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = torch.rand(size, generator=generator, dtype=torch.double)
    noise = torch.randn(size, generator=generator, dtype=torch.double)
    return base + shift + 0.5 * noise, base


@pytest.mark.witness("scipy", "paired_test")
@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("shift", [0.0, 0.3, -2.0])
@pytest.mark.parametrize("size", [2, 3, 10, 500, 20_000])
def test_paired_test_agrees_with_scipy(size: int, shift: float, alternative: Any) -> None:
    a, b = samples(size, shift=shift)
    result = paired_test(a, b, alternative=alternative, confidence=0.9)
    expected = scipy.stats.ttest_rel(a, b, alternative=alternative)
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-9)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-7, abs=1e-300)
    low, high = scipy.stats.ttest_rel(a, b).confidence_interval(0.9)
    assert (result.low, result.high) == pytest.approx((low, high), rel=1e-8)
    assert result.difference == pytest.approx(float((a - b).mean()))
    assert (result.count, result.dropped) == (size, 0)


@pytest.mark.witness("scipy", "two_sample_test")
@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("equal_variance", [True, False])
@pytest.mark.parametrize("sizes", [(2, 2), (5, 5), (3, 40), (200, 7)])
def test_two_sample_test_agrees_with_scipy(sizes: tuple[int, int], equal_variance: bool, alternative: Any) -> None:
    a, b = samples(sizes[0])[0], samples(sizes[1], seed=1)[1]
    result = two_sample_test(a, b, alternative=alternative, equal_variance=equal_variance)
    expected = scipy.stats.ttest_ind(a, b, equal_var=equal_variance, alternative=alternative)
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-9)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = scipy.stats.ttest_ind(a, b, equal_var=equal_variance).confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((low, high), rel=1e-8)
    assert result.count == sum(sizes)


@pytest.mark.witness("scipy", "paired_test")
def test_bootstrap_agrees_with_scipy() -> None:
    a, b = samples(60)
    difference = (a - b).numpy()
    result = paired_test(a, b, method="bootstrap", samples=20_000)
    interval = scipy.stats.bootstrap(
        (difference,), lambda x, axis: x.mean(axis), n_resamples=20_000, method="percentile", rng=0
    ).confidence_interval
    # A quantile of B draws has the standard deviation sqrt(p (1 - p) / B) / density; here two of them differ.
    density = scipy.stats.norm.pdf(1.96) / (difference.std() / 60**0.5)
    deviation = (2 * 0.025 * 0.975 / 20_000) ** 0.5 / density
    assert result.low == pytest.approx(interval.low, abs=4 * deviation)
    assert result.high == pytest.approx(interval.high, abs=4 * deviation)


@pytest.mark.witness("limit", "paired_test")
@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("shift", [-0.03, 0.0, 0.05])
def test_bootstrap_tends_to_the_t_test(shift: float, alternative: Any) -> None:
    a, b = samples(1000, shift=shift)
    student = paired_test(a, b, alternative=alternative)
    result = paired_test(a, b, method="bootstrap", alternative=alternative)
    assert result.statistic == student.statistic
    assert result.p_value == pytest.approx(student.p_value, abs=4 * 0.5 / 10_000**0.5)  # 4 errors of a share
    assert (result.low, result.high) == pytest.approx((student.low, student.high), abs=2e-3)


@pytest.mark.witness("limit", "paired_test")
@pytest.mark.parametrize("method", ["t", "bootstrap"])
def test_false_alarms_are_as_rare_as_promised(method: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(300, 2, 40, generator=generator)
    alarms = sum(paired_test(a, b, method=method, samples=500).p_value < 0.1 for a, b in draws)
    assert abs(alarms - 30) < 4 * (300 * 0.1 * 0.9) ** 0.5


@pytest.mark.witness("hand", "paired_test")
def test_bootstrap_p_value_is_positive() -> None:
    # Differences near 50 that vary little: no resample is as extreme, and the observed mean is one of 100 + 1.
    a, b = samples(50, shift=50.0)
    assert paired_test(a, b, method="bootstrap", samples=100).p_value == 1 / 101
    assert paired_test(a, b, method="bootstrap", samples=100, alternative="less").p_value == 1


def test_bootstrap_repeats_and_follows_the_generator() -> None:
    a, b = samples(50)

    def interval(seed: int | None) -> tuple[float, float]:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        result = paired_test(a, b, method="bootstrap", samples=200, generator=generator)
        return result.low, result.high

    assert interval(None) == interval(None)
    assert interval(1) == interval(1) != interval(2)


def test_bootstrap_of_many_queries_is_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = samples(1000)
    whole = paired_test(a, b, method="bootstrap", samples=100)
    drawn = []
    randint = torch.randint

    def count(high: int, shape: tuple[int, int], **options: Any) -> Tensor:
        drawn.append(shape)
        return randint(high, shape, **options)

    monkeypatch.setattr(torch, "randint", count)
    monkeypatch.setattr("rankfall.metrics.significance._CHUNK", 30_000)
    assert paired_test(a, b, method="bootstrap", samples=100) == whole
    assert drawn == [(30, 1000)] * 3 + [(10, 1000)]


@pytest.mark.witness("hand", "paired_test")
@pytest.mark.parametrize("method", ["t", "bootstrap"])
@pytest.mark.parametrize(
    ("shift", "alternative", "p_value"),
    [
        (0.0, "two-sided", 1.0),
        (0.0, "greater", 1.0),
        (0.0, "less", 1.0),
        (0.1, "two-sided", 0.0),
        (0.1, "greater", 0.0),
        (0.1, "less", 1.0),
        (-0.1, "greater", 1.0),
        (-0.1, "less", 0.0),
    ],
)
def test_constant_differences(method: Any, shift: float, alternative: Any, p_value: float) -> None:
    b = samples(30)[1]
    result = paired_test(b + shift, b, method=method, alternative=alternative)  # b + 0.1 - b is not quite 0.1
    assert result.p_value == p_value
    assert result.statistic == (math.copysign(math.inf, shift) if shift else 0.0)
    assert result.low == result.high == result.difference == pytest.approx(shift)


@pytest.mark.witness("hand", "two_sample_test")
@pytest.mark.parametrize("equal_variance", [True, False])
def test_two_samples_without_spread(equal_variance: bool) -> None:
    ones, twos = torch.ones(4), torch.full((3,), 2.0)
    assert two_sample_test(ones, ones, equal_variance=equal_variance).p_value == 1
    assert two_sample_test(ones, twos, equal_variance=equal_variance).p_value == 0
    assert two_sample_test(ones, twos, equal_variance=equal_variance, alternative="greater").p_value == 1


@pytest.mark.witness("hand", "paired_test")
def test_pairs_with_nan_are_dropped_and_counted() -> None:
    a, b = samples(10)
    whole = paired_test(a[2:], b[2:])
    a[0], b[1] = NAN, NAN
    result = paired_test(a, b)
    assert (result.count, result.dropped) == (8, 2)
    assert (result.p_value, result.low) == (whole.p_value, whole.low)
    two = two_sample_test(a, b)
    assert (two.count, two.dropped) == (18, 2)


@pytest.mark.witness("hand", "holm")
@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([], []),
        ([0.3], [0.3]),
        ([0.01, 0.02, 0.03], [0.03, 0.04, 0.04]),  # 3 * .01, 2 * .02, max(.04, 1 * .03)
        ([0.04, 0.001, 0.03, 0.5], [0.09, 0.004, 0.09, 0.5]),  # 4 * .001, 3 * .03, max(.09, 2 * .04), 1 * .5
        ([0.9, 0.8, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
    ],
)
def test_holm_by_hand(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values).tolist() == pytest.approx(adjusted)
    assert holm(torch.tensor(p_values)).tolist() == pytest.approx(adjusted)


@pytest.mark.witness("scipy", "compare")
@pytest.mark.parametrize("higher_is_better", [True, False])
def test_compare_with_the_best(higher_is_better: bool) -> None:
    base = samples(200)[1]
    sign = 1 if higher_is_better else -1
    noise = torch.randn(3, 200, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    values = {
        "near": base + 0.1 * noise[0],
        "best": base + sign * 0.02,
        "far": base - sign * 0.5 + 0.1 * noise[1],
    }
    rows = {row.name: row for row in compare(values, higher_is_better=higher_is_better)}
    assert list(rows) == list(values)
    worse = "less" if higher_is_better else "greater"
    p_values = {
        name: scipy.stats.ttest_rel(values[name], values["best"], alternative=worse).pvalue for name in ("near", "far")
    }
    smaller, larger = sorted(p_values, key=lambda name: p_values[name])
    adjusted = {smaller: 2 * p_values[smaller], larger: max(2 * p_values[smaller], p_values[larger])}
    for name, row in rows.items():
        assert row.p_value == pytest.approx(p_values.get(name, 1.0), rel=1e-6)
        assert row.adjusted_p_value == pytest.approx(adjusted.get(name, 1.0), rel=1e-6)
        assert row.mean == pytest.approx(float(values[name].mean()))
        assert row.std == pytest.approx(float(values[name].std()))
        assert row.difference == pytest.approx(float((values[name] - values["best"]).mean()), abs=1e-15)
        assert row.significantly_worse == (adjusted.get(name, 1.0) < 0.05)
        assert row.best == (name == "best")
        assert not row.significantly_better
    assert rows["far"].significantly_worse


@pytest.mark.witness("hand", "compare")
def test_compare_with_a_baseline() -> None:
    base = samples(100)[1]
    noise = 0.1 * torch.randn(100, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    values = {"good": base + 0.2 + noise, "old": base, "same": base.clone(), "bad": base - 0.2 + noise}
    rows = {row.name: row for row in compare(values, baseline="old")}
    marks = {name: (row.significantly_better, row.significantly_worse) for name, row in rows.items()}
    assert marks == {
        "good": (True, False),
        "old": (False, False),
        "same": (False, False),
        "bad": (False, True),
    }
    assert [name for name, row in rows.items() if row.best] == ["good"]
    assert rows["bad"].p_value == pytest.approx(paired_test(values["bad"], base).p_value)
    assert rows["same"].p_value == 1
    swapped = {row.name: row for row in compare(values, baseline="old", higher_is_better=False)}
    assert swapped["bad"].significantly_better
    assert swapped["bad"].best


@pytest.mark.witness("hand", "compare")
def test_compare_counts_what_it_drops() -> None:
    first = torch.tensor([1.0, 2.0, 3.0, 4.0, NAN])
    second = torch.tensor([0.5, NAN, 1.0, 3.0, 9.0])
    rows = compare({"first": first, "second": second}, baseline="first")
    assert [(row.count, row.dropped) for row in rows] == [(4, 1), (4, 2)]
    assert rows[0].mean == 2.5
    assert rows[1].difference == pytest.approx(-3.5 / 3)
    assert [row.best for row in compare({"only": first})] == [True]


def test_results_are_plain_numbers() -> None:
    a, b = samples(10)
    result = paired_test(a.float().requires_grad_(), b.bfloat16())
    assert isinstance(result, metrics.TestResult)
    assert {type(value) for value in vars(result).values()} == {float, int}
    row = compare({"a": a, "b": b})[0]
    assert isinstance(row, metrics.Row)
    assert {type(value) for value in vars(row).values()} == {str, float, int, bool}


FEW, SOME = torch.tensor([1.0]), torch.tensor([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: paired_test(FEW, FEW),
            ValueError,
            "a and b must have at least 2 values that are not NaN, got 1",
        ),
        (lambda: paired_test(SOME * NAN, SOME), ValueError, "at least 2 values that are not NaN, got 0"),
        (lambda: paired_test(SOME, FEW), ValueError, "a and b must have one value per query, got 3 and 1"),
        (lambda: paired_test(SOME / 0, SOME), ValueError, "a must not hold inf"),
        (lambda: paired_test(SOME, SOME[None]), ValueError, r"b must have one dimension, got shape \(1, 3\)"),
        (lambda: paired_test([1.0], SOME), TypeError, "a must be a torch.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: paired_test(SOME, SOME, method="u"), ValueError, "method must be one of"),  # type: ignore[arg-type]
        (lambda: paired_test(SOME, SOME, alternative="more"), ValueError, "alternative must be one of"),  # type: ignore[arg-type]
        (
            lambda: paired_test(SOME, SOME, confidence=95),
            ValueError,
            "confidence must be between 0 and 1, got 95",
        ),
        (lambda: paired_test(SOME, SOME, samples=0), ValueError, "samples must be at least 1, got 0"),
        (lambda: two_sample_test(SOME, FEW), ValueError, "b must have at least 2 values"),
        (lambda: holm([0.1, 1.5]), ValueError, r"p_values must be in \[0, 1\]"),
        (lambda: holm([0.1, NAN]), ValueError, r"p_values must be in \[0, 1\]"),
        (lambda: holm(torch.zeros(2, 2)), ValueError, "p_values must have one dimension"),
        (lambda: compare({}), ValueError, "values must hold at least one method"),
        (lambda: compare({"a": SOME}, baseline="b"), ValueError, "baseline must be one of 'a', got 'b'"),
        (
            lambda: compare({"a": SOME, "b": FEW}),
            ValueError,
            "one number per query for each method, got a 3, b 1",
        ),
        (lambda: compare({"a": SOME * NAN}), ValueError, r"values\['a'\] must have at least 2 values"),
        (lambda: compare({"a": SOME}, alpha=5), ValueError, "alpha must be between 0 and 1, got 5"),
    ],
)
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
