"""Pipes and devices where a file belongs: refused by name, without reading or waiting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rankfall.data import ImpressionLog
from rankfall.serving import Bundle
from rankfall.serving.bundle_files import LARGEST_MANIFEST
from rankfall.serving.service.bundle_slots import find_newer_invalid
from rankfall.storage.files import read_json_file
from support.bundles import platform_bundle, platform_log, platform_run
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _endless])
def test_manifests(tmp_path: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    copies = {}
    for name, path in (("bundle", platform_bundle()), ("log", platform_log().path), ("run", platform_run())):
        copies[name] = shutil.copytree(path, tmp_path / name)
        (copies[name] / "manifest.json").unlink()
        make(copies[name] / "manifest.json")
    with pytest.raises(ValueError, match=r"is not a bundle.*manifest\.json is not a file"):
        Bundle.load(copies["bundle"])
    assert [reason for _, reason in find_newer_invalid(copies["bundle"])] == [
        f"{copies['bundle'] / 'manifest.json'} is not a file"
    ]
    with pytest.raises(ValueError, match=r"manifest\.json is not a file"):
        ImpressionLog.load(copies["log"])
    for command in ("evaluate", "report"):
        assert run(command, str(copies["run"])) == 1
        assert "manifest.json is not a file" in capsys.readouterr().err


@pytest.mark.parametrize("make", [_pipe, _endless])
def test_tables_of_a_log_that_are_not_verified(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """In a process of its own, which ends: Arrow waits for a pipe whatever signals arrive."""
    file = shutil.copytree(platform_log().path, tmp_path / "log") / "items.arrow"
    file.unlink()
    make(file)
    command = [sys.executable, "-c", _UNVERIFIED, str(file.parent)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "items.arrow is not a file" in found.stderr


_UNVERIFIED = """
import sys
from rankfall.storage.manifests import verification
from rankfall.data import ImpressionLog
with verification(False):
    ImpressionLog.load(sys.argv[1]).items()
"""


@pytest.mark.parametrize("make", [_pipe, _endless])
def test_configurations(tmp_path: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "config.yaml")
    assert run("train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")) == 1
    assert "config.yaml is not a file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"a": 1}')
    assert read_json_file(tmp_path / "manifest.json") == {"a": 1}
    with pytest.raises(ValueError, match=r"manifest\.json has more than 7 bytes"):
        read_json_file(tmp_path / "manifest.json", 7)


def test_manifests_of_bundles_are_small(tmp_path: Path) -> None:
    """A service reads them in its own process: 64 MB of empty lists took it 11 seconds and 1.7 GB."""
    bundle = shutil.copytree(platform_bundle(), tmp_path / "bundle")
    with (bundle / "manifest.json").open("a") as file:
        file.write(" " * LARGEST_MANIFEST)
    with pytest.raises(ValueError, match="is not a bundle"):
        Bundle.load(bundle)
    ((_, reason),) = find_newer_invalid(bundle)
    assert reason == f"{bundle / 'manifest.json'} has more than {LARGEST_MANIFEST:,} bytes"
