"""``rankfall prepare mq2007``: prepare judged documents with the ranks of 21 systems and 46 features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall.commands.options import AsJson, Force, Out
from rankfall.commands.prepare.summary import report
from rankfall.commands.terminal import examples, progress

EXAMPLES = examples("rankfall prepare mq2007 mq2007 --out impressions")


def mq2007(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            exists=True,
            file_okay=False,
            help="Directory with systems21_S1.txt and features46_S1.txt, to S5, plain or gzip (.txt.gz).",
            show_default=False,
        ),
    ],
    out: Out,
    missing_at_random: Annotated[
        bool,
        typer.Option(
            "--missing-at-random",
            help="Leave out the rows of rows_from_models.tsv, which are relevant more often than others.",
        ),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Prepare MQ2007 and MQ2007-agg as a cascade with human judgements; the partitions S1 to S5 become days.

    A first stage receives the ranks that 21 retrieval systems gave a document, a second one its 46 LETOR features.
    --json prints the manifest of the log.
    """
    from rankfall.data.sources.mq2007 import prepare_mq2007, source_files

    with progress() as bar:
        task = bar.add_task("reading (kB)", total=sum(path.stat().st_size for path in source_files(source)) // 1000)
        log = prepare_mq2007(
            source,
            out,
            missing_at_random=missing_at_random,
            force=force,
            on_read=lambda count: bar.advance(task, count / 1000),
        )
    report(log, as_json=as_json)
