"""``rf.prepare`` and ``rf.simulate``: data to train on, from raw data or from a simulated platform."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from rankfall._engine import open_engine
from rankfall._errors import RankfallError, checked, did_you_mean
from rankfall._tables import StoredTables
from rankfall.api.shared import Progress, counter, issue, reported, stepper, warn

if TYPE_CHECKING:
    from rankfall._config import ConfigLike
    from rankfall.api.shared import EngineName, OnNotice, PathLike, ProgressLike
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.lists.ranking_data import RankingData
    from rankfall.data.sources.problems import DataCheck
    from rankfall.option_types import Count, NotNegativeCount, Seed


Layout = Literal["rows", "letor", "recflow"]
Sources: TypeAlias = (
    "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, PathLike | Sequence[PathLike]]"
)


@dataclass(frozen=True, repr=False)
class PreparedData(StoredTables):
    """Prepared data: an impression log, or lists.

    Attributes:
        manifest: Content of ``manifest.json``: sources, counts and options.
    """

    manifest: dict[str, Any]
    _directory: Path | None = None

    def open(self) -> ImpressionLog | RankingData:
        """Open the data: an :class:`~rankfall.data.ImpressionLog`, or :class:`~rankfall.data.RankingData`."""
        from rankfall.data import ImpressionLog, RankingData

        return RankingData.load(self.directory) if "splits" in self.manifest else ImpressionLog.load(self.directory)

    @property
    def warnings(self) -> list[str]:
        """What a user has to know about the data."""
        from rankfall.data.impressions.compatibility import log_warnings

        if "splits" not in self.manifest:
            return log_warnings(self.manifest["about"])
        shared = self.manifest["shared_queries"]
        return [
            f"splits {pair} share {count:,} queries; a test on one uses training data of the other"
            for pair, count in shared.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what ``rankfall prepare --json`` prints."""
        return self.manifest

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `stages`, one per stage of a log, or of `splits`, one per split of lists."""
        from rankfall.data.impressions.log import ImpressionLog
        from rankfall.data.impressions.requests import stage_counts

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


@overload
def prepare(
    source: Sources | None = None,
    out: PathLike | None = None,
    *,
    layout: Layout = "rows",
    spec: ConfigLike | None = None,
    check: Literal[False] = False,
    force: bool = False,
    engine: EngineName = "local",
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    **options: Any,
) -> PreparedData: ...


@overload
def prepare(
    source: Sources | None = None, out: PathLike | None = None, *, check: Literal[True], **options: Any
) -> DataCheck: ...


@checked
def prepare(
    source: Sources | None = None,
    out: PathLike | None = None,
    *,
    layout: Layout = "rows",
    spec: ConfigLike | None = None,
    check: bool = False,
    force: bool = False,
    engine: EngineName = "local",
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    **options: Any,
) -> PreparedData | DataCheck:
    """Prepare raw data for training, or check them.

    Args:
        source: Files or directories of rows, or their URLs (``s3://``, ``gs://``, ``file://``); none if `spec` names a
            source. For ``layout="letor"`` a dictionary with the file or files of each split, for RecFlow its directory.
        out: Directory to write. A check needs none.
        layout: ``"rows"``, your own log with one row per request and item; ``"letor"``, ranking text; ``"recflow"``,
            RecFlow as it is published.
        spec: For ``"rows"``: columns, stages and features of the log, as a YAML file, a dictionary or a model.
        check: Read everything, write nothing, and return all problems of the data; for ``"rows"``, ``"letor"`` and
            ``"recflow"``.
        force: Replace data in `out`.
        engine: ``"local"`` or, for ``"rows"`` and ``"recflow"``, ``"ray"``.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: the warnings of the result are issued as
            :class:`~rankfall.RankfallWarning`.
        **options: Further options of the layout, named as on the command line with underscores: of ``"rows"`` for
            example `items`, `users`, `requests`, `seed`, `fit_days` and `skip_bad`, of ``"letor"`` the fields of
            :class:`~rankfall.data.Recipe`, `groups` and `threads`. ``append=LOG`` adds new days to a log of layout
            ``"rows"`` or ``"recflow"`` instead of writing `out`. For ``"rows"``, ``reopen=True`` also adds
            late rows of its newest day, and with ``grow=True`` new values of later days get ids.

    Returns:
        The prepared data, or with `check` a :class:`~rankfall.data.sources.problems.DataCheck`.

    Raises:
        ConfigError: If the spec is wrong.
        ValueError: If the data or an option are wrong; the message says where.
    """
    if layout not in _LAYOUTS:
        hint = did_you_mean(layout, _LAYOUTS)
        raise RankfallError(f"layout: found {layout!r}{hint}; allowed are {', '.join(_LAYOUTS)}")
    work = _LAYOUTS[layout]
    given = {"spec": spec, "engine": engine if engine != "local" else None, "append": options.pop("append", None)}
    named = {name: value for name, value in given.items() if value is not None}
    for name in named:
        having = [one for one, function in _LAYOUTS.items() if name in inspect.signature(function).parameters]
        if layout not in having:
            raise RankfallError(f"{name}: found with the layout {layout}, expected the layout {' or '.join(having)}")
    allowed = [name for name in inspect.signature(work).parameters if name not in inspect.signature(prepare).parameters]
    for name in options:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            raise RankfallError(f"options: found {name!r}{hint}; this layout has {', '.join(allowed)}")
    shared: dict[str, Any] = {"check": check, "force": force, "progress": progress, "on_notice": on_notice}
    result: PreparedData | DataCheck = work(source, out, **shared, **named, **options)
    return result


def read_spec(spec: ConfigLike) -> Spec:
    """Return the spec of a log, from a YAML file, a dictionary or a model."""
    from rankfall._config import read_source
    from rankfall.data.impressions.spec import Spec, validate_spec

    if isinstance(spec, Spec):
        return spec
    content, where = read_source(spec, "spec")
    return validate_spec(content, where=where if isinstance(spec, str | os.PathLike) else "spec")


def _prepared(data: ImpressionLog | RankingData, on_notice: OnNotice) -> PreparedData:
    result = PreparedData(data.manifest, Path(data.path))
    issue(result.warnings, on_notice)
    return result


def _directory(out: PathLike | None) -> Path:
    if out is None:
        raise RankfallError("missing, expected a directory to write; it is required without `check`", "out")
    return Path(out)


def _check_appending(**of_new_logs: object) -> None:
    """Check that no argument of new logs is given with `append`."""
    for name, value in of_new_logs.items():
        if value:
            raise RankfallError("has no effect with `append`, which keeps what the log has", name)


@checked
def rows(
    source: Sources | None = None,
    out: PathLike | None = None,
    *,
    spec: ConfigLike | None = None,
    items: PathLike | None = None,
    users: PathLike | None = None,
    requests: PathLike | None = None,
    seed: Seed = 0,
    fit_days: Count | None = None,
    append: PathLike | None = None,
    reopen: bool = False,
    grow: bool = False,
    check: bool = False,
    skip_bad: NotNegativeCount | None = None,
    engine: EngineName = "local",
    force: bool = False,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> PreparedData | DataCheck:
    """Prepare a log with one row per request and item.

    Args:
        source: Files (.csv, .jsonl, .ndjson, these also with .gz, .parquet, .feather, .arrow, .ipc), directories of
            them or Delta tables, with one row per request and item; also s3://, gs:// and file:// URLs. The result does
            not depend on how the log is split into files. Default: the source of the spec.
        out: Output directory. Default: required without `check`.
        spec: Columns, stages and features of the log, a YAML file. Default: that of `append`.
        items: A table with features of items.
        users: A table with features of users.
        requests: A table with times, users, context and sequences of requests.
        seed: Random seed; equal seeds give equal results.
        fit_days: Number of first days that vocabularies, scalings and buckets are fitted to. Default: all but the last
            two, at least one.
        append: Append new days to this log, with its spec, vocabularies, scalings and buckets.
        reopen: With `append`: the rows may be late rows of the newest day.
        grow: Add new values of appended days, or of days after `fit_days`, to the vocabularies.
        check: Read everything, write nothing, and list every problem with its number and first places. The exit code is
            1 if one of them is an error.
        skip_bad: Drop bad rows, at most N, and report them; requests whose rows contradict each other are dropped as a
            whole. With more bad rows nothing is written. Default: a bad row is an error.
        engine: ``"local"`` or ``"ray"``.
        force: Replace existing output.
        progress: As for :func:`prepare`.
        on_notice: As for :func:`prepare`.
    """
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.sources.rows.prepare_rows import append_rows, check_rows, check_tables, prepare_rows

    if append is not None:
        _check_appending(out=out, fit_days=fit_days, seed=seed, force=force)
    elif spec is None:
        raise RankfallError("missing, expected a spec of the log, or `append` for a log that has one", "spec")
    elif reopen:
        raise RankfallError("needs `append`", "reopen")
    given = None if spec is None else read_spec(spec)
    described = given or ImpressionLog.load(Path(append or "")).spec
    files = _files(source, described)
    tables: dict[Any, Any] = {"items": items, "users": users, "requests": requests}
    with open_engine(engine) as opened, reported(progress) as report:
        report(Progress("reading"))
        work: dict[str, Any] = {**tables, "engine": opened, "on_progress": stepper(report)}
        if check:
            if append is not None:
                check_tables(ImpressionLog.load(Path(append)), tables)
            return check_rows(files, described, **work)
        work |= {"grow": grow, "skip_bad": skip_bad}
        if append is not None:
            return _prepared(append_rows(files, Path(append), spec=given, reopen=reopen, **work), on_notice)
        log = prepare_rows(files, _directory(out), described, seed=seed, fit_days=fit_days, force=force, **work)
    return _prepared(log, on_notice)


def _files(source: Sources | None, spec: Spec) -> list[Path | str]:
    """Return files, directories and URLs of rows."""
    from rankfall.data.sources.object_storage import is_url

    if isinstance(source, Mapping):
        raise RankfallError("source: found a dictionary, expected files or directories of rows")
    if not source:
        if spec.source is None:
            raise RankfallError("missing, and the spec names no source", "source")
        return []
    given = [source] if isinstance(source, str | os.PathLike) else source
    for path in given:
        if not is_url(path) and not Path(path).exists():
            raise RankfallError(f"{path} does not exist", "source")
    return [path if isinstance(path, str) else Path(path) for path in given]


@checked
def recflow(
    source: Sources | None,
    out: PathLike | None = None,
    *,
    stages: Literal[2, 3] | None = None,
    days: str | None = None,
    sequences: Literal["pickle", "log", "none"] | None = None,
    seed: Seed = 0,
    append: PathLike | None = None,
    check: bool = False,
    skip_bad: NotNegativeCount | None = None,
    engine: EngineName = "local",
    force: bool = False,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> PreparedData | DataCheck:
    """Prepare RecFlow as it is published, or a log simulated in its layout.

    Args:
        source: Directory with all_stage/, and optionally seq_effective_50_dict/ and others/id_cnt.pkl.
        out: Output directory. Default: required without `check`.
        stages: Cascade of two stages (ten items each of prerank_neg, coarse_neg, rank_neg, rank_pos) or of three
            (rerank_neg and rerank_pos instead of rank_pos). Default: 2.
        days: Only these days; also DAY, FIRST.. or ..LAST. Default: all.
        sequences: Origin of behaviour sequences: the published pickles, which are read without running code, or the
            views in the log itself; none writes no sequences. Default: pickle if they exist, otherwise log.
        seed: Random seed; equal seeds give equal results.
        append: Append days to this log, with its stages and sequences; by default all days after its newest day.
        check: Read everything, write nothing, and list every problem with its number and first places. The exit code is
            1 if one of them is an error.
        skip_bad: Drop bad rows, at most N, and report them; requests whose rows contradict each other are dropped as a
            whole. With more bad rows nothing is written. Default: a bad row is an error.
        engine: ``"local"`` or ``"ray"``.
        force: Replace existing output.
        progress: As for :func:`prepare`.
        on_notice: As for :func:`prepare`.
    """
    from rankfall.data.sources.recflow import append_recflow, check_recflow, prepare_recflow

    if append is not None:
        _check_appending(out=out, stages=stages, sequences=sequences, seed=seed, force=force, check=check)
    if not isinstance(source, str | os.PathLike) or not Path(source).is_dir():
        raise RankfallError(f"found {source!r}, expected a directory", "source")
    with open_engine(engine) as opened, reported(progress) as report:
        report(Progress("reading"))
        work: dict[str, Any] = {"days": days, "engine": opened, "on_progress": stepper(report)}
        if append is not None:
            return _prepared(append_recflow(Path(source), Path(append), skip_bad=skip_bad, **work), on_notice)
        work |= {"stages": stages or 2, "sequences": sequences}
        if check:
            return check_recflow(Path(source), **work)
        log = prepare_recflow(Path(source), _directory(out), seed=seed, force=force, skip_bad=skip_bad, **work)
    return _prepared(log, on_notice)


@checked
def letor(
    source: Sources | None,
    out: PathLike | None = None,
    *,
    groups: Mapping[Path, Path] | None = None,
    min_list: Count = 1,
    max_list: Count | None = None,
    keep_positives: NotNegativeCount = 15,
    replacement: bool = False,
    log1p: bool = False,
    standardise: Sequence[str] = (),
    missing_value: float | None = None,
    missing_indicator: bool = False,
    regroup: bool = False,
    skip_bad_lines: bool = False,
    check: bool = False,
    skip_bad: NotNegativeCount | None = None,
    features: Count | None = None,
    first_id: NotNegativeCount | None = None,
    seed: Seed = 0,
    threads: Count | None = None,
    force: bool = False,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> PreparedData | DataCheck:
    """Prepare ranking text.

    Args:
        source: Ranking files (LETOR/SVMlight text, plain, gzip, xz or zstd), each FILE or SPLIT=FILE. Without a name
            the split has the name of the file; files of the same split are read in turn.
        out: Output directory. Default: required without `check`.
        groups: File of group sizes for files without qid; once per SRC, in the same order. By default FILE.query or
            FILE.group beside FILE.
        min_list: Drop lists with fewer documents.
        max_list: Cut longer lists to a sample of this size. Default: any length.
        keep_positives: Smallest number of documents with a label above 0 in such a sample.
        replacement: Draw such a sample with replacement; too few positives are repeated (ARF, B.2).
        log1p: Transform features to sign(v) log(1 + |v|).
        standardise: Scale features to mean 0 and variance 1, fitted on this split only (repeatable). With
            cross-validation, standardise in training instead.
        missing_value: Replacement for NULL, NaN, infinite and empty values (after `log1p`, before `standardise`).
            Default: they are errors.
        missing_indicator: Add a column for each feature with missing values, which is 1 where they are missing.
        regroup: Join the lines of queries that are not consecutive.
        skip_bad_lines: Skip and report invalid lines instead of stopping.
        check: Read everything, write nothing, and list every problem with its number and first places. The exit code is
            1 if one of them is an error.
        skip_bad: Skip and report invalid lines, at most N. With more of them nothing is written. Default: an invalid
            line is an error.
        features: Number of features. Default: the largest id that occurs.
        first_id: Smallest feature id. Default: 0 if it occurs, else 1.
        seed: Random seed; equal seeds give equal results.
        threads: Number of parsing threads. Default: all cores, at most 8.
        force: Replace existing output.
        progress: As for :func:`prepare`.
        on_notice: As for :func:`prepare`.
    """
    from rankfall.data import Recipe, prepare_letor
    from rankfall.data.sources.letor.prepare_letor import check_letor

    if not isinstance(source, Mapping):
        raise RankfallError(f"source: found {source!r}, expected a dictionary with the files of each split")
    splits = {
        name: [Path(files)] if isinstance(files, str | os.PathLike) else [Path(one) for one in files]
        for name, files in source.items()
    }
    if missing_indicator and missing_value is None:
        raise RankfallError("needs `missing_value`", "missing_indicator")
    if max_list is not None and max_list < min_list:
        raise RankfallError(f"{max_list} is below `min_list` {min_list}", "max_list")
    for name in standardise:
        if name not in splits:
            raise RankfallError(f"found {name}, expected one of the splits {', '.join(splits)}", "standardise")
    recipe = Recipe(
        min_list=min_list,
        max_list=max_list,
        keep_positives=keep_positives,
        replacement=replacement,
        log1p=log1p,
        missing_value=missing_value,
        missing_indicator=missing_indicator,
        standardise=tuple(standardise),
        regroup=regroup,
        skip_bad_lines=skip_bad_lines,
        features=features,
        first_id=first_id,
        seed=seed,
    )
    total = sum(path.stat().st_size for paths in splits.values() for path in paths if path.is_file())
    used = threads or min(8, len(os.sched_getaffinity(0)))
    with reported(progress) as report:
        count = counter(report, "reading (bytes)")
        work: dict[str, Any] = {"groups": groups, "threads": used, "on_read": lambda read: count(read, total)}
        if check:
            return check_letor(splits, recipe, **work)
        data = prepare_letor(splits, _directory(out), recipe, force=force, skip_bad=skip_bad, **work)
    return _prepared(data, on_notice)


_LAYOUTS: dict[str, Callable[..., Any]] = {"rows": rows, "letor": letor, "recflow": recflow}


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
