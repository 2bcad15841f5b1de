"""What a request is answered."""

from __future__ import annotations

from dataclasses import dataclass

Id = int | str


@dataclass(frozen=True, slots=True)
class StageTrace:
    """What one stage of the funnel did to a request.

    `ids` are the items that it scored, the best first, of which it kept the first `kept`. A stage that searches
    all items knows the scores of those alone that it kept.
    """

    name: str
    ids: list[Id]
    scores: list[float]
    kept: int
    threshold: float | None  # the lowest score that was kept, None if nothing was
    milliseconds: float  # of the batch in which the request was answered


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best items for a request by the scores of the last stage, the best first."""

    ids: list[Id]
    scores: list[float]
    unknown: list[Id]  # candidates that the bundle does not have
    stages: list[StageTrace] | None = None  # the funnel, if it was asked for


@dataclass(frozen=True, slots=True)
class Answers:
    """The rankings of a batch, and the milliseconds that each stage took for all of it."""

    rankings: list[Ranking]
    milliseconds: dict[str, float]
