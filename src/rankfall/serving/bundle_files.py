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

No file is ever executed or unpickled. Tables are Arrow IPC without compression, which are used as they
are in memory.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall import _manifest
from rankfall._disk import make_directory, open_new
from rankfall._json_reader import read_json_file
from rankfall._manifest import MANIFEST, check_names, has_format
from rankfall._seal import SEAL, check_seal
from rankfall.encoding.lookup import Lookup
from rankfall.serving.memory_files import REMEDY, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from rankfall.serving.memory_files import MemoryFile

FORMAT = "rankfall bundle"
VERSION = 1
LARGEST_MANIFEST = 2**22  # bytes: a service reads manifests of bundles that it has not tried, and waits meanwhile
ITEMS, EXAMPLES = "items.arrow", "examples.json"
DISPLAY = "display."  # prefix of columns of items that are shown to people and that no model reads
USER_GRAPH, INDEX, SCORER_GRAPH = "user.onnx", "items.faiss", "scorer.onnx"
_ARROW_MAGIC = 8  # bytes before the messages of an Arrow file
DATA = ".data"  # suffix of the file beside a graph that has its weights, if they are too large for the graph


def is_bundle(path: Path) -> bool:
    """Return whether a directory holds a bundle of any version."""
    return has_format(path / MANIFEST, FORMAT, LARGEST_MANIFEST)


def why_no_bundle(path: Path) -> str | None:
    """Return what is wrong with the manifest of a directory, None for a bundle of any version."""
    file = path / MANIFEST
    try:
        read_json_file(file, LARGEST_MANIFEST)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    except ValueError as error:
        if str(error).startswith("path: "):  # it was not read
            return str(error).removeprefix("path: ")
        return f"{file} is not valid JSON: it is damaged or cut off"
    return None if is_bundle(path) else f"{file} is not the manifest of a bundle"


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a bundle, if this release can read it."""
    kind = "a bundle (see 'rankfall export --help')"
    keys = ("files", "stages", "vocabularies", "request", "items", SEAL)
    manifest = _manifest.read_manifest(
        path, FORMAT, VERSION, kind=kind, remedy="export it again", keys=keys, largest=LARGEST_MANIFEST
    )
    check_seal(path / MANIFEST, manifest, remedy=REMEDY)
    return manifest


def needed_files(manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that a bundle needs."""
    names = [ITEMS, EXAMPLES, *(f"vocabularies/{table}.arrow" for table in manifest["vocabularies"])]
    for stage in manifest["stages"]:
        graphs = [USER_GRAPH, INDEX] if stage["kind"] == "index" else [SCORER_GRAPH]
        names += [f"stages/{stage['name']}/{graph}" for graph in graphs]
    return names


def read_files(path: Path, manifest: Mapping[str, Any], shared: Path | None = None) -> dict[str, MemoryFile]:
    """Read every file of a bundle into memory, compare it with its checksum, and return the files by name.

    Args:
        path: Directory of the bundle.
        manifest: Its manifest.
        shared: Directory through which several processes share the memory.

    Raises:
        ValueError: If a file is missing or differs.
    """
    names = [*manifest["vocabularies"], *(stage["name"] for stage in manifest["stages"])]
    check_names(path, "a table or a stage", names)
    for name in needed_files(manifest):
        if name not in manifest["files"]:
            raise ValueError(f"path: {path / MANIFEST} is damaged, it has no checksum of {name}")
    for name in manifest["files"]:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError(f"path: {path / MANIFEST} is damaged, it names the file {name!r}")
    return {name: read_file(path / name, about, shared=shared) for name, about in manifest["files"].items()}


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Context of code that reads a bundle: its errors name the file, or this path."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, pa.ArrowException) as error:
        if str(error).startswith("path: "):
            raise
        raise ValueError(f"path: {path} is damaged, or was not written by 'rankfall export' ({error!r})") from None


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as one block, so that it can be read without copies."""
    make_directory(path.parent)
    with open_new(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def read_table(file: MemoryFile) -> pa.Table:
    """Return the table of a file, without a copy.

    Raises:
        ValueError: If the file is damaged, or compressed: its size would say nothing about the memory it needs.
    """
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(file.content)[_ARROW_MAGIC:])
        schema = pa.ipc.read_schema(messages.read_next_message())
        batches = []
        for message in messages:
            if message.type != "record batch" or _is_compressed(message):
                raise ValueError(f"path: {file.path} is compressed or has dictionaries, export it again")
            batches.append(pa.ipc.read_record_batch(message, schema))
        table = pa.Table.from_batches(batches, schema)
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ValueError(f"path: {file.path} is damaged or cut off ({error})") from None


def _is_compressed(message: pa.Message) -> bool:
    """Return whether a message, a flat buffer that Arrow has verified, names a compression, in its header or beside it.

    Arrow also reads the compression of early releases, which is in the metadata of the message.
    """
    content = message.metadata.to_pybytes()

    def offset(table: int, field: int) -> int:
        """Return where a field of a table is, relative to the table; 0 if it has none."""
        about = table - struct.unpack_from("<i", content, table)[0]
        size: int = struct.unpack_from("<H", content, about)[0]
        place = 4 + 2 * field
        return struct.unpack_from("<H", content, about + place)[0] if place < size else 0

    root: int = struct.unpack_from("<I", content)[0]
    header = root + offset(root, 2)  # of Message: version, type of the header, header
    batch = header + struct.unpack_from("<I", content, header)[0]
    # of RecordBatch: length, nodes, buffers, compression; of Message: after the length of its body, metadata
    return offset(batch, 3) != 0 or offset(root, 4) != 0


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


def read_lookup(table: pa.Table, name: str) -> Lookup:
    """Return the index of a column that is stored with its sorted hashes."""
    hashes, places = (numbers(one_array(table, key)) for key in ("hash", "place"))
    return Lookup(one_array(table, name), hashes, places)
