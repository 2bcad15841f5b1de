"""Operators on the stand-in device: values and gradients of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from rankfall import registry
from rankfall.ops import _rows
from support.standin_device import DEVICE
from support.variants import Options, make_lists, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.standin_device import StandinDevice

every_operator = pytest.mark.parametrize("name", registry.names("operator"))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split even short lists, as if they were long."""
    monkeypatch.setattr(_rows, "DEVICE_BLOCK", 10)
    monkeypatch.setattr(_rows, "CHUNK", 10)
    monkeypatch.setattr(_rows, "BLOCK_ROWS", 1)


def run(call: Callable[..., Tensor | tuple[Tensor, ...]], options: Options, device: torch.device) -> list[Tensor]:
    """Return the results and the gradient of the scores, all on the CPU."""
    torch.manual_seed(0)
    lists = make_lists()
    scores = place(lists.scores, device).requires_grad_()
    results = call(scores, **place(options, device))
    results = (results,) if isinstance(results, Tensor) else results
    sum(result.square().sum() for result in results).backward()  # type: ignore[union-attr]
    return [*results, scores.grad]


def check(device: StandinDevice, call: Callable[..., Any], options: Options) -> None:
    expected = run(call, options, torch.device("cpu"))
    with device.without_synchronisation():
        found = run(call, options, DEVICE)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9, msg=lambda text: f"{options}: {text}")
