"""``rf.prepare``: raw data become data to train on."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from rankfall._errors import checked, did_you_mean
from rankfall._tables import StoredTables
from rankfall.api.arguments import opened_engine
from rankfall.api.display import Progress, counter, issue, reported, stepper, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall._config import ConfigLike
    from rankfall._engine import Engine
    from rankfall.api.arguments import EngineName, PathLike
    from rankfall.api.display import OnNotice, ProgressLike
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.lists.ranking_data import RankingData
    from rankfall.data.sources.letor.parse import Recipe
    from rankfall.data.sources.problems import DataCheck

Layout = Literal["rows", "letor", "recflow"]
Sources: TypeAlias = (
    "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, PathLike | Sequence[PathLike]]"
)
_SUPPLIED = (
    *("source", "sources", "out", "path", "spec", "recipe", "force", "engine"),
    *("about", "inspect", "portion_rows"),
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
    source: Sources | None = None,
    out: PathLike | None = None,
    *,
    check: Literal[True],
    layout: Layout = "rows",
    spec: ConfigLike | None = None,
    force: bool = False,
    engine: EngineName = "local",
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    **options: Any,
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
        spec: For ``"rows"``: description of columns, stages and features, as a YAML file, a dictionary or a model.
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
        ConfigError: If the description is wrong.
        ValueError: If the data or an option are wrong; the message says where.
    """
    append = options.get("append")
    _check_arguments(layout, out, spec, engine, check=check, append=append is not None)
    described = None if spec is None else load_description(spec)
    with opened_engine(engine) as opened, reported(progress) as report:
        report(Progress("reading"))
        work = _Preparation(source, Path(append or out or ""), described, force, opened, report, options)
        if check:
            return _CHECKS[layout](work)
        prepared = _LAYOUTS[layout](work)
    result = PreparedData(prepared.manifest, Path(work.out))
    issue(result.warnings, on_notice)
    return result


def _check_arguments(
    layout: str, out: PathLike | None, spec: ConfigLike | None, engine: str, *, check: bool, append: bool
) -> None:
    if layout not in _LAYOUTS:
        hint = did_you_mean(layout, _LAYOUTS)
        raise ValueError(f"layout: found {layout!r}{hint}; allowed are {', '.join(_LAYOUTS)}")
    if append and out is not None:
        raise ValueError("out: found together with `append`, which names the log to write to; expected one of them")
    if layout == "rows" and spec is None and not append:
        raise ValueError('spec: missing, expected a description of the log; ranking text has layout="letor"')
    if out is None and not check and not append:
        raise ValueError("out: missing, expected a directory to write")
    for name, found, layouts in (
        ("spec", spec is not None, ("rows",)),
        ("append", append, ("rows", "recflow")),
        ("engine", engine != "local", ("rows", "recflow")),
    ):
        if found and layout not in layouts:
            raise ValueError(f"{name}: found with the layout {layout}, expected the layout {' or '.join(layouts)}")


def load_description(spec: ConfigLike) -> Spec:
    """Return the description of a log, from a YAML file, a dictionary or a model."""
    from rankfall._config import read_source
    from rankfall.data.impressions.spec import Spec, validate_spec

    if isinstance(spec, Spec):
        return spec
    content, where = read_source(spec, "spec")
    return validate_spec(content, where=where if isinstance(spec, str | os.PathLike) else "spec")


@dataclass(frozen=True)
class _Preparation:
    """The arguments of :func:`prepare`."""

    source: Sources | None
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
        return dict(self.options)

    def appending(self) -> _Preparation:
        """Return the arguments without `append`, the path of the log, which is also that of the output."""
        return replace(self, options={name: value for name, value in self.options.items() if name != "append"})

    def directory(self) -> Path:
        """Return the directory of published data."""
        if not isinstance(self.source, str | os.PathLike) or not Path(self.source).is_dir():
            raise ValueError(f"source: found {self.source!r}, expected a directory")
        return Path(self.source)

    def files(self) -> list[Path | str]:
        """Return files, directories and URLs of rows."""
        from rankfall.data.sources.object_storage import is_url

        if isinstance(self.source, Mapping):
            raise ValueError("source: found a dictionary, expected files or directories of rows")
        if self.source is None:
            if "append" not in self.options and (self.spec is None or self.spec.source is None):
                raise ValueError("source: missing, and the spec names no source")
            return []
        given = [self.source] if isinstance(self.source, str | os.PathLike) else self.source
        for path in given:
            if not is_url(path) and not Path(path).exists():
                raise ValueError(f"source: {path} does not exist")
        return [path if isinstance(path, str) else Path(path) for path in given]

    def splits(self) -> dict[str, list[Path]]:
        """Return the files of each split of ranking text."""
        if not isinstance(self.source, Mapping):
            raise ValueError(f"source: found {self.source!r}, expected a dictionary with the files of each split")
        return {
            name: [Path(files)] if isinstance(files, str | os.PathLike) else [Path(one) for one in files]
            for name, files in self.source.items()
        }


def _rows(work: _Preparation) -> Any:
    from rankfall.data.sources.rows.prepare_rows import append_rows, prepare_rows

    if "append" in work.options:
        options, shown = work.appending().checked(append_rows), stepper(work.report)
        return append_rows(work.files(), work.out, spec=work.spec, engine=work.engine, on_progress=shown, **options)
    assert work.spec is not None
    options, shown = work.checked(prepare_rows), stepper(work.report)
    return prepare_rows(
        work.files(), work.out, work.spec, force=work.force, engine=work.engine, on_progress=shown, **options
    )


def _check_rows(work: _Preparation) -> DataCheck:
    from rankfall.data.sources.rows.prepare_rows import check_rows

    assert work.spec is not None
    options, shown = work.checked(check_rows), stepper(work.report)
    return check_rows(work.files(), work.spec, engine=work.engine, on_progress=shown, **options)


def _letor(work: _Preparation) -> Any:
    from rankfall.data import prepare_letor

    splits, recipe, options = _letor_arguments(work)
    return prepare_letor(splits, work.out, recipe, force=work.force, **options)


def _check_letor(work: _Preparation) -> DataCheck:
    from rankfall.data.sources.letor.split_reader import check_letor

    splits, recipe, options = _letor_arguments(work)
    return check_letor(splits, recipe, **options)


def _letor_arguments(work: _Preparation) -> tuple[dict[str, list[Path]], Recipe, dict[str, Any]]:
    from rankfall.data import Recipe

    names = [one.name for one in fields(Recipe)]
    options = work.among([*names, "groups", "threads"])
    recipe = Recipe(**{name: options.pop(name) for name in names if name in options})
    splits = work.splits()
    total = sum(path.stat().st_size for paths in splits.values() for path in paths if path.is_file())
    count = counter(work.report, "reading (bytes)")
    return splits, recipe, {**options, "on_read": lambda read: count(read, total)}


def _recflow(work: _Preparation) -> Any:
    from rankfall.data.sources.recflow import append_recflow, prepare_recflow

    if "append" in work.options:
        options, shown = work.appending().checked(append_recflow), stepper(work.report)
        return append_recflow(work.directory(), work.out, engine=work.engine, on_progress=shown, **options)
    options, shown = work.checked(prepare_recflow), stepper(work.report)
    return prepare_recflow(
        work.directory(), work.out, force=work.force, engine=work.engine, on_progress=shown, **options
    )


def _check_recflow(work: _Preparation) -> DataCheck:
    from rankfall.data.sources.recflow import check_recflow

    options, shown = work.checked(check_recflow), stepper(work.report)
    return check_recflow(work.directory(), engine=work.engine, on_progress=shown, **options)


_LAYOUTS: dict[str, Callable[[_Preparation], Any]] = {
    "rows": _rows,
    "letor": _letor,
    "recflow": _recflow,
}
_CHECKS: dict[str, Callable[[_Preparation], DataCheck]] = {
    "rows": _check_rows,
    "letor": _check_letor,
    "recflow": _check_recflow,
}
