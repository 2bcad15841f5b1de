"""The option ``--engine`` of verbs whose work can be spread."""

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
    """Where work is done."""

    LOCAL = "local"
    RAY = "ray"


EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="On this machine alone, or by Ray on all processors of this machine or of the cluster at RAY_ADDRESS "
        "(pip install 'rankfall\\[ray]'). The result is the same.",
    ),
]


@contextmanager
def opened(engine: EngineName) -> Generator[Engine]:
    """The engine, until the work is done."""
    from rankfall._engine import open_engine

    if engine is EngineName.RAY:
        say("starting Ray")
    with open_engine(engine.value) as found:
        yield found
