"""The pictures that verbs leave beside their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.commands.terminal import say

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rankfall.reporting.figures import Plot


def draw(plots: Mapping[str, Plot], out: Path) -> list[Path]:
    """Draw what can be drawn, and say what is missing if nothing can; tables are of use without pictures."""
    from rankfall.reporting.figures import MissingExtraError, save

    try:
        return save(plots, out)
    except MissingExtraError as error:
        say(str(error))
        return []
