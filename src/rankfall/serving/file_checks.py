"""Checks of the graphs and indexes of a bundle before onnxruntime and faiss read them.

Both formats can do more than a bundle needs: an index can map any file of the machine into memory, and a graph can read
other files, loop for years or use code of other libraries. Only what ``rankfall export`` writes is accepted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rankfall.serving.memory_files import MemoryFile

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
        raise ValueError(f"path: {file.path} is not a graph that 'rankfall export' writes: it has {why}")

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
        raise ValueError(f"path: {file.path} is not a graph: it is damaged or cut off") from None


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
    ids = np.concatenate([reader.ids_of_list(size, 4 * dimensions) for size in sizes.tolist()])
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
        raise ValueError(f"path: {self._file.path} is not an index that 'rankfall export' writes: it has {why}")

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

    def ids_of_list(self, size: int, bytes_per_vector: int) -> NDArray[np.int64]:
        self.skip(size * bytes_per_vector)
        return self.numbers(size)
