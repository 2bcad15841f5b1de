"""Impressions of a reproduction: a prepared log, RecFlow's directory, or a simulated platform.

All of them become a log with days for training, one day for validation and one for test.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rankfall._errors import did_you_mean
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.lists.ranking_data import is_prepared
from rankfall.data.sources.recflow import ROWS, prepare_recflow
from rankfall.reproductions.list_data import DataSource
from rankfall.simulation.presets import preset_of
from rankfall.simulation.simulate import Simulation, simulate_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.reproductions.task import Size

    Progress = Callable[[str, int, int], None]

Day = TypeVar("Day")

SIMULATED = "simulated"
MIN_DAYS = 3  # training, validation, test
_EXPECTED = (
    "an impression log (a directory made by 'rankfall simulate' or 'rankfall prepare'), RecFlow's directory with "
    f"{ROWS}/, or {SIMULATED}"
)


@dataclass(frozen=True, slots=True)
class LogData:
    """A log and the use of its days.

    Attributes:
        name: Name in reports.
        path: Directory of the log.
        train: Training days.
        valid: Validation day.
        test: Test day.
        train_impressions: Impressions of the training days.
        test_impressions: Impressions of the test day.
        items: Mean number of items per impression.
        depths: Number of stages that the log distinguishes.
        sequences: Whether it has behaviour sequences.
    """

    name: str
    path: Path
    train: tuple[str, ...]
    valid: str
    test: str
    train_impressions: int
    test_impressions: int
    items: float
    depths: int
    sequences: bool

    @property
    def description(self) -> str:
        """The data in a sentence."""
        days = f"{len(self.train)} day{'s' * (len(self.train) > 1)}"
        return (
            f"{self.name}: {self.train_impressions:,} impressions of {days} to train on, {self.test_impressions:,} "
            f"tested, lists of {self.items:.4g} items."
        )

    @property
    def roles(self) -> dict[str, str]:
        """The days as configurations specify them."""
        return {"train": f"{self.train[0]}..{self.train[-1]}", "valid": self.valid, "test": self.test}

    def summary(self) -> dict[str, Any]:
        """Description of the data in ``results.json``."""
        return {**asdict(self), "path": str(self.path), "about": self.description}


# --- finding ------------------------------------------------------------------------------------------------------


def find(wanted: str | None) -> DataSource:
    """Find the log at a path. None: a platform is simulated.

    Raises:
        ValueError: The path does not exist or is not a log; the message states what was expected.
    """
    if wanted is None or wanted == SIMULATED:
        return DataSource(SIMULATED, "simulated", {})
    path = Path(wanted).expanduser()
    if not path.exists():
        raise ValueError(f"{wanted} does not exist{did_you_mean(wanted, [SIMULATED])}; expected {_EXPECTED}")
    name = path.resolve().name
    if is_log(path):
        return DataSource(name, "log", {}, path)
    if (path / ROWS).is_dir():
        return DataSource(name, "recflow", {}, path)
    found = "holds prepared ranking lists" if is_prepared(path) else "is not an impression log"
    raise ValueError(f"{path} {found}, but this reproduction takes impressions (see --list); expected {_EXPECTED}")


# --- preparing ----------------------------------------------------------------------------------------------------


def prepare(
    source: DataSource, platform: str, cache: Path, *, size: Size, seed: int, progress: Progress = lambda *step: None
) -> LogData:
    """Simulate the platform or prepare RecFlow in `cache`, unless that is done already, and assign the days."""
    if source.kind == "simulated":
        return _with_roles(_simulated(platform, cache, size, seed, progress), platform, size)
    assert source.path is not None
    if source.kind == "recflow":
        return _with_roles(_from_recflow(source.path, platform, cache, size, seed, progress), source.name, size)
    return _with_roles(ImpressionLog.load(source.path), source.name, size)


def _simulated(platform: str, cache: Path, size: Size, seed: int, progress: Progress) -> ImpressionLog:
    preset = preset_of(platform)
    days, requests = size.days or preset.days, size.requests or preset.requests_per_day
    simulation = Simulation(preset=platform, days=days, requests_per_day=requests, seed=seed)
    out = cache / f"{platform}-{days}x{requests}-{seed}"
    if is_log(out):
        return ImpressionLog.load(out)
    served = 0

    def on_requests(count: int) -> None:
        nonlocal served
        served += count
        progress(f"simulating {platform}", served, days * requests)

    return simulate_log(simulation, out, on_requests=on_requests)


def _from_recflow(source: Path, platform: str, cache: Path, size: Size, seed: int, progress: Progress) -> ImpressionLog:
    stages: Literal[2, 3] = 3 if len(preset_of(platform).sample) == 5 else 2  # of the cascade that is trained
    files = _last(sorted((source / ROWS).glob("*.feather")), size.days)
    out = cache / f"recflow-{stages}-{len(files)}-{seed}"
    if is_log(out):
        log = ImpressionLog.load(out)
        if [one["path"] for one in log.manifest["about"]["sources"]] == [str(file) for file in files]:
            return log
    return prepare_recflow(
        source,
        out,
        stages=stages,
        days=f"{files[0].stem}..{files[-1].stem}" if files else None,  # which raises the error
        seed=seed,
        force=True,
        on_progress=lambda step, done, total: progress(step, done, total or done),
    )


def _with_roles(log: ImpressionLog, name: str, size: Size) -> LogData:
    """Use the last day for test, the one before it for validation, and earlier days for training, in order."""
    days = _last(list(log.days), size.days)
    if len(days) < MIN_DAYS:
        raise ValueError(
            f"{log.path} has {len(days)} day{'s' * (len(days) != 1)}, expected at least {MIN_DAYS}: one each for "
            "training, validation and test"
        )
    *train, valid, test = days
    tested = log.days[test]
    return LogData(
        name=name,
        path=log.path,
        train=tuple(train),
        valid=valid,
        test=test,
        train_impressions=sum(len(log.days[day]) for day in train),
        test_impressions=len(tested),
        items=tested.manifest["items"] / max(1, len(tested)),
        depths=len(log.spec.stages),
        sequences=bool(log.spec.sequences),
    )


def _last(days: list[Day], count: int | None) -> list[Day]:
    return days if count is None else days[-count:]
