"""Checkpoints for resuming a training run.

``step-000000120.safetensors`` is the state after 120 batches. A checkpoint gets its name once it is on disk, and older
ones are deleted after that, so that there is a complete one at any time. Checksums detect damaged checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from torch import Tensor

from rankfall._errors import RankfallError
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.storage.disk import delete
from rankfall.storage.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    State = dict[str, Any]  # nested mappings and lists of plain values and tensors

KIND = "training"
NAME = "step-{:09}.safetensors"
_TENSOR, _NUMBER = "$tensor", "$number "  # in JSON: key of a tensor's name, prefix of integer keys


class DamagedError(RankfallError):
    """A run cannot be resumed: its checkpoints are damaged or do not fit this release."""


class Checkpoints:
    """The newest `keep` checkpoints of a directory."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep

    def paths(self) -> list[Path]:
        """Return the paths of all checkpoints, the newest first."""
        return sorted(self.directory.glob("step-*.safetensors"), reverse=True)

    def save(self, step: int, state: State) -> None:
        """Write the state after `step` batches, and delete checkpoints that are too old."""
        path = self.directory / NAME.format(step)
        tensors, plain = split(state)
        write_checkpoint(path, tensors, {"kind": KIND, "state": plain})
        # newer ones were damaged: the run was resumed from an older one
        kept = [other for other in self.paths() if other <= path][: self.keep]
        for other in self.paths():
            if other not in kept:
                delete(other)

    def load(self, on_notice: Callable[[str], None]) -> State | None:
        """Load the newest complete checkpoint.

        Args:
            on_notice: Called with a message about each damaged checkpoint.

        Returns:
            The state, or None if there is no checkpoint.

        Raises:
            DamagedError: If all checkpoints are damaged.
        """
        damaged = []
        for path in self.paths():
            try:
                tensors, about = read_checkpoint(path)
                if about.get("kind") != KIND:
                    raise RankfallError(f"{path} is a checkpoint, but not of a training run")
            except ValueError as error:
                damaged.append(path)
                on_notice(str(error))
            else:
                state: State = join(about["state"], tensors)
                return state
        if damaged:
            names = ", ".join(path.name for path in damaged)
            raise DamagedError(f"{self.directory}: all checkpoints are damaged ({names}); --force starts over")
        return None

    def clear(self) -> None:
        """Delete all checkpoints."""
        for path in self.paths():
            delete(path)


def stored_checksum(path: Path) -> str:
    """Return the checksum that a checkpoint stores for its content, without reading the content."""
    with safe_open(path, framework="pt") as file:
        found: str = parse_json(file.metadata()["rankfall"])["checksum"]
    return found


def split(state: State) -> tuple[dict[str, Tensor], Any]:
    """Split a state into its tensors by name, each shared tensor once, and the rest as JSON values."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def visit(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            stored = names.setdefault(id(value), name)
            tensors[stored] = value
            return {_TENSOR: stored}
        if isinstance(value, dict):
            return {
                f"{_NUMBER}{key}" if isinstance(key, int) else key: visit(part, f"{name}.{key}".lstrip("."))
                for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            return [visit(part, f"{name}.{place}") for place, part in enumerate(value)]
        return value

    return tensors, visit(state, "")


def join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """Join the parts of a state. Its tensors are copies."""
    if isinstance(plain, dict) and _TENSOR in plain:
        return tensors[plain[_TENSOR]].clone()
    if isinstance(plain, dict):
        return {
            int(word.removeprefix(_NUMBER)) if word.startswith(_NUMBER) else word: join(part, tensors)
            for word, part in plain.items()
        }
    return [join(part, tensors) for part in plain] if isinstance(plain, list) else plain
