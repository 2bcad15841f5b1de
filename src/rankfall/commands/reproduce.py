"""``rankfall reproduce``: a published table or figure, run on the data at hand, beside its figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from rankfall._files import write_file
from rankfall.commands.pictures import draw
from rankfall.commands.terminal import (
    Folded,
    examples,
    fail_for,
    interruptible,
    json_text,
    note,
    progress,
    say,
    show,
    show_json,
)

if TYPE_CHECKING:
    from rankfall.reproductions.datasets import Origin
    from rankfall.reproductions.registry import Experiment
    from rankfall.reproductions.task import Report, Sheet

EXAMPLES = examples(
    "rankfall reproduce --list",
    "rankfall reproduce arf-table2 --quick",
    "rankfall reproduce lambdaloss-table1 --data MSLR-WEB30K --out reproduced/lambdaloss",
    "rankfall reproduce pirank-table1 --data mq2007",
    "rankfall reproduce lcron-table2 --quick",
    "rankfall reproduce dftopk-table1 --data prepared/recflow",
    "rankfall reproduce pirank-figure7 --json",
)
DEFAULT_OUT = Path("reproduced")


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which table or figure (see --list).", show_default=False)] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Say what each experiment shows and how long it takes.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="Lists: a benchmark in its published layout, a prepared directory, a file, or one of mslr_sample, "
            "mq2007, clueweb09 (under $RANKFALL_DATA), generated. Impressions: a prepared log, or RecFlow's directory.",
            show_default="lists: mslr_sample if it is there, else generated; impressions: a simulated platform",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute or two: few data, epochs and settings, one seed, no tuning.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Directory of results.", show_default="reproduced/NAME")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the data's samples and of the first training.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at the same time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json.")] = False,
) -> None:
    """Run a published table or figure and print what comes out beside what was published.

    The published numbers are from data that cannot be passed on: compare the order of methods and the gaps, not the
    numbers. DIR gets results.json, plots as PNG and SVG, and all runs; what is in DIR already is not run again.
    """
    if listing:
        _list(as_json)
        return
    experiment = _experiment(name)
    origin = _origin(experiment, data)
    out = out or DEFAULT_OUT / experiment.name
    out.mkdir(parents=True, exist_ok=True)
    say(f"{experiment.name} on {origin.name}{', quick' * quick}: {experiment.shows}")
    with interruptible(lambda: f"finished runs are kept in {out}; the same command goes on from there"):
        report = _run(experiment, origin, quick=quick, out=out, seed=seed, jobs=jobs)
    content = {"experiment": experiment.name, "paper": experiment.paper, "quick": quick, "seed": seed, **report.results}
    write_file(out / "results.json", json_text(content) + "\n")
    if as_json:
        show_json(content)
    else:
        _show(report)
    _save_plots(report, out)
    _end(report)


def _experiment(name: str | None) -> Experiment:
    from rankfall.reproductions.registry import find_experiment

    if name is None:
        raise typer.BadParameter("name an experiment, or give --list", param_hint="NAME")
    try:
        return find_experiment(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None


def _origin(experiment: Experiment, data: str | None) -> Origin:
    from rankfall.reproductions import datasets, logs

    try:
        return logs.find(data) if experiment.data == "impressions" else datasets.find(data)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None


def _run(experiment: Experiment, origin: Origin, *, quick: bool, out: Path, seed: int, jobs: int) -> Report:
    from rankfall.reproductions.task import FULL, QUICK, Task

    run = experiment.load()
    with progress() as bar:
        line = bar.add_task("preparing", total=None)
        return run(
            Task(
                out=out,
                origin=origin,
                size=QUICK if quick else FULL,
                seed=seed,
                jobs=jobs,
                progress=lambda what, done, total: bar.update(line, description=what, completed=done, total=total),
                on_notice=lambda text: note(bar, text),
            )
        )


def _show(report: Report) -> None:
    from rankfall.reporting.comparison_table import terminal_table

    for title, result in report.comparisons:
        _show_title(title)
        show(terminal_table(result))
    for sheet in report.sheets:
        _show_sheet(sheet)
    for words in (*_about_data(report), *report.notes):
        show(Text(f"\n{words}"))


def _about_data(report: Report) -> list[str]:
    return list(dict.fromkeys(one["data"]["about"] for one in _outcomes(report) if "data" in one))


def _outcomes(report: Report) -> list[dict[str, Any]]:
    """What came out, of each comparison if there are several."""
    return list(report.results.get("parts", {"all": report.results}).values())


def _show_title(title: str) -> None:
    """A table's own title would be folded to the width of the table."""
    show(Text(f"\n{title}", style="bold"))


def _show_sheet(sheet: Sheet, words: str = "") -> None:
    """A table; the column that is named in `words` may have several lines."""
    _show_title(sheet.title)
    table = Table(box=box.SIMPLE_HEAD)
    table.show_edge, table.pad_edge, table.padding = False, False, (0, 2, 0, 0)
    for number, column in enumerate(sheet.columns):
        table.add_column(column, style="cyan" if number == 0 else None, no_wrap=column != words)
    for row in sheet.rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    show(table if words else Folded(table))


def _save_plots(report: Report, out: Path) -> None:
    files = draw(report.plots, out)
    say(f"wrote {', '.join(file.name for file in (out / 'results.json', *files))} to {out}")


def _end(report: Report) -> None:
    fail_for([failure for one in _outcomes(report) for failure in one.get("comparison", {}).get("failed", [])])


def _list(as_json: bool) -> None:
    from dataclasses import asdict

    from rankfall.reproductions.registry import EXPERIMENTS, PAPERS

    if as_json:
        show_json([asdict(experiment) for experiment in EXPERIMENTS.values()])
        return
    from rankfall.reproductions.task import Sheet

    for kind, example in (("lists", "the MSLR sample"), ("impressions", "a simulated platform")):
        rows = [[one.name, one.shows, one.quick, one.full] for one in EXPERIMENTS.values() if one.data == kind]
        title = f"on {kind}, and about how long it takes on two cores with {example}"
        _show_sheet(Sheet(title, ["name", "shows", "--quick", "full"], rows), words="shows")
    show(Text("\n" + "\n".join(f"{paper}: {reference}" for paper, reference in PAPERS.items())))
