"""The checkpoints that a training continues from.

A directory holds the last few, ``step-000000120.safetensors`` is what was known after 120 batches. Each gets its
name when it is on disk, and an older one is taken away only after that, so that there is a whole one at any moment. One
that was damaged since is found out by its checksums.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from torch import Tensor

from rankfall._tensor_file import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    State = dict[str, Any]  # mappings by name or number and lists, of plain values and tensors

KIND = "training"
NAME = "step-{:09}.safetensors"
_TENSOR, _NUMBER = "$tensor", "$number "  # in JSON: the key of a tensor's name, the beginning of a key that is a number


class DamagedError(ValueError):
    """No checkpoint is left that a training could continue from."""


class Checkpoints:
    """The newest `keep` checkpoints of a directory."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep

    def paths(self) -> list[Path]:
        """Those that are there, the newest first."""
        return sorted(self.directory.glob("step-*.safetensors"), reverse=True)

    def save(self, step: int, state: State) -> None:
        """Keep what is known after so many batches, and forget what is too old."""
        path = self.directory / NAME.format(step)
        tensors, plain = split(state)
        write_checkpoint(path, tensors, {"kind": KIND, "state": plain})
        # Newer ones are of a training that was given up: they were damaged.
        kept = [other for other in self.paths() if other <= path][: self.keep]
        for other in self.paths():
            if other not in kept:
                other.unlink()

    def load(self, on_notice: Callable[[str], None]) -> State | None:
        """The newest that is whole, or nothing if there is none; `on_notice` hears of those that are damaged."""
        damaged = []
        for path in self.paths():
            try:
                tensors, about = read_checkpoint(path)
                if about.get("kind") != KIND:
                    raise ValueError(f"{path} is a checkpoint, but not of a training")
            except ValueError as error:
                damaged.append(path)
                on_notice(str(error))
            else:
                state: State = join(about["state"], tensors)
                return state
        if damaged:
            names = ", ".join(path.name for path in damaged)
            raise DamagedError(
                f"{self.directory}: all checkpoints are damaged ({names}), training cannot go on; --force starts over"
            )
        return None

    def clear(self) -> None:
        """Forget all."""
        for path in self.paths():
            path.unlink()


def seal(path: Path) -> str:
    """The checksum that a checkpoint has of all of its content; the content itself is not read."""
    with safe_open(path, framework="pt") as file:
        found: str = json.loads(file.metadata()["rankfall"])["checksum"]
    return found


def split(state: State) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a state by name, those that are one tensor under one name, and the rest as JSON can hold it."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def visit(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            stored = names.setdefault(id(value), name)
            tensors[stored] = value
            return {_TENSOR: stored}
        if isinstance(value, dict):
            return {_word(key): visit(part, f"{name}.{key}".lstrip(".")) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [visit(part, f"{name}.{place}") for place, part in enumerate(value)]
        return value

    return tensors, visit(state, "")


def join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """A state from its parts; its tensors are nobody else's."""
    if isinstance(plain, dict) and _TENSOR in plain:
        return tensors[plain[_TENSOR]].clone()
    if isinstance(plain, dict):
        return {_key(word): join(part, tensors) for word, part in plain.items()}
    return [join(part, tensors) for part in plain] if isinstance(plain, list) else plain


def _word(key: str | int) -> str:
    return f"{_NUMBER}{key}" if isinstance(key, int) else key


def _key(word: str) -> str | int:
    return int(word.removeprefix(_NUMBER)) if word.startswith(_NUMBER) else word
