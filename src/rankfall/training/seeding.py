"""Seeds and threads of a training run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Generator


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
