"""JSON that other programs or people may have written."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from rankfall._files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 2**28  # bytes of a file, which take gigabytes as values


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: If it is not JSON, or is nested so deeply that Python cannot read it.

    >>> parse_json('{"days": [1, 2]}')
    {'days': [1, 2]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: found values nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("found values nested too deeply") from None


def read_json_file(path: Path, largest: int = LARGEST) -> Any:
    """Read a JSON file of at most `largest` bytes.

    Raises:
        ValueError: If it is not a file, is too large, or is not JSON.
        OSError: If it cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(min(largest, os.fstat(file.fileno()).st_size) + 1)  # not a buffer of so many bytes
    if len(content) > largest:
        raise ValueError(f"path: {path} has more than {largest:,} bytes")
    return parse_json(content.decode())
