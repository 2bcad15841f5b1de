"""Drafts of configurations: of a cascade from the shape of its log, of a ranker from its splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankfall.data.sources.draft.draft_spec import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    return "\n".join(_cascade_lines(shape)) + "\n"


def _cascade_lines(shape: LogShape) -> Iterator[str]:
    train, valid, test = split_days(shape.days)
    relevant = max(1, round(shape.positives))
    yield "# A draft by 'rankfall init'. 'rankfall config show config.yaml' checks it and shows all defaults."
    yield "data:"
    yield f"  path: {quoted(shape.path)}"
    yield f"  train: {_range(train)}"
    yield f"  valid: {quoted(valid)}                     # chooses the best epoch"
    if test is not None:
        yield f"  test: {quoted(test)}                      # for the final evaluation only"
    if shape.stages and shape.relevant_stage is None:
        yield "  labels: relevance                       # train all objectives on what is evaluated, not on stages"
    yield from _all_items(shape)
    yield f"relevant: {relevant:<32}# mean number of relevant items of requests that have some"
    yield "stages:                                   # quotas: items that each stage keeps, fewer than arrive; check"
    for name, quota, kind, depth in _steps(shape, relevant):
        min_depth = f", min_depth: {shape.stages[depth]}" if depth else ""
        yield f"  - {{name: {name}, quota: {quota}, model: {{kind: {kind}}}{min_depth}}}"
    yield "# 'rankfall methods --kind objective' lists other objectives"
    yield "objective: {name: lcron, topk: {name: lapsum_topk, tau: 1.0}}"
    yield "optimizer: {lr: 0.01}"
    yield f"training: {{epochs: 3, batch: {_batch(shape.requests_per_day * len(train))}}}"


def _all_items(shape: LogShape) -> Iterator[str]:
    """Train and validate on items outside the lists: a service ranks all of them."""
    length = sum(shape.items)
    if shape.per_request:
        yield f"  # no random items, because features of items depend on the request: {', '.join(shape.per_request)}"
    elif shape.catalogue >= _LARGER * length or not shape.stages:
        negatives = max(1, min(max(_LEAST_NEGATIVES, round(2 * length)), _MOST_NEGATIVES, shape.catalogue // 2))
        yield f"  negatives: {negatives:<29}# random items in each training list: a service ranks all items"
        yield "  length: all                             # validation and test over all items, as in a service"


def split_days(days: Sequence[str]) -> tuple[list[str], str, str | None]:
    """Return the days to train on, the day for validation, and the day for testing if there are three days.

    Raises:
        ValueError: If there are fewer than two days.
    """
    if len(days) < 2:
        found = f"one day, {days[0]}" if days else "no day"
        raise ValueError(
            f"days: found {found}, expected at least two: one to train on and one for validation. A column that "
            "divides the requests into parts can be the day: --role day=COLUMN"
        )
    if len(days) == 2:
        return [days[0]], days[1], None
    return list(days[:-2]), days[-2], days[-1]


def _range(days: Sequence[str]) -> str:
    return quoted(days[0]) if len(days) == 1 else quoted(f"{days[0]}..{days[-1]}")


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


def _batch(requests: float) -> int:
    """Return a power of two from 16 to 1,024 that gives about 50 batches per epoch."""
    size = 16
    while size < 1024 and size * 100 <= requests:
        size *= 2
    return size


def draft_ranker_config(path: str, train: str, valid: str, test: str | None) -> str:
    """Return the text of a configuration of a ranker on prepared lists.

    Args:
        path: Directory of the prepared lists.
        train: Name of the split to train on.
        valid: Name of the split for validation.
        test: Name of the split for testing, or None.
    """
    lines = [
        "# A draft by 'rankfall init'. 'rankfall config show config.yaml' checks it and shows all defaults.",
        "data:",
        f"  path: {quoted(path)}",
        f"  train: {quoted(train)}",
        f"  valid: {quoted(valid)}                           # chooses the best epoch",
        *(
            []
            if test is None
            else [f"  test: {quoted(test)}                            # for the final evaluation only"]
        ),
        "  log1p: false                            # true if features have very large values",
        "model: {kind: mlp, hidden: [256, 128]}",
        "loss: {name: lambda_loss, k: 10}          # 'rankfall methods --kind loss' lists others",
        "optimizer: {lr: 0.001}",
        "training: {epochs: 30, batch: 64, patience: 5, metric: ndcg@10}",
    ]
    return "\n".join(lines) + "\n"
