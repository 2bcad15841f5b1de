"""Ray actor between a command and the processes that train for it.

The actor runs in a process of its own that does not import torch: it keeps plain values only.
"""

from __future__ import annotations

from typing import Any


class ProgressActor:
    """Queue of messages from the training processes to the command, and the command's request to stop."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, Any]] = []
        self._starts = 0
        self._failed = self._stop_requested = False

    def start(self) -> int | None:
        """Count a start of the processes.

        Returns:
            The number of earlier starts. None if an earlier one ended with an error, which would come up again.
        """
        self._starts += 1
        return None if self._failed else self._starts - 1

    def send(self, kind: str, content: object) -> None:
        """Add a message to the queue."""
        self._failed = self._failed or kind in ("error", "bug")
        self._messages.append((kind, content))

    def receive(self) -> list[tuple[str, Any]]:
        """Return and remove all messages of the queue."""
        messages, self._messages = self._messages, []
        return messages

    def request_stop(self) -> None:
        """Ask the training processes to stop early."""
        self._stop_requested = True

    def stop_requested(self) -> bool:
        """Return whether the processes were asked to stop."""
        return self._stop_requested
