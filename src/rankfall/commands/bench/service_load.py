"""``rankfall bench serve`` and ``rankfall bench soak``: the overhead of a service, and its correctness under load."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rankfall.commands.bench.bench_options import (
    ITEMS,
    BundlePath,
    Items,
    KeepBundles,
    Minutes,
    Rate,
    need_serving,
    serving_bundles,
)
from rankfall.commands.bench.bench_tables import format_time, line_table, setting_table
from rankfall.commands.bench.trial_output import print_trial
from rankfall.commands.options import MAX_SECONDS, AsJson, finite
from rankfall.commands.terminal import examples, print_json, print_message, print_result, progress

if TYPE_CHECKING:
    from rankfall.benchmarks.serving.serve_bench import Report, Row, Spread
    from rankfall.benchmarks.serving.soak_bench import Growth, Overload
    from rankfall.benchmarks.serving.soak_bench import Report as SoakReport

SERVE_EXAMPLES = examples("rankfall bench serve --keep bundles", "rankfall bench serve bundle --seconds 5 --json")
SOAK_EXAMPLES = examples("rankfall bench soak --keep bundles", "rankfall bench soak bundle newer-bundle --minutes 2")


def serve(
    bundle: BundlePath = None,
    items: Items = ITEMS,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, callback=finite, help="Duration of each turn in seconds.")
    ] = 3.0,
    keep: KeepBundles = None,
    as_json: AsJson = False,
) -> None:
    """Measure the overhead of a service over the bare calls of faiss and onnxruntime that it makes.

    `rankfall serve` runs in one process, a load generator in another: 1, 8 and 32 clients that wait for their answers,
    with 1 or 32 requests per call. Turns of the service alternate with the bare calls on the same requests. The service
    runs with one compute thread, as the bare calls do, and with its default. Then requests arrive at half the largest
    rate, at equal intervals and at random times. The simulated bundle has two stages, which keep 200 and 20 items, and
    sequences of up to 50 events; creating it takes a minute.
    """
    need_serving()
    from rankfall.benchmarks.serving.serve_bench import measure, promises, steps

    with serving_bundles([bundle], items, keep) as (path,):
        print_message(f"measuring a service with {path}")
        with progress() as bar:
            task = bar.add_task("loading", total=steps())
            report = measure(path, seconds=seconds, report=lambda done: bar.update(task, advance=1, description=done))
    checked = promises(report)
    if as_json:
        claims = [dict(zip(("promise", "target", "measured", "met"), claim, strict=True)) for claim in checked]
        print_json({"what": "serve", **asdict(report), "must_show": claims})
        return
    _show_serve(report)
    table = Table(title="\nclaims", title_justify="left")
    for column in ("claim", "target", "measured", ""):
        table.add_column(column)
    for claim, target, measured, met in checked:
        table.add_row(claim, target, measured, "[green]met[/]" if met else "[red]not met[/]")
    print_result(table)


def soak(
    bundle: BundlePath = None,
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="The bundle to swap it with.", show_default="a simulated one")
    ] = None,
    minutes: Minutes = 10.0,
    every: Annotated[
        float, typer.Option(min=0.5, max=MAX_SECONDS, callback=finite, help="Seconds between two swaps.")
    ] = 20.0,
    rate: Rate = 0.8,
    items: Items = ITEMS,
    keep: KeepBundles = None,
    as_json: AsJson = False,
) -> None:
    """Keep a service under load while bundles are swapped and invalid ones offered; then overload it threefold.

    Every answer is compared with that of the bundle it names. The exit code is 1 if a request failed or was refused, an
    answer was wrong, a valid bundle was refused or an invalid one taken, memory grew, a request under overload was
    neither answered nor refused by its deadline, or the load generator could not send all requests.
    """
    if (bundle is None) != (other is None):
        raise typer.BadParameter("expected two bundles, or none", param_hint="OTHER")
    need_serving()
    from rankfall.benchmarks.serving import soak_bench as soaking

    settings = soaking.Settings(minutes=minutes, every=every, rate=rate)
    with serving_bundles([bundle, other], items, keep) as (first, second), progress() as bar:
        task = bar.add_task("loading", total=None)
        report = soaking.soak(
            first,
            second,
            settings,
            on_step=lambda step, done, total: bar.update(task, description=step, completed=done, total=total),
        )
    print_trial("soak", report, _show_soak, as_json=as_json)


# --- tables -------------------------------------------------------------------------------------------------------


def _show_serve(report: Report) -> None:
    funnel = " -> ".join(f"{stage['name']} {stage['quota']}" for stage in report.stages)
    print_result(f"{report.bundle}: {report.items:,} items -> {funnel}; times in ms, p50 / p99\n")
    rows = setting_table(
        "threads, clients x requests", "requests/s", "per call", "over bare", "CPU per request", "over bare"
    )
    for row in report.rows:
        wall = f"{row.requests_per_second:,.0f}", _spread(row.call_ms), _share(row.overhead)
        rows.add_row(_setting(row), *wall, format_time(row.cpu_ms), _share(row.cpu_overhead))
    print_result(rows)
    names = list(report.rows[0].parts_ms)
    parts = setting_table("\nreported by the service", *(f"\n{name}" for name in names))
    for row in report.rows:
        parts.add_row(_setting(row), *(_spread(row.parts_ms[name]) for name in names))
    print_result(parts)
    parts_of_bare = list(report.bare[0].parts_ms)
    headings_of_bare = "requests/s", "per call", "CPU per request", "CPU", *parts_of_bare
    bare = setting_table("\nbare calls of", *(f"\n{heading}" for heading in headings_of_bare))
    for one in report.bare:
        cells = f"{one.requests_per_second:,.0f}", _spread(one.call_ms), format_time(one.cpu_ms), f"{one.cpu:.0%}"
        bare.add_row(str(one.batch), *cells, *(format_time(one.parts_ms[part]) for part in parts_of_bare))
    print_result(bare)
    print_result("")
    for half in report.half_rates:
        whose = "the bare calls" if half.threads is None else _count(half.threads)
        times = "equal intervals" if half.even else "random times"
        rate = f"{half.requests_per_second:,.0f} requests/s at {times}, half the largest rate of {whose}"
        print_result(f"at {rate}: {_spread(half.call_ms)}, p99 / p50 {half.tail:.1f}; {_late(half.late_ms)}")
    if report.score_all is not None:
        whole = report.score_all
        took = f"{whole.seconds:,.2f} s, {whole.cpu_seconds:,.2f} s of CPU time"
        print_result(f"the ranker on all {whole.items:,} items, for one request: {took}")


def _setting(row: Row) -> str:
    return f"{_count(row.threads)}, {row.clients} x {row.requests_in_call}"


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _show_soak(report: SoakReport) -> None:
    print_result(line_table(_soak_lines(report)))


def _soak_lines(report: SoakReport) -> dict[str, str]:
    swaps, memory, overload = report.swaps, report.memory, report.overload
    same, tied, wrong = (f"{report.verdicts.get(verdict, 0):,}" for verdict in ("same", "tied", "wrong"))
    bad = ", ".join(f"{what} {count}" for what, count in swaps.refused.items())
    lines = {
        "largest rate": f"{report.largest_rate:,.0f} requests/s",
        "load": f"{_sent(report)} for {report.minutes:g} minutes",
        "requests": f"{report.answered:,} answered, {report.refused:,} refused, {report.failed:,} failed",
        "answers": f"{same} identical, {tied} with different items of equal scores, {wrong} wrong",
        "per call": f"{_spread(report.call_ms)} ms, at most {report.slowest_ms:,.0f}; {_late(report.late_ms)}",
        "swaps": f"{swaps.taken}, each in at most {max(swaps.seconds, default=0.0):.1f} s",
        "invalid bundles refused": bad or "none was offered",
        "memory": "not available, or the test was too short",
    }
    if memory is not None:
        flat = "flat" if memory.flat else "not flat"
        lines["memory"] = f"{_growth(memory.whole)}; without mapped files {_growth(memory.without_files)}: {flat}"
    codes = ", ".join(f"{code}: {count:,}" for code, count in overload.codes.items())
    took = f"at most {overload.slowest_ms:,.0f} ms; {_late(overload.late_ms)}"
    lines["overload"] = f"{_sent(overload)}: {codes}; {took}"
    lines["after the overload"] = "works normally" if overload.well_after else "does not work normally"
    return lines


def _sent(load: SoakReport | Overload) -> str:
    """Return the rate that was sent and the rate that was due."""
    sent = f"{load.sent_per_second:,.0f} of {load.requests_per_second:,.0f} requests/s sent in time"
    return f"{sent}, {load.unsent:,} never sent" if load.unsent else sent


def _growth(memory: Growth) -> str:
    return f"{memory.megabytes:,.0f} MB, {memory.per_minute:+.2f} ± {memory.error:.2f} per minute"


def _late(milliseconds: float) -> str:
    """Return the delay of the load generator, which the service does not cause."""
    return f"sent up to {format_time(milliseconds)} ms late"


def _spread(times: Spread) -> str:
    return f"{format_time(times.p50)} / {format_time(times.p99)}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"
