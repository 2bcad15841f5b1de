"""Which code of users is imported when a stored configuration names it.

A configuration may name operators, losses, objectives, models and metrics by ``module:attribute`` or
``./file.py:attribute``. Importing them runs their code. What a user passes to a command is imported. What a run, a
comparison or a checkpoint names may come from another person, so it is read inside :func:`stored_code`, where a file is
imported only

- with ``trust=True`` (``--trust``),
- or if this user has trained with the same file and the same content before (:func:`remember`).

The registry calls :func:`check_import` before it imports a file, and again for the very content that it is about to
run. The packages that a module is in are checked as the module is; what these files import themselves is not. Code that
this process has imported already is not imported again, and components that a configuration names by the entry points
of installed packages need no trust: installing a package is the decision to run it.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall._errors import RankfallError
from rankfall.storage.disk import make_directory
from rankfall.storage.files import checksum, locked, read_json_file, write_file

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable


STATE, TRUSTED = "XDG_STATE_HOME", "trusted.json"


class UntrustedError(RankfallError):
    """A stored configuration names code that may not be imported."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is being loaded, and whether its code may be imported."""

    where: str
    trust: bool


_STORED: ContextVar[_Stored | None] = ContextVar("rankfall_stored", default=None)


@contextmanager
def stored_code(where: str | Path, *, trust: bool = False) -> Generator[None]:
    """Context for reading what is stored: code is imported only if it is trusted.

    Args:
        where: What is read, such as a run directory, for error messages.
        trust: Whether to import all code that it names. It holds for everything inside this context.

    Raises:
        UntrustedError: If a directory has a pipe or a device, or a link to a file elsewhere, which a command that
            writes there would overwrite.
    """
    stored = _Stored(str(where), trust or is_trusted())
    for place, _, names in os.walk(where):
        for file in (Path(place, name) for name in names):
            if file.exists() and not file.is_file():
                raise UntrustedError(f"path: {file} is not a file: remove it")
            if not stored.trust and file.is_symlink() and not file.resolve().is_relative_to(Path(where).resolve()):
                raise UntrustedError(
                    f"path: {file} is a link to {file.resolve()}, a file outside of {where} that a command could "
                    "overwrite; remove the link, or allow it with --trust (trust=True in Python)"
                )
    token = _STORED.set(stored)
    try:
        yield
    finally:
        _STORED.reset(token)


def is_trusted() -> bool:
    """Return whether the surrounding :func:`stored_code` imports everything."""
    stored = _STORED.get()
    return stored is not None and stored.trust


def check_import(reference: str, file: str | Path | None, digest: str | None = None) -> None:
    """Refuse to import a file if it is named by something stored and is not trusted.

    Args:
        reference: The name in the configuration.
        file: The file that would run. None for a module without a file of its own.
        digest: Hash of the content that is about to run. Default: that of the file as it is now.

    Raises:
        UntrustedError: If the file is not trusted.
    """
    stored = _STORED.get()
    if stored is None or stored.trust:
        return
    what = "a module without a source file"
    if file is not None:
        found = checksum(Path(file)) if Path(file).is_file() else None
        if found is not None and (digest or found) in _known().get(str(Path(file).resolve()), ()):
            return
        what = f"{file} (sha256 {'unknown' if found is None else found[:12]})"
    raise UntrustedError(
        f"{reference!r} is code that {stored.where} names: loading it would run {what}, and you have not trained with "
        "this file as it is now. Read the file, then allow it with --trust (trust=True in Python); if the command "
        "writes to this directory, name another one"
    )


def remember(files: Iterable[str | Path]) -> None:
    """Record files as they are now as trusted, because a configuration that the user passed names them.

    Raises:
        OSError: If the record cannot be written.
    """
    now = {str(Path(file).resolve()): checksum(Path(file)) for file in files}
    if all(digest in _known().get(file, ()) for file, digest in now.items()):
        return
    path = _record()
    make_directory(path.parent)
    with locked(path.with_suffix(".lock"), wait=True):
        known = _known()
        for file, digest in now.items():
            known[file] = sorted({*known.get(file, ()), digest})
        write_file(path, json.dumps(known, indent=1) + "\n")


def state_directory() -> Path:
    """Return the directory for what rankfall keeps of this user.

    Raises:
        OSError: If the user has no home directory.
    """
    state = os.environ.get(STATE)
    if state:
        return Path(state) / "rankfall"
    try:
        return Path.home() / ".local" / "state" / "rankfall"
    except RuntimeError:  # a user without a home directory, as in some containers
        raise OSError(f"there is no home directory; {STATE} can name one for the record of trusted files") from None


def _record() -> Path:
    return state_directory() / TRUSTED


def _known() -> dict[str, list[str]]:
    """Return the checksums of the trusted contents of each file."""
    try:
        content = read_json_file(_record())
    except (OSError, ValueError):  # a record that cannot be read trusts nothing
        return {}
    return content if isinstance(content, dict) else {}
