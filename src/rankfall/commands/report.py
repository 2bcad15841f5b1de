"""``rankfall report``: one HTML file of a run, a comparison or a stream."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from rankfall.commands.terminal import examples, say

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
    out: Annotated[Path | None, typer.Option(help="The file.", show_default="report.html in that directory")] = None,
) -> None:
    """Write one HTML file that needs nothing else: metrics beside chance, pictures, settings, configuration.

    Of a cascade it shows where the relevant items are lost, how training went, and the requests it does worst on; of a
    comparison the table, confidence intervals, tests, and the settings that were chosen; of a stream the curves and
    the table of every day.
    """
    from rankfall.reporting.comparison_page import write_report

    say(f"wrote {write_report(path, out)}")
