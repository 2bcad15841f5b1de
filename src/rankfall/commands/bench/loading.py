"""``rankfall bench loader``: loading of impressions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from rankfall.commands.bench.bench_options import Quick
from rankfall.commands.bench.bench_tables import claims_table, format_number
from rankfall.commands.options import AsJson
from rankfall.commands.terminal import print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from rankfall.benchmarks.loader_bench import Row


def loader(quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure how fast impressions are loaded.

    The loader runs in turns with a loop over requests, as in published code, and with a plain copy of the same
    file. All of them run on one thread.
    """
    import torch

    from rankfall.benchmarks import loader_bench

    print_message(f"measuring the loader: {loader_bench.SETTING}")
    seconds = 0.02 if quick else 1.0
    with progress() as bar:
        task = bar.add_task("writing a log", total=2)
        rows = loader_bench.sweep(
            seconds, quick=quick, report=lambda done: bar.update(task, advance=1, description=done)
        )
    claims = [] if quick else loader_bench.check_claims(rows)
    if as_json:
        header = {"what": "loader", "torch": torch.__version__, "threads": 1, "seconds_a_step": seconds}
        print_json(header | {"rows": [asdict(row) for row in rows], "must_show": [asdict(claim) for claim in claims]})
        return
    print_result(_loader_table(rows))
    if claims:
        print_result(claims_table(claims, "one thread, CPU time"))


def _loader_table(rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "impressions/s", "MB/s", "faster"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True, header_style="dim")
    for row in rows:
        numbers = (
            f"{row.impressions_per_second:,.0f}",
            f"{row.megabytes_per_second:,.0f}",
            format_number(row.faster, "x"),
        )
        table.add_row(row.name, *numbers)
    return table
