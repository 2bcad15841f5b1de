"""What every slot holds by the word of the workers, in a file that all of them read.

Workers agree by it, and one that starts in the place of another reads it first. A worker alone keeps it in memory.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rankfall._files import locked, write_file
from rankfall.serving.service.bundle_slots import MAIN, OTHER, find_bundle, find_bundles, fingerprint, load_checked

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.serving.service.bundle_slots import Served
    from rankfall.serving.service.settings import Settings


_log = logging.getLogger(__name__)
_ARGUMENTS = {MAIN: "bundle", OTHER: "other"}  # which name the places


@dataclass(frozen=True)
class Entry:
    """The bundle of a slot."""

    number: int  # grows with every change
    path: str
    model: str
    seen: str  # the fingerprint of what was found when the watched place was looked at last


_NOTHING = Entry(0, "", "", "")


class Board:
    """The entries of all slots."""

    def __init__(self, shared: Path | None) -> None:
        self._file = None if shared is None else shared / "slots.json"
        self._own: dict[str, Entry] = {}

    def read(self) -> dict[str, Entry]:
        """What is known."""
        if self._file is None:
            return self._own
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return {slot: Entry(**entry) for slot, entry in content.items()}

    def write(self, slot: str, served: Served, *, seen: str | None = None) -> Entry:
        """Say that a slot holds this bundle now; `seen` stays as it was unless it is given."""
        if self._file is None:
            self._own = _changed(self._own, slot, served, seen)
            return self._own[slot]
        with locked(self._file.with_suffix(".lock"), wait=True):
            entries = _changed(self.read(), slot, served, seen)
            write_file(self._file, json.dumps({name: asdict(entry) for name, entry in entries.items()}))
        return entries[slot]


def _changed(entries: dict[str, Entry], slot: str, served: Served, seen: str | None) -> dict[str, Entry]:
    before = entries.get(slot, _NOTHING)
    path = str(served.bundle.path.resolve())
    return {
        **entries,
        slot: Entry(before.number + 1, path, served.model, before.seen if seen is None else seen),
    }


def places(settings: Settings) -> dict[str, Path]:
    """Where the bundles of the slots were to be found at the start."""
    return {MAIN: settings.bundle} | ({} if settings.other is None else {OTHER: settings.other})


def load_first(settings: Settings, board: Board) -> dict[str, Served]:
    """Load what a service starts with.

    A bundle that is not good is an error. In a directory that is watched the newest good one is taken, and if there is
    none the slot stays empty until one comes.
    """
    loaded = {}
    for slot, place in places(settings).items():
        try:
            served, seen = (_newest_good if settings.watch else _newest)(place)
        except ValueError as error:
            raise ValueError(f"{_ARGUMENTS[slot]}: {str(error).removeprefix('path: ')}") from None
        if served is not None:
            loaded[slot] = served
            board.write(slot, served, seen=seen)
    return loaded


def _newest(place: Path) -> tuple[Served | None, str]:
    found = find_bundle(place)
    seen = fingerprint(found)  # before it is read, so that a change meanwhile is noticed
    return load_checked(found), seen


def _newest_good(place: Path) -> tuple[Served | None, str]:
    """The newest good bundle of a directory, if there is one, and what the newest of all looks like.

    A newest one that is bad counts as seen, so that it is tried again only when it changes.
    """
    found = list(find_bundles(place))
    if found == [place]:
        return _newest(place)
    seen = fingerprint(found[0]) if found else ""
    for path in found:
        try:
            return load_checked(path), seen
        except (ValueError, OSError) as error:
            _log.warning("%s is not served: %s", path, str(error).removeprefix("path: "))
    return None, seen
