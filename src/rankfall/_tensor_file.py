"""Checkpoint files: tensors and metadata with checksums, written atomically.

A checkpoint is one safetensors file: tensors by name and, in its header, metadata as JSON, with the SHA-256 of each
tensor and of the metadata itself. It is a single file so that it can be replaced atomically; nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from rankfall._errors import RankfallError
from rankfall.storage.disk import open_new
from rankfall.storage.files import new_content, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

FORMAT = "rankfall checkpoint"
VERSION = 2
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and metadata. Equal content results in equal bytes.

    Args:
        path: File to write.
        tensors: Tensors by name.
        about: Metadata, JSON values.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = {"format": FORMAT, "version": VERSION, **about, "tensors": _checksums(stored)}
    content = json.loads(_text(content))  # as it will be read: JSON turns keys that are numbers into strings
    with new_content(path) as temporary, open_new(temporary) as file:
        _write(file, stored, _text({**content, "checksum": _checksum(content)}))


def _write(file: BinaryIO, tensors: Mapping[str, Tensor], about: str) -> None:
    """Write a file in the safetensors format.

    The library's own writer leaves an unnamed temporary file if it is killed, and creates files that only their owner
    can read.
    """
    header: dict[str, Any] = {"__metadata__": {"rankfall": about}}
    end = 0
    order = sorted(
        tensors, key=lambda name: (-tensors[name].itemsize, name)
    )  # larger items first, so that all are aligned
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name in order:
        file.write(_bytes(tensors[name]))


def read_checkpoint(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and metadata.

    Args:
        path: File to read.
        wanted: Function that returns whether to read the tensor of a name; the others are not loaded. Default: read
            all.

    Returns:
        The tensors by name, and the metadata.

    Raises:
        ValueError: If the file is missing, damaged, or of another version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = parse_json((file.metadata() or {}).get("rankfall", "{}"))
            names: set[str] = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in sorted(names) if wanted(name)}
    except FileNotFoundError:
        raise RankfallError(f"{path} does not exist, expected a checkpoint") from None
    except (SafetensorError, ValueError) as error:  # but not OSError, which is no statement about the file's content
        raise RankfallError(f"{path} cannot be read as a checkpoint: {error}") from None
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise RankfallError(f"{path} is not a checkpoint of this release (version {VERSION}); train again")
    checksum, stored = about.pop("checksum", None), about.get("tensors", {})
    intact = _checksum(about) == checksum and set(stored) == names
    if not intact or any(stored[name] != found for name, found in _checksums(tensors).items()):
        raise RankfallError(f"{path} is damaged: its checksums do not match its content")
    about.pop("tensors", None)
    return tensors, about


def _checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    found = {}
    for name, tensor in tensors.items():
        sha = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
        sha.update(_bytes(tensor))
        found[name] = sha.hexdigest()
    return found


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)
