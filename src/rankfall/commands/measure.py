"""``rankfall evaluate``, ``plan`` and ``report``: figures and pages of what was trained."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall import api
from rankfall.api.shared import Display
from rankfall.commands import terminal
from rankfall.commands.verb import Call, verb

if TYPE_CHECKING:
    from rankfall.studies.plan.plan_result import PlanResult


@verb(api.evaluate, out={"show_default": "the directory of the run"})
def evaluate(
    call: Call,
    diagnose: bool = False,
    figures: Path | None = None,
    as_json: bool = False,
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

    Options:
        diagnose: Also find out where and why a cascade loses relevant items.
        overrides: Values that replace those of the run in this evaluation, for example data.length=all.
        split: Evaluate train, valid or test of the run's configuration, or a split of its data.

    Examples:
        rankfall evaluate runs/first
        rankfall evaluate runs/first --split valid
        rankfall evaluate runs/first data.length=all
        rankfall evaluate runs/first stages.0.quota=50 relevant=5 --out runs/first-50
        rankfall evaluate runs/first --diagnose
        rankfall evaluate runs/first --json
    """
    from rankfall.reporting.diagnosis import diagnosis_blocks
    from rankfall.reporting.funnel import funnel_of_summary
    from rankfall.reporting.run import evaluation_blocks
    from rankfall.studies.evaluate import evaluation_files
    from rankfall.training.run_directory import REPORT

    run, split = call["run"], call["split"]
    with Display() as display:
        # first, since it refuses the run of a ranker at once; the evaluation has the same notices
        quiet: dict[str, Any] = {"progress": display.show, "on_notice": lambda text: None}
        diagnosis = api.diagnose(**call.given, **quiet) if diagnose else None
        summary = call(display)
    directory = summary.directory
    shows_test = directory == run and split == "test"
    if shows_test:
        terminal.write_page_figures(run, figures, trust=call["trust"], verify=call["verify"])
    elif figures is not None:
        terminal.print_figures({"funnel": funnel_of_summary(summary)} if summary.funnel else {}, figures)
    if as_json:
        terminal.print_json(summary.to_json() | ({"diagnosis": diagnosis.to_json()} if diagnosis else {}))
        return
    terminal.print_result(evaluation_blocks(summary, title=", ".join([str(run), split, *call["overrides"]])))
    if diagnosis:
        terminal.print_result(diagnosis_blocks(diagnosis))
    if directory is None:
        terminal.print_message(f"{run} was not changed; --out DIR writes this result")
        return
    is_other = directory == run and split != "test"  # which the page does not show
    files = evaluation_files(directory, split) if is_other else (directory / REPORT,)
    terminal.print_message(f"wrote {' and '.join(map(str, files))}")


@verb(
    api.plan,
    costs={"flag": "cost", "metavar": "STAGE=COST"},
    grid={"metavar": "STAGE=N,N,..."},
    out={"show_default": "the directory of the run"},
)
def plan(call: Call, as_json: bool = False) -> None:
    """Find the quotas that keep most of the relevant items for their cost.

    Computes the joint recall of a run for all quotas of a grid, exactly, from one pass of its models over the requests,
    and the cost of a request: the sum over stages of a fixed cost and a cost per item that enters the stage. Prints the
    quotas that no others beat in both, and the best ones for a budget or the cheapest ones for a recall. KEY=VALUE
    changes what is measured, as for evaluate; data.length=all plans over all items, as they are served. Writes
    plan.json and the page report.html to the directory of the run; --out writes plan.json to another directory, and
    leaves the run as it is.

    Options:
        split: Plan on train, valid or test of the run's configuration, or on a day of its log.
        costs: Cost of an item that enters a stage, for example 8us, or FIXED+COST with a cost per request, for example
            0.2ms+8us. Units are s, ms, us, ns or none. One for every stage. Default: 1 for every scored item.
        grid: Quotas to try for a stage. Default: from the last quota to four times the current one; the last quota
            stays.

    Examples:
        rankfall plan runs/lcron --cost retrieval=0.1us --cost ranking=0.2ms+8us --budget 5ms
        rankfall plan runs/lcron --bundle bundle --recall 0.6 data.length=all
        rankfall plan runs/lcron --grid retrieval=50,100,200,400 --grid ranking=10,20 --json
    """
    result: PlanResult = call()
    terminal.print_warnings(result.warnings)
    if as_json:
        terminal.print_json(result.to_json())
        return
    from rankfall.reporting.diagnosis import plan_blocks
    from rankfall.studies.plan.plan_result import PLAN
    from rankfall.training.run_directory import REPORT

    run, out, chosen = call["run"], call["out"], result.chosen
    terminal.print_result(plan_blocks(result))
    quotas = " ".join(chosen.train_overrides)
    terminal.print_result(
        f"measure: rankfall evaluate {shlex.join([str(run), *chosen.train_overrides, *result.overrides])}"
    )
    terminal.print_result(f"train:   rankfall train {run / 'config.yaml'} {quotas} --out NEW")
    terminal.print_result(f"export:  rankfall export {run} {' '.join(chosen.export_options)} --out BUNDLE")
    page = f" and {run / REPORT}" if out is None else ""
    terminal.print_message(f"wrote {(out or run) / PLAN}{page}")


@verb(api.report, directory={"argument": "RUN_OR_DIR"})
def report(call: Call) -> None:
    """Write a report of a run, a comparison or a stream as one HTML file.

    The file is self-contained. The page of a cascade begins with its funnel: what each stage kept and lost. Metrics
    with intervals, what to do next, the diagnosis, the plan of the quotas and the course of training follow. That of a
    comparison shows the funnels of all methods side by side, intervals, tests and chosen settings, that of a stream
    also the curves and the table of all days.

    Options:
        directory: Directory of a run, of a comparison, or of a stream.
        out: Output file. Default: report.html in that directory.

    Examples:
        rankfall report runs/first
        rankfall report runs/first --out first.html
        rankfall report recflow-like --out recflow-like.html
        rankfall report recflow-like --figures figures
    """
    figures: Path | None = call.given.pop("figures", None)
    terminal.print_message(f"wrote {call()}")
    terminal.write_page_figures(call["directory"], figures, trust=call["trust"], verify=call["verify"])
