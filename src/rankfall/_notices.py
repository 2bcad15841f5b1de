"""The class of all warnings of the package."""

from __future__ import annotations


class RankfallWarning(UserWarning):
    """A notice about data, a run or a result. The work goes on."""
