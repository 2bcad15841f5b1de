"""Which operations of PyTorch have a kernel for a device, also for devices that the installed build does not have."""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from typing import Any


@functools.cache
def has_kernel(operation: Any, backend: str) -> bool:
    """Return whether an operation of PyTorch runs on a backend, ``"CUDA"`` or ``"MPS"``.

    PyTorch's table of its native functions says so. What it does not list is derived from what it lists.
    """
    entry = _native_functions().get(operation._schema.name.removeprefix("aten::") + _overload(operation))
    while entry is not None and (delegate := re.search(r"\n  structured_delegate: (\S+)", entry)):
        entry = _native_functions()[delegate[1]]
    if entry is None or "\n  dispatch:" not in entry:
        return True
    keys = re.findall(r"\n    ([\w, ]+):", entry[entry.index("\n  dispatch:") :])
    return any(backend in key or "Composite" in key for key in keys)


def _overload(operation: Any) -> str:
    return "" if operation._overloadname == "default" else f".{operation._overloadname}"


@functools.cache
def _native_functions() -> dict[str, str]:
    """Return the entries of the table by name and overload."""
    table = files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml").read_text()
    entries = re.split(r"^- func: ", table, flags=re.MULTILINE)[1:]
    return {entry.partition("(")[0]: entry for entry in entries}
