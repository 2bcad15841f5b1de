"""What is checked before an import is what runs: attempts to run other code than a user has trained with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import py_compile
import sys
from typing import TYPE_CHECKING

import pytest

from rankfall import registry
from rankfall.registry import references
from rankfall.registry.references import Source, UnresolvedError, imported_files, resolve
from rankfall.storage import trust as _trust
from rankfall.storage.trust import UntrustedError, remember, stored_code
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOSS = "import rankfall as rf\ndef mine(scores, labels, *, mask=None): ...\n"
HOSTILE = LOSS + "import pathlib, os\npathlib.Path(os.environ['MARK']).touch()\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory, from which nothing has been imported."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(references, "_LOADED", {})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = set(sys.modules)
    yield tmp_path / "here"
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refuse(reference: str, here: Path) -> None:
    with stored_code("a run"), pytest.raises(UntrustedError, match="--trust"):
        resolve("loss", reference)
    assert not (here.parent / "mark").exists()


@pytest.mark.parametrize("reference", ["{here}/own_part.py:mine", "own_part:mine"])
def test_a_file_that_is_replaced_after_it_was_checked(
    reference: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = here / "own_part.py"
    file.write_text(LOSS)
    remember([file])
    check = _trust.check_import

    def check_then_replace(name: str, path: Path, digest: str | None = None) -> None:
        check(name, path, digest)
        file.write_text(HOSTILE)

    monkeypatch.setattr(references, "check_import", check_then_replace)
    refuse(reference.format(here=here), here)


def test_compiled_code_beside_a_trusted_file_does_not_run(here: Path) -> None:
    file = here / "own_part.py"
    file.write_text(HOSTILE)
    cached = importlib.util.cache_from_source(str(file))
    py_compile.compile(str(file), cfile=cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    file.write_text(LOSS)
    remember([file])
    with stored_code("a run"):
        assert callable(resolve("loss", "own_part:mine"))
    assert not (here.parent / "mark").exists()


def test_the_packages_of_a_trusted_module_are_checked(here: Path) -> None:
    package = here / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(LOSS)
    source = Source("loss", "own_package.parts:mine", str(package / "parts.py"), "")
    assert imported_files(source) == [package / "__init__.py", package / "parts.py"]
    remember(imported_files(source))
    (package / "__init__.py").write_text(HOSTILE)
    refuse(source.name, here)
    (package / "__init__.py").write_text("")
    with stored_code("a run"):
        assert callable(resolve("loss", source.name))


@pytest.fixture
def toy(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with an entry point, and other code of the same name in the current directory."""
    site = here.parent / "site"
    for directory, content in ((site, LOSS), (here, HOSTILE)):
        (directory / "toy_package").mkdir(parents=True)
        (directory / "toy_package" / "__init__.py").write_text("")
        (directory / "toy_package" / "parts.py").write_text(content)
    (site / "toy-1.dist-info").mkdir()
    (site / "toy-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (site / "toy-1.dist-info" / "entry_points.txt").write_text("[rankfall]\nloss.toy = toy_package.parts:mine\n")
    monkeypatch.syspath_prepend(str(site))
    references._all_entry_points.cache_clear()
    yield site
    references._all_entry_points.cache_clear()


def test_an_entry_point_is_not_searched_in_the_current_directory(toy: Path, here: Path) -> None:
    assert importlib.metadata.version("toy") == "1"
    with stored_code("a run"):
        found = registry.get("loss", "toy")
    assert found.__code__.co_filename == str(toy / "toy_package" / "parts.py")
    assert not (here.parent / "mark").exists()
    assert str(here) not in sys.path  # what is imported later is not searched there either
    source = references.source_of("loss", "toy")
    assert source is not None
    assert source.file == str(toy / "toy_package" / "parts.py")


def test_the_reference_of_an_entry_point_needs_trust(toy: Path, here: Path) -> None:
    refuse("toy_package.parts:mine", here)


def test_a_trusted_file_does_not_lead_to_other_modules(here: Path) -> None:
    file = here / "own_part.py"
    file.write_text(LOSS)
    remember([file])
    with pytest.raises(UnresolvedError, match=r"leads into the module rankfall; expected 'rankfall:losses'"):
        resolve("loss", f"{file}:rf.losses.softmax_loss")


def test_files_of_components_without_packages(here: Path) -> None:
    assert imported_files(Source("loss", "mine", "", "")) == []
    named = ROOT / "examples" / "own_parts" / "focal_loss.py"
    assert imported_files(Source("loss", f"{named}:focal", str(named), "")) == [named]
