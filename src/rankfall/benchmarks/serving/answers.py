"""Whether a service answers as the bundle does without one.

Models round differently in batches of other sizes, so scores agree within a tolerance, and where two of them are equal
within it, either item may come first, or be the last that is kept.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankfall.serving import Bundle

    Verdict = Literal["same", "tied", "wrong"]

TOLERANCE = 1e-4  # of scores, relative to the larger of 1 and the score
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


class Judge:
    """Holds answers against those expected of the model that they name."""

    def __init__(self, expected: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._expected = expected

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
        return ("same" if answer["ids"] == expected["ids"] else "tied"), ""


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
