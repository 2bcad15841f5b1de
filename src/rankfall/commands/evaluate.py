"""``rankfall evaluate``: evaluate a run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from rankfall.commands.terminal import examples, note, progress, say, show, show_json

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
        Path | None,
        typer.Option(help="Path of the prepared data, if they were moved.", show_default="that of the configuration"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Evaluate the best weights of a run, and print all metrics beside their chance levels.

    Means are over the lists on which a metric is defined: those with a relevant document. Writes evaluation.json,
    values.parquet with the values of every list, and report.html to the directory of the run.
    """
    from rankfall.reporting.evaluation_table import terminal_evaluation
    from rankfall.reporting.files import write_report
    from rankfall.studies.evaluate import evaluate_run
    from rankfall.training.run_directory import CONFIG, RESULT

    if (run / CONFIG).exists() and not (run / RESULT).exists():
        say(f"note: the training run {run} did not finish; its best weights so far are evaluated")
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
        show_json(summary.to_json())
        return
    show(terminal_evaluation(summary, title=f"{run}, {split}"))
    say(f"wrote {written}")
