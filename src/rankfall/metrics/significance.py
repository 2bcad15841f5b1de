"""Significance tests of differences between methods.

Values are metrics per query (:func:`paired_test`, :func:`compare`), one number per seed (:func:`two_sample_test`), or
metrics per seed and query (:func:`crossed_test`). NaN marks a query on which a metric is undefined; it is excluded and
counted as `dropped`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from rankfall._checks import check_choice, check_count, check_flag, check_generator, check_none, check_real, check_share
from rankfall._errors import RankfallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Integer


def student_survival(t: float, freedom: float) -> float:
    """Probability that Student's t with `freedom` degrees of freedom exceeds `t`.

    >>> round(student_survival(1.0, freedom=1.0), 4)  # Cauchy: 1/2 - atan(1) / pi
    0.25
    """
    tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, odds=t * t / freedom)
    return tail if t > 0 else 1 - tail


@lru_cache(maxsize=1024)  # tests over the same queries have the same degrees of freedom
def student_quantile(tail: float, freedom: float) -> float:
    """The t > 0 that is exceeded with the probability `tail` < 1/2, by bisection."""
    high = 1.0
    while student_survival(high, freedom) > tail:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_survival(middle, freedom) > tail else (low, middle)
    return middle


def _incomplete_beta(p: float, q: float, *, odds: float) -> float:
    """Regularised incomplete beta function I_x(p, q) at x = 1 / (1 + odds)."""
    if odds == 0:
        return 1.0
    log_x, log_rest = -math.log1p(odds), math.log(odds) - math.log1p(odds)
    front = math.exp(p * log_x + q * log_rest + math.lgamma(p + q) - math.lgamma(p) - math.lgamma(q))
    x = 1 / (1 + odds)
    # The fraction converges fast below the mean of the distribution, and I_x(p, q) = 1 - I_{1-x}(q, p).
    if x < (p + 1) / (p + q + 2):
        return front * _beta_fraction(p, q, x) / p
    return 1 - front * _beta_fraction(q, p, odds / (1 + odds)) / q


def _beta_fraction(p: float, q: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    tiny = 1e-300  # stands for a zero denominator
    value, numerator, denominator = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        half = step // 2
        if step % 2 == 0:
            term = half * (q - half) * x / ((p + step - 1) * (p + step))
        else:
            term = -(p + half) * (p + q + half) * x / ((p + step - 1) * (p + step))
        denominator = 1 / ((1 + term * denominator) or tiny)
        numerator = (1 + term / numerator) or tiny
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            break
    return 1 / value


class VariancePart(NamedTuple):
    """An estimate of a part of a variance, with its degrees of freedom."""

    variance: float
    freedom: float


def between_runs(values: Tensor, sizes: Sequence[int]) -> list[VariancePart]:
    """Return the variance of the overall mean that comes from runs, for each fold."""
    runs, queries = values.shape
    if runs < 2:  # only a test over queries gets here
        return []
    return [
        VariancePart(float(fold.mean(1).var()) / runs * (fold.shape[1] / queries) ** 2, runs - 1)
        for fold in values.split(list(sizes), 1)
    ]


def within_runs(values: Tensor, sizes: Sequence[int]) -> list[VariancePart]:
    """Return the variance of the overall mean that comes from single values, neither from runs nor from queries."""
    runs, queries = values.shape
    parts = []
    for fold in values.split(list(sizes), 1):
        freedom = (runs - 1) * (fold.shape[1] - 1)
        if freedom > 0:
            rest = fold - fold.mean(0) - fold.mean(1, keepdim=True) + fold.mean()
            variance = float(rest.square().sum()) / freedom
            parts.append(VariancePart(variance * fold.shape[1] / runs / queries**2, freedom))
    return parts


def total_variance(parts: Sequence[VariancePart]) -> float:
    """Return the sum of the parts."""
    return sum(part.variance for part in parts)


def satterthwaite(variance: float, parts: Sequence[VariancePart]) -> float:
    """Return the degrees of freedom of a sum of independent variances.

    A sum never has fewer than its part with the fewest. A part that is subtracted can leave next to nothing, for which
    the formula gives nearly 0.
    """
    freedom = variance**2 / sum(part.variance**2 / part.freedom for part in parts)
    return max(freedom, min(part.freedom for part in parts))


Alternative = Literal["two-sided", "greater", "less"]
Method = Literal["t", "bootstrap"]
Over = Literal["both", "seeds", "queries"]

LARGEST_VALUE = 1e60  # of a sample: fourth powers are finite; numbers below the reciprocal count as 0
MOST_SAMPLES = 10**7  # of a bootstrap

_CHUNK = 1 << 20  # values drawn at once by the bootstrap: 8 MB of indices, and as much of values


@dataclass(frozen=True)
class TestResult:
    """Result of a test of the difference between two means.

    Attributes:
        statistic: Student's t: the difference divided by its standard error.
        p_value: P-value of the test.
        difference: Mean of the first sample minus mean of the second.
        low: Lower end of the two-sided confidence interval of the difference, for any alternative.
        high: Upper end of this interval.
        count: Number of pairs used; number of values of both samples for :func:`two_sample_test`.
        dropped: Number of pairs (or values) excluded because of NaN.
        freedom: Degrees of freedom of Student's t; NaN for a bootstrap.
    """

    __test__ = False  # or pytest would collect it as a test class

    statistic: float
    p_value: float
    difference: float
    low: float
    high: float
    count: int
    dropped: int
    freedom: float = math.nan


@dataclass(frozen=True)
class Row:
    """One method of a comparison. The reference method has difference 0 and p-values 1.

    Attributes:
        name: Name of the method.
        mean: Mean over the queries.
        std: Standard deviation over the queries.
        count: Number of queries on which the method has a value.
        dropped: Number of queries excluded from the test, because one of the two methods has no value.
        difference: Mean difference to the reference method.
        p_value: P-value of the test against the reference method.
        adjusted_p_value: P-value corrected for the number of methods (Holm).
        best: Whether no other method has a better mean.
        significantly_worse: Whether the method is significantly worse than the reference method.
        significantly_better: Whether it is significantly better; only possible with a named baseline.
    """

    name: str
    mean: float
    std: float
    count: int
    dropped: int
    difference: float
    p_value: float
    adjusted_p_value: float
    best: bool
    significantly_worse: bool
    significantly_better: bool


def paired_test(
    a: Float[Tensor, " queries"],
    b: Float[Tensor, " queries"],
    *,
    method: Method = "t",
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
    samples: int = 10_000,
    generator: torch.Generator | None = None,
) -> TestResult:
    """Test whether two methods differ on the same queries (Student 1908; Efron and Tibshirani 1993).

    The test is Student's paired t-test, or a bootstrap of the differences: the confidence interval holds the middle of
    the resampled means, and the p-value is the share of them, shifted to mean 0, that are at least as extreme as the
    observed mean (Efron and Tibshirani, sections 13.3 and 16.4). Use the bootstrap if differences are far from normal.

    Args:
        a: Tensor ``(queries,)``, values of the first method.
        b: Tensor ``(queries,)``, values of the second method on the same queries.
        method: ``"t"`` or ``"bootstrap"``.
        alternative: ``"two-sided"``, ``"greater"`` (the mean of `a` is larger) or ``"less"``.
        confidence: Level of the confidence interval, between 0 and 1.
        samples: Number of resamples of the bootstrap, at least 1.
        generator: Random generator of the bootstrap. Default: a generator with a fixed seed, so that results repeat.

    Returns:
        A :class:`TestResult`.

    Examples:
        Differences 1, 2, 3 have mean 2 and standard error 1 / sqrt(3):

        >>> result = paired_test(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([1.0, 2.0, 3.0]))
        >>> round(result.statistic, 4), round(result.p_value, 4)
        (3.4641, 0.0742)
    """
    check_choice("method", method, ("t", "bootstrap"))
    check_count("samples", samples, most=MOST_SAMPLES)
    check_generator(generator)
    _check_options(alternative, confidence)
    a, b = _check_sample("a", a), _check_sample("b", b)
    if a.shape != b.shape:
        raise RankfallError(f"a and b must have one value per query, got {len(a)} and {len(b)} values")
    both = ~(a.isnan() | b.isnan())
    pairs, dropped = _check_size("a and b", int(both.sum())), int((~both).sum())
    a, b = a[both], b[both]
    difference = a - b
    mean, error = float(difference.mean()), _standard_error(float(difference.var()) / pairs, a, b)
    if method == "t" or error == 0:
        return _t_test(mean, error, pairs - 1, alternative, confidence, pairs, dropped)
    means = _resampled_means(difference, samples, generator)
    low, high = map(float, interval(means, confidence))
    return TestResult(
        statistic=mean / error,
        p_value=_share_beyond(means - mean, mean, alternative),
        difference=mean,
        low=low,
        high=high,
        count=pairs,
        dropped=dropped,
    )


def two_sample_test(
    a: Float[Tensor, " first"],
    b: Float[Tensor, " second"],
    *,
    alternative: Alternative = "two-sided",
    equal_variance: bool = True,
    confidence: float = 0.95,
) -> TestResult:
    """Test whether two independent samples differ, such as runs with different seeds (Student 1908; Welch 1947).

    Use it if the values of the two methods cannot be paired.

    Args:
        a: Tensor ``(first,)``, the first sample.
        b: Tensor ``(second,)``, the second sample.
        alternative: ``"two-sided"``, ``"greater"`` (the mean of `a` is larger) or ``"less"``.
        equal_variance: Whether to assume equal variances (Student's test). False: Welch's test.
        confidence: Level of the confidence interval, between 0 and 1.

    Returns:
        A :class:`TestResult`.

    Examples:
        Means 3 and 1, both variances 1, so the squared standard error is 1/3 + 1/3:

        >>> result = two_sample_test(torch.tensor([2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, 2.0]))
        >>> round(result.statistic, 4), result.difference
        (2.4495, 2.0)
    """
    _check_options(alternative, confidence)
    check_flag("equal_variance", equal_variance)
    a, b = _check_sample("a", a), _check_sample("b", b)
    given = len(a) + len(b)
    a, b = a[~a.isnan()], b[~b.isnan()]
    count = _check_size("a", len(a)) + _check_size("b", len(b))
    of_a, of_b = float(a.var()) / len(a), float(b.var()) / len(b)
    freedom: float = count - 2
    if equal_variance:
        pooled = (float(a.var()) * (len(a) - 1) + float(b.var()) * (len(b) - 1)) / freedom
        variance = pooled / len(a) + pooled / len(b)
    else:
        variance = of_a + of_b
    error = _standard_error(variance, a, b)
    if not equal_variance and error > 0:  # Welch and Satterthwaite
        freedom = variance**2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    difference = float(a.mean() - b.mean())
    return _t_test(difference, error, freedom, alternative, confidence, count, given - count)


def crossed_test(
    a: Float[Tensor, "seeds queries"],
    b: Float[Tensor, "seeds queries"],
    *,
    over: Over = "both",
    folds: Sequence[int] | None = None,
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
) -> TestResult:
    """Test whether two methods differ, from several training runs of each on the same queries (Satterthwaite 1946).

    The difference of two means is uncertain because other queries would have been possible and because other seeds
    would have been possible. `over` selects what the result generalises to. The variance of the difference is:

    - ``"queries"``: the variance of the differences per query (means over seeds), divided by the number of queries.
      This is :func:`paired_test`; it holds for these weights only.
    - ``"seeds"``: the variance of the runs' means of each method, divided by the number of its runs, added up. This is
      Welch's :func:`two_sample_test`; it holds for these queries only.
    - ``"both"``: the sum of the two, minus the variance of single values, which both contain. This is the variance of
      the mean in a mixed model with random seeds of each method crossed with random queries. It is never below either
      of the two. Its degrees of freedom are Satterthwaite's.

    Seeds of the two methods count as independent, also if they are the same numbers. Use ``"both"`` for the statement
    that one method is better than another.

    Args:
        a: Tensor ``(seeds, queries)``, values of the first method.
        b: Tensor ``(seeds, queries)``, values of the second method on the same queries.
        over: ``"both"``, ``"seeds"`` or ``"queries"``. The first two need at least two seeds of each method.
        folds: Numbers of queries of consecutive folds, each of which had runs of its own. Runs then differ within
            folds. Default: one fold.
        alternative: ``"two-sided"``, ``"greater"`` (the mean of `a` is larger) or ``"less"``.
        confidence: Level of the confidence interval, between 0 and 1.

    Returns:
        A :class:`TestResult`; `count` is the number of queries.

    Examples:
        The first method is better by 1 on both queries, but the means of its two runs are 1 and 3:

        >>> a, b = torch.tensor([[2.0, 0.0], [4.0, 2.0]]), torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> [crossed_test(a, b, over=over).p_value for over in ("queries", "seeds", "both")]
        [0.0, 0.5, 0.5]
    """
    check_choice("over", over, ("both", "seeds", "queries"))
    _check_options(alternative, confidence)
    a, b, sizes, dropped = _crossed_samples(a, b, folds)
    queries = a.shape[1]
    _check_size("a and b", queries, least=1 if over == "seeds" else 2)
    for name, sample in (("a", a), ("b", b)):
        _check_runs(name, len(sample), least=1 if over == "queries" else 2)
    difference = a.mean(0) - b.mean(0)
    of_queries = VariancePart(float(difference.var()) / queries, queries - 1) if queries > 1 else VariancePart(0.0, 1)
    of_runs = between_runs(a, sizes) + between_runs(b, sizes)
    if over == "queries":
        variance, parts = of_queries.variance, [of_queries]
    elif over == "seeds":
        variance, parts = total_variance(of_runs), of_runs
    else:
        counted_twice = within_runs(a, sizes) + within_runs(b, sizes)
        parts = [of_queries, *of_runs, *counted_twice]
        once = of_queries.variance + total_variance(of_runs) - total_variance(counted_twice)
        variance = max(once, of_queries.variance, total_variance(of_runs))
    error = _standard_error(variance, a, b)
    freedom = satterthwaite(variance, parts) if error > 0 else math.inf
    return _t_test(float(difference.mean()), error, freedom, alternative, confidence, queries, dropped)


def holm(p_values: Tensor | Sequence[float]) -> Float[Tensor, " tests"]:
    """Adjust p-values for the number of tests, which bounds the probability of any false positive (Holm 1979).

    The i-th smallest of m p-values is multiplied by m - i + 1, and is at least as large as the adjusted smaller ones.
    Use it if several methods are tested at once.

    Args:
        p_values: Tensor or sequence ``(tests,)`` of numbers in [0, 1].

    Returns:
        Tensor ``(tests,)`` of adjusted p-values, in the same order.

    Examples:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    if isinstance(p_values, Tensor) and p_values.is_complex():
        raise RankfallError(f"p_values must be real numbers, got {p_values.dtype}")
    try:
        values = torch.as_tensor(p_values, dtype=torch.double)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"p_values must be a tensor or a sequence of numbers: {error}") from None
    if values.ndim != 1:
        raise RankfallError(f"p_values must have one dimension, got shape {tuple(values.shape)}")
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise RankfallError(f"p_values must be in [0, 1], got {values.tolist()}")
    ascending, order = values.sort()
    factors = torch.arange(len(values), 0, -1, device=values.device)
    adjusted = (ascending * factors).clamp(max=1.0)
    if len(values) > 0:  # cummax does not accept an empty tensor
        adjusted = adjusted.cummax(0).values
    return torch.empty_like(adjusted).scatter(0, order, adjusted)


def compare(
    values: Mapping[str, Float[Tensor, " queries"]],
    *,
    baseline: str | None = None,
    alpha: float = 0.05,
    higher_is_better: bool = True,
    method: Method = "t",
) -> list[Row]:
    """Compare methods by their values on the same queries, corrected for the number of methods (PIR; Holm 1979).

    Without a baseline, each method is tested against the one with the best mean, one-sided: is it worse? With a
    baseline, each method is tested against it, two-sided: is it worse or better? Use it for a table of methods.

    Args:
        values: For each method, a tensor ``(queries,)`` of its values on the same queries.
        baseline: Name of the method to compare with. Default: the method with the best mean.
        alpha: Significance level of the adjusted p-values, between 0 and 1.
        higher_is_better: Whether larger values are better.
        method: ``"t"`` or ``"bootstrap"``; see :func:`paired_test`.

    Returns:
        One :class:`Row` per method, in the order of `values`.

    Examples:
        >>> good, bad = torch.tensor([0.8, 0.9, 0.7, 0.8]), torch.tensor([0.5, 0.7, 0.4, 0.4])
        >>> [(row.name, row.best, row.significantly_worse) for row in compare({"good": good, "bad": bad})]
        [('good', True, False), ('bad', False, True)]
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"values must map the names of methods to tensors, got {type(values).__name__}")
    check_flag("higher_is_better", higher_is_better)
    check_choice("method", method, ("t", "bootstrap"))
    if len(values) == 0:
        raise RankfallError("values must hold at least one method, got none")
    if baseline is not None:
        check_choice("baseline", baseline, tuple(values))
    if not 0 < check_real("alpha", alpha) < 1:
        raise RankfallError(f"alpha must be between 0 and 1, got {alpha}")
    samples = {name: _check_sample(f"values[{name!r}]", sample) for name, sample in values.items()}
    if len({len(sample) for sample in samples.values()}) > 1:
        lengths = ", ".join(f"{name} {len(sample)}" for name, sample in samples.items())
        raise RankfallError(f"values must have one number per query for each method, got {lengths}")
    known = {name: sample[~sample.isnan()] for name, sample in samples.items()}
    for name, sample in known.items():
        _check_size(f"values[{name!r}]", len(sample))

    sign = 1 if higher_is_better else -1
    means = {name: float(sample.mean()) for name, sample in known.items()}
    best = max(sign * mean for mean in means.values())
    alternative: Alternative = "less" if higher_is_better else "greater"
    against = next(name for name in means if sign * means[name] == best)
    if baseline is not None:
        alternative, against = "two-sided", baseline
    tests = {
        name: paired_test(samples[name], samples[against], method=method, alternative=alternative)
        for name in samples
        if name != against
    }
    adjusted = dict(zip(tests, holm([test.p_value for test in tests.values()]).tolist(), strict=True))
    rows = []
    for name, sample in known.items():
        test, p_value = tests.get(name), adjusted.get(name, 1.0)
        difference = test.difference if test else 0.0
        rows.append(
            Row(
                name=name,
                mean=means[name],
                std=float(sample.std()),
                count=len(sample),
                dropped=test.dropped if test else len(samples[name]) - len(sample),
                difference=difference,
                p_value=test.p_value if test else 1.0,
                adjusted_p_value=p_value,
                best=sign * means[name] == best,
                significantly_worse=p_value < alpha and sign * difference < 0,
                significantly_better=p_value < alpha and sign * difference > 0,
            )
        )
    return rows


# --- checks -------------------------------------------------------------------------------------------------


def _check_options(alternative: str, confidence: float) -> None:
    check_choice("alternative", alternative, ("two-sided", "greater", "less"))
    if not 0 < check_real("confidence", confidence) < 1:
        raise RankfallError(f"confidence must be between 0 and 1, got {confidence}")


def _check_sample(name: str, sample: Tensor) -> Tensor:
    if not isinstance(sample, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(sample).__name__}")
    if sample.ndim != 1:
        raise RankfallError(f"{name} must have one dimension, got shape {tuple(sample.shape)}")
    if sample.is_complex():
        raise RankfallError(f"{name} must be real numbers, got {sample.dtype}")
    sample = sample.detach().double()
    if bool((sample.abs() > LARGEST_VALUE).any()):
        raise RankfallError(f"{name} must not hold inf or numbers beyond {LARGEST_VALUE:g}")
    return sample.masked_fill(sample.abs() < 1 / LARGEST_VALUE, 0.0)


def _crossed_samples(a: Tensor, b: Tensor, folds: Sequence[int] | None) -> tuple[Tensor, Tensor, list[int], int]:
    """Return both samples without undefined queries, the sizes of the folds that remain, and the number dropped."""
    a, b = _check_crossed("a", a), _check_crossed("b", b)
    if a.shape[1] != b.shape[1]:
        raise RankfallError(
            f"a and b must have one value per seed and query, got {a.shape[1]} and {b.shape[1]} queries"
        )
    sizes = [a.shape[1]] if folds is None else _check_folds(folds)
    if sum(sizes) != a.shape[1]:
        raise RankfallError(f"folds must sum to the number of queries, {a.shape[1]}, got {sum(sizes)}")
    known = ~(a.isnan().any(0) | b.isnan().any(0))
    remaining = [int(fold.sum()) for fold in known.split(sizes)]
    return a[:, known], b[:, known], [size for size in remaining if size > 0], int((~known).sum())


def _check_folds(folds: Sequence[int]) -> list[int]:
    if not isinstance(folds, list | tuple):
        raise TypeError(f"folds must be a list of numbers of queries, got {type(folds).__name__}")
    return [check_count("folds", size, least=0) for size in folds]


def _check_crossed(name: str, sample: Tensor) -> Tensor:
    if isinstance(sample, Tensor) and sample.ndim != 2:
        raise RankfallError(f"{name} must have the dimensions seeds and queries, got shape {tuple(sample.shape)}")
    return _check_sample(name, sample.flatten() if isinstance(sample, Tensor) else sample).view(sample.shape)


def _check_runs(name: str, runs: int, *, least: int) -> None:
    if runs < least:
        why = ": one seed says nothing about others" if least > 1 else ""
        raise RankfallError(f"{name} must have at least {least} seeds, got {runs}{why}")


def _check_size(name: str, size: int, *, least: int = 2) -> int:
    if size < least:
        raise RankfallError(f"{name} must have at least {least} values that are not NaN, got {size}")
    return size


def _standard_error(variance: float, a: Tensor, b: Tensor) -> float:
    """Return the square root of the variance; exactly 0 if it is within the rounding error of equal values."""
    error = math.sqrt(variance)
    largest = max(float(a.abs().max()), float(b.abs().max()))
    return 0.0 if error <= 4 * torch.finfo(torch.double).eps * largest else error


# --- Student's test -----------------------------------------------------------------------------------------


def _t_test(
    difference: float,
    error: float,
    freedom: float,
    alternative: str,
    confidence: float,
    count: int,
    dropped: int,
) -> TestResult:
    if error == 0:
        # Without variance, both a difference and its absence are certain.
        statistic = 0.0 if difference == 0 else math.copysign(math.inf, difference)
        wanted = {"two-sided": abs(difference), "greater": difference, "less": -difference}[alternative]
        p_value, margin = 0.0 if wanted > 0 else 1.0, 0.0
    else:
        statistic = difference / error
        above = student_survival(statistic, freedom)
        below = student_survival(-statistic, freedom)
        p_value = {"two-sided": 2 * min(above, below), "greater": above, "less": below}[alternative]
        margin = error * student_quantile((1 - confidence) / 2, freedom)
    return TestResult(
        statistic=statistic,
        p_value=p_value,
        difference=difference,
        low=difference - margin,
        high=difference + margin,
        count=count,
        dropped=dropped,
        freedom=float(freedom),
    )


# --- bootstrap ----------------------------------------------------------------------------------------------


def _resampled_means(values: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Return the means of `samples` resamples, drawn in chunks to bound the memory."""
    if generator is None:
        generator = torch.Generator(values.device).manual_seed(0)
    size = len(values)
    rows = max(1, _CHUNK // size)
    # One tensor for all: many small ones, allocated between the large ones, would prevent the reuse of freed memory.
    means = values.new_empty(samples)
    for begin in range(0, samples, rows):
        part = means[begin : begin + rows]
        drawn = torch.randint(size, (len(part), size), generator=generator, device=values.device)
        part.copy_(values[drawn].mean(-1))
    return means


def _share_beyond(centred: Tensor, mean: float, alternative: str) -> float:
    """Return the share of the centred means at least as extreme as the observed one, which counts as one of them."""
    if alternative == "two-sided":
        beyond = centred.abs() >= abs(mean)
    else:
        beyond = centred >= mean if alternative == "greater" else centred <= mean
    return (int(beyond.sum()) + 1) / (len(centred) + 1)


RESAMPLES = 1000
MOST_RESAMPLES = 10**7
LARGEST_SUMMAND = 1e25  # whose sums over requests are finite in float32
LEVEL = 0.95  # of confidence intervals
_DRAWN_AT_ONCE = 1 << 21  # draws in memory: 16 MB of indices, and 8 MB of counts


def resampled_sums(
    columns: Float[Tensor, "requests columns"],
    *,
    units: Integer[Tensor, " requests"] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Float[Tensor, "resamples columns"]:
    """Draw as many requests as there are, with replacement, and return the sums of their values for each resample.

    Args:
        columns: Values of each request, without NaN.
        units: What is drawn: requests with the same number, such as those of one user, are drawn together. Default:
            every request by itself.
        resamples: Number of resamples.
        seed: Seed of the draws.

    Returns:
        One row of sums per resample.

    Examples:
        Two requests with the values 0 and 1 are drawn as (0, 0), (0, 1), (1, 0) or (1, 1):

        >>> sums = resampled_sums(torch.tensor([[0.0], [1.0]]), resamples=4000)
        >>> sums.unique().tolist(), round(float((sums == 1).double().mean()), 1)
        ([0.0, 1.0, 2.0], 0.5)
    """
    check_count("resamples", resamples, most=MOST_RESAMPLES)
    check_none(
        "columns", ~(columns.detach().abs() <= LARGEST_SUMMAND), f"NaN, inf or numbers beyond {LARGEST_SUMMAND:g}"
    )
    values = columns.float() if units is None else sums_by(units, columns).float()
    count = len(values)
    if count == 0:
        return torch.zeros(resamples, columns.shape[1], dtype=torch.double)
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _DRAWN_AT_ONCE // count)
    blocks = [min(rows, resamples - first) for first in range(0, resamples, rows)]
    return torch.cat([_counts(block, count, generator) @ values for block in blocks]).double()


def sums_by(
    units: Integer[Tensor, " requests"], columns: Float[Tensor, "requests columns"]
) -> Float[Tensor, "units columns"]:
    """Return the sums of the values of each unit, in the order of the numbers of the units."""
    found, place = units.unique(return_inverse=True)
    return columns.new_zeros(len(found), columns.shape[1], dtype=torch.double).index_add(0, place, columns.double())


def _counts(rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Return how often each of `count` units is drawn in each of `rows` resamples."""
    drawn = torch.randint(count, (rows, count), generator=generator, dtype=torch.int32).long()
    return torch.zeros(rows, count).scatter_add_(1, drawn, torch.ones(()).expand(rows, count))


def interval(figures: Tensor, level: float = LEVEL) -> tuple[Tensor, Tensor]:
    """Return both ends of the percentile interval of figures ``(resamples, ...)``.

    Resamples in which a figure is undefined (NaN) are left out.
    """
    check_share("level", level)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=figures.dtype, device=figures.device)
    low, high = figures.nanquantile(tails, dim=0)
    return low, high
