"""Processes that train together: who they are, and what they tell each other.

``torchrun`` starts the processes, :func:`joined` makes a :class:`Group` of them. A process alone is a group as well,
one that has nobody to wait for: whoever trains need not ask how many there are. Tensors that are exchanged for
bookkeeping are on the CPU (gloo); gradients are where the weights are (gloo, or nccl on GPUs).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from rankfall.models.layers import RowNorm
from rankfall.training.checkpoint import join, split
from rankfall.training.run_directory import SurroundingsError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch.distributed.distributed_c10d import Store

    from rankfall.training.checkpoint import State

T = TypeVar("T")

ONE_BY_ONE = "gloo_one_by_one"


class LostError(SurroundingsError):
    """A process that no longer answers."""


class ElsewhereError(ValueError):
    """What another process refuses, or what the first one will say."""


class Group:
    """A process that trains alone."""

    rank = 0
    world = 1
    device = torch.device("cpu")  # of the weights
    restarted = False  # after one of them had died
    all_know = True  # what one of them refuses

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        return numbers

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """The same of plain numbers, in double precision."""
        return list(numbers)

    def gather(self, value: T) -> list[T]:
        """What each process has, of small plain values."""
        return [value]

    def of_first(self, state: State | None) -> State | None:
        """What the first process has, of anything that a checkpoint can hold."""
        return state

    def wrap(self, network: nn.Module) -> nn.Module:
        """A module whose gradients are the means over all processes."""
        return network

    def seed_noise(self, seed: int, step: int) -> None:
        """Let every process draw its own random numbers in a batch; those of the first simply go on."""

    @contextmanager
    def watching(self) -> Generator[None]:
        """Work that needs the others, and raises :class:`LostError` if one of them is gone."""
        yield

    @contextmanager
    def together(self) -> Generator[None]:
        """Work that each process does by itself; what one of them refuses is refused by all."""
        yield


ALONE = Group()


@contextmanager
def joined(timeout: float) -> Generator[Group]:
    """The processes that torchrun started, or this one alone. They wait `timeout` seconds for each other."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        alone = Group()
        alone.restarted = restarts() > 0
        yield alone
        return
    device = _device()
    try:
        _join("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", timedelta(seconds=timeout))
    except RuntimeError as error:
        raise LostError(f"the other processes cannot be reached: {error}") from None
    try:
        group = Processes(device, timeout)
        group.restarted = any(group.gather(restarts()))  # of those that are left of a restart some do not count it
        yield group
    finally:
        dist.destroy_process_group()


def restarts() -> int:
    """How often torchrun has started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def is_first_start() -> bool:
    """Whether this is the first process that torchrun started, and not started again."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ["RANK"] == "0" and not restarts()


def _join(backend: str, timeout: timedelta) -> None:
    store, rank, world = next(rendezvous("env://", timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # It lives as long as torchrun, and would lead to processes that were there before a restart.
        store = PrefixStore(f"restart {restarts()}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)


def _one_by_one(store: Store, rank: int, world: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Gloo with one thread, so that no two reductions run at once.

    Its usual two threads note the name of what they have just finished in one string, without a lock. The name of a
    dense reduction fits into the string itself, that of a sparse one does not: where both are under way, a name is
    written into freed memory, and the process dies sooner or later (seen with torch 2.13).
    """
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # which its stub calls by another name
    names = os.environ.get("GLOO_SOCKET_IFNAME")  # which others of gloo's groups look at by themselves
    options._devices = (
        [dist.ProcessGroupGloo.create_device(interface=name) for name in names.split(",")]
        if names
        else [dist.ProcessGroupGloo.create_default_device()]
    )
    options._threads, options._timeout = 1, timeout
    return dist.ProcessGroupGloo(store, rank, world, options)


dist.Backend.register_backend(ONE_BY_ONE, _one_by_one, devices=["cpu"])


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        raise ValueError(f"torchrun: found process {number} of this machine, which has {count} GPUs; start {count}")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


class Processes(Group):
    """Several processes, of which this is one."""

    def __init__(self, device: torch.device, timeout: float) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = device
        self.all_know = False
        self._timeout = timeout

    def total(self, numbers: Tensor) -> Tensor:
        with self.watching():
            result = numbers.clone()
            dist.all_reduce(result)
            return result

    def totals(self, numbers: Sequence[float]) -> list[float]:
        found: list[float] = self.total(torch.tensor(numbers, dtype=torch.float64)).tolist()
        return found

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.world
        with self.watching():
            dist.all_gather_object(found, value)
        return found

    def of_first(self, state: State | None) -> State | None:
        tensors, plain = split(state or {})
        about = [{name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}, plain, state is None]
        with self.watching():
            dist.broadcast_object_list(about)
            shapes, plain, is_none = about
            for name, (shape, dtype) in shapes.items():
                if not self.first:
                    tensors[name] = torch.empty(shape, dtype=dtype)
                dist.broadcast(tensors[name], 0)
        return state if self.first or is_none else join(plain, tensors)

    def wrap(self, network: nn.Module) -> nn.Module:
        for part in network.modules():
            if isinstance(part, RowNorm):
                part.total = _Total.apply
        sparse = any(isinstance(part, nn.Embedding) and part.sparse for part in network.modules())
        with self.watching():
            wrapped = nn.parallel.DistributedDataParallel(network, process_group=self._one_by_one if sparse else None)
        # Statistics of batch norm are those of all rows, so nobody need be told those of the first in every batch.
        wrapped.broadcast_buffers = False  # which as an argument is deprecated, by a name that older releases lack
        return wrapped

    @cached_property
    def _one_by_one(self) -> Any:
        return dist.new_group(backend=ONE_BY_ONE, timeout=timedelta(seconds=self._timeout))

    def seed_noise(self, seed: int, step: int) -> None:
        # Not a stream that goes on, so that a training can go on with any number of processes. That of the
        # first is kept in checkpoints; on a GPU it has no other than this one.
        if self.rank or self.device.type != "cpu":
            torch.manual_seed(int(np.random.SeedSequence([seed, self.rank, step]).generate_state(1, np.uint64)[0]))

    @contextmanager
    def watching(self) -> Generator[None]:
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
                raise
            is_silent = any(words in str(error).lower() for words in ("timed out", "timeout"))
            fate = f"did not answer for {self._timeout:g} seconds" if is_silent else "ended"
            raise LostError(f"one of the {self.world} processes {fate}") from None

    @contextmanager
    def together(self) -> Generator[None]:
        try:
            yield
        except LostError:
            raise
        except (ValueError, OSError) as error:
            self._agree(str(error) or type(error).__name__)
            raise
        self._agree("")

    def _agree(self, problem: str) -> None:
        """Raise what another process refuses, or what the first will say; the first raises its own by itself."""
        refused = [(rank, found) for rank, found in enumerate(self.gather(problem)) if found]
        self.all_know = bool(refused)
        if refused and not (self.first and problem):
            rank, found = refused[0]
            raise ElsewhereError(f"process {rank} of {self.world}: {found}") from None


class _Total(torch.autograd.Function):
    """A sum over all processes, each of which has a part of the loss: so its gradient is a sum over all of them."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor) -> Tensor:
        result = numbers.clone()
        dist.all_reduce(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        result = grad.clone()
        dist.all_reduce(result)
        return result
