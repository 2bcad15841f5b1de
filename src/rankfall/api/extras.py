"""Optional packages: messages that name what to install, and figures with and without PNG files."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankfall.storage.disk import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rankfall.api.display import OnNotice
    from rankfall.reporting.figures import Drawn


@contextmanager
def requires_extra(what: str, extra: str) -> Iterator[None]:
    """Turn a failed import inside the block into an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{what} needs {error.name}, which is not installed: pip install 'rankfall[{extra}]'"
        ) from None


def write_figures(plots: Mapping[str, Drawn], out: Path, on_notice: OnNotice) -> list[Path]:
    """Write figures as PNG and SVG; without the library for PNG, say how to install it and write SVG only."""
    from rankfall.reporting.figures import SVG, MissingExtraError, save

    make_directory(out)
    try:
        return save(plots, out)
    except MissingExtraError as error:
        on_notice(str(error))
        return save(plots, out, formats=[SVG])
