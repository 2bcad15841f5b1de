"""The manifests of directories: what they hold, in which format, and of which version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MANIFEST = "manifest.json"


def has_format(file: Path, name: str) -> bool:
    """Whether a manifest is there and says that its directory is in a format, of any version."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == name


def read_manifest(
    path: Path, name: str, version: int, *, kind: str, remedy: str, keys: Iterable[str] = ()
) -> dict[str, Any]:
    """What a directory says of itself, if it is in a format, of this version, and says all of `keys`.

    Errors say which `kind` of directory was expected, and what the `remedy` of an older one is.
    """
    if not has_format(path / MANIFEST, name):
        raise ValueError(f"path: {path} is not {kind}")
    manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if manifest.get("version") != version:
        raise ValueError(
            f"path: {path} was written in format version {manifest.get('version')}, this release reads version "
            f"{version}; {remedy}"
        )
    for key in keys:
        if key not in manifest:
            raise ValueError(f"path: {path / MANIFEST} is damaged, it has no {key!r}")
    return manifest
