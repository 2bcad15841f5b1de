"""A simulated platform's log, written as impressions or in RecFlow's layout."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._files import fresh_directory
from rankfall.data.impressions.append import growing
from rankfall.data.impressions.assemble import assemble, item_table
from rankfall.data.impressions.counts import Counts
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.log import ImpressionLog, LogWriter, is_log
from rankfall.data.sources.recflow_spec import TRUTH
from rankfall.simulation.industry_tables import IndustryTables
from rankfall.simulation.matching import NOBODY
from rankfall.simulation.platform import Platform
from rankfall.simulation.presets import preset_of
from rankfall.simulation.recflow_layout import RecFlowWriter, is_simulated
from rankfall.simulation.recflow_tables import RecFlowTables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    OnRequests = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What to simulate. The same one gives the same bytes, and one of more days begins with the same days."""

    preset: str
    days: int
    requests_per_day: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        preset_of(self.preset)
        for name, least in (("days", 1), ("requests_per_day", 1), ("seed", 0)):
            if not least <= getattr(self, name) < 2**63:
                raise ValueError(f"{name}: found {getattr(self, name)}, expected {least} or more, below 2^63")

    def to_json(self) -> dict[str, Any]:
        """As manifests keep it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def platform(self) -> Platform:
        """The platform on the eve of its first day."""
        return Platform(preset_of(self.preset), self.seed, self.requests_per_day)


def simulate_log(
    simulation: Simulation,
    out: Path,
    *,
    truth: bool = False,
    force: bool = False,
    on_requests: OnRequests = lambda count: None,
) -> ImpressionLog:
    """Write an impression log, with the true relevance of items if `truth` says so.

    Features, stages and the sample are those of the preset. `on_requests` hears how many requests were served.
    """
    with fresh_directory(out, is_log, force=force) as directory:
        platform = simulation.platform()
        tables = _tables(platform, simulation.days)
        spec = tables.spec.model_copy(update={"truth": TRUTH}) if truth else tables.spec
        encoding = Encoding(spec)
        writer: LogWriter | None = None
        counts = Counts()
        seen = _Seen()
        for portion in platform.run(simulation.days):
            rows = tables.rows(portion)
            assembled = assemble(rows, encoding, seed=simulation.seed, requests=tables.requests(portion))
            ((day, impressions),) = assembled.days
            writer = writer or LogWriter(directory, spec, encoding.features, impressions.schema)
            writer.write(day, impressions)
            counts += assembled.counts
            seen.add(portion.items)
            on_requests(len(portion.items))
        assert writer is not None  # a simulation has a day, and a day a request
        about: dict[str, Any] = {
            "command": "simulate",
            **simulation.to_json(),
            "truth": truth,
            "counts": counts.to_json(),
        }
        if tables.per_request:
            about["item_features"] = "per request"
        writer.finish(item_table(tables.items(seen.numbers()), encoding), {}, about)
    return ImpressionLog.load(out)


def append_days(simulation: Simulation, out: Path, *, on_requests: OnRequests = lambda count: None) -> ImpressionLog:
    """Let the platform of a log live on until it is as old as `simulation` says, and add the days that are new.

    The log keeps its features, so that the ids of items that are born now are those of items never seen.
    """
    with growing(out) as growth:
        about = _check_same_platform(simulation, growth.log)
        platform = simulation.platform()
        tables = _tables(platform, simulation.days)
        encoding = Encoding(growth.log.spec)
        counts = Counts.from_json(about["counts"])
        seen = _Seen()
        for portion in platform.run(simulation.days):
            rows = tables.rows(portion)  # of days that are there, too: statistics remember them
            if portion.day not in growth.log.days:
                assembled = assemble(rows, encoding, seed=simulation.seed, requests=tables.requests(portion))
                ((day, impressions),) = assembled.days
                growth.write(day, impressions)
                counts += assembled.counts
            seen.add(portion.items)
            on_requests(len(portion.items))
        about = about | simulation.to_json() | {"counts": counts.to_json()}
        growth.finish(item_table(tables.items(seen.numbers()), encoding), about)
    return ImpressionLog.load(out)


def _tables(platform: Platform, days: int) -> RecFlowTables | IndustryTables:
    made = IndustryTables if platform.preset.layout == "industry" else RecFlowTables
    return made(platform, days)


def _check_same_platform(simulation: Simulation, log: ImpressionLog) -> dict[str, Any]:
    """Refuse to add days to a log of anything else; how that was made."""
    about: dict[str, Any] = log.manifest["about"]
    if about.get("command") != "simulate":
        raise ValueError(f"out: {log.path} is the log of no simulated platform, to which days could be added")
    for name in ("preset", "requests_per_day", "seed"):
        if about[name] != getattr(simulation, name):
            raise ValueError(
                f"{name}: found {getattr(simulation, name)!r}, but {log.path} was made with {about[name]!r}"
            )
    if simulation.days <= about["days"]:
        raise ValueError(f"days: found {simulation.days}, but {log.path} has {about['days']} already; expected more")
    return about


def simulate_recflow(
    simulation: Simulation,
    out: Path,
    *,
    truth: bool = False,
    force: bool = False,
    on_requests: OnRequests = lambda count: None,
) -> dict[str, Any]:
    """Write RecFlow's layout; gives what ``simulated.json`` says there. With `truth` rows have a column more."""
    preset = preset_of(simulation.preset)
    if preset.layout != "recflow":
        raise ValueError(f"preset: {simulation.preset} has no users' videos to write in RecFlow's layout")
    with fresh_directory(out, is_simulated, force=force) as directory:
        platform = simulation.platform()
        tables = RecFlowTables(platform, simulation.days)
        with closing(RecFlowWriter(directory, tables.id_counts)) as writer:
            for portion in platform.run(simulation.days):
                rows = tables.rows(portion)
                writer.write(portion, rows if truth else rows.drop(TRUTH), platform.items)
                on_requests(len(portion.items))
            return writer.finish({**simulation.to_json(), "truth": truth})


class _Seen:
    """Which items were logged."""

    def __init__(self) -> None:
        self._seen = np.zeros(0, np.bool_)

    def add(self, items: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """`items` may hold NOBODY."""
        numbers = items[items != NOBODY]
        if (largest := int(numbers.max(initial=0))) >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(largest + 1 - len(self._seen), np.bool_)])
        self._seen[numbers] = True

    def numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.flatnonzero(self._seen)
