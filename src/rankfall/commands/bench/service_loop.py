"""``rankfall bench loop``: the cost of recording under load, and the loop while its processes are killed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from rankfall.commands.options import MAX_NUMBER, MAX_SECONDS, AsJson, finite
from rankfall.commands.terminal import examples, print_result, progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankfall.benchmarks.serving.attack_bench import Memory
    from rankfall.benchmarks.serving.bench_bundles import OnStep
    from rankfall.benchmarks.serving.loop.kill_trial import KillReport
    from rankfall.benchmarks.serving.loop.loop_bench import Measured, Report

EXAMPLES = examples(
    "rankfall bench loop --keep bundles",
    "rankfall bench loop bundle --minutes 1 --window 10 --samples /mnt/small-disk/records",
    "rankfall bench loop --kills 20",
)


def loop(
    bundle: BundlePath = None,
    minutes: Minutes = 10.0,
    window: Annotated[
        float, typer.Option(min=0.5, max=MAX_SECONDS, callback=finite, help="Seconds of a window with events.")
    ] = 60.0,
    rate: Rate = 0.6,
    events: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Events that clients report per answered request.")
    ] = 0.2,
    samples: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory in which the service records.", show_default="temporary"),
    ] = None,
    items: Items = ITEMS,
    keep: KeepBundles = None,
    kills: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_NUMBER,
            help="Kill service, joiner and trainer of a small loop so many times instead of measuring the load.",
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure the cost of recording samples and events under load, or kill the processes of the loop.

    Without --kills: windows without recording, with samples, and with samples and events alternate; those without
    events are a fifth as long. Every answer is compared with that of the bundle, and the records on disk with the
    answers and acknowledgements. The exit code is 1 if an answer or a sample was wrong, a request failed, or a sample
    or an event was dropped or lost.

    With --kills: a service, 'rankfall join --follow' and 'rankfall stream --follow' of a small log are killed with
    SIGKILL at random moments, under requests and events. Afterwards the joined log is compared with what the clients
    know, and with that of an undisturbed process. The exit code is 1 if they differ, except for samples that the
    service had not written when it was killed.
    """
    need_serving()
    if kills:
        print_trial("loop", _kill(kills), _show_kills, as_json=as_json)
        return
    from rankfall.benchmarks.serving.loop import loop_bench

    settings = loop_bench.Settings(minutes=minutes, window=min(window, minutes * 60), rate=rate, events=events)
    with serving_bundles([bundle], items, keep) as (path,), _steps() as on_step:
        report = loop_bench.measure(path, settings, on_step=on_step, samples=samples)
    print_trial("loop", report, _show_load, as_json=as_json)


def _kill(kills: int) -> KillReport:
    from rankfall.benchmarks.serving.loop.kill_trial import KillSettings, run_kills

    with _steps() as on_step:
        return run_kills(KillSettings(kills=kills), on_step=on_step)


@contextmanager
def _steps() -> Iterator[OnStep]:
    """Show the steps of a trial."""
    with progress() as bar:
        task = bar.add_task("loading", total=None)
        yield lambda step, done, total: bar.update(task, description=step, completed=done, total=total)


# --- tables -------------------------------------------------------------------------------------------------------


def _show_load(report: Report) -> None:
    rate = f"{report.requests_per_second:,.0f} of {report.largest_rate:,.0f} requests/s"
    print_result(f"{report.bundle}: {report.items:,} items, {rate}, the largest rate; times in ms\n")
    table = setting_table("recording", "seconds", "answered", "wrong", "p50", "p99", "CPU per request")
    for one in report.measured:
        table.add_row(one.kind, *_cells(one))
    print_result(table)
    ratios = setting_table("\nratio to off, 95 % interval", "\np50", "\np99", "\nCPU per request")
    for one in report.measured:
        if one.p50_ratio is not None:
            cells = ("" if ratio is None else str(ratio) for ratio in (one.p50_ratio, one.p99_ratio, one.cpu_ratio))
            ratios.add_row(one.kind, *cells)
    print_result(ratios)
    print_result("")
    print_result(line_table(_load_lines(report)))


def _cells(one: Measured) -> list[str]:
    of = one.requests
    times = map(format_time, (of.p50, of.p99, one.cpu_ms))
    return [f"{of.seconds:,.0f}", f"{of.answered:,}", f"{of.verdicts.get('wrong', 0):,}", *times]


def _load_lines(report: Report) -> dict[str, str]:
    records = report.records
    refused = ", ".join(f"{code}: {count:,}" for code, count in report.events_refused.items())
    lost = f"{records.lost_events:,} of the acknowledged ones are not on disk"
    took = f"acknowledged in {format_time(report.event_ms.p50)} / {format_time(report.event_ms.p99)} ms"
    return {
        "samples": f"{records.samples:,} on disk, {records.missing:,} missing, {records.repeated:,} repeated, "
        f"{records.wrong:,} wrong",
        "events": f"{report.events_acknowledged:,} {took}, {records.events:,} on disk, {lost}",
        "events refused": refused or "0",
        "records": f"{records.megabytes:,.1f} MB",
        "counters of the service": ", ".join(f"{name} {value:,.0f}" for name, value in report.counters.items()),
        **{f"memory, {kind}": _memory(memory) for kind, memory in report.memory.items()},
        "load average of the machine": f"{min(report.load_average):.1f} to {max(report.load_average):.1f} on "
        f"{os.cpu_count()} cores",
    }


def _memory(memory: Memory | None) -> str:
    if memory is None:
        return "not available"
    return f"{memory.start:,.0f} MB at the start, at most {memory.most:,.0f}, {memory.end:,.0f} at the end"


def _show_kills(report: KillReport) -> None:
    found = report.comparison
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in found.verdicts.items())
    kills = ", ".join(f"{name} {count} ({report.at_work[name]} at work)" for name, count in report.kills.items())
    same = "the same bytes" if report.same_bytes else f"differs in {len(report.different_files)} files"
    lines = {
        "kills": f"{kills}; the service was down for at most {report.down_seconds:.1f} s",
        "simulated days": f"{len(report.days)} joined, {report.bundles} bundles, {report.seconds:,.0f} s",
        "requests": f"{found.requests:,}, {found.repeated:,} after several attempts; answers: {verdicts}",
        "samples": f"{found.sampled:,} expected, {found.joined:,} joined, {found.lost:,} lost by kills, "
        f"{found.missing:,} missing, {found.twice:,} twice, {found.different:,} different",
        "events": f"{found.events:,} acknowledged, {found.joined_events:,} joined, {found.unsampled_events:,} of "
        f"requests that were not sampled, {found.kept_apart:,} kept apart, {found.lost_events:,} lost",
        "undisturbed join of the records": same,
        "late records": f"{report.late:,}",
        "load average of the machine": f"{report.load_average:.1f} on {os.cpu_count()} cores",
    }
    print_result(line_table(lines))
