"""Operators on the stand-in device: values and gradients of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from rankfall import ops, registry
from rankfall.ops import _rows
from support.standin_device import DEVICE, standin_device
from support.variants import Device, Options, compare, make_lists, place, variants

if TYPE_CHECKING:
    from collections.abc import Callable


def _options(name: str) -> set[str]:
    return set(registry.options("operator", name))


every_operator = pytest.mark.parametrize("name", registry.names("operator"))
LISTS = make_lists()
MASKED = {"mask": LISTS.mask}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split even short lists, as if they were long."""
    monkeypatch.setattr(_rows, "DEVICE_BLOCK", 30)
    monkeypatch.setattr(_rows, "CHUNK", 30)
    monkeypatch.setattr(_rows, "BLOCK_ROWS", 1)
    monkeypatch.setattr(sys.modules["rankfall.ops.diff_sort"], "RECORDED", 0)


def check(call: Callable[..., Any], options: Options, *, like: Device = "cuda") -> None:
    """Compare the results and the gradient of the scores."""

    def run(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        scores = place(LISTS.scores, device, dtype).requires_grad_()
        results = call(scores, **place(options, device, dtype))
        results = [results] if isinstance(results, Tensor) else list(results)
        torch.stack([result.square().sum() for result in results]).sum().backward()
        return [*results, scores.grad]

    compare(run, options, like=like)


@pytest.mark.witness("stand-in device")
@every_operator
def test_computes_what_a_cpu_computes(name: str) -> None:
    operator = registry.get("operator", name)
    for number, options in enumerate(variants(operator, given=("scores", "mask"))):
        check(operator, options | MASKED)
        if number == 0:
            check(operator, options)
            check(operator, options, like="mps")


@pytest.mark.parametrize("name", [name for name in registry.names("operator") if "tau" in _options(name)])
def test_trained_temperatures_of_lists(name: str) -> None:
    operator = registry.get("operator", name)
    needed = next(variants(operator, given=("scores", "mask")))

    def run(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        tau = place(torch.linspace(0.3, 1.0, 5, dtype=torch.float64).unsqueeze(-1), device, dtype).requires_grad_()
        result = operator(place(LISTS.scores, device, dtype), tau=tau, **needed)
        return [result, *torch.autograd.grad(result.square().sum(), tau)]

    compare(run, name)


INCLUSIONS = [
    *((name, {}) for name in registry.names("operator")),
    *((name, {"normalised": False}) for name in registry.SORTS),
    *((name, {"gradient": gradient}) for name in ("neural_sort", "soft_sort") for gradient in ("exact", "one_minus")),
    ("neural_sort", {"gumbel_samples": 2}),
    ("sparse_topk", {"p": 4 / 3}),
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("name", "options"), INCLUSIONS, ids=str)
def test_inclusion_and_its_logarithm(name: str, options: Options) -> None:
    operator = ops.topk(name, **options)
    check(partial(operator, k=3), MASKED)
    check(partial(operator.log, k=3), MASKED)
    check(partial(operator.log, k=3), {})


@every_operator
def test_a_mask_on_the_cpu_is_named(name: str) -> None:
    operator = registry.get("operator", name)
    needed = next(variants(operator, given=("scores", "mask")))
    with standin_device(), pytest.raises(ValueError, match="mask must be on the device of scores, lazy:0, got cpu"):
        operator(place(LISTS.scores, DEVICE), mask=LISTS.mask, **needed)


@every_operator
def test_bad_scores_are_refused_without_synchronisation(name: str) -> None:
    operator = registry.get("operator", name)
    needed = next(variants(operator, given=("scores", "mask")))
    with standin_device() as device:
        for value in (torch.nan, torch.inf):
            scores = torch.zeros(2, 7)
            scores[1, 3] = value
            scores = scores.to(DEVICE)
            with (
                device.without_synchronisation(),
                pytest.raises(RuntimeError, match=r"scores must not hold NaN, \+inf or numbers beyond 1e\+10"),
            ):
                operator(scores, **needed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_operator
def test_autocast_changes_nothing(name: str, dtype: torch.dtype) -> None:
    """Operators compute in float32 at least, also of extreme scores, and return the type of the scores."""
    operator = registry.get("operator", name)
    needed = next(variants(operator, given=("scores", "mask")))
    for scale in (1.0, 1e4):
        scores = (scale * LISTS.scores).to(dtype).requires_grad_()
        expected = operator(scores, **needed)
        with torch.autocast("cpu", torch.bfloat16):
            found = operator(scores, **needed)
            (gradient,) = torch.autograd.grad(found.float().square().sum(), scores)
        assert found.dtype == gradient.dtype == dtype
        assert torch.equal(found, expected)
        assert gradient.isfinite().all()
