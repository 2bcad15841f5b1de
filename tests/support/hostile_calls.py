"""Calls of every public function with values that nobody should pass, and what may become of such a call.

A call ends in one of two ways: the result and its gradients are finite, or a `ValueError` or `TypeError` names an
argument with a hostile value. Functions are found in the registry and in ``__all__``, and arguments by their names, so
that a new function needs no entry here. A new name of an option needs one in :data:`support.hostile_values.KINDS`.

`choose` picks one of several values. Hypothesis does (:func:`calls`), and so does ``random.Random(seed).choice`` where
hundreds of thousands of calls are wanted.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import rankfall as rf
from rankfall import registry
from support.hostile_values import (
    DTYPES,
    HOSTILE_DTYPES,
    HOSTILE_NUMBERS,
    HOSTILE_SHAPES,
    KINDS,
    NO_TENSORS,
    NUMBERS,
    SHAPES,
    SPECIAL,
    Kind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

GOOD = ("finite", "refused")
"""Outcomes that a call may have."""


# --- what is called ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A function to call, or a class whose instance is called.

    Attributes:
        name: Module and name, such as ``"losses.MSELoss"``.
        function: The function or class.
        tensors: Names of the arguments of the call.
        options: Names of the other arguments; those of the constructor for a class.
    """

    name: str
    function: Callable[..., Any]
    tensors: tuple[str, ...]
    options: tuple[str, ...]

    def call(self, arguments: dict[str, Any]) -> Any:
        """Call the function, or build an instance and call it."""
        given = {name: arguments[name] for name in self.tensors if name in arguments}
        options = {name: value for name, value in arguments.items() if name not in given}
        if inspect.isclass(self.function):
            first = given.pop(self.tensors[0], None)  # whose name differs for a loss of logits
            built: Any = self.function(**options)
            return built(first, **given)
        return self.function(**given, **options)


TENSORS = (
    "scores",
    "labels",
    "logits",
    "mask",
    "weight",
    "relevance",
    "depth",
    "stage_scores",
    "relevant",
    "a",
    "b",
    "values",
)


@cache
def targets() -> dict[str, Target]:
    """Return every function and module of operators, losses, objectives and metrics by name."""
    found = [
        *(_target(f"ops.{name}", registry.get("operator", name)) for name in registry.builtins("operator")),
        *(_target(f"ops.topk/{name}", partial(_inclusion, name)) for name in registry.builtins("operator")),
        *(_target(f"ops.log_inclusion/{name}", partial(_logs, name)) for name in registry.builtins("operator")),
        *(_target(f"ops.log_rows/{name}", partial(_log_rows, name)) for name in registry.SORTS),
        *(_target(f"losses.{name}", getattr(rf.losses, name)) for name in rf.losses.__all__),
        *(_target(f"metrics.{name}", registry.get("metric", name)) for name in registry.builtins("metric")),
        *(_target(f"metrics.{name}", getattr(rf.metrics, name)) for name in rf.metrics.__all__ if _is_test(name)),
        *(_target(f"objectives.{name}", registry.get("objective", name)) for name in registry.builtins("objective")),
    ]
    return {target.name: target for target in found}


def _is_test(name: str) -> bool:
    return name not in registry.builtins("metric") and inspect.isfunction(getattr(rf.metrics, name))


def _target(name: str, function: Callable[..., Any]) -> Target:
    operator = getattr(function, "args", (None,))[0]
    parameters = list(
        inspect.signature(function if operator is None else registry.get("operator", operator)).parameters
    )
    if "log_rows" in name:  # it takes one soft permutation per list
        parameters = [one for one in parameters if one not in ("gumbel_samples", "beta", "generator")]
    if name.startswith("objectives."):  # whose constructors have options with the names of tensors
        return Target(name, function, ("scores", "labels", "relevance", "depth", "mask", "weight"), tuple(parameters))
    if name.startswith("ops."):
        return Target(
            name, function, ("scores", "mask"), tuple(one for one in parameters if one not in ("scores", "mask"))
        )
    if inspect.isclass(function):
        first = "logits" if "Grade" in name else "scores"
        return Target(name, function, (first, "labels", "mask", "weight"), tuple(parameters))
    tensors = tuple(one for one in parameters if one in TENSORS)
    return Target(name, function, tensors, tuple(one for one in parameters if one not in tensors))


def _inclusion(name: str, scores: Any, k: Any, mask: Any = None, **options: Any) -> Any:
    return rf.ops.topk(name, **options)(scores, k, mask=mask)


def _logs(name: str, scores: Any, k: Any, mask: Any = None, **options: Any) -> Any:
    return rf.ops.log_inclusion(rf.ops.topk(name, **options), scores, k, mask=mask)


def _log_rows(name: str, scores: Any, mask: Any = None, k: Any = None, tau: Any = None, **options: Any) -> Any:
    return rf.ops.log_rows(partial(getattr(rf.ops, name), **options), scores, k=k, mask=mask, tau=tau)


# --- calls ------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """A call and the names of its arguments with hostile values."""

    target: Target
    arguments: dict[str, Any]
    hostile: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        shown = {name: _shown(value) for name, value in self.arguments.items()}
        return f"{self.target.name}({', '.join(f'{name}={value}' for name, value in shown.items())})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return (
            f"torch.tensor({value.tolist()}, dtype={value.dtype})"
            if value.numel() < 60
            else f"{value.dtype} {tuple(value.shape)}"
        )
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else repr(value)


def calls(names: Sequence[str] | None = None) -> st.SearchStrategy[Call]:
    """Return a strategy for calls of some targets, by default of all."""

    @st.composite
    def build(draw: st.DrawFn) -> Call:
        def choose(values: Sequence[T]) -> T:
            return values[draw(st.integers(0, len(values) - 1))]

        return hostile_call(targets()[choose(sorted(targets()) if names is None else names)], choose)

    return build()


def hostile_call(target: Target, choose: Callable[[Sequence[Any]], Any]) -> Call:
    """Return a call of which about one argument, or none, or any number, has a hostile value.

    If all were hostile, the first check would refuse every call.
    """
    call = Call(target, {})
    among = choose((0, 1, 8, 8, 8, 20))  # one of so many arguments is hostile
    builder = _Arguments(call, choose, among)
    builder.add()
    return call


class _Arguments:
    def __init__(self, call: Call, choose: Callable[[Sequence[Any]], Any], among: int) -> None:
        self.call, self.choose, self.among = call, choose, among
        self.shape = choose(SHAPES)
        self.dtype = choose(DTYPES)

    def add(self) -> None:
        target = self.call.target
        for name in target.options:
            kind = SPECIAL.get((target.name, name)) or KINDS.get(name)
            if kind is None:
                raise KeyError(
                    f"{target.name} has the option {name!r}, whose values are missing in hostile_values.KINDS"
                )
            needed = name in ("k", "m", "relevant", "quotas", "loss", "stages", "p_values")
            if needed or self.choose((True, False)):
                self.call.arguments[name] = self._option(name, kind)
        if self.call.arguments.get("sort") is rf.ops.diff_sort:  # which has no temperature
            for name in {"tau", "label_tau"} & set(self.call.arguments):
                del self.call.arguments[name]
                self.call.hostile.discard(name)
        for name in target.tensors:
            self._add_tensor(name)

    def _is_hostile(self, name: str) -> bool:
        hostile = self.among > 0 and self.choose(range(self.among)) == 0
        if hostile:
            self.call.hostile.add(name)
        return hostile

    def _option(self, name: str, kind: Kind) -> Any:
        value = self.choose(kind.hostile if self._is_hostile(name) else kind.ordinary)
        if (
            isinstance(value, str)
            and value in ("scalar", "per list", "per item")
            and name in ("tau", "label_tau", "steepness")
        ):
            shape = {"scalar": (), "per list": (*self.shape[:-1], 1), "per item": self.shape}[value]
            if value == "per item" and self.shape[-1] == 1:
                self.call.hostile.discard(name)
            return torch.full(shape, self.choose((1.0, 0.5, 1e-10, 1e10)), dtype=self.choose(DTYPES[:2]))
        if value == "scalar" or value == "per list":
            return 1.0
        return value

    def _add_tensor(self, name: str) -> None:
        target = self.call.target.name
        if name in ("scores", "stage_scores") and (target.startswith("objectives.") or name == "stage_scores"):
            self.call.arguments[name] = [self._floats(name) for _ in range(2)]
        elif name == "values":
            self.call.arguments[name] = {"a": self._sample(name), "b": self._sample(name)}
        elif name in ("a", "b"):
            self.call.arguments[name] = self._sample(name)
        elif name in ("scores", "logits"):
            self.call.arguments[name] = self._floats(name, grades=4 if name == "logits" else None)
        elif name == "labels":
            self.call.arguments[name] = self._labels(name, most=1 if "bce" in target.lower() else 3)
        elif name == "relevant":
            self.call.arguments[name] = self._labels(name, most=1)
        elif name == "mask":
            if self.choose((True, False)):
                self.call.arguments[name] = self._mask(name)
        elif self.choose((True, False, False)):
            self.call.arguments[name] = self._labels(name, most=3) if name != "weight" else self._weight(name)

    def _floats(self, name: str, grades: int | None = None) -> Any:
        shape = self.shape if grades is None else (*self.shape, grades)
        if not self._is_hostile(name):
            return self._filled(shape, self.dtype, NUMBERS, leaf=True)
        return self._spoilt(shape, HOSTILE_NUMBERS)

    def _spoilt(self, shape: tuple[int, ...], numbers: Sequence[float]) -> Any:
        """Return something that is wrong in one way: values, type, shape, or no tensor at all."""
        way = self.choose(("values", "values", "values", "dtype", "shape", "no tensor"))
        if way == "no tensor":
            return self.choose(NO_TENSORS)
        if way == "dtype":
            return self._filled(shape, self.choose(HOSTILE_DTYPES), (0.0, 1.0), leaf=False)
        if way == "shape":
            return self._filled(self.choose(HOSTILE_SHAPES), self.dtype, (0.0, 1.0), leaf=True)
        return self._filled(shape, self.dtype, (0.0, 1.0, *numbers), leaf=True, least=numbers)

    def _filled(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        numbers: Sequence[float],
        *,
        leaf: bool,
        least: Sequence[float] = (),
    ) -> Tensor:
        """Return a tensor of a few numbers: all equal, alternating, or one among others."""
        some = [self.choose(least or numbers), *(self.choose(numbers) for _ in range(3))]
        count = math.prod(shape)
        pattern = [some[place % self.choose((1, 2, 4))] for place in range(min(count, 8))]
        values = torch.tensor([pattern[place % 8] for place in range(count)], dtype=torch.float64).reshape(shape)
        if not dtype.is_floating_point:
            return values.nan_to_num(0).clamp(0, 1).to(dtype)
        if not least:  # an ordinary number in half precision too
            values = values.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
        return values.to(dtype).requires_grad_(leaf)

    def _labels(self, name: str, most: int) -> Any:
        if self._is_hostile(name):
            return self._spoilt(self.shape, HOSTILE_NUMBERS)
        dtype = self.choose((self.dtype, torch.int64, torch.float64))
        numbers = (0.0, 1.0, float(most))
        return self._filled(self.shape, torch.float64, numbers, leaf=False).to(dtype)

    def _mask(self, name: str) -> Any:
        if self._is_hostile(name):
            return self.choose(
                (*NO_TENSORS[:2], *NO_TENSORS[3:], torch.ones(self.shape), torch.ones(7, dtype=torch.bool))
            )
        return self._filled(self.shape, torch.float64, (0.0, 1.0, 1.0), leaf=False).bool()

    def _weight(self, name: str) -> Any:
        of_lists = self.choose((True, False)) and not self.call.target.name.startswith("objectives.")
        shape = self.shape[:-1] if of_lists else self.shape
        if self._is_hostile(name):
            return self._spoilt(shape, HOSTILE_NUMBERS)
        return self._filled(shape, self.dtype, (0.0, 1.0, 0.5, 1e-30, 1e10), leaf=False)

    def _sample(self, name: str) -> Any:
        shape = (2, 3) if self.call.target.name.endswith("crossed_test") else (4,)
        if not self._is_hostile(name):
            return self._filled(shape, torch.float64, NUMBERS, leaf=False)
        return self._spoilt(shape, HOSTILE_NUMBERS)


# --- outcomes ---------------------------------------------------------------------------------------------------


def outcome(call: Call) -> tuple[str, str]:
    """Make a call, with the gradients of its result, and return the class of what happened and a description."""
    try:
        result = call.target.call(call.arguments)
        tensors = list(_tensors(result))
        grown = [one for one in tensors if one.requires_grad]
        if grown:
            torch.autograd.backward(grown, [torch.ones_like(one) for one in grown])
    except (ValueError, TypeError) as error:
        return _refusal(call, error)
    except Exception as error:
        return "other error", f"{type(error).__name__}: {error}"
    gradients = [one.grad for one in _tensors(call.arguments) if one.is_leaf and one.grad is not None]
    if not all(bool(one.isfinite().all()) for one in tensors):
        return "result not finite", str(result)[:300]
    # A gradient in half precision may overflow: it has the type of the scores.
    if not all(bool((~one.isnan() if one.dtype == torch.float16 else one.isfinite()).all()) for one in gradients):
        return "gradient not finite", str(gradients)[:300]
    return "finite", ""


def _refusal(call: Call, error: Exception) -> tuple[str, str]:
    text = f"{type(error).__name__}: {error}"
    if not call.hostile:
        return "refused without a reason", text
    named = any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in call.hostile)
    return ("refused" if named else "refused without a name"), text


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            if one.name not in ("statistic", "freedom"):  # infinite, or NaN, where there is no variance
                yield from _tensors(getattr(value, one.name))
    elif isinstance(value, float):
        yield torch.tensor(value, dtype=torch.float64)
