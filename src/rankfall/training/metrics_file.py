"""The file ``metrics.jsonl`` of a run, with one line per epoch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankfall._disk import append
from rankfall._files import write_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Epoch = Mapping[str, Any]


def append_epoch(path: Path, epoch: Epoch) -> None:
    """Append the line of an epoch, completely or not at all."""
    append(path, _line(epoch).encode())


def restore_epochs(path: Path, epochs: Sequence[Epoch]) -> None:
    """Replace the file by the lines of these epochs, which come from a checkpoint.

    The file may have lines of later epochs, or a part of a line. A line with the content of its epoch keeps its bytes,
    since a checkpoint has the keys in alphabetical order.
    """
    written = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    padded = [*written, *[""] * len(epochs)]
    lines = [f"{text}\n" if _has(text, epoch) else _line(epoch) for text, epoch in zip(padded, epochs, strict=False)]
    write_file(path, "".join(lines))


def _has(text: str, epoch: Epoch) -> bool:
    """Return whether a line has the content of an epoch."""
    try:
        return json.dumps(json.loads(text), sort_keys=True) == json.dumps(epoch, sort_keys=True)
    except ValueError:
        return False


def _line(epoch: Epoch) -> str:
    return json.dumps(epoch) + "\n"
