"""``rankfall simulate``: write the full-stage log of a simulated platform."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import MAX_NUMBER, AsJson, Force, Seed
from rankfall.commands.terminal import examples, print_json, print_result

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = examples(
    "rankfall simulate log --preset tiny",
    "rankfall simulate log --preset recflow-like --days 22 --requests-per-day 3000 --seed 1",
    "rankfall simulate log --preset recflow-like-3 --truth",
    "rankfall simulate clicks --preset recflow-like --relevant effective_view",
    "rankfall simulate RecFlow --preset recflow-like --layout recflow",
    "rankfall simulate ads --preset industry-hard",
    "rankfall simulate log --preset tiny --days 5 --append",
)


class Name(StrEnum):
    """The presets."""

    TINY = "tiny"
    RECFLOW = "recflow-like"
    RECFLOW_3 = "recflow-like-3"
    NOISY = "recflow-noisy"
    NOISY_3 = "recflow-noisy-3"
    EASY = "industry-easy"
    HARD = "industry-hard"
    CASCADE = "industry-cascade"


class Layout(StrEnum):
    """The format of the output."""

    RANKFALL = "rankfall"
    RECFLOW = "recflow"


def simulate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output directory.", show_default=False)],
    preset: Annotated[
        Name,
        typer.Option(
            help="The platform: tiny takes seconds; recflow-like has the stages and features of RecFlow for a "
            "cascade of two stages, recflow-like-3 for one of three; recflow-noisy and recflow-noisy-3 are the same "
            "with noisy early stages; industry-cascade has two stages and lists of 20; industry-easy and industry-hard "
            "have short lists of ads with statistics as features."
        ),
    ] = Name.TINY,
    days: Annotated[
        int | None, typer.Option(min=1, max=MAX_NUMBER, help="Number of days to simulate.", show_default="the preset's")
    ] = None,
    requests_per_day: Annotated[
        int | None, typer.Option(min=1, max=MAX_NUMBER, help="Number of requests per day.", show_default="the preset's")
    ] = None,
    seed: Seed = 0,
    layout: Annotated[
        Layout, typer.Option(help="An impression log for training, or RecFlow's files for 'rankfall prepare recflow'.")
    ] = Layout.RANKFALL,
    truth: Annotated[bool, typer.Option("--truth", help="Also write the true relevance of items.")] = False,
    relevant: Annotated[
        str | None,
        typer.Option(
            metavar="FEEDBACK",
            help="Feedback that makes an item relevant, such as effective_view.",
            show_default="reaching the last stage",
        ),
    ] = None,
    force: Force = False,
    append: Annotated[
        bool, typer.Option("--append", help="Append days to an existing log until it has --days in total.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a platform and write the full-stage log of its cascade.

    Interests of users drift, items are uploaded and expire, and an imperfect cascade serves requests day by day. The
    memory used does not grow with requests; it grows with days only by the data of items. A longer log begins with the
    same days as a shorter one.
    """
    _check_options(preset, layout, append=append, force=force, truth=truth, relevant=relevant)
    with Display() as display:
        log = api.simulate(
            out,
            preset.value,
            days=days,
            requests_per_day=requests_per_day,
            seed=seed,
            layout="recflow" if layout is Layout.RECFLOW else "rankfall",
            truth=truth,
            relevant=relevant,
            force=force,
            append=append,
            progress=display.show,
        )
    summary = log.to_json()
    if as_json:
        print_json(summary)
        return
    print_result(
        f"{out}: {preset.value}, {log.days} days, {log.impressions:,} impressions, {log.rows:,} rows, "
        f"{summary['megabytes']:,} MB, {summary['seconds']} s"
    )
    print_result(_stages(summary))


def _check_options(
    preset: Name, layout: Layout, *, append: bool, force: bool, truth: bool, relevant: str | None
) -> None:
    from rankfall.simulation.presets import preset_of

    if layout is Layout.RECFLOW and preset_of(preset.value).layout != "recflow":
        raise typer.BadParameter(f"--preset {preset.value} cannot be written with --layout recflow")
    if append and (force or truth or relevant or layout is Layout.RECFLOW):
        raise typer.BadParameter("--append cannot be combined with --force, --truth, --relevant or --layout recflow")
    if relevant and layout is Layout.RECFLOW:
        raise typer.BadParameter("--relevant is a part of the description of a log, which RecFlow's layout has not")


def _stages(summary: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("stage")
    table.add_column("rows logged", justify="right")
    table.add_column("per request", justify="right")
    if any("kept" in counts for counts in summary["stages"].values()):
        table.add_column("kept in impressions", justify="right")
        table.add_column("per request", justify="right")
    for name, counts in summary["stages"].items():
        cells = [text for count in counts.values() for text in (f"{count:,}", f"{count / summary['impressions']:.1f}")]
        table.add_row(name, *cells)
    return table
