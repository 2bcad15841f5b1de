"""Seals of manifests and checksums of files, which show whether what is read is what was written.

A manifest names the files of its directory with their SHA-256, and has its own SHA-256, the seal. Bundles, impression
logs, ranking data and runs use the functions of this module.

Readers compare a file with its checksum before they first use it (:func:`check_file`). A process reads a file for that
once, and again only after its size, times or identity changed. :func:`verification` switches this off for a block.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall._errors import RankfallError, did_you_mean
from rankfall.storage.files import LARGEST, checksum, read_json_file, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from pathlib import Path

    OnNotice = Callable[[str], object]
    State = tuple[int, ...]

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
        raise RankfallError(f"path: {path} is not {kind}{_missing(path)}")
    manifest: dict[str, Any] = read_json_file(path / MANIFEST, largest)
    if manifest.get("version") != version:
        raise RankfallError(
            f"path: {path} was written in format version {manifest.get('version')}, this release reads version "
            f"{version}; {remedy}"
        )
    for key in keys:
        if key not in manifest:
            raise RankfallError(f"path: {path / MANIFEST} is damaged, it has no {key!r}")
    return manifest


def check_mappings(file: Path, manifest: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError if one of these values of a manifest is not a mapping."""
    for key in keys:
        if not isinstance(manifest[key], dict):
            raise RankfallError(f"path: {file} is damaged, its {key!r} is not a mapping")


def check_counts(file: Path, content: object, *keys: str, inside: str = "") -> None:
    """Raise ValueError if one of these values of a manifest is not a non-negative integer.

    Args:
        file: The file of the manifest, for messages.
        content: A mapping in the manifest, or the manifest.
        keys: The keys of the numbers.
        inside: The key of the mapping in the manifest, with a dot, for messages.
    """
    for key in keys:
        count = content.get(key) if isinstance(content, dict) else None
        if type(count) is not int or not 0 <= count <= sys.maxsize:
            raise RankfallError(f"path: {file} is damaged, its '{inside}{key}' is not a non-negative integer")


def check_names(path: Path, what: str, names: Iterable[str]) -> None:
    """Raise ValueError if a name in a manifest leads out of its directory, to a file without a checksum."""
    for name in names:
        if name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise RankfallError(f"path: {path / MANIFEST} is damaged, it names {what} {name!r}")


def _missing(path: Path) -> str:
    """Return where a directory was looked for that does not exist, and which one may be meant."""
    if path.exists():
        is_other = (path / MANIFEST).exists() and not (path / MANIFEST).is_file()
        return f": {path / MANIFEST} is not a file" if is_other else ""
    parent = path.absolute().parent
    others = [other.name for other in parent.iterdir() if other.is_dir()] if parent.is_dir() else []
    return f"; {path.absolute()} does not exist{did_you_mean(path.name, others)}"


Value = TypeVar("Value")

SEAL = "sha256"  # key of the seal in a manifest
SETTLED_NS = 50_000_000  # a file that was changed less than this before it was read may change again unnoticed


# --- manifests --------------------------------------------------------------------------------------------------


def seal(manifest: Mapping[str, Any], key: str = SEAL) -> str:
    """Return the checksum of the content of a manifest, without the entry `key`, which holds the seal."""
    content = {name: value for name, value in manifest.items() if name != key}
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(manifest: Mapping[str, Any], key: str = SEAL) -> dict[str, Any]:
    """Return a manifest with its seal."""
    content: dict[str, Any] = json.loads(json.dumps(manifest))  # as it will be read
    return content | {key: seal(content, key)}


def write_manifest(file: Path, manifest: Mapping[str, Any], key: str = SEAL) -> None:
    """Seal a manifest and write it, atomically."""
    write_file(file, json.dumps(sealed(manifest, key), indent=1) + "\n")


def check_seal(file: Path, manifest: Mapping[str, Any], *, remedy: str, key: str = SEAL) -> None:
    """Compare a manifest with its seal. A manifest without one is noted.

    Args:
        file: The file of the manifest, for messages.
        manifest: Its content.
        remedy: What to do about a damaged file, for messages.
        key: The key of the seal.

    Raises:
        ValueError: If the manifest has changed since it was sealed.
    """
    if key not in manifest:
        note(f"{file} has no seal: changes of this file cannot be noticed")
    elif manifest[key] != seal(manifest, key):
        raise RankfallError(f"path: {file} has changed since it was written: its seal does not match; {remedy}")


# --- files ------------------------------------------------------------------------------------------------------


def about_files(path: Path) -> dict[str, dict[str, Any]]:
    """Return size and checksum of every file in a directory."""
    return {file.relative_to(path).as_posix(): about_file(file) for file in sorted(path.rglob("*")) if file.is_file()}


def about_file(file: Path) -> dict[str, Any]:
    """Return size and checksum of a file."""
    return {"bytes": file.stat().st_size, "sha256": checksum(file)}


def compare_file(file: Path, *expected: str, size: int | None = None, remedy: str) -> None:
    """Read a file and compare it with its checksum.

    Args:
        file: The file.
        expected: Its SHA-256; several if the file is about to be replaced.
        size: Its size in bytes, which is compared first, if the manifest states it.
        remedy: What to do about a damaged file, for messages.

    Raises:
        ValueError: If the file is missing or has changed.
    """
    if not file.is_file():
        raise RankfallError(f"path: {file} is missing; {remedy}")
    found = file.stat().st_size
    if size is not None and found != size:
        why = "was cut off" if found < size else "has changed since it was written"
        raise RankfallError(f"path: {file} has {found:,} bytes, its manifest says {size:,}; it {why}; {remedy}")
    digest = checksum(file)
    if digest not in expected:
        wanted = " or ".join(f"{str(one)[:12]}..." for one in expected)
        raise RankfallError(
            f"path: {file} has changed since it was written: its SHA-256 is {digest[:12]}..., its manifest says "
            f"{wanted}; {remedy}"
        )


def check_file(file: Path, *expected: str, remedy: str) -> None:
    """Compare a file with its checksum as :func:`compare_file` does, unless this process has done so already."""
    once(("checksum", *expected), file, partial(compare_file, file, *expected, remedy=remedy))


_DONE: dict[tuple[Any, ...], State] = {}


def once(check: tuple[Any, ...], file: Path, function: Callable[[], object]) -> None:
    """Call a function that checks a file, unless it succeeded before and the file has not changed since.

    Args:
        check: Identifies the check.
        file: The file.
        function: Raises an error if the file is wrong.
    """
    started, key, state = time.time_ns(), (*check, str(file.absolute())), _state(file)
    if state is not None and _DONE.get(key) == state:
        return
    function()
    # Times of files are coarse: one that changes right after it was written may have the same times again.
    if state is not None and started - max(state[-2:]) > SETTLED_NS:
        _DONE[key] = state


def _state(file: Path) -> State | None:
    """Return what changes when a file is written again, None for a missing file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


# --- whether files are verified ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Verification:
    """Whether readers compare files with their checksums, and who receives notes."""

    enabled: bool
    on_notice: OnNotice
    noted: set[str] = field(default_factory=set)


_CURRENT: ContextVar[_Verification | None] = ContextVar("rankfall_verification", default=None)


@contextmanager
def verification(enabled: bool = True, on_notice: OnNotice | None = None) -> Generator[None]:
    """Context that decides whether readers compare files with their checksums.

    Args:
        enabled: False skips the comparison. It holds for everything inside this context.
        on_notice: Receives notes about files that cannot be verified, each once. Default: that of the surrounding
            context, or warnings.
    """
    current = _CURRENT.get() or _Verification(True, warnings.warn)
    found = _Verification(enabled and current.enabled, on_notice or current.on_notice, current.noted)
    token = _CURRENT.set(found)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def verifies() -> bool:
    """Return whether readers compare files with their checksums."""
    current = _CURRENT.get()
    return current is None or current.enabled


def note(text: str) -> None:
    """Pass a note to the surrounding :func:`verification`, which receives each text once; without one, warn."""
    current = _CURRENT.get()
    if current is None:
        warnings.warn(text, stacklevel=2)
    elif text not in current.noted:
        current.noted.add(text)
        current.on_notice(text)


def carried(work: Callable[..., Value]) -> Callable[..., Value]:
    """Return a function for another process, which verifies files there if this process does.

    Notes are left to this process, which reads the same manifests.
    """
    return partial(_carry, verifies(), work)


def _carry(enabled: bool, work: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
    with verification(enabled, _ignore):
        return work(*arguments, **options)


def _ignore(text: str) -> None:
    pass
