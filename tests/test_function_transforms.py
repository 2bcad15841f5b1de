"""What the page of conventions says about the transforms of ``torch.func``, for every operator and loss."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from rankfall import registry
from support.components import required_options
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.registry import Kind

FORWARD = {
    *("soft_sort", "diff_sort"),
    *("mse_loss", "bce_loss", "grade_softmax_loss", "softmax_loss", "listmle_loss", "approx_ndcg_loss"),
}
LABELS = torch.tensor([[0.0, 1, 2, 3, 1, 0], [3.0, 0, 0, 0, 1, 1]], dtype=torch.float64)
every_function = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("operator", "loss") for name in registry.builtins(kind)]
)


def function_of(kind: Kind, name: str) -> Callable[[Tensor], Tensor]:
    """The function of the scores of one list or of two."""
    found: Any = registry.get(kind, name)
    if kind == "operator":
        return lambda scores: found(scores, k=2)
    options = required_options(kind, name)
    loss: Any = found(**options).double() if isinstance(found, type) and issubclass(found, nn.Module) else None

    def call(scores: Tensor) -> Tensor:
        labels = LABELS[: len(scores)] if scores.ndim > 1 else LABELS[0]
        if name == "grade_softmax_loss":
            scores = scores[..., None] * torch.tensor([-1.0, 0.25, 0.5, 2.0], dtype=scores.dtype)
        value: Tensor = found(scores, labels, **options) if loss is None else loss(scores, labels)
        return value

    return call


def lists(seed: int) -> Tensor:
    return torch.randn(2, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_function
def test_forward_mode_is_the_transpose_of_the_gradient_or_is_refused(kind: Kind, name: str) -> None:
    function, scores, direction = function_of(kind, name), lists(1), lists(2)
    value, pull, *_ = torch.func.vjp(function, scores)
    cotangent = torch.ones_like(value)
    (gradient,) = pull(cotangent)
    jacobian: Any = torch.autograd.functional.jacobian(function, scores)
    torch.testing.assert_close(jacobian.reshape(-1, 12).sum(0), gradient.flatten())
    if name in FORWARD:
        _, tangent, *_ = torch.func.jvp(function, (scores,), (direction,))
        torch.testing.assert_close(tangent, (jacobian * direction).sum((-2, -1)))
    else:
        with pytest.raises(NotImplementedError, match="jvp"):
            torch.func.jvp(function, (scores,), (direction,))


@every_function
def test_vmap_is_refused_with_what_to_do(kind: Kind, name: str) -> None:
    with pytest.raises(RuntimeError, match=r"call them once with all lists"):
        torch.func.vmap(function_of(kind, name))(lists(3))


def test_the_page_names_what_has_a_forward_mode() -> None:
    page = (ROOT / "docs" / "concepts" / "conventions.md").read_text()
    paragraph = page.partition("**Function transforms.**")[2].partition("\n- **")[0]
    assert (
        set(re.findall(r"`(\w+)`", paragraph)) & {*registry.builtins("operator"), *registry.builtins("loss")} == FORWARD
    )
