"""Guess the role of each column of a log from its name, its values and which columns determine which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.data.sources.draft.evidence import Evidence
from rankfall.data.sources.draft.guess_features import guess_features
from rankfall.data.sources.draft.guess_funnel import (
    guess_labels,
    guess_places,
    guess_stages,
    ignore_conditions,
)
from rankfall.data.sources.draft.guess_keys import (
    check_keys,
    check_request,
    guess_item,
    guess_request,
    guess_user,
    ignore_empty_columns,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.data.sources.draft.column_facts import Sample
    from rankfall.data.sources.draft.roles import Guesses, Role


def guess_roles(sample: Sample, given: Mapping[str, Role]) -> Guesses:
    """Guess the role of each column of a sample: the keys first, since other roles depend on them.

    Args:
        sample: Rows and facts.
        given: Roles by column that are already decided.
    """
    seen = Evidence(sample, given)
    ignore_empty_columns(seen)
    guess_request(seen)
    guess_item(seen)
    if seen.column("request") and seen.column("item"):
        check_request(seen)
        guess_user(seen)
        guess_stages(seen)
        guess_labels(seen)
        guess_places(seen)
        ignore_conditions(seen)
        guess_features(seen)
        check_keys(seen)
    for name in seen.facts:
        if name not in seen.found:
            seen.set(name, "ignore", "low", "no role was found")
    seen.guesses.of = {name: seen.found[name] for name in seen.facts}
    return seen.guesses


def guess_table_columns(sample: Sample, guesses: Guesses, given: Mapping[str, Role]) -> None:
    """Guess the roles of columns that come from tables, after those of the log.

    Args:
        sample: Rows and facts, with the columns of the tables.
        guesses: The roles of the columns of the log, to which the others are added.
        given: Roles by column that are already decided.
    """
    seen = Evidence(sample, given)
    seen.guesses, seen.found = guesses, {**seen.found, **guesses.of}
    ignore_empty_columns(seen)
    guess_features(seen)
    guesses.of = {name: seen.found[name] for name in seen.facts}
