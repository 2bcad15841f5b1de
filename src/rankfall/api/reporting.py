"""``rf.report``: pages and figures of a run, a comparison or a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankfall._errors import checked
from rankfall.api.arguments import optional_path, run_directory
from rankfall.api.display import warn
from rankfall.api.extras import write_figures
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from rankfall.api.arguments import PathLike, RunLike
    from rankfall.api.display import OnNotice


@checked
def report(
    directory: RunLike,
    out: PathLike | None = None,
    *,
    figures: PathLike | None = None,
    trust: bool = False,
    verify: bool = True,
    on_notice: OnNotice = warn,
) -> Path:
    """Write the page of a run, a comparison or a stream as one HTML file, and return its path.

    Args:
        directory: Directory of the run, the comparison or the stream, or what :func:`rankfall.train` returned.
        out: File to write. Default: ``report.html`` in the directory.
        figures: Also write every figure of the page to this directory, as SVG and PNG.
        trust: Import code that the stored configuration names.
        verify: Compare the files of a run with their checksums.
        on_notice: Receives notices. Default: they are issued as :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If the directory has no result, or `out` is another file.
    """
    from rankfall.reporting.files import write_report

    path = run_directory(directory)
    with verification(verify, on_notice):
        page = write_report(path, optional_path(out), trust=trust)
        if figures is not None:
            page_figures(path, Path(figures), trust=trust, on_notice=on_notice)
    return page


def page_figures(directory: Path, out: Path, *, trust: bool = False, on_notice: OnNotice = warn) -> list[Path]:
    """Write all figures of the page of a run, a comparison or a stream, and return their files."""
    from rankfall.reporting.files import figures_of

    return write_figures(figures_of(directory, trust=trust), out, on_notice)
