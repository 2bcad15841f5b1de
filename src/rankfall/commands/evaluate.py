"""``rankfall evaluate``: all metrics of a run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.terminal import examples, say, show, show_json

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = examples(
    "rankfall evaluate runs/first",
    "rankfall evaluate runs/first --split valid",
    "rankfall evaluate runs/first --json",
)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)],
    split: Annotated[
        str, typer.Option(help="train, valid or test of the run's configuration, or a split of its data.")
    ] = "test",
    data: Annotated[
        Path | None, typer.Option(help="Where the prepared data are now.", show_default="where they were")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Measure the best weights of a run, beside what a random scorer gets.

    Means are over the lists on which a metric is defined: those with a relevant document. The run's directory gets
    evaluation.json and the values of every list in values.parquet.
    """
    from rankfall.evaluation.evaluate import evaluate_run
    from rankfall.training.run import CONFIG, RESULT

    if (run / CONFIG).exists() and not (run / RESULT).exists():
        say(f"note: the training of {run} did not finish; these are its best weights so far")
    summary = evaluate_run(run, split, data=None if data is None else str(data)).summary()
    if as_json:
        show_json(summary)
    else:
        show(_table(summary, run, split))


def _table(summary: dict[str, Any], run: Path, split: str) -> Table:
    from rich.table import Table

    table = Table(title=f"{run}, {split}: {summary['impressions']:,} lists", title_justify="left")
    table.add_column("metric", style="cyan")
    for heading in ("mean", "chance", "undefined on"):
        table.add_column(heading, justify="right")
    for name, value in summary["metrics"].items():
        table.add_row(name, f"{value:.4f}", f"{summary['chance'][name]:.4f}", f"{summary['undefined'][name]:,}")
    return table
