"""Servers of object storage on this machine: moto's for S3, gcp-storage-emulator for Google Cloud Storage.

Both speak the protocol of the provider over HTTP, and neither is the provider's own. Objects are written by plain HTTP
requests here, not by the library that is tested.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "bucket"
_HEADERS = {
    "Content-Type": "text/plain",
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20240101/us-east-1/s3/aws4_request",  # moto checks no signature
}


class S3Server:
    """A running server with one bucket, and the variables with which clients find it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",  # otherwise clients ask another address for credentials
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def put(self, key: str, content: bytes | Path) -> str:
        """Write an object and return its URL."""
        data = content if isinstance(content, bytes) else content.read_bytes()
        self._send("PUT", f"{BUCKET}/{quote(key)}", data)
        return f"s3://{BUCKET}/{key}"

    def put_directory(self, directory: Path, key: str) -> str:
        """Write all files of a directory and return the URL of their prefix."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(directory).as_posix()}", path)
        return f"s3://{BUCKET}/{key}"

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._send("DELETE", f"{BUCKET}/{quote(key)}")

    def refuse(self, *, unknown_keys: bool) -> None:
        """Let the server refuse requests with access keys that it does not know, or accept all of them."""
        self._send("POST", "moto-api/reset-auth", b"0" if unknown_keys else b"inf")

    def _send(self, method: str, path: str, data: bytes | None = None) -> None:
        request = Request(f"{self.endpoint}/{path}", data, _HEADERS, method=method)
        with urlopen(request) as answer:
            answer.read()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run moto's server in a thread, on a free port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        started = S3Server(f"http://127.0.0.1:{server.get_host_and_port()[1]}")
        started._send("PUT", BUCKET)
        yield started
    finally:
        server.stop()


@contextmanager
def gcs_server() -> Iterator[str]:
    """Run gcp-storage-emulator in a thread; yield its host and port."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    try:
        yield f"127.0.0.1:{server._api._httpd.server_address[1]}"
    finally:
        server.stop()


def put_in_gcs(server: str, key: str, content: bytes) -> str:
    """Write an object and return its URL."""
    url = f"http://{server}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}"
    with urlopen(Request(url, content, {"Content-Type": "text/plain"}, method="POST")) as answer:
        answer.read()
    return f"gs://anonymous@{BUCKET}/{key}?endpoint_override={server}&scheme=http"
