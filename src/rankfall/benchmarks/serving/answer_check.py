"""Whether a service answers as the bundle does without one.

Models may round differently in batches of other sizes, so scores agree within a few units of the last digit of 32-bit
numbers, and where two of them are equal within that, either item may come first, or be the last that is kept. An item
that the bundle itself leaves out has to have the score that it was answered with, for which the bundle is asked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall.serving import Bundle

    Verdict = Literal["same", "tied", "wrong"]
    # a model, the place of a request, the items of an answer that the model itself leaves out, and their scores
    Strangers = tuple[str, int, Sequence[Any], Sequence[float]]

TOLERANCE = 1e-6  # of scores, relative to the larger of 1 and the score
_AT_ONCE = 32


def model_name(manifest: Mapping[str, Any]) -> str:
    """What answers call a bundle."""
    return str(manifest["sha256"])[:12]


def expected_answers(
    bundle: Bundle, requests: Sequence[Mapping[str, Any]], on_requests: Callable[[int], None]
) -> list[dict[str, Any]]:
    """What a bundle answers to requests by itself."""
    answers = []
    for start in range(0, len(requests), _AT_ONCE):
        rankings = bundle.rank(list(requests[start : start + _AT_ONCE]))
        answers += [{"ids": ranking.ids, "scores": ranking.scores} for ranking in rankings]
        on_requests(len(rankings))
    return answers


def wrong_strangers(
    bundles: Mapping[str, Bundle], requests: Sequence[Mapping[str, Any]], strangers: Sequence[Strangers]
) -> Iterator[str]:
    """Why answers are wrong although their strangers are said to be as good as what is expected."""
    known: dict[tuple[Any, ...], list[float]] = {}  # requests come again and again
    for model, place, ids, scores in strangers:
        key = (model, place, *ids)
        if key not in known:
            *_, known[key] = bundles[model].score(requests[place], list(ids)).values()
        for item, score, right in zip(ids, scores, known[key], strict=True):
            if not _equal(score, right):  # nor if there is no such item, whose score is no number
                yield f"request {place}: item {item} was answered with the score {score}, its own is {right}"
                break


class Judge:
    """Holds answers against those expected of the model that they name.

    `strangers` are of the answers with items that are not expected: whether these are right only the bundle can tell.
    """

    def __init__(self, expected: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._expected = expected
        self.strangers: list[Strangers] = []

    @classmethod
    def read(cls, path: Path) -> Judge:
        """The expected answers of a file: ``{model: [{"ids": [...], "scores": [...]}, ...]}``."""
        return cls(json.loads(path.read_text()))

    def __call__(self, place: int, answer: Mapping[str, Any]) -> tuple[Verdict, str]:
        """Whether an answer to the request at `place` is right, and if not, why."""
        if answer["model"] not in self._expected:
            return "wrong", f"it is of the model {answer['model']}, which nobody loaded"
        expected = self._expected[answer["model"]][place]
        why = _difference(answer["ids"], answer["scores"], expected["ids"], expected["scores"])
        if why:
            return "wrong", f"{why}; answered {answer}, expected {expected}"
        if answer["ids"] == expected["ids"]:
            return "same", ""
        scores = dict(zip(answer["ids"], answer["scores"], strict=True))
        if strangers := [item for item in scores if item not in expected["ids"]]:
            self.strangers.append((answer["model"], place, strangers, [scores[item] for item in strangers]))
        return "tied", ""


def _difference(ids: Sequence[Any], scores: Sequence[float], right: Sequence[Any], scored: Sequence[float]) -> str:
    """What makes a ranking another one, nothing if it is as good as the right one."""
    if len(ids) != len(right) or len(scores) != len(right) or len(set(ids)) != len(ids):
        return f"{len(set(ids))} different items with {len(scores)} scores, not {len(right)}"
    if not all(map(_equal, scores, scored)):
        return "other scores"
    known = dict(zip(right, scored, strict=True))
    for item, score in zip(ids, scores, strict=True):
        # what the bundle itself leaves out is as good as the last that it keeps
        if not _equal(score, known.get(item, scored[-1])):
            return f"item {item} in a place that is not its own"
    return ""


def _equal(found: float, expected: float) -> bool:
    return abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))
