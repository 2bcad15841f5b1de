"""Inputs that once were findings, and inputs that cover the readers, are read or refused as the properties demand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fuzz.command_lines import COMMANDS
from fuzz.directories import read_bundle, read_lists, read_log
from fuzz.readers import READERS
from support.bundles import platform_bundle
from support.fuzzing import one_case

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parent / "corpus"
LARGEST = 10_000  # bytes of a file: a case that is larger has to be made smaller first
CASES = sorted(path for path in CORPUS.glob("*/*") if path.parent.name != "http")  # those are in test_http.py
# readers of damaged directories, and what makes the originals
DIRECTORIES: dict[str, tuple[Callable[..., None], Callable[[pytest.FixtureRequest], Path]]] = {
    "bundle": (read_bundle, lambda request: platform_bundle()),
    "log": (read_log, lambda request: request.getfixturevalue("log")),
    "lists": (read_lists, lambda request: request.getfixturevalue("data")),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_past_finds_stay_mended(case: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kind, content = case.parent.name, case.read_bytes()
    assert len(content) <= LARGEST
    check: Callable[[bytes, Path], object]
    if kind in DIRECTORIES:  # the original is made before the time of the case starts
        read, make = DIRECTORIES[kind]
        check = partial(read, original=make(request))
    else:
        check = (READERS | COMMANDS)[kind]
    with one_case(f"corpus-{kind}", content):
        check(content, tmp_path)
