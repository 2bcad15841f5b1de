"""The logarithm of the sum of the rows of a soft sort beyond k, computed in blocks, against all rows at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall import ops
from rankfall.ops import _rows
from rankfall.ops.softmax_sorts import neural_rows, soft_sort_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rankfall.ops._rows import SoftRows

LISTS, N, K = 5, 13, 3
ROWS: dict[str, Callable[[Tensor, Tensor | None], SoftRows]] = {
    "neural_sort": lambda scores, mask: neural_rows(scores, 2.0, mask),
    "neural_sort, sharp": lambda scores, mask: neural_rows(scores, 0.05, mask),
    "soft_sort": lambda scores, mask: soft_sort_rows(scores, 0.5, mask),
    "soft_sort, power 2": lambda scores, mask: soft_sort_rows(scores, 0.5, mask, power=2),
}
SIZES = {"one block": (_rows.BLOCK, _rows.BLOCK_ROWS), "some lists, some rows": (80, 2), "one list, one row": (1, 1)}


@pytest.fixture(params=SIZES)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of 13 items in blocks of different sizes."""
    size, rows = SIZES[request.param]
    monkeypatch.setattr(_rows, "BLOCK", size)
    monkeypatch.setattr(_rows, "BLOCK_ROWS", rows)


def _scores(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


def _mask() -> Tensor:
    """Padding anywhere; a list with K items, one with a single item, one with none."""
    mask = torch.rand(LISTS, N, generator=torch.Generator().manual_seed(1)) < 0.7
    for place, count in ((2, K), (3, 1), (4, 0)):
        mask[place] = torch.arange(N) < count
    return mask


def _at_once(rows: SoftRows) -> Tensor:
    return torch.logsumexp(rows.logarithms(K, N), -2)


@pytest.mark.witness("brute force")
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_blocks_give_what_all_rows_at_once_give(name: str, padded: bool) -> None:
    scores, mask = _scores(LISTS, N), _mask() if padded else None
    weights = torch.randn(LISTS, N, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    rows = ROWS[name](scores, mask)
    found, expected = rows.log_rest(K), _at_once(rows)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((value * weights).sum(), scores, retain_graph=True) for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.witness("gradcheck")
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", ["neural_sort", "soft_sort", "soft_sort, power 2"])
def test_first_and_second_derivatives(name: str) -> None:
    scores, mask = _scores(2, 6), torch.tensor([[True] * 6, [True, False, True, True, False, True]])

    def rest(scores: Tensor) -> Tensor:
        return ROWS[name](scores, mask).log_rest(2).masked_fill(~mask, 0.0)

    assert torch.autograd.gradcheck(rest, (scores,))
    assert torch.autograd.gradgradcheck(rest, (scores,))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("shape", [(N,), (2, 3, N), (0, N)])
@pytest.mark.parametrize("name", ["neural_sort", "soft_sort"])
def test_any_batch_shape(name: str, shape: tuple[int, ...]) -> None:
    scores = _scores(*shape)
    rows = ROWS[name](scores, None)
    torch.testing.assert_close(rows.log_rest(K), _at_once(rows))
    (gradient,) = torch.autograd.grad(rows.log_rest(K).sum(), scores)
    assert gradient.shape == shape


@pytest.mark.parametrize("name", ["neural_sort", "soft_sort"])
def test_works_inside_torch_func_grad(name: str) -> None:
    scores, mask = _scores(LISTS, N), _mask()
    for gradient in ("rows", "exact", "one_minus"):
        operator = ops.topk(name, gradient=gradient)
        value = partial(_sum_of_logarithms, operator, mask=mask)
        (expected,) = torch.autograd.grad(value(scores), scores)
        torch.testing.assert_close(torch.func.grad(value)(scores.detach()), expected)


def _sum_of_logarithms(operator: Any, scores: Tensor, mask: Tensor) -> Tensor:
    log_p, log_not_p = operator.log(scores, K, mask=mask)
    total: Tensor = (log_p + 2 * log_not_p).masked_fill(~mask, 0.0).sum()
    return total


@pytest.mark.witness("hand", "soft_sort")
def test_probabilities_too_small_for_the_type_keep_their_gradient() -> None:
    scores = torch.tensor([100.0, 99.0, 0.0, -1.0], requires_grad=True)
    first = soft_sort_rows(scores, 0.25, None).log_rest(2)[0]
    # The first item has e^-400 / (1 + e^-4) of row 3 and e^-404 / (1 + e^-4) of row 4: e^-400, which is 0 in float32.
    # Both shrink by 4 in the exponent as its score grows by 1.
    assert first.item() == pytest.approx(-400, abs=1e-3)
    assert torch.autograd.grad(first, scores)[0][0].item() == pytest.approx(-4, abs=1e-3)


def test_memory_does_not_grow_with_the_square_of_the_list() -> None:
    kept = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    scores = torch.randn(1, 600, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        ops.topk("neural_sort", tau=30.0, gradient="rows").log(scores, K)
    assert max(kept) <= K * 600
