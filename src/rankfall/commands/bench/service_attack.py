"""``rankfall bench attack``: honest requests to a service while it is attacked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall._suggestions import did_you_mean
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
    from rankfall.benchmarks.serving.attack_bench import AttackRow, Honest, Memory, Report

EXAMPLES = examples(
    "rankfall bench attack --keep bundles",
    "rankfall bench attack bundle --minutes 1 --window 10 --kind pipelining --kind slow-clients",
    "rankfall bench attack bundle --json > attack.json",
)


def attack(
    bundle: BundlePath = None,
    minutes: Minutes = 10.0,
    window: Annotated[
        float, typer.Option(min=0.5, max=MAX_SECONDS, callback=finite, help="Seconds of one window under attack.")
    ] = 60.0,
    rate: Rate = 0.3,
    kind: Annotated[
        list[str] | None, typer.Option(help="Kind of attack; can be repeated.", show_default="all kinds")
    ] = None,
    cpu: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="CPU time of the attacker: at most this share of one core.")
    ] = 0.25,
    memory_limit: Annotated[
        float,
        typer.Option(
            min=1.0, max=MAX_NUMBER, callback=finite, help="Megabytes of the service; it is killed if it uses more."
        ),
    ] = 2048.0,
    items: Items = ITEMS,
    keep: KeepBundles = None,
    as_json: AsJson = False,
) -> None:
    """Attack a service on this machine beside honest requests, and compare their latency with that of quiet windows.

    Kinds: duplicate-keys, pipelining, slow-clients, huge-bodies, malformed-http, connection-flood, bad-bundles. Quiet
    windows and windows under attack alternate; quiet ones are half as long. Every honest answer is compared with that
    of the bundle. At the end the service receives SIGTERM under attack. The bundle is copied before it is damaged. The
    exit code is 1 if an answer was wrong, an honest request failed, more than 1 % of them were refused, the service
    ended, used too much memory, responded more than 5 s after an attack or ended more than 30 s after SIGTERM, or
    returned what an attack must not get.
    """
    need_serving()
    from rankfall.benchmarks.serving import attack_bench as attacking
    from rankfall.benchmarks.serving.attacks.attack_kinds import KINDS

    for one in kind or ():
        if one not in KINDS:
            message = f"found {one!r}{did_you_mean(one, KINDS)}; allowed are {', '.join(KINDS)}"
            raise typer.BadParameter(message, param_hint="--kind")
    settings = attacking.Settings(
        minutes=minutes,
        window=min(window, minutes * 60),
        rate=rate,
        kinds=tuple(kind or KINDS),
        memory_limit=memory_limit,
        cpu_share=cpu,
    )
    with serving_bundles([bundle], items, keep) as (path,), progress() as bar:
        task = bar.add_task("loading", total=None)
        report = attacking.measure(
            path,
            settings,
            on_step=lambda step, done, total: bar.update(task, description=step, completed=done, total=total),
        )
    print_trial("attack", report, _show, as_json=as_json)


# --- tables -------------------------------------------------------------------------------------------------------


def _show(report: Report) -> None:
    rate = f"{report.requests_per_second:,.0f} of {report.largest_rate:,.0f} requests/s"
    print_result(f"{report.bundle}: honest requests at {rate}, the largest rate; times in ms\n")
    table = setting_table(
        "honest requests", "seconds", "p50", "p99", "slowest", "answered", "refused", "failed", "wrong"
    )
    for when, of in (("quiet", report.quiet), ("under attack", report.attacked)):
        if of is not None:
            table.add_row(when, *_honest_cells(of))
    print_result(table)
    print_result("")
    print_result(line_table(_lines(report)))
    print_result("")
    attacks = setting_table("attack", "attempts", "connections", "requests", "MB sent", "MB read")
    attacks.add_column("responses", header_style="dim")
    for row in report.attacks:
        attacks.add_row(f"{row.kind}: {row.name}", *_attack_cells(row))
    print_result(attacks)


def _honest_cells(of: Honest) -> list[str]:
    counts = of.answered, of.refused, of.failed, of.verdicts.get("wrong", 0)
    times = map(format_time, (of.p50, of.p99, of.slowest))
    return [f"{of.seconds:,.0f}", *times, *(f"{count:,}" for count in counts)]


def _attack_cells(row: AttackRow) -> list[str]:
    counts = [f"{count:,}" for count in (row.attempts, row.connections, row.requests)]
    megabytes = [f"{size / 1e6:,.1f}" for size in (row.sent_bytes, row.received_bytes)]
    return [*counts, *megabytes, ", ".join(f"{code} {count:,}" for code, count in row.responses.items())]


def _lines(report: Report) -> dict[str, str]:
    lines = {}
    if report.attacked is not None and report.p99_ratio is not None:
        lines["p99 under attack / quiet"] = f"{report.p99_ratio:.2f}"
        lines["load generator"] = (
            f"sent up to {format_time(report.quiet.late)} ms late, {format_time(report.attacked.late)} ms under attack"
        )
    lines["memory of the service"] = "not available" if report.memory is None else _memory(report.memory)
    lines["CPU of the service"] = (
        f"{_cpu(report, attacked=False)} of a core, {_cpu(report, attacked=True)} under attack"
    )
    lines["CPU of the attacker"] = f"{report.attacker_cpu:.0%} of a core"
    most = max(one.load_average for one in report.windows)
    lines["load average of the machine"] = f"at most {most:.1f} on {os.cpu_count()} cores"
    lines["log of the service"] = f"{report.log_bytes / 1e6:,.2f} MB, {report.tracebacks:,} tracebacks"
    lines["first response after an attack"] = f"{report.recovery_seconds:.1f} s"
    ended = "it was killed, or had ended before" if report.end_seconds is None else f"{report.end_seconds:.1f} s"
    lines["SIGTERM to the end"] = ended
    return lines


def _memory(memory: Memory) -> str:
    whole = f"{memory.start:,.0f} MB at the start, at most {memory.most:,.0f}, {memory.end:,.0f} at the end"
    without = f"{memory.start_without_files:,.0f}, {memory.most_without_files:,.0f}, {memory.end_without_files:,.0f}"
    return f"{whole}; without mapped files {without}"


def _cpu(report: Report, *, attacked: bool) -> str:
    """Return the mean CPU time of the service as a share of one core."""
    shares = [one.service_cpu for one in report.windows if one.attacked == attacked and one.service_cpu is not None]
    return f"{sum(shares) / len(shares):.0%}" if shares else "unknown"
