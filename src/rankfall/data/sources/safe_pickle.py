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
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    Pairs = list[tuple[str | int, Any]]

# Names that files may contain. They are never looked up; they only identify the arguments that follow.
_NAMES = {
    "numpy.core.multiarray._reconstruct": "reconstruct",
    "numpy._core.multiarray._reconstruct": "reconstruct",
    "numpy.core.multiarray.scalar": "scalar",
    "numpy._core.multiarray.scalar": "scalar",
    "numpy.core.numeric._frombuffer": "frombuffer",  # protocol 5
    "numpy._core.numeric._frombuffer": "frombuffer",
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "_codecs.encode": "encode",  # bytes before protocol 3
    "__builtin__.bytes": "bytes",  # the same, of length 0
    "builtins.bytes": "bytes",
}
_NUMBERS = re.compile(r"(b1|[iu][1248]|f[248])")
_BYTE_ORDERS = {"<", ">", "|", "="}
_LONGEST_AXIS = 2**31
_MOST_AXES = 32

# The known operations: those that push their argument, a constant or a part, then all others.
_VALUES = {"BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "LONG4"}
_VALUES |= {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"BINGET", "LONG_BINGET"}
_OTHERS = {"PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "TUPLE", "APPEND", "APPENDS", "SETITEM"}
_OTHERS |= {"SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
_KNOWN = {*_VALUES, *_BYTES, *_CONSTANTS, *_TUPLES, *_PUTS, *_GETS, *_OTHERS}
_OPERATIONS = {operation.code.encode("latin-1"): operation for operation in pickletools.opcodes}


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
        operations = _Operations(file, path)
        needed: set[int] = set()
        with suppress(ValueError):  # errors are raised by the second pass, which has better messages
            needed.update(argument for name, argument in operations if name in _GETS)
        yield from _Machine(operations, needed).run()


class _Operations:
    """The operations of a file, each with its argument, which pickletools reads."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self._size = file, path, path.stat().st_size

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        self._file.seek(0)
        if self._file.read(1) != b"\x80":
            self.refuse("expected a pickle of protocol 2 or later")
        self._file.seek(0)
        name = ""
        while name != "STOP":
            operation = _OPERATIONS.get(code := self.read(1))
            if operation is None or operation.name not in _KNOWN:
                self.refuse(f"the operation {operation.name if operation else repr(code)} is not allowed")
            name = operation.name
            argument: Any = None
            if name == "GLOBAL":
                argument = f"{self._line()}.{self._line()}"
            elif operation.arg is not None:
                try:
                    argument = operation.arg.reader(self)  # type: ignore[arg-type]  # it needs `read` alone
                except UnicodeDecodeError:
                    self.refuse("found text that is not UTF-8")
                except ValueError:
                    self.refuse("the pickle is damaged or cut off")
            if name == "FRAME" and argument > self._size - self._file.tell():
                self.refuse("the pickle is damaged or cut off")
            yield name, argument
        if self._file.read(1):
            self.refuse("found data after the end of the pickle")

    def read(self, count: int) -> bytes:
        """Read bytes; a claim beyond the size of the file is wrong, and no memory is allocated for it."""
        data = self._file.read(count) if 0 <= count <= self._size else b""
        if len(data) != count:
            raise ValueError(self._message("the pickle is damaged or cut off"))
        return data

    def _line(self) -> str:
        line = self._file.readline(1000)
        if not line.endswith(b"\n"):
            self.refuse("the pickle is damaged or cut off")
        return line[:-1].decode("utf-8", "replace")

    def _message(self, why: str) -> str:
        return f"{self._path}: {why} (byte {self._file.tell():,})"

    def refuse(self, why: str) -> NoReturn:
        raise ValueError(self._message(why)) from None


@dataclass(eq=False)
class _Part:
    """An intermediate value of an array: a name, bytes, a type, an array once it is built, or a tuple of parts."""

    kind: str
    value: Any = None


class _Machine:
    """Executes operations on a stack of values; a mark puts the stack aside and begins a new one."""

    def __init__(self, operations: _Operations, needed: set[int]) -> None:
        self._operations, self._refuse = operations, operations.refuse
        self._needed = needed  # the memo indices that the file refers to
        self._memo: dict[int, Any] = {}
        self._memoized = 0
        self._aside: list[list[Any]] = []
        self._stack: list[Any] = []
        self._root: dict[Any, Any] | None = None
        self._pairs: Pairs = []  # entries of the outermost dict that were not yielded yet

    def run(self) -> Iterator[Pairs]:
        for name, argument in self._operations:
            try:
                self._perform(name, argument)
            except IndexError:
                self._refuse("the pickle takes what is not there")
            if self._pairs:
                pairs, self._pairs = self._pairs, []
                yield pairs

    def _perform(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _PUTS:
            index = self._memoized if name == "MEMOIZE" else argument
            self._memoized += 1
            value = stack[-1]
            if index in self._needed:
                self._memo[index] = value
        elif name in _TUPLES:
            stack.append(_tuple_of(self._last(_TUPLES[name])))
        elif name in _GETS:
            if argument not in self._memo:
                self._refuse("the pickle takes what is not there")
            value = self._memo[argument]
            is_built = isinstance(value, _Part) and value.kind == "array" and value.value is not None
            stack.append(value.value if is_built else value)
        elif name in _BYTES:
            stack.append(_Part("bytes", argument))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        else:
            self._change(name, argument)

    def _change(self, name: str, argument: Any) -> None:
        """Perform an operation that combines values."""
        match name:
            case "PROTO" if not 2 <= argument <= 5:
                self._refuse(f"found pickle protocol {argument}, expected 2 to 5")
            case "STOP":
                if self._root is None or self._aside or len(self._stack) != 1 or self._stack[0] is not self._root:
                    self._refuse("expected exactly one dict")
            case "MARK":
                self._aside.append(self._stack)
                self._stack = []
            case "EMPTY_DICT":
                self._stack.append({})
                self._root = self._stack[-1] if self._root is None else self._root
            case "EMPTY_LIST":
                self._stack.append([])
            case "TUPLE":
                values = self._to_mark()
                self._stack.append(_tuple_of(values))
            case "APPEND" | "APPENDS":
                self._extend(self._last(1) if name == "APPEND" else self._to_mark())
            case "SETITEM" | "SETITEMS":
                self._update(self._last(2) if name == "SETITEM" else self._to_mark())
            case "GLOBAL":
                self._name(argument)
            case "STACK_GLOBAL":
                module, of = self._last(2)
                if not (isinstance(module, str) and isinstance(of, str)):
                    self._refuse("the pickle asks for an object without a name")
                self._name(f"{module}.{of}")
            case "REDUCE":
                self._reduce(*self._last(2))
            case "BUILD":
                self._build(*self._last(2))

    def _to_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._aside.pop()
        return values

    def _last(self, count: int) -> list[Any]:
        values = self._stack[-count:]
        if len(values) != count:
            raise IndexError
        del self._stack[-count:]
        return values

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            self._refuse("a value is added to something that is not a list")
        for value in values:
            self._check(value)
        target += values

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

    def _name(self, name: str) -> None:
        if name not in _NAMES:
            self._refuse(f"the pickle asks for {_shown(name)}, which is not allowed")
        self._stack.append(_Part("name", name))

    def _reduce(self, function: object, arguments: Any) -> None:
        name = function.value if isinstance(function, _Part) and function.kind == "name" else _shown(function)
        values = arguments.value if isinstance(arguments, _Part) and arguments.kind == "tuple" else arguments
        made: Any
        match _NAMES.get(name), values:
            case "reconstruct", (_Part("name", "numpy.ndarray"), tuple(), _Part("bytes")):
                made = _Part("array")
            case "dtype", (str() as code, False | 0, True | 1):  # not aligned, a copy
                if not _NUMBERS.fullmatch(code):
                    self._refuse(
                        f"found an array of type {_shown(code)}, expected whole numbers, floats or truth values"
                    )
                made = _Part("type", np.dtype(code))
            case "frombuffer", (_Part("bytes", data), _Part("type", kind), tuple() as shape, str() as order):
                made = self._array(data, kind, shape, order)
            case "scalar", (_Part("type", kind), _Part("bytes", data)):
                made = self._array(data, kind, (), "C").item()
            case "encode", (str() as text, "latin1" | "latin-1"):
                if any(character > "\xff" for character in text):
                    self._refuse("found invalid bytes")
                made = _Part("bytes", text.encode("latin-1"))
            case "bytes", ():
                made = _Part("bytes", b"")
            case _:
                self._refuse(f"the pickle calls {_shown(name)} in a way that does not create an array of numbers")
        self._stack.append(made)

    def _build(self, target: object, state: Any) -> None:
        values = state.value if isinstance(state, _Part) and state.kind == "tuple" else state
        match target, values:
            case _Part("array", None), (
                int(),
                tuple() as shape,
                _Part("type", kind),
                int() as order,
                _Part("bytes", data),
            ):
                target.value = self._array(data, kind, shape, "F" if order else "C")
                self._stack.append(target.value)
            case _Part("type", kind), (int(), str() as order, None, None, None, -1, -1, 0) if order in _BYTE_ORDERS:
                target.value = kind.newbyteorder(order)
                self._stack.append(target)
            case _:
                self._refuse("the pickle sets the state of something that is not an array of numbers")

    def _array(self, data: bytes, kind: np.dtype[Any], shape: tuple[Any, ...], order: str) -> NDArray[Any]:
        if (
            order not in ("C", "F")
            or len(shape) > _MOST_AXES
            or any(type(n) is not int or not 0 <= n < _LONGEST_AXIS for n in shape)
        ):
            self._refuse("found an array with an invalid shape")
        if len(data) != math.prod(shape) * kind.itemsize:
            self._refuse(f"found {len(data):,} bytes for an array, which its shape contradicts")
        return np.frombuffer(data, kind).reshape(shape, order="F" if order == "F" else "C")


def _tuple_of(values: list[Any]) -> Any:
    made = tuple(values)
    return _Part("tuple", made) if any(isinstance(value, _Part) for value in made) else made


def _shown(value: object) -> str:
    """Return a short description of any value."""
    if isinstance(value, _Part):
        value = {"name": value.value, "bytes": "bytes"}.get(value.kind, "a part of an array")
    text = value if isinstance(value, str) else type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."
