"""Hints in error messages."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST, MOST = 100, 2_000  # letters of a word, and words that are compared: the comparison is quadratic in letters


def did_you_mean(found: object, allowed: Iterable[str]) -> str:
    """Return a hint with the allowed word that is closest to `found`, or an empty string if none is close.

    >>> did_you_mean("epoch", ["epochs", "batch"])
    ", did you mean 'epochs'"
    """
    if not isinstance(found, str) or len(found) > LONGEST:
        return ""
    close = get_close_matches(found, list(islice(allowed, MOST)), n=1)
    return f", did you mean {close[0]!r}" if close else ""
