"""`ops.topk` with functions that are not operators of this package."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rankfall import ops

SCORES = torch.tensor([[0.3, -1.2, 2.0, 0.1], [1.0, 0.5, -0.5, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, True], [True, True, True, False]])


def own_dftopk(scores: Tensor, k: int, *, mask: Tensor | None = None, tau: float = 1.0) -> Tensor:
    return ops.dftopk(scores, k, mask=mask, tau=tau)


def own_sort(scores: Tensor, k: int, *, mask: Tensor | None = None, **options: Any) -> Tensor:
    return ops.neural_sort(scores, k=k, mask=mask, **options)


@pytest.mark.parametrize("mask", [None, MASK])
def test_inclusion_is_that_of_the_function(mask: Tensor | None) -> None:
    own, ours = ops.topk(own_dftopk, tau=0.5), ops.topk("dftopk", tau=0.5)
    assert own.name == "own_dftopk"
    assert own(SCORES, 2, mask=mask).equal(ours(SCORES, 2, mask=mask))
    log_p, log_not_p = ops.log_inclusion(own, SCORES, 2, mask=mask)
    p = ours(SCORES, 2, mask=mask)
    assert log_p.exp().allclose(p)
    assert log_not_p.exp().allclose(1 - p)


@pytest.mark.parametrize("mask", [None, MASK])
def test_rows_are_summed(mask: Tensor | None) -> None:
    ours = ops.topk("neural_sort", normalised=False, tau=0.5)
    assert ops.topk(own_sort, normalised=False, tau=0.5)(SCORES, 2, mask=mask).equal(ours(SCORES, 2, mask=mask))
    clipped = ops.topk(own_sort, tau=0.5)(SCORES, 2, mask=mask)
    assert clipped.allclose(ours(SCORES, 2, mask=mask).clamp(max=1))


def test_gradients_flow() -> None:
    scores = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: ops.topk(own_dftopk)(s, 2), (scores,))


def test_wrong_options_and_shapes_are_refused() -> None:
    with pytest.raises(TypeError, match="own_dftopk has no option 'tow'; its options are tau"):
        ops.topk(own_dftopk, tow=1.0)
    with pytest.raises(ValueError, match="gradient: 'exact' applies to"):
        ops.topk(own_dftopk, gradient="exact")
    wrong = ops.topk(lambda scores, k, *, mask=None: scores[..., :k])
    with pytest.raises(ValueError, match=r"returned the shape \(2, 2\) for scores of shape \(2, 4\), expected"):
        wrong(SCORES, 2)
