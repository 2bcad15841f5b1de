"""Fixtures for components of users: a clean register, and files in the current directory."""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from rankfall import register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what is registered and imported from it is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(register, "_TABLE", {kind: dict(table) for kind, table in register._TABLE.items()})
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


def write(file: Path, text: str) -> None:
    """Write a Python file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))
