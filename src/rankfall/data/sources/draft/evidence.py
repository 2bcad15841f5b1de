"""What is known about the columns of a log while their roles are guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.data.sources.draft.roles import Guess, Guesses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.data.sources.draft.column_facts import ColumnFacts, Sample
    from rankfall.data.sources.draft.roles import Confidence, Role

CONSTANT = 0.98  # share of the values of a key in whose rows a column has one value: a few rows may be wrong


class Evidence:
    """Facts about columns, and the roles that were found so far.

    Args:
        sample: Rows and facts.
        given: Roles by column that are already decided.
    """

    def __init__(self, sample: Sample, given: Mapping[str, Role]) -> None:
        self.sample, self.frame, self.facts = sample, sample.frame, sample.facts
        self.guesses = Guesses()
        self.found: dict[str, Guess] = {}
        for column, role in given.items():
            self.set(column, role, "given", "--role")

    def set(self, column: str, role: Role, confidence: Confidence, why: str) -> None:
        """Set the role of a column."""
        self.found[column] = Guess(column, role, confidence, why)

    def column(self, role: Role) -> str | None:
        """Return the first column with a role, or None."""
        return next((column for column, guess in self.found.items() if guess.role == role), None)

    def free(self) -> list[ColumnFacts]:
        """Return the columns without a role."""
        return [facts for name, facts in self.facts.items() if name not in self.found]

    def is_constant(self, key: str | None, column: str) -> bool:
        """Return whether a column has one value per value of a key, with few exceptions."""
        return key is not None and self.sample.constancy(key).get(column, 0.0) >= CONSTANT

    def per_request(self, column: str) -> bool:
        """Return whether a column has one value per request. Prepared logs refuse a single exception."""
        request = self.column("request")
        return request is not None and self.sample.constancy(request, strict=True).get(column, 0.0) == 1.0

    def problem(self, role: Role, text: str, candidates: Sequence[str] = ()) -> None:
        """Note that a role cannot be decided, and which option decides it."""
        named = candidates[0] if candidates else "COLUMN"
        more = f" (candidates: {', '.join(candidates)})" if len(candidates) > 1 else ""
        self.guesses.problems.append(f"{role}: {text}; try --role {role}={named}{more}")
