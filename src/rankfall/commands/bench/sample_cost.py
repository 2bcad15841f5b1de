"""``rankfall bench samples``: what recording costs a service."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall.commands.bench.bench_options import ITEMS, BundlePath, Items, KeepBundles, need_serving, serving_bundles
from rankfall.commands.bench.bench_tables import format_time, setting_table
from rankfall.commands.options import MAX_SECONDS, AsJson, finite
from rankfall.commands.terminal import examples, print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from rankfall.benchmarks.serving.sample_bench import Report, Row

EXAMPLES = examples("rankfall bench samples --keep bundles", "rankfall bench samples bundle --seconds 5 --json")


def samples(
    bundle: BundlePath = None,
    items: Items = ITEMS,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, callback=finite, help="Duration of each turn in seconds.")
    ] = 3.0,
    keep: KeepBundles = None,
    as_json: AsJson = False,
) -> None:
    """Measure what recording samples costs a service: latency and CPU time per request.

    Three services of the same bundle run at the same time: without samples, with a tenth of all requests sampled, and
    with all of them. Their turns alternate: 1 and 8 clients that wait for their answers, and requests at random times
    at half the largest rate of the service without samples.
    """
    need_serving()
    from rankfall.benchmarks.serving.sample_bench import measure, steps

    with serving_bundles([bundle], items, keep) as (path,):
        print_message(f"measuring services with {path}")
        with progress() as bar:
            task = bar.add_task("loading", total=steps())
            report = measure(path, seconds=seconds, report=lambda done: bar.update(task, advance=1, description=done))
    if as_json:
        print_json({"what": "samples", **asdict(report)})
    else:
        _show(report)


def _show(report: Report) -> None:
    print_result(f"{report.bundle}: {report.items:,} items; times in ms\n")
    rows = sorted(report.rows, key=lambda row: (not row.clients, row.clients))
    table = setting_table("load, share of sampled requests", "requests/s", "p50", "p99", "CPU per request", "dropped")
    for row in rows:
        times = map(format_time, (row.call_ms.p50, row.call_ms.p99, row.cpu_ms))
        table.add_row(_setting(row), f"{row.requests_per_second:,.0f}", *times, f"{row.dropped:,}")
    print_result(table)
    ratios = setting_table("\nratio to no samples, 95 % interval", "\np50", "\np99", "\nCPU per request")
    for row in rows:
        if row.share is not None:
            ratios.add_row(_setting(row), *("" if one is None else str(one) for one in (row.p50, row.p99, row.cpu)))
    print_result(ratios)


def _setting(row: Row) -> str:
    load = f"{row.clients} clients" if row.clients else "half the largest rate"
    return f"{load}, {'no samples' if row.share is None else f'{row.share:.0%}'}"
