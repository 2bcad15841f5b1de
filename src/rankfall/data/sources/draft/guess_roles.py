"""Guess the role of each column of a log from its name, its values and which columns determine which."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from rankfall.data.sources.draft.column_facts import share
from rankfall.data.sources.draft.column_words import (
    CATEGORY,
    CLICK,
    DAY,
    HISTORIC,
    ID,
    LABEL,
    MOMENT,
    POSITION,
    RANK,
    SCORE,
    SEQUENCE,
    SHOWN,
    STAGE,
    VIEW,
    funnel_place,
    key_match,
    words,
)
from rankfall.data.sources.draft.roles import Guess, Guesses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.data.sources.draft.column_facts import ColumnFacts, Sample
    from rankfall.data.sources.draft.roles import Confidence, Role

CONSTANT = 0.98  # share of the values of a key in whose rows a column has one value: a few rows may be wrong
MOST_STAGES = 12
LEAST_FUNNEL_FLAGS = 2


def guess_roles(sample: Sample, given: Mapping[str, Role]) -> Guesses:
    """Guess the role of each column of a sample.

    Args:
        sample: Rows and facts.
        given: Roles by column that are already decided.
    """
    return _Guesser(sample, given).guess()


class _Guesser:
    """Decides one role after the other, the keys first, since other roles depend on them."""

    def __init__(self, sample: Sample, given: Mapping[str, Role]) -> None:
        self.sample, self.frame, self.facts = sample, sample.frame, sample.facts
        self.given = given
        self.guesses = Guesses()
        self.found: dict[str, Guess] = {}
        for column, role in given.items():
            self._set(column, role, "given", "--role")

    def guess(self) -> Guesses:
        self._ignore_empty_columns()
        self._guess_moment()
        self._guess_request()
        self._guess_item()
        if self._column("request") and self._column("item"):
            self._check_request()
            self._guess_user()
            self._guess_stages()
            self._guess_labels()
            self._guess_places()
            self._guess_features()
        for name in self.facts:
            if name not in self.found:
                self._set(name, "ignore", "low", "no role was found")
        self.guesses.of = {name: self.found[name] for name in self.facts}
        return self.guesses

    # --- helpers ------------------------------------------------------------------------------------------------

    def _set(self, column: str, role: Role, confidence: Confidence, why: str) -> None:
        self.found[column] = Guess(column, role, confidence, why)

    def _column(self, role: Role) -> str | None:
        return next((column for column, guess in self.found.items() if guess.role == role), None)

    def _free(self) -> list[ColumnFacts]:
        return [facts for name, facts in self.facts.items() if name not in self.found]

    def _is_constant(self, key: str | None, column: str) -> bool:
        return key is not None and self.sample.constancy(key).get(column, 0.0) >= CONSTANT

    def _per_request(self, column: str) -> bool:
        """Return whether a column has one value per request. Prepared logs refuse a single exception."""
        request = self._column("request")
        return request is not None and self.sample.constancy(request, strict=True).get(column, 0.0) == 1.0

    def _problem(self, role: Role, text: str, candidates: Sequence[str] = ()) -> None:
        named = candidates[0] if candidates else "COLUMN"
        more = f" (candidates: {', '.join(candidates)})" if len(candidates) > 1 else ""
        self.guesses.problems.append(f"{role}: {text}; try --role {role}={named}{more}")

    # --- columns without content ----------------------------------------------------------------------------------

    def _ignore_empty_columns(self) -> None:
        for facts in self._free():
            if facts.kind == "empty":
                self._set(facts.name, "ignore", "high", "no values")
            elif facts.kind == "other":
                self._set(facts.name, "ignore", "high", f"type {self.frame[facts.name].dtype} cannot be used")
            elif self._is_index(facts):
                self._set(facts.name, "ignore", "high", "numbers the rows")
            elif self._is_useless(facts):
                self._set(facts.name, "ignore", "high", f"always {facts.examples[0]}")

    def _is_index(self, facts: ColumnFacts) -> bool:
        if facts.kind != "whole" or facts.missing or len(self.frame) < 3:
            return False
        steps = self.frame[facts.name].cast(pl.Int64).diff().drop_nulls()
        counts_up = facts.distinct == len(self.frame) and share(steps == 1) > 0.99
        return counts_up and (facts.name.startswith("Unnamed") or facts.low in (0, 1))

    def _is_useless(self, facts: ColumnFacts) -> bool:
        """Return whether a column has one value only, and is neither the day of a short log nor the first stage."""
        is_stage = facts.is_flag and funnel_place(facts.name) is not None
        return facts.distinct == 1 and facts.missing == 0 and not is_stage and not self._may_be_day(facts)

    def _may_be_day(self, facts: ColumnFacts) -> bool:
        return bool(DAY & set(words(facts.name))) or facts.kind == "time"

    # --- time ---------------------------------------------------------------------------------------------------

    def _guess_moment(self) -> None:
        if self._column("time") or self._column("day"):
            return
        times = [facts for facts in self._free() if facts.kind == "time"]
        self._moments = sorted(times, key=self._moment_order)

    def _moment_order(self, facts: ColumnFacts) -> tuple[bool, bool, int]:
        """Order columns of times: those of requests and events first, those of items, births and so on last."""
        found = set(words(facts.name))
        of_others = {"upload", "release", "publish", "published", "birth", "update", "updated", "expire", "registered"}
        return bool(found & of_others), not found & MOMENT, -facts.distinct

    def _choose_moment(self) -> None:
        """Choose the time among columns that have one value per request."""
        if self._column("time") or self._column("day"):
            return
        times = [facts.name for facts in getattr(self, "_moments", [])]
        constant = [name for name in times if self._per_request(name)]
        if constant:
            name = constant[0]
            confidence: Confidence = "high" if len(constant) == 1 else "medium"
            self._set(name, "time", confidence, "times, one per request")
            return
        days = [facts for facts in self._free() if DAY & set(words(facts.name)) and self._per_request(facts.name)]
        if days:
            self._set(days[0].name, "day", "medium", "its name, one value per request")
            return
        if times:
            self._problem("time", f"{times[0]} has several values within a request; a request has one time", times)
        else:
            self._problem("time", "no column has dates, times or numbers of seconds since 1970 and the name of a time")

    # --- keys ---------------------------------------------------------------------------------------------------

    def _guess_request(self) -> None:
        if self._column("request") is None:
            keys = [facts for facts in self._free() if facts.is_key and facts.distinct > 1]
            scored = sorted(((self._request_score(facts), facts.name) for facts in keys), reverse=True)
            scored = [(score, name) for score, name in scored if score > 0]
            if not scored:
                self._problem(
                    "request",
                    "no column has one value for all candidates of a request; if the log has none, add one, such as "
                    "the user and the time together",
                )
                return
            score, name = scored[0]
            rivals = [other for value, other in scored[1:] if value >= score - 1]
            strong = key_match(name, "request") >= 2
            confidence: Confidence = "high" if strong and not rivals else "medium" if strong or not rivals else "low"
            per = self.sample.rows_per_value(name)
            self._set(name, "request", confidence, f"{'its name, ' if strong else ''}{per:.1f} rows per value")
        self._choose_moment()

    def _request_score(self, facts: ColumnFacts) -> float:
        """Return how much speaks for a column as request: its name, several rows per value, one time per value."""
        match = key_match(facts.name, "request")
        if self.sample.rows_per_value(facts.name) < 1.2:
            return 0
        if max(key_match(facts.name, "user"), key_match(facts.name, "item")) == 3 and match < 3:
            return 0
        shares = self.sample.constancy(facts.name)
        has_one_time = any(shares[other.name] == 1.0 for other in getattr(self, "_moments", []))
        if not has_one_time and match < 2:
            return 0
        return 2.0 * match + 3.0 * has_one_time + min(1.0, facts.distinct / len(self.frame))

    def _guess_item(self) -> None:
        request = self._column("request")
        if self._column("item") is not None or request is None:
            return
        keys = [
            facts
            for facts in self._free()
            if facts.is_key and facts.distinct > 2 and facts.missing == 0 and not self._is_constant(request, facts.name)
        ]
        unique = {facts.name: self._pair_share(request, facts.name) for facts in keys}
        scored = sorted(((self._item_score(facts, unique[facts.name]), facts.name) for facts in keys), reverse=True)
        scored = [(score, name) for score, name in scored if score > 0]
        if not scored:
            self._problem("item", f"no column has different values for the rows of one {request}")
            return
        score, name = scored[0]
        rivals = [other for value, other in scored[1:] if value >= score - 1]
        strong = key_match(name, "item") >= 2
        confidence: Confidence = "high" if strong and not rivals else "medium" if strong or not rivals else "low"
        self._set(name, "item", confidence, f"{'its name, ' if strong else ''}differs within a request")

    def _pair_share(self, request: str, column: str) -> float:
        return self.frame.select(request, column).n_unique() / len(self.frame)

    def _item_score(self, facts: ColumnFacts, unique: float) -> float:
        match = key_match(facts.name, "item")
        if unique < 0.9 and match < 3:
            return 0
        if set(words(facts.name)) & (RANK | POSITION | LABEL | STAGE | SCORE) and match < 3:
            return 0
        shares = self.sample.constancy(facts.name)
        determined = sum(share >= CONSTANT for share in shares.values())
        return 3.0 * match + min(determined, 6) / 2 + (unique == 1.0)

    def _check_request(self) -> None:
        request, item = self._column("request"), self._column("item")
        assert request is not None
        assert item is not None
        rows = self.frame.select(request, item)
        repeated = int(rows.is_duplicated().sum())
        if repeated:
            self.guesses.checks.append(
                f"{repeated:,} rows of the sample have the same {request} and {item} as another row, which prepare "
                "refuses: keep one row per item and request"
            )
        for name in (request, item):
            if self.facts[name].missing:
                self.guesses.checks.append(f"{name} has no value in some rows, which prepare refuses")

    def _guess_user(self) -> None:
        if self._column("user") is not None:
            return
        keys = [facts for facts in self._free() if facts.is_key and self._per_request(facts.name)]
        named = sorted(((key_match(facts.name, "user"), facts.distinct, facts.name) for facts in keys), reverse=True)
        if named and named[0][0] >= 1:
            match, _, name = named[0]
            self._set(name, "user", "high" if match == 3 else "medium", "its name, one value per request")
            return
        request = self._column("request")
        assert request is not None
        requests = self.facts[request].distinct
        ids = [
            facts for facts in keys if 20 < facts.distinct < requests and not set(words(facts.name)) & (DAY | MOMENT)
        ]
        if len(ids) == 1:
            self._set(ids[0].name, "user", "low", "the only id with one value per request that occurs in several")
        else:
            self.guesses.checks.append("no column was recognised as user; without one there are no click histories")

    # --- stages and labels ----------------------------------------------------------------------------------------

    def _guess_stages(self) -> None:
        stage = self._column("stage")
        flags = [column for column, guess in self.found.items() if guess.role == "flag"]
        if stage is None and not flags:
            stage = self._find_stage()
            if stage is None:
                flags = self._find_flags()
        if stage is not None:
            self._order_stages(stage)
        elif flags:
            self._order_flags(flags)

    def _find_stage(self) -> str | None:
        request = self._column("request")
        candidates = []
        for facts in self._free():
            if facts.kind not in ("text", "whole") or not 2 <= facts.distinct <= MOST_STAGES or facts.missing:
                continue
            if self._is_constant(request, facts.name) or self._is_constant(self._column("item"), facts.name):
                continue
            named = bool(STAGE & set(words(facts.name)))
            values = self.frame[facts.name].unique().to_list()
            known = facts.kind == "text" and sum(funnel_place(str(value)) is not None for value in values) >= 2
            numbered = facts.kind == "whole" and named and facts.low == 0 and facts.high == facts.distinct - 1
            if known or numbered or (named and facts.kind == "text"):
                candidates.append((known + named, facts.name))
        if not candidates:
            return None
        score, name = max(candidates)
        self._set(name, "stage", "high" if score == 2 else "medium", "few values, which are stages of a funnel")
        return name

    def _order_stages(self, column: str) -> None:
        """Order the values of a column of stages: by known names, else the most frequent first."""
        facts = self.facts[column]
        if facts.kind == "whole":
            if facts.low != 0 or facts.high != facts.distinct - 1:
                self._problem(
                    "stage", f"{column} has the numbers {facts.low:g} to {facts.high:g}, expected names or 0, 1, 2, ..."
                )
            self.guesses.stages = [f"stage_{number}" for number in range(int(facts.high) + 1)]
            self.guesses.checks.append(f"stages: 0 in {column} must be the stage that drops items first")
            return
        counts = dict(self.frame[column].value_counts().iter_rows())
        known = {str(value): funnel_place(str(value)) for value in counts}
        if all(place is not None for place in known.values()) and len(set(known.values())) == len(known):
            self.guesses.stages = sorted(counts, key=lambda value: known[value] or (0, 0))
            self.guesses.checks.append("stages: the order was guessed from their names; items dropped first come first")
        else:
            self.guesses.stages = sorted(counts, key=lambda value: -counts[value])
            self.guesses.checks.append(
                "stages: the order was guessed from the number of rows; items dropped first must come first"
            )

    def _find_flags(self) -> list[str]:
        item = self._column("item")
        flags = [
            facts.name
            for facts in self._free()
            if facts.is_flag
            and funnel_place(facts.name) is not None
            and (facts.distinct == 1 or not self._is_constant(item, facts.name))
        ]
        own = [name for name in flags if not set(words(name)) & (LABEL | VIEW)]
        own = [name for name in own if (funnel_place(name) or (0, 0))[0] < len_of_funnel()]
        if len(own) < LEAST_FUNNEL_FLAGS:
            return []
        for name in own:
            self._set(name, "flag", "medium", "0 or 1, and its name is that of a stage")
        return own

    def _order_flags(self, flags: Sequence[str]) -> None:
        """Order flags: nested ones by their number of items, others by their names; drop stages without items."""
        means = {name: share(_above_zero(self.frame[name])) for name in flags}
        by_size = sorted(flags, key=lambda name: -means[name])
        nested = all(
            bool((_above_zero(self.frame[outer]) | ~_above_zero(self.frame[inner])).all())
            for outer, inner in pairwise(by_size)
        )
        order = by_size if nested else sorted(flags, key=lambda name: (funnel_place(name) or (99, 0), -means[name]))
        deepest = pl.Series([-1] * len(self.frame))
        for number, name in enumerate(order):
            deepest = deepest.zip_with(~_above_zero(self.frame[name]), pl.Series([number] * len(self.frame)))
        kept = [name for number, name in enumerate(order) if bool((deepest == number).any())]
        for name in order:
            if name not in kept:
                self._set(name, "ignore", "medium", "all of its items reached a later stage")
        how = "the number of items" if nested else "their names"
        self.guesses.stages = kept
        self.guesses.checks.append(f"stages: the order was guessed from {how}; items dropped first come first")
        without = int((deepest < 0).sum())
        if without:
            self._problem(
                "flag",
                f"{without:,} rows of the sample reached none of {', '.join(kept)}, but every item has a stage; add a "
                "column that is 1 for all items and name it",
            )

    def _guess_labels(self) -> None:
        item = self._column("item")
        found = [facts for facts in self._free() if self._is_label(facts)]
        if self._column("label") is None and found:
            chosen = max(found, key=self._label_order)
            named = bool(CLICK & set(words(chosen.name))) or len(found) == 1
            self._set(chosen.name, "label", "high" if named else "medium", "its name, differs within a request")
        label = self._column("label")
        for facts in found:
            if facts.name != label:
                self._set(facts.name, "feedback", "medium", "its name, differs within a request")
        self._find_consequences()
        if label is None and not self.guesses.stages:
            flags = [facts.name for facts in self._free() if facts.is_flag and not self._is_constant(item, facts.name)]
            flags = [name for name in flags if not self._is_constant(self._column("request"), name)]
            if len(flags) == 1:
                self._set(flags[0], "label", "low", "the only column of 0 and 1 that differs within a request")
            else:
                self._problem("label", "no column says which items are relevant, such as clicked or bought", flags)

    def _find_consequences(self) -> None:
        """Find numbers that are known only after an item was shown, such as the time that a user spent on it."""
        causes = [name for name, guess in self.found.items() if guess.role in ("label", "feedback")]
        causes += [name for name in self.guesses.stages if name in self.facts and SHOWN & set(words(name))]
        for facts in self._free() if causes else []:
            if self._follows(facts, causes):
                self._set(facts.name, "feedback", "medium", f"above 0 only where {' or '.join(causes[:3])} is")

    def _is_label(self, facts: ColumnFacts) -> bool:
        found = set(words(facts.name))
        if facts.kind not in ("truth", "whole", "number") or facts.low < 0:
            return False
        names = bool(found & LABEL) or bool(found & SHOWN) or (bool(found & VIEW) and facts.is_flag)
        if not names or (found & HISTORIC and not facts.is_flag) or found & {"id", "rank", "index"}:
            return False
        if self._is_constant(self._column("request"), facts.name):
            return False
        return facts.is_flag or not self._is_constant(self._column("item"), facts.name)

    def _label_order(self, facts: ColumnFacts) -> tuple[bool, bool, float]:
        """Order labels: clicks first, then what is not merely shown, then the more frequent one."""
        found = set(words(facts.name))
        positives = share(_above_zero(self.frame[facts.name]))
        return bool(found & (CLICK | {"label", "relevance", "target"})), not found & SHOWN, positives

    def _follows(self, facts: ColumnFacts, causes: Sequence[str]) -> bool:
        """Return whether a number is above 0 only where one of the causes is: a model would see the answer in it."""
        if facts.kind not in ("truth", "whole", "number") or facts.low < 0:
            return False
        above = _above_zero(self.frame[facts.name])
        caused = pl.Series([False] * len(self.frame))
        for name in causes:
            caused |= _above_zero(self.frame[name])
        return 0 < share(above) < 0.5 and not bool((above & ~caused).any())

    def _guess_places(self) -> None:
        request = self._column("request")
        assert request is not None
        for facts in self._free():
            found = set(words(facts.name))
            if facts.kind not in ("whole", "number") or self._is_constant(request, facts.name):
                continue
            if found & SCORE and not found & {"review", "bewertung"} and facts.kind == "number":
                self._set(facts.name, "ignore", "medium", "a score of production, which a new model should not copy")
            elif facts.kind == "whole" and found & (RANK | POSITION):
                self._set_place(facts, request, is_position=bool(found & POSITION))

    def _set_place(self, facts: ColumnFacts, request: str, *, is_position: bool) -> None:
        shown = self.frame.filter(pl.col(facts.name).is_not_null() & (pl.col(facts.name) >= 0))
        if facts.low < 0 and not is_position:
            self._set(facts.name, "ignore", "medium", f"a rank, but {facts.low:g} where there is none, expected empty")
            return
        keys = [request, facts.name, *filter(None, [self._column("stage")])]
        repeats = share(shown.select(keys).is_duplicated())
        role: Role = "position" if is_position and shown[facts.name].min() == 0 else "rank"
        if repeats > 0.02:
            self._set(facts.name, "ignore", "low", "the name of a rank, but items of a request share values")
        elif self._column(role) is not None:
            self._set(facts.name, "ignore", "medium", f"a second {role}")
        else:
            self._set(facts.name, role, "high", f"its name, from {shown[facts.name].min()}, differs within a request")
            if is_position and role == "rank":
                self.guesses.checks.append(
                    f"{facts.name} counts from 1 and is used as rank; for click bias, add a column from 0 and name "
                    "it as position"
                )

    # --- features -------------------------------------------------------------------------------------------------

    def _guess_features(self) -> None:
        user, item = self._column("user"), self._column("item")
        for facts in self._free():
            of_request = self._per_request(facts.name)
            if facts.distinct == 1 and not facts.missing:
                self._set(facts.name, "ignore", "high", f"always {facts.examples[0]}")
            elif facts.kind == "list":
                self._guess_sequence(facts, of_request=of_request)
            elif facts.kind == "time":
                self._set(facts.name, "ignore", "medium", "another time; a feature {kind: time} can use a part of it")
            elif facts.kind == "text" and facts.distinct > 0.5 * len(self.frame):
                self._set(facts.name, "ignore", "medium", "text that is different in most rows")
            elif of_request and self._is_constant(user, facts.name):
                self._set(facts.name, "user_feature", "high", f"one value per {user}")
            elif of_request:
                self._set(facts.name, "context_feature", "high", "one value per request")
            elif self._is_constant(item, facts.name):
                self._set(facts.name, "item_feature", "high", f"one value per {item}")
            else:
                self._set(facts.name, "item_feature", "medium", f"differs within a request, and for one {item}")

    def _guess_sequence(self, facts: ColumnFacts, *, of_request: bool) -> None:
        item = self._column("item")
        assert item is not None
        elements = self.frame[facts.name].explode().drop_nulls()
        known = self.frame[item].unique()
        same = elements.dtype == known.dtype or (elements.dtype.is_integer() and known.dtype.is_integer())
        overlap = (
            float(elements.is_in(known.cast(elements.dtype).implode()).mean() or 0) if same and len(elements) else 0
        )
        if of_request and overlap > 0.3:
            named = bool(SEQUENCE & set(words(facts.name)))
            self._set(facts.name, "sequence", "high" if named else "medium", f"lists of values of {item}")
        else:
            self._set(facts.name, "ignore", "low", "lists; see sequences in the reference")


def len_of_funnel() -> int:
    """Return the number of places of a funnel before clicks: later ones are feedback, not stages."""
    place = funnel_place("click")
    assert place is not None
    return place[0]


def _above_zero(values: pl.Series) -> pl.Series:
    return values.cast(pl.Float64).fill_null(0).fill_nan(0) > 0


def is_categorical(facts: ColumnFacts) -> bool:
    """Return whether a feature is a category rather than a quantity."""
    found = set(words(facts.name))
    if facts.kind in ("text", "truth"):
        return True
    return facts.kind == "whole" and (facts.distinct <= 12 or bool(found & (ID | CATEGORY)))
