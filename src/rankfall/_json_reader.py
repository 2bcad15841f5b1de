"""JSON that other programs or people may have written."""

from __future__ import annotations

import json
from typing import Any


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
