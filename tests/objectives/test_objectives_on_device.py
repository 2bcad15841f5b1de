"""Objectives on the stand-in device: values and gradients of a CPU, no tensor on the CPU, no synchronisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfall import registry
from rankfall.objectives import RankFlow
from support.standin_device import DEVICE, standin_device
from support.variants import Device, Options, compare, make_lists, place, variants

LISTS = make_lists()
LOGGED: Options = {"relevance": LISTS.labels * (LISTS.labels > 1), "depth": (LISTS.labels // 2).long()}
OBJECTIVES = {made.__name__: made for made in (registry.get("objective", n) for n in registry.names("objective"))}


def check(name: str, options: Options, arguments: Options, *, like: Device = "cuda") -> None:
    """Compare the value, the gradients of the scores and of an objective's weights, and what informs it."""

    def run(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        objective = OBJECTIVES[name](**place(options, device, dtype)).to(device, dtype, non_blocking=True)
        scores = [place(scores, device, dtype).requires_grad_() for scores in (LISTS.scores, LISTS.scores.flip(-1))]
        labels, given = place(LISTS.labels, device, dtype), place(arguments, device, dtype)
        value = objective(scores, labels, **given)
        value.backward()
        given.pop("weight", None)
        informative = objective.informative(labels, **given)
        grads = [tensor.grad for tensor in (*scores, *objective.parameters()) if tensor.grad is not None]
        return [value, *grads, *informative.values()]

    compare(run, options, like=like)


@pytest.mark.witness("stand-in device")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_computes_what_a_cpu_computes(name: str) -> None:
    everything = LOGGED | LISTS.arguments[-1]
    needed, *others = variants(OBJECTIVES[name], given=(), operators=1)  # tests of losses have all operators
    check(name, needed, {})
    check(name, needed, everything, like="mps")
    check(name, needed, everything)
    for options in others:
        if options.get("variant") == "published" and name == "ARFv2":
            options["quotas"] = [4, 3]
        if options.get("labels") == "relevance":
            options["relevant"] = 2
        check(name, options, everything)


@pytest.mark.parametrize("argument", ["mask", "weight", *LOGGED])
def test_an_argument_on_the_cpu_is_named(argument: str) -> None:
    arguments = LOGGED | LISTS.arguments[-1]
    with standin_device():
        given = {key: value if key == argument else place(value, DEVICE) for key, value in arguments.items()}
        with pytest.raises(ValueError, match=rf"{argument} must be on the device of scores, lazy:0, got cpu"):
            RankFlow(relevant=2, quotas=[4, 3])([place(LISTS.scores, DEVICE)] * 2, place(LISTS.labels, DEVICE), **given)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_autocast_changes_nothing(name: str, dtype: torch.dtype) -> None:
    """Objectives are computed and returned in float32, also of extreme scores."""
    objective = OBJECTIVES[name](**next(variants(OBJECTIVES[name], given=())))
    for scale in (1.0, 1e4):
        scores = [(scale * one).to(dtype).requires_grad_() for one in (LISTS.scores, LISTS.scores.flip(-1))]
        expected = objective(scores, LISTS.labels, mask=LISTS.mask, **LOGGED)
        with torch.autocast("cpu", torch.bfloat16):
            found = objective(scores, LISTS.labels, mask=LISTS.mask, **LOGGED)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found, scores))


@pytest.mark.slow
@pytest.mark.witness("compile")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_compiles_in_one_graph(name: str) -> None:
    torch._dynamo.reset()
    objective = OBJECTIVES[name](**next(variants(OBJECTIVES[name], given=()))).double()
    compiled = torch.compile(objective, fullgraph=True, backend="eager")
    scores = [scores.clone().requires_grad_() for scores in (LISTS.scores, LISTS.scores.flip(-1))]
    arguments = LOGGED | LISTS.arguments[-1]
    found, expected = (call(scores, LISTS.labels, **arguments) for call in (compiled, objective))
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found, scores), torch.autograd.grad(expected, scores), strict=True):
        torch.testing.assert_close(one, other)
