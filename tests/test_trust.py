"""Code that stored configurations name is imported only if it is trusted."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from rankfall.storage.trust import UntrustedError, check_import, is_trusted, remember, stored_code

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "own.py"
    path.write_text("value = 1\n")
    return path


def test_what_the_user_passes_is_imported(file: Path) -> None:
    check_import("own.py:value", file)


def test_what_is_stored_is_not_imported(file: Path) -> None:
    message = r"'own.py:value' is code that runs/first names.*own\.py.*--trust"
    with pytest.raises(UntrustedError, match=message), stored_code("runs/first"):
        check_import("own.py:value", file)
    with pytest.raises(UntrustedError, match="a module without a source file"), stored_code("runs/first"):
        check_import("os:system", None)


def test_trust_holds_inside(file: Path) -> None:
    with stored_code("runs/first", trust=True), stored_code("runs/first/checkpoints/best.safetensors"):
        check_import("own.py:value", file)
        assert is_trusted()
    assert not is_trusted()


def test_a_remembered_file_is_trusted_as_it_was(file: Path) -> None:
    remember([file])
    with stored_code("runs/first"):
        check_import("own.py:value", file)
        file.write_text("value = 2\n")
        with pytest.raises(UntrustedError):
            check_import("own.py:value", file)
        copy = file.with_name("copy.py")
        copy.write_text("value = 1\n")
        with pytest.raises(UntrustedError):  # it may import other files than the one that was trusted
            check_import("copy.py:value", copy)
    remember([file])
    file.write_text("value = 1\n")
    with stored_code("runs/first"):
        check_import("own.py:value", file)  # every content that was used is trusted


def test_a_damaged_record_trusts_nothing(file: Path, tmp_path: Path) -> None:
    remember([file])
    (tmp_path / "state" / "rankfall" / "trusted.json").write_text("{")
    with stored_code("runs/first"), pytest.raises(UntrustedError):
        check_import("own.py:value", file)
    remember([file])
    record = json.loads((tmp_path / "state" / "rankfall" / "trusted.json").read_text())
    assert list(record) == [str(file.resolve())]


def test_a_user_without_a_home_directory_trusts_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr("pathlib.Path.home", home)
    with pytest.raises(OSError, match="XDG_STATE_HOME"):
        remember([file])
    with stored_code("runs/first"), pytest.raises(UntrustedError):
        check_import("own.py:value", file)


def test_files_of_a_stored_directory_lead_nowhere_else(tmp_path: Path) -> None:
    """A run of a stranger must not let ``rankfall evaluate`` overwrite a file of the user."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (tmp_path / "profile").write_text("mine")
    (run / "checkpoints" / "1").touch()
    (run / "checkpoints" / "latest").symlink_to("1")
    with stored_code(run):
        pass
    (run / "evaluation.json").symlink_to(tmp_path / "profile")
    with (
        pytest.raises(UntrustedError, match=r"evaluation.json is a link to .*profile"),
        stored_code(run),
    ):
        pass
    with stored_code(run, trust=True):
        pass
    (run / "evaluation.json").unlink()
    os.mkfifo(run / "evaluation.json")
    with pytest.raises(UntrustedError, match=r"evaluation.json is not a file"), stored_code(run, trust=True):
        pass
