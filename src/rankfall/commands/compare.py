"""``rankfall compare``: compare methods over seeds and folds."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall.commands.engine_option import EngineName, EngineOption, opened
from rankfall.commands.terminal import examples, fail_for, interruptible, note, progress, say, show, show_json
from rankfall.commands.train import Overrides  # noqa: TC001 (typer reads the annotations)

if TYPE_CHECKING:
    from rankfall.studies.compare import Step

EXAMPLES = examples(
    "rankfall compare mq2007.yaml --out mq2007 --jobs 2",
    "rankfall compare mq2007.yaml --out mq2007 --engine ray",
    "rankfall compare mq2007.yaml --out mq2007 data.path=prepared/mq2007 seeds=[0,1,2]",
    "rankfall compare mq2007.yaml --out mq2007 --json | jq '.methods[].metrics[\"ndcg@10\"].mean'",
)


def compare(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="YAML: a training configuration with methods, seeds and folds.", show_default=False
        ),
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option(help="Directory of the runs and results.", show_default=False)],
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at the same time.", show_default="that of the file, or 1; with Ray one per processor"
        ),
    ] = None,
    engine: EngineOption = EngineName.LOCAL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of comparison.json.")] = False,
) -> None:
    """Train methods on the same folds with the same seeds, and test which are worse than the best.

    Every method is tuned with the same number of trials, on validation data only. Finished runs in DIR are not
    repeated, so the same command continues an interrupted comparison. The exit code is 1 if a run failed; the other
    runs are reported.
    """
    from rankfall.reporting.comparison_table import terminal_table
    from rankfall.reporting.files import write_comparison
    from rankfall.studies.compare import compare_methods
    from rankfall.studies.comparison_plan import load_comparison

    comparison = load_comparison(config, overrides or [])
    with interruptible(lambda: _kept(out)), opened(engine) as found, progress() as bar:
        task = bar.add_task("comparing")

        def report(step: Step) -> None:
            bar.update(task, advance=1, description=f"{step.method}, {step.title}")

        result = compare_methods(
            comparison,
            out,
            jobs=jobs,
            engine=found,
            on_plan=lambda steps: bar.update(task, total=steps),
            on_step=report,
            on_notice=lambda step, text: note(bar, f"{step.method}, {step.title}: {text}"),
        )
    write_comparison(result, out)
    if as_json:
        show_json(result.to_json())
    elif result.methods:
        show(terminal_table(result))
    say(f"wrote {out}/comparison.json, .csv, .md, .yaml, values.parquet and report.html")
    fail_for(result.failed)


def _kept(out: Path) -> str:
    """Return what an interrupted comparison leaves."""
    from rankfall.training.run_directory import is_finished

    runs = [run for run in (out / "runs").glob("*") if is_finished(run)]
    return f"{len(runs)} finished run{'s' * (len(runs) != 1)} kept in {out}/runs; the same command continues"
