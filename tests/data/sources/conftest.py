"""An S3 server that the tests of sources share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.storage_servers import s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.storage_servers import S3Server


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture
def s3(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server on this machine, which the environment names; tests have keys of their own."""
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return _s3_server
