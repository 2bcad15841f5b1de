"""``rankfall clean``: remove what processes left that have died."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankfall.commands.options import AsJson
from rankfall.commands.terminal import examples, print_error, print_json, print_message, print_result

if TYPE_CHECKING:
    from rich.table import Table

    from rankfall.storage.files import Leftover

EXAMPLES = examples("rankfall clean", "rankfall clean runs prepared --dry-run", "rankfall clean --json")


def clean(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR", help="Directories to search, with all subdirectories.", show_default="the current directory"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove temporary files and directories of processes that have died.

    Every command writes under hidden temporary names, such as .log.4fe2a90b.unfinished, and renames what is complete.
    Commands remove what an earlier one left beside their own output; this command removes it everywhere. Files of
    living processes are locked and stay. The earlier content of a directory is restored if a process died while it
    replaced that directory.
    """
    from rankfall.api import cleaning

    result = cleaning.clean(*(directories or ()), dry_run=dry_run)
    if as_json:
        print_json(result.to_json())
    elif result.leftovers:
        print_result(_table(result.leftovers, dry_run=dry_run))
        count = sum(one.action == "removed" for one in result.leftovers)
        verb = "would remove" if dry_run else "removed"
        print_message(f"{verb} {count} leftover{'s' * (count != 1)}, {result.bytes:,} bytes")
    elif not result.failed:
        print_message("nothing to remove")
    for message in result.failed:
        print_error(message)
    if result.failed:
        raise typer.Exit(1)


def _table(leftovers: list[Leftover], *, dry_run: bool) -> Table:
    from rich.text import Text

    from rankfall.reporting.terminal import plain_table

    table = plain_table(gap=2)
    table.add_column("leftover", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("would be" if dry_run else "was")
    for one in leftovers:
        action = one.action if one.action == "removed" else f"restored as {one.final.name}"
        table.add_row(Text(str(one.path)), f"{one.bytes:,}", Text(action))
    return table
