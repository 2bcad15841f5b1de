"""The manifest of a run: its files with their checksums, under a seal.

It is written twice. When a run starts, it lists the files that stay as they are, such as ``config.yaml``. When the run
is finished, it lists the weights, the metrics and the result as well. Weights of an unfinished run are replaced again
and again; their own checksums protect them (:mod:`rankfall._tensor_file`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from rankfall import __version__
from rankfall._disk import delete
from rankfall._manifest import MANIFEST, read_manifest
from rankfall._seal import about_file, check_file, check_seal, note, verifies, write_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FORMAT = "rankfall run"
VERSION = 1
REMEDY = "train the run again, or restore the file from a copy; --no-verify reads it as it is"


def remove_manifest(out: Path) -> None:
    """Delete the manifest of a run, before files that it lists are replaced."""
    delete(out / MANIFEST, missing_ok=True)


def seal_run(out: Path, files: Iterable[Path], later: Mapping[str, str] | None = None) -> None:
    """Write the manifest of a run.

    Args:
        out: Run directory.
        files: Files of the run.
        later: Names and contents of files that are written after the manifest.
    """
    entries = {file.relative_to(out).as_posix(): about_file(file) for file in files}
    for name, text in (later or {}).items():
        content = text.encode()
        entries[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    about = {"format": FORMAT, "version": VERSION, "rankfall": __version__}
    write_manifest(out / MANIFEST, about | {"files": dict(sorted(entries.items()))})


def verify_run(directory: Path, *names: str) -> None:
    """Compare files of a run with their checksums. Files that the manifest does not list are not compared.

    Args:
        directory: Run directory. One without a manifest is noted.
        names: Files that are about to be read.

    Raises:
        ValueError: If a file is missing or has changed, or the manifest is damaged.
    """
    if not verifies():
        return
    files = _listed(directory)
    for name in names:
        if name in files:
            check_file(directory / name, files[name]["sha256"], remedy=REMEDY)


def _listed(directory: Path) -> dict[str, Any]:
    if not (directory / MANIFEST).exists():
        note(f"{directory} has no {MANIFEST}: its files cannot be verified")
        return {}
    kind = f"the manifest of a run; {REMEDY}"
    manifest = read_manifest(directory, FORMAT, VERSION, kind=kind, remedy="train the run again", keys=("files",))
    check_seal(directory / MANIFEST, manifest, remedy=REMEDY)
    files: dict[str, Any] = manifest["files"]
    return files
