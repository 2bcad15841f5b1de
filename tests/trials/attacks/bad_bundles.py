"""Bundles that are damaged: offered to the service, written to the directory it watches, or changed while served."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import TYPE_CHECKING

from rankfall.storage.manifests import MANIFEST
from trials.attacks.target import exchange, post

if TYPE_CHECKING:
    from pathlib import Path

    from trials.attacks.target import BundleFiles, Target

_WATCHED_SECONDS = 4.0  # the service looks every second and waits until a directory no longer changes
_DAMAGED_SECONDS = 3.0
_BLOCK = 65_536  # bytes that are overwritten


async def offered(target: Target) -> None:
    """Ask the service to load an invalid bundle."""
    path = target.dice.choice(target.bundles.bad)
    body = json.dumps({"path": str(path)}).encode()
    await exchange(target, post("/reload", body, f"Authorization: Bearer {target.token}"))


async def appearing(target: Target) -> None:
    """Write an invalid bundle to the watched directory, and remove it later."""
    bad = target.dice.choice(target.bundles.bad)
    path = target.bundles.watched / f"{bad.name}-{target.tally.attempts}"
    try:
        await asyncio.to_thread(shutil.copytree, bad, path, symlinks=True)  # most files are links
        (path / MANIFEST).touch()  # the newest bundle is the one to serve
        await target.pause(_WATCHED_SECONDS)
    finally:
        shutil.rmtree(path, ignore_errors=True)


async def half_written(target: Target) -> None:
    """Write a bundle to the watched directory in small steps, the manifest first, and never complete it."""
    files = target.bundles
    path = files.watched / f"half-{target.tally.attempts}"
    try:
        path.mkdir()
        for file in _files(files.original):
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            _copy_part(files.original / file, path / file)
            await target.pause(_WATCHED_SECONDS / 8)
        await target.pause(_WATCHED_SECONDS)
    finally:
        shutil.rmtree(path, ignore_errors=True)


async def overwritten(target: Target) -> None:
    """Overwrite a part of a file of the served bundle in place, as ``rsync --inplace`` does, and restore it later."""
    file = target.dice.choice(_files(target.bundles.original))
    place = (target.bundles.original / file).stat().st_size // 2
    try:
        _write(target.bundles.served / file, place, target.dice.randbytes(_BLOCK))
        await target.pause(_DAMAGED_SECONDS)
    finally:
        restore(target.bundles, file)


async def truncated(target: Target) -> None:
    """Truncate a file of the served bundle in place, and restore it later."""
    file = target.dice.choice(_files(target.bundles.original))
    try:
        os.truncate(target.bundles.served / file, (target.bundles.original / file).stat().st_size // 2)
        await target.pause(_DAMAGED_SECONDS)
    finally:
        restore(target.bundles, file)


def restore(files: BundleFiles, file: str) -> None:
    """Write the second half of a file of the served bundle again; nothing else is ever damaged."""
    original = files.original / file
    middle = original.stat().st_size // 2
    with original.open("rb") as source, (files.served / file).open("r+b") as changed:
        source.seek(middle)
        changed.seek(middle)
        shutil.copyfileobj(source, changed)
        changed.truncate()  # an overwritten block may have exceeded the end of a small file


def _files(bundle: Path) -> list[str]:
    """Return the names of all files of a bundle, the manifest first."""
    names = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())
    return sorted(names, key=lambda name: name != MANIFEST)


def _write(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def _copy_part(source: Path, out: Path) -> None:
    """Copy the manifest completely, and at most the first megabyte of any other file."""
    with source.open("rb") as file:
        out.write_bytes(file.read() if source.name == MANIFEST else file.read(2**20)[:-1])
