"""Whatever arrives on a connection, the service answers without an error of its own and stays alive."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from fuzz.raw_http import http_cases, send_raw
from support.bundles import platform_bundle
from support.fuzzing import cases, one_case
from support.services import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.service
CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    samples = str(tmp_path_factory.mktemp("samples"))
    with running(platform_bundle(), max_body=200_000, body_seconds=2.0, samples=samples) as service:
        yield service


@cases(150)
@given(content=http_cases())
def test_any_bytes_on_a_connection_are_answered_or_refused(
    served: Running, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with one_case("http", content), caplog.at_level(logging.ERROR):
        send_raw(content, served)
        assert not caplog.records


@pytest.mark.parametrize("case", sorted((CORPUS / "http").glob("*")), ids=lambda case: case.name)
def test_past_finds_stay_mended(served: Running, case: Path, caplog: pytest.LogCaptureFixture) -> None:
    with one_case("corpus-http", case.read_bytes()), caplog.at_level(logging.ERROR):
        send_raw(case.read_bytes(), served)
        assert not caplog.records
