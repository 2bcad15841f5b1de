"""The command line as tests call it."""

from __future__ import annotations

import pytest

from rankfall.cli import main


def run(*arguments: str) -> int:
    """Call the command line in this process and return its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    return int(exit_info.value.code or 0)
