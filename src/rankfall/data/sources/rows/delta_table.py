"""The data files of a Delta table: those of one version of its log, without files that were removed."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rankfall.data.sources.rows.row_files import Defaults

LOG = "_delta_log"
INSTALL = "pip install 'rankfall[delta]'"
_READABLE = {"timestampNtz", "vacuumProtocolCheck"}  # features that do not change how data files are read


class DeltaFile(NamedTuple):
    """A data file: its path in the directory of the table, and the columns that only the log has."""

    path: str
    defaults: Defaults


def delta_files(directory: Path, name: str, version: int | None = None) -> list[DeltaFile]:
    """Return the data files of a Delta table, in the order of their paths.

    Args:
        directory: A directory with the log of the table; the data files may be elsewhere.
        name: The table in messages.
        version: The version to read; by default the newest.

    Raises:
        ValueError: If there is no such version, or the table has features that change how files are read.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError:
        raise ValueError(f"{name}: is a Delta table, which needs deltalake: {INSTALL}") from None
    try:
        table = DeltaTable(directory, version=version)
        _check_features(table, name)
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    except DeltaError as error:
        wanted = "" if version is None else f" in version {version}"
        raise ValueError(f"{name}: the Delta table cannot be read{wanted} ({error})") from None
    if not actions:
        raise ValueError(f"{name}: found no data file in version {table.version()} of the Delta table")
    types = pl.from_arrow(pa.schema(table.schema().to_arrow()).empty_table())
    assert isinstance(types, pl.DataFrame)
    files = [DeltaFile(_relative(action["path"], name), _defaults(types.schema, action)) for action in actions]
    return sorted(files, key=lambda file: file.path)


def _check_features(table: Any, name: str) -> None:
    protocol = table.protocol()
    features = {*(protocol.reader_features or ())} - _READABLE
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")  # readers of version 2 have it without naming it
    if features:
        found = ", ".join(sorted(features))
        raise ValueError(f"{name}: the Delta table uses {found}, which rankfall does not read; write a copy without")


def _defaults(types: Mapping[str, pl.DataType], action: Mapping[str, Any]) -> Defaults:
    """Return all columns of the table: values of partitions are in the log, columns that a file lacks are null."""
    return tuple((column, kind, action.get(f"partition.{column}")) for column, kind in types.items())


def _relative(path: str, name: str) -> str:
    decoded = unquote(path)
    if "://" in decoded or decoded.startswith("/") or ".." in PurePosixPath(decoded).parts:
        raise ValueError(f"{name}: found the data file {decoded!r}, expected files in the directory of the table")
    return decoded
