"""Gradient conflict by operator on synthetic lists; :mod:`rankfall.studies.diagnosis.operator_conflict` measures it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reporting.figures import Lines
from rankfall.reproductions.synthetic_lists import make_lists
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.diagnosis.operator_conflict import BOUNDARY, LOWERED, MEASURES, measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.reproductions.paper_schema import GradientConflict
    from rankfall.reproductions.task import Task
    from rankfall.studies.diagnosis.operator_conflict import Shares

QUICK_LISTS = 200


def run(reproduction: GradientConflict, task: Task) -> Report:
    """Measure every operator at every k."""
    lists = reproduction.lists
    if task.quick:
        lists = lists.model_copy(update={"lists": min(lists.lists, QUICK_LISTS)})
    scores, relevant = make_lists(lists, task.seed)
    shares: dict[str, dict[int, Shares]] = {name: {} for name in reproduction.operators}
    for number, (name, options) in enumerate(reproduction.operators.items()):
        task.progress(name, number, len(shares))
        for k in reproduction.ks:
            shares[name][k] = measure(options, scores, relevant, k)
    drawn = [
        {"panel": measure, "series": name, "x": k, "y": 100 * by_k[k][measure]}
        for measure in (LOWERED, BOUNDARY)
        for name, by_k in shares.items()
        for k in by_k
    ]
    return Report(
        sheets=[_sheet(measure, shares, reproduction.ks) for measure in MEASURES],
        plots={
            reproduction.id: Lines(
                drawn,
                title=f"{reproduction.title}: gradient conflict by operator",
                subtitle=f"percent; {lists.lists} lists of {lists.items} items, {lists.relevant} of them relevant",
                x="k",
                y="percent",
                series="operator",
                ticks=reproduction.ks,
            )
        },
        results={
            "lists": lists.model_dump(),
            "shares": {name: {f"{k}": dict(found) for k, found in by_k.items()} for name, by_k in shares.items()},
            "published": "a drawing without numbers",
        },
        notes=reproduction.notes,
    )


def _sheet(measure: str, shares: Mapping[str, Mapping[int, Shares]], ks: list[int]) -> Sheet:
    measured = {name: by_k for name, by_k in shares.items() if any(measure in found for found in by_k.values())}
    rows = [
        [name, *(f"{100 * by_k[k][measure]:.1f}" if measure in by_k[k] else "-" for k in ks)]
        for name, by_k in measured.items()
    ]
    return Sheet(f"percent: {measure}", ["operator", *(f"k = {k}" for k in ks)], rows)
