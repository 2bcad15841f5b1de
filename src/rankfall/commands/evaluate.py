"""``rankfall evaluate``: evaluate a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import AsJson, Figures, MovedData, NoVerify, Run, Trust, out_option
from rankfall.commands.terminal import examples, print_json, print_message, print_result
from rankfall.commands.write_figures import write_evaluation_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    trust: Trust = False,
    no_verify: NoVerify = False,
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
    from rankfall.reporting.diagnosis import diagnosis_blocks
    from rankfall.reporting.run import evaluation_blocks
    from rankfall.reporting.terminal import show

    changes = overrides or []
    options: dict[str, Any] = {"overrides": changes, "data": data, "out": out, "trust": trust, "verify": not no_verify}
    with Display() as display:
        options["progress"] = display.show
        # first, since it refuses the run of a ranker at once; the evaluation has the same notices
        diagnosis = api.diagnose(run, split, on_notice=lambda text: None, **options) if diagnose else None
        summary = api.evaluate(run, split, on_notice=display.note, **options)
    directory = summary.directory
    if figures is not None:
        own = directory == run and split == "test"
        write_evaluation_figures(summary, figures, run if own else None, trust=trust, verify=not no_verify)
    if as_json:
        print_json(summary.to_json() | ({"diagnosis": diagnosis.to_json()} if diagnosis else {}))
        return
    print_result(show(evaluation_blocks(summary, title=_title(run, split, changes))))
    if diagnosis:
        print_result(show(diagnosis_blocks(diagnosis)))
    if directory is None:
        print_message(f"{run} was not changed; --out DIR writes this result")
        return
    print_message(f"wrote {' and '.join(map(str, _files(directory, run, split)))}")


def _files(directory: Path, run: Path, split: str) -> tuple[Path, ...]:
    """Return the files that show an evaluation: its page, or its figures if the page shows another split."""
    from rankfall.studies.evaluate import evaluation_files
    from rankfall.training.run_directory import REPORT

    return evaluation_files(directory, split) if split != "test" and directory == run else (directory / REPORT,)


def _title(run: Path, split: str, overrides: Sequence[str]) -> str:
    return ", ".join([str(run), split, *overrides])
