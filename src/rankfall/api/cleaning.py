"""``rf.clean``: remove what processes left that have died."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._errors import checked
from rankfall._tables import Tables
from rankfall.storage.files import Leftover, clean_tree

if TYPE_CHECKING:
    from rankfall.api.arguments import PathLike


@dataclass(frozen=True, repr=False)
class CleaningResult(Tables):
    """What :func:`clean` has found.

    Attributes:
        leftovers: Files and directories that were removed or restored.
        failed: Messages about leftovers that could not be removed.
        dry_run: Whether nothing was changed.
    """

    leftovers: list[Leftover]
    failed: list[str]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """Size of all that was removed."""
        return sum(one.bytes for one in self.leftovers if one.action == "removed")

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return one row per leftover."""
        rows = [{"path": str(one.path), "bytes": one.bytes, "action": one.action} for one in self.leftovers]
        return {"leftovers": rows}

    def to_json(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings and numbers."""
        return {**self.tables(), "bytes": self.bytes, "failed": self.failed, "dry_run": self.dry_run}


@checked
def clean(*directories: PathLike, dry_run: bool = False) -> CleaningResult:
    """Remove temporary files and directories of processes that have died.

    These have hidden names that end in ``.tmp``, ``.unfinished``, ``.replaced`` or ``.deleted``. Those of living
    processes, on this machine or on another one that shares the file system, are locked and stay. If a process died
    while it replaced a directory, the earlier content is restored.

    Args:
        directories: Directories to search, with all subdirectories. Default: the current directory.
        dry_run: Change nothing, and return what would be done.

    Raises:
        ValueError: If there is no such directory.
    """
    places = [Path(directory) for directory in directories or (".",)]
    for place in places:
        if not place.is_dir():
            found = "is a file" if place.exists() else "does not exist"
            raise ValueError(f"directories: {place} {found}, expected a directory")
    done = [one for place in places for one in clean_tree(place, dry_run=dry_run)]
    leftovers = [one for one in done if isinstance(one, Leftover)]
    return CleaningResult(leftovers, [str(one) for one in done if isinstance(one, OSError)], dry_run)
