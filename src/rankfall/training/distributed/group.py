"""Groups of processes that train together.

``torchrun`` starts the processes, :func:`joined` returns their :class:`Group`. A single process is a group of one, so
that training code is the same for any number of processes. Bookkeeping tensors are exchanged on the CPU (gloo);
gradients on the device of the weights (gloo, or nccl on GPUs).
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

from rankfall._errors import RankfallError
from rankfall.models.layers import RowNorm
from rankfall.training.checkpoint import join, split
from rankfall.training.run_directory import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch.distributed.distributed_c10d import Store

    from rankfall.training.checkpoint import State

T = TypeVar("T")

ONE_BY_ONE = "gloo_one_by_one"  # backend that runs one reduction at a time


class LostError(EnvironmentFailure):
    """Another process ended or does not answer."""


class PeerError(RankfallError):
    """An error of another process, which reports it."""


class Group:
    """A group of one process, and the interface of larger ones.

    Attributes:
        rank: Number of this process, from 0.
        world: Number of processes.
        local_rank: Number of this process on its machine, from 0.
        device: Device that the launcher assigned to this process, or None: the configuration decides.
        restarted: Whether the processes were restarted after one of them had died.
        all_informed: Whether all processes know of the last error that one of them raised in :meth:`together`.
    """

    rank = 0
    world = 1
    local_rank = 0
    device: torch.device | None = None
    restarted = False
    all_informed = True

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints messages."""
        return self.rank == 0

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        return numbers

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of plain numbers over all processes, in double precision."""
        return list(numbers)

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank; for small plain values."""
        return [value]

    def of_first(self, state: State | None) -> State | None:
        """Return the state of the first process: anything that a checkpoint can hold."""
        return state

    def wrap(self, network: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are means over all processes."""
        return network

    def seed_noise(self, seed: int, step: int, *, always: bool = False) -> None:
        """Give every process its own random numbers for a batch; the first process keeps its generator.

        Args:
            seed: Seed of the run.
            step: Number of the batch.
            always: Whether the first process is seeded like the others. Its generator on the CPU is part of
                checkpoints, those of other devices are not.
        """
        # Seeded per batch rather than continued, so that a run can be resumed with any number of processes.
        if self.rank or always:
            torch.manual_seed(int(np.random.SeedSequence([seed, self.rank, step]).generate_state(1, np.uint64)[0]))

    @contextmanager
    def watching(self) -> Generator[None]:
        """Context for communication: raises :class:`LostError` if another process is gone."""
        yield

    @contextmanager
    def together(self) -> Generator[None]:
        """Context for work of each process by itself: an error in one of them is raised in all."""
        yield


ALONE = Group()


@contextmanager
def joined(timeout: float) -> Generator[Group]:
    """Join the processes that torchrun started, or return a group of this process alone.

    Args:
        timeout: Seconds that the processes wait for each other.

    Raises:
        LostError: If the other processes cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        alone = Group()
        alone.restarted = restarts() > 0
        yield alone
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available() and local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)  # nccl connects the current devices
    try:
        _join("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timedelta(seconds=timeout))
    except RuntimeError as error:
        raise LostError(f"the other processes cannot be reached: {error}") from None
    try:
        group = Processes(None, timeout)
        group.local_rank = local_rank
        group.restarted = any(group.gather(restarts()))  # processes that survived a restart do not count it
        yield group
    finally:
        dist.destroy_process_group()


def restarts() -> int:
    """Return the number of times torchrun has restarted this process."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def is_first_start() -> bool:
    """Return whether this is process 0 of torchrun, in its first start."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ["RANK"] == "0" and not restarts()


def _join(backend: str, timeout: timedelta) -> None:
    store, rank, world = next(rendezvous("env://", timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # The store lives as long as torchrun and still holds the addresses of processes before a restart.
        store = PrefixStore(f"restart {restarts()}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)


def _one_by_one(store: Store, rank: int, world: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Create a gloo backend with one thread, so that no two reductions run at once.

    The default two threads write the name of the last finished reduction to one string without a lock. The name of a
    dense reduction fits into the string object, that of a sparse one does not. If both run at once, a name is written
    to freed memory and the process crashes sooner or later (seen with torch 2.13).
    """
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stub has another name
    names = os.environ.get("GLOO_SOCKET_IFNAME")  # other gloo groups read this variable themselves
    options._devices = (
        [dist.ProcessGroupGloo.create_device(interface=name) for name in names.split(",")]
        if names
        else [dist.ProcessGroupGloo.create_default_device()]
    )
    options._threads, options._timeout = 1, timeout
    return dist.ProcessGroupGloo(store, rank, world, options)


dist.Backend.register_backend(ONE_BY_ONE, _one_by_one, devices=["cpu"])


class Processes(Group):
    """A group of several processes."""

    def __init__(self, device: torch.device | None, timeout: float) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = device
        self.all_informed = False
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
        # Batch norm already uses the rows of all processes, so its statistics need no broadcast in every batch.
        wrapped.broadcast_buffers = False  # deprecated as an argument; older releases lack the new name
        return wrapped

    @cached_property
    def _one_by_one(self) -> Any:
        return dist.new_group(backend=ONE_BY_ONE, timeout=timedelta(seconds=self._timeout))

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
        """Raise the error of another process; the first process raises its own error itself."""
        refused = [(rank, found) for rank, found in enumerate(self.gather(problem)) if found]
        self.all_informed = bool(refused)
        if refused and not (self.first and problem):
            rank, found = refused[0]
            raise PeerError(f"process {rank} of {self.world}: {found}") from None


class _Total(torch.autograd.Function):
    """Sum over all processes. Each has a part of the loss, so the gradient is a sum over all of them too."""

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
