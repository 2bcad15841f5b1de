"""``rankfall join``: join what a service recorded to a log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import MAX_SECONDS, AsJson, finite
from rankfall.commands.terminal import examples, interruptible, print_json, print_message, print_result, stoppable

if TYPE_CHECKING:
    from rich.table import Table

    from rankfall.online.join_results import DayReport, JoinResult

EXAMPLES = examples(
    "rankfall join recorded --spec spec.yaml --items items.parquet --out log",
    "rankfall join recorded --spec spec.yaml --items items.parquet --out log --follow",
    "rankfall join replay --spec spec.yaml --out log --wait 0 --close --parity 1",
)


def join(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Directory that 'rankfall serve --samples' writes.", show_default=False),
    ],
    *,
    spec: Annotated[
        Path, typer.Option(help="Description of columns, stages and features, a YAML file.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="LOG", help="Log that gets the days; it is created if it is missing.", show_default=False),
    ],
    items: Annotated[
        Path | None, typer.Option(exists=True, help="A table with features of items.", show_default=False)
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(exists=True, help="A table with features of users that requests lack.", show_default=False),
    ] = None,
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="Time to wait for records after a day, such as 1h, 90m or 30s.")
    ] = "1h",
    close: Annotated[
        bool, typer.Option("--close", help="Close all days that have samples now, as at the end of a replay.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new records, and close days when these are complete.")
    ] = False,
    poll: Annotated[
        float,
        typer.Option(
            min=0.1, max=MAX_SECONDS, callback=finite, help="Seconds between checks for new records, with --follow."
        ),
    ] = 10.0,
    parity: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="Share of the requests that the bundles that answered them encode and score again; 0: none.",
        ),
    ] = 0.01,
    parity_limit: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="Share of these requests that may differ. They are set apart; more of them stop the day.",
        ),
    ] = 0.01,
    user_requests: Annotated[
        int, typer.Option(min=0, help="Largest number of requests of one user and day; further ones are set apart.")
    ] = 1_000,
    bundles: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            help="Directory in which bundles are searched that are not at their place any more.",
            show_default=False,
        ),
    ] = None,
    grow: Annotated[
        bool, typer.Option("--grow", help="Give new values of vocabularies ids of their own, behind the known ones.")
    ] = False,
    grow_limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Largest number of new values of a vocabulary and day, the most frequent ones.",
            show_default="a tenth of the vocabulary, at least 1,000",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join the samples and events of a service to a log, one closed day after the other.

    A day has the sampled requests of its date and their events, as far as they were received until --wait after its
    end. It is closed when a later record has been received, and is then appended to LOG as by 'rankfall prepare rows
    --append'. The same records give the same bytes, whenever they are joined. LOG.join, beside the log, has a report
    of each day. Requests and events that the log cannot have are set apart there, with the reason, and the day is
    closed without them. If what the log would have of more requests than --parity-limit allows differs from what a
    model received, the day is not closed.
    """
    if follow and close:
        raise typer.BadParameter("a day is closed at once, or when its records are complete", param_hint="--close")
    with (
        interruptible(lambda: f"the same command continues {out}"),
        Display() as display,
        stoppable(lambda: display.note("stopping; press Ctrl-C again to stop at once")) as stop,
    ):
        result = api.join(
            directory,
            out,
            spec=spec,
            items=items,
            users=users,
            wait=wait,
            close=close,
            follow=follow,
            poll=poll,
            parity=parity,
            parity_limit=parity_limit,
            user_requests=user_requests,
            bundles=bundles,
            grow=grow,
            grow_limit=grow_limit,
            progress=display.show,
            on_notice=display.note,
            on_day=lambda report: _show_day(report, display),
            stop=stop,
        )
    _print(result, out, as_json=as_json)


def _show_day(report: DayReport, display: Display) -> None:
    counts = f"{report.sampled:,} sampled requests, {report.items:,} items, {report.events:,} events"
    display.note(f"{report.day}: {counts}")
    for reason, count in report.apart.items():
        is_checked = reason.startswith("request: parity")
        share = f", {count / report.checked:.1%} of {report.checked:,} checked" if is_checked else ""
        example = report.apart_because[reason][0]
        display.note(f"{report.day}: set apart {count:,} ({reason}{share}), such as {example}")


def _print(result: JoinResult, out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
    elif result.days:
        print_result(_table(result))
    late = Counter(result.late)
    for report in result.days:
        if report.day in result.closed:
            late.update(report.late_requests)
    if late:
        days = ", ".join(f"{count:,} of {day}" for day, count in late.most_common(3))
        print_message(f"{sum(late.values()):,} requests came too late for their day: {days}")
    for day, why in result.waiting.items():
        print_message(f"{day} is open: {why}")
    print_message(f"closed {', '.join(result.closed) or 'no day'}; {out} has the log, {out}.join the reports")


def _table(result: JoinResult) -> Table:
    from rankfall.reporting.terminal import plain_table

    rows = result.tables()["days"]
    table = plain_table(gap=2)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "day" else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:,}" for value in row.values()))
    return table
