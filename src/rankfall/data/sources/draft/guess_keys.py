"""Columns of requests, items, users and times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rankfall.data.sources.draft.column_facts import share
from rankfall.data.sources.draft.column_words import (
    DAY,
    LABEL,
    MOMENT,
    POSITION,
    RANK,
    SCORE,
    STAGE,
    funnel_place,
    key_match,
    words,
)
from rankfall.data.sources.draft.evidence import CONSTANT

if TYPE_CHECKING:
    from rankfall.data.sources.draft.column_facts import ColumnFacts
    from rankfall.data.sources.draft.evidence import Evidence
    from rankfall.data.sources.draft.roles import Confidence, Role


def ignore_empty_columns(seen: Evidence) -> None:
    """Set the role of columns that tell nothing: without values, with one value, or numbers of rows."""
    for facts in seen.free():
        if facts.kind == "empty":
            seen.set(facts.name, "ignore", "high", "no values")
        elif facts.kind == "other":
            seen.set(facts.name, "ignore", "high", f"type {seen.frame[facts.name].dtype} cannot be used")
        elif _is_index(seen, facts):
            seen.set(facts.name, "ignore", "high", "numbers the rows")
        elif _is_useless(seen, facts):
            seen.set(facts.name, "ignore", "high", f"always {facts.examples[0]}")


def _is_index(seen: Evidence, facts: ColumnFacts) -> bool:
    if facts.kind != "whole" or facts.missing or len(seen.frame) < 3:
        return False
    steps = seen.frame[facts.name].cast(pl.Int64).diff().drop_nulls()
    counts_up = facts.distinct == len(seen.frame) and share(steps == 1) > 0.99
    return counts_up and (facts.name.startswith("Unnamed") or facts.low in (0, 1))


def _is_useless(seen: Evidence, facts: ColumnFacts) -> bool:
    """Return whether a column has one value only, and is neither the day of a short log nor the first stage."""
    is_stage = facts.is_flag and funnel_place(facts.name) is not None
    return facts.distinct == 1 and facts.missing == 0 and not is_stage and not _may_be_day(facts)


def _may_be_day(facts: ColumnFacts) -> bool:
    return _has_name_of_day(facts) or facts.kind == "time"


def _has_name_of_day(facts: ColumnFacts) -> bool:
    return bool(DAY & set(words(facts.name)))


def _moments(seen: Evidence) -> list[ColumnFacts]:
    """Return the columns of times, the likeliest time of requests first."""
    if (column := seen.column("time") or seen.column("day")) is not None:
        return [seen.facts[column]]
    return sorted((facts for facts in seen.free() if facts.kind == "time"), key=_moment_order)


def _moment_order(facts: ColumnFacts) -> tuple[bool, bool, int]:
    """Order columns of times: those of requests and events first, those of items, births and so on last."""
    found = set(words(facts.name))
    of_others = {"upload", "release", "publish", "published", "birth", "update", "updated", "expire", "registered"}
    return bool(found & of_others), not found & MOMENT, -facts.distinct


def _choose_moment(seen: Evidence) -> None:
    """Choose the time among columns that have one value per request."""
    if seen.column("time") or seen.column("day"):
        return
    times = [facts.name for facts in _moments(seen)]
    constant = [name for name in times if seen.per_request(name, least=CONSTANT)]
    if constant:
        name = constant[0]
        confidence: Confidence = "high" if len(constant) == 1 else "medium"
        seen.set(name, "time", confidence, "times, one per request")
        return
    days = [facts for facts in seen.free() if _has_name_of_day(facts) and seen.per_request(facts.name, least=CONSTANT)]
    if days:
        seen.set(days[0].name, "day", "medium", "its name, one value per request")
        return
    if times:
        seen.problem("time", f"{times[0]} has several values within a request; a request has one time", times)
    elif unread := [facts for facts in seen.free() if facts.kind == "text" and MOMENT & set(words(facts.name))]:
        name, example = unread[0].name, unread[0].examples[0]
        seen.guesses.problems.append(
            f"time: found {example!r} in {name}, expected times such as 2024-01-13T08:30:00 or whole numbers since 1970"
        )
    else:
        seen.problem("time", "no column has dates, times or numbers of seconds since 1970 and the name of a time")


def guess_request(seen: Evidence) -> None:
    """Guess the column of requests, then their time or day."""
    if seen.column("request") is None:
        keys = [facts for facts in seen.free() if facts.is_key and facts.distinct > 1]
        scored = sorted(((_request_score(seen, facts), facts.name) for facts in keys), reverse=True)
        scored = [(score, name) for score, name in scored if score > 0]
        if not scored:
            seen.problem(
                "request",
                "no column has one value for all candidates of a request; if the log has none, add one, such as "
                "the user and the time together",
            )
            return
        score, name = scored[0]
        rivals = [other for value, other in scored[1:] if value >= score - 1]
        strong = key_match(name, "request") >= 2
        confidence: Confidence = "high" if strong and not rivals else "medium" if strong or not rivals else "low"
        per = seen.sample.rows_per_value(name)
        seen.set(name, "request", confidence, f"{'its name, ' if strong else ''}{per:.1f} rows per value")
    _choose_moment(seen)


def _request_score(seen: Evidence, facts: ColumnFacts) -> float:
    """Return how much speaks for a column as request: its name, several rows per value, one time per value."""
    match = key_match(facts.name, "request")
    if seen.sample.rows_per_value(facts.name) < 1.2:
        return 0
    if max(key_match(facts.name, "user"), key_match(facts.name, "item")) == 3 and match < 3:
        return 0
    shares = seen.sample.constancy(facts.name)
    has_one_time = any(shares[other.name] >= CONSTANT for other in _moments(seen))
    if not has_one_time and match < 2:
        return 0
    return 2.0 * match + 3.0 * has_one_time + min(1.0, facts.distinct / len(seen.frame))


def guess_item(seen: Evidence) -> None:
    """Guess the column of items."""
    request = seen.column("request")
    if seen.column("item") is not None or request is None:
        return
    keys = [
        facts
        for facts in seen.free()
        if facts.is_key and facts.distinct > 2 and facts.missing == 0 and not seen.is_constant(request, facts.name)
    ]
    unique = {facts.name: _pair_share(seen, request, facts.name) for facts in keys}
    scored = sorted(((_item_score(seen, facts, unique[facts.name]), facts.name) for facts in keys), reverse=True)
    scored = [(score, name) for score, name in scored if score > 0]
    if not scored:
        seen.problem("item", f"no column has different values for the rows of one {request}")
        return
    score, name = scored[0]
    rivals = [other for value, other in scored[1:] if value >= score - 1]
    strong = key_match(name, "item") >= 2
    confidence: Confidence = "high" if strong and not rivals else "medium" if strong or not rivals else "low"
    seen.set(name, "item", confidence, f"{'its name, ' if strong else ''}differs within a request")


def _pair_share(seen: Evidence, request: str, column: str) -> float:
    return seen.frame.select(request, column).n_unique() / len(seen.frame)


def _item_score(seen: Evidence, facts: ColumnFacts, unique: float) -> float:
    match = key_match(facts.name, "item")
    if unique < 0.9 and match < 3:
        return 0
    if set(words(facts.name)) & (RANK | POSITION | LABEL | STAGE | SCORE) and match < 3:
        return 0
    shares = seen.sample.constancy(facts.name)
    determined = sum(share >= CONSTANT for share in shares.values())
    return 3.0 * match + min(determined, 6) / 2 + (unique == 1.0)


def check_keys(seen: Evidence) -> None:
    """Note requests with several times, days or users, and texts among the numbers of a feature."""
    request = seen.column("request")
    assert request is not None
    advice = "prepare --check lists them, and --skip-bad drops them"
    roles: tuple[Role, ...] = ("time", "day", "user")
    for column in filter(None, map(seen.column, roles)):
        several = 1 - seen.sample.constancy(request, strict=True).get(column, 1.0)
        if several:
            seen.guesses.checks.append(
                f"{column} has several values in {several:.2%} of the requests, which prepare refuses: {advice}"
            )
    for name, guess in seen.found.items():
        if (texts := seen.facts[name].words) and guess.role != "ignore":
            found = ", ".join(map(repr, texts))
            kind = "times" if seen.facts[name].kind == "time" else "numbers"
            seen.guesses.checks.append(f"{name} has texts among its {kind} ({found}), which prepare refuses: {advice}")


def check_request(seen: Evidence) -> None:
    """Note what contradicts the roles of request and item."""
    request, item = seen.column("request"), seen.column("item")
    assert request is not None
    assert item is not None
    rows = seen.frame.select(request, item)
    repeated = int(rows.is_duplicated().sum())
    if repeated:
        seen.guesses.checks.append(
            f"{repeated:,} rows of the sample have the same {request} and {item} as another row, which prepare "
            "refuses: keep one row per item and request"
        )
    for name in (request, item):
        if seen.facts[name].missing:
            seen.guesses.checks.append(f"{name} has no value in some rows, which prepare refuses")


def guess_user(seen: Evidence) -> None:
    """Guess the column of users."""
    if seen.column("user") is not None:
        return
    keys = [facts for facts in seen.free() if facts.is_key and seen.per_request(facts.name, least=CONSTANT)]
    named = sorted(((key_match(facts.name, "user"), facts.distinct, facts.name) for facts in keys), reverse=True)
    if named and named[0][0] >= 1:
        match, _, name = named[0]
        seen.set(name, "user", "high" if match == 3 else "medium", "its name, one value per request")
        return
    request = seen.column("request")
    assert request is not None
    requests = seen.facts[request].distinct
    ids = [
        facts
        for facts in keys
        if 20 < facts.distinct < requests
        and not set(words(facts.name)) & (DAY | MOMENT)
        and seen.per_request(facts.name)
        and not any(" " in value for value in facts.examples)  # sentences, or lists of ids
    ]
    if len(ids) == 1:
        seen.set(ids[0].name, "user", "low", "the only id with one value per request that occurs in several")
    else:
        seen.guesses.checks.append("no column was recognised as user; without one there are no click histories")
