"""Sources in object storage: ``s3://`` and ``gs://`` URLs, whose objects are downloaded once and then read as files.

Commands read their files several times and in several processes, so copies on disk cost less than reading objects over
the network again and again. pyarrow's file systems list and read the objects. Credentials come from the environment,
as for other programs of the provider.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from urllib.request import url2pathname

import pyarrow as pa

from rankfall._errors import RankfallError, did_you_mean, shortened
from rankfall.storage.disk import make_directory, open_new

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Report

SCHEMES = ("s3", "gs", "file")
_OPTIONS = {"s3": ("region", "endpoint_override", "scheme"), "gs": ("endpoint_override", "scheme", "project_id")}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN", "INVALID_TOKEN")
_THREADS = 8  # one connection does not use the bandwidth of a network, and small objects wait most of the time
_CHANGED = "the object changed while it was read; run the command again when it is complete"
_BLOCK_BYTES = 2**23
_RETRY_SECONDS = 60
_REPORT_SECONDS = 0.5


def is_url(source: object) -> bool:
    """Return whether a source is a URL and not a path.

    >>> is_url("s3://bucket/log"), is_url("log/2024.csv")
    (True, False)
    """
    return isinstance(source, str) and re.match(r"\w[\w+.-]*://", source) is not None


@dataclass(frozen=True)
class Location:
    """A parsed URL.

    Args:
        scheme: ``"s3"``, ``"gs"`` or ``"file"``.
        path: The bucket and the key or prefix, as they are, without percent-encoding; for files the path.
        options: The options after ``?``.
        anonymous: Whether to read without credentials.
    """

    scheme: str
    path: str
    options: Mapping[str, str]
    anonymous: bool = False

    def __str__(self) -> str:
        """The URL in messages and in manifests, without options."""
        return f"{self.scheme}://{self.path}"


@dataclass(frozen=True)
class StoredObject:
    """An object of a bucket."""

    system: Any
    location: Location
    size: int

    def __str__(self) -> str:
        """The URL of the object."""
        return str(self.location)


def parse_url(url: str, more_options: Sequence[str] = ()) -> Location:
    """Parse a URL, ``SCHEME://[anonymous@]BUCKET/PREFIX[?OPTION=VALUE&...]``.

    >>> str(parse_url("s3://anonymous@bucket/log/?region=eu-west-1"))
    's3://bucket/log'

    Args:
        url: The URL.
        more_options: Options that are allowed besides those of the file system.

    Raises:
        ValueError: If the scheme or an option is unknown, or the URL has credentials.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        allowed = ", ".join(f"{one}://" for one in SCHEMES)
        raise RankfallError(f"found a URL that begins with {scheme}://, expected one of {allowed}")
    rest, _, query = rest.partition("?")
    place, slash, key = rest.partition("/")
    user, _, bucket = place.rpartition("@")
    if user not in ("", "anonymous"):  # never shown: it may be a password
        raise RankfallError(
            f"{scheme}://{bucket}: found credentials in the URL, expected none; they come from the environment "
            f"({_CREDENTIALS.get(scheme, 'files need none')})"
        )
    options = _options(f"{scheme}://{bucket}{slash}{key}", query, [*_OPTIONS.get(scheme, ()), *more_options])
    if scheme == "file":
        if bucket not in ("", "localhost") or not key:
            raise RankfallError(f"{scheme}://{rest}: found the host {bucket!r}, expected file:///PATH")
        return Location(scheme, url2pathname(f"/{key}"), options)
    if not bucket:
        raise RankfallError(f"{url}: found no bucket, expected {scheme}://BUCKET/PREFIX")
    return Location(scheme, f"{bucket}/{key}".rstrip("/"), options, anonymous=bool(user))


def _options(url: str, query: str, allowed: Sequence[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in allowed:
            raise RankfallError(
                f"{url}: found the option {name!r}{did_you_mean(name, allowed)}; allowed are {', '.join(allowed)}"
            )
        if not value:
            raise RankfallError(f"{url}: found no value of the option {name!r}")
    return options


def list_objects(location: Location) -> list[StoredObject]:
    """Return an object, or all objects whose keys begin with a prefix and a slash, in the order of their keys.

    Raises:
        ValueError: If there are none, or the storage does not answer or refuses.
    """
    from pyarrow import fs

    with _explained(location):
        system = _file_system(location)
        info = system.get_file_info(location.path)
        if info.type == fs.FileType.File:
            return [StoredObject(system, location, info.size)]
        selector = fs.FileSelector(location.path, recursive=True)
        found = system.get_file_info(selector) if info.type == fs.FileType.Directory else []
        if not found:
            bucket = location.path.partition("/")[0]
            has_bucket = system.get_file_info(bucket).type == fs.FileType.Directory
            what = "object or prefix" if has_bucket else "bucket"
            raise RankfallError(f"{location}: there is no such {what}")
    files = sorted((one for one in found if one.type == fs.FileType.File), key=lambda one: one.path)
    return [StoredObject(system, Location(location.scheme, one.path, location.options), one.size) for one in files]


def _file_system(location: Location) -> Any:
    from pyarrow import fs

    options = dict(location.options)
    if location.scheme == "gs":
        given = {name: options[name] for name in _OPTIONS["gs"] if name in options}
        limit = timedelta(seconds=_RETRY_SECONDS)
        return fs.GcsFileSystem(anonymous=location.anonymous, retry_time_limit=limit, **given)
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = options.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")  # pyarrow does not read these variables
    if region is None and endpoint is None:
        region = fs.resolve_s3_region(location.path.partition("/")[0])
    return fs.S3FileSystem(
        anonymous=location.anonymous, region=region, endpoint_override=endpoint, scheme=options.get("scheme")
    )


def download(objects: Mapping[Path, StoredObject], on_bytes: Report) -> None:
    """Download objects to files.

    Args:
        objects: The objects, by the files that are written.
        on_bytes: Receives the numbers of bytes that were written since the last call.

    Raises:
        ValueError: If the disk has too little space, or an object cannot be read, changes or disappears.
    """
    needed = sum(one.size for one in objects.values())
    for directory in {path.parent for path in objects}:
        make_directory(directory)
        free = shutil.disk_usage(directory).free
        if needed > free:
            raise RankfallError(
                f"{directory}: found {free:,} bytes of free space, expected at least {needed:,} for copies of "
                f"{len(objects):,} objects"
            )
    written = dict.fromkeys(objects, 0)
    stop = threading.Event()
    reported = 0
    with ThreadPoolExecutor(_THREADS, "download") as pool:
        try:
            pending = {pool.submit(_copy, one, path, written, stop) for path, one in objects.items()}
            while pending:
                done, pending = wait(pending, _REPORT_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                total = sum(written.values())
                on_bytes(total - reported)
                reported = total
        except BaseException:  # also Ctrl-C: the pool waits for its threads
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _copy(one: StoredObject, path: Path, written: dict[Path, int], stop: threading.Event) -> None:
    with open_new(path) as file:
        for block in _blocks(one):
            if stop.is_set():
                return
            file.write(block)
            written[path] += len(block)
    if written[path] != one.size:
        raise _changed(one)


def _blocks(one: StoredObject) -> Iterator[bytes]:
    """Yield the content of an object, and check at the end that it is still the same object."""
    key = one.location.path
    with _explained(one.location):
        with one.system.open_input_stream(key, compression=None) as stream:
            before = stream.metadata()
            while block := stream.read(_BLOCK_BYTES):
                yield block
        with one.system.open_input_stream(key, compression=None) as stream:
            if stream.metadata() != before:  # blocks are requests of their own, which may see different versions
                raise _changed(one)


def _changed(one: StoredObject) -> ValueError:
    return RankfallError(f"{one}: {_CHANGED}")


@contextmanager
def _explained(location: Location) -> Iterator[None]:
    """Turn errors of the storage into one line that names the URL."""
    try:
        yield
    except FileNotFoundError:
        raise RankfallError(f"{location}: the object does not exist any more") from None
    except (OSError, pa.ArrowException) as error:
        raise RankfallError(f"{location}: {_explanation(str(error), location.scheme)}") from None


def _explanation(text: str, scheme: str) -> str:
    lines = text.splitlines() or [""]
    match = re.search(r"AWS Error ((\w+)(?: \(HTTP status (\d+)\))?).*? operation: (.*)", lines[0])
    what, code, status, said = match.groups() if match else ("", "", "", lines[0])
    details = shortened(f"{what}: {said}".strip(": "), 400)
    if code in _DENIED or status == "403" or "PERMISSION_DENIED" in text or "UNAUTHENTICATED" in text:
        return (
            f"access denied ({details}); credentials come from the environment ({_CREDENTIALS[scheme]}), and "
            f"{scheme}://anonymous@BUCKET reads public objects without them"
        )
    if status == "416":  # the rest of the object, which is shorter than it was
        return _CHANGED
    if code == "NO_SUCH_BUCKET":
        return "there is no such bucket"
    if code == "NETWORK_CONNECTION":
        return f"no connection to the storage ({details})"
    return f"the storage reports an error ({details})"
