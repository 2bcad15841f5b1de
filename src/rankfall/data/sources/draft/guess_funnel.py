"""Columns of stages, labels, feedback, ranks and positions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from rankfall.data.impressions.stage_depth import above_zero
from rankfall.data.sources.draft.column_facts import share
from rankfall.data.sources.draft.column_words import (
    CLICK,
    HISTORIC,
    LABEL,
    POSITION,
    RANK,
    SCORE,
    SHOWN,
    STAGE,
    VIEW,
    funnel_place,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.data.sources.draft.column_facts import ColumnFacts
    from rankfall.data.sources.draft.evidence import Evidence
    from rankfall.data.sources.draft.roles import Role

MOST_STAGES = 12
LEAST_FUNNEL_FLAGS = 2
FALLS = 0.1  # of a running counter, which may begin anew, over its rises; feedback falls as often as it rises
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
    request = seen.column("request")
    candidates = []
    for facts in seen.free():
        if facts.kind not in ("text", "whole") or not 2 <= facts.distinct <= MOST_STAGES or facts.missing:
            continue
        if seen.is_constant(request, facts.name) or seen.is_constant(seen.column("item"), facts.name):
            continue
        named = bool(STAGE & set(words(facts.name)))
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
        seen.guesses.checks.append(f"stages: 0 in {column} must be the stage that drops items first")
        return
    counts = dict(seen.frame[column].value_counts().iter_rows())
    known = {str(value): funnel_place(str(value)) for value in counts}
    if all(place is not None for place in known.values()) and len(set(known.values())) == len(known):
        seen.guesses.stages = sorted(counts, key=lambda value: known[value] or (0, 0))
        seen.guesses.checks.append("stages: the order was guessed from their names; items dropped first come first")
    else:
        seen.guesses.stages = sorted(counts, key=lambda value: -counts[value])
        seen.guesses.checks.append(
            "stages: the order was guessed from the number of rows; items dropped first must come first"
        )


def _find_flags(seen: Evidence) -> list[str]:
    item = seen.column("item")
    flags = [
        facts.name
        for facts in seen.free()
        if facts.is_flag
        and funnel_place(facts.name) is not None
        and (facts.distinct == 1 or not seen.is_constant(item, facts.name))
    ]
    own = [name for name in flags if not set(words(name)) & (LABEL | VIEW)]
    own = [name for name in own if (funnel_place(name) or (0, 0))[0] < len_of_funnel()]
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
    deepest = pl.Series([-1] * len(seen.frame))
    for number, name in enumerate(order):
        deepest = deepest.zip_with(~above_zero(seen.frame[name]), pl.Series([number] * len(seen.frame)))
    kept = [name for number, name in enumerate(order) if bool((deepest == number).any())]
    for name in order:
        if name not in kept:
            seen.set(name, "ignore", "medium", "all of its items reached a later stage")
    how = "the number of items" if nested else "their names"
    seen.guesses.stages = kept
    seen.guesses.checks.append(f"stages: the order was guessed from {how}; items dropped first come first")
    without = int((deepest < 0).sum())
    if without:
        other = f", or use --role stage={kept[0]}" if len(kept) == 1 else ""
        seen.problem(
            "flag",
            f"{without:,} rows of the sample reached none of {', '.join(kept)}, but every item has a stage; add a "
            f"column that is 1 for all items and name it{other}",
        )


def guess_labels(seen: Evidence) -> None:
    """Guess what makes items relevant, and other feedback."""
    item = seen.column("item")
    found = [facts for facts in seen.free() if _is_label(seen, facts)]
    if seen.column("label") is None and found:
        chosen = max(found, key=lambda facts: _label_order(seen, facts))
        named = bool(CLICK & set(words(chosen.name))) or len(found) == 1
        seen.set(chosen.name, "label", "high" if named else "medium", "its name, differs within a request")
    label = seen.column("label")
    for facts in found:
        if facts.name != label:
            seen.set(facts.name, "feedback", "medium", "its name, differs within a request")
    _find_consequences(seen)
    if label is None and not seen.guesses.stages:
        flags = [facts.name for facts in seen.free() if facts.is_flag and not seen.is_constant(item, facts.name)]
        flags = [name for name in flags if not seen.is_constant(seen.column("request"), name)]
        flags.sort(key=lambda name: share(above_zero(seen.frame[name])))  # what was shown is more than what was clicked
        texts = [facts for facts in seen.free() if facts.kind == "text" and LABEL & set(words(facts.name))]
        if len(flags) == 1:
            seen.set(flags[0], "label", "low", "the only column of 0 and 1 that differs within a request")
        elif texts:
            values = ", ".join(texts[0].examples)
            seen.guesses.problems.append(
                f"label: found the texts {values} in {texts[0].name}, expected numbers, 0 or 1"
            )
        else:
            seen.problem("label", "no column says which items are relevant, such as clicked or bought", flags)


def _find_consequences(seen: Evidence) -> None:
    """Find numbers that are known only after an item was shown, such as the time that a user spent on it."""
    causes = [name for name, guess in seen.found.items() if guess.role in ("label", "feedback")]
    causes += [name for name in seen.guesses.stages if name in seen.facts and SHOWN & set(words(name))]
    for facts in seen.free() if causes else []:
        if _follows(seen, facts, causes):
            seen.set(facts.name, "feedback", "medium", f"above 0 only where {' or '.join(causes[:3])} is")


def _is_label(seen: Evidence, facts: ColumnFacts) -> bool:
    found = set(words(facts.name))
    if facts.kind not in ("truth", "whole", "number") or facts.low < 0:
        return False
    names = bool(found & LABEL) or bool(found & SHOWN) or (bool(found & VIEW) and facts.is_flag)
    if not names or (found & HISTORIC and not facts.is_flag) or found & {"id", "rank", "index"}:
        return False
    if seen.is_constant(seen.column("request"), facts.name):
        return False
    return facts.is_flag or not (seen.is_constant(seen.column("item"), facts.name) or _is_counter(seen, facts.name))


def _is_counter(seen: Evidence, column: str) -> bool:
    """Return whether a number hardly ever falls from one occurrence of an item to the next, as running counters do."""
    item, time = seen.column("item"), seen.column("time") or seen.column("day")
    if item is None or time is None:
        return False
    steps = seen.frame.sort(time, maintain_order=True).select(pl.col(column).cast(pl.Float64).diff().over(item))
    falls, rises = (int((sign * steps.to_series() > 0).sum()) for sign in (-1, 1))
    return rises >= LEAST_EXPECTED and falls <= FALLS * rises


def _label_order(seen: Evidence, facts: ColumnFacts) -> tuple[bool, bool, float]:
    """Order labels: clicks first, then what is not merely shown, then the more frequent one."""
    found = set(words(facts.name))
    positives = share(above_zero(seen.frame[facts.name]))
    is_known = bool(found & (CLICK | {"label", "relevance", "target"}))
    return is_known, not found & SHOWN, positives


def _follows(seen: Evidence, facts: ColumnFacts, causes: Sequence[str]) -> bool:
    """Return whether a number is above 0 only where one of the causes is: a model would see the answer in it."""
    if facts.kind not in ("truth", "whole", "number") or facts.low < 0:
        return False
    above = above_zero(seen.frame[facts.name])
    caused = pl.Series([False] * len(seen.frame))
    for name in causes:
        caused |= above_zero(seen.frame[name])
    return 0 < share(above) < 0.5 and not bool((above & ~caused).any())


def guess_places(seen: Evidence) -> None:
    """Guess ranks and positions, and leave out scores of production."""
    request = seen.column("request")
    assert request is not None
    for facts in seen.free():
        found = set(words(facts.name))
        if facts.kind not in ("whole", "number") or seen.is_constant(request, facts.name):
            continue
        if found & SCORE and not found & {"review", "bewertung"} and facts.kind == "number":
            seen.set(facts.name, "ignore", "medium", "a score of production, which a new model should not copy")
        elif facts.kind == "whole" and found & (RANK | POSITION):
            _set_place(seen, facts, request, is_position=bool(found & POSITION))


def ignore_conditions(seen: Evidence) -> None:
    """Leave out columns without which no item is relevant, such as whether it was shown, and where."""
    label, keys = seen.column("label"), (seen.column("request"), seen.column("item"))
    relevant = above_zero(seen.frame[label]) if label is not None else pl.Series([False] * len(seen.frame))
    for facts in seen.free():
        if facts.kind not in ("truth", "whole", "number") or any(seen.is_constant(key, facts.name) for key in keys):
            continue
        counts_from_0 = bool(facts.missing) or facts.low < 0  # a position; empty or negative for items that have none
        absent = ~above_zero(seen.frame[facts.name].cast(pl.Float64) + counts_from_0)
        if share(absent) * int(relevant.sum()) >= LEAST_EXPECTED and not bool((absent & relevant).any()):
            why = f"{label} is above 0 only where it is {'known' if counts_from_0 else 'above 0'}"
            seen.set(facts.name, "ignore", "medium", why)
            seen.guesses.checks.append(
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
            seen.guesses.checks.append(
                f"{facts.name} counts from 1 and is used as rank; for click bias, add a column from 0 and name "
                "it as position"
            )


def len_of_funnel() -> int:
    """Return the number of places of a funnel before clicks: later ones are feedback, not stages."""
    place = funnel_place("click")
    assert place is not None
    return place[0]
