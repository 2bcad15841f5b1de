"""``rankfall prepare rows``: prepare impressions from logs with one row per request and item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall._progress import steps
from rankfall.commands.options import AsJson, EngineName, EngineOption, Force, Out, SampleSeed, opened_engine
from rankfall.commands.prepare.summary import report
from rankfall.commands.terminal import examples

EXAMPLES = examples(
    "rankfall prepare rows log/ --spec spec.yaml --out impressions",
    "rankfall prepare rows 2024-01-*.parquet --items videos.csv --users users.csv --spec spec.yaml --out impressions",
    "rankfall prepare rows log.csv.gz --requests requests.parquet --fit-days 20 --spec spec.yaml --out impressions",
    "rankfall prepare rows log/ --spec spec.yaml --engine ray --out impressions",
)


def rows(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SRC...",
            exists=True,
            help="Files (.csv, .csv.gz, .parquet, .feather, .arrow, .ipc) or directories of them, with one row per "
            "request and item. The result does not depend on how the log is split into files.",
            show_default=False,
        ),
    ],
    spec: Annotated[
        Path, typer.Option(help="Description of columns, stages and features, a YAML file.", show_default=False)
    ],
    out: Out,
    items: Annotated[
        Path | None, typer.Option(exists=True, help="A table with features of items.", show_default=False)
    ] = None,
    users: Annotated[
        Path | None, typer.Option(exists=True, help="A table with features of users.", show_default=False)
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="A table with times, users, context and sequences of requests.", show_default=False
        ),
    ] = None,
    seed: SampleSeed = 0,
    fit_days: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of first days that vocabularies, scalings and buckets are fitted to.",
            show_default="all but the last",
        ),
    ] = None,
    engine: EngineOption = EngineName.LOCAL,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Prepare your own full-stage log: one row per request and item, in CSV, Parquet or Arrow files.

    The memory used does not grow with the number of rows, and the result does not depend on the files of the log or the
    order of its rows. Errors in a log are reported with the file, row or request. --json prints the manifest.
    """
    from rankfall.data.impressions.spec import load_spec
    from rankfall.data.sources.rows.prepare_rows import prepare_rows

    with opened_engine(engine) as opened, steps() as on_progress:
        log = prepare_rows(
            sources,
            out,
            load_spec(spec),
            items=items,
            users=users,
            requests=requests,
            seed=seed,
            fit_days=fit_days,
            force=force,
            engine=opened,
            on_progress=on_progress,
        )
    report(log, as_json=as_json)
