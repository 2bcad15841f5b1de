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
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from rankfall._errors import RankfallError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    Pairs = list[tuple[str | int, Any]]

# Names that files may contain. They are never looked up; they only identify the arguments that follow.
_NAMES = {
    "numpy.core.multiarray._reconstruct": "reconstruct",
    "numpy.core.multiarray.scalar": "scalar",
    "numpy.core.numeric._frombuffer": "frombuffer",  # protocol 5
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "_codecs.encode": "encode",  # bytes before protocol 3
    "__builtin__.bytes": "bytes",  # the same, of length 0
    "builtins.bytes": "bytes",
}
_NUMBERS = re.compile(r"(b1|[iu][1248]|f[248])")
_BYTE_ORDERS = {"<", ">", "|", "="}
_LONGEST_AXIS, _MOST_AXES = 2**31, 32

# The known operations: those that push their argument or a constant, those of the memo, then all others.
_VALUES = {"BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "LONG4"}
_VALUES |= {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUTS, _GETS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"BINGET", "LONG_BINGET"}
_OTHERS = {"PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_OTHERS |= {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
_KNOWN = {*_VALUES, *_BYTES, *_CONSTANTS, *_PUTS, *_GETS, *_OTHERS}


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
        pickled = _PickleFile(file, path)
        needed: set[int] = set()
        with suppress(ValueError):  # the second pass raises errors with better messages
            needed.update(argument for name, argument in pickled.operations() if name in _GETS)
        yield from _Machine(pickled, needed).run()


class _PickleFile:
    """The operations in a file. No read for a claimed size is larger than the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self._size = file, path, path.stat().st_size

    def read(self, count: int) -> bytes:
        return self._file.read(count) if 0 <= count <= self._size else b""

    def readline(self) -> bytes:
        return self._file.readline(1000)

    def operations(self) -> Iterator[tuple[str, Any]]:
        """Yield the name of each operation and its argument, which pickletools reads."""
        self._file.seek(0)
        if self._file.read(1) != b"\x80":
            self.refuse("expected a pickle of protocol 2 or later")
        self._file.seek(0)
        operations = pickletools.genops(cast("BinaryIO", self))
        name = ""
        while name != "STOP":
            try:
                operation, argument, _ = next(operations)
            except (ValueError, OverflowError) as error:
                self.refuse(f"the pickle is damaged or cut off: {error}")
            if (name := operation.name) not in _KNOWN:
                self.refuse(f"the operation {name} is not allowed")
            if name == "FRAME" and cast("int", argument) > self._size - self._file.tell():
                self.refuse("the pickle is damaged or cut off")
            yield name, argument
        if self._file.read(1):
            self.refuse("found data after the end of the pickle")

    def refuse(self, why: str) -> NoReturn:
        raise RankfallError(f"{self._path}: {why} (byte {self._file.tell():,})") from None


@dataclass(eq=False)
class _Part:
    """An intermediate value of an array: a name, bytes, a type, an array once it is built, or a tuple of parts."""

    kind: str
    value: Any = None


class _Machine:
    """Executes operations on a stack of values; a mark puts the stack aside and begins a new one."""

    def __init__(self, file: _PickleFile, needed: set[int]) -> None:
        self._file, self._refuse = file, file.refuse
        self._needed = needed  # the memo indices that the file refers to
        self._memo: dict[int, Any] = {}
        self._aside: list[list[Any]] = []
        self._stack: list[Any] = []

    def run(self) -> Iterator[Pairs]:
        """Perform all operations, and yield the entries of the outermost dict, the first one."""
        root: dict[Any, Any] | None = None
        memoized = 0
        try:
            for name, argument in self._file.operations():
                if name in _PUTS:
                    index = memoized if name == "MEMOIZE" else argument
                    memoized += 1
                    value = self._stack[-1]
                    if index in self._needed:
                        self._memo[index] = value
                elif name.startswith("SETITEM"):
                    pairs = self._pairs(self._last(2) if name == "SETITEM" else self._to_mark())
                    if (target := self._stack[-1]) is root:
                        yield pairs
                    else:
                        target.update(pairs)
                elif name == "EMPTY_DICT":
                    self._stack.append({})
                    root = self._stack[-1] if root is None else root
                elif name == "STOP":
                    if root is None or self._aside or len(self._stack) != 1 or self._stack[0] is not root:
                        self._refuse("expected exactly one dict")
                else:
                    self._perform(name, argument)
        except (IndexError, KeyError):
            self._refuse("the pickle takes what is not there")

    def _perform(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _BYTES:
            stack.append(_Part("bytes", argument))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _GETS:
            value = self._memo[argument]
            is_built = isinstance(value, _Part) and value.kind == "array" and value.value is not None
            stack.append(value.value if is_built else value)
        elif name == "PROTO":
            if not 2 <= argument <= 5:
                self._refuse(f"found pickle protocol {argument}, expected 2 to 5")
        elif name == "MARK":
            self._aside.append(stack)
            self._stack = []
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name.startswith("TUPLE"):
            made = tuple(self._to_mark() if name == "TUPLE" else self._last(int(name[-1])))
            has_parts = any(isinstance(value, _Part) for value in made)
            self._stack.append(_Part("tuple", made) if has_parts else made)
        elif name.startswith("APPEND"):
            values = self._last(1) if name == "APPEND" else self._to_mark()
            target = self._stack[-1]
            if type(target) is not list:
                self._refuse("a value is added to something that is not a list")
            target += map(self._checked, values)
        elif name == "GLOBAL":
            self._push_name(argument.replace(" ", "."))
        elif name == "STACK_GLOBAL":
            module, of = self._last(2)
            if not (isinstance(module, str) and isinstance(of, str)):
                self._refuse("the pickle asks for an object without a name")
            self._push_name(f"{module}.{of}")
        elif name == "REDUCE":
            self._reduce(*self._last(2))
        elif name == "BUILD":
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

    def _pairs(self, flat: list[Any]) -> Pairs:
        """Return keys and values that are assigned to the dict on the top of the stack."""
        if type(self._stack[-1]) is not dict or len(flat) % 2:
            self._refuse("a value is assigned to a key of something that is not a dict")
        for key in flat[::2]:
            if not isinstance(key, str | int):
                self._refuse(f"found {_shown(key)} as a key, expected whole numbers or text")
        return list(zip(flat[::2], map(self._checked, flat[1::2]), strict=True))

    def _checked(self, value: Any) -> Any:
        if isinstance(value, _Part):
            self._refuse(f"found {_shown(value)} as a value, expected numbers, text, lists, tuples, dicts and arrays")
        return value

    def _push_name(self, name: str) -> None:
        if name.replace("numpy._core.", "numpy.core.") not in _NAMES:
            self._refuse(f"the pickle asks for {_shown(name)}, which is not allowed")
        self._stack.append(_Part("name", name.replace("numpy._core.", "numpy.core.")))

    def _reduce(self, function: object, arguments: Any) -> None:
        name = function.value if isinstance(function, _Part) and function.kind == "name" else _shown(function)
        values = arguments.value if isinstance(arguments, _Part) and arguments.kind == "tuple" else arguments
        made: Any
        match _NAMES.get(name), values:
            case "reconstruct", (_Part("name", "numpy.ndarray"), tuple(), _Part("bytes")):
                made = _Part("array")
            case "dtype", (str() as code, False | 0, True | 1):  # not aligned, a copy
                if not _NUMBERS.fullmatch(code):
                    self._refuse(f"found an array of type {_shown(code)}, expected integers, floats or truth values")
                made = _Part("type", np.dtype(code))
            case "frombuffer", (_Part("bytes", data), _Part("type", kind), tuple() as shape, str() as order):
                made = self._array(data, kind, shape, order)
            case "scalar", (_Part("type", kind), _Part("bytes", data)):
                made = self._array(data, kind, (), "C").item()
            case "encode", (str() as text, "latin1" | "latin-1") if max(text, default="") <= "\xff":
                made = _Part("bytes", text.encode("latin-1"))
            case "bytes", ():
                made = _Part("bytes", b"")
            case _:
                self._refuse(f"the pickle calls {_shown(name)} in a way that does not create an array of numbers")
        self._stack.append(made)

    def _build(self, target: object, state: Any) -> None:
        values = state.value if isinstance(state, _Part) and state.kind == "tuple" else state
        match target, values:
            case (
                _Part("array", None),
                (int(), tuple() as shape, _Part("type", kind), int() as order, _Part("bytes", data)),
            ):
                target.value = self._array(data, kind, shape, "F" if order else "C")
                self._stack.append(target.value)
            case _Part("type", kind), (int(), str() as order, None, None, None, -1, -1, 0) if order in _BYTE_ORDERS:
                target.value = kind.newbyteorder(order)
                self._stack.append(target)
            case _:
                self._refuse("the pickle sets the state of something that is not an array of numbers")

    def _array(self, data: bytes, kind: np.dtype[Any], shape: tuple[Any, ...], order: str) -> NDArray[Any]:
        is_shape = len(shape) <= _MOST_AXES and all(type(n) is int and 0 <= n < _LONGEST_AXIS for n in shape)
        if order not in ("C", "F") or not is_shape:
            self._refuse("found an array with an invalid shape")
        if len(data) != math.prod(shape) * kind.itemsize:
            self._refuse(f"found {len(data):,} bytes for an array, which its shape contradicts")
        return np.frombuffer(data, kind).reshape(shape, order="F" if order == "F" else "C")


def _shown(value: object) -> str:
    """Return a short description of any value."""
    if isinstance(value, _Part):
        value = {"name": value.value, "bytes": "bytes"}.get(value.kind, "a part of an array")
    text = value if isinstance(value, str) else type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."
