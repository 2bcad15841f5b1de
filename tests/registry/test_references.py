"""References to files and modules: what they find, what they import, and what is said if they lead nowhere."""

from __future__ import annotations

import hashlib
import inspect
import pickle
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rankfall import register, registry
from rankfall.registry import user_files
from rankfall.registry.references import (
    Source,
    UnresolvedError,
    absolute,
    entry_points,
    find,
    is_file_reference,
    is_reference,
    resolve,
    source_of,
)
from rankfall.storage.trust import UntrustedError, stored_code
from support.own_components import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOSS = """
    def focal(scores, labels, *, mask=None, weight=None, gamma: float = 2.0):
        return scores.sum()
"""
MARKER = "open('imported', 'w').close()\n"  # a file that shows that the code ran


def test_a_file_and_a_module_are_found_from_the_current_directory(here: Path) -> None:
    write(here / "parts" / "own.py", LOSS)
    write(here / "parts" / "__init__.py", "")
    for reference in ("parts/own.py:focal", "./parts/own.py:focal", f"{here}/parts/own.py:focal", "parts.own:focal"):
        assert is_reference(reference)
        assert registry.get("loss", reference).__name__ == "focal"
        assert list(registry.options("loss", reference)) == ["gamma"]
    assert is_file_reference("./parts/own.py:focal")
    assert not is_file_reference("parts.own:focal")
    assert absolute("parts/own.py:focal") == f"{here.resolve()}/parts/own.py:focal"


def test_the_source_is_known_without_running_it(here: Path) -> None:
    write(here / "package" / "__init__.py", MARKER)
    write(here / "package" / "own.py", MARKER)
    digest = hashlib.sha256(MARKER.encode()).hexdigest()
    file = str((here / "package" / "own.py").resolve())
    for name in ("package/own.py:focal", "package.own:focal"):
        assert source_of("loss", name) == Source("loss", name, file, digest)
        assert str(find("loss", name)) == file
    assert not (here / "imported").exists()
    assert source_of("loss", "softmax_loss") is None
    with pytest.raises(UnresolvedError, match="neither built in nor registered"):
        source_of("loss", "no_such_loss")


def test_the_source_of_a_metric_in_a_folder_with_an_at_sign(here: Path) -> None:
    write(here / "me@work" / "own.py", MARKER)
    file = str((here / "me@work" / "own.py").resolve())
    source = source_of("metric", f"{file}:rbp@0.8")
    assert source == Source("metric", f"{file}:rbp", file, hashlib.sha256(MARKER.encode()).hexdigest())


def test_the_source_of_a_registered_component_is_its_file(here: Path) -> None:
    write(
        here / "own.py",
        "from rankfall import register\n@register.loss\ndef own_loss(scores, labels, *, mask=None): ...",
    )
    resolve("loss", "own.py:own_loss")
    found = source_of("loss", "own_loss")
    assert found is not None
    assert (found.name, found.file) == ("own_loss", str((here / "own.py").resolve()))


def test_a_changed_file_is_read_again(here: Path) -> None:
    write(here / "own.py", LOSS)
    first = registry.get("loss", "own.py:focal")
    assert registry.get("loss", "own.py:focal") is first
    write(here / "own.py", LOSS.replace("2.0", "3.0"))  # within the same second, with the same size
    assert registry.options("loss", "own.py:focal")["gamma"].default == 3.0


def test_what_a_file_defines_is_loaded_by_another_process(here: Path) -> None:
    write(here / "my parts" / "own-loss.py", "from beside import two\ndef double(x): return two * x\n")
    write(here / "my parts" / "beside.py", "two = 2")
    function = resolve("loss", "my parts/own-loss.py:double")
    (here / "pickled").write_bytes(pickle.dumps(function))
    code = "import pickle; print(pickle.load(open('pickled', 'rb'))(21))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout == "42\n"


@pytest.mark.parametrize("path", ["/a/b.py", "/häuser/ein haus/x_y-z.py", "/_2f/_.py"])
def test_module_names_encode_paths(path: str) -> None:
    from pathlib import Path

    name = user_files.module_name(Path(path))
    assert name.rpartition(".")[2].isidentifier()
    assert user_files.file_of(name) == Path(path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "./own_los.py:focal",
            r"found './own_los.py:focal', but .*/own_los.py does not exist, did you mean 'own_loss.py'",
        ),
        ("./own_loss.py:focl", r"own_loss.py has no 'focl', did you mean 'focal'; it has focal$"),
        (
            "own_los:focal",
            r"no module 'own_los', did you mean 'own_loss'; it was searched in .* and among the installed",
        ),
        ("package.oter:x", r"package has no module 'oter', did you mean 'other'; it has other$"),
        ("own_loss.py:", r"expected 'module:loss' or './file.py:loss'"),
        ("own_loss.py:a b", r"expected 'module:loss' or './file.py:loss'"),
        ("own loss:focal", r"expected a module such as my_package.parts, or a file whose name ends with .py"),
        ("./broken.py:x", r"importing .*broken.py fails: ZeroDivisionError: division by zero \(.*broken.py, line 3\)"),
        ("./wrong.py:x", r"importing .*wrong.py fails: SyntaxError: .* \(.*wrong.py, line 1\)"),
        ("./exits.py:x", r"importing .*exits.py fails: SystemExit: 3 \(.*exits.py, line 1\)"),
        ("exits:x", r"importing exits fails: SystemExit: 3 \(.*exits.py, line 1\)"),
        (
            "random:x",
            r"which is .*/random.py here, but this process has imported the module 'random' from .*'./random.py:",
        ),
        (
            "needs:x",
            r"importing needs fails: ModuleNotFoundError: No module named 'not_installed' \(.*needs.py, line 1\)",
        ),
    ],
)
def test_a_reference_that_leads_nowhere(here: Path, reference: str, message: str) -> None:
    write(here / "own_loss.py", LOSS)
    write(here / "package" / "__init__.py", "")
    write(here / "package" / "other.py", "")
    write(here / "broken.py", "def inner():\n    import math\n    return 1 / 0\ninner()\n")
    write(here / "wrong.py", "def f(:\n")
    write(here / "exits.py", "raise SystemExit(3)\n")
    write(here / "random.py", "def x(scores, labels, *, mask=None): ...\n")
    write(here / "needs.py", "import not_installed\n")
    with pytest.raises(UnresolvedError, match=message):
        registry.get("loss", reference)


def test_a_module_that_failed_can_be_repaired(here: Path) -> None:
    write(here / "own.py", "1 / 0")
    with pytest.raises(UnresolvedError, match="ZeroDivisionError"):
        registry.get("loss", "own.py:focal")
    write(here / "own.py", LOSS)
    assert registry.get("loss", "own.py:focal").__name__ == "focal"


# --- entry points -------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution with entry points on the search path."""
    site = here / "site"
    write(site / "toy_parts" / "__init__.py", "")
    write(site / "toy_parts" / "losses.py", MARKER + "def focal(scores, labels, *, mask=None, gamma=2.0): ...\n")
    write(site / "toy_parts-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: toy-parts\nVersion: 1.0\n")
    entries = """\
        [rankfall]
        loss.toy_focal = toy_parts.losses:focal
        loss.softmax_loss = toy_parts.losses:focal
        model.toy = toy_parts.models:Toy
        nonsense = toy_parts.losses:focal
    """
    write(site / "toy_parts-1.0.dist-info" / "entry_points.txt", entries)
    monkeypatch.syspath_prepend(str(site))
    from rankfall.registry import references

    references._all_entry_points.cache_clear()
    yield site
    references._all_entry_points.cache_clear()


def test_entry_points_are_named_without_importing_them(installed: Path) -> None:
    assert entry_points("loss")["toy_focal"] == "toy_parts.losses:focal"
    assert "toy_focal" in registry.names("loss")
    assert entry_points("model") == {"toy": "toy_parts.models:Toy"}
    assert "nonsense" not in registry.names("loss")
    source = source_of("loss", "toy_focal")
    assert source is not None
    assert source.file == str((installed / "toy_parts" / "losses.py").resolve())
    assert not (installed.parent / "imported").exists()
    assert list(registry.options("loss", "toy_focal")) == ["gamma"]
    assert (installed.parent / "imported").exists()
    # a built-in name stays that of the built-in component
    assert registry.get("loss", "softmax_loss").__module__ == "rankfall.losses.listwise"
    with pytest.raises(UnresolvedError, match="toy_parts has no module 'models'"):
        registry.get("model", "toy")


def test_the_current_directory_does_not_hide_installed_entry_points(installed: Path) -> None:
    here = installed.parent
    write(here / "toy_parts" / "__init__.py", "")
    write(here / "toy_parts" / "losses.py", "raise SystemExit('ran code of the current directory')\n")
    with stored_code("runs/first"):
        assert inspect.getsourcefile(registry.get("loss", "toy_focal")) == str(installed / "toy_parts" / "losses.py")
        with pytest.raises(UntrustedError, match=re.escape(str(here / "toy_parts"))):
            registry.get("loss", "toy_parts.losses:focal")


def test_two_packages_with_one_name_are_named(installed: Path) -> None:
    write(installed / "other-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    write(installed / "other-1.0.dist-info" / "entry_points.txt", "[rankfall]\nloss.toy_focal = other.losses:focal\n")
    with pytest.raises(UnresolvedError, match=r"'toy_focal', which is an entry point of two packages: by .* and by .*"):
        registry.get("loss", "toy_focal")
    assert "toy_focal" in registry.names("loss")


# --- decorators ---------------------------------------------------------------------------------------------------


def test_names_of_decorated_components(here: Path) -> None:
    @register.loss
    def own_loss(scores: object, labels: object, *, mask: object = None) -> None: ...

    @register.loss("another.name")
    def second(scores: object, labels: object, *, mask: object = None) -> None: ...

    @register.model
    class PairTower: ...

    @register.metric(higher_is_better=False)
    def own_cost(scores: object, labels: object, *, mask: object = None) -> None: ...

    assert {"own_loss", "another.name"} <= set(registry.names("loss"))
    assert registry.get("loss", "another.name") is second
    assert "pair_tower" in registry.names("model")
    assert register.registered("metric")["own_cost"].higher_is_better is False


def test_a_name_has_one_place(here: Path) -> None:
    text = "from rankfall import register\n@register.loss('own')\ndef one(scores, labels, *, mask=None): ...\n"
    write(here / "first.py", text)
    write(here / "second.py", text)
    resolve("loss", "first.py:one")
    resolve("loss", "first:one")  # the same file as a module
    with pytest.raises(UnresolvedError, match=r"'own' is registered twice: by .*first.py:2.* and by .*second.py:2"):
        resolve("loss", "second.py:one")
    register.unregister("loss", "own")
    resolve("loss", "second.py:one")


def test_a_built_in_name_cannot_be_taken(here: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'softmax_loss' is built in: rankfall.losses.listwise.softmax_loss; .* another"
    ):

        @register.loss
        def softmax_loss(scores: object, labels: object, *, mask: object = None) -> None: ...


@pytest.mark.parametrize("name", ["a:b", "", "1a", "a b", "a/b", "a@b"])
def test_names_that_configurations_could_not_tell_apart(here: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"register.loss: found the name .*, expected letters, digits"):
        register.loss(name)(lambda scores, labels, *, mask=None: scores)


def test_only_functions_and_classes_are_registered(here: Path) -> None:
    with pytest.raises(TypeError, match=r"register\.loss: found 3, expected a function or a class"):
        register.loss(3)  # type: ignore[call-overload]
