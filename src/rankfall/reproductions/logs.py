"""Which impressions an experiment runs on: a prepared log, RecFlow's directory, or a platform that is simulated.

Whatever they are, they become a log with days to train on, a day to validate on and a day to test on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rankfall._suggest import did_you_mean
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.lists.ranking_data import is_prepared
from rankfall.data.sources.recflow import ROWS, prepare_recflow
from rankfall.reproductions.datasets import Origin
from rankfall.simulation.presets import preset_of
from rankfall.simulation.simulate import Simulation, simulate_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.reproductions.task import Size

    Progress = Callable[[str, int, int], None]

One = TypeVar("One")

SIMULATED = "simulated"
LEAST_DAYS = 3  # training, validation, test
_EXPECTED = (
    "an impression log (a directory made by 'rankfall simulate' or 'rankfall prepare'), RecFlow's directory with "
    f"{ROWS}/, or {SIMULATED}"
)


@dataclass(frozen=True, slots=True)
class LogSet:
    """Impressions, and what their days are for."""

    name: str
    path: Path
    train: tuple[str, ...]  # days
    valid: str
    test: str
    train_impressions: int
    test_impressions: int
    items: float  # of an impression, on average
    depths: int  # stages that are told apart in the log
    sequences: bool  # whether it has behaviour sequences

    @property
    def about(self) -> str:
        """In words."""
        days = f"{len(self.train)} day{'s' * (len(self.train) > 1)}"
        return (
            f"{self.name}: {self.train_impressions:,} impressions of {days} to train on, {self.test_impressions:,} "
            f"tested, lists of {self.items:.4g} items."
        )

    @property
    def roles(self) -> dict[str, str]:
        """The days as configurations name them."""
        return {"train": f"{self.train[0]}..{self.train[-1]}", "valid": self.valid, "test": self.test}

    def summary(self) -> dict[str, Any]:
        """What the report says of the data."""
        return {**asdict(self), "path": str(self.path), "about": self.about}


# --- finding ------------------------------------------------------------------------------------------------------


def find(wanted: str | None) -> Origin:
    """The log at that path; without one, a platform is simulated.

    What is not there, or is no log, is a `ValueError` that says what was expected.
    """
    if wanted is None or wanted == SIMULATED:
        return Origin(SIMULATED, "simulated", {})
    path = Path(wanted).expanduser()
    if not path.exists():
        raise ValueError(f"{wanted} is not there{did_you_mean(wanted, [SIMULATED])}; expected {_EXPECTED}")
    name = path.resolve().name
    if is_log(path):
        return Origin(name, "log", {}, path)
    if (path / ROWS).is_dir():
        return Origin(name, "recflow", {}, path)
    found = "holds prepared ranking lists" if is_prepared(path) else "is no impression log"
    raise ValueError(f"{path} {found}, but this experiment takes impressions (see --list); expected {_EXPECTED}")


# --- preparing ----------------------------------------------------------------------------------------------------


def prepare(
    origin: Origin, platform: str, cache: Path, *, size: Size, seed: int, progress: Progress = lambda *step: None
) -> LogSet:
    """Simulate the platform, or prepare RecFlow, under `cache`, unless that was done; and lay out the days."""
    if origin.kind == "simulated":
        return _laid_out(_simulated(platform, cache, size, seed, progress), platform, size)
    assert origin.path is not None
    if origin.kind == "recflow":
        return _laid_out(_from_recflow(origin.path, platform, cache, size, seed, progress), origin.name, size)
    return _laid_out(ImpressionLog.load(origin.path), origin.name, size)


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
    stages: Literal[2, 3] = 3 if len(preset_of(platform).sample) == 5 else 2  # of the cascade it is simulated for
    files = _last(sorted((source / ROWS).glob("*.feather")), size.days)
    out = cache / f"recflow-{stages}-{len(files)}-{seed}"
    if is_log(out):
        log = ImpressionLog.load(out)
        if [about["path"] for about in log.manifest["about"]["sources"]] == [str(file) for file in files]:
            return log
    return prepare_recflow(
        source,
        out,
        stages=stages,
        days=f"{files[0].stem}..{files[-1].stem}" if files else None,  # which says what is missing
        seed=seed,
        force=True,
        on_progress=lambda step, done, total: progress(step, done, total or done),
    )


def _laid_out(log: ImpressionLog, name: str, size: Size) -> LogSet:
    """The last day tests, the one before it validates, and those before that are trained on in their order."""
    days = _last(list(log.days), size.days)
    if len(days) < LEAST_DAYS:
        raise ValueError(
            f"{log.path} has {len(days)} day{'s' * (len(days) != 1)}, expected at least {LEAST_DAYS}: one to train on, "
            "one to validate on, one to test on"
        )
    *train, valid, test = days
    tested = log.days[test]
    return LogSet(
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


def _last(days: list[One], count: int | None) -> list[One]:
    return days if count is None else days[-count:]
