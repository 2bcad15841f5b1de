"""Exact ranking metrics, one value per list.

Conventions that all metrics share:

- Higher is better in scores and labels. Only the order of the scores matters, so ±inf is allowed. Labels may have any
  real dtype. An item is *relevant* if its label is positive.
- ``ties="average"`` is the expected value over all orders of the tied items, in closed form. The order of the items
  never matters, and a constant scorer gets the value of a random one. With ``ties="position"`` the earlier item ranks
  first.
- A list on which a metric is undefined (no relevant item; for :func:`opa` no pair to compare) gets the value `empty`.
- A metric has the shape of the batch, the dtype of the scores (at least float32) and no gradient. Sums and products are
  computed in float64.

Examples:
    The chance level of a metric on a list is its value for constant scores:

    >>> labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> precision(torch.zeros(4), labels, k=2)
    tensor(0.2500)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfall import register
from rankfall._checks import check_choice, check_count, check_none, check_ranking, check_real, widen, widest
from rankfall._lists import discounts, gains, has_positive, ideal_dcg, rank_order, safe_divide, top_labels

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from rankfall.option_types import Count

Ties = Literal["average", "position"]


# --- the metrics --------------------------------------------------------------------------------------------


@register.metric
def recall(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    m: Count,
    k: Count,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties = "average",
    positive_only: bool = True,
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Recall@m@k: the share of the k best labels among the m best scores (ARF, eq. 4).

    .. math:: \frac{\sum_j a_j [r_j \le m]}{\sum_j a_j}

    where :math:`a` marks the `k` best labels; items tied at the boundary share the remaining places. A list with fewer
    than k relevant items is divided by the number it has. Use it for a stage that keeps m items.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype. Higher is better; an item with a positive label is relevant.
        m: Number of items that the scores keep, at least 1.
        k: Number of relevant items, at least 1: the k best labels.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: ``"average"`` for the expected value over all orders of tied items, ``"position"`` to rank the earlier
            item first.
        positive_only: Whether only labels above 0 can be among the k best.
        empty: Value of lists without a relevant item.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        Of three items two are kept, one of them is relevant:

        >>> recall(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 2.0]), m=2, k=2)
        tensor(0.5000)
    """
    scores, labels, mask = check_ranking(scores, labels, mask)
    truth = widen(top_labels(labels, k, mask, positive_only=positive_only))
    kept = _inclusion(scores, mask, check_count("m", m), ties)
    size = truth.sum(-1)
    return _finish((kept * truth).sum(-1) / size, size > 0, empty, scores)


@register.metric("ndcg_linear", options={"gain": "linear"})
@register.metric
def ndcg(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    k: Count | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties = "average",
    gain: Literal["exp2", "linear"] = "exp2",
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Normalised discounted cumulative gain of the first k ranks, or of all ranks (Järvelin and Kekäläinen 2002).

    .. math:: \sum_{i: r_i \le k} \frac{G(y_i)}{\log_2(1 + r_i)}

    divided by its largest value over all orders. Use it for graded labels if the top ranks matter most.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype, at least 0. Higher is better.
        k: Number of ranks that count, at least 1. Default: all.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: ``"average"`` for the expected value over all orders of tied items, ``"position"`` to rank the earlier
            item first.
        gain: Gain G of a label: ``"exp2"`` for 2^y - 1, ``"linear"`` for y.
        empty: Value of lists without a relevant item.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        The only relevant item, at rank 3, is discounted by log2(4) = 2:

        >>> ndcg(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, 0.0, 1.0]))
        tensor(0.5000)
    """
    scores, labels, mask = check_ranking(scores, labels, mask)
    k = None if k is None else check_count("k", k)
    gain_ = gains(widen(labels), mask, kind=gain)
    ranking = _rank(scores, gain_, mask, ties)
    discount = _tie_mean(discounts(scores.shape[-1], gain_, k=k), ranking)
    ideal = ideal_dcg(gain_, k=k)
    return _finish((ranking.values * discount).sum(-1) / ideal, ideal > 0, empty, scores)


@register.metric("opa_all", options={"label_ties": "count"})
@register.metric
def opa(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties | Literal["correct"] = "average",
    label_ties: Literal["skip", "count"] = "skip",
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Ordered pair accuracy: the share of pairs with different labels that are in the right order (ARF, eq. 2).

    .. math:: \frac{|\{(i, j): y_i > y_j, s_i > s_j\}|}{|\{(i, j): y_i > y_j\}|}

    The formula of the paper is ``ties="correct", label_ties="count"``: it divides by the number of all pairs, and every
    pair with equal labels or equal scores counts as right. Then a list with many equal labels has a high value whatever
    the scores are, so the default leaves such pairs out.

    Pairs are counted by merging sorted blocks: :math:`O(n \log^2 n)` time, memory linear in n. Use it if the whole
    order matters, whatever the ranks.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: Value of a pair with equal scores: ``"average"`` counts one half, ``"correct"`` counts one, as the
            :math:`s_i - s_j \ge 0` of the paper, which gives a constant scorer a perfect value. ``"position"`` ranks
            the earlier item first.
        label_ties: ``"skip"`` leaves out pairs with equal labels, ``"count"`` counts them as in the right order.
        empty: Value of lists without a pair to compare.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        The pairs are (2, 0), (2, 1) and (1, 0); only the last one is in order:

        >>> opa(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 2.0]))
        tensor(0.3333)

        Both pairs with different labels are in the wrong order; the third pair has equal labels:

        >>> scores, labels = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, 0.0, 1.0])
        >>> opa(scores, labels), opa(scores, labels, label_ties="count")
        (tensor(0.), tensor(0.3333))
    """
    check_choice("ties", ties, ("average", "position", "correct"))
    check_choice("label_ties", label_ties, ("skip", "count"))
    scores, labels, mask = check_ranking(scores, labels, mask)
    ranking = _rank(scores, labels, mask, "position" if ties == "position" else "average")
    real = mask.gather(-1, ranking.order)
    by_label = rank_order(ranking.values, real)  # stable: equal labels keep the order of the scores
    rank, label = ranking.start.gather(-1, by_label), ranking.values.gather(-1, by_label)
    real = real.gather(-1, by_label)

    position = _positions(scores)
    same_label, same_both = _runs(label, real).end, _runs(rank, label, real).end
    pairs = ((real.sum(-1, keepdim=True) - same_label) * real).sum(-1)
    tied = ((ranking.end - position) * mask.gather(-1, ranking.order)).sum(-1)
    tied = tied - ((same_both - position) * real).sum(-1)
    ordered = pairs - tied - _inversions(rank)
    share = 1.0 if ties == "correct" else 0.5
    correct = ordered + share * widen(tied)
    if label_ties == "count":
        items = real.sum(-1)
        every = items * (items - 1) // 2
        correct, pairs = correct + (every - pairs), every
    return _finish(correct / pairs, pairs > 0, empty, scores)


@register.metric(higher_is_better=False)
def arp(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties = "average",
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Average relevance position: the mean rank weighted by the labels; lower is better (PIR, eq. 4).

    .. math:: \frac{\sum_i y_i r_i}{\sum_i y_i}

    Use it if the mean position of relevant items matters, including deep ranks.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype, at least 0, the weights of the ranks. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: ``"average"`` for the expected value over all orders of tied items, ``"position"`` to rank the earlier
            item first.
        empty: Value of lists without a relevant item.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        (2 * 1 + 1 * 3) / 3:

        >>> arp(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0, 1.0]))
        tensor(1.6667)
    """
    scores, labels, mask = check_ranking(scores, labels, mask)
    check_none("labels", labels < 0, "values below 0")
    ranking = _rank(scores, widen(labels), mask, ties)
    mean_rank = widen(ranking.start + 1 + ranking.end) / 2
    total = ranking.values.sum(-1)
    return _finish((ranking.values * mean_rank).sum(-1) / total, total > 0, empty, scores)


@register.metric
def mrr(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties = "average",
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Reciprocal rank of the first relevant item (Voorhees 1999).

    .. math:: 1 / \min \{r_i : y_i > 0\}

    The mean over lists is the MRR. Use it if one relevant item is enough.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype. Higher is better; an item with a positive label is relevant.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: ``"average"`` for the expected value over all orders of tied items, ``"position"`` to rank the earlier
            item first.
        empty: Value of lists without a relevant item.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        >>> mrr(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]))
        tensor(0.5000)
    """
    scores, labels, mask = check_ranking(scores, labels, mask)
    missed = _missed(_rank(scores, widen(labels > 0), mask, ties))
    first = -missed.diff(dim=-1, prepend=torch.ones_like(missed[..., :1]))
    rank = _positions(scores) + 1
    return _finish((first / rank).sum(-1), has_positive(labels, mask), empty, scores)


@register.metric("map")
def average_precision(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties = "average",
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Average precision: mean over the relevant items of the precision at their rank (McSherry and Najork 2008).

    .. math:: \frac{1}{R} \sum_{i: y_i > 0} \frac{|\{j: y_j > 0, r_j \le r_i\}|}{r_i}

    The mean over lists is the MAP. The paper derives the value under ties. Use it for binary labels if all relevant
    items matter.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype. Higher is better; an item with a positive label is relevant.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: ``"average"`` for the expected value over all orders of tied items, ``"position"`` to rank the earlier
            item first.
        empty: Value of lists without a relevant item.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        Relevant items at ranks 1 and 3 have precision 1 and 2/3:

        >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]))
        tensor(0.8333)
    """
    scores, labels, mask = check_ranking(scores, labels, mask)
    ranking = _rank(scores, widen(labels > 0), mask, ties)
    before, tied = _relevant_counts(ranking)
    size = ranking.end - ranking.start
    # A rank in a run of ties holds a relevant item with probability tied / size. If it does, each of the other
    # ranks of the run holds one of the remaining tied - 1 with equal probability.
    position = _positions(scores)
    above = before + safe_divide((position - ranking.start) * (tied - 1), widen(size - 1))
    expected = tied / size * (above + 1) / (position + 1)
    relevant = ranking.values.sum(-1)
    return _finish(expected.sum(-1) / relevant, relevant > 0, empty, scores)


@register.metric
def precision(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    k: Count,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties = "average",
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Share of relevant items among the first k ranks.

    .. math:: |\{i: y_i > 0, r_i \le k\}| / k

    Ranks that a short list does not have count as not relevant, as in trec_eval. Use it if k items are shown and each
    relevant one counts.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype. Higher is better; an item with a positive label is relevant.
        k: Number of ranks, at least 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: ``"average"`` for the expected value over all orders of tied items, ``"position"`` to rank the earlier
            item first.
        empty: Value of lists without a relevant item.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        >>> precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]), k=2)
        tensor(0.5000)
    """
    scores, labels, mask = check_ranking(scores, labels, mask)
    kept = _inclusion(scores, mask, check_count("k", k), ties)
    return _finish((kept * (labels > 0)).sum(-1) / k, has_positive(labels, mask), empty, scores)


@register.metric
def hit_rate(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    k: Count,
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Ties = "average",
    empty: float = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Whether a relevant item is among the first k ranks; under ties, the probability of it.

    .. math:: [\min \{r_i : y_i > 0\} \le k]

    Use it if k items are shown and one relevant item is enough.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Only their order matters; ±inf
            is allowed.
        labels: Tensor ``(..., n)`` of any real dtype. Higher is better; an item with a positive label is relevant.
        k: Number of ranks, at least 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: ``"average"`` for the expected value over all orders of tied items, ``"position"`` to rank the earlier
            item first.
        empty: Value of lists without a relevant item.

    Returns:
        One value per list ``(...)``, in the dtype of `scores` (at least float32), without gradient.

    Examples:
        One of three tied items is relevant, two are kept:

        >>> hit_rate(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 0.0, 0.0]), k=2)
        tensor(0.6667)
    """
    scores, labels, mask = check_ranking(scores, labels, mask)
    missed = _missed(_rank(scores, widen(labels > 0), mask, ties))
    last = min(check_count("k", k), scores.shape[-1]) - 1
    return _finish(1 - missed[..., last], has_positive(labels, mask), empty, scores)


# --- lists in the order of their scores ---------------------------------------------------------------------


class _Runs(NamedTuple):
    """First and last + 1 position of the run of equal items to which each position of a sorted list belongs."""

    start: Int[Tensor, "*batch n"]
    end: Int[Tensor, "*batch n"]


class _Ranking(NamedTuple):
    """A list in the order of its scores: indices of the items, one value per item, and the runs of ties."""

    order: Int[Tensor, "*batch n"]
    values: Float[Tensor, "*batch n"]
    start: Int[Tensor, "*batch n"]
    end: Int[Tensor, "*batch n"]


def _rank(scores: Tensor, values: Tensor, mask: Tensor, ties: str) -> _Ranking:
    """Sort the values by score, masked items last. With positional ties every run has one item."""
    order = rank_order(scores, mask)
    if check_choice("ties", ties, ("average", "position")) == "position":
        position = _positions(scores).expand_as(order)
        runs = _Runs(position, position + 1)
    else:
        runs = _runs(scores.gather(-1, order), mask.gather(-1, order))
    return _Ranking(order, values.gather(-1, order), *runs)


def _positions(like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device)


def _runs(*keys: Tensor) -> _Runs:
    """Return the runs of positions at which all of the keys (sorted lists) are equal to their neighbours."""
    n = keys[0].shape[-1]
    changes = torch.stack([key[..., 1:] != key[..., :-1] for key in keys]).any(0)
    position = _positions(keys[0])
    start = (position * pad(changes, (1, 0), value=True)).cummax(-1).values
    end = torch.where(pad(changes, (0, 1), value=True), position + 1, n)
    return _Runs(start, end.flip(-1).cummin(-1).values.flip(-1))


def _tie_mean(by_rank: Tensor, ranking: _Ranking) -> Tensor:
    """Return for each position the mean, over its run of ties, of a function of the rank ``(n,)``."""
    before = pad(by_rank.cumsum(-1), (1, 0))
    return (before[ranking.end] - before[ranking.start]) / (ranking.end - ranking.start)


def _inclusion(scores: Tensor, mask: Tensor, m: int, ties: str) -> Tensor:
    """Return the probability of each item to be among the m best scores."""
    if check_choice("ties", ties, ("average", "position")) == "average":
        return widen(top_labels(scores, m, mask, positive_only=False))
    first = rank_order(scores, mask)[..., :m]
    return torch.zeros_like(scores, dtype=widest(scores.device)).scatter(-1, first, 1.0) * mask


def _relevant_counts(ranking: _Ranking) -> tuple[Tensor, Tensor]:
    """Return for each position the number of relevant items before its run of ties, and in it."""
    before = pad(ranking.values.cumsum(-1), (1, 0))
    start = before.gather(-1, ranking.start)
    return start, before.gather(-1, ranking.end) - start


def _missed(ranking: _Ranking) -> Tensor:
    """Return for each rank the probability that the ranks up to it hold no relevant item."""
    # Given that no earlier rank of a run holds a relevant item, all of its relevant items are among the remaining
    # positions, and the next position holds one of them with the probability tied / left.
    tied = _relevant_counts(ranking)[1]
    left = ranking.end - _positions(tied)
    return (1 - tied / left).clamp(min=0.0).cumprod(-1)


def _inversions(ranks: Tensor) -> Tensor:
    """Count, in each list ``(..., n)`` of integers in [0, n), the pairs whose first element is the larger one."""
    n, width = ranks.shape[-1], 32
    blocks = -(-n // width)
    blocks = 1 << (blocks - 1).bit_length()
    rows = pad(ranks, (0, blocks * width - n), value=n).reshape(*ranks.shape[:-1], blocks, width)
    later = torch.ones(width, width, dtype=torch.bool, device=ranks.device).triu(1)
    count = ((rows.unsqueeze(-1) > rows.unsqueeze(-2)) & later).sum((-1, -2, -3))
    while blocks > 1:
        rows = rows.sort(-1).values
        left, right = rows[..., ::2, :].contiguous(), rows[..., 1::2, :].contiguous()
        not_larger = torch.searchsorted(left, right, right=True)
        count = count + (left.shape[-1] - not_larger).sum((-1, -2))
        rows, blocks = torch.cat([left, right], -1), blocks // 2
    return count


def _finish(values: Tensor, defined: Tensor, empty: float, scores: Tensor) -> Tensor:
    return values.masked_fill(~defined, float(check_real("empty", empty))).to(scores.dtype)
