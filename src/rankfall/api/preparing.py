"""``rf.prepare`` and ``rf.simulate``: data to train on."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rankfall._results import Tables
from rankfall._suggestions import did_you_mean
from rankfall.api.arguments import opened_engine
from rankfall.api.display import Progress, counter, reported, stepper

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall._engine import Engine
    from rankfall._yaml_config import ConfigLike
    from rankfall.api.arguments import EngineName, PathLike
    from rankfall.api.display import ProgressLike
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.lists.ranking_data import RankingData

Layout = Literal["rows", "letor", "recflow", "movielens", "mq2007"]
Sources: TypeAlias = (
    "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, PathLike | Sequence[PathLike]]"
)
_PATH_OPTIONS = ("items", "users", "requests")
_SUPPLIED = ("source", "sources", "out", "spec", "recipe", "force", "engine", "about", "portion_rows")


@dataclass(frozen=True, repr=False)
class PreparedData(Tables):
    """Prepared data: an impression log, or lists.

    Attributes:
        manifest: Content of ``manifest.json``: sources, counts and options.
    """

    manifest: dict[str, Any]
    _directory: Path | None = None

    @property
    def directory(self) -> Path:
        """Directory of the data."""
        assert self._directory is not None
        return self._directory

    def open(self) -> ImpressionLog | RankingData:
        """Open the data: an :class:`~rankfall.data.ImpressionLog`, or :class:`~rankfall.data.RankingData`."""
        from rankfall.data import ImpressionLog, RankingData

        return RankingData.load(self.directory) if "splits" in self.manifest else ImpressionLog.load(self.directory)

    def to_json(self) -> dict[str, Any]:
        """Return what ``rankfall prepare --json`` prints."""
        return self.manifest

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `stages`, one per stage of a log, or of `splits`, one per split of lists."""
        from rankfall.data.impressions.counts import stage_counts
        from rankfall.data.impressions.log import ImpressionLog

        if "splits" not in self.manifest:
            return {"stages": stage_counts(ImpressionLog.load(self.directory)).to_dicts()}
        return {"splits": [_split_row(name, about) for name, about in self.manifest["splits"].items()]}


def _split_row(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "split": name,
        "lists": about["lists"],
        "rows": about["rows"],
        "shortest": about["list_length"]["min"],
        "median": about["list_length"]["median"],
        "longest": about["list_length"]["max"],
        "lists_without_positive": about["lists_without_positive"],
    }


def prepare(
    source: Sources,
    out: PathLike,
    *,
    layout: Layout = "rows",
    spec: ConfigLike | None = None,
    force: bool = False,
    engine: EngineName = "local",
    progress: ProgressLike = True,
    **options: Any,
) -> PreparedData:
    """Prepare raw data for training.

    Args:
        source: Files or directories. For ``layout="letor"`` a dictionary with the file or files of each split, for
            RecFlow, MovieLens and MQ2007 their directory.
        out: Directory to write.
        layout: ``"rows"``, your own log with one row per request and item; ``"letor"``, ranking text; ``"recflow"``,
            ``"movielens"`` or ``"mq2007"``, public data as they are published.
        spec: For ``"rows"``: description of columns, stages and features, as a YAML file, a dictionary or a model.
        force: Replace data in `out`.
        engine: ``"local"`` or, for ``"rows"`` and ``"recflow"``, ``"ray"``.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        **options: Further options of the layout, named as on the command line with underscores: of ``"rows"`` for
            example `items`, `users`, `requests`, `seed` and `fit_days`, of ``"letor"`` the fields of
            :class:`~rankfall.data.Recipe`.

    Raises:
        ConfigError: If the description is wrong.
        ValueError: If the data or an option are wrong; the message says where.
    """
    if layout not in _LAYOUTS:
        hint = did_you_mean(layout, _LAYOUTS)
        raise ValueError(f"layout: found {layout!r}{hint}; allowed are {', '.join(_LAYOUTS)}")
    if (spec is None) == (layout == "rows"):
        raise ValueError(
            "spec: missing, expected a description of the log"
            if layout == "rows"
            else f"spec: found with layout={layout!r}, expected layout='rows'"
        )
    if engine != "local" and layout not in ("rows", "recflow"):
        raise ValueError(f"engine: found {engine!r} with layout={layout!r}, expected local")
    described = None if spec is None else _spec(spec)
    with opened_engine(engine) as opened, reported(progress) as report:
        report(Progress("reading"))
        work = _Preparation(source, Path(out), described, force, opened, report, options)
        prepared = _LAYOUTS[layout](work)
    return PreparedData(prepared.manifest, Path(out))


def _spec(spec: ConfigLike) -> Spec:
    from rankfall._yaml_config import read_source
    from rankfall.data.impressions.spec import Spec, validate_spec

    if isinstance(spec, Spec):
        return spec
    content, where = read_source(spec)
    return validate_spec(content, where=where if isinstance(spec, str | os.PathLike) else "spec")


@dataclass(frozen=True)
class _Preparation:
    """The arguments of :func:`prepare`."""

    source: Sources
    out: Path
    spec: Spec | None
    force: bool
    engine: Engine
    report: Callable[[Progress], object]
    options: dict[str, Any]

    def checked(self, work: Callable[..., Any]) -> dict[str, Any]:
        """Return the options, after checking that the function of the layout has them."""
        allowed = [name for name in inspect.signature(work).parameters if name not in _SUPPLIED and name[:3] != "on_"]
        return self.among(allowed)

    def among(self, allowed: Sequence[str]) -> dict[str, Any]:
        """Return the options, after checking that their names are allowed."""
        for name in self.options:
            if name not in allowed:
                hint = did_you_mean(name, allowed)
                raise ValueError(f"options: found {name!r}{hint}; this layout has {', '.join(allowed)}")
        return {
            name: Path(value) if name in _PATH_OPTIONS and isinstance(value, str) else value
            for name, value in self.options.items()
        }

    def directory(self) -> Path:
        """Return the directory of published data."""
        if not isinstance(self.source, str | os.PathLike) or not Path(self.source).is_dir():
            raise ValueError(f"source: found {self.source!r}, expected a directory")
        return Path(self.source)

    def files(self) -> list[Path]:
        """Return files and directories of rows."""
        if isinstance(self.source, Mapping):
            raise ValueError("source: found a dictionary, expected files or directories of rows")
        given = [self.source] if isinstance(self.source, str | os.PathLike) else self.source
        paths = [Path(one) for one in given]
        for path in paths:
            if not path.exists():
                raise ValueError(f"source: {path} does not exist")
        return paths

    def splits(self) -> dict[str, list[Path]]:
        """Return the files of each split of ranking text."""
        if not isinstance(self.source, Mapping):
            raise ValueError(f"source: found {self.source!r}, expected a dictionary with the files of each split")
        return {
            name: [Path(files)] if isinstance(files, str | os.PathLike) else [Path(one) for one in files]
            for name, files in self.source.items()
        }


def _rows(work: _Preparation) -> Any:
    from rankfall.data.sources.rows.prepare_rows import prepare_rows

    assert work.spec is not None
    options, shown = work.checked(prepare_rows), stepper(work.report)
    return prepare_rows(
        work.files(), work.out, work.spec, force=work.force, engine=work.engine, on_progress=shown, **options
    )


def _letor(work: _Preparation) -> Any:
    from rankfall.data import Recipe, prepare_letor

    names = [one.name for one in fields(Recipe)]
    options = work.among([*names, "groups", "threads"])
    recipe = Recipe(**{name: options.pop(name) for name in names if name in options})
    splits = work.splits()
    total = sum(path.stat().st_size for paths in splits.values() for path in paths if path.is_file())
    count = counter(work.report, "reading (bytes)")
    return prepare_letor(splits, work.out, recipe, force=work.force, on_read=lambda read: count(read, total), **options)


def _recflow(work: _Preparation) -> Any:
    from rankfall.data.sources.recflow import prepare_recflow

    options, shown = work.checked(prepare_recflow), stepper(work.report)
    return prepare_recflow(
        work.directory(), work.out, force=work.force, engine=work.engine, on_progress=shown, **options
    )


def _movielens(work: _Preparation) -> Any:
    from rankfall.data.sources.movielens import prepare_movielens

    return prepare_movielens(
        work.directory(),
        work.out,
        force=work.force,
        on_requests=lambda done, total: stepper(work.report)("requests", done, total),
        **work.checked(prepare_movielens),
    )


def _mq2007(work: _Preparation) -> Any:
    from rankfall.data.sources.mq2007 import prepare_mq2007, source_files

    source, options = work.directory(), work.checked(prepare_mq2007)
    total = sum(path.stat().st_size for path in source_files(source))
    count = counter(work.report, "reading (bytes)")
    return prepare_mq2007(source, work.out, force=work.force, on_read=lambda read: count(read, total), **options)


_LAYOUTS: dict[str, Callable[[_Preparation], Any]] = {
    "rows": _rows,
    "letor": _letor,
    "recflow": _recflow,
    "movielens": _movielens,
    "mq2007": _mq2007,
}


# --- simulation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class SimulatedLog(Tables):
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
    def directory(self) -> Path:
        """Directory of the log."""
        assert self._directory is not None
        return self._directory

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
        settings = {name: getattr(self, name) for name in ("preset", "days", "requests_per_day", "seed", "layout")}
        sizes = {"impressions": self.impressions, "rows": self.rows, "stages": self.stages}
        return {
            "out": str(self.directory),
            **settings,
            **sizes,
            "megabytes": self.megabytes,
            "seconds": round(self.seconds, 1),
        }

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `stages`, one per stage: rows that were logged and kept, in all and per request."""
        return {
            "stages": [
                {
                    "stage": name,
                    **{
                        key: value
                        for what, count in counts.items()
                        for key, value in ((what, count), (f"{what}_per_request", count / self.impressions))
                    },
                }
                for name, counts in self.stages.items()
            ]
        }


def simulate(
    out: PathLike,
    preset: str = "tiny",
    *,
    days: int | None = None,
    requests_per_day: int | None = None,
    seed: int = 0,
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
        preset: Name of the platform, such as ``"tiny"`` or ``"recflow-like"``.
        days: Number of days. Default: that of the preset.
        requests_per_day: Number of requests per day. Default: that of the preset.
        seed: Random seed; equal seeds give equal logs.
        layout: ``"rankfall"`` for training, or ``"recflow"`` for RecFlow's files.
        truth: Also write the true relevance of items.
        relevant: Feedback that makes an item relevant. Default: reaching the last stage.
        force: Replace a log in `out`.
        append: Append days to a log in `out` until it has `days` in total.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.

    Raises:
        ValueError: If there is no such preset, or arguments do not fit each other or the log.
    """
    from rankfall.simulation.presets import preset_of
    from rankfall.simulation.simulate import Simulation

    chosen = preset_of(preset)
    _check_simulation(chosen.layout, preset, layout, append=append, force=force, truth=truth, relevant=relevant)
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
        if not append:
            options |= {"truth": truth, "force": force}
        if layout == "recflow":
            rows, stages = _simulate_recflow(simulation, Path(out), **options)
        else:
            rows, stages = _simulate_log(simulation, Path(out), append=append, relevant=relevant, **options)
    seconds = time.perf_counter() - start
    return SimulatedLog(
        **simulation.to_json(), layout=layout, rows=rows, stages=stages, seconds=seconds, _directory=Path(out)
    )


def _check_simulation(
    kind: str, preset: str, layout: str, *, append: bool, force: bool, truth: bool, relevant: str | None
) -> None:
    if layout not in ("rankfall", "recflow"):
        raise ValueError(f"layout: found {layout!r}, expected rankfall or recflow")
    if layout == "recflow" and kind != "recflow":
        raise ValueError(f"layout: found recflow, in which the preset {preset} cannot be written")
    if append and (force or truth or relevant or layout == "recflow"):
        raise ValueError("append: found with force, truth, relevant or layout='recflow', which cannot be combined")
    if relevant and layout == "recflow":
        raise ValueError("relevant: is a part of the description of a log, which RecFlow's layout has not")


def _simulate_log(
    simulation: Any, out: Path, *, append: bool, relevant: str | None, **options: Any
) -> tuple[int, dict[str, dict[str, int]]]:
    from rankfall.simulation.simulate import append_days, simulate_log

    log = (
        append_days(simulation, out, **options)
        if append
        else simulate_log(simulation, out, relevant=relevant, **options)
    )
    counts = log.manifest["about"]["counts"]
    stages = {name: {"logged": counts["logged"][name], "kept": counts["kept"][name]} for name in log.spec.stage_names}
    return counts["rows"], stages


def _simulate_recflow(simulation: Any, out: Path, **options: Any) -> tuple[int, dict[str, dict[str, int]]]:
    from rankfall.simulation.simulate import simulate_recflow

    manifest = simulate_recflow(simulation, out, **options)
    return manifest["rows"], {name: {"logged": count} for name, count in manifest["stages"].items()}
