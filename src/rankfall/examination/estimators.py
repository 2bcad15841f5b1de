r"""Estimators of the examination curve under the position-based model.

The probability of a click on an item at position :math:`k` is :math:`\theta_k \gamma`: the examination of the position
times the attractiveness of the item. All estimators return :math:`\theta_k / \theta_0`. They differ in what they assume
about :math:`\gamma`:

- :class:`Naive`: it has the same mean at all positions.
- :class:`Pairs`: it is equal for items of one group, which were shown at different positions.
- :class:`RegressionEM`: it is a logistic regression on what describes an item.

Each estimator is built once for the shown items and is called with weights of them, so that a bootstrap repeats only
what the weights change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from rankfall.examination.shows import Shows

    Floats = NDArray[np.float64]

_NEWTON_STEPS = 50
_CONVERGED = 1e-9
_PENALTY = 1.0  # of the squared coefficients, as a normal prior of variance 1 would give
FIRST_STEPS, FURTHER_STEPS = 500, 30  # of L-BFGS, for the first weights and for those of bootstrap samples
_MOST = 1 - 1e-9  # the largest probability of a click, so that its logarithm stays finite


class Estimator(Protocol):
    """Estimates the examination of every position, relative to the first one."""

    def __call__(self, weight: Floats) -> Floats:
        """Return the curve for these weights of the shown items."""


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
            raise ValueError(
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
