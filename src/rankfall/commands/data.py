"""``rankfall data``: show the content of prepared data and warnings about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rankfall.commands.options import AsJson, noting
from rankfall.commands.prepare import lists_table, skipped_lines
from rankfall.commands.terminal import examples, print_json, print_result, progress

EXAMPLES = examples(
    "rankfall data log",
    "rankfall data log --days 2024-01-13..2024-01-19",
    "rankfall data log --verify --json",
    "rankfall data mslr",
)


def data(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="An impression log, or ranking data of 'prepare letor'.", show_default=False
        ),
    ],
    days: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DAY or FIRST..LAST", help="Only these days of a log (repeatable).", show_default="all days"
        ),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Compare all files with their checksums first, or none.",
            show_default="each file when it is read",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the content of prepared data, and warn about common mistakes.

    For an impression log: days, stages, labels, features and behaviour sequences, then warnings with the days, features
    and figures concerned. Warnings do not change the exit code; data that cannot be read are an error. For ranking
    data: its splits, and warnings about lists from which nothing can be learned or measured.
    """
    from rankfall.data.impressions.log import is_log
    from rankfall.data.lists.ranking_data import is_prepared

    if is_log(path):
        with noting():
            _log(path, days, verify=verify, as_json=as_json)
    elif is_prepared(path):
        if days:
            raise typer.BadParameter(f"{path} is ranking data, which has no days", param_hint="--days")
        with noting():
            _ranking_data(path, verify=verify, as_json=as_json)
    else:
        raise ValueError(
            f"path: {path} {_described(path)}; expected an impression log (see 'rankfall prepare' and 'rankfall "
            "simulate') or ranking data (see 'rankfall prepare letor')"
        )


def _described(path: Path) -> str:
    if not path.is_dir():
        return "is a file" if path.exists() else "does not exist"
    if not (path / "manifest.json").exists():
        return "is an unfinished log" if (path / "days").is_dir() else "has no manifest.json"
    return "has a damaged manifest.json, or one of another format"


def _ranking_data(path: Path, *, verify: bool | None, as_json: bool) -> None:
    from rankfall.data.inspect.checks import find_list_warnings as find_warnings
    from rankfall.data.lists.ranking_data import RankingData
    from rankfall.reporting.inspection_tables import terminal_warnings

    ranking_data = RankingData.load(path, verify=verify)
    warnings = find_warnings(ranking_data)
    if as_json:
        print_json({**ranking_data.manifest, "warnings": [asdict(warning) for warning in warnings]})
    else:
        print_result(lists_table(ranking_data.manifest, path))
        print_result(terminal_warnings(warnings))


def _log(path: Path, days: list[str] | None, *, verify: bool | None, as_json: bool) -> None:
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.inspect import inspect

    log = ImpressionLog.load(path, verify=verify)
    chosen = log.choose(days) if days else list(log.days.values())
    with progress() as bar:
        task = bar.add_task("days", total=len(chosen))
        inspection = inspect(log, days=chosen, on_day=lambda _: bar.advance(task))
    if as_json:
        print_json(inspection.to_json())
        return
    from rankfall.reporting.inspection_tables import terminal_inspection

    for part in terminal_inspection(inspection):
        print_result(part)
    if inspection.skipped:
        for line in skipped_lines(inspection.skipped):
            print_result(line)
