"""Operators: differentiable sorting and differentiable top-k selection.

All operators work on the last dimension of ``scores (..., n)``; leading dimensions are batch dimensions. A boolean
``mask (..., n)`` marks the real items of padded lists. A masked item has probability 0 and gradient 0 and does not
affect the other items, whatever its position. A score of -inf is treated as masked; NaN, +inf and numbers beyond 1e10
raise an error.

There are two kinds of operators:

- Soft sorts (:func:`neural_sort`, :func:`soft_sort`, :func:`diff_sort`, :func:`pirank_sort`) return the first k rows of
  a soft permutation matrix, ``(..., k, n)``. Row i is a distribution over the items for rank i. Rows for ranks that a
  list does not have are 0.
- Soft top-k operators (:func:`dftopk`, :func:`lapsum_topk`, :func:`sparse_topk`, :func:`sigmoid_topk`,
  :func:`hard_topk`) return the probability of each item to be among the k best, ``(..., n)``.

:func:`topk` turns any of them into a function of scores and k that returns inclusion probabilities.

The temperature `tau` controls the smoothness. A smaller value gives a result closer to the hard one, and less gradient
for items far from the boundary. It can be a tensor (a scalar, or one value per list ``(..., 1)``), so that a schedule
does not trigger recompilation.

Examples:
    >>> import torch
    >>> from rankfall import ops
    >>> scores = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> ops.neural_sort(scores, k=1, mask=mask, tau=0.1).round()
    tensor([[[0., 1., 0.]],
            [[1., 0., 0.]]])
    >>> ops.lapsum_topk(scores, 2, mask=mask, tau=0.1).round(decimals=2)
    tensor([[0., 1., 1.],
            [1., 1., 0.]])
    >>> ops.topk("neural_sort", tau=0.1)(scores, 1, mask=mask).round()
    tensor([[0., 1., 0.],
            [1., 0., 0.]])
"""

from rankfall.ops._rows import LOG_ZERO
from rankfall.ops.diff_sort import diff_sort
from rankfall.ops.inclusion import Operator, SoftSort, TopK, log_inclusion, log_rows, topk
from rankfall.ops.pirank_sort import pirank_sort
from rankfall.ops.softmax_sorts import neural_sort, soft_sort
from rankfall.ops.threshold_topk import dftopk, hard_topk, lapsum_topk, sigmoid_topk, sparse_topk

__all__ = [
    "LOG_ZERO",
    "Operator",
    "SoftSort",
    "TopK",
    "dftopk",
    "diff_sort",
    "hard_topk",
    "lapsum_topk",
    "log_inclusion",
    "log_rows",
    "neural_sort",
    "pirank_sort",
    "sigmoid_topk",
    "soft_sort",
    "sparse_topk",
    "topk",
]
