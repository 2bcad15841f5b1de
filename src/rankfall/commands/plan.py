"""``rankfall plan``: find the quotas that keep most for their cost."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import AsJson, MovedData, NoVerify, Overrides, Run, Trust, out_option
from rankfall.commands.terminal import examples, print_json, print_message, print_result

if TYPE_CHECKING:
    from rankfall.studies.plan.plan_result import PlanResult

EXAMPLES = examples(
    "rankfall plan runs/lcron --cost retrieval=0.1us --cost ranking=0.2ms+8us --budget 5ms",
    "rankfall plan runs/lcron --bundle bundle --recall 0.6 data.length=all",
    "rankfall plan runs/lcron --grid retrieval=50,100,200,400 --grid ranking=10,20 --json",
)
METRICS = ("joint_recall", "joint_value")


def plan(
    run: Run,
    overrides: Overrides = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE=COST",
            help="Cost of an item that enters a stage, for example 8us, or FIXED+COST with a cost per request, for "
            "example 0.2ms+8us. Units are s, ms, us, ns or none. One for every stage.",
            show_default="1 for every scored item",
        ),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Measure the costs as CPU time on this bundle of the run.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Largest cost of a request, for example 5ms: find the best quotas.",
            show_default="the cost of the current quotas",
        ),
    ] = None,
    recall: Annotated[
        float | None, typer.Option(help="Smallest value of the metric: find the cheapest quotas.", show_default=False)
    ] = None,
    metric: Annotated[str, typer.Option(help="joint_recall, or joint_value.")] = METRICS[0],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE=N,N,...",
            help="Quotas to try for a stage.",
            show_default="from the last quota to four times the current one; the last quota stays",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Plan on train, valid or test of the run's configuration, or on a day of its log.")
    ] = "test",
    data: MovedData = None,
    out: Annotated[Path | None, out_option(show_default="the directory of the run")] = None,
    trust: Trust = False,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """Find the quotas that keep most of the relevant items for their cost.

    Computes the joint recall of a run for all quotas of a grid, exactly, from one pass of its models over the requests,
    and the cost of a request: the sum over stages of a fixed cost and a cost per item that enters the stage. Prints the
    quotas that no others beat in both, and the best ones for a budget or the cheapest ones for a recall. KEY=VALUE
    changes what is measured, as for evaluate; data.length=all plans over all items, as they are served. Writes
    plan.json and the page report.html to the directory of the run; --out writes plan.json to another directory, and
    leaves the run as it is.
    """
    _check_options(cost, bundle, budget, recall, metric)
    print_message("loading torch")
    with Display() as display:
        result = api.plan(
            run,
            split,
            costs=cost,
            bundle=bundle,
            budget=budget,
            recall=recall,
            metric="joint_value" if metric == "joint_value" else "joint_recall",
            grid=grid,
            overrides=overrides or (),
            data=data,
            out=out,
            trust=trust,
            verify=not no_verify,
            progress=display.show,
            on_notice=display.note,
        )
    for text in result.warnings:
        print_message(f"warning: {text}")
    if as_json:
        print_json(result.to_json())
        return
    _show(result, run, out)


def _show(result: PlanResult, run: Path, out: Path | None) -> None:
    """Print the plan, what to do with it, and which files were written."""
    from rankfall.reporting.diagnosis import plan_blocks
    from rankfall.reporting.terminal import show
    from rankfall.studies.plan.plan_result import PLAN
    from rankfall.training.run_directory import REPORT

    print_result(show(plan_blocks(result)))
    _print_next(run, result)
    page = f" and {run / REPORT}" if out is None else ""
    print_message(f"wrote {(out or run) / PLAN}{page}")


def _check_options(
    cost: list[str] | None, bundle: Path | None, budget: str | None, recall: float | None, metric: str
) -> None:
    if cost and bundle is not None:
        raise typer.BadParameter("found --cost and --bundle, expected one of them", param_hint="--bundle")
    if budget is not None and recall is not None:
        raise typer.BadParameter("found --budget and --recall, expected one of them", param_hint="--recall")
    if recall is not None and not 0 < recall <= 1:
        raise typer.BadParameter(f"found {recall:g}, expected more than 0 and at most 1", param_hint="--recall")
    if metric not in METRICS:
        raise typer.BadParameter(f"found {metric!r}, expected one of {', '.join(METRICS)}", param_hint="--metric")


def _print_next(run: Path, result: PlanResult) -> None:
    """Print the commands that use the chosen quotas."""
    chosen = result.chosen
    quotas = " ".join(chosen.train_overrides)
    print_result(f"measure: rankfall evaluate {shlex.join([str(run), *chosen.train_overrides, *result.overrides])}")
    print_result(f"train:   rankfall train {run / 'config.yaml'} {quotas} --out NEW")
    print_result(f"export:  rankfall export {run} {' '.join(chosen.export_options)} --out BUNDLE")
