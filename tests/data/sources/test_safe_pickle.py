"""The reader of pickles gives what pickle gives for data, and nothing but an error for everything else."""

from __future__ import annotations

import builtins
import collections
import datetime
import io
import itertools
import os
import pickle
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.data.sources.safe_pickle import read_dict, read_pairs

if TYPE_CHECKING:
    from pathlib import Path

PROTOCOLS = [2, 3, 4, 5]

keys = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=5))
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=10)
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)


def read_bytes(folder: Path, content: bytes) -> dict[str | int, Any]:
    path = folder / "found.pkl"
    path.write_bytes(content)
    return read_dict(path)


@settings(max_examples=150)
@given(content=st.dictionaries(keys, values, max_size=5), protocol=st.sampled_from(PROTOCOLS))
def test_it_reads_what_pickle_reads(tmp_path_factory: Any, content: dict[Any, Any], protocol: int) -> None:
    folder = tmp_path_factory.mktemp("pickles")
    found = read_bytes(folder, pickle.dumps(content, protocol))
    assert found == content
    assert repr(found) == repr(content)  # True is not 1


@pytest.mark.parametrize("kind", ["?", "i1", "<i2", ">i4", "<i8", "<u8", ">f8", "<f4", "<f2"])
def test_it_reads_arrays_of_numbers(tmp_path: Path, kind: str) -> None:
    shapes: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3), (0, 8), (2, 3, 4))
    for protocol, shape in itertools.product(PROTOCOLS, shapes):
        array = np.random.default_rng(0).integers(0, 2, shape).astype(kind)
        some = np.asarray(array[..., ::2] if shape else array)
        forms = {"plain": array, "turned": np.asarray(array.T), "sparse": some}
        found = read_bytes(tmp_path, pickle.dumps({7: forms}, protocol))
        for key, expected in forms.items():
            got, case = found[7][key], f"{key}, {shape}, protocol {protocol}"
            assert got.dtype == expected.dtype, case
            np.testing.assert_array_equal(got, expected, case)


def test_it_reads_scalars_as_numbers(tmp_path: Path) -> None:
    content = {"a": np.int64(-7), "b": np.float32(0.5), "c": np.bool_(True), "d": [np.uint8(255)]}
    assert read_bytes(tmp_path, pickle.dumps(content)) == {"a": -7, "b": 0.5, "c": True, "d": [255]}


def test_arrays_of_old_numpy_releases_have_another_module_name(tmp_path: Path) -> None:
    content = {"a": np.arange(6).reshape(2, 3), "b": np.int32(3)}
    old = pickle.dumps(content, 2).replace(b"numpy._core", b"numpy.core")
    np.testing.assert_array_equal(read_bytes(tmp_path, old)["a"], content["a"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_stands_in_a_file_once_may_be_used_often(tmp_path: Path, protocol: int) -> None:
    shared = np.arange(4)
    names = ["x", "y"]
    content = {number: {"array": shared, "names": names, "pair": (shared, number)} for number in range(2500)}
    found = read_bytes(tmp_path, pickle.dumps(content, protocol))
    assert list(found) == list(range(2500))
    for number, value in found.items():
        np.testing.assert_array_equal(value["array"], shared)
        assert value["names"] == names
        assert value["pair"][1] == number
        np.testing.assert_array_equal(value["pair"][0], shared)


def test_pairs_come_in_portions_and_memory_does_not_grow_with_them(tmp_path: Path) -> None:
    path = tmp_path / "long.pkl"
    path.write_bytes(pickle.dumps({number: np.full((50, 10), number) for number in range(6000)}))  # 24 MB
    tracemalloc.start()
    total = 0
    for pairs in read_pairs(path):
        assert len(pairs) <= 1000
        total += sum(int(array[0, 0]) == number and array.shape == (50, 10) for number, array in pairs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 6000
    assert peak < 12e6


# --- hostile files --------------------------------------------------------------------------------------------------


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Point:
    """An object of a class that the reader does not know."""

    def __init__(self) -> None:
        self.x = 1


def with_object_array(payload: object) -> np.ndarray[Any, Any]:
    array = np.empty(1, object)
    array[0] = payload
    return array


MARK_FILE = "was-executed"
HOSTILE: dict[str, tuple[Any, str]] = {
    "os.system": (Call(os.system, f"touch {MARK_FILE}"), "posix.system"),
    "eval": (Call(eval, f"open({MARK_FILE!r}, 'w')"), "eval"),
    "exec": (Call(exec, f"open({MARK_FILE!r}, 'w')"), "exec"),
    "getattr chain": (Call(getattr, Call(__import__, "os"), "system"), "getattr"),
    "__import__": (Call(__import__, "antigravity"), "__import__"),
    "open": (Call(io.open, MARK_FILE, "w"), "open"),
    "numpy.load": (Call(np.load, MARK_FILE), "load"),
    "numpy.lib": (Call(np.lib.format.open_memmap, MARK_FILE), "open_memmap"),
    "numpy.fromfile": (Call(np.fromfile, MARK_FILE), "fromfile"),
    "numpy.frombuffer": (Call(np.frombuffer, b"x", "i1"), "frombuffer"),
    "object array": (with_object_array(Call(os.system, f"touch {MARK_FILE}")), "O8"),
    "object array of data": (with_object_array([1, 2]), "O8"),
    "structured array": (np.zeros(2, [("a", "i8"), ("b", "O")]), "V16"),
    "dates": (np.zeros(2, "M8[s]"), "M8"),
    "strings": (np.array(["a", "b"]), "U1"),
    "complex numbers": (np.zeros(2, complex), "c16"),
    "a dtype": (np.dtype("i8"), "a part of an array"),
    "an instance": (Point(), "Point"),
    "a class": (Point, "Point"),
    "bytes": (b"abc", "bytes"),
    "bytes in a tuple": ((1, b"abc"), "a part of an array"),
    "a set": ({1, 2}, "set"),
    "an OrderedDict": (collections.OrderedDict(a=1), "collections.OrderedDict"),
    "a date": (datetime.date(2024, 1, 13), "datetime.date"),
    "a complex number": (1j, "complex"),
    "a matrix": (np.ma.masked_array([1]), "numpy.ma"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    value, word = HOSTILE[name]
    content = pickle.dumps({1: value}, protocol)

    def refuse_import(*_: Any, **__: Any) -> Any:
        raise AssertionError("the reader imported something")

    monkeypatch.setattr(builtins, "eval", refuse_import)
    monkeypatch.setattr(os, "system", refuse_import)
    with pytest.raises(ValueError, match=r"found\.pkl: ") as error:
        read_bytes(tmp_path, content)
    if protocol >= 3 or word != "bytes":
        assert word.lower() in str(error.value).lower()
    assert not (tmp_path / MARK_FILE).exists()


def test_the_mark_of_an_execution_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would fail if the reader ran what it reads."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps({1: HOSTILE["os.system"][0]}))
    assert (tmp_path / MARK_FILE).exists()


ARRAY = pickle.dumps({1: np.arange(1000)}, 4)
PUT = b"\x80\x04}\x94"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "expected a pickle"),
        (b"hello, this is text\n", "expected a pickle"),
        (pickle.dumps({1: 2}, 0), "expected a pickle"),
        (b"\x1f\x8b\x08\x00", "expected a pickle"),
        (b"\x80", "cut off"),
        (b"\x80\x09}.", "protocol 9"),
        (ARRAY[:-1], "cut off"),
        (ARRAY[: len(ARRAY) // 2], "cut off"),
        (ARRAY + b"more", "after the end"),
        (pickle.dumps([1, 2]), "expected exactly one dict"),
        (pickle.dumps(np.arange(3)), "expected exactly one dict"),
        (PUT + b"\xff.", r"b'\\xff' unknown"),
        (PUT + b"K\x01cos\nsystem\nX\x02\x00\x00\x00ls\x85Rs.", "os.system"),
        (PUT + b"K\x01(ios\nsystem\n.", "INST is not allowed"),
        (PUT + b"Pid\n.", "PERSID is not allowed"),
        (PUT + b"\x82\x01.", "EXT1 is not allowed"),
        (PUT + b"\x97.", "NEXT_BUFFER is not allowed"),
        (PUT + b"0.", "POP is not allowed"),
        (PUT + b"K\x01K\x02K\x03s.", "not a dict"),
        (PUT + b"s.", "not there"),
        (PUT + b"h\x07.", "not there"),
        (PUT + b"t.", "not there"),
        (PUT + b"\x87.", "not there"),
        (PUT + b"K\x01K\x02\x93.", "without a name"),
        (PUT + b"K\x01)K\x02R.", "in a way that does not create an array"),
        (PUT + b"K\x01\x8c\x01a\x8c\x01bR.", "in a way that does not create an array"),
        (PUT + b"K\x01K\x02b.", "not an array of numbers"),
        (PUT + b"(K\x01u.", "not a dict"),
        (PUT + b"K\x01\x8c\x01\xff.", "utf-8"),
        (PUT + b"}K\x01s.", "found dict as a key"),
        (PUT + b")" + b"\x85" * 50_000 + b"K\x01s.", "found tuple as a key"),
    ],
)
def test_broken_files_are_one_clear_error(tmp_path: Path, content: bytes, word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        read_bytes(tmp_path, content)
    assert str(error.value).startswith(str(tmp_path / "found.pkl"))


def test_a_cut_at_any_byte_is_noticed(tmp_path: Path) -> None:
    for cut in range(0, len(ARRAY), 97):
        with pytest.raises(ValueError, match=r"cut off|expected a pickle"):
            read_bytes(tmp_path, ARRAY[:cut])


@settings(max_examples=300)
@given(
    protocol=st.sampled_from(PROTOCOLS), changes=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), min_size=1)
)
def test_any_bytes_give_a_dict_or_one_clear_error(
    tmp_path_factory: Any, protocol: int, changes: list[tuple[float, bytes]]
) -> None:
    content = bytearray(
        pickle.dumps({1: np.arange(6).reshape(2, 3), "a": [1, (2.5, None)], 2: {"x": np.int64(3)}}, protocol)
    )
    for place, new in changes:
        at = int(place * len(content))
        content[at : at + 1] = new
    folder = tmp_path_factory.mktemp("spoiled")
    message = str(folder)
    try:
        read_bytes(folder, bytes(content))
    except ValueError as error:
        message = str(error)
    assert message.startswith(str(folder))


HUGE = 2**33  # what C's reader would make room for


@pytest.mark.parametrize(
    "operation",
    [
        b"B" + struct.pack("<I", 2**32 - 1),
        b"\x8e" + struct.pack("<Q", HUGE),
        b"\x8e" + struct.pack("<Q", 2**64 - 1),
        b"\x8d" + struct.pack("<Q", HUGE),
        b"\x96" + struct.pack("<Q", HUGE),
        b"\x8b" + struct.pack("<i", 2**31 - 1),
        b"\x8b" + struct.pack("<i", -1),
        b"r" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 2**32 - 1) + b"s",
    ],
    ids=["bytes", "bytes8", "most", "text", "bytearray", "long", "negative", "memo"],
)
def test_claimed_sizes_cost_no_memory(tmp_path: Path, operation: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"found\.pkl: "):
        read_bytes(tmp_path, PUT + b"K\x01" + operation + b"s.")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e6


@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62, 0), (-1,), (1001,), (3,) * 40, ("a",), (None,), (10, 99)])
def test_shapes_are_not_believed(tmp_path: Path, shape: tuple[Any, ...]) -> None:
    array = np.arange(1000)
    function, arguments, state = cast("Any", array.__reduce__())
    assert state[1] == (1000,)
    content = {1: _Rebuilt(function, arguments, (state[0], shape, *state[2:]))}
    with pytest.raises(ValueError, match=r"shape|bytes for an array"):
        read_bytes(tmp_path, pickle.dumps(content, 4))


class _Rebuilt:
    """Pickled as a call of a function and a state."""

    def __init__(self, *how: Any) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return self.how
