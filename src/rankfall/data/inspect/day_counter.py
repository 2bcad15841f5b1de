"""Counters of the impressions of a day and of the whole log."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.data.impressions.spec import FIRST_KNOWN
from rankfall.data.inspect.counters import Histogram, ItemCounter, LengthCounter, counters
from rankfall.data.inspect.inspection import DayFigures, SequenceFigures, StageFigures, ValueCounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Sequence
    from rankfall.data.inspect.inspection import ImpressionBlock

NEGATIVES = -1  # the depth of random negatives


class LogCounter:
    """The counters that cover all days."""

    def __init__(self, log: ImpressionLog) -> None:
        self.log = log
        self.features = counters(log)
        self.items = ItemCounter(log)
        self.labels = {column: Histogram(column) for column in ("relevance", "grade")}
        self.sequences = {sequence.name: SequenceCounter(sequence) for sequence in log.features.sequences}


class SequenceCounter:
    """Counts the lengths of a sequence, and how often its newest event is a relevant item of the request."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.lengths = LengthCounter()
        self._compared = 0
        self._same = dict.fromkeys(sequence.features, 0)

    def add(self, block: ImpressionBlock) -> None:
        """Compare the newest events of a block with its relevant items."""
        lengths = block.lengths(self._column(self.sequence.features[0]))
        compared = (lengths > 0) & (block.per_impression(block.relevant) > 0)
        self._compared += int(np.count_nonzero(compared))
        for feature in self.sequence.features:
            newest = np.zeros(len(block), np.int32)
            newest[lengths > 0] = block.values(self._column(feature))[np.cumsum(lengths)[lengths > 0] - 1]
            newest = newest[block.owner]
            same = block.relevant & (newest >= FIRST_KNOWN) & (newest == block.values(f"item.{feature}"))
            self._same[feature] += int(np.count_nonzero(block.per_impression(same)))

    def figures(self) -> SequenceFigures:
        """Return the figures of everything added."""
        return SequenceFigures(
            self.sequence.name,
            self.sequence.max_length,
            self.lengths.figures(),
            {feature: same / max(self._compared, 1) for feature, same in self._same.items()},
        )

    def _column(self, feature: str) -> str:
        return f"sequence.{self.sequence.name}.{feature}"


class DayCounter:
    """Counts the impressions of one day, and updates the counters of the log."""

    def __init__(self, whole: LogCounter) -> None:
        self._whole = whole
        self._spec = whole.log.spec
        stages = 1 + len(self._spec.stages)
        self._samples = np.array([self._spec.negatives] + [stage.sample or 0 for stage in self._spec.stages])
        self._stage_items, self._stage_relevant, self._empty, self._short = np.zeros((4, stages), np.int64)
        self._features = dict.fromkeys(whole.features, ValueCounts())
        self._sequences = {name: LengthCounter() for name in whole.sequences}
        self._lengths = LengthCounter()
        self._number: Counter[str] = Counter()
        self._feedback: Counter[str] = Counter()
        self._first: int | None = None
        self._last: int | None = None
        self._previous: int | None = None

    def add(self, block: ImpressionBlock, uneven: int) -> None:
        """Count a block; `uneven` impressions were left out of it."""
        self._number["uneven"] += uneven
        self._lengths.add(block.item_counts)
        self._add_times(block)
        self._add_items(block)
        self._add_stages(block)
        self._add_relevance(block)
        for column, histogram in self._whole.labels.items():
            histogram.add(block.values(column))
        for column, counter in self._whole.features.items():
            self._features[column] += counter.add(block.values(column))
        for name in self._spec.feedback:
            self._feedback[name] += int(np.count_nonzero(block.values(f"feedback.{name}") > 0))
        for name, sequence in self._whole.sequences.items():
            lengths = block.lengths(f"sequence.{name}.{sequence.sequence.features[0]}")
            self._sequences[name].add(lengths)
            sequence.lengths.add(lengths)
            sequence.add(block)

    def _add_times(self, block: ImpressionBlock) -> None:
        times = block.values("time")
        if not times.size:
            return
        before = times[0] if self._previous is None else self._previous
        self._number["unsorted"] += int(np.count_nonzero(np.diff(times, prepend=before) < 0))
        self._previous = int(times[-1])
        first, last = int(times.min()), int(times.max())
        self._first = first if self._first is None else min(self._first, first)
        self._last = last if self._last is None else max(self._last, last)

    def _add_items(self, block: ImpressionBlock) -> None:
        items = block.values("item")
        self._number["items"] += items.size
        self._number["unknown_items"] += self._whole.items.add(items)
        together = np.sort(block.owner << 32 | items.view(np.uint32))
        self._number["repeated_items"] += int(np.count_nonzero(together[1:] == together[:-1]))

    def _add_stages(self, block: ImpressionBlock) -> None:
        stages = len(self._samples)
        place = block.values("depth").astype(np.int64) - NEGATIVES
        owner, relevant = block.owner, block.relevant
        inside = (place >= 0) & (place < stages)
        if not inside.all():
            self._number["wrong_depths"] += int(np.count_nonzero(~inside))
            place, owner, relevant = place[inside], owner[inside], relevant[inside]
        counts = np.bincount(owner * stages + place, minlength=len(block) * stages).reshape(-1, stages)
        self._stage_items += counts.sum(axis=0)
        self._stage_relevant += np.bincount(place[relevant], minlength=stages)
        self._empty += (counts == 0).sum(axis=0)
        self._short += (counts < self._samples).sum(axis=0)

    def _add_relevance(self, block: ImpressionBlock) -> None:
        relevant = block.per_impression(block.relevant)
        self._number["relevant"] += int(relevant.sum())
        self._number["without_relevant"] += int(np.count_nonzero((relevant == 0) & (block.item_counts > 0)))
        self._number["all_relevant"] += int(np.count_nonzero((relevant == block.item_counts) & (relevant > 0)))
        depth = block.values("depth")
        if (stage := self._spec.relevant.stage) is not None:
            deep = depth >= self._spec.stage_names.index(stage)
            self._number["contradictions"] += int(np.count_nonzero(deep != block.relevant))
        grade = block.values("grade")
        self._number["wrong_grades"] += _impressions_with_wrong_grades(block.owner, depth, grade)
        self._number["one_grade"] += _impressions_with_one_grade(block, grade)
        self._number["outranked"] += _impressions_with_outranked_items(block, grade)

    def figures(self, name: str, repeated_requests: int) -> DayFigures:
        """Return the figures of everything added."""
        whole = self._lengths.figures()
        figures: dict[str, Any] = {
            "name": name,
            "impressions": whole.count,
            "first_time": self._first,
            "last_time": self._last,
            "lengths": whole,
            "stages": self._stages(),
            "feedback": {of: self._feedback[of] / max(self._number["items"], 1) for of in self._spec.feedback},
            "features": self._features,
            "sequences": {of: lengths.figures() for of, lengths in self._sequences.items()},
            "repeated_requests": repeated_requests,
        }
        figures |= {one.name: self._number[one.name] for one in fields(DayFigures) if one.name not in figures}
        return DayFigures(**figures)

    def _stages(self) -> list[StageFigures]:
        names = ["random negatives", *self._spec.stage_names]
        samples = [self._spec.negatives or None, *(stage.sample for stage in self._spec.stages)]
        figures = (self._stage_items, self._stage_relevant, self._empty, self._short)
        return [
            StageFigures(names[i], i + NEGATIVES, samples[i], *(int(of[i]) for of in figures))
            for i in range(len(names))
        ]


def _impressions_with_one_grade(block: ImpressionBlock, grade: NDArray[np.int32]) -> int:
    """Return the number of impressions with several items that all have the same grade."""
    several = block.item_counts > 1
    differs = np.zeros(len(grade), np.bool_)
    differs[1:] = (grade[1:] != grade[:-1]) & (block.owner[1:] == block.owner[:-1])
    return int(np.count_nonzero(several & (block.per_impression(differs) == 0)))


def _impressions_with_outranked_items(block: ImpressionBlock, grade: NDArray[np.int32]) -> int:
    """Return the number of impressions in which an irrelevant item has a better grade than a relevant one."""
    best = np.full(len(block), np.iinfo(np.int32).min)
    worst = np.full(len(block), np.iinfo(np.int32).max)
    np.maximum.at(best, block.owner[~block.relevant], grade[~block.relevant])
    np.minimum.at(worst, block.owner[block.relevant], grade[block.relevant])
    return int(np.count_nonzero(best > worst))


def _impressions_with_wrong_grades(owner: NDArray[np.int64], depth: NDArray[np.int8], grade: NDArray[np.int32]) -> int:
    """Return the number of impressions in which an item is graded no better than one of a shallower stage."""
    stage = owner << 8 | (depth.astype(np.int64) + 128)
    # sorted by impression, depth and grade, comparing neighbours is enough: the worst item of a stage follows the best
    # of the stage before
    together = np.sort(stage << 32 | (grade.astype(np.int64) + 2**31))
    stage, grade_of = together >> 32, together & (2**32 - 1)
    deeper = (stage[1:] >> 8 == stage[:-1] >> 8) & (stage[1:] != stage[:-1])
    wrong = deeper & (grade_of[1:] <= grade_of[:-1])
    return len(np.unique(stage[1:][wrong] >> 8))
