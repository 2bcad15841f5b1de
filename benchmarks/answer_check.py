"""Comparison of the answers of a service with those of its bundle.

Models may round differently in batches of another size. Scores therefore agree within a few units of the last digit of
32-bit floats, and two items with equal scores may change places, also at the end of the list. If an answer has an item
that the bundle's own answer lacks, the bundle has to score that item equally.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall.serving import Bundle

    Verdict = Literal["same", "tied", "wrong"]
    # model, index of the request, items of an answer that are not in the expected one, and their scores
    UnexpectedItems = tuple[str, int, Sequence[Any], Sequence[float]]

TOLERANCE = 1e-6  # of scores, relative to the larger of 1 and the score
_BATCH = 32


def model_name(manifest: Mapping[str, Any]) -> str:
    """Return the name of a model in answers."""
    return str(manifest["sha256"])[:12]


def expected_answers(
    bundle: Bundle, requests: Sequence[Mapping[str, Any]], on_requests: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Return the answers of a bundle without a service."""
    answers = []
    for start in range(0, len(requests), _BATCH):
        rankings = bundle.rank(list(requests[start : start + _BATCH]))
        answers += [{"ids": ranking.ids, "scores": ranking.scores} for ranking in rankings]
        on_requests(len(rankings))
    return answers


def wrong_unexpected_items(
    bundles: Mapping[str, Bundle], requests: Sequence[Mapping[str, Any]], unexpected: Sequence[UnexpectedItems]
) -> Iterator[str]:
    """Yield why answers with unexpected items are wrong: the bundle scores these items differently."""
    known: dict[tuple[Any, ...], list[float]] = {}  # the same requests are repeated
    for model, place, ids, scores in unexpected:
        key = (model, place, *ids)
        if key not in known:
            *_, known[key] = bundles[model].score(requests[place], list(ids)).values()
        for item, score, right in zip(ids, scores, known[key], strict=True):
            if not _equal(score, right):  # also if the item does not exist: its score is NaN
                yield f"request {place}: item {item} was returned with the score {score}, expected {right}"
                break


class AnswerChecker:
    """Compares answers with the expected answers of the model that they name.

    `unexpected` collects the items that are not in the expected answers; only the bundle can verify their scores.
    """

    def __init__(self, expected: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._expected = expected
        self.unexpected: list[UnexpectedItems] = []

    @classmethod
    def read(cls, path: Path) -> AnswerChecker:
        """Load expected answers from a file: ``{model: [{"ids": [...], "scores": [...]}, ...]}``."""
        return cls(json.loads(path.read_text()))

    def __call__(self, place: int, answer: Mapping[str, Any]) -> tuple[Verdict, str]:
        """Return the verdict on the answer to the request at index `place`, and the reason if it is wrong."""
        if answer["model"] not in self._expected:
            return "wrong", f"its model {answer['model']} was never loaded"
        expected = self._expected[answer["model"]][place]
        why = _difference(answer["ids"], answer["scores"], expected["ids"], expected["scores"])
        if why:
            return "wrong", f"{why}; answered {answer}, expected {expected}"
        if answer["ids"] == expected["ids"]:
            return "same", ""
        scores = dict(zip(answer["ids"], answer["scores"], strict=True))
        if unexpected := [item for item in scores if item not in expected["ids"]]:
            self.unexpected.append((answer["model"], place, unexpected, [scores[item] for item in unexpected]))
        return "tied", ""


def _difference(ids: Sequence[Any], scores: Sequence[float], right: Sequence[Any], scored: Sequence[float]) -> str:
    """Return how a ranking differs from the expected one; an empty text if they are equivalent."""
    if len(ids) != len(right) or len(scores) != len(right) or len(set(ids)) != len(ids):
        return f"{len(set(ids))} different items with {len(scores)} scores, not {len(right)}"
    if not all(map(_equal, scores, scored)):
        return "different scores"
    known = dict(zip(right, scored, strict=True))
    for item, score in zip(ids, scores, strict=True):
        # an item that is not expected has to be as good as the last expected one
        if not _equal(score, known.get(item, scored[-1])):
            return f"item {item} at a wrong rank"
    return ""


def _equal(found: float, expected: float) -> bool:
    return abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))
