"""``rankfall evaluate``: all metrics of a run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.terminal import examples, note, progress, say, show, show_json

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    evaluation.json, the values of every list in values.parquet, and report.html.
    """
    from rankfall.reporting.comparison_page import write_report
    from rankfall.studies.evaluate import evaluate_run
    from rankfall.training.run_directory import CONFIG, RESULT

    if (run / CONFIG).exists() and not (run / RESULT).exists():
        say(f"note: the training of {run} did not finish; these are its best weights so far")
    with progress() as bar:
        task = bar.add_task("evaluating", total=None)
        evaluation = evaluate_run(
            run,
            split,
            data=None if data is None else str(data),
            on_impressions=lambda count, of: bar.update(task, advance=count, total=of),
            on_notice=lambda text: note(bar, text),
        )
    written = write_report(run)
    summary = evaluation.summary()
    if as_json:
        show_json(summary)
        return
    lists = "impressions" if "kept_whole" in summary else "lists"
    show(f"{run}, {split}: {summary['impressions']:,} {lists}")
    show(_table(summary))
    for line in _left_out(summary):
        show(line)
    say(f"wrote {written}")


def _table(summary: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("metric", style="cyan")
    apart = len(set(summary["undefined"].values())) > 1
    for heading in ("mean", "chance", *(["undefined on"] if apart else [])):
        table.add_column(heading, justify="right")
    for name, value in summary["metrics"].items():
        row = [f"{value:.4f}", f"{summary['chance'][name]:.4f}"]
        table.add_row(name, *row, *([f"{summary['undefined'][name]:,}"] if apart else []))
    return table


def _left_out(summary: dict[str, Any]) -> Iterator[str]:
    """What the means say nothing about, or little."""
    without = set(summary["undefined"].values())
    if len(without) == 1 and without != {0}:
        what = "item" if "kept_whole" in summary else "document"
        yield f"{without.pop():,} of {summary['impressions']:,} have no relevant {what} and count in no mean"
    for stage, count in summary.get("kept_whole", {}).items():
        if count:
            counted = summary["impressions"] - summary["undefined"][f"{stage}/recall"]
            share = f"{count:,} of {counted:,} that count"
            yield f"{share} are not longer than the quota of {stage}, which drops nothing of them"
