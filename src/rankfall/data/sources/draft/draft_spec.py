"""The draft of a spec of a log, as YAML with comments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rankfall._errors import RankfallError
from rankfall.data.sources.draft.column_facts import words
from rankfall.data.sources.draft.guesses import deepest_flags, is_categorical

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.data.impressions.spec import Group
    from rankfall.data.sources.draft.column_facts import ColumnFacts, Guesses, Role, Sample


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_COMMENT_AT = 46
_MANY_VALUES = 20_000
_SKEWED = 20.0  # the largest number over the median from which a logarithm helps
_KEYS: tuple[Role, ...] = ("request", "item", "user", "time", "day", "stage", "rank", "position")
_GROUPS: dict[Group, Role] = {"user": "user_feature", "context": "context_feature", "item": "item_feature"}


def quoted(value: str) -> str:
    """Return a text as a YAML value, with quotes where they are needed.

    >>> quoted("price"), quoted("Preis (EUR)"), quoted("no")
    ('price', '"Preis (EUR)"', '"no"')
    """
    return (
        value if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS else json.dumps(value, ensure_ascii=False)
    )


def feature_name(column: str, taken: Sequence[str] = ()) -> str:
    """Return a name for the feature of a column: the column's own name if that is allowed.

    >>> feature_name("Preis (EUR)"), feature_name("größe"), feature_name("a", ["a"])
    ('preis_eur', 'grosse', 'a_2')
    """
    name = column if _NAME.fullmatch(column) and column.lower() not in _YAML_WORDS else "_".join(words(column))
    if not name or not _NAME.fullmatch(name):
        name = f"column_{name}".rstrip("_")
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique


def is_stage_name(value: str) -> bool:
    """Return whether a value of a column can be the name of a stage."""
    return _NAME.fullmatch(value) is not None


def draft_spec(sample: Sample, guesses: Guesses) -> str:
    """Return the text of a spec, with comments that say what was guessed from what.

    Args:
        sample: Rows and facts about the columns.
        guesses: The roles of the columns. Request, item, a time or day, and a label or stages must be among them.
    """
    return "\n".join(_SpecDraft(sample, guesses).lines()) + "\n"


class _SpecDraft:
    """Writes the sections of a spec."""

    def __init__(self, sample: Sample, guesses: Guesses) -> None:
        self.sample, self.facts, self.guesses = sample, sample.facts, guesses
        self.names: dict[str, str] = {}  # of item features, by column

    def lines(self) -> Iterator[str]:
        yield "# A draft by 'rankfall init', guessed from names and values of columns. Check each line, then run"
        yield "# 'rankfall prepare rows'. The keys are explained in docs/reference/impression-log.md."
        yield from (f"# Check: {check}." for check in self.guesses.checks)
        yield from self._keys()
        yield from self._stages()
        yield from self._labels()
        yield from self._features()
        yield from self._sequences()
        ignored = [f"{quoted(name)} ({self.guesses.of[name].why})" for name in self.guesses.all("ignore")]
        if ignored:
            yield "# Not used:"
            yield from (f"#   {text}" for text in ignored)

    def _line(self, text: str, column: str | None = None, comment: str = "") -> str:
        guess = None if column is None else self.guesses.of[column]
        if guess is not None:
            why = "given by --role" if guess.confidence == "given" else f"{guess.confidence} confidence: {guess.why}"
            comment = f"{why}; {comment}" if comment else why
        return f"{text:<{_COMMENT_AT}}  # {comment}" if comment else text

    def _keys(self) -> Iterator[str]:
        for role in _KEYS:
            if (column := self.guesses.one(role)) is None:
                continue
            text = quoted(column)
            if role == "time" and (unit := self.facts[column].unit):
                text = f"{{column: {text}, unit: {unit}}}"
            zone = "days begin in UTC unless zone: says otherwise" if role == "time" else ""
            yield self._line(f"{role}: {text}", column, zone)

    def _stages(self) -> Iterator[str]:
        if not self.guesses.stages:
            return
        yield self._line("stages:", comment="in the order of the funnel: items dropped first come first")
        counts = items_per_stage(self.sample, self.guesses)
        for stage, count in zip(self.guesses.stages, counts, strict=True):
            has_flags = self.guesses.one("stage") is None
            text = f"{{name: {feature_name(stage)}, flag: {quoted(stage)}}}" if has_flags else f"{{name: {stage}}}"
            many = "; sample: 10 in the braces keeps 10 of them" if count > 20 else ""
            yield self._line(f"  - {text}", comment=f"{count:.1f} items per request{many}")

    def _labels(self) -> Iterator[str]:
        label = self.guesses.one("label")
        if label is None:
            stage = feature_name(self.guesses.stages[self.guesses.relevant_stage])
            yield self._line(
                f"relevant: {stage}", comment="no column of clicks was found: items that reached this stage"
            )
        else:
            yield self._line(f"relevant: {{column: {quoted(label)}}}", label)
        kept = [column for column in (label, *self.guesses.all("feedback")) if column is not None]
        if kept:
            yield self._line(f"feedback: [{', '.join(map(quoted, kept))}]", comment="kept for evaluation and histories")

    def _features(self) -> Iterator[str]:
        yield "features:"
        for group, role in _GROUPS.items():
            found = list(self._group(group, role))
            if found:
                yield f"  {group}:"
                yield from found

    def _group(self, group: Group, role: Role) -> Iterator[str]:
        taken: list[str] = []
        key = self.guesses.one("user" if group == "user" else "item") if group != "context" else None
        if group == "context" and self.guesses.one("time") is not None:
            taken += ["weekday", "hour"]
            yield from (f"    {part}: {{kind: time, part: {part}}}" for part in taken)
        for column in filter(None, (key, *self.guesses.all(role))):
            facts = self.facts[column]
            taken.append(name := feature_name(column, taken))
            is_id = column == key or is_categorical(facts)
            text = f"    {name}: {self._categorical(facts, name) if is_id else self._dense(facts, name)}"
            missing = f", {facts.missing:.1%} missing" if facts.missing else ""
            values = f"{facts.distinct:,} values{missing}"
            yield self._line(text, comment="the id as a feature") if column == key else self._line(text, column, values)
            if is_id and group == "item":
                self.names[column] = name

    def _categorical(self, facts: ColumnFacts, name: str) -> str:
        column = "" if facts.name == name else f", column: {quoted(facts.name)}"
        ids = "hash_bucket_size: 100000" if facts.distinct > _MANY_VALUES else "vocabulary: true"
        return f"{{kind: categorical{column}, {ids}}}"

    def _dense(self, facts: ColumnFacts, name: str) -> str:
        options = "" if facts.name == name else f", column: {quoted(facts.name)}"
        if facts.kind == "vector":
            return f"{{kind: dense{options}, size: {facts.size}}}"
        values = self.sample.frame[facts.name].cast(pl.Float64).drop_nulls().drop_nans()
        median = float(np.median(values.to_numpy()))
        if facts.low >= 0 and facts.high > _SKEWED * max(median, 1e-9):
            options += ", log1p: true"
        if facts.missing:
            options += ", missing: 0"
        return f"{{kind: dense{options}, standardise: true}}"

    def _sequences(self) -> Iterator[str]:
        item, label = self.guesses.key("item"), self.guesses.key("label")
        columns = self.guesses.all("sequence")
        has_history = bool(label and self.guesses.one("user") and self.guesses.one("time"))
        if not columns and not has_history:
            return
        yield "sequences:"
        for column in columns:
            own = self.names[item]
            text = f"{{max_length: 50, features: [{own}], columns: {{{own}: {quoted(column)}}}}}"
            yield self._line(f"  {feature_name(column)}: {text}", column)
        if has_history and not columns:
            features = ", ".join(self.names.values())
            text = f"{{max_length: 50, features: [{features}], feedback: {quoted(label)}}}"
            yield f"  history: {text}"


def items_per_stage(sample: Sample, guesses: Guesses) -> list[float]:
    """Return the mean number of items per request whose deepest stage is each of the stages."""
    requests = max(1, sample.facts[guesses.key("request")].distinct)
    column, numbers = guesses.one("stage"), list(range(len(guesses.stages)))
    if column is None:
        depth = deepest_flags(sample.frame, guesses.stages)
    elif (depth := sample.frame[column]).dtype == pl.String:
        depth = depth.replace_strict(guesses.stages, numbers, default=-1, return_dtype=pl.Int64)
    return [int((depth == number).sum()) / requests for number in numbers]


_NAMES = {2: ["retrieval", "ranking"], 3: ["retrieval", "preranking", "ranking"]}
MOST_STEPS = 3
_LARGER = 2  # items of a log over those of a list, from which recall on lists says little about a service
_LEAST_NEGATIVES, _MOST_NEGATIVES = 20, 200


@dataclass(frozen=True, slots=True)
class LogShape:
    """What the configuration of a cascade depends on.

    Attributes:
        path: Directory of the prepared log.
        days: All days, in their order.
        stages: Names of the logged stages in the order of the funnel; empty without a funnel.
        items: Mean number of items per request whose deepest stage is each of these; one number without a funnel.
        positives: Mean number of relevant items of the requests that have some.
        relevant_stage: Number of the stage from which on items are relevant; None if a column says it.
        requests_per_day: Mean number of requests per day.
        has_sequences: Whether the log has behaviour sequences.
        catalogue: Number of items.
        per_request: Item features that depend on the request, so that random items have no value of them.
    """

    path: str
    days: list[str]
    stages: list[str]
    items: list[float]
    positives: float
    relevant_stage: int | None
    requests_per_day: float
    has_sequences: bool
    catalogue: int
    per_request: list[str]


def draft_cascade_config(shape: LogShape) -> str:
    """Return the text of a configuration for ``rankfall train``.

    Raises:
        ValueError: If the log has fewer than two days.
    """
    return "".join(f"{line}\n" for line in _cascade_lines(shape))


def _cascade_lines(shape: LogShape) -> Iterator[str]:
    train, valid, test = split_days(shape.days)
    relevant = max(1, round(shape.positives))
    yield "# A draft by 'rankfall init'. 'rankfall config show config.yaml' checks it and shows all defaults."
    yield "data:"
    yield f"  path: {quoted(shape.path)}"
    yield f"  train: {quoted(train[0] if len(train) == 1 else f'{train[0]}..{train[-1]}')}"
    yield f"  valid: {quoted(valid)}                     # chooses the best epoch"
    if test is not None:
        yield f"  test: {quoted(test)}                      # for the final evaluation only"
    if shape.stages and shape.relevant_stage is None:
        yield "  labels: relevance                       # train all objectives on what is evaluated, not on stages"
    length = sum(shape.items)
    if shape.per_request:
        yield f"  # no random items, because features of items depend on the request: {', '.join(shape.per_request)}"
    elif shape.catalogue >= _LARGER * length or not shape.stages:  # train and validate on items outside the lists, too
        negatives = max(1, min(max(_LEAST_NEGATIVES, round(2 * length)), _MOST_NEGATIVES, shape.catalogue // 2))
        yield f"  negatives: {negatives:<29}# random items in each training list: a service ranks all items"
        yield "  length: all                             # validation and test over all items, as in a service"
    yield f"relevant: {relevant:<32}# mean number of relevant items of requests that have some"
    yield "stages:                                   # quotas: items that each stage keeps, fewer than arrive; check"
    for name, quota, kind, depth in _steps(shape, relevant):
        min_depth = f", min_depth: {shape.stages[depth]}" if depth else ""
        yield f"  - {{name: {name}, quota: {quota}, model: {{kind: {kind}}}{min_depth}}}"
    yield "# 'rankfall methods --kind objective' lists other objectives"
    yield "objective: {name: lcron, topk: {name: lapsum_topk, tau: 1.0}}"
    yield "optimizer: {lr: 0.01}"
    batch = 16  # a power of two that gives about 50 batches per epoch
    while batch < 1024 and batch * 100 <= shape.requests_per_day * len(train):
        batch *= 2
    yield f"training: {{epochs: 3, batch: {batch}}}"


def split_days(days: Sequence[str]) -> tuple[list[str], str, str | None]:
    """Return the days to train on, the day for validation, and the day for testing if there are three days.

    Raises:
        ValueError: If there are fewer than two days.
    """
    if len(days) < 2:
        found = f"one day, {days[0]}" if days else "no day"
        raise RankfallError(
            f"days: found {found}, expected at least two: one to train on and one for validation. A column that "
            "divides the requests into parts can be the day: --role day=COLUMN"
        )
    if len(days) == 2:
        return [days[0]], days[1], None
    return list(days[:-2]), days[-2], days[-1]


def _steps(shape: LogShape, relevant: int) -> Iterator[tuple[str, int, str, int]]:
    """Return name, quota, model and first logged stage of each stage of the cascade.

    A quota is the number of items that reached the next stage of the log. If a column says which items are relevant and
    the log has at most `MOST_STEPS` stages, one more stage keeps half of the items that reached the last one.
    """
    reached = [sum(shape.items[depth:]) for depth in range(len(shape.items))]
    kept = reached[1:] if shape.relevant_stage is None else reached[1 : shape.relevant_stage + 1] or reached[:1]
    if shape.relevant_stage is None and len(kept) < MOST_STEPS:
        kept = [*kept, reached[-1] / 2]
    steps = list(range(len(kept)))
    if len(steps) > MOST_STEPS:
        steps = [0, len(steps) // 2, len(steps) - 1]
    depths, kept = [0, *(step + 1 for step in steps[:-1])], [kept[step] for step in steps]
    if len(depths) == 1:
        depths, kept = [0, 0], [(reached[0] + kept[0]) / 2, kept[0]]
    quota = max(1, int(reached[0]))
    for number, (depth, count) in enumerate(zip(depths, kept, strict=True)):
        quota = max(1, min(quota, max(relevant, round(count))))
        is_last = number == len(depths) - 1
        kind = "two_tower" if number == 0 else "din" if is_last and shape.has_sequences else "mlp"
        yield _NAMES[len(depths)][number], quota, kind, depth


def draft_ranker_config(path: str, train: str, valid: str, test: str | None) -> str:
    """Return the text of a configuration of a ranker on prepared lists.

    Args:
        path: Directory of the prepared lists.
        train: Name of the split to train on.
        valid: Name of the split for validation.
        test: Name of the split for testing, or None.
    """
    tests = [] if test is None else [test]
    lines = [
        "# A draft by 'rankfall init'. 'rankfall config show config.yaml' checks it and shows all defaults.",
        "data:",
        f"  path: {quoted(path)}",
        f"  train: {quoted(train)}",
        f"  valid: {quoted(valid)}                           # chooses the best epoch",
        *(f"  test: {quoted(name)}                            # for the final evaluation only" for name in tests),
        "  log1p: false                            # true if features have very large values",
        "model: {kind: mlp, hidden: [256, 128]}",
        "loss: {name: lambda_loss, k: 10}          # 'rankfall methods --kind loss' lists others",
        "optimizer: {lr: 0.001}",
        "training: {epochs: 30, batch: 64, patience: 5, metric: ndcg@10}",
    ]
    return "\n".join(lines) + "\n"
