"""Figures as files, as SVG and PNG. SVG needs nothing else; PNG needs vl-convert (``rankfall[report]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rankfall.reporting.charts import Chart

INSTALL = "pip install 'rankfall[report]'"
PNG, SVG = ".png", ".svg"


class MissingExtraError(ImportError):
    """The library that writes PNG files is not installed."""


def save(plots: Mapping[str, Chart], out: Path, *, formats: Sequence[str] = (PNG, SVG)) -> list[Path]:
    """Write each figure to ``NAME.png`` and ``NAME.svg``, and return the files.

    Raises:
        MissingExtraError: PNG is among the formats, and vl-convert is not installed. No file is written.
    """
    convert: Any = None
    if PNG in formats:
        try:
            import vl_convert as convert
        except ImportError:
            raise MissingExtraError(f"no PNG: vl-convert-python is not installed: {INSTALL}") from None
    files = []
    for name, plot in plots.items():
        svg = plot.svg()
        for ending in formats:
            file = out / f"{name}{ending}"
            content = svg.encode() if ending == SVG else convert.svg_to_png(svg, ppi=144)
            write_file(file, content)
            files.append(file)
    return files
