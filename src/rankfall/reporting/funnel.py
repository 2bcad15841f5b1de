"""The picture of a funnel: what each stage kept and lost of the ground truth, on a linear scale.

A bar is the whole ground truth. Its first part is what is left after the stage, its second part what the stage lost,
its last part what earlier stages lost. A mark shows what would be left if the stage kept items at random of those that
arrived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rankfall.reporting.charts import (
    GONE,
    INK,
    KEPT,
    LOST,
    ON_KEPT,
    Chart,
    Key,
    Panel,
    Scale,
    Strip,
    color,
    estimate,
    line,
    on_axis,
    pointer,
    rect,
    short,
    text,
)
from rankfall.training.config.component_checks import JOINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.studies.results import EvaluationSummary, MetricSummary
    from rankfall.training.cascade_metrics import StageFigures


_SCALE = Scale(0.0, 1.0)
_NARROW = 10  # percent that a number needs in a wide bar; in a narrow one there is no room for a sign
_MANY = 100  # items, above which a mean needs no decimals


@dataclass(frozen=True)
class Step:
    """A stage of a funnel.

    Attributes:
        stage: name of the stage.
        before: share of the ground truth that arrived.
        left: share of the ground truth that is left after the stage.
        chance: share of the ground truth that a random stage would leave of what arrived.
        low: lower end of the interval of `left`, None if it is not known.
        high: upper end.
        quota: number of items that the stage keeps, None if it is not known.
        notes: figures in words.
    """

    stage: str
    before: float
    left: float
    chance: float
    low: float | None = None
    high: float | None = None
    quota: int | None = None
    entered: float | None = None
    notes: Sequence[str] = ()

    @property
    def lost(self) -> float:
        """Share of the ground truth that the stage lost."""
        return self.before - self.left

    @property
    def name(self) -> str:
        """The stage, with the number of items that it keeps."""
        if self.quota is None:
            return self.stage
        if self.entered is None or math.isnan(self.entered):
            return f"{self.stage} keeps {self.quota:,}"
        entered = f"{self.entered:,.0f}" if self.entered >= _MANY else f"{self.entered:,.1f}".removesuffix(".0")
        return f"{self.stage} keeps {self.quota:,} of {entered}"

    @property
    def words(self) -> str:
        """The stage in words."""
        return f"{self.name}: {short(self.left)} left, {short(self.lost)} lost, by chance {short(self.chance)}"


# --- steps of results ---------------------------------------------------------------------------------------------


def steps_of(stages: Sequence[StageFigures]) -> list[Step]:
    """Return the steps of measured stages."""
    before = [1.0, *(one.survived.value for one in stages)]
    return [
        Step(
            stage=one.stage,
            before=arrived,
            left=one.survived.value,
            chance=arrived * one.chance,
            low=one.survived.low,
            high=one.survived.high,
            quota=one.quota,
            entered=one.entered,
            notes=_notes(one),
        )
        for arrived, one in zip(before, stages, strict=False)
    ]


def _notes(one: StageFigures) -> list[str]:
    kept, lost = (estimate(found.value, found.low, found.high) for found in (one.kept, one.lost))
    return [f"kept {kept}, chance {short(one.chance)}", f"lost {lost}{of_all_losses(one.loss_share.value)}"]


def of_all_losses(share: float) -> str:
    """Return a share of all losses as the end of a sentence; "" for NaN."""
    return "" if math.isnan(share) else f", {100 * share:.0f}\N{NO-BREAK SPACE}% of all losses"


def steps_from_means(
    means: Mapping[str, float], chance: Mapping[str, float], quotas: Mapping[str, int] | None = None
) -> list[Step]:
    """Return the steps from means of ``STAGE/lost``, which comparisons have.

    A random cascade leaves a share of the ground truth after each stage. The ratio of that share to the one before is
    what a random stage keeps of what arrives.
    """
    stages = stages_in(means)
    left, by_chance = [1.0], [1.0]
    for stage in stages:
        left.append(left[-1] - means[f"{stage}/lost"])
        by_chance.append(by_chance[-1] - chance[f"{stage}/lost"])
    steps = []
    for stage, (before, after), (above, below) in zip(stages, pairwise(left), pairwise(by_chance), strict=True):
        kept = after / before if before > 0 else math.nan
        random = below / above if above > 0 else math.nan
        notes = [f"kept {short(kept)}, chance {short(random)}", f"lost {short(before - after)}"]
        quota = None if quotas is None else quotas.get(stage)
        steps.append(Step(stage, before, after, before * random, quota=quota, notes=notes))
    return steps


def stages_in(metrics: Mapping[str, object] | Sequence[str]) -> list[str]:
    """Return the stages of a cascade by the names of its metrics, none for a ranker."""
    return [name.removesuffix("/lost") for name in metrics if name.endswith("/lost")]


# --- charts -------------------------------------------------------------------------------------------------------


def funnel_chart(steps: Sequence[Step], production: Sequence[Step] | None = None, *, title: str = "Funnel") -> Chart:
    """Return the funnel of a cascade, with that of production below each bar if it is known."""
    others: Sequence[Step | None] = production or [None] * len(steps)
    strips = []
    for step, other in zip(steps, others, strict=True):
        parts = _bar(step, top=3, height=36, room=10)
        if other is not None:
            parts += _production_bar(other, top=49)
        notes = [*step.notes, *([f"production {other.notes[0]}"] if other else [])]
        strips.append(Strip(parts, 66 if other else 50, step.name, notes))
    label = "Share of the relevant items that is left after each stage: " + "; ".join(step.words for step in steps)
    if production:
        label += ". Production: " + "; ".join(step.words for step in production)
    return Chart(
        title=title,
        label=label,
        panels=[Panel(on_axis(strips, _SCALE))],
        legend=_legend(intervals=any(step.low is not None for step in steps), production=production is not None),
    )


def funnel_of_summary(summary: EvaluationSummary) -> Chart:
    """Return the funnel of an evaluation, beside that of production if it is known."""
    return funnel_chart(steps_of(summary.funnel or ()), steps_of(summary.production) if summary.production else None)


def funnel_panels(funnels: Mapping[str, Sequence[Step]], notes: Mapping[str, str], *, caption: str = "") -> Chart:
    """Return a small funnel per method, side by side."""
    panels = []
    for name, steps in funnels.items():
        strips = [Strip(_bar(step, top=1, height=19, room=19), 30, step.name) for step in steps]
        panels.append(Panel(on_axis(strips, _SCALE, about=2), name, notes.get(name, "")))
    words = (f"{name}: {'; '.join(step.words for step in steps)}" for name, steps in funnels.items())
    return Chart(
        title="Funnels",
        label="Share of the relevant items that is left after each stage. " + ". ".join(words),
        panels=panels,
        legend=_legend(),
        caption=caption,
        least=200,
    )


def method_steps(metrics: Mapping[str, MetricSummary], quotas: Mapping[str, int] | None = None) -> list[Step]:
    """Return the steps of a method of a comparison or a stream."""
    means = {name: one.mean for name, one in metrics.items()}
    return steps_from_means(means, {name: one.chance for name, one in metrics.items()}, quotas)


def has_funnel(metrics: Sequence[str]) -> bool:
    """Whether the metrics are those of a cascade."""
    return JOINT in metrics and bool(stages_in(metrics))


def _legend(*, intervals: bool = False, production: bool = False) -> list[Key]:
    keys = [Key("left after the stage", KEPT), Key("lost by the stage", LOST), Key("lost before", GONE)]
    keys.append(Key("left if the stage chose at random", INK, "mark"))
    keys += [Key("95 % interval of what is left", INK, "line")] * intervals
    keys += [Key("left by production", color(5))] * production
    return keys


def _bar(step: Step, *, top: float, height: float, room: float) -> list[str]:
    """Return the parts of a bar, numbers in them, the interval and the mark of chance.

    Args:
        step: the stage.
        top: upper edge in pixels.
        height: height in pixels.
        room: percent of the width that a number needs.
    """
    left, before = 100 * _inside(step.left), 100 * _inside(step.before)
    parts = [
        rect(0, top, left, height, KEPT),
        rect(left, top, before - left, height, LOST),
        rect(before, top, 100 - before, height, GONE),
    ]
    if step.low is not None and step.high is not None and not math.isnan(step.low):
        y = top + 0.8 * height
        ends = [100 * _inside(step.low), 100 * _inside(step.high)]
        parts.append(line(ends[0], y, ends[1], y, INK, 1.5))
        parts += [line(end, y - 4, end, y + 4, INK, 1.5) for end in ends]
    parts += _numbers(step, left, before, top + (0.52 if step.low is not None else 0.68) * height, room)
    if not math.isnan(step.chance):
        at = 100 * _inside(step.chance)
        parts.append(pointer(at, top + height, INK))
    return parts


def _numbers(step: Step, left: float, before: float, y: float, room: float) -> list[str]:
    """Return what is left and what is lost as numbers, where there is room for them."""
    if left < room:
        return [text(left + 1, y, f"{short(step.left)} left, {short(step.lost)} lost", fill=INK, kind="in")]
    parts = [text(left - 1, y, short(step.left), anchor="end", fill=ON_KEPT, kind="on")]
    lost = short(step.lost) if room > _NARROW else f"\N{MINUS SIGN}{short(step.lost)}"
    if before - left >= room:
        parts.append(text(left + 1, y, lost, fill=INK, kind="in"))
    elif step.lost > 0 and 100 - before >= room:
        parts.append(text(before + 1, y, lost, fill=INK, kind="in"))
    return parts


def _production_bar(step: Step, *, top: float) -> list[str]:
    left, words = 100 * _inside(step.left), f"production {short(step.left)}"
    bar = rect(0, top, left, 12, color(5))
    if left > 70:  # no room on the right
        return [bar, text(left - 1, top + 10, words, anchor="end", fill=INK, kind="in small")]
    return [bar, text(left + 1, top + 10, words, fill=INK, kind="in small")]


def _inside(share: float) -> float:
    return min(1.0, max(0.0, share))
