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

import fcntl
import mmap
import os
import re
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import numpy as np
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.encoding import NOWHERE, BadValueError, Lookup
from rankfall.serving.value_encoders import values_like
from rankfall.storage import manifests as _manifest
from rankfall.storage.disk import delete, make_directory, open_new, rename
from rankfall.storage.files import TEMPORARY, locked, open_regular, read_json_file
from rankfall.storage.manifests import MANIFEST, SEAL, check_names, check_seal, has_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.int64]
    Id = int | str

_PART = 2**20  # bytes that are read at once
_CHECKSUM = re.compile("[0-9a-f]{64}")
_LOCK = "copies.lock"
REMEDY = "export it again, or restore it from a copy"


@dataclass(frozen=True, eq=False)
class MemoryFile:
    """The content of a file, and its path for messages."""

    path: Path
    content: mmap.mmap | bytes


def read_file(path: Path, about: Mapping[str, Any] | None = None, *, shared: Path | None = None) -> MemoryFile:
    """Read a file into memory.

    Args:
        path: The file.
        about: Its size and checksum, ``bytes`` and ``sha256``, with which the content is compared.
        shared: Directory of copies, through which several processes share the memory of verified files.

    Raises:
        ValueError: If the file is missing, or differs from `about`.
        OSError: If it cannot be read, or copied to `shared`.
    """
    with _open(path) as source:
        size = os.fstat(source.fileno()).st_size
        if about is not None and size != about["bytes"]:
            why = "was cut off" if size < about["bytes"] else "has changed since it was written"
            raise RankfallError(
                f"path: {path} has {size:,} bytes, its manifest says {about['bytes']:,}; it {why}; {REMEDY}"
            )
        expected = None if about is None else str(about["sha256"])
        if expected is None or shared is None or not size or not _CHECKSUM.fullmatch(expected):
            content: mmap.mmap | bytes = _read_private(source, path, size, expected)
        else:
            content = _read_shared(source, path, expected, shared)
    return MemoryFile(path, content)


def remove_unused_copies(shared: Path) -> None:
    """Remove the copies that no process uses."""
    with locked(shared / _LOCK, wait=True):
        for path in shared.iterdir():
            if _CHECKSUM.fullmatch(path.name):
                with path.open("rb") as copy, suppress(BlockingIOError):
                    fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    delete(path)


def _open(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise RankfallError(f"path: {path} is missing; {REMEDY}") from None
    except ValueError:
        raise RankfallError(f"path: {path} is missing: it is not a file; {REMEDY}") from None


def _read_private(source: BinaryIO, path: Path, size: int, expected: str | None) -> mmap.mmap | bytes:
    """Read a file into memory of this process."""
    if not size:
        _check(path, sha256(b"").hexdigest(), expected)
        return b""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place, digest = 0, sha256()
    for part in _parts(source):
        part = part[: size - place]  # the file may have become longer since
        memory[place : place + len(part)] = part
        place += len(part)
        digest.update(part)
    if place != size:
        raise RankfallError(f"path: {path} has changed while it was read")
    _check(path, digest.hexdigest(), expected)
    return memory


def _read_shared(source: BinaryIO, path: Path, expected: str, shared: Path) -> mmap.mmap:
    """Map the copy of a file, which is created if no process has one."""
    with locked(shared / _LOCK, wait=True):  # otherwise processes that start together would all create one
        if not (shared / expected).exists():
            _create_copy(source, path, expected, shared)
        with (shared / expected).open("rb") as copy:
            fcntl.flock(copy, fcntl.LOCK_SH)  # until the mapping ends, which has its own handle of the open file
            return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)


def _create_copy(source: BinaryIO, path: Path, expected: str, shared: Path) -> None:
    temporary = shared / f".{expected}{TEMPORARY}"
    try:
        with open_new(temporary) as copy:
            digest = sha256()
            for part in _parts(source):
                copy.write(part)
                digest.update(part)
        _check(path, digest.hexdigest(), expected)
        rename(temporary, shared / expected)
    except OSError as error:
        raise OSError(f"path: {path} cannot be copied to {shared}: {error.strerror or error}") from None
    finally:
        delete(temporary, missing_ok=True)


def _parts(source: BinaryIO) -> Iterator[bytes]:
    while part := source.read(_PART):
        yield part


def _check(path: Path, found: str, expected: str | None) -> None:
    if expected is not None and found != expected:
        raise RankfallError(f"path: {path} has changed since it was written; {REMEDY}")


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
    needed = [ITEMS, EXAMPLES, *(f"vocabularies/{table}.arrow" for table in manifest["vocabularies"])]
    for stage in manifest["stages"]:
        graphs = [USER_GRAPH, INDEX] if stage["kind"] == "index" else [SCORER_GRAPH]
        needed += [f"stages/{stage['name']}/{graph}" for graph in graphs]
    for name in needed:
        if name not in manifest["files"]:
            raise RankfallError(f"path: {path / MANIFEST} is damaged, it has no checksum of {name}")
    for name in manifest["files"]:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise RankfallError(f"path: {path / MANIFEST} is damaged, it names the file {name!r}")
    return {name: read_file(path / name, about, shared=shared) for name, about in manifest["files"].items()}


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Context of code that reads a bundle: its errors name the file, or this path."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, pa.ArrowException) as error:
        if str(error).startswith("path: "):
            raise
        raise RankfallError(f"path: {path} is damaged, or was not written by 'rankfall export' ({error!r})") from None


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
                raise RankfallError(f"path: {file.path} is compressed or has dictionaries, export it again")
            batches.append(pa.ipc.read_record_batch(message, schema))
        table = pa.Table.from_batches(batches, schema)
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise RankfallError(f"path: {file.path} is damaged or cut off ({error})") from None


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


# --- graphs -------------------------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Operators that the models of rankfall need, which a test derives from their graphs,
OPERATORS = _words(
    "Add BatchNormalization Cast Clip Concat Div Elu Gather Gelu Gemm Greater LeakyRelu MatMul Max Mul Not ReduceSum "
    "Relu Reshape Selu Shape Sigmoid Softmax Split Squeeze Tanh Transpose Unsqueeze Where"
)
# and more that models of users may need: none has a graph of its own, repeats itself, or reads anything but its inputs.
OTHER_OPERATORS = _words(
    "Abs Acos And ArgMax ArgMin Asin Atan AveragePool CastLike Ceil Celu Constant Conv Cos Cosh CumSum Einsum Equal "
    "Erf Exp Expand Flatten Floor GRU GatherElements GatherND GlobalAveragePool GlobalMaxPool GreaterOrEqual "
    "GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LSTM LayerNormalization Less "
    "LessOrEqual Log LogSoftmax LpNormalization MaxPool Mean Min Mish Mod Neg Or PRelu Pow RNN Reciprocal ReduceL1 "
    "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare Round "
    "ScatterElements ScatterND Sign Sin Sinh Slice Softplus Softsign Sqrt Sub Sum Swish Tan ThresholdedRelu TopK Trilu "
    "Xor"
)
_DOMAINS = (b"", b"ai.onnx")
# numbers of fields in onnx.proto
_MODEL_GRAPH, _MODEL_FUNCTIONS, _MODEL_TRAINING = 7, 25, 20
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 5, 15
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS = 5, 10
_ATTRIBUTE_OTHERS = {6: "a graph", 11: "a graph", 22: "a sparse tensor", 23: "a sparse tensor"}
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14


def check_graph(file: MemoryFile, data: MemoryFile | None) -> None:
    """Refuse a graph with other operators, or with weights in another file than the one of the bundle.

    Args:
        file: The graph.
        data: The file of its weights, if they are not in the graph.

    Raises:
        ValueError: If ``rankfall export`` would not have written this graph.
    """

    def refuse(why: str) -> NoReturn:
        raise RankfallError(f"path: {file.path} is not a graph that 'rankfall export' writes: it has {why}")

    def check_tensor(tensor: memoryview) -> None:
        entries = [dict(_fields(entry)) for number, entry in _fields(tensor) if number == _TENSOR_EXTERNAL]
        places = [bytes(entry.get(2, b"")) for entry in entries if entry.get(1) == b"location"]
        is_external = any(number == _TENSOR_LOCATION and value for number, value in _fields(tensor))
        if (entries or is_external) and (data is None or places != [data.path.name.encode()]):
            refuse(f"weights in the file {b', '.join(places).decode(errors='replace')!r}, which is not in the bundle")

    def check_node(node: memoryview) -> None:
        content = list(_fields(node))
        if any(number == _NODE_DOMAIN and value not in _DOMAINS for number, value in content):
            refuse("operators of other libraries")
        for number, value in content:
            if number == _NODE_OPERATOR and (name := bytes(value).decode(errors="replace")) not in _ALLOWED:
                refuse(f"the operator {name[:60]!r}")
            for inner, part in _fields(value) if number == _NODE_ATTRIBUTE else ():
                if inner in _ATTRIBUTE_OTHERS:
                    refuse(f"{_ATTRIBUTE_OTHERS[inner]} inside of an operator")
                if inner in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                    check_tensor(part)

    try:
        for number, graph in _fields(memoryview(file.content)):
            if number in (_MODEL_FUNCTIONS, _MODEL_TRAINING):
                refuse("functions of its own")
            for inner, part in _fields(graph) if number == _MODEL_GRAPH else ():
                if inner == _GRAPH_SPARSE:
                    refuse("sparse tensors")
                if inner in (_GRAPH_NODE, _GRAPH_INITIALIZER):
                    (check_node if inner == _GRAPH_NODE else check_tensor)(part)
    except (IndexError, TypeError, AttributeError):  # a number where a message belongs
        raise RankfallError(f"path: {file.path} is not a graph: it is damaged or cut off") from None


_ALLOWED = OPERATORS | OTHER_OPERATORS


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer: an int, or the bytes of text or of a message."""
    place = 0
    while place < len(message):
        tag, place = _number(message, place)
        kind = tag & 7 if tag < 2**32 else -1  # onnxruntime would drop the upper bits
        if kind == 0:
            value, place = _number(message, place)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, place = _number(message, place)
        if size is None or size > len(message) - place:
            raise IndexError
        yield tag >> 3, message[place : place + size]
        place += size


def _number(message: memoryview, place: int) -> tuple[int, int]:
    """Return a number of variable length and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise IndexError


# --- indexes ------------------------------------------------------------------------------------------------------

_PRODUCT, _SQUARES = 0, 1  # metrics of faiss
_ARRAY = 1  # the kind of the map from items to places in lists


def check_index(file: MemoryFile, dimensions: int) -> None:
    """Refuse an index that is not one of the two that ``rankfall export`` writes, or refers to what it does not have.

    Args:
        file: The index.
        dimensions: The size of the vectors of requests. Vectors in lists have one more dimension.

    Raises:
        ValueError: If the index has another type, sizes that do not match, or places of items outside of its lists.
    """
    reader = _Reader(file)
    kind = reader.code("IxFI", "IwFl")
    if kind == "IxFI":
        reader.flat(dimensions, _PRODUCT)
    else:
        _check_lists(reader, dimensions + 1)
    reader.expect("bytes after its end", len(file.content) - reader.place, 0)


def _check_lists(reader: _Reader, dimensions: int) -> None:
    items = reader.header(dimensions, _SQUARES)
    lists, _ = reader.take("<2Q")
    reader.code("IxF2")
    reader.expect("centres of lists", reader.flat(dimensions, _SQUARES), lists)
    map_kind, mapped = reader.take("<BQ")
    reader.expect("kind of map", map_kind, _ARRAY)
    reader.expect("places of items", mapped, items)
    places = reader.numbers(items)
    reader.code("ilar")
    reader.expect("lists", reader.take("<2Q"), (lists, 4 * dimensions))
    if reader.code("full", "sprs") == "full":
        reader.expect("lists with sizes", reader.take("<Q"), (lists,))
        sizes = reader.numbers(lists)
    else:
        (count,) = reader.take("<Q")
        listed, counts = reader.numbers(count).reshape(-1, 2).T
        sizes = np.zeros(lists, np.int64)
        if not ((listed >= 0) & (listed < lists)).all() or len(np.unique(listed)) != len(listed):
            reader.refuse("sizes of lists that it does not have")
        sizes[listed] = counts
    if not ((sizes >= 0) & (sizes <= items)).all() or sizes.sum() != items:
        reader.refuse(f"lists of other sizes than those of {items:,} items")
    ids_of_lists = []
    for size in sizes.tolist():
        reader.skip(size * 4 * dimensions)
        ids_of_lists.append(reader.numbers(size))
    ids = np.concatenate(ids_of_lists)
    starts, of_list, offset = np.cumsum(sizes) - sizes, places >> 32, places & 0xFFFFFFFF
    if not ((of_list >= 0) & (of_list < lists)).all() or not (offset < sizes[of_list]).all():
        reader.refuse("places of items outside of its lists")
    if not (ids[starts[of_list] + offset] == np.arange(items)).all():
        reader.refuse("places of other items")


class _Reader:
    """Reads the parts of an index from the front; what is missing or different is an error."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self.place = 0

    def refuse(self, why: str) -> NoReturn:
        raise RankfallError(f"path: {self._file.path} is not an index that 'rankfall export' writes: it has {why}")

    def expect(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            self.refuse(f"{found} {what}, expected {expected}")

    def skip(self, size: int) -> int:
        """Return the current place, and go on behind the next bytes."""
        before, end = self.place, len(self._file.content)
        if size > end - before:
            self.refuse(f"{end:,} bytes and needs {before + size:,}")
        self.place += size
        return before

    def take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack_from(form, self._file.content, self.skip(struct.calcsize(form)))

    def code(self, *allowed: str) -> str:
        """Read the four letters that name a part."""
        found = str(self.take("<4s")[0], "latin-1")
        if found not in allowed:
            self.refuse(f"a part of type {found!r}, expected {' or '.join(allowed)}")
        return found

    def numbers(self, count: int) -> NDArray[np.int64]:
        place = self.skip(8 * count)
        return np.frombuffer(self._file.content, np.dtype("<i8"), count, place)

    def header(self, dimensions: int, metric: int) -> int:
        """Read the fields that all indexes have, and return the number of vectors."""
        size, count, _, _, is_trained, found = self.take("<iqqq?i")
        self.expect("dimensions, state and metric", (size, is_trained, found), (dimensions, True, metric))
        if count < 0 or size < 1:
            self.refuse(f"{count} vectors of {size} dimensions")
        return int(count)

    def flat(self, dimensions: int, metric: int) -> int:
        """Read vectors side by side, and return their number."""
        count = self.header(dimensions, metric)
        self.expect("numbers", self.take("<Q")[0], count * dimensions)
        self.skip(4 * count * dimensions)
        return count


class Items:
    """The table of items.

    Args:
        file: The file ``items.arrow`` of a bundle.
    """

    def __init__(self, file: MemoryFile) -> None:
        table = read_table(file)
        self.lookup = read_lookup(table, "id")
        columns = {name: one_array(table, name) for name in table.column_names}
        self._features = {name: numbers(of) for name, of in columns.items() if name.startswith("item.")}
        self._display = {name.removeprefix(DISPLAY): of for name, of in columns.items() if name.startswith(DISPLAY)}
        self._numbers = None if self.lookup.is_text else numbers(self.lookup.values)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lookup.values)

    def gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return a feature of the items in these rows."""
        return self._features[name].take(rows, axis=0)

    def extremes(self) -> Rows:
        """Return the rows of the items that have the smallest or the largest id of a feature."""
        ids = [of for of in self._features.values() if len(of) and np.issubdtype(of.dtype, np.integer)]
        return np.unique(np.array([row for of in ids for row in (of.argmin(), of.argmax())], np.int64))

    @property
    def features(self) -> list[str]:
        """The names of the features, such as ``item.author``."""
        return list(self._features)

    def display(self, rows: Rows) -> dict[str, list[Any]]:
        """Return the attributes that are shown to people of the items in rows (n,), None for the row -1."""
        found = {name: values.take(np.maximum(rows, 0)).to_pylist() for name, values in self._display.items()}
        for values in found.values():
            for place in np.flatnonzero(rows == NOWHERE).tolist():
                values[place] = None
        return found

    def ids(self, rows: Rows) -> list[Id]:
        """Return the ids of the items in rows (n,)."""
        found: list[Id] = (
            self.lookup.values.take(rows).to_pylist() if self._numbers is None else self._numbers[rows].tolist()
        )
        return found

    def id_array(self, rows: Rows) -> pa.Array:
        """Return the ids of the items in rows (n,) as an Arrow array."""
        return self.lookup.values.take(pa.array(rows, pa.int64()))

    def rows(self, ids: Sequence[Any]) -> Rows:
        """Return the rows of items, -1 for those that the bundle does not have."""
        expected = f"an id of an item, {'text' if self.lookup.is_text else 'a whole number'}"
        return self.lookup.find(values_like(self.lookup, ids, expected))

    def find(self, values: Sequence[Any]) -> Rows:
        """Return the rows of items, -1 for values that are not ids of items of the bundle."""
        try:
            return self.rows(values)
        except BadValueError:
            if len(values) == 1:
                return np.array([NOWHERE])
            return np.concatenate([self.find([value]) for value in values])
