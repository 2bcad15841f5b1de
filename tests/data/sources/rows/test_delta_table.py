"""Delta tables as sources: the rows of one version, without files that were removed."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.rows.prepare_rows import check_rows, prepare_rows
from rankfall.data.sources.rows.row_files import ROW
from rankfall.data.sources.rows.stored_rows import local_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from support.storage_servers import S3Server

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("object storage")]

SPEC: dict[str, Any] = {
    "request": "r",
    "item": "i",
    "day": "d",
    "relevant": {"column": "y"},
    "features": {"item": {"price": {"kind": "dense", "missing": 0}}},
}
TYPES = {"r": pl.Int64, "i": pl.Int64, "d": pl.String, "y": pl.Int64, "place": pl.String}


def rows_of(requests: Iterable[int], day: str) -> pl.DataFrame:
    place = {"a": "b c/%25", "d": None}.get(day, "ü")  # is a part of the paths of files
    rows = [{"r": r, "i": i, "d": day, "y": i % 2, "place": place} for r in requests for i in range(3)]
    return pl.DataFrame(rows, schema=TYPES)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in directories by day and place; version 2 deletes rows, version 3 adds a column."""
    path = tmp_path_factory.mktemp("delta") / "table"
    write_deltalake(path, pl.concat([rows_of([1, 2], "a"), rows_of([3], "d")]), partition_by=["d", "place"])
    write_deltalake(path, rows_of([4, 5], "d"), mode="append")
    DeltaTable(path).delete("r = 4")
    new = rows_of([6], "e").with_columns(price=pl.Series([0.5, 1.5, 2.5]))
    write_deltalake(path, new, mode="append", schema_mode="merge")
    return path


@pytest.fixture
def table(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "table")


def rows_in(source: Path | str) -> list[dict[str, Any]]:
    """All rows that the reader finds, in an order of their own."""
    with local_rows([source], {}, lambda step, total: lambda count: None) as files:
        frames = [frame for file in files["log"] for frame in file.batches([*file.columns()])]
    return pl.concat(frames, how="diagonal").sort("r", "i").to_dicts()


def expected(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    """All rows that deltalake's own reader finds."""
    table = pa.table(DeltaTable(path, version=version).to_pyarrow_table())
    return pl.DataFrame(table).sort("r", "i").to_dicts()


@pytest.mark.parametrize("version", [None, 0, 1, 2, 3])
def test_a_version_has_the_rows_that_deltalake_finds(s3: S3Server, table: Path, version: int | None) -> None:
    url = s3.put_directory(table, "delta/versions")
    option = "" if version is None else f"?version={version}"
    assert rows_in(f"file://{table}{option}") == rows_in(f"{url}{option}") == expected(table, version)
    assert len(expected(table, version)) == {None: 15, 0: 9, 1: 15, 2: 12, 3: 15}[version]


def test_columns_that_only_the_log_has(table: Path) -> None:
    with local_rows([table], {}, lambda step, total: lambda count: None) as files:
        newest = next(file for file in files["log"] if "d=e" in str(file.path))
        frames = list(newest.batches(["d", ROW]))  # no column of the file itself
    assert len(frames) == 1
    assert frames[0].to_dict(as_series=False) == {"d": ["e"] * 3, ROW: [0, 1, 2]}


def test_a_log_from_a_table_equals_that_of_a_file(s3: S3Server, table: Path, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "items", pl.DataFrame({"i": [0, 1, 2], "colour": ["r", "g", "b"]}))
    colour = {"item": SPEC["features"]["item"] | {"colour": {"kind": "categorical", "vocabulary": True}}}
    spec = validate_spec(SPEC | {"features": colour})
    pl.DataFrame(expected(table)).write_parquet(tmp_path / "rows.parquet")
    pl.DataFrame({"i": [0, 1, 2], "colour": ["r", "g", "b"]}).write_csv(tmp_path / "items.csv")
    url, items = s3.put_directory(table, "delta/log"), s3.put_directory(tmp_path / "items", "delta/items")
    log = prepare_rows([url], tmp_path / "log", spec, items=items)
    same = prepare_rows([tmp_path / "rows.parquet"], tmp_path / "same", spec, items=tmp_path / "items.csv")
    assert [*log.days] == [*same.days]
    assert all(log.days[day].table().equals(same.days[day].table()) for day in log.days)
    paths = {file["path"]: file["rows"] for file in log.manifest["about"]["sources"]}
    assert sum(paths.values()) == 15
    assert all(path.startswith(f"{url}/d=") for path in paths)
    check = check_rows([url], spec, items=items)
    assert (check.rows, check.errors) == (15, [])


# --- what is refused ----------------------------------------------------------------------------------------------


def commit(table: Path, *actions: dict[str, Any]) -> None:
    """Write a version by hand, as other programs would."""
    (table / "_delta_log" / f"{4:020}.json").write_text("\n".join(map(json.dumps, actions)))


def with_feature(name: str, **settings: str) -> Callable[[Path], None]:
    def change(table: Path) -> None:
        first = (table / "_delta_log" / f"{3:020}.json").read_text().splitlines()
        meta = next(json.loads(line) for line in first if "metaData" in line)
        meta["metaData"]["configuration"] = settings
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [name], "writerFeatures": [name]}
        commit(table, {"protocol": protocol}, meta)

    return change


def with_old_column_mapping(table: Path) -> None:
    with_feature("columnMapping", **{"delta.columnMapping.mode": "name"})(table)
    path = table / "_delta_log" / f"{4:020}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    commit(table, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, actions[1])


def with_file(path: str) -> Callable[[Path], None]:
    add = {
        "path": path,
        "partitionValues": {"d": "f", "place": "f"},
        "size": 1,
        "modificationTime": 0,
        "dataChange": True,
    }
    return lambda table: commit(table, {"add": add})


def without_files(table: Path) -> None:
    DeltaTable(table).delete()


def damaged(table: Path) -> None:
    (table / "_delta_log" / f"{4:020}.json").write_text("no JSON")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_feature("deletionVectors"), "uses deletionVectors, which rankfall does not read"),
        (with_feature("columnMapping", **{"delta.columnMapping.mode": "id"}), "columnMapping"),
        (with_old_column_mapping, "columnMapping"),
        (with_file("../secret.parquet"), r"found the data file '\.\./secret\.parquet', expected files in"),
        (with_file("file:///etc/secret.parquet"), "found the data file 'file:///etc/secret.parquet'"),
        (without_files, "found no data file in version 4"),
        (damaged, "the Delta table cannot be read"),
    ],
)
def test_a_table_that_cannot_be_read(table: Path, change: Callable[[Path], None], message: str) -> None:
    change(table)
    with pytest.raises(ValueError, match=f"^{table}: .*{message}"):
        rows_in(table)


def test_a_version_that_does_not_exist(table: Path) -> None:
    with pytest.raises(ValueError, match=f"^{table}: the Delta table cannot be read in version 9"):
        rows_in(f"file://{table}?version=9")


def test_a_missing_data_file(s3: S3Server, table: Path) -> None:
    next(table.glob("d=e/*/*.parquet")).unlink()
    url = s3.put_directory(table, "delta/missing")
    with pytest.raises(ValueError, match=rf"^{url}/d=e/.*\.parquet: there is no such object, but the Delta table has"):
        rows_in(url)


def test_a_table_below_the_given_directory(s3: S3Server, table: Path) -> None:
    """Its removed files would be read, too."""
    url = s3.put_directory(table, "delta/deep/table")
    for source in (table.parent, url.removesuffix("/table")):
        with pytest.raises(ValueError, match=f"^{source}: found a Delta table in table, expected the path"):
            rows_in(source)


def test_without_deltalake_nothing_is_read(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ValueError, match=rf"^{table}: is a Delta table, .* pip install 'rankfall\[delta\]'"):
        rows_in(table)
