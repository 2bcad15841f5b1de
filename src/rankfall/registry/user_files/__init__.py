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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads a file without the cache of compiled files, which overlooks two changes within one second."""

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        content = self.get_data(self.path)
        _HASHES[fullname] = hashlib.sha256(content).hexdigest()
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # last: modules beside the file can be imported, and hide nothing
        return self.source_to_code(content, self.path)


sys.meta_path.append(_Finder)
