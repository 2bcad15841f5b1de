"""Columns of features and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.data.sources.draft.column_facts import share
from rankfall.data.sources.draft.column_words import CATEGORY, ID, SEQUENCE, words

if TYPE_CHECKING:
    from rankfall.data.sources.draft.column_facts import ColumnFacts
    from rankfall.data.sources.draft.evidence import Evidence


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
        elif facts.kind == "text" and SEQUENCE & set(words(facts.name)) and " " in facts.examples[0]:
            seen.set(facts.name, "ignore", "medium", "text of several values; a sequence needs a column of lists")
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
