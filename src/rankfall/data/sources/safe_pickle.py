"""Read dictionaries of NumPy arrays from untrusted pickle files.

A pickle is a program, and :mod:`pickle` runs it with access to all installed modules. This reader implements only the
operations that numbers, text, lists, tuples, dicts and NumPy arrays of numbers need (protocols 2 to 5) and builds these
values itself: it imports and calls nothing that a file names. Everything else is refused with the name in the file.
Memory for a claimed size is allocated only after the bytes were read.
"""

from __future__ import annotations

import math
import pickletools
import re
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    Pairs = list[tuple[str | int, Any]]

# Names that files may contain. They are never looked up; they only identify the arguments that follow.
_RECONSTRUCT = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
_SCALAR = {"numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"}
_FROM_BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}  # protocol 5
_NDARRAY = {"numpy.ndarray"}
_DTYPE = {"numpy.dtype"}
_ENCODE = {"_codecs.encode"}  # bytes before protocol 3
_BYTES = {"__builtin__.bytes", "builtins.bytes"}  # the same, of length 0
_ALLOWED = _RECONSTRUCT | _SCALAR | _FROM_BUFFER | _NDARRAY | _DTYPE | _ENCODE | _BYTES

_NUMBERS = re.compile(r"(b1|[iu][1248]|f[248])")
_BYTE_ORDERS = {"<", ">", "|", "="}
_ORDERS = {"C", "F"}
_LONGEST_AXIS = 2**31
_MOST_AXES = 32


def read_dict(path: Path) -> dict[str | int, Any]:
    """Read the dict in a pickle file.

    Raises:
        ValueError: If the file is not a pickle of such a dict.
    """
    return {key: value for pairs in read_pairs(path) for key, value in pairs}


def read_pairs(path: Path) -> Iterator[Pairs]:
    """Iterate over the keys and values of the dict in a pickle file, in the portions written (usually 1,000).

    Only values that the rest of the file refers to stay in memory, so the file may be larger than memory.

    Raises:
        ValueError: If the file is not a pickle of such a dict.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        needed: set[int] = set()
        with suppress(ValueError):  # errors are raised by the second pass, which has better messages
            needed.update(index for operation, index in _Operations(file, path, size) if operation in _GETS)
        file.seek(0)
        yield from _Machine(_Operations(file, path, size), needed).run()


# --- operations -------------------------------------------------------------------------------------------------

_LINES = "lines"  # an argument of two lines of text
# The known operations with their argument: a struct format, or the format of the length of the content and a star.
_ARGUMENTS = {
    "PROTO": "B", "FRAME": "<Q", "STOP": "", "MARK": "",
    "EMPTY_DICT": "", "EMPTY_LIST": "", "EMPTY_TUPLE": "", "TUPLE": "", "TUPLE1": "", "TUPLE2": "", "TUPLE3": "",
    "APPEND": "", "APPENDS": "", "SETITEM": "", "SETITEMS": "",
    "NONE": "", "NEWTRUE": "", "NEWFALSE": "", "BINFLOAT": ">d",
    "BININT": "<i", "BININT1": "B", "BININT2": "<H", "LONG1": "B*", "LONG4": "<i*",
    "SHORT_BINUNICODE": "B*", "BINUNICODE": "<I*", "BINUNICODE8": "<Q*",
    "SHORT_BINBYTES": "B*", "BINBYTES": "<I*", "BINBYTES8": "<Q*", "BYTEARRAY8": "<Q*",
    "BINPUT": "B", "LONG_BINPUT": "<I", "MEMOIZE": "", "BINGET": "B", "LONG_BINGET": "<I",
    "GLOBAL": _LINES, "STACK_GLOBAL": "", "REDUCE": "", "BUILD": "",
}  # fmt: skip
_GETS = {"BINGET", "LONG_BINGET"}
_CODES = {operation.code.encode("latin-1"): operation.name for operation in pickletools.opcodes}
_TABLE = {
    code: (name, struct.Struct(_ARGUMENTS[name].rstrip("*")) if _ARGUMENTS[name] != _LINES else None)
    for code, name in _CODES.items()
    if name in _ARGUMENTS
}
_WITH_CONTENT = {name for name, argument in _ARGUMENTS.items() if argument.endswith("*")}


class _Operations:
    """The operations of a file, each with its argument."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        if self._file.read(1) != b"\x80":
            self.refuse("expected a pickle of protocol 2 or later")
        self._file.seek(0)
        name = ""
        while name != "STOP":
            code = self._read(1)
            if code not in _TABLE:
                self.refuse(f"the operation {_CODES.get(code, repr(code))} is not allowed")
            name, argument = _TABLE[code]
            if argument is None:
                yield name, (self._line(), self._line())
            elif argument.size == 0:
                yield name, None
            else:
                (value,) = argument.unpack(self._read(argument.size))
                if name == "FRAME" and value > self._size - self._file.tell():
                    self.refuse("the pickle is damaged or cut off")
                yield name, self._read(value) if name in _WITH_CONTENT else value
        if self._file.read(1):
            self.refuse("found data after the end of the pickle")

    def _read(self, count: int) -> bytes:
        # a claim beyond the size of the file is wrong; no memory is allocated for it
        data = self._file.read(count) if 0 <= count <= self._size else b""
        if len(data) != count:
            self.refuse("the pickle is damaged or cut off")
        return data

    def _line(self) -> str:
        line = self._file.readline(1000)
        if not line.endswith(b"\n"):
            self.refuse("the pickle is damaged or cut off")
        return line[:-1].decode("utf-8", "replace")

    def refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self._path}: {why} (byte {self._file.tell():,})")


# --- values -----------------------------------------------------------------------------------------------------


class _Part:
    """An intermediate value of an array, which is not a value of the result."""

    def __repr__(self) -> str:
        return "a part of an array"


class _Name(_Part):
    """An allowed name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class _Data(_Part):
    """Bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return "bytes"


class _Type(_Part):
    """The type of the numbers of an array; the byte order is set later."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.dtype = np.dtype(code)


class _Unbuilt(_Part):
    """An array whose content follows, and the memo entries that refer to it."""

    def __init__(self) -> None:
        self.places: list[int] = []


class _Arguments(_Part):
    """A tuple that contains parts."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values


class _Machine:
    """Executes operations on a stack of values; a mark puts the stack aside and begins a new one."""

    def __init__(self, operations: _Operations, needed: set[int]) -> None:
        self._operations = operations
        self._needed = needed  # the memo indices that the file refers to
        self._memo: dict[int, Any] = {}
        self._memoized = 0
        self._aside: list[list[Any]] = []
        self._stack: list[Any] = []
        self._root: dict[Any, Any] | None = None
        self._pairs: Pairs = []  # entries of the outermost dict that were not yielded yet

    def run(self) -> Iterator[Pairs]:
        perform: dict[str, Callable[[Any], None]] = {name: getattr(self, f"_{name.lower()}") for name in _ARGUMENTS}
        for name, argument in self._operations:
            try:
                perform[name](argument)
            except IndexError:
                self._refuse("the pickle takes what is not there")
            if self._pairs:
                pairs, self._pairs = self._pairs, []
                yield pairs

    def _refuse(self, why: str) -> NoReturn:
        self._operations.refuse(why)

    def _proto(self, version: int) -> None:
        if not 2 <= version <= 5:
            self._refuse(f"found pickle protocol {version}, expected 2 to 5")

    def _frame(self, _: int) -> None:
        pass  # frames only help to read slow files; one that is too short does not matter

    def _stop(self, _: None) -> None:
        if self._root is None or self._aside or len(self._stack) != 1 or self._stack[0] is not self._root:
            self._refuse("expected exactly one dict")

    # containers

    def _mark(self, _: None) -> None:
        self._aside.append(self._stack)
        self._stack = []

    def _to_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._aside.pop()
        return values

    def _empty_dict(self, _: None) -> None:
        made: dict[Any, Any] = {}
        if self._root is None:
            self._root = made
        self._stack.append(made)

    def _empty_list(self, _: None) -> None:
        self._stack.append([])

    def _empty_tuple(self, _: None) -> None:
        self._stack.append(())

    def _push_tuple(self, values: list[Any]) -> None:
        made = tuple(values)
        self._stack.append(_Arguments(made) if any(isinstance(value, _Part) for value in made) else made)

    def _tuple(self, _: None) -> None:
        self._push_tuple(self._to_mark())

    def _last(self, count: int) -> list[Any]:
        values = self._stack[-count:]
        if len(values) != count:
            raise IndexError
        del self._stack[-count:]
        return values

    def _tuple1(self, _: None) -> None:
        self._push_tuple(self._last(1))

    def _tuple2(self, _: None) -> None:
        self._push_tuple(self._last(2))

    def _tuple3(self, _: None) -> None:
        self._push_tuple(self._last(3))

    def _append(self, _: None) -> None:
        self._extend(self._last(1))

    def _appends(self, _: None) -> None:
        self._extend(self._to_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            self._refuse("a value is added to something that is not a list")
        for value in values:
            self._check(value)
        target += values

    def _setitem(self, _: None) -> None:
        self._update(self._last(2))

    def _setitems(self, _: None) -> None:
        self._update(self._to_mark())

    def _update(self, flat: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(flat) % 2:
            self._refuse("a value is assigned to a key of something that is not a dict")
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        for key, value in pairs:
            if not isinstance(key, str | int):
                self._refuse(f"found {_shown(key)} as a key, expected whole numbers or text")
            self._check(value)
        if target is self._root:
            self._pairs += pairs
        else:
            target.update(pairs)

    def _check(self, value: object) -> None:
        if isinstance(value, _Part):
            self._refuse(f"found {_shown(value)} as a value, expected numbers, text, lists, tuples, dicts and arrays")

    # plain values

    def _none(self, _: None) -> None:
        self._stack.append(None)

    def _newtrue(self, _: None) -> None:
        self._stack.append(True)

    def _newfalse(self, _: None) -> None:
        self._stack.append(False)

    def _push(self, value: object) -> None:
        self._stack.append(value)

    _binint = _binint1 = _binint2 = _binfloat = _push

    def _long1(self, data: bytes) -> None:
        self._stack.append(int.from_bytes(data, "little", signed=True))

    _long4 = _long1

    def _text(self, data: bytes) -> None:
        try:
            self._stack.append(data.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            self._refuse("found text that is not UTF-8")

    _short_binunicode = _binunicode = _binunicode8 = _text

    def _raw(self, data: bytes) -> None:
        self._stack.append(_Data(data))

    _short_binbytes = _binbytes = _binbytes8 = _bytearray8 = _raw

    # references to earlier values

    def _memoize(self, _: None) -> None:
        self._binput(self._memoized)

    def _binput(self, index: int) -> None:
        value = self._stack[-1]
        self._memoized += 1
        if index in self._needed:
            self._memo[index] = value
            if isinstance(value, _Unbuilt):
                value.places.append(index)

    _long_binput = _binput

    def _binget(self, index: int) -> None:
        if index not in self._memo:
            self._refuse("the pickle takes what is not there")
        self._stack.append(self._memo[index])

    _long_binget = _binget

    # arrays

    def _global(self, lines: tuple[str, str]) -> None:
        name = ".".join(lines)
        if name not in _ALLOWED:
            self._refuse(f"the pickle asks for {_shown(name)}, which is not allowed")
        self._stack.append(_Name(name))

    def _stack_global(self, _: None) -> None:
        module, name = self._last(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            self._refuse("the pickle asks for an object without a name")
        self._global((module, name))

    def _reduce(self, _: None) -> None:
        function, arguments = self._last(2)
        name = function.name if isinstance(function, _Name) else _shown(function)
        values = arguments.values if isinstance(arguments, _Arguments) else arguments
        match values:
            case (_Name() as of, tuple(), _Data()) if name in _RECONSTRUCT and of.name in _NDARRAY:
                made: Any = _Unbuilt()
            case (str() as code, False | 0, True | 1) if name in _DTYPE:  # not aligned, a copy
                made = self._number_type(code)
            case (_Data() as data, _Type() as kind, tuple() as shape, str() as order) if name in _FROM_BUFFER:
                made = self._array(data, kind, shape, order)
            case (_Type() as kind, _Data() as data) if name in _SCALAR:
                made = self._array(data, kind, (), "C").item()
            case (str() as text, "latin1" | "latin-1") if name in _ENCODE:
                made = self._encoded(text)
            case () if name in _BYTES:
                made = _Data(b"")
            case _:
                self._refuse(f"the pickle calls {_shown(name)} in a way that does not create an array of numbers")
        self._stack.append(made)

    def _build(self, _: None) -> None:
        target, state = self._last(2)
        values = state.values if isinstance(state, _Arguments) else state
        match target, values:
            case _Unbuilt(), (int(), tuple() as shape, _Type() as kind, int() as fortran, _Data() as data):
                made: Any = self._array(data, kind, shape, "F" if fortran else "C")
                for place in target.places:
                    self._memo[place] = made
            case _Type(), (int(), str() as order, None, None, None, -1, -1, 0) if order in _BYTE_ORDERS:
                target.dtype = np.dtype(order + target.code)
                made = target
            case _:
                self._refuse("the pickle sets the state of something that is not an array of numbers")
        self._stack.append(made)

    def _number_type(self, code: str) -> _Type:
        if not _NUMBERS.fullmatch(code):
            self._refuse(f"found an array of type {_shown(code)}, expected whole numbers, floats or truth values")
        return _Type(code)

    def _encoded(self, text: str) -> _Data:
        try:
            return _Data(text.encode("latin-1"))
        except UnicodeEncodeError:
            self._refuse("found invalid bytes")

    def _array(self, data: _Data, kind: _Type, shape: tuple[Any, ...], order: str) -> NDArray[Any]:
        if (
            order not in _ORDERS
            or len(shape) > _MOST_AXES
            or any(type(n) is not int or not 0 <= n < _LONGEST_AXIS for n in shape)
        ):
            self._refuse("found an array with an invalid shape")
        if len(data.data) != math.prod(shape) * kind.dtype.itemsize:
            self._refuse(f"found {len(data.data):,} bytes for an array, which its shape contradicts")
        return np.frombuffer(data.data, kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _shown(value: object) -> str:
    """Return a short description of any value."""
    text = value if isinstance(value, str) else repr(value) if isinstance(value, _Part) else type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."
