"""Option ``--engine`` of verbs that can distribute their work."""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall.commands.terminal import say

if TYPE_CHECKING:
    from collections.abc import Generator

    from rankfall._engine import Engine


class EngineName(StrEnum):
    """Engines that execute the work."""

    LOCAL = "local"
    RAY = "ray"


EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Run on this machine (local), or with Ray on all processors of this machine or of the cluster at "
        "RAY_ADDRESS (pip install 'rankfall\\[ray]'). The result is the same.",
    ),
]


@contextmanager
def opened(engine: EngineName) -> Generator[Engine]:
    """Open the engine for the duration of the block."""
    from rankfall._engine import open_engine

    if engine is EngineName.RAY:
        say("starting Ray")
    with open_engine(engine.value) as instance:
        yield instance
