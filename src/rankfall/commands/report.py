"""``rankfall report``: the HTML page of a run, a comparison or a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall.commands.terminal import examples, print_message

EXAMPLES = examples(
    "rankfall report runs/first",
    "rankfall report runs/first --out first.html",
    "rankfall report recflow-like --out recflow-like.html",
)


def report(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_DIR",
            help="Directory of a run, of a comparison, or of a stream.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Output file.", show_default="report.html in that directory")] = None,
) -> None:
    """Write a report of a run, a comparison or a stream as one HTML file.

    The file is self-contained: metrics beside chance levels, charts, settings and configuration. The page of a cascade
    shows where relevant items are lost, the course of training, and the worst requests. That of a comparison shows the
    table, confidence intervals, tests and chosen settings, that of a stream also the curves and the table of all days.
    """
    from rankfall.reporting.files import write_report

    print_message(f"wrote {write_report(path, out)}")
