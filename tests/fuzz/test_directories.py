"""A damaged log, damaged lists and a damaged bundle are refused by name, or they work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.directories import directory_cases, read_bundle, read_lists, read_log
from support.bundles import platform_bundle
from support.fuzzing import cases, one_case

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("directories")


@cases(60)
@given(draw=st.data())
def test_damaged_logs_are_refused_or_read(folder: Path, log: Path, draw: st.DataObject) -> None:
    content = draw.draw(directory_cases(log))
    with one_case("log", content):
        read_log(content, folder, log)


@cases(60)
@given(draw=st.data())
def test_damaged_lists_are_refused_or_read(folder: Path, data: Path, draw: st.DataObject) -> None:
    content = draw.draw(directory_cases(data))
    with one_case("lists", content):
        read_lists(content, folder, data)


@cases(60)
@given(draw=st.data())
def test_damaged_bundles_are_refused_or_answer(folder: Path, draw: st.DataObject) -> None:
    content = draw.draw(directory_cases(platform_bundle()))
    with one_case("bundle", content):
        read_bundle(content, folder, platform_bundle())
