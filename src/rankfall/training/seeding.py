"""Seeds and threads of a training run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def seeded(seed: int, threads: int) -> Generator[None]:
    """Seed torch and set its number of threads inside the context; those of the caller are restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)
