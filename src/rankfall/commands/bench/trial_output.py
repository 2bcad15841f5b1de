"""The output of trials: benchmarks that check requirements besides measuring."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import typer

from rankfall.commands.terminal import print_error, print_json

if TYPE_CHECKING:
    from collections.abc import Callable


class TrialReport(Protocol):
    """A dataclass with the results of a trial."""

    @property
    def problems(self) -> list[str]:
        """The violated requirements, one sentence each."""


Report = TypeVar("Report", bound=TrialReport)


def print_trial(what: str, report: Report, show: Callable[[Report], None], *, as_json: bool) -> None:
    """Print the results of a trial, then its problems on standard error.

    Args:
        what: Name of the trial in JSON.
        report: The results.
        show: Prints their tables.
        as_json: Print JSON instead of tables.

    Raises:
        typer.Exit: With code 1, if there are problems.
    """
    if as_json:
        print_json({"what": what, **asdict(cast("Any", report))})
    else:
        show(report)
    for problem in report.problems:
        print_error(problem)
    if report.problems:
        raise typer.Exit(1)
