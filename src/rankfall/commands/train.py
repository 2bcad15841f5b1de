"""``rankfall train``, ``evaluate``, ``plan``, ``report``, ``compare``, ``tune`` and ``stream``: training runs."""

from __future__ import annotations

import os
import shlex
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rankfall import api
from rankfall._errors import is_expected
from rankfall.api.shared import Display
from rankfall.api.training import validation_texts
from rankfall.commands import terminal
from rankfall.commands.verb import Call, verb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from rankfall.api import TrainedRun
    from rankfall.studies.plan.plan_result import PlanResult


@verb(api.train, timeout={"min": 1})
def train(call: Call, as_json: bool = False) -> None:
    """Train a cascade on a log, or a ranker on prepared lists.

    A configuration with stages trains a cascade. The validation metric is computed after each epoch; training stops
    early when it has not improved for training.patience epochs. The best and the last weights are kept. The same
    configuration and data give the same weights, even after an interruption.

    Under torchrun several processes train together; each takes a share of every batch. If torchrun restarts them, they
    continue the run. With --engine ray, Ray starts and restarts the processes.

    Options:
        seed: Short for training.seed=N. Default: that of CONFIG.

    Examples:
        rankfall train config.yaml --out runs/first
        rankfall train config.yaml loss.name=lambda_loss loss.k=5 training.seed=1 --out runs/lambda
        rankfall train config.yaml 'data.train=[S2, S3, S4]' data.valid=S5 data.test=S1 --out runs/fold2
        torchrun --nproc-per-node 2 -m rankfall train config.yaml --out runs/first
        rankfall train config.yaml --engine ray --workers 8 --out runs/first
    """
    first, world = terminal.whole_number_of("RANK", 0) == 0, terminal.whole_number_of("WORLD_SIZE", 1)
    with _watched(call["out"], first=first, world=world) as (display, stop):
        run: TrainedRun = call(display, stop=stop)
    if not first:
        return
    if as_json:
        terminal.print_json(run.to_json())
    else:
        terminal.print_result(_table(run))
    terminal.print_warnings(run.warnings)


@contextmanager
def _watched(out: Path, *, first: bool, world: int) -> Iterator[tuple[Display, Callable[[], int]]]:
    """Context with progress and a function that returns a received signal. Errors are printed after the progress."""
    from rankfall.training.run_directory import Stopped

    display = Display(shown=first)

    def on_signal() -> None:
        if world == 1:
            display.note("stopping after this batch; press Ctrl-C again to stop at once")

    # torchrun terminates a process as soon as another one has ended, and does not wait long itself
    patient = world > 1
    with (
        terminal.interruptible(lambda: _kept_run(out)),
        terminal.stoppable(on_signal, patient=patient) as stop,
        _reported(world),
        display,
    ):
        try:
            yield display, stop
        except Stopped as stopped:
            if first:
                display.note(str(stopped))
            raise typer.Exit(128 + (stop() or signal.SIGTERM)) from None  # the convention of shells


@contextmanager
def _reported(world: int) -> Iterator[None]:
    """Print an error in the process that raised it, and in no other."""
    try:
        yield
    except (ValueError, OSError) as error:
        if world == 1 or not is_expected(error):
            raise
        from rankfall.training.distributed.group import LostError, PeerError

        rank = int(os.environ["RANK"])
        # two processes report a lost one, since that may be the first
        silent = rank > 1 if isinstance(error, LostError) else isinstance(error, PeerError)
        if rank == 0 or not silent:
            terminal.print_error(str(error))
        raise typer.Exit(1) from None


def _kept_run(out: Path) -> str:
    """Return a hint about what is left if the run was interrupted without a checkpoint."""
    from rankfall.training.run_directory import CONFIG

    if not (out / CONFIG).is_file():
        return "nothing was written"
    return f"the same command with --resume continues {out} from its last checkpoint, if there is one"


def _table(run: TrainedRun) -> Table:
    from rankfall.training.methods import method_of
    from rankfall.training.run_directory import read_config

    out, result = run.directory, run.result
    rows = [line.split() for line in validation_texts(run.best_validation(), run.metric)]
    rows = [[f"validation {name}", value] for name, value in rows]
    for labels, _ in filter(None, [method_of(read_config(out)).describe().get("labels")]):
        rows.append(["labels", labels])
    rows += [
        ["best epoch", f"{result.best_epoch} of {result.epochs}"],
        ["parameters", f"{result.parameters:,}"],
        ["seconds", f"{result.seconds:.1f}"],
        ["device", result.device],
    ]
    made = terminal.table(["", ""], rows, title=f"{out}", show_header=False)
    made.add_section()
    made.add_row("next", f"rankfall evaluate {out}")
    return made


# --- figures and pages of what was trained ----------------------------------------------------------------------------


@verb(api.evaluate, out={"show_default": "the directory of the run"})
def evaluate(call: Call, diagnose: bool = False, figures: Path | None = None, as_json: bool = False) -> None:
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


# --- several runs ---------------------------------------------------------------------------------------------------


@verb(api.compare, against={"metavar": "METHOD"})
def compare(call: Call, figures: Path | None = None, as_json: bool = False) -> None:
    """Train several methods on the same data, and test which are worse than the best one.

    A method is better than another if the difference is significant for other seeds and other queries (mixed model,
    5 %, Holm correction). With a single seed the table makes no such claim: use at least two, better five. --against
    names another reference than the best method.

    CONFIG is a training configuration with the additional keys methods, seeds and folds. All methods have the same
    seeds and folds, and are tuned with the same number of trials, on validation data only. Finished runs in the output
    directory are not repeated, so the same command continues an interrupted comparison. --json prints the content of
    comparison.json. If a run fails, the others are still reported and the exit code is 1.

    Examples:
        rankfall compare mq2007.yaml --out mq2007 --jobs 2
        rankfall compare mq2007.yaml --out mq2007 --engine ray
        rankfall compare mq2007.yaml --out mq2007 --against LambdaLoss
        rankfall compare mq2007.yaml --out mq2007 data.path=prepared/mq2007 seeds=[0,1,2]
        rankfall compare mq2007.yaml --out mq2007 --json | jq '.methods[].metrics["ndcg@10"].mean'
    """
    out = call["out"]
    with terminal.interruptible(lambda: _kept_runs(out)):
        result = call()
    if as_json:
        terminal.print_json(result.to_json())
    elif result.methods:
        from rankfall.reporting.comparison import comparison_blocks

        terminal.print_result(comparison_blocks(result))
    terminal.print_warnings(result.warnings)
    terminal.print_message(f"wrote {out}/comparison.json, .csv, .md, .yaml, values.parquet and report.html")
    terminal.write_page_figures(out, figures, verify=call["verify"])
    terminal.exit_for_failures(result.failed)


def _kept_runs(out: Path) -> str:
    """Return what an interrupted comparison leaves."""
    from rankfall.training.run_directory import is_finished

    runs = [run for run in (out / "runs").glob("*") if is_finished(run)]
    return f"{len(runs)} finished run{'s' * (len(runs) != 1)} kept in {out}/runs; the same command continues"


@verb(api.tune)
def tune(call: Call, as_json: bool = False) -> None:
    """Search hyperparameters with Optuna (TPE) by the validation metric.

    CONFIG is a training configuration with the additional keys search and trials. Test data are not read. A trial is
    pruned if it is below the median of the others after an epoch. The same command continues an interrupted search;
    several processes can work on one search. best.yaml is the configuration of the best trial. --json prints the
    content of trials.json. The exit code is 1 if no trial was completed.

    Options:
        seed: Random seed of the search; training.seed is that of the training runs.

    Examples:
        rankfall tune search.yaml --out searches/first
        rankfall tune search.yaml --out searches/first --trials 100 --jobs 2
        rankfall tune search.yaml --out searches/first --trials 100 --engine ray
        rankfall tune search.yaml training.epochs=3 --out searches/short --timeout 3600
        rankfall train searches/first/best.yaml --out runs/tuned
    """
    out = call["out"]
    in_this_process = (call["jobs"] or 1) == 1 and call["engine"] == "local"
    with terminal.stoppable_work(
        lambda: f"the same command continues the search in {out}",
        at_once=not in_this_process,  # processes end, and their trials are continued from their checkpoints
        note="stopping after this batch",
    ) as (display, stop):
        result = call(display, stop=stop)
    from rankfall.reporting.inspection import search_blocks, settings_text

    if as_json:
        terminal.print_json(result.to_json())
    else:
        terminal.print_result(search_blocks(result))
    files = ("trials.json", "best.yaml", "search.png", "search.svg")
    terminal.print_message(f"wrote {', '.join(name for name in files if (out / name).is_file())} to {out}")
    failed = [trial for trial in result.trials if trial.state == "failed"]
    for trial in failed:
        terminal.print_message(f"trial {trial.trial} failed ({settings_text(trial.settings)}): {trial.error}")
    if result.best is None:
        why = f"all {len(failed)} failed" if failed else "none was finished in time"
        terminal.print_error(f"{out}: no trial was completed, {why}")
        raise typer.Exit(1)
    terminal.print_message(f"next: rankfall train {out / 'best.yaml'} --out RUN")


@verb(
    api.stream,
    follow={"metavar": "LOG"},
    poll={"min": 0.1},
    bundles={"show_default": "none"},
    items={"metavar": "FILE"},
)
def stream(call: Call, figures: Path | None = None, as_json: bool = False) -> None:
    """Train day by day, and measure every method on each day before training on it.

    CONFIG describes a cascade, its days, and the methods and seeds to compare. The first day is trained on and not
    measured. --resume continues an interrupted stream with the same result, and includes days added to the log since.
    With --follow it waits for new days until SIGTERM or Ctrl-C. --json prints the content of stream.json. If a method
    fails or a bundle cannot be written, the rest is still reported and the exit code is 1.

    Options:
        follow: Train on this log, wait for its new days, and keep the weights after each day.

    Examples:
        rankfall stream stream.yaml --out streams/first
        rankfall stream stream.yaml --out streams/first data.days=2024-01-13..2024-01-20 seeds=[0,1,2]
        rankfall stream stream.yaml --out streams/first --resume
        rankfall stream stream.yaml --out streams/live --follow log --resume --bundles 3
    """
    from rankfall.training.run_directory import Stopped

    out = call["out"]
    continuation = f"the same command with --resume continues {out}"
    at_once = call["jobs"] > 1  # processes end, and their runs are continued from their checkpoints
    with terminal.stoppable_work(lambda: continuation, at_once=at_once) as (display, stop):
        try:
            result = call(display, stop=stop)
        except (Stopped, KeyboardInterrupt) as stopped:
            is_stopped = isinstance(stopped, Stopped)
            display.note(str(stopped) if is_stopped else f"interrupted: {continuation}")
            raise typer.Exit(128 + stop()) from None  # the convention of shells
    from rankfall.reporting.comparison import stream_blocks

    if as_json:
        terminal.print_json(result.to_json())
    else:
        terminal.print_result(stream_blocks(result))
    terminal.print_warnings(result.warnings)
    drawn = [name for name in ("stream.png", "stream.svg") if (out / name).is_file()]
    terminal.print_message(f"wrote {', '.join(['stream.json', 'stream.md', 'report.html', *drawn])} to {out}")
    terminal.write_page_figures(out, figures, verify=call["verify"])
    terminal.exit_for_failures([*result.failed, *result.refused])
