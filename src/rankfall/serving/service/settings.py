"""What a service is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_DEADLINE = 60_000  # milliseconds


@dataclass(frozen=True)
class Settings:
    """The options of ``rankfall serve``, for every worker; times are in milliseconds, sizes in bytes."""

    bundle: Path
    other: Path | None = None
    threads: int = 1
    watch: bool = False
    token: str | None = field(default=None, repr=False)
    batch: int = 32
    queue: int = 256
    deadline: int = 1000
    max_body: int = 1_000_000
    body_seconds: float = 5.0  # in which a body has to come
    page: bool = True
    local: bool = False  # whether only those of this machine can reach it, who call it localhost
    shared: Path | None = None  # the directory in which several workers tell each other what they serve
