"""Columns of features and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.data.sources.draft.column_facts import share
from rankfall.data.sources.draft.column_words import CATEGORY, DAY, ID, SEQUENCE, words

if TYPE_CHECKING:
    from rankfall.data.sources.draft.column_facts import ColumnFacts
    from rankfall.data.sources.draft.evidence import Evidence

_SEVERAL = 0.1  # share of different texts with a separator from which on a column has several values in one text


def guess_features(seen: Evidence) -> None:
    """Guess whether the remaining columns describe users, requests or items."""
    user, item = seen.column("user"), seen.column("item")
    for facts in seen.free():
        of_request = seen.per_request(facts.name)
        if facts.distinct == 1 and not facts.missing:
            seen.set(facts.name, "ignore", "high", f"always {facts.examples[0]}")
        elif facts.kind == "list":
            _guess_sequence(seen, facts, of_request=of_request)
        elif facts.kind == "time":
            seen.set(facts.name, "ignore", "medium", "another time; a feature {kind: time} can use a part of it")
        elif _are_dates(facts):
            seen.set(facts.name, "ignore", "medium", "dates; a model would not know those of tomorrow")
        elif facts.kind == "text" and (mark := _separator(seen, facts)):
            seen.set(facts.name, "ignore", "medium", f"several values in one text, separated by {mark!r}")
            seen.guesses.checks.append(
                f"{facts.name} has several values in one text, separated by {mark!r}, and is not used: a feature has "
                "one value, so add a column for each of the values that matter; a sequence needs a column of lists"
            )
        elif facts.kind == "text" and facts.distinct > 0.5 * len(seen.frame):
            seen.set(facts.name, "ignore", "medium", "text that is different in most rows")
        elif of_request and seen.is_constant(user, facts.name):
            seen.set(facts.name, "user_feature", "high", f"one value per {user}")
        elif of_request:
            seen.set(facts.name, "context_feature", "high", "one value per request")
        elif seen.is_constant(item, facts.name):
            seen.set(facts.name, "item_feature", "high", f"one value per {item}")
        else:
            seen.set(facts.name, "item_feature", "medium", f"differs within a request, and for one {item}")


def _separator(seen: Evidence, facts: ColumnFacts) -> str | None:
    """Return what separates the values of a text that has several of them, which occur in other texts, too."""
    values = seen.frame[facts.name].drop_nulls().unique()
    is_sequence = bool(SEQUENCE & set(words(facts.name)))
    for mark in ("|", ";", ",", " ") if is_sequence else ("|", ";", ","):
        parts = values.str.split(mark)
        if share(parts.list.len() > 1) < _SEVERAL:
            continue
        if mark == "|" or is_sequence or parts.list.explode().str.strip_chars().n_unique() < len(values):
            return mark
    return None


def _are_dates(facts: ColumnFacts) -> bool:
    """Return whether a column is called a day and has whole numbers such as 20240113."""
    first, last = 20_000_101, 20_991_231
    return facts.kind == "whole" and bool(DAY & set(words(facts.name))) and first <= facts.low <= facts.high <= last


def _guess_sequence(seen: Evidence, facts: ColumnFacts, *, of_request: bool) -> None:
    item = seen.column("item")
    assert item is not None
    elements = seen.frame[facts.name].explode().drop_nulls()
    known = seen.frame[item].unique()
    same = elements.dtype == known.dtype or (elements.dtype.is_integer() and known.dtype.is_integer())
    overlap = share(elements.is_in(known.cast(elements.dtype).implode())) if same else 0.0
    if of_request and overlap > 0.3:
        named = bool(SEQUENCE & set(words(facts.name)))
        seen.set(facts.name, "sequence", "high" if named else "medium", f"lists of values of {item}")
    else:
        seen.set(facts.name, "ignore", "low", "lists; see sequences in the reference")


def is_categorical(facts: ColumnFacts) -> bool:
    """Return whether a feature is a category rather than a quantity."""
    found = set(words(facts.name))
    if facts.kind in ("text", "truth"):
        return True
    return facts.kind == "whole" and (facts.distinct <= 12 or bool(found & (ID | CATEGORY)))
