"""Figures that several verbs write beside their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.commands.terminal import print_message

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rankfall.reporting.figures import Plot


def write_figures(plots: Mapping[str, Plot], out: Path) -> list[Path]:
    """Write figures as PNG and SVG; without the library for PNG, print how to install it and write SVG only."""
    from rankfall.reporting.figures import SVG, MissingExtraError, save

    try:
        return save(plots, out)
    except MissingExtraError as error:
        print_message(str(error))
        return save(plots, out, formats=[SVG])
