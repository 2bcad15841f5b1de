"""The table of a loop on a terminal, which changes while it runs; elsewhere one line per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table


class LoopDisplay:
    """Shows on standard error what a loop does."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, emoji=False, soft_wrap=True)
        self._live: Live | None = None
        self._step = ""

    def __enter__(self) -> Self:
        """Begin."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the table."""
        self.close()

    def show(self, table: Table, step: str) -> None:
        """Show the table of the days, and what happens now."""
        if self._live is not None:
            self._live.update(Group(table, Text(step)))
        elif step != self._step:
            self.note(step)
        self._step = step

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Remove the table."""
        if self._live is not None:
            self._live.stop()
            self._live = None
