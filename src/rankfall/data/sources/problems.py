"""Problems of raw data: what is wrong, how often, and where first.

A check collects :class:`Findings` in any number of processes. Those of all parts are added in order, so that the first
places are the first ones of the data.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rankfall._config import Result
from rankfall._errors import RankfallError
from rankfall._tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Level = Literal["error", "warning"]
Unit = Literal["rows", "requests", "files", "columns", "lines", "queries", "days"]
Dropped = Literal["row", "request", "line"]
SHOWN_PLACES = 3


@dataclass(frozen=True)
class Place(Result):
    """A place with a problem.

    Args:
        file: The file.
        row: The row of the file, from 1; the header is not counted. None for a problem of the whole file.
        found: The wrong value, as text.
        request: The request that the row belongs to, if the problem is one of the request.
        line: The line of a file of ranking text, from 1.
    """

    file: str
    row: int | None = None
    found: str | None = None
    request: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """The place for messages and tables."""
        text = self.file if self.row is None else f"{self.file}, row {self.row}"
        if self.line is not None:
            text += f":{self.line}"
        if self.request is not None:
            text += f", request {self.request}"
        return text if self.found is None else f"{text}: {self.found}"


USE_MISSING = "`missing: indicator`"  # what keeps rows without the number of a feature


class Kind(NamedTuple):
    """A kind of problem in a column; findings of the same kind are counted together.

    `dropped` is what `skip_bad` drops because of it; None means that nothing can be dropped.
    """

    level: Level
    column: str | None
    problem: str
    unit: Unit
    dropped: Dropped | None = None


@dataclass(frozen=True)
class Problem(Result):
    """A problem of raw data: an error stops the preparation, a warning does not.

    Args:
        level: Whether the data cannot be prepared with it.
        column: The column that has it, if it is one of a column.
        problem: What was found, and what was expected.
        count: How often it was found.
        unit: What is counted.
        dropped: What ``--skip-bad`` drops because of it: the row, or the whole request if a row alone cannot be
            dropped. None if nothing can be dropped.
        places: The first places.
    """

    level: Level
    column: str | None
    problem: str
    count: int
    unit: Unit
    dropped: Dropped | None
    places: list[Place]

    @property
    def number(self) -> str:
        """The count with its unit, as text."""
        one = {"queries": "query"}.get(self.unit, self.unit.removesuffix("s"))
        return f"{self.count:,} {self.unit if self.count != 1 else one}"


@dataclass(frozen=True, repr=False)
class DataCheck(Tables, Result):
    """The result of a check of raw data.

    Args:
        rows: The number of rows that were read.
        problems: All problems, errors first.
        bad_rows: The number of rows that ``--skip-bad`` would drop, those of whole requests included.
    """

    rows: int
    problems: list[Problem]
    bad_rows: int = 0

    @property
    def errors(self) -> list[Problem]:
        """The problems with which the data cannot be prepared."""
        return [problem for problem in self.problems if problem.level == "error"]

    @property
    def without_numbers(self) -> list[str]:
        """The columns of features that lack numbers in some rows, for which dropping rows is not the only remedy."""
        return [problem.column or "" for problem in self.errors if USE_MISSING in problem.problem]

    @property
    def can_be_skipped(self) -> bool:
        """Whether there are errors, and dropping rows solves all of them."""
        return 0 < self.bad_rows < self.rows and all(problem.dropped is not None for problem in self.errors)

    @property
    def warnings(self) -> list[Problem]:
        """The problems that do not prevent the preparation."""
        return [problem for problem in self.problems if problem.level == "warning"]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `problems`, one per problem, with the first places as text."""
        return {"problems": [one.to_json() | {"places": "; ".join(map(str, one.places))} for one in self.problems]}


@dataclass
class Findings:
    """Problems that were found so far, and the rows that `skip_bad` would drop.

    Args:
        limit: The number of rows that are remembered for dropping; if there are more, they are only counted.
    """

    limit: int = 0
    found: dict[Kind, tuple[int, list[Place]]] = field(default_factory=dict)
    rows: dict[str, set[int]] = field(default_factory=dict)  # of each file: the indices of bad rows, from 0
    bad_rows: int = 0
    requests: int = 0  # that are dropped as a whole
    order: dict[str, int] = field(default_factory=dict)  # of files, if parts are not added in their order

    def add(self, kind: Kind, count: int, places: Iterable[Place]) -> None:
        """Count a problem."""
        before, known = self.found.get(kind, (0, []))
        if len(known) < SHOWN_PLACES or self.order:
            places = sorted([*known, *places], key=lambda place: (self.order.get(place.file, 0), place.row or 0))
            known = places[:SHOWN_PLACES]
        self.found[kind] = before + count, known

    def drop(self, file: str, rows: Iterable[int]) -> None:
        """Remember rows to be dropped, as far as the limit allows."""
        known = self.rows.setdefault(file, set())
        before = len(known)
        known.update(rows)
        self.bad_rows += len(known) - before
        if self.bad_rows > self.limit:
            known.clear()

    def merge(self, other: Findings) -> None:
        """Add the findings of the next part, whose rows are others."""
        for kind, (count, places) in other.found.items():
            self.add(kind, count, places)
        for file, rows in other.rows.items():
            self.rows.setdefault(file, set()).update(rows)
        self.bad_rows += other.bad_rows
        self.requests += other.requests
        if self.bad_rows > self.limit:
            self.rows.clear()

    def skipped(self, file: str) -> tuple[int, ...]:
        """Return the indices of the rows of a file to be dropped."""
        return tuple(sorted(self.rows.get(file, ())))

    def problems(self) -> list[Problem]:
        """Return all problems, errors first."""
        found = [
            Problem(kind.level, kind.column, kind.problem, count, kind.unit, kind.dropped, places)
            for kind, (count, places) in self.found.items()
        ]
        return sorted(found, key=lambda problem: problem.level)


class TooManyBadError(RankfallError):
    """More bad rows than `skip_bad` allows, or problems that no dropped row solves; `check` has all of them."""

    def __init__(self, message: str, check: DataCheck) -> None:
        super().__init__(message)
        self.check = check


_HINT = "\nThe option --check lists every problem of the "


@contextmanager
def pointing_to_check(what: str) -> Iterator[None]:
    """Add to errors of raw data how to find all of them; `what` has them."""
    try:
        yield
    except ValueError as error:
        raise RankfallError(f"{error}{_HINT}{what} at once") from None


def without_hint(error: ValueError) -> str:
    """Return the message of an error without what :func:`pointing_to_check` added, for commands without the option."""
    return str(error).partition(_HINT)[0]
