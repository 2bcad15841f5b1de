"""The command line as tests call it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rankfall.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str | Path) -> int:
    """Call the command line in this process and return its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    return int(exit_info.value.code or 0)
