"""``rankfall prepare movielens``: construct a funnel from the ratings of MovieLens-1M."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall._progress import steps
from rankfall.commands.options import MAX_NUMBER, AsJson, Force, Out, SampleSeed
from rankfall.commands.prepare.summary import report
from rankfall.commands.terminal import examples

EXAMPLES = examples(
    "rankfall prepare movielens ml-1m --out movielens",
    "rankfall prepare movielens ml-1m --days 20 --sample 5 --out movielens",
)


def movielens(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            exists=True,
            file_okay=False,
            help="Directory with ratings.dat, users.dat and movies.dat of MovieLens-1M.",
            show_default=False,
        ),
    ],
    out: Out,
    days: Annotated[
        int, typer.Option(min=1, max=MAX_NUMBER, help="Number of days of equal size that requests are divided into.")
    ] = 10,
    block: Annotated[int, typer.Option(min=1, max=MAX_NUMBER, help="Smallest number of ratings of a request.")] = 20,
    sample: Annotated[
        int,
        typer.Option(min=1, max=MAX_NUMBER, help="Items sampled per request and stage (random, popular, low, liked)."),
    ] = 10,
    seed: SampleSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Prepare MovieLens-1M: real ratings with a constructed funnel.

    A request is a block of consecutive ratings of a user. Its candidates are the films of the block that the user liked
    (4 or 5 stars) or rated low, and popular and random films that the user never rated. Popularity and sequences use
    ratings before the request only. --json prints the manifest of the log.
    """
    from rankfall.data.sources.movielens import prepare_movielens

    with steps() as on_progress:
        log = prepare_movielens(
            source,
            out,
            days=days,
            block=block,
            sample=sample,
            seed=seed,
            force=force,
            on_requests=lambda done, total: on_progress("requests", done, total),
        )
    report(log, as_json=as_json)
