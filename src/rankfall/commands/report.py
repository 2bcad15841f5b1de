"""``rankfall report``: the HTML page of a run, a comparison or a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall import api
from rankfall.commands.options import Figures, NoVerify, Trust
from rankfall.commands.terminal import examples, print_message
from rankfall.commands.write_figures import write_page_figures

EXAMPLES = examples(
    "rankfall report runs/first",
    "rankfall report runs/first --out first.html",
    "rankfall report recflow-like --out recflow-like.html",
    "rankfall report recflow-like --figures figures",
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
    figures: Figures = None,
    trust: Trust = False,
    no_verify: NoVerify = False,
) -> None:
    """Write a report of a run, a comparison or a stream as one HTML file.

    The file is self-contained. The page of a cascade begins with its funnel: what each stage kept and lost. Metrics
    with intervals, what to do next, the diagnosis, the plan of the quotas and the course of training follow. That of a
    comparison shows the funnels of all methods side by side, intervals, tests and chosen settings, that of a stream
    also the curves and the table of all days.
    """
    page = api.report(
        path, out, trust=trust, verify=not no_verify, on_notice=lambda text: print_message(f"note: {text}")
    )
    print_message(f"wrote {page}")
    if figures is not None:
        write_page_figures(path, figures, trust=trust, verify=not no_verify)
