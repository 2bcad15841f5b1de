"""Columns of stages, labels, feedback, ranks and positions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import polars as pl

from rankfall.data.impressions.encoding import parse_times
from rankfall.data.impressions.requests import above_zero
from rankfall.data.sources.draft.column_facts import (
    CATEGORY,
    CLICK,
    CLICKS,
    CONSTANT,
    DAY,
    HISTORIC,
    ID,
    LABEL,
    MOMENT,
    POSITION,
    RANK,
    ROW,
    SCORE,
    SEQUENCE,
    SHOWN,
    STAGE,
    VIEW,
    Evidence,
    funnel_place,
    key_match,
    share,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.data.sources.draft.column_facts import ColumnFacts, Confidence, Guesses, Role, Sample


_OF_OTHERS = {"upload", "release", "publish", "published", "birth", "update", "updated", "expire", "registered"}


def ignore_empty_columns(seen: Evidence) -> None:
    """Set the role of columns that tell nothing: without values, with one value, or numbers of rows."""
    for facts in seen.free():
        # one value may be the day of a short log, or the flag of the first stage
        may_be_single = facts.has_name_of_day or facts.kind == "time" or (facts.is_flag and funnel_place(facts.name))
        if facts.kind == "empty":
            seen.set(facts.name, "ignore", "high", "no values")
        elif facts.kind == "other":
            seen.set(facts.name, "ignore", "high", f"type {seen.frame[facts.name].dtype} cannot be used")
        elif facts.kind == "whole" and not facts.missing and _numbers_rows(facts, seen.frame[facts.name]):
            seen.set(facts.name, "ignore", "high", "numbers the rows")
        elif facts.distinct == 1 and not facts.missing and not may_be_single:
            seen.set(facts.name, "ignore", "high", f"always {facts.examples[0]}")


def _numbers_rows(facts: ColumnFacts, values: pl.Series) -> bool:
    """Return whether whole numbers count the rows, in any order, or differ in nearly every row and have that name."""
    if len(values) < 3 or facts.distinct < CONSTANT * len(values) or key_match(facts.name, "item") == 3:
        return False
    counts_up = share(values.cast(pl.Float64).diff().drop_nulls() == 1) > 0.9
    return counts_up or facts.high - facts.low < 1.2 * len(values) or bool(facts.terms & (ID | ROW))


def _moments(seen: Evidence) -> list[ColumnFacts]:
    """Return the columns of times, those of requests and events first, those of items, births and so on last."""
    if (column := seen.column("time") or seen.column("day")) is not None:
        return [seen.facts[column]]
    times = [facts for facts in seen.free() if facts.kind == "time"]
    return sorted(times, key=lambda facts: (bool(facts.terms & _OF_OTHERS), not facts.terms & MOMENT, -facts.distinct))


def _choose_moment(seen: Evidence) -> None:
    """Choose the time among columns that have one value per request."""
    if seen.column("time") or seen.column("day"):
        return
    times = [facts.name for facts in _moments(seen)]
    constant = [name for name in times if seen.per_request(name, least=CONSTANT)]
    if constant:
        seen.set(constant[0], "time", "high" if len(constant) == 1 else "medium", "times, one per request")
        return
    days = [facts for facts in seen.free() if facts.has_name_of_day and seen.per_request(facts.name, least=CONSTANT)]
    if days:
        seen.set(days[0].name, "day", "medium", "its name, one value per request")
        return
    if times:
        seen.problem("time", f"{times[0]} has several values within a request; a request has one time", times)
    elif unread := [facts for facts in seen.free() if facts.kind == "text" and MOMENT & facts.terms]:
        name, example = unread[0].name, unread[0].examples[0]
        seen.guesses.problems.append(
            f"time: found {example!r} in {name}, expected times such as 2024-01-13T08:30:00 or whole numbers since 1970"
        )
    else:
        seen.problem("time", "no column has dates, times or numbers of seconds since 1970 and the name of a time")


def guess_request(seen: Evidence) -> None:
    """Guess the column of requests, then their time or day."""
    if not seen.key("request"):
        keys = [facts for facts in seen.free() if facts.is_key and facts.distinct > 1]
        scored = {facts.name: _request_score(seen, facts) for facts in keys}
        if not _choose_key(
            seen, "request", scored, lambda name: f"{seen.sample.rows_per_value(name):.1f} rows per value"
        ):
            seen.problem(
                "request",
                "no column has one value for all candidates of a request; if the log has none, add one, such as "
                "the user and the time together",
            )
            return
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
    request = seen.key("request")
    if seen.key("item") or not request:
        return
    keys = [
        facts
        for facts in seen.free()
        if facts.is_key and facts.distinct > 2 and facts.missing == 0 and not seen.is_constant(request, facts.name)
    ]
    scored = {facts.name: _item_score(seen, facts, request) for facts in keys}
    if not _choose_key(seen, "item", scored, lambda name: "differs within a request"):
        seen.problem("item", f"no column has different values for the rows of one {request}")


def _choose_key(
    seen: Evidence, role: Literal["request", "item"], scored: Mapping[str, float], why: Callable[[str], str]
) -> bool:
    """Give the column with the best score a role; return whether any column has a score above 0."""
    best = sorted(((score, name) for name, score in scored.items() if score > 0), reverse=True)
    if not best:
        return False
    score, name = best[0]
    is_alone = all(other < score - 1 for other, _ in best[1:])
    strong = key_match(name, role) >= 2
    confidence: Confidence = "high" if strong and is_alone else "medium" if strong or is_alone else "low"
    seen.set(name, role, confidence, f"{'its name, ' if strong else ''}{why(name)}")
    return True


def _item_score(seen: Evidence, facts: ColumnFacts, request: str) -> float:
    match, unique = key_match(facts.name, "item"), seen.frame.select(request, facts.name).n_unique() / len(seen.frame)
    if match < 3 and (unique < 0.9 or facts.terms & (RANK | POSITION | LABEL | STAGE | SCORE)):
        return 0
    determined = sum(share >= CONSTANT for share in seen.sample.constancy(facts.name).values())
    return 3.0 * match + min(determined, 6) / 2 + (unique == 1.0)


def check_keys(seen: Evidence) -> None:
    """Note requests with several times, days or users, and texts among the numbers of a feature."""
    request = seen.key("request")
    advice = "prepare --check lists them, and --skip-bad drops them"
    roles: tuple[Role, ...] = ("time", "day", "user")
    for column in filter(None, map(seen.column, roles)):
        several = 1 - seen.sample.constancy(request, strict=True).get(column, 1.0)
        if several:
            seen.check(f"{column} has several values in {several:.2%} of the requests, which prepare refuses: {advice}")
    for name, guess in seen.found.items():
        if (texts := seen.facts[name].words) and guess.role != "ignore":
            found = ", ".join(map(repr, texts))
            kind = "times" if seen.facts[name].kind == "time" else "numbers"
            seen.check(f"{name} has texts among its {kind} ({found}), which prepare refuses: {advice}")


def check_request(seen: Evidence) -> None:
    """Note what contradicts the roles of request and item."""
    request, item = seen.key("request"), seen.key("item")
    rows = seen.frame.select(request, item)
    repeated = int(rows.is_duplicated().sum())
    if repeated:
        seen.check(
            f"{repeated:,} rows of the sample have the same {request} and {item} as another row, which prepare "
            "refuses: keep one row per item and request"
        )
    for name in (request, item):
        if seen.facts[name].missing:
            seen.check(f"{name} has no value in some rows, which prepare refuses")


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
    request = seen.key("request")
    requests = seen.facts[request].distinct
    ids = [
        facts
        for facts in keys
        if 20 < facts.distinct < requests
        and not facts.terms & (DAY | MOMENT)
        and seen.per_request(facts.name)
        and not any(" " in value for value in facts.examples)  # sentences, or lists of ids
    ]
    if len(ids) == 1:
        seen.set(ids[0].name, "user", "low", "the only id with one value per request that occurs in several")
    else:
        seen.check("no column was recognised as user; without one there are no click histories")


MOST_STAGES = 12
LEAST_FUNNEL_FLAGS = 2
FALLS = 0.1  # of a running counter, between two restarts, over its rises; feedback falls as often as it rises
LEAST_EXPECTED = 20  # relevant items that rows without a value would have if they had as many as the others


def guess_stages(seen: Evidence) -> None:
    """Guess a column of stages or flags of stages, and their order."""
    stage = seen.column("stage")
    flags = [column for column, guess in seen.found.items() if guess.role == "flag"]
    if stage is None and not flags:
        stage = _find_stage(seen)
        if stage is None:
            flags = _find_flags(seen)
    if stage is not None:
        _order_stages(seen, stage)
    elif flags:
        _order_flags(seen, flags)


def _find_stage(seen: Evidence) -> str | None:
    request = seen.key("request")
    candidates = []
    for facts in seen.free():
        if facts.kind not in ("text", "whole") or not 2 <= facts.distinct <= MOST_STAGES or facts.missing:
            continue
        if seen.is_constant(request, facts.name) or seen.is_constant(seen.key("item"), facts.name):
            continue
        named = bool(STAGE & facts.terms)
        values = seen.frame[facts.name].unique().to_list()
        known = facts.kind == "text" and sum(funnel_place(str(value)) is not None for value in values) >= 2
        numbered = facts.kind == "whole" and named and facts.low == 0 and facts.high == facts.distinct - 1
        if known or numbered or (named and facts.kind == "text"):
            candidates.append((known + named, facts.name))
    if not candidates:
        return None
    score, name = max(candidates)
    seen.set(name, "stage", "high" if score == 2 else "medium", "few values, which are stages of a funnel")
    return name


def _order_stages(seen: Evidence, column: str) -> None:
    """Order the values of a column of stages: by known names, else the most frequent first."""
    facts = seen.facts[column]
    if facts.kind == "whole":
        if facts.low != 0 or facts.high != facts.distinct - 1:
            seen.problem(
                "stage", f"{column} has the numbers {facts.low:g} to {facts.high:g}, expected names or 0, 1, 2, ..."
            )
        seen.guesses.stages = [f"stage_{number}" for number in range(int(facts.high) + 1)]
        seen.check(f"stages: 0 in {column} must be the stage that drops items first")
        return
    counts = dict(seen.frame[column].value_counts().iter_rows())
    known = {str(value): funnel_place(str(value)) for value in counts}
    if all(place is not None for place in known.values()) and len(set(known.values())) == len(known):
        seen.guesses.stages = sorted(counts, key=lambda value: known[value] or (0, 0))
        seen.check("stages: the order was guessed from their names; items dropped first come first")
    else:
        seen.guesses.stages = sorted(counts, key=lambda value: (-counts[value], value))
        seen.check("stages: the order was guessed from the number of rows; items dropped first must come first")


def _find_flags(seen: Evidence) -> list[str]:
    item = seen.key("item")
    own = [
        facts.name
        for facts in seen.free()
        if facts.is_flag
        and (place := funnel_place(facts.name)) is not None
        and place[0] < CLICKS  # what follows is feedback
        and not facts.terms & (LABEL | VIEW)
        and (facts.distinct == 1 or not seen.is_constant(item, facts.name))
    ]
    if len(own) < LEAST_FUNNEL_FLAGS:
        return []
    for name in own:
        seen.set(name, "flag", "medium", "0 or 1, and its name is that of a stage")
    return own


def _order_flags(seen: Evidence, flags: Sequence[str]) -> None:
    """Order flags: nested ones by their number of items, others by their names; drop stages without items."""
    means = {name: share(above_zero(seen.frame[name])) for name in flags}
    by_size = sorted(flags, key=lambda name: -means[name])
    nested = all(
        bool((above_zero(seen.frame[outer]) | ~above_zero(seen.frame[inner])).all())
        for outer, inner in pairwise(by_size)
    )
    order = by_size if nested else sorted(flags, key=lambda name: (funnel_place(name) or (99, 0), -means[name]))
    deepest = deepest_flags(seen.frame, order)
    kept = [name for number, name in enumerate(order) if bool((deepest == number).any())]
    for name in order:
        if name not in kept:
            seen.set(name, "ignore", "medium", "all of its items reached a later stage")
    how = "the number of items" if nested else "their names"
    seen.guesses.stages = kept
    seen.check(f"stages: the order was guessed from {how}; items dropped first come first")
    without = int((deepest < 0).sum())
    if without:
        other = f", or use --role stage={kept[0]}" if len(kept) == 1 else ""
        seen.problem(
            "flag",
            f"{without:,} rows of the sample reached none of {', '.join(kept)}, but every item has a stage; add a "
            f"column that is 1 for all items and name it{other}",
        )


def deepest_flags(frame: pl.DataFrame, flags: Sequence[str]) -> pl.Series:
    """Return the number of the last flag of each row that is above 0, or -1."""
    deepest = pl.Series([-1] * len(frame))
    for number, name in enumerate(flags):
        deepest = deepest.zip_with(~above_zero(frame[name]), pl.Series([number] * len(frame)))
    return deepest


def guess_labels(seen: Evidence) -> None:
    """Guess what makes items relevant, and other feedback."""
    item = seen.key("item")
    found = [facts for facts in seen.free() if _is_label(seen, facts)]
    if seen.column("label") is None and found:
        # clicks first, then what is not merely shown, then flags rather than counts, then the more frequent one
        grades = {"label", "relevance", "target"}
        chosen = max(
            found,
            key=lambda facts: (
                bool(facts.terms & (CLICK | grades)),
                not facts.terms & SHOWN,
                facts.is_flag or bool(facts.terms & grades),
                share(above_zero(seen.frame[facts.name])),
            ),
        )
        named = bool(CLICK & chosen.terms) or len(found) == 1
        seen.set(chosen.name, "label", "high" if named else "medium", "its name, differs within a request")
    label = seen.column("label")
    for facts in found:
        if facts.name != label:
            seen.set(facts.name, "feedback", "medium", "its name, differs within a request")
    # numbers that are known only after an item was shown, such as the time that a user spent on it
    causes = [name for name, guess in seen.found.items() if guess.role in ("label", "feedback")]
    causes += [name for name in seen.guesses.stages if name in seen.facts and SHOWN & set(words(name))]
    for facts in seen.free() if causes else []:
        if _follows(seen, facts, causes):
            seen.set(facts.name, "feedback", "medium", f"above 0 only where {' or '.join(causes[:3])} is")
    if label is None and not seen.guesses.stages:
        flags = [facts.name for facts in seen.free() if facts.is_flag and not seen.is_constant(item, facts.name)]
        flags = [name for name in flags if not seen.is_constant(seen.key("request"), name)]
        flags.sort(key=lambda name: share(above_zero(seen.frame[name])))  # what was shown is more than what was clicked
        texts = [facts for facts in seen.free() if facts.kind == "text" and LABEL & facts.terms]
        if len(flags) == 1:
            seen.set(flags[0], "label", "low", "the only column of 0 and 1 that differs within a request")
        elif texts:
            values = ", ".join(texts[0].examples)
            seen.guesses.problems.append(
                f"label: found the texts {values} in {texts[0].name}, expected numbers, 0 or 1"
            )
        else:
            seen.problem("label", "no column says which items are relevant, such as clicked or bought", flags)


def _is_label(seen: Evidence, facts: ColumnFacts) -> bool:
    found = facts.terms
    if not facts.is_number or facts.low < 0:
        return False
    names = bool(found & LABEL) or bool(found & SHOWN) or (bool(found & VIEW) and facts.is_flag)
    if not names or (found & HISTORIC and not facts.is_flag) or found & {"id", "rank", "index"}:
        return False
    if seen.is_constant(seen.key("request"), facts.name):
        return False
    return facts.is_flag or not seen.is_constant(seen.key("item"), facts.name)


def guess_counters(seen: Evidence) -> None:
    """Set the role of running counters, whatever their names are: they are features of the item."""
    item, request = seen.key("item"), seen.key("request")
    for facts in seen.free():
        if not facts.is_number or facts.is_flag or any(seen.is_constant(key, facts.name) for key in (item, request)):
            continue
        if facts.low >= 0 and _counter_steps(seen, facts.name) is not None:
            seen.set(facts.name, "item_feature", "high", f"a counter: hardly ever falls for one {item}")


def _counter_steps(seen: Evidence, column: str) -> pl.Series | None:
    """Return how a running counter changes from one occurrence of an item to the next; None for other numbers.

    It hardly ever falls, or only between two days, at whatever hour they begin. Changes at a restart are missing.
    """
    time, moment = seen.column("time"), seen.key("time", "day")
    if not moment:
        return None
    when = seen.frame[moment]
    if time is not None:
        when = parse_times(when, seen.facts[time].unit, "UTC").dt.epoch("s")
    frame = seen.frame.select(item=seen.key("item"), value=pl.col(column).cast(pl.Float64), when=when).with_row_index()
    changes = (pl.col("value").diff(), pl.col("when").shift())
    steps, before = frame.select(change.over("item", order_by=["when", "index"]) for change in changes)
    starts = range(0, 86_400, 3_600) if time is not None else ()
    same_day = [(when - start) // 86_400 == (before - start) // 86_400 for start in starts] or [when == before]
    for same in [before.is_not_null(), *same_day]:
        kept = steps.set(~same, None)
        rises, falls = int((kept > 0).sum()), int((kept < 0).sum())
        if rises >= LEAST_EXPECTED and falls <= FALLS * rises:
            return kept
    return None


def _follows(seen: Evidence, facts: ColumnFacts, causes: Sequence[str]) -> bool:
    """Return whether a number is above 0 only where one of the causes is: a model would see the answer in it."""
    if not facts.is_number or facts.low < 0:
        return False
    above = above_zero(seen.frame[facts.name])
    caused = pl.Series([False] * len(seen.frame))
    for name in causes:
        caused |= above_zero(seen.frame[name])
    return 0 < share(above) < 0.5 and not bool((above & ~caused).any())


def guess_places(seen: Evidence) -> None:
    """Guess ranks and positions, and leave out scores of production."""
    request = seen.key("request")
    for facts in seen.free():
        found = facts.terms
        if facts.kind not in ("whole", "number") or seen.is_constant(request, facts.name):
            continue
        if found & SCORE and not found & {"review", "bewertung"} and facts.kind == "number":
            seen.set(facts.name, "ignore", "medium", "a score of production, which a new model should not copy")
        elif facts.kind == "whole" and found & (RANK | POSITION):
            _set_place(seen, facts, request, is_position=bool(found & POSITION))


def ignore_conditions(seen: Evidence) -> None:
    """Leave out columns without which no item is relevant: whether it was shown, where, and counts of the request."""
    label, keys = seen.column("label"), (seen.key("request"), seen.key("item"))
    relevant = above_zero(seen.frame[label]) if label is not None else pl.Series([False] * len(seen.frame))

    def is_condition(absent: pl.Series) -> bool:
        return share(absent) * int(relevant.sum()) >= LEAST_EXPECTED and not bool((absent & relevant).any())

    for name in seen.guesses.all("item_feature"):
        steps = None if seen.found[name].confidence == "given" else _counter_steps(seen, name)
        if steps is not None and is_condition(steps <= 0):
            seen.set(name, "ignore", "medium", f"a counter, but {label} is above 0 only where it rises")
    for facts in seen.free():
        if not facts.is_number or any(seen.is_constant(key, facts.name) for key in keys):
            continue
        counts_from_0 = bool(facts.missing) or facts.low < 0  # a position; empty or negative for items that have none
        absent = ~above_zero(seen.frame[facts.name].cast(pl.Float64) + counts_from_0)
        if is_condition(absent):
            why = f"{label} is above 0 only where it is {'known' if counts_from_0 else 'above 0'}"
            seen.set(facts.name, "ignore", "medium", why)
            seen.check(
                f"{facts.name} may say what was shown and is not used: {why}, so a model would see the answer in it; "
                f"try --role {'stage' if facts.is_flag else 'rank'}={facts.name}"
            )


def _set_place(seen: Evidence, facts: ColumnFacts, request: str, *, is_position: bool) -> None:
    shown = seen.frame.filter(pl.col(facts.name).is_not_null() & (pl.col(facts.name) >= 0))
    if facts.low < 0 and not is_position:
        seen.set(facts.name, "ignore", "medium", f"a rank, but {facts.low:g} where there is none, expected empty")
        return
    keys = [request, facts.name, *filter(None, [seen.column("stage")])]
    repeats = share(shown.select(keys).is_duplicated())
    first = min(shown[facts.name].to_list(), default=0)
    role: Role = "position" if is_position and first == 0 else "rank"
    if repeats > 0.02:
        seen.set(facts.name, "ignore", "low", "the name of a rank, but items of a request share values")
    elif seen.column(role) is not None:
        seen.set(facts.name, "ignore", "medium", f"a second {role}")
    else:
        seen.set(facts.name, role, "high", f"its name, from {first}, differs within a request")
        if is_position and role == "rank":
            seen.check(
                f"{facts.name} counts from 1 and is used as rank; for click bias, add a column from 0 and name "
                "it as position"
            )


_SEVERAL = 0.1  # share of different texts with a separator from which on a column has several values in one text


def guess_features(seen: Evidence) -> None:
    """Guess whether the remaining columns describe users, requests or items."""
    user, item = seen.key("user"), seen.key("item")
    for facts in seen.free():
        of_request = seen.per_request(facts.name)
        if facts.distinct == 1 and not facts.missing:
            seen.set(facts.name, "ignore", "high", f"always {facts.examples[0]}")
        elif facts.kind == "list":
            _guess_sequence(seen, facts, of_request=of_request)
        elif facts.kind == "time":
            seen.set(facts.name, "ignore", "medium", "another time; a feature {kind: time} can use a part of it")
        elif facts.kind == "whole" and facts.has_name_of_day and 20_000_101 <= facts.low <= facts.high <= 20_991_231:
            seen.set(facts.name, "ignore", "medium", "dates; a model would not know those of tomorrow")
        elif facts.kind == "text" and (mark := _separator(seen, facts)):
            seen.set(facts.name, "ignore", "medium", f"several values in one text, separated by {mark!r}")
            seen.check(
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
    is_sequence = bool(SEQUENCE & facts.terms)
    for mark in ("|", ";", ",", " ") if is_sequence else ("|", ";", ","):
        parts = values.str.split(mark)
        if share(parts.list.len() > 1) < _SEVERAL:
            continue
        if mark == "|" or is_sequence or parts.list.explode().str.strip_chars().n_unique() < len(values):
            return mark
    return None


def _guess_sequence(seen: Evidence, facts: ColumnFacts, *, of_request: bool) -> None:
    item = seen.key("item")
    elements = seen.frame[facts.name].explode().drop_nulls()
    known = seen.frame[item].unique()
    same = elements.dtype == known.dtype or (elements.dtype.is_integer() and known.dtype.is_integer())
    overlap = share(elements.is_in(known.cast(elements.dtype).implode())) if same else 0.0
    if of_request and overlap > 0.3:
        named = bool(SEQUENCE & facts.terms)
        seen.set(facts.name, "sequence", "high" if named else "medium", f"lists of values of {item}")
    else:
        seen.set(facts.name, "ignore", "low", "lists; see sequences in the reference")


def is_categorical(facts: ColumnFacts) -> bool:
    """Return whether a feature is a category rather than a quantity."""
    if facts.kind in ("text", "truth"):
        return True
    return facts.kind == "whole" and (facts.distinct <= 12 or bool(facts.terms & (ID | CATEGORY)))


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
    if seen.key("request") and seen.key("item"):
        check_request(seen)
        guess_user(seen)
        guess_stages(seen)
        guess_counters(seen)
        guess_labels(seen)
        guess_places(seen)
        ignore_conditions(seen)
        guess_features(seen)
        check_keys(seen)
    for name in seen.facts:
        if name not in seen.found:
            seen.set(name, "ignore", "low", "no role was found")
    return replace(seen.guesses, of={name: seen.found[name] for name in seen.facts})


def guess_table_columns(sample: Sample, guesses: Guesses, given: Mapping[str, Role]) -> None:
    """Guess the roles of columns that come from tables, after those of the log.

    Args:
        sample: Rows and facts, with the columns of the tables.
        guesses: The roles of the columns of the log, to which the others are added.
        given: Roles by column that are already decided.
    """
    seen = Evidence(sample, given)
    seen.found.update(guesses.of)
    ignore_empty_columns(seen)
    guess_features(seen)
    guesses.of = {name: seen.found[name] for name in seen.facts}
    guesses.checks += seen.guesses.checks
