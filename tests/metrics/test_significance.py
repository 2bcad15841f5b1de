"""The tests of significance, against scipy and against values derived by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

from rankfall import metrics
from rankfall.metrics import compare, crossed_test, holm, paired_test, two_sample_test

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


# --- seeds and queries ------------------------------------------------------------------------------------------


def crossed(
    seeds: int,
    queries: int,
    generator: torch.Generator,
    *,
    shift: float = 0.0,
    of_seeds: float = 0.0,
    of_queries: float = 0.02,
    of_values: float = 0.04,
    folds: int = 1,
) -> tuple[Tensor, Tensor]:
    """Values of two methods whose components have the given variances; each fold has runs of its own."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.double)

    common = 0.3 * normal(queries)

    def method() -> Tensor:
        runs = math.sqrt(of_seeds) * normal(seeds, folds).repeat_interleave(queries // folds, 1)
        return (
            common + math.sqrt(of_queries / 2) * normal(queries) + runs + math.sqrt(of_values) * normal(seeds, queries)
        )

    return method() + shift, method()


@pytest.mark.witness("scipy", "crossed_test")
@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_over_queries_it_is_the_paired_test_and_over_seeds_that_of_welch(alternative: Any) -> None:
    a, b = crossed(4, 50, torch.Generator().manual_seed(0), shift=0.05, of_seeds=0.01)
    over_queries = crossed_test(a, b, over="queries", alternative=alternative)
    expected = scipy.stats.ttest_rel(a.mean(0), b.mean(0), alternative=alternative)
    assert (over_queries.statistic, over_queries.p_value) == pytest.approx((expected.statistic, expected.pvalue))
    over_seeds = crossed_test(a, b[:3], over="seeds", alternative=alternative)
    welch = scipy.stats.ttest_ind(a.mean(1), b[:3].mean(1), equal_var=False, alternative=alternative)
    assert (over_seeds.statistic, over_seeds.p_value) == pytest.approx((welch.statistic, welch.pvalue))
    assert over_seeds.freedom == pytest.approx(welch.df)
    assert (over_seeds.count, over_seeds.dropped) == (50, 0)


def crossed_by_sums(a: list[list[float]], b: list[list[float]], folds: list[int]) -> tuple[float, float]:
    """Variance and degrees of freedom of the difference, written with plain sums over mean squares."""
    total = sum(folds)
    ranges = [range(sum(folds[:f]), sum(folds[: f + 1])) for f in range(len(folds))]
    differences = [sum(x[i] for x in a) / len(a) - sum(x[i] for x in b) / len(b) for i in range(total)]
    mean = sum(differences) / total
    queries = sum((one - mean) ** 2 for one in differences) / (total - 1) / total
    squared = queries**2 / (total - 1)
    seeds = noise = 0.0
    for values in (a, b):
        runs = len(values)
        for fold in ranges:
            size, share = len(fold), len(fold) / total
            cell = sum(row[i] for row in values for i in fold) / (runs * size)
            of_run = [sum(row[i] for i in fold) / size for row in values]
            of_query = {i: sum(row[i] for row in values) / runs for i in fold}
            ms_runs = size * sum((one - cell) ** 2 for one in of_run) / (runs - 1)
            rest = sum((row[i] - of_run[s] - of_query[i] + cell) ** 2 for s, row in enumerate(values) for i in fold)
            ms_rest = rest / ((runs - 1) * (size - 1))
            one, other = share**2 * ms_runs / (runs * size), share**2 * ms_rest / (runs * size)
            squared += one**2 / (runs - 1) + other**2 / ((runs - 1) * (size - 1))
            seeds, noise = seeds + one, noise + other
    variance = max(queries + seeds - noise, queries, seeds)
    return variance, variance**2 / squared


@pytest.mark.witness("brute force", "crossed_test")
@pytest.mark.parametrize("folds", [[12], [4, 8], [3, 4, 5]])
@pytest.mark.parametrize(("seeds", "of_seeds"), [(2, 0.0), (2, 0.1), (5, 0.01)])
def test_over_both_the_variance_is_that_of_the_mixed_model(folds: list[int], seeds: int, of_seeds: float) -> None:
    a, b = crossed(seeds, 12, torch.Generator().manual_seed(seeds), shift=0.1, of_seeds=of_seeds)
    variance, freedom = crossed_by_sums(a.tolist(), b.tolist(), folds)
    found = crossed_test(a, b, folds=folds, confidence=0.9)
    difference = float((a - b).mean())
    assert found.difference == pytest.approx(difference)
    assert found.freedom == pytest.approx(freedom)
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(difference) / variance**0.5, freedom))
    margin = scipy.stats.t.ppf(0.95, freedom) * variance**0.5
    assert (found.low, found.high) == pytest.approx((difference - margin, difference + margin))


@pytest.mark.witness("hand", "crossed_test")
@pytest.mark.parametrize(("seeds", "quantile"), [(2, 4.303), (3, 2.776), (6, 2.228), (16, 2.042)])
def test_the_interval_over_seeds_has_the_quantile_of_tables(seeds: int, quantile: float) -> None:
    # Runs with equal variances in both methods: Welch's degrees of freedom are 2 (seeds - 1).
    runs = torch.arange(seeds, dtype=torch.double)
    found = crossed_test(runs[:, None].expand(-1, 2), runs[:, None].expand(-1, 2) + 1, over="seeds")
    error = math.sqrt(2 * float(runs.var()) / seeds)
    assert found.freedom == pytest.approx(2 * (seeds - 1))
    assert (found.high - found.low) / 2 == pytest.approx(quantile * error, rel=2e-4)


@pytest.mark.witness("simulation", "crossed_test")
@pytest.mark.parametrize("folds", [1, 5])
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("share", [0.0, 1.0, 10.0])  # variance from seeds relative to that from queries
def test_false_alarms_over_seeds_and_queries_are_rare(share: float, seeds: int, folds: int) -> None:
    """At a level of 5 % no more than about 5 % of the tests reject; a test over queries alone rejects far more."""
    generator = torch.Generator().manual_seed(0)
    queries, repeats = 100, 300
    of_seeds = share * (0.02 + 2 * 0.04 / seeds) / queries * seeds / 2 * folds
    alarms = of_queries_only = covered = 0
    for _ in range(repeats):
        a, b = crossed(seeds, queries, generator, of_seeds=of_seeds, folds=folds)
        found = crossed_test(a, b, folds=[queries // folds] * folds)
        alarms += found.p_value < 0.05
        covered += found.low <= 0 <= found.high
        of_queries_only += crossed_test(a, b, over="queries").p_value < 0.05
    assert alarms + covered == repeats
    assert alarms <= repeats * 0.05 + 3 * (repeats * 0.05 * 0.95) ** 0.5
    if share == 10:
        assert of_queries_only > 0.4 * repeats


@pytest.mark.witness("simulation", "crossed_test")
def test_differences_are_found_over_seeds_and_queries() -> None:
    """With five seeds the interval is not much wider than that of known components, and power is near 1 at 4 errors."""
    generator = torch.Generator().manual_seed(0)
    of_seeds, seeds, queries = 0.002, 5, 200
    error = (2 * of_seeds / seeds + 0.02 / queries + 2 * 0.04 / (seeds * queries)) ** 0.5
    found = [crossed_test(*crossed(seeds, queries, generator, of_seeds=of_seeds, shift=4 * error)) for _ in range(200)]
    assert sum(one.p_value < 0.05 for one in found) > 0.85 * len(found)
    widths = sorted((one.high - one.low) / 2 for one in found)
    assert widths[len(widths) // 2] == pytest.approx(2.2 * error, rel=0.1)


@pytest.mark.witness("hand", "crossed_test")
def test_methods_without_randomness_differ_by_queries_only() -> None:
    a, b = (sample.expand(3, -1) for sample in samples(30))
    assert crossed_test(a, b).p_value == crossed_test(a, b, over="queries").p_value
    assert crossed_test(a, b, over="seeds").p_value == 0
    assert crossed_test(a, a).p_value == crossed_test(a, a, over="seeds").p_value == 1


def test_equal_methods_whose_runs_have_nearly_equal_means_do_not_differ() -> None:
    """The runs of both methods differ in single queries and hardly in their means, as those of a shared stage can."""
    run = torch.linspace(0, 1, 500, dtype=torch.double)
    values = torch.stack([run, run.flip(0) + 1e-9])
    result = crossed_test(values, values.clone())
    assert result.p_value == 1
    assert result.low < result.difference == 0 < result.high < 1e-6


@pytest.mark.witness("hand", "crossed_test")
def test_undefined_queries_are_dropped_from_their_folds() -> None:
    a, b = crossed(3, 12, torch.Generator().manual_seed(1), of_seeds=0.01)
    kept = [i for i in range(12) if i not in (0, 5, 9, 10, 11)]
    whole = crossed_test(a[:, kept], b[:, kept], folds=[3, 4])
    a[1, 0] = b[0, 5] = NAN
    a[:, 9:] = NAN
    found = crossed_test(a, b, folds=[4, 5, 3])
    assert (found.count, found.dropped) == (7, 5)
    assert (found.p_value, found.low) == (whole.p_value, whole.low)


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
GRID = torch.stack([SOME, SOME + 1])


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
        (
            lambda: crossed_test(SOME, SOME),
            ValueError,
            r"a must have the dimensions seeds and queries, got shape \(3,\)",
        ),
        (lambda: crossed_test(GRID, GRID[:, :2]), ValueError, "got 3 and 2 queries"),
        (
            lambda: crossed_test(GRID[:1], GRID),
            ValueError,
            "a must have at least 2 seeds, got 1: one seed says nothing",
        ),
        (lambda: crossed_test(GRID, GRID[:1], over="seeds"), ValueError, "b must have at least 2 seeds, got 1"),
        (
            lambda: crossed_test(GRID, GRID, folds=[2, 2]),
            ValueError,
            "folds must sum to the number of queries, 3, got 4",
        ),
        (lambda: crossed_test(GRID, GRID * NAN), ValueError, "at least 2 values that are not NaN, got 0"),
        (lambda: crossed_test(GRID, GRID * NAN, over="seeds"), ValueError, "at least 1 values that are not NaN, got 0"),
        (
            lambda: crossed_test(GRID[:, :0], GRID[:, :0], over="seeds"),
            ValueError,
            "a and b must have at least 1 values",
        ),
        (lambda: crossed_test(GRID[:0], GRID, over="queries"), ValueError, "a must have at least 1 seeds, got 0"),
        (lambda: crossed_test(GRID, GRID[:0], over="queries"), ValueError, "b must have at least 1 seeds, got 0"),
        (lambda: crossed_test(GRID, GRID, over="days"), ValueError, "over must be one of"),  # type: ignore[arg-type]
        (lambda: crossed_test([1.0], GRID), TypeError, "a must be a torch.Tensor, got list"),  # type: ignore[arg-type]
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
