"""Where a training run or a measurement computes: the device, the precision, and compilation.

:func:`placement_of` turns the keys ``training.device``, ``training.precision`` and ``training.compile`` into a
:class:`Placement`. Measurements follow the weights: :func:`device_of` tells where those are.

Weights are initialised on the CPU and then moved, so that they are the same on every device. Files hold CPU tensors.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch

from rankfall._config import ConfigError
from rankfall._engine import WORKER
from rankfall.training.distributed.group import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from rankfall.data.impressions.loader import Impressions
    from rankfall.data.lists.list_loader import ListBatch
    from rankfall.training.config.cascade_config import CascadeTrainingConfig
    from rankfall.training.config.ranker_config import TrainingConfig
    from rankfall.training.distributed.group import Group


BACKEND = "inductor"  # compiler


MovableT = TypeVar("MovableT", "Tensor", "ListBatch", "Impressions")
FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a training run computes.

    Attributes:
        device: Device of the weights.
        precision: Numbers that models compute with in training.
        compiles: Whether the models are compiled for training.
    """

    device: torch.device
    precision: Literal["float32", "bfloat16"] = "float32"
    compiles: bool = False

    @property
    def is_cpu(self) -> bool:
        """Whether tensors are in host memory, so that reading a value costs nothing."""
        return self.device.type == "cpu"

    @property
    def pins(self) -> bool:
        """Whether batches should be in pinned memory, from which CUDA copies without waiting."""
        return self.device.type == "cuda"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which models compute with `precision`."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def widened(self, scores: Tensor) -> Tensor:
        """Return scores that were computed in :meth:`autocast` as losses and objectives need them."""
        return scores if self.precision == "float32" else scores.float()

    def compiled(self, function: FunctionT, *, dynamic: bool | None = None) -> FunctionT:
        """Return a function, compiled if the configuration asks for it.

        Args:
            function: A function or method. Modules that it calls keep their names.
            dynamic: Whether shapes differ from batch to batch. None: they are taken as constant until one differs.
        """
        if not self.compiles:
            return function
        return cast("FunctionT", torch.compile(function, dynamic=dynamic, backend=BACKEND))


CPU = Placement(torch.device("cpu"))


def placement_of(settings: TrainingConfig | CascadeTrainingConfig, group: Group = ALONE) -> Placement:
    """Return where a training run or an evaluation computes.

    Args:
        settings: The section ``training`` of a configuration.
        group: Processes that train together.

    Raises:
        ConfigError: If this machine does not have the device.
    """
    return Placement(resolve(settings.device, group), settings.precision, settings.compile)


def resolve(name: str, group: Group = ALONE) -> torch.device:
    """Return the device of this process.

    ``auto`` is a GPU if there is one, else the CPU. It never is ``mps``, which has no double precision and on which
    no operator of this library was ever run.

    Args:
        name: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        group: Processes that train together. Each has a GPU of its own.

    Raises:
        ConfigError: If this machine does not have the device.
    """
    if group.device is not None:
        return group.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    if group.world > 1 and name != "cuda":
        raise ConfigError(
            f"training.device: found {name} with {group.world} processes, expected cuda (each process computes on the "
            "GPU of its local number) or cpu"
        )
    if kind == "mps":
        if not torch.backends.mps.is_available():
            raise _missing(name, "finds no Apple GPU" if torch.backends.mps.is_built() else "was built without MPS")
        return torch.device("mps")
    if not torch.cuda.is_available():
        raise _missing(name, "finds no GPU" if torch.backends.cuda.is_built() else "was built without CUDA")
    if number and int(number) >= torch.cuda.device_count():
        raise _missing(name, f"finds {_gpus()}")
    return torch.device("cuda", int(number) if number else _own_gpu(group))


def _own_gpu(group: Group) -> int:
    """Return the number of the GPU of this process."""
    count = torch.cuda.device_count()
    if group.world == 1:
        return int(os.environ.get(WORKER, "0")) % count
    if group.local_rank >= count:
        raise ConfigError(
            f"training.device: found process {group.local_rank} of this machine, which has {_gpus()}, expected one for "
            f"each process; start {count} per machine, or train with training.device=cpu"
        )
    return group.local_rank


def _missing(name: str, why: str) -> ConfigError:
    allowed = ["auto", "cpu"]
    if torch.cuda.is_available():
        allowed += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        allowed.append("mps")
    return ConfigError(
        f"training.device: found {name}, but torch {torch.__version__} {why}; expected {', '.join(allowed[:-1])} or "
        f"{allowed[-1]}"
    )


def _gpus() -> str:
    count = torch.cuda.device_count()
    return f"{count} GPU{'s' if count > 1 else ''}"


def describe(device: torch.device) -> str:
    """Return a device with the model of the GPU, which decides the last digits: ``cuda (NVIDIA A100)``."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def device_of(module: nn.Module) -> torch.device:
    """Return the device of the weights of a module; the CPU if it has none."""
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def moved(batch: MovableT, device: torch.device) -> MovableT:
    """Return a batch on a device. Copies do not wait for the work that was queued there before, except on MPS."""
    return batch.to(device, non_blocking=device.type != "mps")


@contextmanager
def seeded(seed: int, threads: int, device: torch.device | None = None) -> Generator[None]:
    """Seed torch and set its number of threads inside the context; those of the caller are restored afterwards.

    Args:
        seed: Seed of the generators of all devices.
        threads: CPU threads.
        device: Device whose generator is restored, besides that of the CPU. Default: no other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)
