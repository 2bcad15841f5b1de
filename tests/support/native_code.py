"""The C++ compiler that torch.compile uses."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def compiled_quickly() -> Iterator[None]:
    """Choose the vector instruction set from what the processor reports.

    Otherwise each process compiles and runs trial programs for every set, which takes longer than the graphs of a test.
    """
    from torch._inductor import config

    with config.patch({"cpp.vec_isa_ok": True}):
        yield
