"""Words for people."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(found: object, allowed: Iterable[str]) -> str:
    """A hint at the allowed word that looks like what was found, if one does.

    >>> did_you_mean("epoch", ["epochs", "batch"])
    ", did you mean 'epochs'"
    """
    close = get_close_matches(str(found), list(allowed), n=1)
    return f", did you mean {close[0]!r}" if close else ""
