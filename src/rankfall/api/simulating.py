"""``rf.simulate``: the log of a simulated platform."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankfall._errors import RankfallError, checked
from rankfall._tables import StoredTables
from rankfall.api.shared import Progress, counter, reported

if TYPE_CHECKING:
    from rankfall.api.shared import PathLike, ProgressLike
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.option_types import Count, Seed

Preset = Literal[
    "tiny",
    "recflow-like",
    "recflow-like-3",
    "recflow-noisy",
    "recflow-noisy-3",
    "industry-easy",
    "industry-hard",
    "industry-cascade",
]


@dataclass(frozen=True, repr=False)
class SimulatedLog(StoredTables):
    """A log of a simulated platform.

    Attributes:
        preset: Name of the platform.
        days: Number of days.
        requests_per_day: Number of requests per day.
        seed: Random seed.
        layout: ``"rankfall"`` or ``"recflow"``.
        rows: Number of logged rows.
        stages: Number of rows that were logged, and kept in impressions, by stage.
        seconds: Working time.
    """

    preset: str
    days: int
    requests_per_day: int
    seed: int
    layout: str
    rows: int
    stages: dict[str, dict[str, int]] = field(repr=False)
    seconds: float
    _directory: Path | None = None

    @property
    def impressions(self) -> int:
        """Number of requests."""
        return self.days * self.requests_per_day

    @property
    def megabytes(self) -> float:
        """Size of the files."""
        return round(sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file()) / 1e6, 1)

    def open(self) -> ImpressionLog:
        """Open the log, which must not have RecFlow's layout."""
        from rankfall.data import ImpressionLog

        return ImpressionLog.load(self.directory)

    def to_json(self) -> dict[str, Any]:
        """Return what ``rankfall simulate --json`` prints."""
        names = ("preset", "days", "requests_per_day", "seed", "layout", "impressions", "rows", "stages", "megabytes")
        figures = {name: getattr(self, name) for name in names}
        return {"out": str(self.directory), **figures, "seconds": round(self.seconds, 1)}

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `stages`, one per stage: rows that were logged and kept, in all and per request."""
        rows = []
        for name, counts in self.stages.items():
            row: dict[str, Any] = {"stage": name}
            for what, count in counts.items():
                row |= {what: count, f"{what}_per_request": count / self.impressions}
            rows.append(row)
        return {"stages": rows}


@checked
def simulate(
    out: PathLike,
    preset: Preset | str = "tiny",
    *,
    days: Count | None = None,
    requests_per_day: Count | None = None,
    seed: Seed = 0,
    layout: Literal["rankfall", "recflow"] = "rankfall",
    truth: bool = False,
    relevant: str | None = None,
    force: bool = False,
    append: bool = False,
    progress: ProgressLike = True,
) -> SimulatedLog:
    """Simulate a platform, and write the full-stage log of its cascade.

    Args:
        out: Directory to write.
        preset: The platform: tiny takes seconds; recflow-like has the stages and features of RecFlow for a cascade of
            two stages, recflow-like-3 for one of three; recflow-noisy and recflow-noisy-3 are the same with noisy early
            stages; industry-cascade has two stages and lists of 20; industry-easy and industry-hard have short lists
            of ads with statistics as features.
        days: Number of days to simulate. Default: the preset's.
        requests_per_day: Number of requests per day. Default: the preset's.
        seed: Random seed; equal seeds give equal logs.
        layout: ``"rankfall"`` for training, or ``"recflow"`` for RecFlow's files.
        truth: Also write the true relevance of items.
        relevant: Feedback that makes an item relevant, such as effective_view. Default: reaching the last stage.
        force: Replace a log in `out`.
        append: Append days to an existing log until it has `days` in total.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.

    Raises:
        ValueError: If there is no such preset, or arguments do not fit each other or the log.
    """
    from rankfall.simulation.presets import preset_of
    from rankfall.simulation.simulate import Simulation, append_days, simulate_log, simulate_recflow

    chosen, path = preset_of(preset), Path(out)
    if layout not in ("rankfall", "recflow"):
        raise RankfallError(f"layout: found {layout!r}, expected rankfall or recflow")
    if layout == "recflow" and chosen.layout != "recflow":
        raise RankfallError(f"found recflow, in which the preset {preset} cannot be written", "layout")
    others = {"`force`": force, "`truth`": truth, "`relevant`": relevant, "the layout recflow": layout == "recflow"}
    if append and any(others.values()):
        found = " and ".join(name for name, given in others.items() if given)
        raise RankfallError(f"cannot be combined with {found}", "append")
    if relevant and layout == "recflow":
        raise RankfallError("is a part of the spec of a log, which RecFlow's layout has not", "relevant")
    simulation = Simulation(
        preset=preset,
        days=chosen.days if days is None else days,
        requests_per_day=chosen.requests_per_day if requests_per_day is None else requests_per_day,
        seed=seed,
    )
    start, total = time.perf_counter(), simulation.days * simulation.requests_per_day
    with reported(progress) as report:
        report(Progress("serving requests", 0, total))
        count = counter(report, "serving requests")
        options: dict[str, Any] = {"on_requests": lambda served: count(served, total)}
        new: dict[str, Any] = {"truth": truth, "force": force}
        if layout == "recflow":
            counts = simulate_recflow(simulation, path, **new, **options)
            stages = {name: {"logged": number} for name, number in counts["stages"].items()}
        else:
            if append:
                log = append_days(simulation, path, **options)
            else:
                log = simulate_log(simulation, path, relevant=relevant, **new, **options)
            counts = log.manifest["about"]["counts"]
            stages = {
                name: {"logged": counts["logged"][name], "kept": counts["kept"][name]} for name in log.spec.stage_names
            }
    seconds = time.perf_counter() - start
    return SimulatedLog(
        **simulation.to_json(), layout=layout, rows=counts["rows"], stages=stages, seconds=seconds, _directory=path
    )
