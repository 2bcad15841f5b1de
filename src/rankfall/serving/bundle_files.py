"""The files of a bundle, with checksums.

::

    BUNDLE/manifest.json                   the other files with their SHA-256, encoding rules, checks, versions
    BUNDLE/items.arrow                     ids of the items, their features that the stages and events use, attributes
                                           to show to people, an index of the ids
    BUNDLE/vocabularies/TABLE.arrow        values with ids, and an index of them
    BUNDLE/stages/NAME/user.onnx           a two-tower stage that comes first: vectors of requests,
    BUNDLE/stages/NAME/items.faiss         and those of the items
    BUNDLE/stages/NAME/scorer.onnx         any other stage: scores of pairs of a request and a candidate
    BUNDLE/examples.json                   sample requests and their answers

No file is ever executed or unpickled. Tables are Arrow IPC without compression and are mapped into memory.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall import _manifest
from rankfall._files import checksum
from rankfall._manifest import MANIFEST, has_format
from rankfall.encoding.lookup import Lookup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FORMAT = "rankfall bundle"
VERSION = 1
ITEMS, EXAMPLES = "items.arrow", "examples.json"
DISPLAY = "display."  # prefix of columns of items that are shown to people and that no model reads
SEAL = "sha256"  # key of the manifest's own checksum, which leaves this key out
USER_GRAPH, INDEX, SCORER_GRAPH = "user.onnx", "items.faiss", "scorer.onnx"


def is_bundle(path: Path) -> bool:
    """Return whether a directory holds a bundle of any version."""
    return has_format(path / MANIFEST, FORMAT)


def why_no_bundle(path: Path) -> str | None:
    """Return what is wrong with the manifest of a directory, None for a bundle of any version."""
    file = path / MANIFEST
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    except ValueError:
        return f"{file} is not valid JSON: it is damaged or cut off"
    return None if is_bundle(path) else f"{file} is not the manifest of a bundle"


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a bundle, if this release can read it."""
    kind = "a bundle (see 'rankfall export --help')"
    keys = ("files", "stages", "vocabularies", "request", "items", SEAL)
    manifest = _manifest.read_manifest(path, FORMAT, VERSION, kind=kind, remedy="export it again", keys=keys)
    if manifest[SEAL] != seal(manifest):
        raise ValueError(f"path: {path / MANIFEST} has changed since it was written")
    return manifest


def seal(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of the content of a manifest."""
    content = {key: value for key, value in manifest.items() if key != SEAL}
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def needed_files(manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that a bundle needs."""
    names = [ITEMS, EXAMPLES, *(f"vocabularies/{table}.arrow" for table in manifest["vocabularies"])]
    for stage in manifest["stages"]:
        graphs = [USER_GRAPH, INDEX] if stage["kind"] == "index" else [SCORER_GRAPH]
        names += [f"stages/{stage['name']}/{graph}" for graph in graphs]
    return names


def verify(path: Path, manifest: Mapping[str, Any]) -> None:
    """Read every file of a bundle and compare it with its checksum; raise ValueError if one differs."""
    for name in [*manifest["vocabularies"], *(stage["name"] for stage in manifest["stages"])]:
        if name in ("", ".", "..") or set(name) & set("/\\\0"):  # a path to a file without a checksum
            raise ValueError(f"path: {path / MANIFEST} is damaged, it names a table or a stage {name!r}")
    for name in needed_files(manifest):
        if name not in manifest["files"]:
            raise ValueError(f"path: {path / MANIFEST} is damaged, it has no checksum of {name}")
    for name, about in manifest["files"].items():
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError(f"path: {path / MANIFEST} is damaged, it names the file {name!r}")
        file = path / name
        if not file.is_file():
            raise ValueError(f"path: {file} is missing")
        if file.stat().st_size != about["bytes"]:
            size = file.stat().st_size
            why = "was cut off" if size < about["bytes"] else "has changed since it was written"
            raise ValueError(f"path: {file} has {size:,} bytes, its manifest says {about['bytes']:,}; it {why}")
        if checksum(file) != about["sha256"]:
            raise ValueError(f"path: {file} has changed since it was written")


def about_files(path: Path) -> dict[str, dict[str, Any]]:
    """Return size and checksum of every file in a directory."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {
        file.relative_to(path).as_posix(): {"bytes": file.stat().st_size, "sha256": checksum(file)} for file in files
    }


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as one block, so that it can be mapped into memory without copies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def map_table(path: Path) -> pa.Table:
    """Map a table into memory."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise ValueError(f"path: {path} is missing, damaged or cut off ({error})") from None


def one_array(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array, without a copy if it was written as one block."""
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numbers(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of a column, (n,) or (n, size), without a copy."""
    if pa.types.is_fixed_size_list(array.type):
        vectors: NDArray[Any] = array.flatten().to_numpy().reshape(len(array), array.type.list_size)
        return vectors
    single: NDArray[Any] = array.to_numpy()
    return single


def map_lookup(table: pa.Table, name: str) -> Lookup:
    """Return the index of a column that is stored with its sorted hashes."""
    hashes, places = (numbers(one_array(table, key)) for key in ("hash", "place"))
    return Lookup(one_array(table, name), hashes, places)
