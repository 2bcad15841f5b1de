"""Manifests of directories: their content, format and version."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rankfall._json_reader import LARGEST, read_json_file
from rankfall._suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MANIFEST = "manifest.json"


def has_format(file: Path, name: str, largest: int = LARGEST) -> bool:
    """Return whether a manifest of at most `largest` bytes exists and names the format, of any version."""
    try:
        content = read_json_file(file, largest)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == name


def read_manifest(
    path: Path, name: str, version: int, *, kind: str, remedy: str, keys: Iterable[str] = (), largest: int = LARGEST
) -> dict[str, Any]:
    """Read the manifest of a directory and check its format.

    Args:
        path: The directory.
        name: Expected format.
        version: Expected version of the format.
        kind: Kind of directory that was expected, for messages.
        remedy: How to update a directory of another version, for messages.
        keys: Keys that the manifest must have.
        largest: Its size at most, in bytes.

    Raises:
        ValueError: If the directory has another format or version, or a key is missing.
    """
    if not has_format(path / MANIFEST, name, largest):
        raise ValueError(f"path: {path} is not {kind}{_missing(path)}")
    manifest: dict[str, Any] = read_json_file(path / MANIFEST, largest)
    if manifest.get("version") != version:
        raise ValueError(
            f"path: {path} was written in format version {manifest.get('version')}, this release reads version "
            f"{version}; {remedy}"
        )
    for key in keys:
        if key not in manifest:
            raise ValueError(f"path: {path / MANIFEST} is damaged, it has no {key!r}")
    return manifest


def check_mappings(file: Path, manifest: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError if one of these values of a manifest is no mapping."""
    for key in keys:
        if not isinstance(manifest[key], dict):
            raise ValueError(f"path: {file} is damaged, its {key!r} is no mapping")


def check_counts(file: Path, content: object, *keys: str, inside: str = "") -> None:
    """Raise ValueError if one of these values of a manifest is no whole number from 0 on.

    Args:
        file: The file of the manifest, for messages.
        content: A mapping in the manifest, or the manifest.
        keys: The keys of the numbers.
        inside: The key of the mapping in the manifest, with a dot, for messages.
    """
    for key in keys:
        count = content.get(key) if isinstance(content, dict) else None
        if type(count) is not int or not 0 <= count <= sys.maxsize:
            raise ValueError(f"path: {file} is damaged, its '{inside}{key}' is no whole number from 0 on")


def check_names(path: Path, what: str, names: Iterable[str]) -> None:
    """Raise ValueError if a name in a manifest leads out of its directory, to a file without a checksum."""
    for name in names:
        if name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise ValueError(f"path: {path / MANIFEST} is damaged, it names {what} {name!r}")


def _missing(path: Path) -> str:
    """Return where a directory was looked for that does not exist, and which one may be meant."""
    if path.exists():
        is_other = (path / MANIFEST).exists() and not (path / MANIFEST).is_file()
        return f": {path / MANIFEST} is not a file" if is_other else ""
    parent = path.absolute().parent
    others = [other.name for other in parent.iterdir() if other.is_dir()] if parent.is_dir() else []
    return f"; {path.absolute()} does not exist{did_you_mean(path.name, others)}"
