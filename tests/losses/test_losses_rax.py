"""Values and gradients against rax, the ranking library of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall import losses

jax = pytest.importorskip("jax")
rax = pytest.importorskip("rax")
jnp = jax.numpy
jax.config.update("jax_enable_x64", True)

if TYPE_CHECKING:
    from collections.abc import Callable

LISTS, ITEMS = 6, 9


def mean_of_pairs(scores: Any, labels: Any, where: Any) -> Any:
    return rax.pairwise_logistic_loss(scores, labels, where=where, reduce_fn=jnp.mean)


def lambda_weighted(weight: Any, **options: Any) -> Callable[..., Any]:
    def loss(scores: Any, labels: Any, where: Any) -> Any:
        def pair_weight(scores: Any, labels: Any, **kwargs: Any) -> Any:
            return jax.lax.stop_gradient(weight(scores, labels, normalize=True, **options, **kwargs))

        total = rax.pairwise_logistic_loss(scores, labels, where=where, lambdaweight_fn=pair_weight, reduce_fn=jnp.sum)
        return total / ITEMS  # rax multiplies lambda weights by the padded length

    return loss


def approx_ndcg(temperature: float) -> Callable[..., Any]:
    def loss(scores: Any, labels: Any, where: Any) -> Any:
        return 1 + rax.approx_t12n(rax.ndcg_metric, temperature=temperature)(scores, labels, where=where)

    return loss


def lambda_mixed(scores: Any, labels: Any, where: Any) -> Any:
    distance = lambda_weighted(rax.dcg2_lambdaweight, topn=4)(scores, labels, where)
    swap = lambda_weighted(rax.dcg_lambdaweight, topn=4)(scores, labels, where)
    return 0.7 * distance + 0.3 * swap


CASES: list[tuple[str, dict[str, Any], Callable[..., Any]]] = [
    ("softmax_loss", {}, lambda s, y, where: rax.softmax_loss(s, y, where=where)),
    ("listmle_loss", {}, lambda s, y, where: rax.listmle_loss(s, y, where=where)),
    ("mse_loss", {}, lambda s, y, where: rax.pointwise_mse_loss(s, y, where=where)),
    (
        "bce_loss",
        {},
        lambda s, y, where: rax.pointwise_sigmoid_loss(s, (y > 0).astype(s.dtype), where=where),
    ),
    ("ranknet_loss", {}, mean_of_pairs),
    ("lambdarank_loss", {}, lambda_weighted(rax.dcg_lambdaweight)),
    ("lambdarank_loss", {"k": 4}, lambda_weighted(rax.dcg_lambdaweight, topn=4)),
    ("lambda_loss", {}, lambda_weighted(rax.dcg2_lambdaweight)),
    ("lambda_loss", {"k": 1}, lambda_weighted(rax.dcg2_lambdaweight, topn=1)),
    ("lambda_loss", {"k": 4}, lambda_weighted(rax.dcg2_lambdaweight, topn=4)),
    ("lambda_loss", {"k": 4, "mix": 0.3}, lambda_mixed),
    ("approx_ndcg_loss", {}, approx_ndcg(1.0)),
    ("approx_ndcg_loss", {"tau": 0.1}, approx_ndcg(0.1)),
]


@pytest.mark.filterwarnings("ignore:wraps was deprecated:DeprecationWarning")  # raised inside rax
@pytest.mark.witness("rax")
@pytest.mark.parametrize(("name", "options", "theirs"), CASES, ids=[f"{name}-{options}" for name, options, _ in CASES])
def test_value_and_gradient_equal_those_of_rax(name: str, options: dict[str, Any], theirs: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(LISTS, ITEMS, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (LISTS, ITEMS), generator=generator).double()
    if name == "listmle_loss":  # equal labels: rax breaks ties in its own way
        labels = torch.rand(LISTS, ITEMS, generator=generator, dtype=torch.float64)
    mask = torch.rand(LISTS, ITEMS, generator=generator) < 0.8
    labels[:, 0], mask[:, 0] = 3.5, True
    scores.requires_grad_()
    values = getattr(losses, name)(scores, labels, mask=mask, reduction="none", **options)
    (gradient,) = torch.autograd.grad(values.sum(), scores)
    for i in range(LISTS):
        arrays = (jnp.asarray(x.detach().numpy()) for x in (scores[i], labels[i], mask[i]))
        value, slope = jax.value_and_grad(theirs)(*arrays)
        assert values[i].item() == pytest.approx(float(value), rel=1e-10)
        assert gradient[i].tolist() == pytest.approx(slope.tolist(), rel=1e-8, abs=1e-10)
