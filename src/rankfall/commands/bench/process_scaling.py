"""``rankfall bench scaling``: training with several processes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rankfall.commands.bench.bench_options import Quick
from rankfall.commands.bench.bench_tables import column_table, format_number
from rankfall.commands.options import AsJson
from rankfall.commands.terminal import print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.benchmarks.scaling_bench import Row


def scaling(quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure training with one and with two processes.

    Every process has a batch of the same size. Times are wall times, so two idle cores are needed.
    """
    from rankfall.benchmarks import scaling_bench

    print_message(
        f"measuring training with {' and '.join(map(str, scaling_bench.PROCESSES))} processes: {scaling_bench.SETTING}"
    )
    with progress() as bar:
        task = bar.add_task("writing logs", total=scaling_bench.launches(quick=quick))
        rows = scaling_bench.sweep(quick=quick, report=lambda done: bar.update(task, advance=1, description=done))
    if as_json:
        print_json({"what": "scaling", "rows": [asdict(row) for row in rows]})
        return
    print_result(column_table(rows, SCALING_COLUMNS))


SCALING_COLUMNS: dict[str, Callable[[Row], str]] = {
    "tables": lambda row: f"{row.rows:,} {row.gradients}",
    "batch": lambda row: f"{row.processes} x {row.batch}",
    "step ms": lambda row: format_number(row.step_ms),
    "apart ms": lambda row: format_number(row.apart_ms),
    "impressions/s": lambda row: f"{row.impressions_per_second:,.0f}",
    "efficiency": lambda row: f"{row.efficiency:.0%}",
    "communication": lambda row: f"{row.communication:.0%}" if row.processes > 1 else "",
    "dense MB": lambda row: format_number(row.dense_mb),
    "sparse MB": lambda row: format_number(row.sparse_mb) if row.sparse_mb else "",
    "CPU": lambda row: f"{row.cpu:.0%}",
}
