"""Every operator as an inclusion function, by name; and inclusion probabilities in log space."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from rankfall import registry
from rankfall._checks import at_least_float32, check_choice, check_count, check_flag, check_rows, check_scores
from rankfall._errors import RankfallError
from rankfall._lists import add_gumbel, safe_divide
from rankfall.ops._rows import LOG_ZERO, SoftRows
from rankfall.ops._threshold import LOG_OF_ZERO, log_threshold_topk
from rankfall.ops.diff_sort import diff_sort
from rankfall.ops.pirank_sort import pirank_sort
from rankfall.ops.softmax_sorts import neural_rows, neural_sort, soft_sort, soft_sort_rows
from rankfall.ops.threshold_topk import dftopk, hard_topk, lapsum_topk, sigmoid_topk, sparse_kind, sparse_topk
from rankfall.registry.references import is_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float


Gradient = Literal["rows", "exact", "one_minus"]


class SoftSort(Protocol):
    """Protocol of a soft sort: scores ``(..., n)`` -> the first k rows of a soft permutation ``(..., k, n)``."""

    def __call__(self, scores: Tensor, *, k: Any = ..., mask: Tensor | None = ...) -> Tensor: ...


class TopK(Protocol):
    """Protocol of a soft top-k: scores ``(..., n)`` and k -> inclusion probabilities ``(..., n)``."""

    def __call__(self, scores: Tensor, k: int, *, mask: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Operator:
    """An operator with fixed options, created by :func:`topk`. Calling it returns inclusion probabilities.

    Attributes:
        name: Name of the operator's function, such as ``"dftopk"``.
        options: Options of the operator by name.
        normalised: Whether the inclusion of a soft sort is divided by the sum over all rows.
        gradient: Gradient of a normalised soft sort; see :func:`topk`.
        function: The function itself if it is not an operator of this package.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    normalised: bool = True
    gradient: Gradient = "rows"
    function: Callable[..., Tensor] | None = None

    def __call__(
        self, scores: Float[Tensor, "*batch n"], k: int, *, mask: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch n"]:
        """Return the inclusion probability of each item; with Gumbel noise, the mean over the draws.

        Args:
            scores: Floating tensor ``(..., n)``.
            k: Number of items to select, at least 1.
            mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        """
        if self.function is not None:
            return self._of_function(self.function, scores, k, mask)
        if self.name in _SELECTIONS:
            return _SELECTIONS[self.name](scores, k, mask=mask, **self.options)
        wide, mask = check_scores(scores, mask)
        k = min(check_count("k", k), wide.shape[-1])  # no list has more rows
        noise = {key: self.options[key] for key in _NOISE if key in self.options}
        if noise.get("gumbel_samples"):
            wide = add_gumbel(wide, noise["gumbel_samples"], noise.get("beta", 1.0), noise.get("generator"))
            mask = None if mask is None else mask.expand(wide.shape)
        p = self._of_rows(wide, k, mask)
        return (p.mean(0) if noise.get("gumbel_samples") else p).to(scores.dtype)

    def _of_function(self, function: Callable[..., Tensor], scores: Tensor, k: int, mask: Tensor | None) -> Tensor:
        """Return the inclusion of a custom operator: its result, or the sum of its rows if it is a soft sort."""
        found = function(scores, k, mask=mask, **self.options)
        if found.shape == scores.shape:
            return found
        if found.shape[-1:] != scores.shape[-1:] or found.shape[:-2] != scores.shape[:-1] or found.shape[-2] > k:
            n, lists = scores.shape[-1], "".join(f"{size}, " for size in scores.shape[:-1])
            raise RankfallError(
                f"topk: {self.name} returned the shape {tuple(found.shape)} for scores of shape {tuple(scores.shape)}, "
                f"expected inclusion probabilities ({lists}{n}) or {k} rows of a soft permutation ({lists}{k}, {n})"
            )
        p = found.sum(-2)
        return _fill_kept_lists(p / p.detach().clamp(min=1.0), mask, k, 1.0) if self.normalised else p

    def _of_rows(self, scores: Tensor, k: int, mask: Tensor | None) -> Tensor:
        """Sum the first k rows of a soft sort, as a share of all rows if normalised."""
        if self.normalised and self._lazy:
            rows = self._rows(scores, mask)
            if self.gradient == "exact":
                p = torch.exp(_log_share(rows, k, "exact")[0])
                return p if mask is None else p.masked_fill(~mask, 0.0)
            top = rows.probabilities(0, k).sum(-2)
            return _fill_kept_lists(safe_divide(top, top.detach() + rows.sum_rest(k), least=0.0), mask, k, 1.0)
        options = {key: value for key, value in self.options.items() if key not in _NOISE}
        p = _SORTS[self.name](scores, k=k, mask=mask, **options).sum(-2)
        # The columns of DiffSort sum to 1. Those of a tree do not; computing all its rows would cost what the tree
        # saves, so values above 1 are clipped.
        return _fill_kept_lists(p / p.detach().clamp(min=1.0), mask, k, 1.0) if self.normalised else p

    def log(
        self, scores: Float[Tensor, "*batch n"], k: int, *, mask: Bool[Tensor, "*batch n"] | None = None
    ) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n"]]:
        """Return the logarithms of p and of 1 - p, exact where p itself would round to 0 or 1.

        The logarithm of 0 is -100.

        Args:
            scores: Floating tensor ``(..., n)``.
            k: Number of items to select, at least 1.
            mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        """
        options = dict(self.options)
        if self.function is not None:
            return _log_pair(self(scores, k, mask=mask))
        if self.name in _THRESHOLDS and options.pop("variant", "sound") == "sound":
            kind = _THRESHOLDS[self.name](options.pop("p", 2))
            return log_threshold_topk(kind, scores, k, options.pop("tau", 1.0), mask)
        if self.normalised and self._lazy and not self.options.get("gumbel_samples"):
            rows = self._rows(scores, mask)
            return _log_share(rows, min(check_count("k", k), rows.shape[-1]), self.gradient)
        return _log_pair(self(scores, k, mask=mask))

    @property
    def _lazy(self) -> bool:
        """Whether rows are computed on demand, so that all of them can be summed."""
        depth = self.options.get("depth")
        return self.name in _LAZY_ROWS or (
            self.name == "pirank_sort"
            and (depth is None or (isinstance(depth, int) and depth == 1))
            and all(self.options.get(name) is None for name in _TREE)
        )

    def _rows(self, scores: Tensor, mask: Tensor | None) -> SoftRows:
        name = "neural_sort" if self.name == "pirank_sort" else self.name  # a tree of one level
        options = {key: value for key, value in self.options.items() if key not in (*_NOISE, *_TREE, "depth")}
        return _LAZY_ROWS[name](scores, mask=mask, **options)


def topk(
    name: str | Callable[..., Tensor], *, normalised: bool = True, gradient: Gradient | None = None, **options: Any
) -> Operator:
    """Create a soft top-k from any operator: a function of scores and k that returns inclusion probabilities.

    The inclusion of a soft sort is the sum of its first k rows. The columns of a soft permutation do not sum to 1 in
    general, so by default the sum is divided by the sum over all rows (LCRON, eq. 10, with the sum that its code
    takes).

    Args:
        name: Function name of an operator: ``"dftopk"``, ``"lapsum_topk"``, ``"neural_sort"``, ..., or a function of
            your own or its reference, such as ``"my_operators:soft"``. It is called as
            ``function(scores, k, mask=mask, **options)`` and returns inclusion probabilities ``(..., n)`` or the first
            k rows ``(..., k, n)`` of a soft permutation.
        normalised: Whether to divide the inclusion of a soft sort by the sum over all rows. Has no effect on
            ``"dftopk"`` and the other top-k operators. Sums of the rows of your own function are divided only where
            they exceed 1.
        gradient: Gradient of a normalised :func:`neural_sort` or :func:`soft_sort`; values do not change. ``"rows"``
            (the default) is the gradient of LCRON's code: the normaliser is a constant, p gets its gradient through the
            first k rows and 1 - p through the others. ``"exact"`` is the derivative of the value, including the
            normaliser. ``"one_minus"`` is the gradient of LCRON's equations: the normaliser is a constant, and 1 - p is
            derived from p. Then an item that is certain to be included is penalised for a higher score (it moves from
            row 2 to row 1), which harms training.
        options: Options of the operator: tau, power, steepness, ...

    Returns:
        An :class:`Operator`, called as ``operator(scores, k, mask=mask)``.

    Raises:
        TypeError: If the operator has no option of a given name.
        ValueError: If the name or the gradient is not allowed.

    Examples:
        >>> keep = topk("lapsum_topk", tau=0.5)
        >>> keep(torch.tensor([1.0, 1.0, 1.0, 1.0]), 2)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])

        A function of your own:

        >>> def softmax_topk(scores, k, *, mask=None, tau=1.0):
        ...     scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        ...     return (k * torch.softmax(scores / tau, -1)).clamp(max=1.0)
        >>> topk(softmax_topk, tau=2.0)(torch.tensor([0.0, 0.0, 0.0, 0.0]), 2)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    functions: dict[str, Callable[..., Tensor]] = {**_SELECTIONS, **_SORTS}
    check_flag("normalised", normalised)
    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"name must be the name of an operator or a function, got {type(name).__name__}")
    name = _name_of(name, functions)
    if not isinstance(name, str):
        return _custom(name, normalised, gradient, options)
    check_choice("name", name, tuple(functions))
    allowed = set(inspect.signature(functions[name]).parameters) - {"scores", "k", "mask"}
    unknown = sorted(set(options) - allowed)
    if unknown:
        raise TypeError(f"{name} has no option {unknown[0]!r}; its options are {', '.join(sorted(allowed)) or 'none'}")
    if gradient is not None:
        check_choice("gradient", gradient, ("rows", "exact", "one_minus"))
    operator = Operator(name, options, normalised, gradient or "rows")
    if gradient is not None and not (normalised and operator._lazy):
        raise RankfallError(f"gradient: {gradient!r} applies to a normalised neural_sort or soft_sort only, got {name}")
    return operator


def _name_of(
    name: str | Callable[..., Tensor], functions: dict[str, Callable[..., Tensor]]
) -> str | Callable[..., Tensor]:
    """Return the name of an operator of this package, and the function of every other one."""
    if isinstance(name, str) and name not in functions and (is_reference(name) or name in registry.names("operator")):
        name = registry.get("operator", name)
    return next((known for known, function in functions.items() if function is name), name)


def _custom(
    function: Callable[..., Tensor], normalised: bool, gradient: Gradient | None, options: dict[str, Any]
) -> Operator:
    name = str(getattr(function, "__name__", type(function).__name__))
    if gradient is not None:
        raise RankfallError(f"gradient: {gradient!r} applies to a normalised neural_sort or soft_sort only, got {name}")
    parameters = inspect.signature(function).parameters
    unknown = sorted(set(options) - set(parameters))
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        allowed = sorted(set(parameters) - {"scores", "k", "mask"})
        raise TypeError(f"{name} has no option {unknown[0]!r}; its options are {', '.join(allowed) or 'none'}")
    return Operator(name, options, normalised, function=function)


def log_inclusion(operator: TopK, scores: Tensor, k: int, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the inclusion probability p and of 1 - p for any soft top-k; both are finite.

    Operators created by :func:`topk` are computed in log space, so that gradients do not vanish where p rounds to 0 or
    1. For any other function the logarithm of its result is taken. The logarithm of an exact 0 is -100, as in
    :func:`torch.nn.functional.binary_cross_entropy`.

    Args:
        operator: A soft top-k, called as ``operator(scores, k, mask=mask)``.
        scores: Floating tensor ``(..., n)``.
        k: Number of items to select, at least 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Two tensors ``(..., n)``: log p and log(1 - p).

    Examples:
        >>> log_p, log_not_p = log_inclusion(topk("dftopk"), torch.tensor([300.0, -300.0]), 1)
        >>> log_p, log_not_p
        (tensor([   0., -300.]), tensor([-300.,    0.]))
    """
    if isinstance(operator, Operator):
        return operator.log(scores, k, mask=mask)
    if not callable(operator):
        raise TypeError(f"topk must be an operator such as rankfall.ops.topk('dftopk'), got {operator!r}")
    return _log_pair(operator(scores, k, mask=mask))


def log_rows(
    sort: SoftSort,
    scores: Float[Tensor, "*batch n"],
    *,
    k: int | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
    tau: float | Tensor | None = None,
) -> Float[Tensor, "*batch k n"]:
    """Return the logarithm of the first k rows of any soft sort.

    NeuralSort and SoftSort are computed in log space.

    Args:
        sort: A soft sort, called as ``sort(scores, k=k, mask=mask)``.
        scores: Floating tensor ``(..., n)``.
        k: Number of rows to return, at least 1. Default: n.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        tau: Temperature that is passed to `sort`: a number, a scalar tensor, or one value per list ``(..., 1)``.
            Default: the default of `sort`.

    Returns:
        Tensor ``(..., k, n)``, `LOG_ZERO` in masked columns and in rows for ranks that a list does not have.
    """
    options: dict[str, Any] = {} if tau is None else {"tau": tau}
    inner = sort
    while isinstance(inner, partial):
        options = {**inner.keywords, **options}
        inner = inner.func
    name = next((name for name, function in _SORTS.items() if function is inner), None)
    if name in _LAZY_ROWS and not options.get("gumbel_samples"):
        lazy = _LAZY_ROWS[name](scores, mask=mask, **options)
        return lazy.logarithms(0, check_rows("k", k, lazy.shape[-1]))
    if not callable(inner):
        raise TypeError(f"sort must be a soft sort such as rankfall.ops.softmax_sorts, got {inner!r}")
    wide = check_scores(scores, mask)[0]  # LOG_ZERO is infinite in half precision
    rows = inner(at_least_float32(scores), k=wide.shape[-1] if k is None else k, mask=mask, **options)
    if rows.shape[:-2] != wide.shape[:-1]:
        raise RankfallError(f"sort must return one soft permutation per list, got shape {tuple(rows.shape)}")
    tiny = torch.finfo(rows.dtype).tiny
    return torch.where(rows == 0, LOG_ZERO, torch.log(rows.clamp(min=tiny)))


def _log_share(rows: SoftRows, k: int, gradient: Gradient) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the sums of rows 1..k and of the other rows, each as a share of all rows."""
    log_top = torch.logsumexp(rows.logarithms(0, k), -2)
    if gradient == "one_minus":
        log_p, log_not_p = _log_share_of_top(log_top, rows.log_rest(k).detach())
    else:
        log_rest = rows.log_rest(k)
        log_all = torch.logaddexp(log_top, log_rest)
        log_all = log_all if gradient == "exact" else log_all.detach()
        log_p, log_not_p = log_top - log_all, log_rest - log_all
    if rows.mask is not None:  # a masked item is never included
        log_p, log_not_p = log_p.masked_fill(~rows.mask, LOG_OF_ZERO), log_not_p.masked_fill(~rows.mask, 0.0)
    return _fill_kept_lists(log_p, rows.mask, k, 0.0), _fill_kept_lists(log_not_p, rows.mask, k, LOG_OF_ZERO)


def _log_share_of_top(log_top: Tensor, log_rest: Tensor) -> tuple[Tensor, Tensor]:
    """The same if only the first k rows carry a gradient."""
    log_all = torch.logaddexp(log_top.detach(), log_rest)
    # d log(1 - p) = -dp / (1 - p) = -odds * d log p; a floor of 1 - p at the precision of p keeps it finite.
    odds = torch.exp((log_top.detach() - log_rest).clamp(max=-torch.log(_eps(log_top))))
    return log_top - log_all, (log_rest - log_all) - odds * (log_top - log_top.detach())


def _eps(like: Tensor) -> Tensor:
    return like.new_full((), torch.finfo(like.dtype).eps)  # torch.tensor() would copy it from the host


def _fill_kept_lists(values: Tensor, mask: Tensor | None, k: int, value: float) -> Tensor:
    """Set a fixed value, without gradient, for the real items of lists that are kept completely (k >= n)."""
    if mask is not None:
        return values.masked_fill(mask & (mask.sum(-1, keepdim=True) <= k), value)
    return values * 0 + value if k >= values.shape[-1] else values


def _log_pair(p: Tensor) -> tuple[Tensor, Tensor]:
    return _log(p), _log(1 - p)


def _log(p: Tensor) -> Tensor:
    positive = p >= torch.finfo(p.dtype).tiny  # the slope of anything less would be infinite
    return torch.where(positive, torch.log(torch.where(positive, p, 1.0)), LOG_OF_ZERO)


_NOISE = ("gumbel_samples", "beta", "generator")
_TREE = ("branches", "kept", "tau_shares")
_SELECTIONS: dict[str, Callable[..., Tensor]] = {
    "dftopk": dftopk,
    "lapsum_topk": lapsum_topk,
    "sparse_topk": sparse_topk,
    "sigmoid_topk": sigmoid_topk,
    "hard_topk": hard_topk,
}
_SORTS: dict[str, Callable[..., Tensor]] = {
    "neural_sort": neural_sort,
    "soft_sort": soft_sort,
    "diff_sort": diff_sort,
    "pirank_sort": pirank_sort,
}
_THRESHOLDS: dict[str, Callable[[float], str]] = {
    "dftopk": lambda p: "midpoint",
    "lapsum_topk": lambda p: "laplace",
    "sigmoid_topk": lambda p: "logistic",
    "sparse_topk": sparse_kind,
}


def _neural(scores: Tensor, *, mask: Tensor | None, tau: float | Tensor = 1.0) -> SoftRows:
    return neural_rows(scores, tau, mask)


def _soft(scores: Tensor, *, mask: Tensor | None, tau: float | Tensor = 1.0, power: int = 1) -> SoftRows:
    return soft_sort_rows(scores, tau, mask, power)


_LAZY_ROWS: dict[str | None, Callable[..., SoftRows]] = {"neural_sort": _neural, "soft_sort": _soft}
