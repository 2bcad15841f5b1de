"""Who stands between a command and the processes that train for it: what they say, and what they are asked.

It lives in a process of its own, which need not wait for torch: what it keeps are plain values.
"""

from __future__ import annotations

from typing import Any


class Ear:
    """Keeps what processes say until somebody asks, and what they are asked."""

    def __init__(self) -> None:
        self._said: list[tuple[str, Any]] = []
        self._begun = 0
        self._refused = self._end = False

    def begin(self) -> int | None:
        """How often a training was begun before, or nothing if it need not be again: its error would be the same."""
        self._begun += 1
        return None if self._refused else self._begun - 1

    def hear(self, kind: str, content: object) -> None:
        """Keep what a process says."""
        self._refused = self._refused or kind in ("error", "mistake")
        self._said.append((kind, content))

    def said(self) -> list[tuple[str, Any]]:
        """What has been said since this was asked last."""
        said, self._said = self._said, []
        return said

    def end(self) -> None:
        """Ask the training to end early."""
        self._end = True

    def is_asked_to_end(self) -> bool:
        """Whether it has been asked to."""
        return self._end
