"""Objectives on the stand-in device: values and gradients of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfall import registry
from rankfall.objectives import RankFlow
from support.standin_device import DEVICE, standin_device
from support.variants import Options, make_lists, place, variants

LISTS = make_lists()
LOGGED: Options = {"relevance": LISTS.labels * (LISTS.labels > 1), "depth": (LISTS.labels // 2).long()}
every_objective = pytest.mark.parametrize("name", registry.names("objective"))


def run(name: str, options: Options, arguments: Options, device: torch.device) -> list[Tensor]:
    """Return the value, the gradients of the scores and of the weights of an objective, and what informs it."""
    torch.manual_seed(0)
    objective = registry.get("objective", name)(**place(options, device))
    objective = objective.to(device, torch.float64, non_blocking=True)
    scores = [place(scores, device).requires_grad_() for scores in (LISTS.scores, LISTS.scores.flip(-1))]
    labels, arguments = place(LISTS.labels, device), place(arguments, device)
    value = objective(scores, labels, **arguments)
    value.backward()
    arguments.pop("weight", None)
    informative = objective.informative(labels, **arguments)
    grads = [tensor.grad for tensor in (*scores, *objective.parameters()) if tensor.grad is not None]
    return [value, *grads, *informative.values()]


def check(name: str, options: Options, arguments: Options) -> None:
    expected = run(name, options, arguments, torch.device("cpu"))
    with standin_device() as device:
        with device.without_synchronisation():
            found = run(name, options, arguments, DEVICE)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9, msg=lambda text: f"{options}: {text}")


@pytest.mark.witness("stand-in device")
@every_objective
def test_computes_what_a_cpu_computes(name: str) -> None:
    objective = registry.get("objective", name)
    everything = LOGGED | LISTS.arguments[-1]
    needed, *others = variants(objective, given=())
    check(name, needed, {})
    check(name, needed, everything)
    for options in others:
        if options.get("variant") == "published" and name == "arf_v2":
            options["quotas"] = [4, 3]
        if options.get("labels") == "relevance":
            options["relevant"] = 2
        check(name, options, everything)


def test_the_counter_of_steps_stays_on_the_host() -> None:
    """RankFlow reads it in every step to find the stage in turn."""
    with standin_device() as device:
        objective = RankFlow(relevant=2, quotas=[4, 3], schedule="alternate").to(DEVICE)
        scores = [place(LISTS.scores, DEVICE).requires_grad_() for _ in range(2)]
        trained = []
        for _ in range(3):
            with device.without_synchronisation():
                value = objective(scores, place(LISTS.labels, DEVICE))
            gradients = torch.autograd.grad(value, scores, allow_unused=True)
            trained.append([gradient is not None for gradient in gradients])
        assert trained == [[True, False], [False, True], [True, False]]
        assert objective.state_dict()["calls"].device.type == "cpu"
        again = RankFlow(relevant=2, quotas=[4, 3], schedule="alternate").to(DEVICE)
        again.load_state_dict(objective.state_dict())
        value = again(scores, place(LISTS.labels, DEVICE))
        assert torch.autograd.grad(value, scores, allow_unused=True)[0] is None
