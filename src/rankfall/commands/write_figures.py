"""Figures that several verbs write beside their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.api.extras import write_figures
from rankfall.commands.terminal import print_message
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rankfall.reporting.figures import Drawn
    from rankfall.studies.results import EvaluationSummary


def write_page_figures(path: Path, out: Path, *, trust: bool = False, verify: bool = True) -> None:
    """Write all figures of the page of a run, a comparison or a stream, and say so.

    Args:
        path: directory of the run, the comparison or the stream.
        out: directory for the figures.
        trust: import code that the stored configuration names.
        verify: compare the files of the run with their checksums.
    """
    from rankfall.reporting.files import figures_of

    with verification(verify, lambda text: None):  # which the command has noted before
        _write(figures_of(path, trust=trust), out)


def write_evaluation_figures(
    summary: EvaluationSummary, out: Path, run: Path | None, *, trust: bool = False, verify: bool = True
) -> None:
    """Write the figures of an evaluation, and say so.

    Args:
        summary: the evaluation.
        out: directory for the figures.
        run: directory of the run if its page shows this evaluation; all figures of the page are written then. None
            for an evaluation with other settings: its funnel is written.
        trust: import code that the stored configuration names.
        verify: compare the files of the run with their checksums.
    """
    from rankfall.reporting.funnel import funnel_of_summary

    if run is not None:
        write_page_figures(run, out, trust=trust, verify=verify)
    else:
        _write({"funnel": funnel_of_summary(summary)} if summary.funnel else {}, out)


def _write(plots: Mapping[str, Drawn], out: Path) -> None:
    files = write_figures(plots, out, print_message)
    print_message(f"wrote {len(files)} files to {out}: {', '.join(plots)}" if files else "there are no figures")
