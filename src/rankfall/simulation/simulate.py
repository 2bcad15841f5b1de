"""Write the log of a simulated platform as impressions or in RecFlow's layout."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._files import fresh_directory
from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.append import appending
from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.counts import Counts
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.items import item_table
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.spec import Relevant
from rankfall.data.sources.recflow_spec import TRUTH
from rankfall.simulation.industry_tables import IndustryTables
from rankfall.simulation.matching import NO_ITEM
from rankfall.simulation.platform import Platform
from rankfall.simulation.presets import preset_of
from rankfall.simulation.recflow_layout import RecFlowWriter, is_simulated
from rankfall.simulation.recflow_tables import RecFlowTables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.data.impressions.spec import Spec

    OnRequests = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The settings of a simulation. Equal settings give the same bytes; more days do not change the first ones."""

    preset: str
    days: int
    requests_per_day: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the preset and the ranges of all settings."""
        preset_of(self.preset)
        for name, least in (("days", 1), ("requests_per_day", 1), ("seed", 0)):
            if not least <= getattr(self, name) < 2**63:
                raise ValueError(f"{name}: found {getattr(self, name)}, expected at least {least} and below 2^63")

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in manifests."""
        return {name: getattr(self, name) for name in self.__slots__}

    def platform(self) -> Platform:
        """Return the platform before its first day."""
        return Platform(preset_of(self.preset), self.seed, self.requests_per_day)


def simulate_log(
    simulation: Simulation,
    out: Path,
    *,
    truth: bool = False,
    relevant: str | None = None,
    force: bool = False,
    on_requests: OnRequests = lambda count: None,
) -> ImpressionLog:
    """Write an impression log with the features, stages and sample sizes of the preset.

    Args:
        simulation: The settings.
        out: The directory to write.
        truth: Also write the true relevance of items.
        relevant: The feedback that makes an item relevant; by default reaching the last logged stage does.
        force: Replace an existing impression log.
        on_requests: Receives the number of requests served.

    Raises:
        ValueError: If the preset has no such feedback.
    """
    with fresh_directory(out, is_log, force=force) as directory:
        platform = simulation.platform()
        tables = _tables(platform, simulation.days)
        spec = tables.spec.model_copy(update={"truth": TRUTH}) if truth else tables.spec
        spec = spec if relevant is None else _with_relevant(spec, relevant)
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
        assert writer is not None  # there is at least one day with one request
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
    """Continue the platform of a log up to the days of `simulation`, and append the new days.

    The features of the log do not change, so new items have the id of items never seen.

    Args:
        simulation: The settings of the log, with more days.
        out: The directory of the log.
        on_requests: Receives the number of requests served.

    Raises:
        ValueError: If the log was not simulated with the same settings, or already has the days.
    """
    with appending(out) as growth:
        about = _check_same_platform(simulation, growth.log)
        platform = simulation.platform()
        tables = _tables(platform, simulation.days)
        encoding = Encoding(growth.log.spec)
        counts = Counts.from_json(about["counts"])
        seen = _Seen()
        for portion in platform.run(simulation.days):
            rows = tables.rows(portion)  # also of existing days, which update the statistics
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


def _with_relevant(spec: Spec, feedback: str) -> Spec:
    if feedback not in spec.feedback:
        raise ValueError(
            f"relevant: found {feedback!r}{did_you_mean(feedback, spec.feedback)}; the feedback of this platform is "
            f"{', '.join(spec.feedback)}"
        )
    return spec.model_copy(update={"relevant": Relevant(column=feedback)})


def _check_same_platform(simulation: Simulation, log: ImpressionLog) -> dict[str, Any]:
    """Check that a log was simulated with these settings; return its provenance."""
    about: dict[str, Any] = log.manifest["about"]
    if about.get("command") != "simulate":
        raise ValueError(f"out: {log.path} is not the log of a simulated platform, so no days can be added")
    for name in ("preset", "requests_per_day", "seed"):
        if about[name] != getattr(simulation, name):
            raise ValueError(
                f"{name}: found {getattr(simulation, name)!r}, but {log.path} was made with {about[name]!r}"
            )
    if simulation.days <= about["days"]:
        raise ValueError(f"days: found {simulation.days}, expected more than the {about['days']} of {log.path}")
    return about


def simulate_recflow(
    simulation: Simulation,
    out: Path,
    *,
    truth: bool = False,
    force: bool = False,
    on_requests: OnRequests = lambda count: None,
) -> dict[str, Any]:
    """Write a log in RecFlow's layout.

    Args:
        simulation: The settings.
        out: The directory to write.
        truth: Also write a column with the true relevance.
        force: Replace an existing simulated log.
        on_requests: Receives the number of requests served.

    Returns:
        The content of ``simulated.json``.
    """
    preset = preset_of(simulation.preset)
    if preset.layout != "recflow":
        raise ValueError(f"preset: found {simulation.preset}, which cannot be written in RecFlow's layout")
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
    """The set of logged items."""

    def __init__(self) -> None:
        self._seen = np.zeros(0, np.bool_)

    def add(self, items: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Add items, except NO_ITEM."""
        numbers = items[items != NO_ITEM]
        if (largest := int(numbers.max(initial=0))) >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(largest + 1 - len(self._seen), np.bool_)])
        self._seen[numbers] = True

    def numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.flatnonzero(self._seen)
