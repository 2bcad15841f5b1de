"""``rankfall bench prepare``: sample building with each engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall.commands.bench.bench_options import Quick
from rankfall.commands.bench.bench_tables import column_table, format_number
from rankfall.commands.options import MAX_NUMBER, AsJson
from rankfall.commands.terminal import print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.benchmarks.prepare_bench import Row


def prepare(
    rows: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_NUMBER, help="Number of rows of the raw log.", show_default="10 million"),
    ] = None,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Measure sample building.

    Runs `rankfall prepare rows` on a generated raw log with each installed engine, and reports wall time, CPU time
    and peak memory of all processes.
    """
    from importlib.util import find_spec

    from rankfall.benchmarks import prepare_bench

    count = rows or (prepare_bench.QUICK_ROWS if quick else prepare_bench.ROWS)
    engines = ["local", *(["ray"] if find_spec("ray") is not None else [])]
    print_message(f"measuring sample building: {count:,} rows, {prepare_bench.SETTING}")
    with progress() as bar:
        task = bar.add_task("writing a log", total=1 + len(engines))
        measured = prepare_bench.measure(
            engines, count, lambda done: bar.update(task, advance=1, description=f"{done}, measured")
        )
    if as_json:
        print_json({"what": "prepare", "rows": [asdict(row) for row in measured]})
        return
    print_result(column_table(measured, PREPARE_COLUMNS))


PREPARE_COLUMNS: dict[str, Callable[[Row], str]] = {
    "engine": lambda row: row.engine,
    "seconds": lambda row: format_number(row.seconds),
    "CPU seconds": lambda row: format_number(row.cpu_seconds),
    "rows/s": lambda row: f"{row.rows / row.seconds:,.0f}",
    "peak MB": lambda row: format_number(row.peak_mb),
    "processes": lambda row: "" if row.processes is None else str(row.processes),
    "same files": lambda row: "yes" if row.same else "NO",
}
