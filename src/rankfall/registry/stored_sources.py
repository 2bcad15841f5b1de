"""Code of components as it was when a model was trained, compared with what is there now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankfall._trust import is_trusted
from rankfall.registry.references import UnresolvedError, is_reference, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rankfall.registry.references import Source


class SourceError(ValueError):
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
