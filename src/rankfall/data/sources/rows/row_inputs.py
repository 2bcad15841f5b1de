"""The files and tables from which rows are read, and progress of the steps that read them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rankfall.data.sources.problems import TooManyBadError
from rankfall.data.sources.rows.check_log import check_log
from rankfall.data.sources.rows.own_source import rows_of_source
from rankfall.data.sources.rows.provenance import skipped_json
from rankfall.data.sources.rows.row_files import RowFile, find_row_files
from rankfall.data.sources.rows.stored_rows import local_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rankfall._engine import Engine
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import Findings
    from rankfall.data.sources.rows.own_source import SourceRows
    from rankfall.data.sources.rows.raw_log import Tables
    from rankfall.data.sources.rows.stored_rows import GivenTables, Source

    OnProgress = Callable[[str, int, int | None], None]

PORTION_ROWS = 2**19


class RowInputs(NamedTuple):
    """Files of rows and tables without their bad rows, the function they come from, and entries for the provenance."""

    files: list[RowFile]
    tables: Tables
    own: SourceRows | None
    about: dict[str, Any]


@contextmanager
def open_inputs(
    sources: Sequence[Source],
    spec: Spec,
    tables: GivenTables,
    directory: Path,
    *,
    skip_bad: int | None,
    engine: Engine,
    on_progress: OnProgress,
) -> Iterator[RowInputs]:
    """Find the files of a log, or call the source that its description names, and drop bad rows.

    Args:
        sources: Files, directories or URLs of rows.
        spec: The description of the log.
        tables: The tables that are joined.
        directory: Directory of temporary files.
        skip_bad: The largest number of bad rows to drop; None does not check the rows.
        engine: Runs the work on files and portions.
        on_progress: Receives the progress of each step.
    """
    with local_inputs(sources, spec, tables, on_progress, directory) as (paths, copied, own):
        files = find_row_files(paths)
        if skip_bad is None:
            yield RowInputs(files, copied, own, {})
            return
        found = _bad_rows(files, spec, copied, skip_bad, engine, on_progress, directory)
        files = [replace(file, skipped=found.skipped(str(file))) for file in files]
        left = {origin: _without(found, path) for origin, path in copied.items()}
        yield RowInputs(files, left, own, {"skipped": skipped_json(found, skip_bad)})


@contextmanager
def local_inputs(
    sources: Sequence[Source],
    spec: Spec,
    tables: GivenTables,
    on_progress: OnProgress,
    inside: Path | None = None,
) -> Iterator[tuple[Sequence[Path | RowFile], Tables, SourceRows | None]]:
    """Yield the sources and tables of a log as local files, and the rows of its own source if it has one.

    Args:
        sources: Files, directories or URLs of rows.
        spec: The description of the log.
        tables: The tables that are joined.
        on_progress: Receives the progress of each step.
        inside: The directory of temporary directories; by default that of the system.
    """
    check_sources(sources, spec)
    with (
        rows_of_source(spec, Step("reading the source", None, on_progress), inside) as own,
        local_rows(sources, tables, partial(Step, on_progress=on_progress), inside) as (paths, copied),
    ):
        yield paths if own is None else own.files, copied, own


def check_sources(sources: Sequence[Source], spec: Spec) -> None:
    """Check that rows come from files or from the source of the description, not from both."""
    if not sources and spec.source is None:
        raise ValueError("sources: found no files, and the description has no `source`; expected one of them")
    if sources and spec.source is not None:
        raise ValueError("sources: found files, and a `source` in the description; expected one of them")


def _bad_rows(
    files: Sequence[RowFile],
    spec: Spec,
    tables: Tables,
    limit: int,
    engine: Engine,
    on_progress: OnProgress,
    directory: Path,
) -> Findings:
    """Check a log; return its bad rows, of which there are at most `limit`."""
    if limit < 0:
        raise ValueError(f"skip_bad: found {limit}, expected at least 0")
    steps = partial(Step, on_progress=on_progress)
    check, found = check_log(files, spec, tables, limit=limit, engine=engine, on_step=steps, inside=directory)
    lasting = [problem for problem in check.errors if problem.dropped is None]
    if lasting:
        first = lasting[0]
        where = f"column {first.column!r}: " if first.column else ""
        raise TooManyBadError(f"skip_bad: no dropped row solves every problem: {where}{first.problem}", check)
    if found.bad_rows > limit:
        raise TooManyBadError(
            f"skip_bad: found {found.bad_rows:,} bad rows, expected at most {limit:,}; nothing was written", check
        )
    if check.rows and sum(len(found.skipped(str(file))) for file in files) >= check.rows:
        raise TooManyBadError("skip_bad: every row of the log is bad", check)
    return found


def _without(found: Findings, table: Path | list[RowFile] | None) -> list[RowFile] | None:
    """Return the files of a table without its bad rows."""
    if table is None:
        return None
    files = find_row_files(table if isinstance(table, list) else [table])
    return [replace(file, skipped=found.skipped(str(file))) for file in files]


class Step:
    """Reports the progress of one step."""

    def __init__(self, name: str, total: int | None, on_progress: OnProgress) -> None:
        self._name, self._total, self._on_progress = name, total, on_progress
        self._done = 0

    def __call__(self, rows: int) -> None:
        self._done += rows
        self._on_progress(self._name, self._done, self._total)
