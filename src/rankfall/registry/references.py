"""References: components in configurations by the module or file that defines them.

A reference is ``"module.path:attribute"`` or ``"folder/file.py:attribute"``. Files are relative to the current
directory. Modules are found as by ``python -m``: in the current directory, then among the installed packages.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rankfall import register
from rankfall._errors import RankfallError, did_you_mean
from rankfall.registry import user_files
from rankfall.registry.builtin import BUILTINS
from rankfall.storage.trust import UntrustedError, check_import, is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

    from rankfall.register import Kind


ENTRY_POINTS = "rankfall"
"""Group of the entry points that name components: ``"loss.focal" = "my_package.losses:focal"``."""


class UnresolvedError(RankfallError):
    """A reference to a module, file or attribute that does not exist, or code that cannot be imported."""


@dataclass(frozen=True, slots=True)
class Source:
    """The code of a component that is not built in.

    Attributes:
        kind: Kind of the component.
        name: Name or reference in the configuration.
        file: Absolute path of the Python file that defines it. Empty for code without a file.
        sha256: Hash of the file's content. Empty for code without a file.
    """

    kind: Kind
    name: str
    file: str
    sha256: str


def is_reference(name: object) -> bool:
    """Return whether a name in a configuration is a reference: it has a colon.

    >>> is_reference("./my_loss.py:focal"), is_reference("my_package.losses:focal"), is_reference("softmax_loss")
    (True, True, False)
    """
    return isinstance(name, str) and ":" in name


def is_file_reference(name: object) -> bool:
    """Return whether a name is the reference of a file.

    >>> is_file_reference("./my_loss.py:focal"), is_file_reference("my_package.losses:focal")
    (True, False)
    """
    return isinstance(name, str) and name.rpartition(":")[0].endswith(".py")


def split_cutoffs(name: str) -> tuple[str, list[str]]:
    """Return the name or reference of a metric without its cutoffs, and the cutoffs.

    >>> split_cutoffs("./my@home/metrics.py:rbp@0.8")
    ('./my@home/metrics.py:rbp', ['0.8'])
    """
    place, colon, last = name.rpartition(":")
    word, *cutoffs = last.split("@")
    return f"{place}{colon}{word}", cutoffs


def absolute(name: str) -> str:
    """Return the reference of a file with its absolute path, and every other name unchanged.

    >>> absolute("softmax_loss")
    'softmax_loss'
    """
    if not is_file_reference(name):
        return name
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).expanduser().absolute().resolve()}:{attribute}"


def absolute_references(content: Any) -> Any:
    """Return the content of a configuration with absolute paths in the references to files, wherever they are.

    Values of keys named ``metric`` are left out: they may begin with the name of a stage, which looks like a folder.

    >>> absolute_references({"name": "softmax_loss", "k": 3})
    {'name': 'softmax_loss', 'k': 3}
    """
    if isinstance(content, dict):
        return {
            key: one if str(key).rpartition(".")[2] == "metric" else absolute_references(one)
            for key, one in content.items()
        }
    if isinstance(content, list):
        return [absolute_references(one) for one in content]
    return absolute(content) if isinstance(content, str) else content


def resolve(kind: str, reference: str, *, installed: bool = False) -> object:
    """Import what a reference names.

    Args:
        kind: Kind of component that is expected, for messages.
        reference: ``"module.path:attribute"`` or ``"file.py:attribute"``.
        installed: Whether an entry point has this reference. Its module is not searched in the current directory, and
            needs no trust.

    Raises:
        UnresolvedError: If the module, the file or the attribute does not exist, or the import fails.
    """
    place, attribute = _split(kind, reference)
    if is_file_reference(reference):
        found: Any = _load_file(kind, reference)
    else:
        found = _load_module(reference, place, installed=installed)
    for depth, part in enumerate(attribute.split(".")):
        if depth and isinstance(found, ModuleType):  # the code of another file than the one that was checked
            raise UnresolvedError(
                f"found {reference!r}, which leads into the module {found.__name__}; expected '{found.__name__}:{part}'"
            )
        if not hasattr(found, part):
            has = _public(found)
            shown = f"{', '.join(has[:20])}{', ...' if len(has) > 20 else ''}" or "nothing public"
            raise UnresolvedError(
                f"found {reference!r}, but {place} has no {part!r}{did_you_mean(part, has)}; it has {shown}"
            )
        found = getattr(found, part)
    return found


def find(kind: str, reference: str, *, installed: bool = False) -> Path | None:
    """Return the file of a reference without importing anything, or None for a module that is not a Python file.

    Args:
        kind: Kind of component that is expected, for messages.
        reference: The reference.
        installed: As of :func:`resolve`.

    Raises:
        UnresolvedError: If the reference is malformed, or the module or file does not exist.
    """
    place, _ = _split(kind, reference)
    if not is_file_reference(reference):
        return _find_module(reference, place, installed=installed)
    file = Path(absolute(reference).rpartition(":")[0])
    if not file.is_file():
        near = [one.name for one in file.parent.glob("*.py") if one.is_file()] if file.parent.is_dir() else []
        hint = did_you_mean(file.name, near)
        raise UnresolvedError(f"found {reference!r}, but {file} does not exist{hint}")
    return file


def source_of(kind: Kind, name: str) -> Source | None:
    """Return the code behind a name of a configuration without importing it.

    Args:
        kind: Kind of the component.
        name: A reference, the name of an entry point, or a name that an imported module has registered.

    Returns:
        The source. None if the component is built in.

    Raises:
        UnresolvedError: If no component has the name, or its module or file does not exist.
    """
    name = split_cutoffs(name)[0] if kind == "metric" else name
    if is_reference(name):
        return _source(kind, name, find(kind, name))
    if name in BUILTINS[kind]:
        return None
    if found := register.registered(kind).get(name):
        return _source(kind, name, Path(found.file) if found.file and Path(found.file).is_file() else None)
    reference = entry_point(kind, name)
    if reference is None:
        raise UnresolvedError(f"{kind}: found {name!r}, which is neither built in nor registered")
    return _source(kind, name, find(kind, reference, installed=True))


def imported_files(source: Source) -> list[Path]:
    """Return the files that importing a component runs, besides what they import: its own, and those of its packages.

    Args:
        source: The component, which can be found.
    """
    if not source.file:
        return []
    if is_reference(source.name) and not is_file_reference(source.name):
        place = source.name.rpartition(":")[0]
        return list(_module_files(source.name, place).values())
    return [Path(source.file)]


@cache
def _all_entry_points() -> tuple[tuple[str, str, str], ...]:
    """Return the name, the reference and the package of every entry point."""
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return tuple((one.name, one.value, one.dist.name if one.dist else "") for one in found)


def entry_points(kind: Kind) -> dict[str, str]:
    """Return the references of the installed entry points of one kind by name, without importing them."""
    named = [(name.partition("."), value) for name, value, _ in _all_entry_points()]
    return {name: value for (of, _, name), value in named if of == kind and name}


def entry_point(kind: Kind, name: str) -> str | None:
    """Return the reference of an entry point, or None if there is none of this name.

    Raises:
        UnresolvedError: If two packages use the name for different components.
    """
    found = {value: package for full, value, package in _all_entry_points() if full == f"{kind}.{name}"}
    if len(found) > 1:
        places = " and by ".join(f"{package} ({value})" for value, package in found.items())
        raise UnresolvedError(
            f"found {name!r}, which is an entry point of two packages: by {places}; uninstall one of them"
        )
    return next(iter(found), None)


# --- modules ------------------------------------------------------------------------------------------------------


def _split(kind: str, reference: str) -> tuple[str, str]:
    place, _, attribute = reference.rpartition(":")
    names = attribute.split(".")
    if not place or not all(name.isidentifier() for name in names):
        raise UnresolvedError(f"found {reference!r}, expected 'module:{kind}' or './file.py:{kind}'")
    if not is_file_reference(reference) and not all(name.isidentifier() for name in place.split(".")):
        raise UnresolvedError(
            f"found {reference!r}, expected a module such as my_package.parts, or a file whose name ends with .py, "
            "before the colon"
        )
    return place, attribute


def _load_file(kind: str, reference: str) -> ModuleType:
    file = find(kind, reference)
    assert file is not None
    if not user_files.is_loaded(file):
        check_import(reference, file)
    try:
        return user_files.load(file)
    except UntrustedError:  # the file was changed after the check above
        raise
    except (Exception, SystemExit) as error:
        raise UnresolvedError(f"found {reference!r}, but importing {file} fails: {_explain(error)}") from error


def _load_module(reference: str, name: str, *, installed: bool) -> ModuleType:
    file = _find_module(reference, name, installed=installed)
    module = _import(reference, name) if installed else _import_checked(reference, name, file)
    imported = getattr(module, "__file__", None)
    if file is not None and imported is not None and Path(imported).resolve() != file:
        raise UnresolvedError(
            f"found {reference!r}, which is {file} here, but this process has imported the module {name!r} from "
            f"{imported}; name the file by its path, such as './{file.name}:...'"
        )
    if file is not None:
        _LOADED.setdefault(str(file), user_files.read_hash(name) or user_files.sha256(file))
    return module


def _import_checked(reference: str, name: str, file: Path | None) -> ModuleType:
    """Import a module and the packages that it is in, if they are trusted."""
    files = _module_files(reference, name)
    if str(file) not in _LOADED or name not in sys.modules:
        for one in dict.fromkeys([*(path for module, path in files.items() if module not in sys.modules), file]):
            check_import(reference, one)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # stays there: the module may import others later, also in processes started from here
        importlib.invalidate_caches()
    with user_files.checked({module: path for module, path in files.items() if path.suffix == ".py"}):
        return _import(reference, name)


def _import(reference: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except UntrustedError:
        raise
    except (Exception, SystemExit) as error:
        raise UnresolvedError(f"found {reference!r}, but importing {name} fails: {_explain(error)}") from error


_LOADED: dict[str, str] = {}  # hashes of the files of modules when they were imported: what runs, whatever is edited


def _module_files(reference: str, name: str) -> dict[str, Path]:
    """Return the files that importing a module runs by the names of their modules: those of its packages, its own."""
    parts = name.split(".")
    prefixes = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    found = ((prefix, _find_module(reference, prefix, installed=False)) for prefix in prefixes)
    return {prefix: file for prefix, file in found if file is not None}


def _find_module(reference: str, name: str, *, installed: bool) -> Path | None:
    """Return the file of a module without importing the packages that it is in."""
    parts = name.split(".")
    spec = _find_top(parts[0], installed=installed)
    for depth in range(1, len(parts) + 1):
        if depth > 1:
            folders = list(spec.submodule_search_locations or []) if spec else []
            spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:depth]), folders)
        if spec is None:
            loaded = sys.modules.get(name)  # such as __main__, or a module that a program made
            if loaded is None:
                raise UnresolvedError(_missing_module(reference, parts, depth, [] if depth == 1 else folders))
            file = getattr(loaded, "__file__", None)
            return Path(file).resolve() if file else None
    return Path(spec.origin).resolve() if spec and spec.origin and spec.has_location else None


def _find_top(name: str, *, installed: bool) -> ModuleSpec | None:
    """Find a module without a dot, first in the current directory unless it is that of an installed package."""
    here = None if installed else importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd())])
    if here is not None and here.has_location:  # a folder without __init__.py hides no installed package
        return here
    try:
        return importlib.util.find_spec(name) or here
    except ValueError:  # __main__ has no specification
        return None


def _missing_module(reference: str, parts: list[str], depth: int, searched: list[str]) -> str:
    missing = parts[depth - 1]
    if depth > 1:
        has = _modules_in(searched)
        where = f"{'.'.join(parts[: depth - 1])} has no module {missing!r}"
        return f"found {reference!r}, but {where}{did_you_mean(missing, has)}; it has {', '.join(has) or 'none'}"
    here = Path.cwd()
    near = _modules_in([str(here)])
    return (
        f"found {reference!r}, but there is no module {missing!r}{did_you_mean(missing, near)}; it was searched in "
        f"{here} and among the installed packages; a file is named by its path, such as './{missing}.py:...'"
    )


def _modules_in(folders: list[str]) -> list[str]:
    found = [one for folder in folders for one in Path(folder).glob("*") if Path(folder).is_dir()]
    modules = [one.stem for one in found if one.suffix == ".py" or (one / "__init__.py").is_file()]
    return sorted({name for name in modules if name.isidentifier() and not name.startswith("_")})


def _public(owner: object) -> list[str]:
    """Return the public functions and classes of a module or class: those it lists, or those it defines itself."""
    if listed := getattr(owner, "__all__", None):
        return [str(name) for name in listed]
    own = getattr(owner, "__name__", None)
    found = {name: one for name, one in vars(owner).items() if not name.startswith("_") and callable(one)}
    return [name for name, one in found.items() if getattr(one, "__module__", own) == own] or list(found)


def _explain(error: BaseException) -> str:
    """Return the type and message of an error, with the last line of the user's code that it went through."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith((_HERE, "<frozen"))]
    users = [one for one in own if not one.filename.startswith(_INSTALLED)]
    at = (users or own)[-1:]
    return f"{message} ({at[0].filename}, line {at[0].lineno})" if at else message


_HERE = str(Path(__file__).parent)
_INSTALLED = tuple({path for name in ("stdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))})


def _source(kind: Kind, name: str, file: Path | None) -> Source:
    if file is None:
        return Source(kind, name, "", "")
    return Source(kind, name, str(file), _LOADED.get(str(file)) or user_files.sha256(file))


class SourceError(RankfallError):
    """Code of a trained model is missing or has changed."""


def check_present(sources: Iterable[Source], where: str | Path) -> None:
    """Check that all code of something trained can still be found. Nothing is imported.

    Args:
        sources: The code as it was.
        where: What was trained with it, such as a run directory, for messages.

    Raises:
        SourceError: If a file or module is missing. The message names every missing one.
    """
    missing = dict.fromkeys(_missing(one) for one in sources if _now(one) is None)
    if missing:
        raise SourceError(f"{where} was trained with code that {'; and '.join(missing)}")


def _missing(source: Source) -> str:
    if not is_reference(source.name):
        where = (
            f"was defined in {source.file} ({_digest(source.sha256)})" if source.file else "was defined without a file"
        )
        return (
            f"is not found: the {source.kind} {source.name!r} {where}, and is neither registered in this process nor "
            "an entry point of an installed package. Import the module that registers it, or install its package"
        )
    if source.file and Path(source.file).is_file():  # a module of another directory
        return (
            f"is not found: {source.name.rpartition(':')[0]} is not found from here; it was {source.file} "
            f"({_digest(source.sha256)}). Run the command in {Path(source.file).parent}, or add that to PYTHONPATH"
        )
    return f"does not exist: {source.file or source.name} ({_digest(source.sha256)}). Restore it"


def changed(sources: Iterable[Source]) -> list[str]:
    """Return a text for each file whose content is not what it was, with both hashes."""
    found = []
    for one in sources:
        now = _now(one)
        if now is None or now.sha256 == one.sha256:
            continue
        other = f" (now {now.file})" if now.file != one.file else ""
        found.append(
            f"the {one.kind} {short_name(one.name)} has changed since training: {one.file or one.name}{other} had "
            f"{_digest(one.sha256)} and has {_digest(now.sha256)}"
        )
    return found


def check_weights_fit(sources: Iterable[Source], where: str | Path) -> None:
    """Refuse weights of models whose code has changed since they were trained, unless it is trusted.

    Args:
        sources: The code of the models as it was.
        where: What was trained, for messages.

    Raises:
        SourceError: If code has changed.
    """
    differences = [] if is_trusted() else changed(sources)
    if differences:
        raise SourceError(
            f"{where}: {'; '.join(differences)}. The weights belong to the old code: restore it, train again, or use "
            "the code as it is now with --trust (trust=True in Python)"
        )


def short_name(name: str) -> str:
    """Return the name of a component without the path of its file or module.

    >>> short_name("/home/ada/losses.py:focal"), short_name("my_package.losses:focal"), short_name("softmax_loss")
    ('focal', 'focal', 'softmax_loss')
    """
    return name.rpartition(":")[2]


def _now(source: Source) -> Source | None:
    try:
        return source_of(source.kind, source.name)
    except UnresolvedError:
        return None


def _digest(sha256: str) -> str:
    return f"sha256 {sha256[:12]}" if sha256 else "no file"
