"""``rankfall collect``, ``join`` and ``clean``: from what services recorded to a log, and what died processes left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Column, Table

from rankfall import api
from rankfall.api.shared import Display
from rankfall.commands import terminal
from rankfall.commands.verb import Call, verb

if TYPE_CHECKING:
    from rankfall.api import CleaningResult
    from rankfall.online.join_results import DayReport, JoinResult


@verb(api.collect, url={"argument": "URL"}, out={"argument": "DIR"})
def collect(call: Call, as_json: bool = False) -> None:
    """Write the samples and events that services sent to a broker to files.

    rankfall serve --samples URL sends them. DIR gets the files that rankfall serve --samples DIR writes. Messages are
    acknowledged after their records are on disk: the command can be killed and run again. With --follow it connects
    again if the broker was down. Messages that hold no records are counted, and kept in DIR/rejected.

    Options:
        out: Directory to write to; earlier files stay.
        follow: Wait for further messages until SIGTERM or Ctrl-C.

    Examples:
        rankfall collect nats://127.0.0.1:4222/shop records --follow
        rankfall collect kafka://127.0.0.1:9092/shop records
    """
    with terminal.stoppable_work(lambda: f"the same command continues {call['out']}") as (display, stop):
        result = call(display, stop=stop)
    if as_json:
        terminal.print_json(result.to_json())
    else:
        typer.echo(
            f"{result.samples:,} samples and {result.events:,} events of {result.messages:,} messages; "
            f"repeated: {result.repeated:,}, rejected: {result.rejected:,}, missed: {result.missed:,}"
        )
    terminal.print_message(f"wrote to {call['out']}")
    if stop() and not call["follow"]:
        raise typer.Exit(128 + stop())  # the convention of shells


@verb(
    api.join,
    directory={"argument": "DIR"},
    out={"metavar": "LOG"},
    wait={"metavar": "DURATION"},
    poll={"min": 0.1},
    bundles={"metavar": "DIR"},
)
def join(call: Call, as_json: bool = False) -> None:
    """Join the samples and events of a service to a log, day by day.

    A day has the sampled requests of its date and their events, as far as they were received until --wait after its
    end. It is closed when a later record has been received, and is then appended to LOG as by 'rankfall prepare rows
    --append'. The same records give the same bytes, whenever they are joined. LOG.join, beside the log, has a report
    of each day. Requests and events that the log cannot have are set apart there, with the reason, and the day is
    closed without them. If what the log would have of more requests than --parity-limit allows differs from what a
    model received, the day is not closed.

    Options:
        directory: Directory that 'rankfall serve --samples' writes.
        out: Log that gets the days; it is created if it is missing.
        close: Close all days that have samples now, as at the end of a replay.
        follow: Wait for new records, and close days when these are complete.

    Examples:
        rankfall join recorded --spec spec.yaml --items items.parquet --out log
        rankfall join recorded --spec spec.yaml --items items.parquet --out log --follow
        rankfall join replay --spec spec.yaml --out log --wait 0 --close --parity 1
    """
    out = call["out"]
    with terminal.stoppable_work(lambda: f"the same command continues {out}") as (display, stop):
        result: JoinResult = call(display, on_day=lambda report: _show_day(report, display), stop=stop)
    if as_json:
        terminal.print_json(result.to_json())
    elif result.days:
        terminal.print_result(_days_table(result.tables()["days"]))
    late = Counter(result.late)
    for report in result.days:
        if report.day in result.closed:
            late.update(report.late_requests)
    if late:
        days = ", ".join(f"{count:,} of {day}" for day, count in late.most_common(3))
        terminal.print_message(f"{sum(late.values()):,} requests came too late for their day: {days}")
    for day, why in result.waiting.items():
        terminal.print_message(f"{day} is open: {why}")
    terminal.print_message(f"closed {', '.join(result.closed) or 'no day'}; {out} has the log, {out}.join the reports")


def _show_day(report: DayReport, display: Display) -> None:
    counts = f"{report.sampled:,} sampled requests, {report.items:,} items, {report.events:,} events"
    display.note(f"{report.day}: {counts}")
    for reason, count in report.apart.items():
        is_checked = reason.startswith("request: parity")
        share = f", {count / report.checked:.1%} of {report.checked:,} checked" if is_checked else ""
        example = report.apart_because[reason][0]
        display.note(f"{report.day}: set apart {count:,} ({reason}{share}), such as {example}")
    terminal.print_warnings(filter(None, [report.warning()]))


def _days_table(rows: list[dict[str, Any]]) -> Table:
    columns = [name if name == "day" else f">{name}" for name in rows[0]]
    cells = [(value if isinstance(value, str) else f"{value:,}" for value in row.values()) for row in rows]
    return terminal.table(columns, cells, **terminal.PLAIN)


@verb(api.clean, directories={"argument": "DIR"})
def clean(call: Call, as_json: bool = False) -> None:
    """Remove temporary files and directories of processes that have died.

    Every command writes under hidden temporary names, such as .log.4fe2a90b.unfinished, and renames what is complete.
    Commands remove what an earlier one left beside their own output; this command removes it everywhere. Files of
    living processes are locked and stay. The earlier content of a directory is restored if a process died while it
    replaced that directory.

    Options:
        dry_run: Change nothing; print what would be done.

    Examples:
        rankfall clean
        rankfall clean runs prepared --dry-run
        rankfall clean --json
    """
    result: CleaningResult = call()
    if as_json:
        terminal.print_json(result.to_json())
    elif result.leftovers:
        terminal.print_result(_leftovers_table(result))
        count = sum(one.action == "removed" for one in result.leftovers)
        action = "would remove" if result.dry_run else "removed"
        terminal.print_message(f"{action} {count} leftover{'s' * (count != 1)}, {result.bytes:,} bytes")
    elif not result.failed:
        terminal.print_message("nothing to remove")
    for message in result.failed:
        terminal.print_error(message)
    if result.failed:
        raise typer.Exit(1)


def _leftovers_table(result: CleaningResult) -> Table:
    rows = [
        (str(one.path), f"{one.bytes:,}", one.action if one.action == "removed" else f"restored as {one.final.name}")
        for one in result.leftovers
    ]
    action = "would be" if result.dry_run else "was"
    return terminal.table([Column("leftover", overflow="fold"), ">bytes", action], rows, **terminal.PLAIN)
