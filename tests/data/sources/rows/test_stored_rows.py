"""Rows in object storage: moto's S3 server (not Amazon's) has what local files have, and the log is the same."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import rankfall as rf
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.object_storage import list_objects
from rankfall.data.sources.rows import stored_rows
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.storage.manifests import SEAL
from support.command_line import run
from support.network import connections_of
from support.paths import PYTHONPATH
from support.row_logs import DAY, START, write_rows

if TYPE_CHECKING:
    from pathlib import Path

    from support.storage_servers import S3Server

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("object storage")]

SPEC: dict[str, Any] = {
    "request": "request",
    "item": "item",
    "user": "user",
    "time": {"column": "time", "unit": "ms"},
    "relevant": {"column": "clicked"},
    "feedback": ["clicked"],
    "features": {
        "user": {"age": {"kind": "dense"}},
        "item": {"item": {"kind": "categorical", "vocabulary": True}, "price": {"kind": "dense", "standardise": True}},
    },
    "sequences": {"clicks": {"max_length": 3, "features": ["item"], "feedback": "clicked"}},
}


def rows_of(day: int) -> list[dict[str, Any]]:
    return [
        {
            "request": 10 * day + number,
            "time": START + DAY * day + number,
            "user": number % 2,
            "item": place + day,
            "clicked": int(place == number % 3),
        }
        for number in range(4)
        for place in range(3)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a log of four days in files of all kinds, two tables and a spec."""
    (tmp_path / "log" / "more").mkdir(parents=True)
    (tmp_path / "log" / "_temporary").mkdir()
    for day, name in enumerate(["0.csv", "1.csv.gz", "more/2.parquet", "more/3.feather"]):
        write_rows(rows_of(day), tmp_path / "log" / name)
    write_rows(rows_of(9), tmp_path / "log" / "_temporary" / "9.csv")
    (tmp_path / "log" / "_SUCCESS").write_text("")
    write_rows([{"item": item, "price": item / 2} for item in range(9)], tmp_path / "items.parquet")
    write_rows([{"user": user, "age": 20 + user} for user in range(2)], tmp_path / "users.csv")
    write_rows(rows_of(4), tmp_path / "4.csv")
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(log: Path) -> dict[str, Any]:
    """All files of a log; of its manifest, what does not depend on the paths of the sources."""
    found: dict[str, Any] = {
        path.relative_to(log).as_posix(): path.read_bytes()
        for path in log.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    manifest = json.loads((log / "manifest.json").read_bytes())
    about = manifest["about"]
    for file in [*about["sources"], *(file for table in about["tables"].values() for file in table)]:
        del file["path"]
    del manifest[SEAL]
    return {**found, "manifest.json": manifest}


def nothing_is_left(folder: Path) -> bool:
    return not [path for path in folder.iterdir() if path.name.startswith(".")] and not (folder / "out").exists()


def test_a_log_in_storage_has_the_bytes_of_a_local_one(
    s3: S3Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3.put_directory(folder / "log", "bytes/log")
    items, users = s3.put("bytes/items.parquet", folder / "items.parquet"), s3.put("users.csv", folder / "users.csv")
    tables = ["--items", items, "--users", users]
    local = ["--items", "items.parquet", "--users", f"file://{folder}/users.csv"]
    assert run("prepare", "rows", f"{url}/", *tables, "--spec", "spec.yaml", "--out", "remote") == 0
    assert run("prepare", "rows", "log", *local, "--spec", "spec.yaml", "--out", "local") == 0
    assert contents(folder / "remote") == contents(folder / "local")
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    about = ImpressionLog.load(folder / "remote", verify=True).manifest["about"]
    names = ["0.csv", "1.csv.gz", "more/2.parquet", "more/3.feather"]
    assert [(file["path"], file["sha256"]) for file in about["sources"]] == [
        (f"{url}/{name}", hashlib.sha256((folder / "log" / name).read_bytes()).hexdigest()) for name in names
    ]
    assert [about["tables"][origin][0]["path"] for origin in ("items", "users")] == [items, users]

    day = s3.put("bytes/4.csv", folder / "4.csv")
    assert run("prepare", "rows", day, *tables, "--append", "remote") == 0
    assert run("prepare", "rows", "4.csv", *local, "--append", "local") == 0
    assert contents(folder / "remote") == contents(folder / "local")
    assert ImpressionLog.load(folder / "remote").manifest["about"]["sources"][-1]["path"] == day


def test_the_python_api_reads_urls(s3: S3Server, folder: Path) -> None:
    url = s3.put_directory(folder / "log", "api/log")
    options: dict[str, Any] = {"items": "items.parquet", "users": "users.csv", "spec": "spec.yaml", "progress": False}
    assert not rf.prepare(url, check=True, **options).errors
    steps: list[str] = []
    options["progress"] = lambda progress: steps.append(progress.step)
    rf.prepare([url], "out", on_notice=lambda text: None, **options)
    assert ImpressionLog.load(folder / "out").manifest["about"]["sources"][0]["path"] == f"{url}/0.csv"
    assert "downloading (bytes)" in steps


def test_problems_name_the_url(s3: S3Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "log" / "0.csv").read_text().splitlines()
    url = s3.put("bad/0.csv", "\n".join([*text, text[1].replace(f"{START}", "soon")]).encode())
    options = ["--items", "items.parquet", "--users", "users.csv", "--spec", "spec.yaml"]
    assert run("prepare", "rows", url, *options, "--check") == 1
    assert f"{url}, row 13" in capsys.readouterr().out.replace("\n", "")
    assert run("prepare", "rows", url, *options, "--out", "out") == 1
    assert url in capsys.readouterr().err
    assert nothing_is_left(folder)
    assert run("prepare", "rows", url, *options, "--skip-bad", "99", "--out", "out") == 0
    skipped = ImpressionLog.load(folder / "out").manifest["about"]["skipped"]
    assert skipped["problems"][0]["places"][0]["file"] == url


def test_init_drafts_from_a_url(s3: S3Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = s3.put_directory(folder / "log", "init/log")
    (folder / "log").rename(folder / "rows")
    assert run("init", "rows", "--out", "local") == 0
    local = capsys.readouterr().out
    assert run("init", url, "--out", "remote") == 0
    remote = capsys.readouterr().out.replace("remote/", "local/")
    assert f"rankfall prepare rows {url} --spec" in remote
    assert remote.replace(url, "rows") == local
    for name in ("spec.yaml", "config.yaml"):
        assert (folder / "remote" / name).read_bytes() == (folder / "local" / name).read_bytes()


def test_damaged_objects_are_named(s3: S3Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = s3.put("damaged/0.parquet", b"PAR1 is how it begins")
    assert run("prepare", "rows", url, "--spec", "spec.yaml", "--out", "out") == 1
    assert f"{url} cannot be read" in capsys.readouterr().err.replace("\n", " ")
    assert nothing_is_left(folder)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["s3://bucket/nothing"], "s3://bucket/nothing: there is no such object or prefix"),
        (["s3://nowhere/log"], "s3://nowhere/log: there is no such bucket"),
        (["s3://bucket/wrong/a.txt"], "s3://bucket/wrong/a.txt: found '.txt', expected one of .csv"),
        (["s3://bucket/wrong"], "s3://bucket/wrong/a.txt: found '.txt', expected one of .csv"),
        (["hdfs://bucket/log"], "begins with hdfs://, expected one of s3://, gs://, file://"),
        (["file:///nowhere/log.csv"], "/nowhere/log.csv does not exist"),
        (["s3://bucket/right.csv", "s3://bucket/right.csv"], "s3://bucket/right.csv is given twice"),
        (["s3://bucket/right.csv?version=1"], "s3://bucket/right.csv: found version=1, but no Delta table there"),
        (["s3://bucket/right.csv?version=x"], "s3://bucket/right.csv: found version=x, expected a whole number"),
        (["s3://me:hunter2@bucket/right.csv"], "s3://bucket: found credentials in the URL"),
    ],
)
def test_wrong_urls(
    s3: S3Server, folder: Path, capsys: pytest.CaptureFixture[str], sources: list[str], message: str
) -> None:
    s3.put("wrong/a.txt", b"text")
    s3.put("right.csv", folder / "4.csv")
    tables = ["--items", "items.parquet", "--users", "users.csv"]
    for options in (["--out", "out"], ["--check"]):
        assert run("prepare", "rows", *sources, *tables, "--spec", "spec.yaml", *options) == 1
        printed = capsys.readouterr()
        assert message in " ".join(printed.err.split())
        assert "Traceback" not in printed.err
        assert "hunter2" not in printed.err
        assert not printed.out
    assert nothing_is_left(folder)


def test_an_object_that_disappears_leaves_nothing(
    s3: S3Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put("gone/0.csv", folder / "log" / "0.csv")

    def list_and_delete(location: Any) -> Any:
        found = list_objects(location)
        s3.delete("gone/0.csv")
        return found

    monkeypatch.setattr(stored_rows, "list_objects", list_and_delete)
    assert run("prepare", "rows", url, "--spec", "spec.yaml", "--out", "out") == 1
    assert f"{url}: the object does not exist any more" in " ".join(capsys.readouterr().err.split())
    assert nothing_is_left(folder)


def test_long_and_strange_keys(s3: S3Server, folder: Path) -> None:
    s3.put(f"strange/day=1/{'k' * 400}.csv", folder / "log" / "0.csv")
    s3.put("strange/a b%3A+é/x.csv", folder / "4.csv")
    spec = validate_spec(SPEC)
    tables: dict[str, Any] = {"items": folder / "items.parquet", "users": folder / "users.csv"}
    log = prepare_rows(["s3://bucket/strange"], folder / "out", spec, **tables)
    same = prepare_rows([folder / "log" / "0.csv", folder / "4.csv"], folder / "same", spec, **tables)
    assert log.items().equals(same.items())
    assert [file["path"] for file in log.manifest["about"]["sources"]] == [
        "s3://bucket/strange/a b%3A+é/x.csv",
        f"s3://bucket/strange/day=1/{'k' * 400}.csv",
    ]


# --- processes ----------------------------------------------------------------------------------------------------

_FORKING = """\
import multiprocessing, os, sys
from rankfall.data.sources.object_storage import list_objects, parse_url
assert list_objects(parse_url(sys.argv[1]))
child = os.fork()
if not child:
    sys.exit(0)  # with the handlers of the library that run at the end
assert os.waitpid(child, 0)[1] == 0
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
"""


def test_processes_end_after_reading_objects(s3: S3Server, folder: Path) -> None:
    url = s3.put("fork.csv", b"a")
    command = [sys.executable, "-W", "ignore", "-c", _FORKING, url]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, timeout=120, check=False)
    assert done.returncode == 0


@pytest.mark.slow
def test_only_the_named_server_is_asked(s3: S3Server, folder: Path) -> None:
    """All system calls, also those of the client in C++, name this machine: nothing asks for regions or metadata."""
    try:
        subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("strace is not installed or not permitted here; `make strace` installs it")
    url = s3.put_directory(folder / "log", "traced/log")
    command = [sys.executable, "-m", "rankfall", "prepare", "rows", url, "--items", "items.parquet"]
    command += ["--users", "users.csv", "--spec", "spec.yaml", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    assert connections_of(command, folder / "trace.txt", env=environment, capture_output=True) == []
    assert "sin_port" in (folder / "trace.txt").read_text()
    assert (folder / "out" / "manifest.json").is_file()
