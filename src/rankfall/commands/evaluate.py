"""``rankfall evaluate``: evaluate a run."""

from __future__ import annotations

from typing import Annotated

import typer

from rankfall.commands.options import AsJson, MovedData, Run
from rankfall.commands.terminal import examples, print_json, print_message, print_note, print_result, progress

EXAMPLES = examples(
    "rankfall evaluate runs/first",
    "rankfall evaluate runs/first --split valid",
    "rankfall evaluate runs/first --json",
)


def evaluate(
    run: Run,
    split: Annotated[
        str,
        typer.Option(help="Evaluate train, valid or test of the run's configuration, or a split of its data."),
    ] = "test",
    data: MovedData = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the best weights of a run, and print all metrics beside their chance levels.

    Means are over the lists on which a metric is defined: those with a relevant document. Writes evaluation.json,
    values.parquet with the values of every list, and report.html to the directory of the run. Splits other than test
    have their own files, evaluation-SPLIT.json and values-SPLIT.parquet; the report shows the test split.
    """
    from rankfall.reporting.evaluation_table import terminal_evaluation
    from rankfall.reporting.files import write_report
    from rankfall.studies.evaluate import evaluate_run, evaluation_files
    from rankfall.training.run_directory import CONFIG, RESULT

    if (run / CONFIG).exists() and not (run / RESULT).exists():
        print_message(f"note: the training run {run} did not finish; its best weights so far are evaluated")
    with progress() as bar:
        task = bar.add_task("evaluating", total=None)
        evaluation = evaluate_run(
            run,
            split,
            data=None if data is None else str(data),
            on_impressions=lambda count, of: bar.update(task, advance=count, total=of),
            on_notice=lambda text: print_note(bar, text),
        )
    written = write_report(run)
    summary = evaluation.summary()
    if as_json:
        print_json(summary.to_json())
        return
    print_result(terminal_evaluation(summary, title=f"{run}, {split}"))
    files = [written] if split == "test" else evaluation_files(run, split)
    print_message(f"wrote {' and '.join(map(str, files))}")
