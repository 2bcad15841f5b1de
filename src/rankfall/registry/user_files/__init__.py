"""Modules that are read from Python files by their paths.

``rankfall.registry.user_files.NAME`` is a module whose name encodes the path of its file. Importing it reads the file.
So what such a module defines can be pickled, and another process that has rankfall can load it without preparation.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.storage.trust import check_import

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

_HASHES: dict[str, str] = {}  # of the text that each module was read from


def module_name(file: Path) -> str:
    """Return the name of the module that is read from a file.

    >>> module_name(Path("/home/ada/my_loss.py"))
    'rankfall.registry.user_files._2fhome_2fada_2fmy_5floss_2epy'
    """
    encoded = re.sub(r"[^A-Za-z0-9]", lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), str(file))
    return f"{__name__}.{encoded}"


def file_of(name: str) -> Path:
    """Return the file that a module of this package is read from.

    >>> str(file_of("rankfall.registry.user_files._2fa_5fb_2epy"))
    '/a_b.py'
    """
    encoded = name.removeprefix(f"{__name__}.")
    pairs = re.sub(r"((?:_[0-9a-f]{2})+)", lambda found: bytes.fromhex(found[0].replace("_", "")).decode(), encoded)
    return Path(pairs)


def load(file: Path) -> ModuleType:
    """Return the module of a file. A file that has changed since it was read is read again.

    Args:
        file: Absolute path of a Python file.
    """
    name = module_name(file)
    if not is_loaded(file):
        sys.modules.pop(name, None)
    return importlib.import_module(name)


def is_loaded(file: Path) -> bool:
    """Return whether this process has read a file as it is now."""
    name = module_name(file)
    return name in sys.modules and _HASHES.get(name) == sha256(file)


def sha256(file: Path) -> str:
    """Return the hash of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


class _Finder:
    """Finds the modules of this package."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        file = file_of(name)
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file)))


class _CheckedLoader(importlib.machinery.SourceFileLoader):
    """Reads a file once, so that what is checked is what runs.

    The cache of compiled files is not used: it overlooks two changes within one second, and may hold other code.
    """

    def get_code(self, fullname: str) -> CodeType:
        content = self.get_data(self.path)
        digest = hashlib.sha256(content).hexdigest()
        check_import(self.path, self.path, digest)
        _HASHES[fullname] = digest
        code: CodeType = self.source_to_code(content, self.path)
        return code


class _Loader(_CheckedLoader):
    """Reads a file that is named by its path."""

    def get_code(self, fullname: str) -> CodeType:
        code = super().get_code(fullname)
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # last: modules beside the file can be imported, and hide nothing
        return code


sys.meta_path.append(_Finder)


@contextmanager
def checked(files: Mapping[str, Path]) -> Generator[None]:
    """Context in which modules are read from these files, and only as far as their content is trusted.

    Args:
        files: Python files by the names of their modules.
    """
    finder = _CheckedFinder(files)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _CheckedFinder:
    """Finds modules in given files."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        folders = [str(file.parent)] if file.name == "__init__.py" else None
        loader = _CheckedLoader(name, str(file))
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)


def read_hash(module: str) -> str | None:
    """Return the hash of the text that a module was read from, if this package has read it."""
    return _HASHES.get(module)
