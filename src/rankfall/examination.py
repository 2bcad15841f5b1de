"""How often users examine each position: curves estimated from a log, and the propensities that correct clicks.

Users click only what they look at, and they look at the first positions most. The position-based model writes the
probability of a click as examination of the position times attractiveness of the item. The estimators here separate the
two factors; ``docs/concepts/click-bias.md`` says what each of them assumes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch

from rankfall._config import Number, Result
from rankfall._errors import RankfallError, did_you_mean
from rankfall.data.impressions.spec import column_of
from rankfall.data.inspect.inspection import flat, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.data.impressions.log import Day, ImpressionLog
    from rankfall.data.inspect.inspection import ImpressionBlock

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]
    OnProgress = Callable[[str, int, int], None]
    Estimator = Callable[[Floats], Floats]  # weights of the shown items to a curve, relative to the first position


@dataclass(frozen=True)
class ExaminationPoint(Result):
    """One position of a curve. All rates are relative to those of the first position."""

    position: int  # from 0 for the first
    shows: int
    clicks: int
    naive: Number  # click rate, whatever was shown there
    naive_low: Number
    naive_high: Number
    examination: Number  # estimated examination
    low: Number  # 95 % bootstrap interval
    high: Number


@dataclass(frozen=True)
class ExaminationCurve(Result):
    """Estimated examination of positions, and how it was estimated."""

    log: str
    feedback: str  # what counts as a click
    method: str
    given: list[str]  # what relevance was described by
    days: list[str]
    requests: int
    resampled: str  # "users" or "requests"
    resamples: int
    points: list[ExaminationPoint]
    notes: list[str] = field(default_factory=list)

    def propensities(self, position: Tensor) -> Tensor:
        """Return the examination of positions; those below the last point of the curve have its value.

        Args:
            position: Tensor of positions, at least 0.
        """
        values = torch.tensor([point.examination for point in self.points]).to(position.device, non_blocking=True)
        return values[position.long().clamp(max=len(values) - 1)]


RANK, ITEM = "rank", "item"
FEW_VALUES = 128  # embedding rows up to which a feature describes relevance by default
_OF_ROWS = ("position", "click", "request", "cluster")
VARIES = 0.01  # the smallest share of shows away from the usual position of their rank


@dataclass(frozen=True, slots=True)
class Shows:
    """Shown items, one per row."""

    position: Integers
    click: NDArray[np.bool_]
    request: Integers  # numbers from 0 on
    cluster: Integers  # the user, or the request if the log does not know users
    resampled: Literal["users", "requests"]
    values: dict[str, NDArray[Any]]  # what describes relevance, by name: ids (n,) or numbers (n, size)

    def __len__(self) -> int:
        """The number of shown items."""
        return len(self.position)

    @property
    def positions(self) -> int:
        """The number of positions."""
        return int(self.position.max(initial=-1)) + 1

    def where(self, chosen: NDArray[np.bool_]) -> Shows:
        """Return some of the shown items."""
        return replace(
            self,
            **{name: getattr(self, name)[chosen] for name in _OF_ROWS},
            values={name: values[chosen] for name, values in self.values.items()},
        )


def read_shows(
    log: ImpressionLog,
    feedback: str,
    *,
    given: Iterable[str],
    days: Sequence[Day] | None = None,
    on_day: Callable[[str], None] = lambda day: None,
) -> Shows:
    """Read the shown items of a log.

    Args:
        log: A log with positions.
        feedback: The feedback that counts as a click where it is above 0.
        given: What describes the relevance of an item: ``rank`` (its logged stage and rank), ``item``, and features
            such as ``user.age`` and ``item.category``.
        days: Only these days of the log; by default all.
        on_day: Receives the name of each day that was read.

    Raises:
        ValueError: If the log has no positions, no such feedback or no such column, or if nothing was shown.
    """
    if log.spec.position is None:
        raise RankfallError(
            f"{log.path} has no positions; prepare it with 'position: COLUMN' in its spec, the place at which "
            "an item was shown"
        )
    _check_name("feedback", feedback, log.spec.feedback)
    allowed = [RANK, ITEM, *(f"{feature.group}.{feature.name}" for feature in log.features.features)]
    names = list(dict.fromkeys(given))
    for name in names:
        _check_name("given", name, allowed)
    user = _user_column(log)
    parts, before = [], 0
    for day in log.days.values() if days is None else days:
        for block, _ in read_blocks(day, log.spec):
            parts.append(_shows_of(block, feedback, names, user, before))
            before += len(block)
        on_day(day.name)
    if not any(map(len, parts)):
        raise RankfallError(f"{log.path}: no item of these days has a position, so nothing was shown")
    return _joined(parts)


def varies(values: NDArray[Any], position: Integers) -> bool:
    """Return whether items with one value were shown at different positions."""
    _, number = np.unique(values, return_inverse=True)
    shape = int(number.max(initial=0)) + 1, int(position.max(initial=0)) + 1
    shows = np.bincount(number * shape[1] + position, minlength=shape[0] * shape[1]).reshape(shape)
    return bool(shows.max(axis=1).sum() < (1 - VARIES) * len(position))


def _check_name(what: str, name: str, allowed: Sequence[str]) -> None:
    if name not in allowed:
        expected = ", ".join(allowed) or "none: the log has no feedback"
        raise RankfallError(f"{what}: found {name!r}{did_you_mean(name, allowed)}; allowed are {expected}")


def _user_column(log: ImpressionLog) -> str | None:
    """Return the column that has the id of the user, if a feature of the log is made of it."""
    features = log.spec.features.user
    return next(
        (f"user.{name}" for name in features if column_of(log.spec, name, features[name]) == log.spec.user), None
    )


def _shows_of(block: ImpressionBlock, feedback: str, given: list[str], user: str | None, before: int) -> Shows:
    """Return the shown items of a block; `before` impressions come before it."""
    position = block.values("position").astype(np.int64)
    shown = position >= 0
    owner = block.owner[shown]

    def value(name: str) -> NDArray[Any]:
        if name == RANK:
            ranks = block.values("rank").astype(np.int64)[shown]
            ids: Integers = block.values("depth").astype(np.int64)[shown] << 32 | (ranks + 1)
            return ids
        of_item = name == ITEM or name.startswith("item.")
        return block.values(name)[shown] if of_item else flat(block.batch[name])[owner]

    return Shows(
        position=position[shown],
        click=block.values(f"feedback.{feedback}")[shown] > 0,
        request=owner + before,
        cluster=owner + before if user is None else value(user).astype(np.int64),
        resampled="requests" if user is None else "users",
        values={name: value(name) for name in given},
    )


def _joined(parts: list[Shows]) -> Shows:
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_ROWS}
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    return replace(parts[0], **columns, values=values)


_NEWTON_STEPS = 50
_CONVERGED = 1e-9
_PENALTY = 1.0  # of the squared coefficients, as a normal prior of variance 1 would give
FIRST_STEPS, FURTHER_STEPS = 500, 30  # of L-BFGS, for the first weights and for those of bootstrap samples
_MOST = 1 - 1e-9  # the largest probability of a click, so that its logarithm stays finite


class Naive:
    """The click rate of each position.

    It is the examination only if the items of all positions are equally attractive, for example if their order was
    random.
    """

    def __init__(self, shows: Shows) -> None:
        self._position, self._click, self._count = shows.position, shows.click, shows.positions

    def __call__(self, weight: Floats) -> Floats:
        """Return the curve for these weights of the shown items."""
        shows = np.bincount(self._position, weight, minlength=self._count)
        clicks = np.bincount(self._position, weight * self._click, minlength=self._count)
        return _relative(np.divide(clicks, shows, out=np.full(self._count, np.nan), where=shows > 0))


class Pairs:
    r"""Compares the clicks of one group of items at all pairs of positions at which it was shown.

    With the attractiveness :math:`\gamma_g` of group :math:`g`, clicks :math:`c_{gk}` and shows :math:`n_{gk}` have
    :math:`E[c_{gk}] = n_{gk} \theta_k \gamma_g`. Given the clicks of a group, their positions do not depend on
    :math:`\gamma_g`, and the curve maximises

    .. math:: \sum_{g,k} c_{gk} \log \frac{n_{gk} \theta_k}{\sum_j n_{gj} \theta_j}

    which is concave in :math:`\log \theta`. Groups that were shown at one position drop out, and small groups cause no
    bias. It is a form of intervention harvesting (Agarwal et al. 2019), whose groups are the items of a query.

    Raises:
        ValueError: If no groups connect all positions.
    """

    def __init__(self, shows: Shows) -> None:
        count = shows.positions
        group = _numbered(shows.values)
        clicked = np.bincount(group, shows.click) > 0
        cells = np.unique(group * count + shows.position)
        several = np.bincount(cells // count, minlength=len(clicked)) > 1
        kept = (clicked & several)[group]
        _, self._group = np.unique(group[kept], return_inverse=True)
        self._position, self._click, self._rows = shows.position[kept], shows.click[kept], np.flatnonzero(kept)
        self._shape = int(self._group.max(initial=-1)) + 1, count
        missing = _unconnected(self._counts(np.ones(len(shows)))[0])
        if missing:
            raise RankfallError(
                f"given: found {', '.join(shows.values)}, but no items that agree in it connect the positions "
                f"{', '.join(map(str, missing))} with the first one; describe items by less, or use the method em"
            )

    @property
    def groups(self) -> int:
        """The number of groups with a click that were shown at several positions."""
        return self._shape[0]

    def __call__(self, weight: Floats) -> Floats:
        """Return the curve for these weights of the shown items."""
        shows, clicks = self._counts(weight)
        of_group, of_position = clicks.sum(axis=1), clicks.sum(axis=0)
        log_curve = np.zeros(self._shape[1])
        for _ in range(_NEWTON_STEPS):
            shares = shows * np.exp(log_curve)
            shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
            expected = of_group @ shares
            hessian = np.diag(expected) - (shares * of_group[:, None]).T @ shares
            # only ratios matter, so the first position is fixed; the tiny ridge covers positions without clicks
            free = hessian[1:, 1:] + 1e-9 * np.eye(len(hessian) - 1) * max(float(expected.max()), 1.0)
            step = np.clip(np.linalg.solve(free, (of_position - expected)[1:]), -1, 1)
            log_curve[1:] += step
            if np.abs(step).max(initial=0) < _CONVERGED:
                break
        curve: Floats = np.exp(log_curve)
        return curve

    def _counts(self, weight: Floats) -> tuple[Floats, Floats]:
        """Return shows and clicks of every group at every position."""
        weight, size = weight[self._rows], self._shape[0] * self._shape[1]
        cell = self._group * self._shape[1] + self._position
        shows: Floats = np.bincount(cell, weight, minlength=size).astype(np.float64)
        clicks: Floats = np.bincount(cell, weight * self._click, minlength=size).astype(np.float64)
        return shows.reshape(self._shape), clicks.reshape(self._shape)


class RegressionEM:
    r"""Fits examination and a logistic regression of attractiveness together (Wang et al. 2018).

    The likelihood is that of clicks with probability :math:`\theta_k \sigma(w \cdot x)`. Regression-EM maximises it by
    alternating two steps; here L-BFGS maximises it directly, which needs fewer passes and ends at a fixed point of the
    alternation. Every id has its own coefficient, numbers are standardised, and coefficients have a normal prior of
    variance 1. Use few coefficients: a regression that remembers single items explains their clicks without any
    examination, and the curve becomes too flat.
    """

    def __init__(self, shows: Shows) -> None:
        self._ids, numbers, size = [], [], 1  # coefficient 0 is the intercept
        for values in shows.values.values():
            if np.issubdtype(values.dtype, np.integer):
                found, number = np.unique(values, return_inverse=True)
                self._ids.append(number + size)
                size += len(found)
            else:
                numbers.append(values.reshape(len(values), -1))
        self._numbers = _standardised(numbers, len(shows))
        self._position, self._click = shows.position, shows.click
        self._sizes = (shows.positions, size, self._numbers.shape[1])
        self._start = torch.zeros(sum(self._sizes), dtype=torch.float64)
        self._start[: shows.positions] = 2.0  # log-odds of examination
        self._steps = FIRST_STEPS

    def __call__(self, weight: Floats) -> Floats:
        """Return the curve for these weights; calls after the first one begin at its solution and take fewer steps."""
        solution = self._start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [solution],
            max_iter=self._steps,
            tolerance_grad=1e-7,
            tolerance_change=1e-9,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            loss, gradient = self.loss(solution.detach().numpy(), weight)
            solution.grad = torch.from_numpy(gradient)
            return torch.tensor(loss, dtype=torch.float64)

        optimizer.step(closure)
        if self._steps == FIRST_STEPS:
            self._start, self._steps = solution.detach(), FURTHER_STEPS
        return _relative(_sigmoid(solution.detach().numpy()[: self._sizes[0]]))

    def loss(self, parameters: Floats, weight: Floats) -> tuple[float, Floats]:
        """Return the mean negative log-likelihood with the prior, and its gradient.

        The gradient is written out, because those of embeddings are many times slower on the CPU.

        Args:
            parameters: Log-odds of examination, coefficients of ids after the intercept, coefficients of numbers.
            weight: Weights of the shown items.
        """
        examination, of_ids, of_numbers = np.split(parameters, np.cumsum(self._sizes)[:-1])
        odds = of_ids[0] + self._numbers @ of_numbers
        for ids in self._ids:
            odds += of_ids[ids]
        seen, liked = _sigmoid(examination)[self._position], _sigmoid(odds)
        click = np.minimum(seen * liked, _MOST)
        likelihood = weight @ np.where(self._click, np.log(np.maximum(click, 1 - _MOST)), np.log1p(-click))
        # the derivative of the log-likelihood by the logarithm of the probability of a click
        by_log = weight * np.where(self._click, 1.0, -click / (1 - click))
        by_examination = np.bincount(self._position, by_log * (1 - seen), minlength=self._sizes[0])
        by_odds = by_log * (1 - liked)
        by_ids = np.zeros(self._sizes[1])
        by_ids[0] = by_odds.sum()
        for ids in self._ids:
            by_ids += np.bincount(ids, by_odds, minlength=self._sizes[1])
        prior = np.concatenate([np.zeros(len(examination) + 1), of_ids[1:], of_numbers])
        gradient = _PENALTY * prior - np.concatenate([by_examination, by_ids, by_odds @ self._numbers])
        return (_PENALTY / 2 * float(prior @ prior) - float(likelihood)) / len(odds), gradient / len(odds)


def _sigmoid(values: Floats) -> Floats:
    sigmoid: Floats = 0.5 * (1 + np.tanh(values / 2))
    return sigmoid


def _relative(curve: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        relative: Floats = curve / curve[0]
    return relative


def _numbered(values: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Number the different combinations of values."""
    table = np.concatenate([column.reshape(len(column), -1).astype(np.float64) for column in values.values()], axis=1)
    number = np.zeros(len(table), np.int64)
    for column in table.T:
        _, of_column = np.unique(column, return_inverse=True)
        _, number = np.unique(number * (int(of_column.max()) + 1) + of_column, return_inverse=True)
    return number


def _unconnected(shows: Floats) -> list[int]:
    """Return the positions that no chain of groups connects with the first one."""
    shown = shows > 0
    together = (shown.T.astype(float) @ shown) > 0
    reached = np.arange(len(together)) == 0
    for _ in range(len(together)):
        reached = reached | together[reached].any(axis=0)
    return [int(position) for position in np.flatnonzero(~reached)]


def _standardised(numbers: list[NDArray[Any]], rows: int) -> Floats:
    columns = np.concatenate([np.empty((rows, 0)), *numbers], axis=1).astype(np.float64)
    deviation = columns.std(axis=0)
    standardised: Floats = (columns - columns.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return standardised


Method = Literal["pairs", "em", "naive"]
ESTIMATORS: dict[str, Callable[[Shows], Estimator]] = {"pairs": Pairs, "em": RegressionEM, "naive": Naive}
FEWEST_SHOWS = 100  # of a position in the curve


def estimate_examination(
    log: ImpressionLog,
    feedback: str,
    *,
    method: Method = "pairs",
    given: Sequence[str] | None = None,
    days: Sequence[str] | None = None,
    positions: int = 30,
    resamples: int = 100,
    seed: int = 0,
    on_progress: OnProgress = lambda step, done, total: None,
) -> ExaminationCurve:
    """Estimate how often each position is examined, relative to the first one.

    Args:
        log: A log with positions.
        feedback: The feedback that counts as a click where it is above 0.
        method: ``"pairs"`` compares items that agree in all of `given` at different positions, ``"em"`` fits a logistic
            regression on `given`, ``"naive"`` takes the click rate of each position.
        given: What describes the relevance of an item: ``rank``, ``item``, and features such as ``item.category``. By
            default the logged rank, for ``"em"`` also all features with few values; without informative ranks ``pairs``
            takes the item.
        days: Names and ranges ``FIRST..LAST`` of days; by default all.
        positions: The largest number of positions. The curve ends before the first position with fewer than 100 shows
            or without a click.
        resamples: The number of bootstrap samples of users, or of requests where the log does not know users.
        seed: Seed of the bootstrap.
        on_progress: Receives the name of a step, the amount done and the total.

    Raises:
        ValueError: If the log has no positions, if an argument is wrong, or if the shown items cannot tell examination
            from relevance.
    """
    if method not in get_args(Method):
        raise RankfallError(
            f"method: found {method!r}{did_you_mean(method, get_args(Method))}; allowed are {get_args(Method)}"
        )
    if positions < 1 or resamples < 2:
        raise RankfallError(f"found {positions} positions and {resamples} resamples, expected at least 1 and 2")
    chosen = log.choose(days) if days else list(log.days.values())
    asked = _asked(log, method, given)
    done = 0

    def on_day(_: str) -> None:
        nonlocal done
        done += 1
        on_progress("reading days", done, len(chosen))

    shows = read_shows(log, feedback, given=asked, days=chosen, on_day=on_day)
    shows, notes = _usable(shows, positions)
    shows, ranked_notes = _without_useless_rank(shows, given is not None, method)
    estimators: dict[str, Estimator] = {"naive": Naive(shows), "estimate": ESTIMATORS[method](shows)}
    fitted, samples = _bootstrap(estimators, shows, resamples, seed, on_progress)
    points = _points(shows, fitted, samples)
    return ExaminationCurve(
        log=str(log.path),
        feedback=feedback,
        method=method,
        given=list(shows.values),
        days=[day.name for day in chosen],
        requests=len(np.unique(shows.request)),
        resampled=shows.resampled,
        resamples=resamples,
        points=points,
        notes=[*notes, *ranked_notes, *_rising(points)],
    )


def _asked(log: ImpressionLog, method: Method, given: Sequence[str] | None) -> list[str]:
    """Return the names of what relevance is described by; with `pairs`, one of rank and item is left out later."""
    if method == "naive":
        return []
    if given is not None:
        return list(given)
    ranked = [RANK] if log.spec.rank is not None else []
    if method == "pairs":
        return [*ranked, ITEM]
    features = [feature for feature in log.features.features if feature.rows <= FEW_VALUES]
    return [*ranked, *(f"{feature.group}.{feature.name}" for feature in features)]


def _usable(shows: Shows, most: int) -> tuple[Shows, list[str]]:
    """Keep the leading positions with enough shows."""
    counts = np.bincount(shows.position)
    clicks = np.bincount(shows.position, shows.click)
    enough = (counts >= FEWEST_SHOWS) & (clicks > 0)
    end = min(int(np.argmin([*enough, False])), most)
    if not end:
        raise RankfallError(
            f"position 0 has {counts[0]:,} shows and {clicks[0]:,.0f} clicks, expected at least {FEWEST_SHOWS} and 1; "
            "positions are counted from 0"
        )
    left_out = int(counts[end:].sum())
    notes = [f"{left_out:,} shows below position {end - 1} are left out"] if left_out else []
    return shows.where(shows.position < end), notes


def _without_useless_rank(shows: Shows, is_asked: bool, method: Method) -> tuple[Shows, list[str]]:
    """Leave the rank out of the defaults where it is the position itself; for pairs, one of rank and item is kept."""
    values, notes = dict(shows.values), []
    if RANK in values and not varies(values[RANK], shows.position):
        if is_asked:
            raise RankfallError(
                "given: found rank, but items of one rank were always shown at the same position, so that rank and "
                "position cannot be told apart"
            )
        del values[RANK]
    if method != "naive" and RANK not in values and not is_asked:
        notes.append(
            "the log has no ranks apart from the positions: if production showed better items first, the curve falls "
            "too steeply"
        )
    if method == "pairs" and not is_asked and RANK in values:
        del values[ITEM]
    return replace(shows, values=values), notes


def _bootstrap(
    estimators: dict[str, Estimator], shows: Shows, resamples: int, seed: int, on_progress: OnProgress
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the curves of all shown items, and those of samples, with a Poisson(1) weight for every cluster."""
    on_progress("estimating", 0, resamples + 1)
    fitted = {name: estimator(np.ones(len(shows))) for name, estimator in estimators.items()}
    random = np.random.default_rng(seed)
    clusters, number = np.unique(shows.cluster, return_inverse=True)
    curves: dict[str, list[Floats]] = {name: [] for name in estimators}
    for done in range(1, resamples + 1):
        on_progress("estimating", done, resamples + 1)
        weight = random.poisson(1.0, len(clusters)).astype(np.float64)[number]
        for name, estimator in estimators.items():
            curves[name].append(estimator(weight))
    on_progress("estimating", resamples + 1, resamples + 1)
    return fitted, {name: np.stack(found) for name, found in curves.items()}


def _rising(points: Sequence[ExaminationPoint]) -> list[str]:
    """Note a curve that rises by more than its intervals: users seldom examine lower positions more often."""
    for place, point in enumerate(points):
        before = min(points[:place], key=lambda other: other.high, default=point)
        if point.low > before.high:
            return [
                f"the curve rises from position {before.position} to {point.position}: items may have been moved for "
                "reasons that clicks depend on, so do not trust it below there"
            ]
    return []


def _points(shows: Shows, fitted: dict[str, Floats], samples: dict[str, Floats]) -> list[ExaminationPoint]:
    intervals = {name: np.nanquantile(curves, (0.025, 0.975), axis=0) for name, curves in samples.items()}
    counts = np.bincount(shows.position)
    clicks = np.bincount(shows.position, shows.click)
    return [
        ExaminationPoint(
            position=place,
            shows=int(counts[place]),
            clicks=int(clicks[place]),
            naive=float(fitted["naive"][place]),
            naive_low=float(intervals["naive"][0, place]),
            naive_high=float(intervals["naive"][1, place]),
            examination=float(fitted["estimate"][place]),
            low=float(intervals["estimate"][0, place]),
            high=float(intervals["estimate"][1, place]),
        )
        for place in range(shows.positions)
    ]
