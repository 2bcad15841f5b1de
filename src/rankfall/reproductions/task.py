"""What an experiment is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankfall.data import Recipe
    from rankfall.reporting.figures import Plot
    from rankfall.reproductions.datasets import DataSet, Origin
    from rankfall.reproductions.logs import LogSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of an experiment is run; what a paper ran is more than any of these."""

    lists: int | None = None  # about so many for training, validation and test of a fold, None for all
    test_lists: int = 300  # tested on at least, as far as there are so many: folds are added until then
    generated_lists: int = 400  # of the training split, if data are generated
    epochs: int = 30
    patience: int = 6
    seeds: int = 2
    tune: bool = True  # whether learning rates and temperatures are chosen on validation
    points: int | None = None  # of a sweep at most, None for those of the paper
    longest: int = 15**3  # list that is timed
    days: int | None = None  # of a log, the last ones, with those for validation and test; None for all
    requests: int | None = None  # of a day, if a platform is simulated; None for those of its preset
    cascade_seeds: int = 3


QUICK = Size(
    lists=120,
    test_lists=30,
    generated_lists=120,
    epochs=10,
    patience=4,
    seeds=1,
    tune=False,
    points=4,
    days=6,
    requests=800,
    cascade_seeds=1,
)
FULL = Size()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One reproduction that a user asked for."""

    out: Path
    origin: Origin
    size: Size = FULL
    seed: int = 0
    jobs: int = 2
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    on_notice: Callable[[str], None] = lambda text: None  # what trainings have to say

    def data(self, recipe: Recipe) -> DataSet:
        """The data, prepared by the recipe of the paper."""
        from rankfall.reproductions.datasets import prepare

        return prepare(self.origin, recipe, self.out / "data", size=self.size, seed=self.seed)

    def log(self, platform: str) -> LogSet:
        """The impressions; of this simulated platform, if the user named no others."""
        from rankfall.reproductions.logs import prepare

        return prepare(self.origin, platform, self.out / "data", size=self.size, seed=self.seed, progress=self.progress)

    @property
    def seeds(self) -> list[int]:
        """Of the trainings of rankers."""
        return list(range(self.seed, self.seed + self.size.seeds))

    @property
    def cascade_seeds(self) -> list[int]:
        """Of the trainings of cascades."""
        return list(range(self.seed, self.seed + self.size.cascade_seeds))


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of words and numbers; an empty row separates sections."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came out: tables to print, pictures to draw, notes in words, and everything as plain data."""

    comparisons: Sequence[tuple[str, dict[str, Any]]] = ()  # titles and results of comparisons
    sheets: Sequence[Sheet]
    plots: Mapping[str, Plot]
    results: dict[str, Any]
    notes: Sequence[str] = field(default_factory=list)
