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


def write_page_figures(path: Path, out: Path) -> list[Path]:
    """Write all figures of the page of a run, a comparison or a stream, and say so.

    Args:
        path: directory of the run, the comparison or the stream.
        out: directory for the figures.
    """
    from rankfall.reporting.files import figures_of

    plots = figures_of(path)
    out.mkdir(parents=True, exist_ok=True)
    files = write_figures(plots, out)
    print_message(f"wrote {len(files)} files to {out}: {', '.join(plots)}" if files else f"{path} has no figures")
    return files
