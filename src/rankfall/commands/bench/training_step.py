"""``rankfall bench step``: a training step of LCRON with every operator."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rankfall.commands.bench.bench_options import Quick, StepSizes, parse_sizes
from rankfall.commands.bench.bench_tables import column_table, format_megabytes, format_number, format_share
from rankfall.commands.options import AsJson
from rankfall.commands.terminal import print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.benchmarks.step_bench import Row, WholeRow


def step(sizes: StepSizes = None, quick: Quick = False, as_json: AsJson = False) -> None:
    """Measure a training step.

    The step trains two stages with LCRON and each operator, in turns with binary cross entropy. The objective is
    measured alone first, then together with a two-tower model and a DIN. A batch has 128 lists of n items; batches
    of long lists have fewer lists where the cost grows with the square of n.
    """
    import torch

    from rankfall.benchmarks import step_bench

    chosen = parse_sizes(sizes) or (step_bench.QUICK_SIZES if quick else step_bench.SIZES)
    seconds = 0.02 if quick else 0.5
    print_message("measuring a training step of LCRON, forward + backward")
    with progress() as bar:
        batches = sum(len(step_bench.shapes(n)) for n in chosen)
        task = bar.add_task("starting", total=batches + len(step_bench.model_sizes(chosen)))

        def report(done: str) -> None:
            bar.update(task, advance=1, description=done)

        rows = step_bench.sweep(chosen, seconds, quick=quick, report=report)
        whole = step_bench.sweep_models(chosen, seconds, quick=quick, report=report)
    if as_json:
        header = {"what": "step", "torch": torch.__version__, "threads": torch.get_num_threads()}
        measured = {"rows": [asdict(row) for row in rows], "whole": [asdict(row) for row in whole]}
        print_json(header | {"seconds_a_step": seconds} | measured)
        return
    for n in chosen:
        print_result(f"\nthe objective alone, n = {n}")
        print_result(column_table([row for row in rows if row.n == n], STEP_COLUMNS))
    if whole:
        print_result("\nwith a two-tower model and a DIN")
        print_result(column_table(whole, WHOLE_COLUMNS))


STEP_COLUMNS: dict[str, Callable[[Row], str]] = {
    "objective": lambda row: row.name,
    "lists x n": lambda row: f"{row.lists} x {row.n}",
    "CPU ms": lambda row: row.left_out or format_number(row.cpu_ms),
    "+-": lambda row: format_share(row.spread),
    "all threads": lambda row: format_number(row.wall_ms),
    "ns/item": lambda row: format_number(row.ns_per_item),
    "/bce": lambda row: format_number(row.to_baseline),
    "growth": lambda row: "" if row.growth is None else f"n^{row.growth:.2f}",
    "MB": lambda row: format_megabytes(row.peak_mb),
}

WHOLE_COLUMNS: dict[str, Callable[[WholeRow], str]] = {
    "objective": lambda row: row.name,
    "lists x n": lambda row: f"{row.lists} x {row.n}",
    "CPU ms": lambda row: format_number(row.cpu_ms),
    "+-": lambda row: format_share(row.spread),
    "/bce": lambda row: format_number(row.to_baseline),
    "objective ms": lambda row: format_number(row.objective_ms),
    "share": lambda row: format_share(row.share),
}
