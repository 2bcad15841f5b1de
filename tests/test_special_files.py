"""Pipes and devices where a file belongs: refused by name, without reading or waiting."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from rankfall import _json_reader
from rankfall._json_reader import read_json_file
from rankfall.data import ImpressionLog
from rankfall.serving import Bundle
from rankfall.serving.service.bundle_slots import find_newer_invalid
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
def test_configurations(tmp_path: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "config.yaml")
    assert run("train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")) == 1
    assert "config.yaml is not a file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.json").write_text('{"a": 1}')
    assert read_json_file(tmp_path / "manifest.json") == {"a": 1}
    monkeypatch.setattr(_json_reader, "LARGEST", 7)
    with pytest.raises(ValueError, match=r"manifest\.json has more than 7 bytes"):
        read_json_file(tmp_path / "manifest.json")
