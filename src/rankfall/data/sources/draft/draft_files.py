"""What ``rankfall init`` writes: from rows, from a prepared log, from prepared lists or from LETOR text."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall._errors import RankfallError
from rankfall.data.impressions.assemble import RepeatCounts
from rankfall.data.impressions.encoding import parse_times
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.lists.ranking_data import RankingData, is_prepared
from rankfall.data.sources.draft.column_facts import parse_given, read_sample, with_table
from rankfall.data.sources.draft.draft_spec import (
    LogShape,
    draft_cascade_config,
    draft_ranker_config,
    draft_spec,
    feature_name,
    is_stage_name,
    items_per_stage,
)
from rankfall.data.sources.draft.guesses import guess_roles, guess_table_columns
from rankfall.data.sources.object_storage import is_url
from rankfall.data.sources.rows.prepare_rows import Step
from rankfall.data.sources.rows.row_files import SUFFIXES
from rankfall.data.sources.rows.stored_rows import local_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankfall._engine import Report
    from rankfall.data.sources.draft.column_facts import Guesses, Role, Sample
    from rankfall.data.sources.rows.prepare_rows import OnProgress
    from rankfall.data.sources.rows.raw_log import Origin
    from rankfall.data.sources.rows.row_files import InvalidRow, RowFile

SPEC, CONFIG = "spec.yaml", "config.yaml"
_DAY = "\1day"
LETOR_SUFFIXES = (".txt", ".svm", ".svmlight", ".libsvm", ".letor", ".dat")
_LETOR_LINE = re.compile(rb"^\s*[+-]?[\d.]+\s+qid:\S+\s+\d+:")
_ROLES_OF_SPLITS = {"train": ("train",), "valid": ("vali", "valid", "dev"), "test": ("test",)}


@dataclass
class Draft:
    """Drafts of files, and what was guessed.

    Attributes:
        files: Texts by file name; empty if something could not be decided.
        next: Commands to run, in their order.
        guesses: Roles of the columns, if there are rows.
        sample: The rows that they were guessed from.
        problems: What could not be decided.
        checks: What a person should look at.
    """

    files: dict[str, str] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)
    guesses: Guesses | None = None
    sample: Sample | None = None
    problems: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)


def draft_files(
    sources: Sequence[Path | str],
    out: Path,
    *,
    roles: Iterable[str] = (),
    items: Path | str | None = None,
    users: Path | str | None = None,
    on_progress: OnProgress = lambda step, done, total: None,
) -> Draft:
    """Draft the spec of a log and the configuration of a training run.

    Args:
        sources: Files of rows, directories of them or their URLs, a prepared log, prepared lists, or LETOR text.
        out: Directory in which the files will be written.
        roles: Roles of columns that are known, ``ROLE=COLUMN``.
        items: A table with more columns of items.
        users: A table with more columns of users.
        on_progress: Receives the name of a step, the amount done, and the total if it is known.

    Raises:
        ValueError: If sources cannot be read.
    """
    given = list(roles)
    paths = [Path(source) for source in sources if not is_url(source)]
    tables: dict[Origin, Path | str | None] = {"items": items, "users": users}
    named = {origin: table for origin, table in tables.items() if table is not None}
    if len(paths) == len(sources) and not named:
        if len(paths) == 1 and is_log(paths[0]):
            _refuse_roles(given, "a prepared log")
            return _from_log(paths[0], out)
        if len(paths) == 1 and is_prepared(paths[0]):
            _refuse_roles(given, "prepared lists")
            config = draft_ranker_config(str(paths[0]), *_splits(list(RankingData.load(paths[0]))))
            return Draft({CONFIG: config}, [f"rankfall train {quote(str(out / CONFIG))} --out run"])
        if found := _letor_files(paths):
            _refuse_roles(given, "LETOR text")
            return _from_letor(found, out)
    steps = partial(Step, on_progress=on_progress)
    with local_rows(sources, named, steps) as files:
        rows = _RowSources(files.pop("log"), files, [*map(str, sources)], named)
        return _from_rows(rows, out, given, steps("reading days", None))


# --- rows -----------------------------------------------------------------------------------------------------------


_KEYS: dict[Origin, Role] = {"items": "item", "users": "user"}  # by which tables are joined


@dataclass
class _RowSources:
    """The files of a log and of its tables, and how a command names them."""

    files: list[RowFile]
    tables: dict[Origin, list[RowFile]]
    names: list[str]
    named_tables: Mapping[Origin, Path | str]
    invalid: dict[tuple[str, int], str] = field(default_factory=dict)  # by file and row

    def on_invalid(self, file: RowFile, row: InvalidRow) -> None:
        """Remember a row that cannot be read."""
        self.invalid[str(file), row.row] = row.found

    def set_tables_apart(self, known: Mapping[str, Role]) -> list[RowFile]:
        """Take files with other columns, such as a catalogue in the same directory, out of the log; return them.

        Of the files with the same columns, the log is the largest group whose columns have all roles of a log.
        """
        tables = {file.path.resolve() for files in self.tables.values() for file in files}
        left = [file for file in self.files if file.path.resolve() not in tables]
        alike: dict[frozenset[str], list[RowFile]] = {}
        for file in left:
            alike.setdefault(frozenset(file.columns()), []).append(file)
        headers = sorted(alike, key=lambda header: -sum(file.path.stat().st_size for file in alike[header]))
        if not headers:
            raise RankfallError(f"{', '.join(self.names)}: found tables only, expected files of the log besides them")
        logs = (one for one in headers if len(headers) == 1 or not self.guess(alike[one], known)[1].problems)
        most = next(logs, headers[0])
        log = [file for file in left if 2 * len(most & {*file.columns()}) >= len(most)]
        if len(log) < len(self.files):
            self.files, self.names = log, [str(file) for file in log]
        return [file for file in left if file not in log]

    def guess(self, files: Sequence[RowFile], known: Mapping[str, Role]) -> tuple[Sample, Guesses]:
        """Read a sample of files, and guess the roles of their columns."""
        sample = read_sample(files, self.on_invalid)
        return sample, guess_roles(sample, {column: role for column, role in known.items() if column in sample.facts})

    def find_table(self, file: RowFile, guesses: Guesses) -> str | None:
        """Use a file as the table of items or of users if it has one row for each; otherwise return what to check."""
        for origin, role in _KEYS.items():
            key = guesses.one(role)
            if key is None or key not in file.columns() or origin in self.tables:
                continue
            ids = pl.concat(batch[key] for batch in file.batches([key], partial(self.on_invalid, file)))
            if not ids.is_duplicated().any():
                self.tables[origin] = [file]
                self.named_tables = {**self.named_tables, origin: str(file)}
                return f"{file} has other columns than the log and one row per {role}, and is used with --{origin}"
        return f"{file} has other columns than the log and was left out; --items and --users name tables"


def _from_rows(rows: _RowSources, out: Path, given: list[str], on_rows: Report) -> Draft:
    columns = [name for files in [rows.files, *rows.tables.values()] for file in files for name in file.columns()]
    known = parse_given(given, list(dict.fromkeys(columns)))
    beside = rows.set_tables_apart(known)
    sample, guesses = rows.guess(rows.files, known)
    guesses.checks += filter(None, (rows.find_table(file, guesses) for file in beside))
    for origin, files in rows.tables.items():
        if (key := guesses.one(_KEYS[origin])) is None:
            raise RankfallError(f"{origin}: the log has no column of a {_KEYS[origin]}, by which this table is joined")
        sample = with_table(sample, files, key, rows.on_invalid)
    guess_table_columns(sample, guesses, {name: role for name, role in known.items() if name in sample.facts})
    draft = Draft(guesses=guesses, sample=sample, problems=guesses.problems, checks=guesses.checks)
    if guesses.one("stage") is not None and (bad := [name for name in guesses.stages if not is_stage_name(name)]):
        draft.problems.append(
            f"stage: found {', '.join(map(repr, bad))}, expected names of letters, digits, '_' and '-', or the "
            "numbers 0, 1, 2, ...; change the values, or leave the column out with --role ignore="
            f"{guesses.one('stage')}"
        )
    if draft.problems:
        return draft
    days = _days(rows, sample, guesses, on_rows)
    if rows.invalid:
        (file, row), found = next(iter(rows.invalid.items()))
        draft.checks.append(
            f"{len(rows.invalid):,} rows cannot be read (the first is row {row + 1} of {file}: {found}), which prepare "
            "refuses: prepare --check lists them, and --skip-bad drops them"
        )
    log = "prepared" if any(Path(name).parts[:1] == ("log",) for name in rows.names) else "log"  # not the source
    try:
        config = draft_cascade_config(_shape(sample, guesses, days, log))
    except ValueError as error:
        draft.problems.append(str(error))
        return draft
    draft.files = {SPEC: draft_spec(sample, guesses), CONFIG: config}
    names = " ".join(map(quote, rows.names))
    tables = "".join(f" --{origin} {quote(str(name))}" for origin, name in rows.named_tables.items())
    draft.next = [
        f"rankfall prepare rows {names}{tables} --spec {quote(str(out / SPEC))} --out {log}",
        f"rankfall data {log}",
        f"rankfall train {quote(str(out / CONFIG))} --out run",
    ]
    return draft


def _days(rows: _RowSources, sample: Sample, guesses: Guesses, on_rows: Report) -> list[str]:
    """Return the names of all days of the log in their order."""
    day, column = guesses.one("day"), guesses.key("day", "time")
    found: set[Any] = set()
    for file in rows.files:
        for batch in file.batches([column], partial(rows.on_invalid, file)):
            on_rows(len(batch))
            days = batch[column] if day else _dates(batch[column], sample.facts[column].unit)
            found |= set(days.drop_nulls().unique().to_list())
    if day and sample.frame[column].dtype.is_integer():
        return [str(value) for value in sorted(map(int, found))]
    return sorted(map(str, found))


def _dates(values: pl.Series, unit: Any) -> pl.Series:
    if unit is not None and values.dtype == pl.String:
        values = values.cast(pl.Int64, strict=False)
    return parse_times(values, unit, "UTC").dt.strftime("%Y-%m-%d")


def _shape(sample: Sample, guesses: Guesses, days: list[str], path: str) -> LogShape:
    request, item, label = guesses.key("request"), guesses.key("item"), guesses.one("label")
    requests = sample.facts[request].distinct
    items = items_per_stage(sample, guesses) if guesses.stages else [sample.rows_per_value(request)]
    positives = sum(items[guesses.relevant_stage :])
    if label is not None:
        relevant = pl.col(label).cast(pl.Float64).fill_null(0).fill_nan(0) > 0
        counts = sample.frame.group_by(request).agg(relevant.sum().alias("count"))["count"]
        positives = float(counts.filter(counts > 0).mean() or 1)  # type: ignore[arg-type]
    time = guesses.key("day", "time")
    seen = sample.frame[time] if guesses.one("day") else _dates(sample.frame[time], sample.facts[time].unit)
    return LogShape(
        path=path,
        days=days,
        stages=[feature_name(stage) for stage in guesses.stages],
        items=items,
        positives=positives,
        relevant_stage=guesses.relevant_stage if label is None else None,
        requests_per_day=requests / max(1, seen.n_unique()),
        has_sequences=bool(guesses.all("sequence"))
        or (label is not None and None not in (guesses.one("user"), guesses.one("time"))),
        catalogue=sample.facts[item].distinct,
        per_request=_per_request(sample, guesses, item, seen),
    )


def _per_request(sample: Sample, guesses: Guesses, item: str, days: pl.Series) -> list[str]:
    """Return the features of items that depend on the request, found as `prepare rows` finds them."""
    kinds = ("truth", "whole", "number", "text")
    names = [name for name in guesses.all("item_feature") if sample.facts[name].kind in kinds]
    order = [name for name in (guesses.one("time"), guesses.one("request")) if name is not None]
    frame = sample.frame.with_columns(days.alias(_DAY)).sort(order, maintain_order=True).select(_DAY, item, *names)
    numbers = (pl.col(pl.String).rank("dense").fill_null(0).cast(pl.Int64), pl.exclude(pl.String).cast(pl.Float64))
    repeats = RepeatCounts()
    for rows in frame.partition_by(_DAY, include_key=False):
        found = rows.with_columns(*numbers)
        repeats.add(found[item].to_numpy(), ((name, found[name].to_numpy()) for name in names))
    return repeats.per_request()


# --- prepared data ----------------------------------------------------------------------------------------------------


def _from_log(path: Path, out: Path) -> Draft:
    log = ImpressionLog.load(path)
    day = next(iter(log.days.values()))
    table = day.table().select(["depth", "relevance"])
    depths = np.array(table.column("depth").combine_chunks().flatten())
    relevance = np.array(table.column("relevance").combine_chunks().flatten())
    lengths = np.array(table.column("depth").combine_chunks().value_lengths())
    requests = max(1, len(lengths))
    list_of_item = np.repeat(np.arange(requests), lengths)
    positives = np.bincount(list_of_item[relevance > 0], minlength=requests)
    names = list(log.manifest["stages"])
    relevant_stage = log.manifest["spec"]["relevant"].get("stage")
    shape = LogShape(
        path=str(path),
        days=list(log.days),
        stages=names if len(names) > 1 else [],
        items=[float((depths == depth).sum()) / requests for depth in range(len(names))],
        positives=float(positives[positives > 0].mean()) if positives.any() else 1.0,
        relevant_stage=names.index(relevant_stage) if relevant_stage else None,
        requests_per_day=float(requests),
        has_sequences=bool(log.features.sequences),
        catalogue=len(log.items()),
        per_request=[name.removeprefix("item.") for name in log.per_request],
    )
    return Draft(
        files={CONFIG: draft_cascade_config(shape)},
        next=[f"rankfall data {quote(str(path))}", f"rankfall train {quote(str(out / CONFIG))} --out run"],
        checks=["quotas were guessed from the first day of the log"],
    )


def _from_letor(files: Sequence[Path], out: Path) -> Draft:
    names = [path.name.removesuffix(".gz").rpartition(".")[0] for path in files]
    if len(set(names)) < len(names):
        raise RankfallError(f"found the splits {', '.join(names)}, expected files with different names")
    sources = " ".join(quote(str(path)) for path in files)
    return Draft(
        files={CONFIG: draft_ranker_config("lists", *_splits(names))},
        next=[
            f"rankfall prepare letor {sources} --out lists",
            "rankfall data lists",
            f"rankfall train {quote(str(out / CONFIG))} --out run",
        ],
    )


def _refuse_roles(given: Sequence[str], what: str) -> None:
    if given:
        raise RankfallError(f"role: found {given[0]}, but {what} has no columns to give a role to")


def _letor_files(sources: Sequence[Path]) -> list[Path]:
    """Return the files of LETOR text, if the sources are such files or a directory of them, else nothing."""
    files: list[Path] = []
    for path in sources:
        if path.is_dir() and not any(file.name.endswith(SUFFIXES) for file in path.rglob("*")):
            files += sorted(file for file in path.iterdir() if _is_letor_name(file))
        elif path.is_file() and _is_letor_name(path):
            files.append(path)
        else:
            return []
    return files if files and all(map(_is_letor, files)) else []


def _is_letor_name(path: Path) -> bool:
    return path.is_file() and path.name.removesuffix(".gz").endswith(LETOR_SUFFIXES)


def _is_letor(path: Path) -> bool:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return any(_LETOR_LINE.match(file.readline()) for _ in range(5))


def _splits(names: Sequence[str]) -> tuple[str, str, str | None]:
    """Return the splits for training, validation and testing; parts of the only split if there is one."""
    found = {
        role: next((name for name in names if any(word in name.lower() for word in known)), None)
        for role, known in _ROLES_OF_SPLITS.items()
    }
    rest = [name for name in names if name not in found.values()]
    if found["train"] is None and len(names) >= 3 and len(rest) == len(names):
        return names[0], names[-2], names[-1]
    if found["train"] is None and rest:
        found["train"] = rest.pop(0)
    train, valid, test = found["train"], found["valid"], found["test"]
    if train is None:
        raise RankfallError(f"splits: found {', '.join(names)}, expected one to train on")
    if valid is None:  # a tenth of the training lists
        return f"{train}:1/2", f"{train}:2/2", test
    return train, valid, test
