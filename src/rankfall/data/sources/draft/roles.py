"""Roles of columns, and guesses of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from rankfall._suggestions import did_you_mean
from rankfall.data.sources.draft.column_words import CLICK, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Role = Literal[
    "request",
    "item",
    "user",
    "time",
    "day",
    "stage",
    "flag",
    "rank",
    "position",
    "label",
    "feedback",
    "sequence",
    "user_feature",
    "context_feature",
    "item_feature",
    "ignore",
]
Confidence = Literal["given", "high", "medium", "low"]
ROLES: tuple[Role, ...] = get_args(Role)
SINGLE: tuple[Role, ...] = ("request", "item", "user", "time", "day", "stage", "rank", "position", "label")


@dataclass(frozen=True, slots=True)
class Guess:
    """The role of a column.

    Attributes:
        column: Name of the column.
        role: Its role.
        confidence: How certain the guess is; ``given`` if the caller decided.
        why: What the role was guessed from.
    """

    column: str
    role: Role
    confidence: Confidence
    why: str


@dataclass
class Guesses:
    """The roles of all columns.

    Attributes:
        of: The guess of each column, in the order of the log.
        stages: Names of the stages in the order of the funnel, or the columns of flags; empty without a funnel.
        problems: What could not be decided, without which no log can be prepared.
        checks: What a person should look at.
    """

    of: dict[str, Guess] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)

    @property
    def relevant_stage(self) -> int:
        """The number of the stage from which on items are relevant, if there is no label: clicks, or the last one."""
        clicks = [number for number, stage in enumerate(self.stages) if CLICK & set(words(stage))]
        return clicks[0] if clicks and clicks[0] else len(self.stages) - 1

    def one(self, role: Role) -> str | None:
        """Return the column of a role, or None."""
        return next(iter(self.all(role)), None)

    def all(self, role: Role) -> list[str]:
        """Return all columns of a role."""
        return [column for column, guess in self.of.items() if guess.role == role]


def parse_given(given: Iterable[str], columns: Sequence[str]) -> dict[str, Role]:
    """Return the roles of columns from texts ``ROLE=COLUMN``.

    Raises:
        ValueError: If a role or column does not exist, or two columns have a role that one column has.
    """
    found: dict[str, Role] = {}
    for text in given:
        role, equals, column = text.partition("=")
        if not equals or role not in ROLES:
            raise ValueError(
                f"role: found {text!r}{did_you_mean(role, ROLES)}; expected ROLE=COLUMN with one of {', '.join(ROLES)}"
            )
        if column not in columns:
            raise ValueError(
                f"role: found no column {column!r}{did_you_mean(column, columns)}; the columns are {', '.join(columns)}"
            )
        if column in found:
            raise ValueError(f"role: found two roles of {column!r}, {found[column]} and {role}, expected one")
        found[column] = role
    for role in SINGLE:
        twice = [column for column, other in found.items() if other == role]
        if len(twice) > 1:
            raise ValueError(f"role: found {role}={twice[0]} and {role}={twice[1]}, expected one column")
    return found


def as_json(guess: Guess) -> dict[str, Any]:
    """Return a guess as JSON values."""
    return {"column": guess.column, "role": guess.role, "confidence": guess.confidence, "why": guess.why}
