"""Checkpoints: tensors in files that are whole or not there.

A checkpoint is one safetensors file: tensors by name and, in its header, what is known about them as JSON. It is one
file so that it can be replaced in one step; nothing in it is ever executed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from rankfall._files import write_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

FORMAT = "rankfall checkpoint"
VERSION = 1


def write_checkpoint(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write tensors and what is known about them; the same content gives the same bytes."""
    header = json.dumps({"format": FORMAT, "version": VERSION, **about}, sort_keys=True)
    write_file(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"rankfall": header}))


def read_checkpoint(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint whose names are wanted, of which alone the file is read, and what is known of all."""
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {}).get("rankfall", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise ValueError(f"{path} is not there, expected a checkpoint") from None
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from None
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise ValueError(f"{path} is not a checkpoint of this release (version {VERSION}); train again")
    return tensors, about
