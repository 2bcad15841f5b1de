"""``--check`` and ``--skip-bad``: the problems of raw data, as a table or as JSON."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.options import MAX_NUMBER, out_option
from rankfall.commands.terminal import print_json, print_message, print_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from rankfall.data.sources.problems import DataCheck, Problem

OutUnlessChecked = Annotated[Path | None, out_option(show_default="required without --check")]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Read everything, write nothing, and list every problem with its number and first places. The exit code "
        "is 1 if one of them is an error.",
    ),
]
SkipBad = Annotated[
    int | None,
    typer.Option(
        "--skip-bad",
        min=0,
        max=MAX_NUMBER,
        metavar="N",
        help="Drop bad rows, at most N, and report them; requests whose rows contradict each other are dropped as a "
        "whole. With more bad rows nothing is written.",
        show_default="a bad row is an error",
    ),
]


def required_out(out: Path | None) -> Path:
    """Return the directory of ``--out``; without ``--check`` it must be given."""
    if out is None:
        raise typer.BadParameter("missing; it is required without --check", param_hint="--out")
    return out


def report_check(check: DataCheck, *, as_json: bool) -> None:
    """Print the problems of raw data, and exit with code 1 if one of them is an error."""
    if as_json:
        print_json(check.to_json())
    elif check.problems:
        print_result(problems_table(check.problems, f"{check.rows:,} rows"))
    else:
        print_result(f"{check.rows:,} rows, no problem found")
    if not as_json:
        print_message(f"errors: {len(check.errors)}, warnings: {len(check.warnings)}; nothing was written")
        if columns := ", ".join(check.without_numbers):
            print_message(f"missing: indicator for {columns} in the spec keeps rows without these numbers")
        if check.can_be_skipped:
            otherwise = "otherwise, " if columns else ""
            print_message(
                f"{otherwise}--skip-bad {check.bad_rows} drops {check.bad_rows:,} bad rows and prepares the others"
            )
    if check.errors:
        raise typer.Exit(1)


@contextmanager
def showing_problems() -> Iterator[None]:
    """Print the problems of raw data on standard error if there are more than ``--skip-bad`` allows."""
    from rankfall.data.sources.problems import TooManyBadError

    try:
        yield
    except TooManyBadError as error:
        for problem in error.check.errors:
            print_message(problem_line(problem))
        raise


def problems_table(problems: Sequence[Problem], title: str) -> Table:
    """Return a table of problems, one row each."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", show_lines=True)
    table.add_column("level")
    table.add_column("column", overflow="fold")
    table.add_column("problem", ratio=2)
    table.add_column("number", justify="right")
    table.add_column("first places", ratio=2, overflow="fold")
    table.add_column("--skip-bad drops")
    for problem in problems:
        table.add_row(
            problem.level,
            escape(problem.column or ""),
            escape(problem.problem),
            problem.number,
            escape("\n".join(map(str, problem.places))),
            _dropped(problem),
        )
    return table


def _dropped(problem: Problem) -> str:
    if problem.level == "warning":
        return ""
    dropped = {"row": "the row", "request": "the whole request", "line": "the line", None: "nothing"}
    return dropped[problem.dropped]


def problem_line(problem: Problem) -> str:
    """Return a problem as one line."""
    where = "" if problem.column is None else f"column {problem.column!r}: "
    first = f" ({'; '.join(map(str, problem.places))})" if problem.places else ""
    return f"{where}{problem.problem}: {problem.number}{first}"


def skipped_lines(skipped: dict[str, Any]) -> Iterator[str]:
    """Yield what was dropped while a log was prepared, from its manifest: the sum first, then each problem."""
    from rankfall.data.sources.problems import Problem

    requests = f", {skipped['requests']:,} requests among them as a whole" if skipped["requests"] else ""
    yield f"skipped: {skipped['rows']:,} bad rows{requests}"
    for content in skipped["problems"]:
        yield f"skipped: {problem_line(Problem.from_json(content))}"
