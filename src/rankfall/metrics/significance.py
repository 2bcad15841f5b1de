"""Whether a difference between methods is more than chance.

Values are per-query metrics (:func:`paired_test`, :func:`compare`) or one number a seed
(:func:`two_sample_test`). NaN marks a query on which a metric is undefined: it is left out, and counted as
`dropped`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rankfall._lists import check_choice, check_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float

Alternative = Literal["two-sided", "greater", "less"]
Method = Literal["t", "bootstrap"]

_CHUNK = 1 << 20  # values drawn at once by the bootstrap: 8 MB of indices, and as much of values


@dataclass(frozen=True)
class TestResult:
    """The outcome of a test of the difference between two means."""

    __test__ = False  # pytest takes a class of this name for tests

    statistic: float
    """Student's t: the difference over its standard error."""
    p_value: float
    difference: float
    """Mean of the first sample minus mean of the second."""
    low: float
    """Lower end of the two-sided confidence interval of the difference, whatever the alternative."""
    high: float
    """Upper end of that interval."""
    count: int
    """Pairs that were used; values of both samples for :func:`two_sample_test`."""
    dropped: int
    """Pairs (or values) left out because of NaN."""


@dataclass(frozen=True)
class Row:
    """One method of a comparison. The method it was compared with has difference 0 and p-values 1."""

    name: str
    mean: float
    std: float
    """Standard deviation over the queries."""
    count: int
    """Queries on which the method has a value."""
    dropped: int
    """Queries left out of the test, because one of the two methods has no value there."""
    difference: float
    """Mean difference to the method it was compared with."""
    p_value: float
    adjusted_p_value: float
    """Corrected for the number of methods (Holm)."""
    best: bool
    """No other method has a better mean."""
    significantly_worse: bool
    significantly_better: bool
    """Only ever true of a comparison with a named baseline."""


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

    By Student's t-test, or by a bootstrap that resamples the differences `samples` times: the interval
    holds the middle of the resampled means, the p-value is the share of them, shifted to mean 0, that lie
    as far out as the observed mean (Efron and Tibshirani, sections 13.3 and 16.4). Without a `generator` the
    seed is fixed and the result repeats. The alternative "greater" is that the mean of `a` is the larger.

    Differences 1, 2, 3 have mean 2 and standard error 1 / sqrt(3):

    >>> result = paired_test(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([1.0, 2.0, 3.0]))
    >>> round(result.statistic, 4), round(result.p_value, 4)
    (3.4641, 0.0742)
    """
    check_choice("method", method, ("t", "bootstrap"))
    check_count("samples", samples)
    _check_options(alternative, confidence)
    a, b = _check_sample("a", a), _check_sample("b", b)
    if a.shape != b.shape:
        raise ValueError(f"a and b must have one value each a query, got {len(a)} and {len(b)} values")
    both = ~(a.isnan() | b.isnan())
    pairs, dropped = _check_size("a and b", int(both.sum())), int((~both).sum())
    a, b = a[both], b[both]
    difference = a - b
    mean, error = float(difference.mean()), _standard_error(float(difference.var()) / pairs, a, b)
    if method == "t" or error == 0:
        return _t_test(mean, error, pairs - 1, alternative, confidence, pairs, dropped)
    means = _resampled_means(difference, samples, generator)
    low, high = _interval(means, confidence)
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
    """Test whether two independent samples, as of runs with other seeds, differ (Student 1908; Welch 1947).

    With `equal_variance` False it is Welch's test. The alternative "greater" is that the mean of `a` is the
    larger.

    Means 3 and 1, both variances 1, so the squared standard error is 1/3 + 1/3:

    >>> result = two_sample_test(torch.tensor([2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, 2.0]))
    >>> round(result.statistic, 4), result.difference
    (2.4495, 2.0)
    """
    _check_options(alternative, confidence)
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


def holm(p_values: Tensor | Sequence[float]) -> Float[Tensor, " tests"]:
    """Adjust p-values for the number of tests, so that the chance of a false alarm stays bounded (Holm 1979).

    The i-th smallest of m is multiplied by m - i + 1 and is at least as large as the smaller ones' results.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = torch.as_tensor(p_values, dtype=torch.double)
    if values.ndim != 1:
        raise ValueError(f"p_values must have one dimension, got shape {tuple(values.shape)}")
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(f"p_values must lie in [0, 1], got {values.tolist()}")
    ascending, order = values.sort()
    factors = torch.arange(len(values), 0, -1, device=values.device)
    adjusted = (ascending * factors).clamp(max=1.0)
    if len(values) > 0:  # cummax knows no empty tensor
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
    """Compare methods by their values on the same queries, corrected for their number (PIR; Holm 1979).

    Without a `baseline` each method is tested against the one with the best mean, one-sided: is it worse?
    With one, each is tested against the baseline, two-sided: is it worse or better? A difference is
    significant if its adjusted p-value is below `alpha`. The rows come in the order of `values`.

    >>> good, bad = torch.tensor([0.8, 0.9, 0.7, 0.8]), torch.tensor([0.5, 0.7, 0.4, 0.4])
    >>> [(row.name, row.best, row.significantly_worse) for row in compare({"good": good, "bad": bad})]
    [('good', True, False), ('bad', False, True)]
    """
    if len(values) == 0:
        raise ValueError("values must hold at least one method, got none")
    if baseline is not None:
        check_choice("baseline", baseline, tuple(values))
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    samples = {name: _check_sample(f"values[{name!r}]", sample) for name, sample in values.items()}
    if len({len(sample) for sample in samples.values()}) > 1:
        lengths = ", ".join(f"{name} {len(sample)}" for name, sample in samples.items())
        raise ValueError(f"values must have one number a query for each method, got {lengths}")
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
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")


def _check_sample(name: str, sample: Tensor) -> Tensor:
    if not isinstance(sample, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(sample).__name__}")
    if sample.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(sample.shape)}")
    sample = sample.detach().double()
    if bool(sample.isinf().any()):
        raise ValueError(f"{name} must not hold inf")
    return sample


def _check_size(name: str, size: int) -> int:
    if size < 2:
        raise ValueError(f"{name} must have at least 2 values that are not NaN, got {size}")
    return size


def _standard_error(variance: float, a: Tensor, b: Tensor) -> float:
    """Square root of the variance; exactly 0 if it is no more than what rounding leaves of equal values."""
    error = math.sqrt(variance)
    largest = max(float(a.abs().max()), float(b.abs().max()))
    return 0.0 if error <= 4 * torch.finfo(torch.double).eps * largest else error


# --- Student's distribution ---------------------------------------------------------------------------------


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
        # Without spread a difference is certain and its absence as well.
        statistic = 0.0 if difference == 0 else math.copysign(math.inf, difference)
        wanted = {"two-sided": abs(difference), "greater": difference, "less": -difference}[alternative]
        p_value, margin = 0.0 if wanted > 0 else 1.0, 0.0
    else:
        statistic = difference / error
        above = _student_survival(statistic, freedom)
        below = _student_survival(-statistic, freedom)
        p_value = {"two-sided": 2 * min(above, below), "greater": above, "less": below}[alternative]
        margin = error * _student_quantile((1 - confidence) / 2, freedom)
    return TestResult(
        statistic=statistic,
        p_value=p_value,
        difference=difference,
        low=difference - margin,
        high=difference + margin,
        count=count,
        dropped=dropped,
    )


def _student_survival(t: float, freedom: float) -> float:
    """Probability that Student's t with so many degrees of freedom exceeds `t`.

    >>> round(_student_survival(1.0, freedom=1.0), 4)  # Cauchy: 1/2 - atan(1) / pi
    0.25
    """
    tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, odds=t * t / freedom)
    return tail if t > 0 else 1 - tail


def _student_quantile(tail: float, freedom: float) -> float:
    """The t > 0 that is exceeded with the probability `tail` < 1/2, by bisection."""
    high = 1.0
    while _student_survival(high, freedom) > tail:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _student_survival(middle, freedom) > tail else (low, middle)
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


# --- bootstrap ----------------------------------------------------------------------------------------------


def _resampled_means(values: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Means of `samples` resamples, drawn some at a time so that memory stays bounded."""
    if generator is None:
        generator = torch.Generator(values.device).manual_seed(0)
    size = len(values)
    rows = max(1, _CHUNK // size)
    # One tensor for all: many small ones, made between the large ones, would keep freed memory from reuse.
    means = values.new_empty(samples)
    for begin in range(0, samples, rows):
        part = means[begin : begin + rows]
        drawn = torch.randint(size, (len(part), size), generator=generator, device=values.device)
        part.copy_(values[drawn].mean(-1))
    return means


def _interval(means: Tensor, confidence: float) -> tuple[float, float]:
    """The percentile interval."""
    tail = (1 - confidence) / 2
    ends = means.quantile(torch.tensor([tail, 1 - tail], dtype=means.dtype, device=means.device))
    return float(ends[0]), float(ends[1])


def _share_beyond(centred: Tensor, mean: float, alternative: str) -> float:
    """Share of the centred means as far out as the observed one, which counts as one of them."""
    if alternative == "two-sided":
        beyond = centred.abs() >= abs(mean)
    else:
        beyond = centred >= mean if alternative == "greater" else centred <= mean
    return (int(beyond.sum()) + 1) / (len(centred) + 1)
