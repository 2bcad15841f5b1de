"""Label schemes: the grades that a loader makes of the full-stage grades of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec

Labels = Literal["full", "published", "rank", "relevance"]

_PADDING = np.iinfo(np.int32).max


def first_ordered_depth(spec: Spec) -> int:
    """Return the depth of the relevant stage, from which on the scheme ``"published"`` orders items.

    Raises:
        ValueError: If the log has no relevant stage.
    """
    if spec.relevant.stage is None:
        raise ValueError(
            f"labels: found 'published', which orders the items of the relevant stage only, but relevance is the "
            f"column {spec.relevant.column!r} of this log; expected 'full'"
        )
    return spec.stage_names.index(spec.relevant.stage)


def published_grades(
    grade: NDArray[np.integer[Any]], depth: NDArray[np.integer[Any]], mask: NDArray[np.bool_], *, ordered_from: int
) -> NDArray[np.integer[Any]]:
    """Return grades as in LCRON's table 1: one per stage, except that the items of the relevant stage keep their order.

    LCRON labels ``rank_pos`` with 1 to 20, ``rank_neg`` with 21, ``coarse_neg`` with 22 and ``prerank_neg`` with 23;
    the smallest label is the best. Here the grades are 0 for ``prerank_neg``, 1, 2, and from 3 on for ``rank_pos``.
    Items with equal full-stage grades keep equal grades, so random items that were added to a list have grade 0.

    Args:
        grade: Full-stage grades ``(B, N)``.
        depth: Deepest logged stage ``(B, N)`` of each item.
        mask: True for real items ``(B, N)``.
        ordered_from: Depth from which on items keep their order.
    """
    values = np.where(mask, grade, _PADDING)
    for stage in range(-1, ordered_from):
        of_stage = mask & (depth == stage)
        lowest = values.min(axis=1, where=of_stage, initial=_PADDING, keepdims=True)
        values = np.where(of_stage, lowest, values)
    return _places(values, mask)


def rank_grades(rank: NDArray[np.integer[Any]], mask: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return grades by the logged rank alone, whatever the stage (ARF, B.1).

    Use it for logs in which one model ranks the items of all stages. Items without a rank have the lowest grade.

    Args:
        rank: Logged rank ``(B, N)``, the smallest is the best; -1 for none.
        mask: True for real items ``(B, N)``.
    """
    lowest = np.iinfo(np.int32).min
    return _places(np.where(mask, np.where(rank < 0, lowest, -rank), _PADDING), mask)


def relevance_grades(relevance: NDArray[np.floating[Any]], mask: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return grades by the relevance alone: items of equal relevance share a grade, irrelevant items have 0.

    Use it for logs whose relevance is feedback of users: full-stage grades follow the order of production, so that an
    objective trained with them imitates production.

    Args:
        relevance: Relevance ``(B, N)``, at least 0.
        mask: True for real items ``(B, N)``.
    """
    # numbers from 0 on have the same order as their bits
    keys = np.ascontiguousarray(relevance + np.float32(0), np.float32).view(np.int32)  # -0.0 becomes 0.0
    has_zero = (mask & (keys == 0)).any(axis=1, keepdims=True)
    places = _places(np.where(mask, keys, _PADDING), mask)
    return np.where(mask & (keys > 0) & ~has_zero, places + 1, places)


def _places(values: NDArray[np.integer[Any]], mask: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Return the place of each value among the different values of its list, from 0 for the lowest; 0 for padding."""
    order = np.argsort(values, axis=1)
    best_last = np.take_along_axis(values, order, axis=1)
    places = np.zeros_like(values)
    places[:, 1:] = np.cumsum(best_last[:, 1:] != best_last[:, :-1], axis=1)
    grades = np.empty_like(values)
    np.put_along_axis(grades, order, places, axis=1)
    return np.where(mask, grades, grades.dtype.type(0))
