"""``rankfall reproduce``: run a published table or figure, and show the result beside the published numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Column
from rich.text import Text

from rankfall import api
from rankfall.api.studies import DEFAULT_OUT, data_source
from rankfall.commands import terminal
from rankfall.commands.verb import Call, verb

if TYPE_CHECKING:
    from rankfall.api import ReproductionResult
    from rankfall.reproductions.data import DataSource
    from rankfall.reproductions.paper_schema import Reproduction
LISTED = {
    "lists": "on lists, with approximate times on two cores and the MSLR sample",
    "impressions": "on impressions, with approximate times on two cores and a simulated platform",
    "operators": "operators alone, without data, with approximate times on two cores",
    "none": "published numbers only, from online traffic that is not available",
}


@verb(api.reproduce, listing={"flag": "list"}, name={"argument": "NAME", "default": None}, methods={"metavar": "FILE"})
def reproduce(call: Call, listing: bool = False, as_json: bool = False) -> None:
    """Run a published table or figure, and print the result beside the published numbers.

    Methods are those of the paper, with its settings where the data allow them; differences are printed below the
    tables. The published numbers were measured on data that cannot be redistributed: compare the order of methods and
    the gaps between them, not the numbers. The output directory gets results.json, figures as PNG and SVG, and all
    runs; runs that exist are not repeated. --json prints the content of results.json.

    Options:
        listing: List all reproductions, what they show and how long they take.
        name: Name of a table or figure (see --list).
        quick: Run a reduced version: less data, fewer epochs and settings, one seed, in one or two minutes.
        methods: Also run methods of your own: a YAML file with their names and what they change, as in a comparison.

    Examples:
        rankfall reproduce --list
        rankfall reproduce arf-table2 --quick
        rankfall reproduce lambdaloss-table1 --data MSLR-WEB30K --out reproduced/lambdaloss
        rankfall reproduce pirank-table1 --data mq2007
        rankfall reproduce lcron-table2 --quick --methods mine.yaml
        rankfall reproduce dftopk-table1 --data prepared/recflow
        rankfall reproduce pirank-figure7 --json
    """
    if listing:
        _list(as_json)
        return
    reproduction = _reproduction(call["name"])
    source = _source(reproduction, call["data"])
    out = call["out"] or DEFAULT_OUT / reproduction.id
    where = "" if reproduction.data in ("operators", "none") else f" on {source.name}"
    terminal.print_message(f"{reproduction.id}{where}{', quick' * call['quick']}: {reproduction.shows}")
    if call["improved"] and not reproduction.has_improved:
        terminal.print_message(f"--improved changes nothing: {reproduction.id} has no improved versions of its methods")
    with terminal.interruptible(lambda: f"finished runs are kept in {out}; the same command continues from there"):
        result = call()
    if as_json:
        terminal.print_json(result.to_json())
    else:
        _show(result)
    files = ["results.json", *(f"{name}{ending}" for name in result.report.plots for ending in (".png", ".svg"))]
    terminal.print_message(f"wrote {', '.join(name for name in files if (out / name).is_file())} to {out}")
    terminal.exit_for_failures(result.failed)


def _reproduction(name: str | None) -> Reproduction:
    from rankfall.reproductions.catalogue import find_reproduction

    if name is None:
        raise typer.BadParameter("expected the name of a reproduction, or --list", param_hint="NAME")
    try:
        return find_reproduction(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None


def _source(reproduction: Reproduction, data: str | None) -> DataSource:
    try:
        return data_source(reproduction, data)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None


def _show(result: ReproductionResult) -> None:
    from rankfall.reporting.blocks import Text as BlockText
    from rankfall.reporting.comparison import comparison_blocks

    report = result.report
    for title, comparison in report.comparisons:
        terminal.print_result([BlockText(f"\n{title}", style="bold"), *comparison_blocks(comparison)])
    for sheet in report.sheets:
        terminal.print_result([sheet])
    data = dict.fromkeys(part["data"]["about"] for part in result.parts if "data" in part)
    for text in (*data, *report.notes):
        terminal.print_result(Text(f"\n{text}"))


def _list(as_json: bool) -> None:
    from rankfall.reproductions.catalogue import papers, reproductions

    listed = [
        {
            "name": one.id,
            "paper": one.paper,
            "shows": one.shows,
            "quick": one.time.quick,
            "full": one.time.full,
            "data": one.data,
            "improved": one.has_improved,
        }
        for one in reproductions().values()
    ]
    if as_json:
        terminal.print_json(listed)
        return
    for kind, title in LISTED.items():
        rows = [[f"{one[key]}" for key in ("name", "shows", "quick", "full")] for one in listed if one["data"] == kind]
        terminal.print_result(Text(f"\n{title}", style="bold"))
        names = ("name", "shows", "--quick", "full")
        columns = [Column(name, style="cyan" if name == "name" else "", no_wrap=name != "shows") for name in names]
        terminal.print_result(terminal.table(columns, rows, **terminal.PLAIN))
    terminal.print_result(Text("\n" + "\n".join(f"{paper.name}: {paper.reference}" for paper in papers())))
