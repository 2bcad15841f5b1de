"""Options of a component that run different code, found from its signature, so that tests cover new components too.

Tests compare a component on the stand-in device with the same on the CPU, whose implementation often differs.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rankfall import losses, ops
from support.standin_device import DEVICE, StandinTensor, standin_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Options = dict[str, Any]

SORTS = ("neural_sort", "soft_sort", "diff_sort", "pirank_sort")

# Values of options that have no default, for lists of seven items and two stages.
NEEDED: Options = {"k": 2, "m": 3, "relevant": 2, "quotas": [4, 3], "loss": losses.RankNetLoss()}

# Other values than the default, of options whose type does not list them. A mapping changes several options.
OTHERS: dict[str, list[Any]] = {
    "tau": [torch.tensor(0.5)],
    "label_tau": [0.5],
    "steepness": [2.0, torch.tensor(0.5)],
    "p": [4 / 3],
    "depth": [2, 3],
    "branches": [[2, 5, 4]],
    "gumbel_samples": [2, {"gumbel_samples": 2, "generator": torch.Generator}],
    "generator": [torch.Generator],
    "ties": ["position"],
    "reduction": ["sum", "none"],
    "k": [20],
    "m": [20],
    "mix": [0.5],
    "sigma": [2.0],
    "min_depth": [1],
    "quotas": [[4, 3]],
    "e2e_weight": ["learned", 0.5],
    "single_weight": [0.5],
    "sort": [getattr(ops, name) for name in SORTS[1:-1]] + [partial(ops.pirank_sort, depth=2)],
    "topk": [ops.topk(name) for name in ("dftopk", "lapsum_topk", "sigmoid_topk", "hard_topk")]
    + [ops.topk("sparse_topk", tau=5.0), ops.topk("diff_sort"), ops.topk("pirank_sort", depth=2)]
    + [ops.topk("soft_sort", gradient="exact"), ops.topk("neural_sort", gradient="one_minus")],
}


LISTS, LENGTH = 5, 7


@dataclass(frozen=True)
class Lists:
    """Lists of items with everything that components take. The second list has no items."""

    scores: Tensor
    labels: Tensor
    mask: Tensor
    weight: Tensor
    list_weight: Tensor

    @property
    def arguments(self) -> list[Options]:
        """Masks and weights that run different code; the last has all of them."""
        return [{}, {"mask": self.mask}, {"weight": self.list_weight}, {"mask": self.mask, "weight": self.weight}]


def make_lists() -> Lists:
    """Return random lists."""
    generator = torch.Generator().manual_seed(0)
    shape = (LISTS, LENGTH)
    mask = torch.rand(shape, generator=generator) < 0.8
    mask[1] = False
    return Lists(
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.randint(0, 4, shape, generator=generator).double(),
        mask,
        torch.rand(shape, generator=generator, dtype=torch.float64),
        torch.rand(LISTS, generator=generator, dtype=torch.float64),
    )


Device = Literal["cuda", "mps"]


def compare(run: Callable[[torch.device, torch.dtype], list[Tensor]], about: object, *, like: Device = "cuda") -> None:
    """Check that a function gives the same tensors on the stand-in device, without synchronisation, as on the CPU.

    Args:
        run: Function of a device and a floating type.
        about: What is compared, for messages.
        like: Device that the stand-in device is like. In float64 implementations can be compared best, but not on MPS.
    """
    dtype, tolerance = (torch.float64, 1e-9) if like == "cuda" else (torch.float32, 1e-4)
    expected = run(torch.device("cpu"), dtype)
    with standin_device(like=like) as device:
        with device.without_synchronisation():
            found = run(DEVICE, dtype)
        for one, other in zip(found, expected, strict=True):
            assert isinstance(one, StandinTensor), about
            torch.testing.assert_close(
                one.cpu(), other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{about}: {text}"
            )


def place(value: Any, device: torch.device, dtype: torch.dtype = torch.float64) -> Any:
    """Return a copy of a value with all tensors on a device, and those in float64 in a type.

    The class of generators becomes a generator of the device.
    """
    if isinstance(value, Tensor):
        wanted = dtype if value.dtype == torch.float64 else value.dtype
        return value.detach().clone().to(wanted).to(device, non_blocking=True)
    if value is GENERATOR:
        return torch.Generator(device).manual_seed(0)
    if isinstance(value, dict):
        return {name: place(one, device, dtype) for name, one in value.items()}
    if isinstance(value, list):
        return [place(one, device, dtype) for one in value]
    if is_dataclass(value) and not isinstance(value, type | ops.Operator):
        return replace(value, **{name: place(one, device, dtype) for name, one in vars(value).items()})
    return value


GENERATOR = torch.Generator


def variants(function: Callable[..., Any], *, given: tuple[str, ...], operators: int = 10) -> Iterator[Options]:
    """Yield the needed options of a function, then the same with one option changed.

    Args:
        function: Function, or class, that has the options.
        given: Names of arguments that are no options.
        operators: Number of other operators, at most, for options that are operators.
    """
    parameters = {
        name: parameter for name, parameter in inspect.signature(function).parameters.items() if name not in given
    }
    needed = {name: NEEDED[name] for name, parameter in parameters.items() if parameter.default is parameter.empty}
    yield needed
    for name, parameter in parameters.items():
        values = _values(name, parameter)
        for value in values[:operators] if name in ("sort", "topk") else values:
            yield needed | (value if isinstance(value, dict) else {name: value})


def _values(name: str, parameter: inspect.Parameter) -> list[Any]:
    listed = re.findall(r"Literal(\[.*?\])", str(parameter.annotation))
    choices = [choice for found in listed for choice in ast.literal_eval(found)]
    if parameter.annotation == "bool":
        choices = [not parameter.default]
    choices += [value for value in OTHERS.get(name, []) if not any(value is choice for choice in choices)]
    return [value for value in choices if value is not parameter.default]
