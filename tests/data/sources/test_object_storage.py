"""Objects in storage, downloaded from moto's S3 server (not Amazon's) and from an emulator of Google Cloud Storage."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.data.sources import object_storage
from rankfall.data.sources.object_storage import download, is_url, list_objects, parse_url
from rankfall.storage import disk as _disk
from support.storage_servers import gcs_server, put_in_gcs

if TYPE_CHECKING:
    from pathlib import Path

    from support.storage_servers import S3Server

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("object storage")]


def fetch(url: str, directory: Path) -> dict[str, bytes]:
    """Download all objects of a URL, and return their contents by their URLs."""
    objects = {directory / str(number): one for number, one in enumerate(list_objects(parse_url(url)))}
    counts: list[int] = []
    download(objects, counts.append)
    assert sum(counts) == sum(one.size for one in objects.values())
    return {str(one): path.read_bytes() for path, one in objects.items()}


# --- URLs ---------------------------------------------------------------------------------------------------------


def test_a_url_has_a_scheme() -> None:
    assert all(map(is_url, ["s3://bucket", "gs://bucket/key", "file:///log", "S4+x://y"]))
    assert not any(map(is_url, ["log.csv", "/log", "C:/log", "a b://c", "s3:/bucket", "://"]))


def test_a_url_is_parsed_into_bucket_key_and_options() -> None:
    # keys are taken as they are, as programs of the providers do: Spark writes keys with "%3A"
    found = parse_url("s3://anonymous@bucket/time=12%3A00/a b#1/?region=eu-west-1&endpoint_override=localhost:9000")
    assert (found.scheme, found.path, found.anonymous) == ("s3", "bucket/time=12%3A00/a b#1", True)
    assert found.options == {"region": "eu-west-1", "endpoint_override": "localhost:9000"}
    assert str(found) == "s3://bucket/time=12%3A00/a b#1"
    assert parse_url("gs://bucket").path == "bucket"
    assert parse_url("file:///tmp/a%20b.csv").path == "/tmp/a b.csv"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s4://bucket/log", "begins with s4://, expected one of s3://, gs://, file://"),
        ("s3:///log", "found no bucket"),
        ("s3://KEY:hunter2@bucket/log", "s3://bucket: found credentials in the URL"),
        ("s3://bucket/log?regoin=x", "the option 'regoin', did you mean 'region'"),
        ("s3://bucket/log?region=", "no value of the option 'region'"),
        ("gs://bucket/log?region=x", "the option 'region'"),
        ("file://host/log", "the host 'host', expected file:///PATH"),
    ],
)
def test_a_wrong_url(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


# --- S3 -----------------------------------------------------------------------------------------------------------


def test_objects_below_a_prefix(s3: S3Server, tmp_path: Path) -> None:
    contents = {f"many/{n}/é {n}.csv": os.urandom(1000 * n) for n in range(12)}
    for key, content in contents.items():
        s3.put(key, content)
    s3.put("many-others/1.csv", b"is not below many/")
    expected = {f"s3://bucket/{key}": content for key, content in contents.items()}
    assert fetch("s3://bucket/many/", tmp_path) == expected
    assert fetch("s3://bucket/many/7", tmp_path) == {url: expected[url] for url in expected if "/7/" in url}


def test_one_object_of_several_blocks(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_storage, "_BLOCK_BYTES", 1000)
    content = os.urandom(10_500)
    url = s3.put("one.csv.gz", content)  # is not decompressed
    assert fetch(url, tmp_path) == {url: content}


def test_options_of_the_url_replace_the_environment(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put("options.csv", b"a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    host = s3.endpoint.removeprefix("http://")
    assert fetch(f"{url}?endpoint_override={host}&scheme=http&region=eu-west-1", tmp_path) == {url: b"a"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/nothing", "s3://bucket/nothing: there is no such object or prefix"),
        ("s3://nowhere/log", "s3://nowhere/log: there is no such bucket"),
        ("s3://nowhere", "s3://nowhere: there is no such bucket"),
    ],
)
def test_what_does_not_exist(s3: S3Server, url: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        list_objects(parse_url(url))


def test_a_server_that_does_not_answer(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"^s3://bucket/log: no connection to the storage .*127.0.0.1"):
        list_objects(parse_url("s3://bucket/log"))


def test_access_with_a_wrong_key(s3: S3Server) -> None:
    s3.put("private/a.csv", b"a")
    s3.refuse(unknown_keys=True)
    try:
        with pytest.raises(ValueError, match=r"^s3://bucket/private: access denied .*AWS_PROFILE.*anonymous@"):
            list_objects(parse_url("s3://bucket/private"))
    finally:
        s3.refuse(unknown_keys=False)


@pytest.mark.parametrize("url", ["s3://bucket/private/b.csv", "s3://anonymous@bucket/private/b.csv"])
def test_access_without_credentials(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    s3.put("private/b.csv", b"a")
    if "anonymous" not in url:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ValueError, match=r"^s3://bucket/private/b.csv: access denied"):
        fetch(url, tmp_path)


def test_access_with_the_credentials_of_a_profile(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives private objects to signed requests only."""
    url = s3.put("private/c.csv", b"a")
    (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = me\naws_secret_access_key = secret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert fetch(url, tmp_path) == {url: b"a"}


# --- while an object is read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5000, 9000, 10, 0])
def test_an_object_that_changes(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(object_storage, "_BLOCK_BYTES", 1000)
    url = s3.put("changes.csv", b"a" * 5000)
    one = list_objects(parse_url(url))

    def replace_it(operation: str, path: Path) -> None:
        if operation == "write" and not replaced:
            replaced.append(s3.put("changes.csv", b"b" * size))

    replaced: list[str] = []
    with (
        _disk.intercepted(replace_it),
        pytest.raises(ValueError, match=f"^{url}: the object changed while it was read"),
    ):
        download({tmp_path / "copy": one[0]}, lambda count: None)


def test_an_object_that_grew_since_it_was_listed(s3: S3Server, tmp_path: Path) -> None:
    url = s3.put("grows.csv", b"a")
    one = list_objects(parse_url(url))
    s3.put("grows.csv", b"ab")
    with pytest.raises(ValueError, match=f"^{url}: the object changed while it was read"):
        download({tmp_path / "copy": one[0]}, lambda count: None)


def test_an_object_that_disappears(s3: S3Server, tmp_path: Path) -> None:
    url = s3.put("disappears.csv", b"a")
    one = list_objects(parse_url(url))
    s3.delete("disappears.csv")
    with pytest.raises(ValueError, match=f"^{url}: the object does not exist any more$"):
        download({tmp_path / "copy": one[0]}, lambda count: None)


def test_too_little_space(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = list_objects(parse_url(s3.put("large.csv", b"a" * 1001)))

    def usage(path: Any) -> Any:
        return shutil._ntuple_diskusage(10_000, 9_000, 1_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(ValueError, match=r"found 1,000 bytes of free space, expected at least 1,001 .* of 1 objects"):
        download({tmp_path / "copies" / "1": one[0]}, lambda count: None)
    assert [*tmp_path.rglob("*")] == [tmp_path / "copies"]


def test_a_full_disk_is_no_error_of_the_storage(s3: S3Server, tmp_path: Path) -> None:
    objects = list_objects(parse_url(s3.put("full.csv", b"a")))

    def full(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(28, "No space left on device", str(path))

    with _disk.intercepted(full), pytest.raises(OSError, match="No space left on device") as caught:
        download({tmp_path / "copy": objects[0]}, lambda count: None)
    assert not isinstance(caught.value, ValueError)


def test_an_interruption_ends_all_downloads(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_storage, "_REPORT_SECONDS", 0)
    monkeypatch.setattr(object_storage, "_BLOCK_BYTES", 1)
    for number in range(20):
        s3.put(f"interrupted/{number}.csv", b"a" * 1000)
    objects = {tmp_path / str(n): one for n, one in enumerate(list_objects(parse_url("s3://bucket/interrupted")))}

    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(objects, interrupt)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("download")]
    assert not (tmp_path / "19").exists(), "objects that wait are not begun"


# --- Google Cloud Storage -----------------------------------------------------------------------------------------


def test_objects_of_google_cloud_storage(tmp_path: Path) -> None:
    with gcs_server() as server:
        first = put_in_gcs(server, "log/a.csv", b"1,2\n" * 1000)
        put_in_gcs(server, "log/sub/b.csv", b"3")
        both = {"gs://bucket/log/a.csv": b"1,2\n" * 1000, "gs://bucket/log/sub/b.csv": b"3"}
        assert fetch(first.replace("/a.csv", ""), tmp_path) == both
        assert fetch(first, tmp_path) == {"gs://bucket/log/a.csv": b"1,2\n" * 1000}
        with pytest.raises(ValueError, match=r"^gs://bucket/none: there is no such object or prefix$"):
            list_objects(parse_url(first.replace("log/a.csv", "none")))
