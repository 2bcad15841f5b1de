"""``rankfall prepare``: convert raw files to training data, one module per source."""

from __future__ import annotations

import typer

from rankfall.commands.prepare import letor, recflow, rows
from rankfall.commands.terminal import examples

app = typer.Typer(
    name="prepare",
    no_args_is_help=True,
    epilog=examples(
        "rankfall prepare letor Fold1/*.txt --out mslr --log1p --standardise train",
        "rankfall prepare rows log/ --spec spec.yaml --out impressions",
    ),
)


@app.callback()
def prepare() -> None:
    """Convert raw files to data for training."""


app.command("letor", epilog=letor.EXAMPLES)(letor.letor)
app.command("rows", epilog=rows.EXAMPLES)(rows.rows)
app.command("recflow", epilog=recflow.EXAMPLES)(recflow.recflow)
