"""The days of a loop: which model answered, and how good its answers were."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._files import write_file
from rankfall._json_reader import parse_json
from rankfall.simulation.platform import day_name

if TYPE_CHECKING:
    from rich.table import Table

    from rankfall.loop_demo.loop_files import Answers, LoopFiles
    from rankfall.simulation.live_users import LivePortion, LiveReactions
    from rankfall.simulation.platform import ServedPortion

PLATFORM = "platform"  # its own cascade, in the first days


@dataclass
class LoopDay:
    """A day: requests, their answers and reactions.

    Attributes:
        day: Its date.
        models: Answered requests by model.
        recall: Of each request: the share of the truly best items that was answered; empty if it is not known.
        reward: Of each request: the number of effective views.
        samples: Sampled requests of the joined day, None while it is open.
        events: Events of the joined day.
    """

    day: str
    models: Counter[str] = field(default_factory=Counter)
    recall: list[float] = field(default_factory=list)
    reward: list[int] = field(default_factory=list)
    samples: int | None = None
    events: int | None = None

    @property
    def model(self) -> str:
        """The model that answered most requests."""
        return self.models.most_common(1)[0][0]

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the day."""
        return {
            "day": self.day,
            "model": self.model,
            "models": dict(self.models),
            "requests": len(self.reward),
            "samples": self.samples,
            "events": self.events,
            "joint_recall": float(np.mean(self.recall)) if self.recall else None,
            "reward": float(np.mean(self.reward)),
        }


class LoopDays:
    """The days of a loop so far.

    Args:
        files: The files of the loop.
    """

    def __init__(self, files: LoopFiles) -> None:
        self._files = files
        self._days: dict[str, LoopDay] = {}

    def add_past(self, portion: ServedPortion) -> None:
        """Add requests that the platform's own cascade served."""
        day = self._days.setdefault(portion.day, LoopDay(portion.day))
        day.models[PLATFORM] += len(portion.items)
        day.reward += portion.feedback["effective_view"].sum(axis=1).tolist()

    def add(self, portion: LivePortion, answers: Answers, reactions: LiveReactions) -> None:
        """Add requests that the service answered."""
        name = day_name(portion.day)
        day = self._days.setdefault(name, LoopDay(name))
        day.models.update(answers.models)
        day.recall += reactions.recall.tolist()
        day.reward += reactions.reward.tolist()

    def update(self) -> None:
        """Read what the joiner reports about days that it has closed."""
        for name, day in self._days.items():
            path = self._files.joined / name / "report.json"
            if day.samples is None and path.is_file():
                report = parse_json(path.read_bytes())
                day.samples, day.events = report["sampled"], report["events"]

    def to_json(self, last: int) -> dict[str, Any]:
        """Return the figures of the days up to the one of that number."""
        return {"days": [day.to_json() for day in self.upto(last)]}

    def save(self, last: int) -> None:
        """Write the figures of the days up to the one of that number."""
        write_file(self._files.result, json.dumps(self.to_json(last), indent=1) + "\n")

    def table(self, last: int) -> Table:
        """Return a table of the days up to the one of that number."""
        from rich.table import Table

        table = Table()
        table.add_column("day", style="cyan")
        table.add_column("model of")
        for name in ("requests", "samples", "events", "joint recall", "reward"):
            table.add_column(name, justify="right")
        for day in self.upto(last):
            recall = f"{np.mean(day.recall):.3f}" if day.recall else ""
            counts = [f"{count:,}" if count is not None else "" for count in (day.samples, day.events)]
            table.add_row(day.day, day.model, f"{len(day.reward):,}", *counts, recall, f"{np.mean(day.reward):.3f}")
        return table

    def upto(self, last: int) -> list[LoopDay]:
        """Return the days up to the one of that number."""
        return [day for name, day in self._days.items() if name <= day_name(last)]
