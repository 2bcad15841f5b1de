"""Input (`Task`) and output (`Report`) of a reproduction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankfall.reporting.blocks import Table
from rankfall.studies.compare import LEAST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankfall.reporting.charts import Chart
    from rankfall.reproductions.data import DataSource, ListData, LogData
    from rankfall.reproductions.paper_schema import ListProtocol, Method
    from rankfall.studies.results import ComparisonResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of a reproduction is run. The papers used more data and runs than any of these.

    Attributes:
        lists: Approximate number of lists for training, validation and test of a fold. None: all.
        test_lists: Folds are added until this number of lists is tested.
        generated_lists: Training lists, if data are generated.
        epochs: Largest number of epochs on ranking lists.
        patience: Epochs without improvement after which training stops.
        published_steps: Whether data as large as the paper's are trained for the published number of steps.
        seeds: Training runs per method on ranking lists.
        tune: Whether learning rates and temperatures are tuned on validation data.
        points: Largest number of points of a sweep. None: those of the paper.
        longest: Length of the longest list that is timed.
        days: Last days of a log that are used, with those for validation and test. None: all.
        requests: Requests per day of a simulated platform. None: those of its preset.
        cascade_seeds: Training runs per method on impressions.
    """

    lists: int | None = None
    test_lists: int = 300
    generated_lists: int = 400
    epochs: int = 30
    patience: int = 6
    published_steps: bool = True
    seeds: int = 2
    tune: bool = True
    points: int | None = None
    longest: int = 15**3
    days: int | None = None
    requests: int | None = None
    cascade_seeds: int = 3


QUICK = Size(
    lists=120,
    test_lists=30,
    generated_lists=120,
    epochs=10,
    patience=4,
    published_steps=False,
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
    """A request to run a reproduction.

    Attributes:
        out: Directory of prepared data, runs and results.
        source: Where the data come from.
        size: How much is run.
        seed: Seed of the data and of the first training run.
        jobs: Training runs at the same time.
        improved: Whether our better versions of published methods are run beside them.
        methods: Methods of the user, which are run beside those of the paper.
        progress: Receives a description of the current step, the steps done and their number.
        on_notice: Receives messages of training runs.
    """

    out: Path
    source: DataSource
    size: Size = FULL
    seed: int = 0
    jobs: int = 2
    improved: bool = False
    methods: Sequence[Method] = ()
    progress: Callable[[str, int, int], None] = lambda step, done, total: None
    on_notice: Callable[[str], None] = lambda text: None

    def lists(self, protocol: ListProtocol) -> ListData:
        """Prepare ranking lists as the paper did."""
        from rankfall.data import Recipe
        from rankfall.reproductions.data import prepare_lists

        recipe = Recipe(**protocol.recipe)  # type: ignore[arg-type]  # keys and values are those of the paper's file
        return prepare_lists(self.source, recipe, self.out / "data", size=self.size, seed=self.seed)

    def log(self, platform: str) -> LogData:
        """Prepare impressions; those of the simulated `platform`, unless the user named a log."""
        from rankfall.reproductions.data import prepare_log

        cache = self.out / "data"
        return prepare_log(self.source, platform, cache, size=self.size, seed=self.seed, progress=self.progress)

    @property
    def quick(self) -> bool:
        """Whether costs and properties are measured briefly: if nothing is tuned either."""
        return not self.size.tune

    @property
    def seeds(self) -> list[int]:
        """Seeds of training runs on ranking lists."""
        return list(range(self.seed, self.seed + self.size.seeds))

    @property
    def cascade_seeds(self) -> list[int]:
        """Seeds of training runs on impressions."""
        return list(range(self.seed, self.seed + self.size.cascade_seeds))


def few_seeds_note(seeds: Sequence[int]) -> list[str]:
    """Return the note of a report without tests over seeds: fewer than three seeds make no claim."""
    few = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    note = f"{few}: no claim about which is better. Another seed may change the order."
    return [] if len(seeds) >= LEAST_SEEDS else [note]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outcome of a reproduction.

    Attributes:
        comparisons: Titles and results of comparisons, printed as tables.
        sheets: Further tables to print.
        plots: Figures by file name.
        results: Content of ``results.json``.
        notes: Remarks that are printed below the tables.
    """

    comparisons: Sequence[tuple[str, ComparisonResult]] = ()
    sheets: Sequence[Table]
    plots: Mapping[str, Chart]
    results: dict[str, Any]
    notes: Sequence[str] = field(default_factory=list)


def sheet(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of text. An empty row separates sections."""
    return Table(head, rows, title=title, framed=False)


def pivot(
    title: str,
    corner: str,
    rows: Mapping[str, Mapping[Any, Any]],
    columns: Mapping[Any, str],
    form: Callable[[Any], str],
) -> Table:
    """Return a sheet of values by row and column, whose headings are given; a dash where there is no value."""
    body = [[name, *(form(row[key]) if key in row else "-" for key in columns)] for name, row in rows.items()]
    return sheet(title, [corner, *columns.values()], body)
