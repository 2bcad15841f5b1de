"""Bundles on a disk that is really full: a file system in memory with a few free pages."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra serve")
pytest.importorskip("onnxscript", reason="needs the extra serve")
pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.serving.export.onnx_graphs import write_index
from rankfall.storage.disk import intercepted
from support.bundles import platform_run
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no program mount")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)  # an exception may still refer to an open file


def fill(disk: Path, *, free: int = 0) -> None:
    """Fill a disk except for some pages."""
    about = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(about.f_bavail * about.f_frsize - free * PAGE))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["items.arrow", "vectors.scratch"])
def test_full_disk_is_an_error_of_export(name: str, disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Item vectors are mapped: a page without space on disk would end the process with SIGBUS."""
    filled: list[Path] = []

    def hook(operation: str, path: Path) -> None:
        if operation == "open" and path.name == name and not filled:
            fill(disk, free=1)
            filled.append(path)

    with intercepted(hook):
        code = run("export", str(platform_run()), "--out", str(disk / "bundle"))
    error = capfd.readouterr().err
    assert filled
    assert code == 1
    assert "No space left on device" in error
    assert "Traceback" not in error
    assert [path.name for path in disk.iterdir()] == ["filler"]


def test_index_whose_last_bytes_do_not_fit_is_an_error(disk: Path) -> None:
    """The library writes blocks; the rest, when the file is closed. It prints errors of closing and returns."""
    vectors = np.ones((3000, 2), np.float32)  # five pages, and a part of a sixth
    fill(disk, free=5)
    with pytest.raises(OSError, match="No space left on device") as error:
        write_index(vectors, vectors[:4], disk, quota=5, recall=1.0)
    assert error.value.errno == errno.ENOSPC
