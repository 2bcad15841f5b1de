"""``rankfall evaluate``: evaluate a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall.commands.options import AsJson, Figures, MovedData, Run, out_option
from rankfall.commands.terminal import examples, print_json, print_message, print_note, print_result, progress
from rankfall.commands.write_figures import write_evaluation_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.studies.diagnosis.diagnosis_result import Diagnosis

EXAMPLES = examples(
    "rankfall evaluate runs/first",
    "rankfall evaluate runs/first --split valid",
    "rankfall evaluate runs/first data.length=all",
    "rankfall evaluate runs/first stages.0.quota=50 relevant=5 --out runs/first-50",
    "rankfall evaluate runs/first --diagnose",
    "rankfall evaluate runs/first --json",
)


def evaluate(
    run: Run,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Values that replace those of the run in this evaluation, for example data.length=all.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(help="Evaluate train, valid or test of the run's configuration, or a split of its data."),
    ] = "test",
    data: MovedData = None,
    out: Annotated[Path | None, out_option(show_default="the directory of the run")] = None,
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Also find out where and why a cascade loses relevant items."),
    ] = False,
    figures: Figures = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the best weights of a run, and print all metrics beside their chance levels.

    Means are over the lists on which a metric is defined: those with a relevant document. Writes evaluation.json,
    values.parquet with the values of every list, and report.html to the directory of the run. Splits other than test
    have their own files, evaluation-SPLIT.json and values-SPLIT.parquet; the report shows the test split.

    KEY=VALUE changes what is measured: of a cascade data.length (all: every item that the log has by the end of the
    day, as in a service), quotas such as stages.0.quota, relevant, days, another log (data.path), stage_metrics. The
    files of the run stay as they are; --out names a directory for such a result and its page.

    --diagnose prints how far below the cut lost items were, which segments suffer, what perfect stages would gain,
    whether stages agree, and requests that show each cause. It writes diagnosis.json beside evaluation.json.
    """
    from rankfall.reporting.diagnosis_table import terminal_diagnosis
    from rankfall.reporting.evaluation_table import terminal_evaluation
    from rankfall.reporting.files import write_evaluation_report, write_report
    from rankfall.studies.evaluate import evaluate_run, evaluation_files, result_directory
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.run_directory import CONFIG, RESULT, read_config_as

    if (run / CONFIG).exists() and not (run / RESULT).exists():
        print_message(f"note: the training run {run} did not finish; its best weights so far are evaluated")
    changes, moved = overrides or [], None if data is None else str(data)
    if diagnose:
        read_config_as(CascadeConfig, run)  # refuses the run of a ranker before it is evaluated
    with progress() as bar:
        task = bar.add_task("evaluating", total=None)
        evaluation = evaluate_run(
            run,
            split,
            data=moved,
            overrides=changes,
            out=out,
            on_impressions=lambda count, of: bar.update(task, advance=count, total=of),
            on_notice=lambda text: print_note(bar, text),
        )
    directory = result_directory(run, data=moved, overrides=changes, out=out)
    diagnosis = _diagnose(run, split, moved, changes, directory) if diagnose else None
    page = None
    if directory is not None:
        page = write_report(run) if directory == run else write_evaluation_report(run, directory)
    summary = evaluation.summary()
    if figures is not None:
        write_evaluation_figures(summary, figures, run if directory == run and split == "test" else None)
    if as_json:
        print_json(summary.to_json() | ({"diagnosis": diagnosis.to_json()} if diagnosis else {}))
        return
    print_result(terminal_evaluation(summary, title=_title(run, split, changes)))
    if diagnosis:
        print_result(terminal_diagnosis(diagnosis))
    if directory is None:
        print_message(f"{run} was not changed; --out DIR writes this result")
        return
    files = evaluation_files(directory, split) if split != "test" and directory == run else (page,)
    print_message(f"wrote {' and '.join(map(str, files))}")


def _diagnose(run: Path, split: str, data: str | None, overrides: Sequence[str], directory: Path | None) -> Diagnosis:
    """Diagnose a run, and write the result to a directory if there is one."""
    from rankfall.studies.diagnosis.diagnose import diagnose_run, diagnosis_file

    with progress() as bar:
        scoring = bar.add_task("scoring", total=None)
        steps = bar.add_task("diagnosing", total=None, visible=False)
        diagnosis = diagnose_run(
            run,
            split,
            data=data,
            overrides=overrides,
            on_impressions=lambda count, of: bar.update(scoring, advance=count, total=of),
            on_step=lambda name, number, of: bar.update(
                steps, description=f"diagnosing: {name}", completed=number, total=of, visible=True
            ),
        )
    if directory is not None:
        diagnosis.save(diagnosis_file(directory, split))
    return diagnosis


def _title(run: Path, split: str, overrides: Sequence[str]) -> str:
    return ", ".join([str(run), split, *overrides])
