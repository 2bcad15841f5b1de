"""Which bundle each slot serves, shared by all workers in a file.

All workers follow this file, and a worker that replaces another one reads it first. A single worker keeps the state in
memory.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rankfall._files import locked, write_file
from rankfall._json_reader import read_json_file
from rankfall.serving.service.bundle_slots import MAIN, OTHER, find_bundle, find_bundles, fingerprint, load_checked

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.serving.service.bundle_slots import ServedBundle
    from rankfall.serving.service.settings import Settings


_log = logging.getLogger(__name__)
_ARGUMENTS = {MAIN: "bundle", OTHER: "other"}  # of the command line, by slot


@dataclass(frozen=True)
class SlotEntry:
    """The bundle of a slot.

    Args:
        version: Number that grows with every change.
        path: Directory of the bundle.
        model: Name of its model.
        seen: Fingerprint of the newest bundle at the watched path when it was last considered.
    """

    version: int
    path: str
    model: str
    seen: str


_EMPTY = SlotEntry(0, "", "", "")


class SharedState:
    """The entries of all slots.

    Args:
        directory: Directory of the file; None keeps the entries in memory.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file = None if directory is None else directory / "slots.json"
        self._entries: dict[str, SlotEntry] = {}

    def read(self) -> dict[str, SlotEntry]:
        """Return the entries by slot."""
        if self._file is None:
            return self._entries
        try:
            content = read_json_file(self._file)
        except FileNotFoundError:
            return {}
        return {slot: SlotEntry(**entry) for slot, entry in content.items()}

    def write(self, slot: str, served: ServedBundle, *, seen: str | None = None) -> SlotEntry:
        """Publish the bundle of a slot and return its entry; without `seen` the previous fingerprint stays."""
        if self._file is None:
            self._entries = _updated(self._entries, slot, served, seen)
            return self._entries[slot]
        with locked(self._file.with_suffix(".lock"), wait=True):
            entries = _updated(self.read(), slot, served, seen)
            write_file(self._file, json.dumps({name: asdict(entry) for name, entry in entries.items()}))
        return entries[slot]


def _updated(entries: dict[str, SlotEntry], slot: str, served: ServedBundle, seen: str | None) -> dict[str, SlotEntry]:
    before = entries.get(slot, _EMPTY)
    path = str(served.bundle.path.resolve())
    entry = SlotEntry(before.version + 1, path, served.model, before.seen if seen is None else seen)
    return {**entries, slot: entry}


def configured_paths(settings: Settings) -> dict[str, Path]:
    """Return the paths of the command line by slot."""
    return {MAIN: settings.bundle} | ({} if settings.other is None else {OTHER: settings.other})


def load_initial_bundles(settings: Settings, shared: SharedState) -> dict[str, ServedBundle]:
    """Load and publish the bundles with which a service starts.

    In a watched directory, the newest valid bundle is loaded; if there is none, the slot stays empty until one appears.

    Raises:
        ValueError: If a bundle is invalid, or a path cannot have a bundle.
    """
    loaded = {}
    for slot, path in configured_paths(settings).items():
        try:
            served, seen = (_load_newest_valid if settings.watch else _load_newest)(path, settings.copies)
        except ValueError as error:
            raise ValueError(f"{_ARGUMENTS[slot]}: {str(error).removeprefix('path: ')}") from None
        if served is not None:
            loaded[slot] = served
            shared.write(slot, served, seen=seen)
    return loaded


def _load_newest(path: Path, copies: Path | None) -> tuple[ServedBundle | None, str]:
    found = find_bundle(path)
    seen = fingerprint(found)  # before loading, so that a change during loading is noticed
    return load_checked(found, copies), seen


def _load_newest_valid(path: Path, copies: Path | None) -> tuple[ServedBundle | None, str]:
    """Return the newest valid bundle of a directory, if there is one, and the fingerprint of the newest of all.

    An invalid newest bundle counts as seen, so that it is tried again only when it changes.
    """
    found = list(find_bundles(path))
    if found == [path]:
        return _load_newest(path, copies)
    seen = fingerprint(found[0]) if found else ""
    for bundle in found:
        try:
            return load_checked(bundle, copies), seen
        except (ValueError, OSError) as error:
            _log.warning("%s is not served: %s", bundle, str(error).removeprefix("path: "))
    return None, seen
