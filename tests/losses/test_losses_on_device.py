"""Losses on the stand-in device: values and gradients of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rankfall import losses
from rankfall.losses import _module as _pairs
from support.standin_device import DEVICE, standin_device
from support.variants import Device, Options, compare, make_lists, place, variants

FUNCTIONS = [name for name in losses.__all__ if name.endswith("_loss")]
MODULES = [name for name in losses.__all__ if name.endswith("Loss")]
GIVEN = ("scores", "logits", "labels", "mask", "weight")
LISTS = make_lists()


def check(
    name: str, options: Options, arguments: Options, *, labels: Tensor = LISTS.labels, like: Device = "cuda"
) -> None:
    """Compare the value of a loss, or of its module, and the gradient of the scores."""

    def run(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        scores = place(LISTS.scores, device, dtype).requires_grad_()
        inputs = torch.stack([scores, -scores, 2 * scores, scores / 2], -1) if "rade" in name else scores
        component: Any = getattr(losses, name)
        given, set_ = place(arguments, device, dtype), place(options, device, dtype)
        if name in MODULES:
            component, set_ = component(**set_).to(device, dtype, non_blocking=True), {}
        value = component(inputs, place(labels, device, dtype), **given, **set_)
        value.sum().backward()
        assert scores.grad is not None
        return [value, scores.grad]

    compare(run, options, like=like)


@pytest.mark.witness("stand-in device")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_computes_what_a_cpu_computes(name: str) -> None:
    for number, options in enumerate(variants(getattr(losses, name), given=GIVEN)):
        for arguments in LISTS.arguments if number == 0 else LISTS.arguments[-1:]:
            check(name, options, arguments)
    check(name, next(variants(getattr(losses, name), given=GIVEN)), LISTS.arguments[-1], like="mps")


@pytest.mark.parametrize("name", MODULES)
def test_modules_compute_what_a_cpu_computes(name: str) -> None:
    needed, *others = variants(getattr(losses, name), given=GIVEN, operators=1)
    for options in [needed, *others] if "ARF" in name else [needed]:  # the others have the options of their function
        check(name, options, LISTS.arguments[-1])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_of_pairs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Long lists: pairs in blocks, computed again in the backward pass."""
    monkeypatch.setattr(_pairs, "BLOCK", 20)
    monkeypatch.setattr(_pairs, "KEPT", 20)
    check(name, next(variants(getattr(losses, name), given=GIVEN)), LISTS.arguments[-1])


def test_other_inputs() -> None:
    check("bce_loss", {"threshold": None}, {}, labels=LISTS.labels / 4)
    check("softmax_loss", {}, {}, labels=LISTS.labels.long())
    with standin_device() as device, device.without_synchronisation():
        logits = place(LISTS.scores, DEVICE).unsqueeze(-1).repeat(1, 1, 3).requires_grad_()
        losses.expected_grade(logits).sum().backward()


@pytest.mark.parametrize("argument", ["labels", "mask", "weight"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_on_the_cpu_is_named(name: str, argument: str) -> None:
    needed = next(variants(getattr(losses, name), given=GIVEN))
    given = {"labels": LISTS.labels, "mask": LISTS.mask, "weight": LISTS.weight}
    with standin_device():
        scores = place(LISTS.scores, DEVICE)
        inputs = scores.unsqueeze(-1).repeat(1, 1, 4) if "rade" in name else scores
        arguments = {key: value if key == argument else place(value, DEVICE) for key, value in given.items()}
        with pytest.raises(ValueError, match=rf"{argument} must be on the device of (scores|logits), lazy:0, got cpu"):
            getattr(losses, name)(inputs, **arguments, **needed)


BAD: dict[str, tuple[str, float]] = {"scores": ("NaN, inf", torch.nan), "labels": ("NaN, inf", torch.inf)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_values_are_refused_without_synchronisation(name: str) -> None:
    """On a device a check is an assertion of the device itself."""
    needed = next(variants(getattr(losses, name), given=GIVEN))
    for argument, (found, value) in BAD.items():
        with standin_device() as device:
            given = {"scores": LISTS.scores.clone(), "labels": LISTS.labels.clone()}
            given[argument][2, 3] = value
            scores, labels = place(given["scores"], DEVICE), place(given["labels"], DEVICE)
            inputs = scores.unsqueeze(-1).repeat(1, 1, 4) if "rade" in name else scores
            with device.without_synchronisation(), pytest.raises(RuntimeError, match=f"must not hold {found}"):
                getattr(losses, name)(inputs, labels, **needed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_changes_nothing(name: str, dtype: torch.dtype) -> None:
    """Losses are computed and returned in float32, also of extreme scores."""
    needed = next(variants(getattr(losses, name), given=GIVEN))
    for scale in (1.0, 1e4):
        scores = (scale * LISTS.scores).to(dtype)
        inputs = (scores.unsqueeze(-1) * torch.tensor([1, -1, 2, 0.5], dtype=dtype) if "rade" in name else scores) * 1
        inputs.requires_grad_()
        expected = getattr(losses, name)(inputs, LISTS.labels, mask=LISTS.mask, **needed)
        with torch.autocast("cpu", torch.bfloat16):
            found = getattr(losses, name)(inputs, LISTS.labels, mask=LISTS.mask, **needed)
        (gradient,) = torch.autograd.grad(found, inputs)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)
        assert gradient.isfinite().all()
