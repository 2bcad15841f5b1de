"""``rankfall compare``: compare methods over seeds and folds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import (
    AsJson,
    Config,
    EngineName,
    EngineOption,
    Figures,
    NoVerify,
    Out,
    Overrides,
    announce,
    jobs_option,
)
from rankfall.commands.terminal import (
    examples,
    exit_for_failures,
    interruptible,
    print_json,
    print_message,
    print_result,
)
from rankfall.commands.write_figures import write_page_figures

EXAMPLES = examples(
    "rankfall compare mq2007.yaml --out mq2007 --jobs 2",
    "rankfall compare mq2007.yaml --out mq2007 --engine ray",
    "rankfall compare mq2007.yaml --out mq2007 --against LambdaLoss",
    "rankfall compare mq2007.yaml --out mq2007 data.path=prepared/mq2007 seeds=[0,1,2]",
    "rankfall compare mq2007.yaml --out mq2007 --json | jq '.methods[].metrics[\"ndcg@10\"].mean'",
)


def compare(
    config: Config,
    overrides: Overrides = None,
    *,
    out: Out,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Test whether each method is better or worse than this one.",
            show_default="that of CONFIG, or the method with the best mean",
        ),
    ] = None,
    jobs: Annotated[int | None, jobs_option(show_default="that of CONFIG, or 1; with Ray one per processor")] = None,
    engine: EngineOption = EngineName.LOCAL,
    figures: Figures = None,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """Train several methods on the same data, and test which are worse than the best one.

    A method is better than another if the difference is significant for other seeds and other queries (mixed model,
    5 %, Holm correction). With a single seed the table makes no such claim: use at least two, better five. --against
    names another reference than the best method.

    CONFIG is a training configuration with the additional keys methods, seeds and folds. All methods have the same
    seeds and folds, and are tuned with the same number of trials, on validation data only. Finished runs in the output
    directory are not repeated, so the same command continues an interrupted comparison. --json prints the content of
    comparison.json. If a run fails, the others are still reported and the exit code is 1.
    """
    announce(engine)
    with interruptible(lambda: _kept(out)), Display() as display:
        result = api.compare(
            config,
            out,
            overrides=overrides or (),
            against=against,
            jobs=jobs,
            engine=engine.value,
            verify=not no_verify,
            progress=display.show,
            on_notice=display.note,
        )
    if as_json:
        print_json(result.to_json())
    elif result.methods:
        from rankfall.reporting.comparison import comparison_blocks
        from rankfall.reporting.terminal import show

        print_result(show(comparison_blocks(result)))
    for text in result.warnings:
        print_message(f"warning: {text}")
    print_message(f"wrote {out}/comparison.json, .csv, .md, .yaml, values.parquet and report.html")
    if figures is not None:
        write_page_figures(out, figures, verify=not no_verify)
    exit_for_failures(result.failed)


def _kept(out: Path) -> str:
    """Return what an interrupted comparison leaves."""
    from rankfall.training.run_directory import is_finished

    runs = [run for run in (out / "runs").glob("*") if is_finished(run)]
    return f"{len(runs)} finished run{'s' * (len(runs) != 1)} kept in {out}/runs; the same command continues"
