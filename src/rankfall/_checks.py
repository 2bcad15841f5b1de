"""Checks of arguments that all operators, losses, objectives and metrics share, and the ranges of their values.

NaN and numbers beyond `LARGEST` are errors in the whole library. On a CPU in eager mode, where reading a value is
cheap, they raise a `ValueError` that names the argument. Inside ``torch.compile`` and on accelerators, where reading a
value would synchronise with the host, they are assertions on the device, which PyTorch raises as a `RuntimeError`.
Values at masked positions are never used, so they may be anything.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rankfall._errors import RankfallError
from rankfall.option_types import LARGEST, LARGEST_COUNT, LARGEST_SCALE, SMALLEST_SCALE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from jaxtyping import Bool, Float

BEYOND = f"NaN, inf or numbers beyond {LARGEST:g}"

REAL = int | float | torch.SymFloat | torch.SymInt | np.floating | np.integer

ROWS = 1 << 16
"""Largest number of rows of a soft permutation, unless lists are longer. Rows beyond the length of a list are 0."""

WIDEST = 1 << 16
"""Largest width of a layer or an embedding."""


WITHOUT_FLOAT64 = ("mps",)
"""Types of devices on which float32 is the widest type."""


def check_scores(
    scores: Float[Tensor, "*batch n"], mask: Bool[Tensor, "*batch n"] | None
) -> tuple[Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"] | None]:
    """Return scores for an operator: at least float32, at most `LARGEST` in absolute value, and 0 where masked.

    An item with the score -inf is added to the mask. The returned mask is None only if every item is real.
    """
    _check_float("scores", scores)
    _check_mask(mask, scores)
    scores = at_least_float32(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, 0.0)
    if can_read_values(scores) and _all_within(scores):
        return scores, mask
    real = scores != -torch.inf
    mask = real if mask is None else mask & real
    scores = scores.masked_fill(~real, 0.0)
    check_values("scores", scores, found=f"NaN, +inf or numbers beyond {LARGEST:g}")
    return scores, mask


def check_lists(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], mask: Bool[Tensor, "*batch n"] | None
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"]]:
    """Return scores, labels and mask for a loss: of the same shape and floating dtype, 0 where masked.

    Scores and labels are at most `LARGEST` in absolute value.

    Half precision is converted to float32, since lists are longer than eight bits of mantissa can count.
    """
    _check_float("scores", scores)
    return _check_pair(scores, labels, mask)


def check_ranking(
    scores: Tensor,
    labels: Float[Tensor, "*batch n"],
    mask: Bool[Tensor, "*batch n"] | None,
    *,
    names: tuple[str, str] = ("scores", "labels"),
) -> tuple[Tensor, Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"]]:
    """Return the same for a metric. Only the order of the scores matters, so ±inf is allowed."""
    _check_float(names[0], scores)
    return _check_pair(scores.detach(), labels, mask, infinite=True, names=names)


def _check_pair(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    *,
    infinite: bool = False,
    names: tuple[str, str] = ("scores", "labels"),
) -> tuple[Tensor, Tensor, Tensor]:
    check_like(names[1], labels, scores, of=names[0])
    _check_real_dtype(names[1], labels)
    _check_mask(mask, scores)
    scores = at_least_float32(scores)
    labels = labels.detach().to(scores.dtype)
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    else:
        scores, labels = scores.masked_fill(~mask, 0.0), labels.masked_fill(~mask, 0.0)
    check_values(names[0], scores, infinite=infinite)
    check_values(names[1], labels)
    return scores, labels, mask


def check_numbers(name: str, values: Tensor, like: Tensor, mask: Tensor) -> None:
    """Raise an error unless `values` are real numbers with the shape of the scores `like`, within `LARGEST`."""
    check_like(name, values, like)
    _check_real_dtype(name, values)
    if values.is_floating_point():
        check_values(name, values.masked_fill(~mask, 0.0))


def check_values(name: str, values: Tensor, *, infinite: bool = False, found: str | None = None) -> None:
    """Raise an error for NaN, and beyond `LARGEST` unless `infinite`, without synchronising with an accelerator.

    Args:
        name: Name of the argument.
        values: Its values.
        infinite: Whether only NaN is an error.
        found: What the message says that the values must not hold.
    """
    found = found or ("NaN" if infinite else BEYOND)
    values = values.detach()
    if not can_read_values(values):
        # one comparison, instead of isnan() and isfinite(): each operation starts a kernel
        _assert_on_device(values == values if infinite else values.abs() <= LARGEST, name, found)
    elif not _all_within(values):
        _raise_if_any(values.isnan() if infinite else ~(values.abs() <= LARGEST), name, found)


def all_within(values: Tensor) -> Tensor:
    """Return a 0-dim tensor: whether no value is NaN or beyond `LARGEST`, so that losses accept them as scores."""
    return (values.detach().abs() <= LARGEST).all()


def check_none(name: str, bad: Tensor, found: str) -> None:
    """Raise an error if any element is marked as bad, without synchronising with an accelerator."""
    if can_read_values(bad):
        _raise_if_any(bad, name, found)
    else:
        _assert_on_device(~bad, name, found)


def check_membership(name: str, values: Tensor) -> None:
    """Raise an error for values outside [0, 1], without synchronising with an accelerator."""
    check_none(name, (values < 0) | (values > 1), "values outside [0, 1]")


def check_shape(name: str, tensor: Tensor, shape: torch.Size, *, of: str = "scores") -> None:
    """Raise an error unless `tensor` is a tensor of `shape`, the shape of the argument named `of`."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.shape != shape:
        raise RankfallError(f"{name} must have the shape of {of}, {tuple(shape)}, got {tuple(tensor.shape)}")


def check_device(name: str, tensor: Tensor, like: Tensor, *, of: str = "scores") -> None:
    """Raise an error unless `tensor` is on the device of `like`, the argument named `of`."""
    if tensor.device != like.device:
        raise RankfallError(f"{name} must be on the device of {of}, {like.device}, got {tensor.device}")


def check_like(name: str, tensor: Tensor, like: Tensor, *, of: str = "scores") -> None:
    """Raise an error unless `tensor` is a tensor of the shape and on the device of `like`, the argument named `of`."""
    check_shape(name, tensor, like.shape, of=of)
    check_device(name, tensor, like, of=of)


def check_count(name: str, value: int, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """Return a number of items. Raises an error unless it is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt | np.integer):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    value = value if isinstance(value, int | torch.SymInt) else int(value)  # small types of NumPy overflow later
    if value < least:
        raise RankfallError(f"{name} must be at least {least}, got {_short(value)}")
    if value > most:
        raise RankfallError(f"{name} must be at most {most}, got {_short(value)}")
    return value


def check_rows(name: str, value: int | None, n: int) -> int:
    """Return the number of rows of a soft permutation of n items: n by default, and at most `ROWS` or n."""
    return n if value is None else check_count(name, value, most=max(ROWS, n))


def check_scale(name: str, value: float | Tensor, scores: Tensor | None = None) -> float | Tensor:
    """Return a temperature, steepness or slope. Raises an error unless it is in the range of scales.

    Args:
        name: Name of the argument.
        value: A number, or a floating tensor: a scalar, or one value per list ``(..., 1)`` of the scores.
        scores: The scores ``(..., n)``. None: `value` must be a number.
    """
    if isinstance(value, Tensor):
        if scores is None or not value.is_floating_point():
            expected = "a number" if scores is None else "a floating tensor or a number"
            raise (TypeError if scores is None else ValueError)(f"{name} must be {expected}, got {value.dtype}")
        _check_per_list(name, value, scores)
        good = (value >= SMALLEST_SCALE) & (value <= LARGEST_SCALE)
        check_none(name, ~good, f"values outside [{SMALLEST_SCALE:g}, {LARGEST_SCALE:g}]")
        return value
    check_real(name, value)
    if not SMALLEST_SCALE <= value <= LARGEST_SCALE:
        raise RankfallError(f"{name} must be from {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}, got {_short(value)}")
    return value


def _check_per_list(name: str, value: Tensor, scores: Tensor) -> None:
    of_lists = value.ndim == 0 or (value.shape[-1] == 1 and value.ndim <= scores.ndim)
    if not of_lists or any(
        own not in (1, given) for own, given in zip(value.shape[::-1][1:], scores.shape[::-1][1:], strict=False)
    ):
        raise RankfallError(
            f"{name} must be a number, a scalar tensor, or one value per list of scores, {tuple(value.shape)}"
        )


def check_real(name: str, value: Any) -> float:
    """Return a number. Raises an error for everything else, such as a complex number or a tensor."""
    if isinstance(value, bool) or not isinstance(value, REAL):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return cast("float", value)


def check_finite(name: str, value: float) -> float:
    """Return a number. Raises an error unless it is finite."""
    if not abs(check_real(name, value)) <= sys.float_info.max:
        raise RankfallError(f"{name} must be a finite number, got {_short(value)}")
    return value


def check_generator(generator: torch.Generator | None) -> torch.Generator | None:
    """Return a random generator. Raises an error for everything else."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    return generator


def check_share(name: str, value: float) -> float:
    """Return a share. Raises an error unless it is a number from 0 to 1."""
    if not 0 <= check_real(name, value) <= 1:
        raise RankfallError(f"{name} must be in [0, 1], got {_short(value)}")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return a choice between two. Raises an error unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return bool(value)


def _short(value: float) -> str:
    """Return the text of a number. Python refuses to write integers of thousands of digits."""
    return "a number beyond 10^18" if isinstance(value, int) and abs(value) > 10**18 else str(value)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a keyword. Raises an error unless it is one of the allowed ones."""
    if not isinstance(value, str) or value not in allowed:
        raise RankfallError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def is_published(variant: str) -> bool:
    """Whether the variant of a method is the published one. Raises an error unless it is that or the sound one."""
    return check_choice("variant", variant, ("sound", "published")) == "published"


def _check_float(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise RankfallError(f"{name} must be floating point, got {tensor.dtype}; convert with {name}.float()")
    if tensor.ndim == 0:
        raise RankfallError(f"{name} must have at least one dimension (..., n), got a scalar")
    if tensor.shape[-1] == 0:
        raise RankfallError(f"{name} must have at least one item per list, got shape {tuple(tensor.shape)}")


def _check_real_dtype(name: str, values: Tensor) -> None:
    if values.is_complex():
        raise RankfallError(f"{name} must be real numbers, got {values.dtype}")


def _check_mask(mask: Tensor | None, scores: Tensor) -> None:
    if mask is None:
        return
    check_like("mask", mask, scores)
    if mask.dtype != torch.bool:
        raise RankfallError(f"mask must be boolean (True = real item), got {mask.dtype}")


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def can_read_values(tensor: Tensor) -> bool:
    """Return whether reading a value needs no synchronisation: in eager mode on a CPU."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)


def _all_within(tensor: Tensor) -> bool:
    # The norm is at most LARGEST only if every value is; it is several times cheaper than a comparison of every value.
    # If the norm is larger, the caller runs the exact check.
    return _read(torch.linalg.vector_norm(tensor.detach())) <= LARGEST


def _read(value: Tensor) -> float:
    try:
        return float(value)
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        raise RuntimeError(
            "functions of rankfall read values to check them, which torch.func.vmap does not allow; they are batched: "
            "call them once with all lists, in leading dimensions"
        ) from None


def _raise_if_any(bad: Tensor, name: str, found: str) -> None:
    if _read(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise RankfallError(f"{name} must not hold {found}, found at index {where}")


def _assert_on_device(good: Tensor, name: str, found: str) -> None:
    if good.device.type != "meta":
        torch._assert_async(good.all(), f"{name} must not hold {found}")


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast, which would compute matrix products in half precision."""
    if device.type == "meta":  # not supported by autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating type of a device: float64, where it exists."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widen(tensor: Tensor) -> Tensor:
    """Convert to the widest floating type of the tensor's device."""
    return tensor.to(widest(tensor.device))
