"""Operators: soft sorts and soft top-k.

Every operator works on the last dimension of ``scores (..., n)``; leading dimensions are batch. A boolean ``mask
(..., n)`` marks the real items of padded lists: a masked item gets probability 0 and gradient 0, and changes nothing
for the others, wherever it stands. A score of -inf counts as masked; NaN and +inf are errors.

The sorts return the first k rows of a soft permutation, ``(..., k, n)``: row i is a distribution over the items for
rank i. A row for a rank that a list does not have is 0.

>>> import torch
>>> from rankfall import ops
>>> scores = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
>>> mask = torch.tensor([[True, True, True], [True, True, False]])
>>> ops.neural_sort(scores, k=1, mask=mask, tau=0.1).round()
tensor([[[0., 1., 0.]],
        [[1., 0., 0.]]])

The top-k return the probability of each item to be among the k best, ``(..., n)``:

>>> ops.lapsum_topk(scores, 2, mask=mask, tau=0.1).round(decimals=2)
tensor([[0., 1., 1.],
        [1., 1., 0.]])

`topk` makes any of them, sorts included, a function of scores and k:

>>> ops.topk("neural_sort", tau=0.1)(scores, 1, mask=mask).round()
tensor([[0., 1., 0.],
        [1., 0., 0.]])

tau is the temperature: the smaller, the closer to the hard result and the less gradient away from the boundary. It may
be a tensor (one for all, or one a list with a last dimension of 1), so that a schedule causes no recompilation.
"""

from rankfall.ops._rows import LOG_ZERO
from rankfall.ops.dftopk import dftopk
from rankfall.ops.diff_sort import diff_sort
from rankfall.ops.hard_topk import hard_topk
from rankfall.ops.inclusion import Operator, SoftSort, TopK, log_inclusion, log_rows, topk
from rankfall.ops.lapsum_topk import lapsum_topk
from rankfall.ops.neural_sort import neural_sort
from rankfall.ops.pirank_sort import pirank_sort
from rankfall.ops.sigmoid_topk import sigmoid_topk
from rankfall.ops.soft_sort import soft_sort
from rankfall.ops.sparse_topk import sparse_topk

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
