"""Any bytes are read, or refused with an error that names the file."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import byte_changes, damaged, hostile_values
from fuzz.readers import (
    PICKLED,
    READERS,
    RECORDS,
    read_arrow,
    read_csv,
    read_json,
    read_letor,
    read_parquet,
    read_pickle,
    record_stream,
    row_file,
)
from rankfall.serving.recording.record_segments import Message, decode
from support.fuzzing import cases, one_case

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


# --- JSON -----------------------------------------------------------------------------------------------------------

_KEYS = st.sampled_from(["k", "user", "\\u006b", "us\\u0065r", "", ":", "a\\u003a", "é"])
_SCALARS = st.one_of(
    st.sampled_from(
        ["0", "-0", "1e5", "1E+400", "9" * 30, "NaN", "01", "null", "true", '"\\ud800"', '"\\u003a"', '":"']
    ),
    st.integers().map(str),
    st.text(max_size=5).map(json.dumps),
)


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(_KEYS, inner), max_size=4)
    return pairs.map(lambda found: "{" + ",".join(f'"{key}" : {value}' for key, value in found) + "}")


_JSON = _objects(
    st.recursive(_SCALARS, lambda inner: st.one_of(_objects(inner), st.lists(inner, max_size=3).map(
        lambda found: "[" + ",".join(found) + "]")), max_leaves=8)
).map(lambda text: text.encode("utf-8", "surrogatepass"))  # fmt: skip


@cases(80)
@given(text=_JSON, changes=st.just([]) | byte_changes(most=2))
def test_json_is_read_as_python_reads_it(folder: Path, text: bytes, changes: list[Any]) -> None:
    content = damaged(text, changes)
    with one_case("json", content):
        read_json(content, folder)


# --- ranking text ---------------------------------------------------------------------------------------------------

_LETOR = b"2 qid:10 1:0.5 2:-1e-3 17:4 # docid = a\n0 qid:10 1:.5 2:NULL\r\n\n1 qid:q:b 3:7\n# note\n"


@cases(200)
@given(
    lines=st.lists(st.text("0123456789 .:-+e#qid\tna", max_size=30), max_size=4),
    choice=st.integers(0, 7),
    changes=byte_changes(),
)
def test_ranking_text_is_read_as_line_by_line(folder: Path, lines: list[str], choice: int, changes: list[Any]) -> None:
    text = damaged(_LETOR, changes) + "\n".join(lines).encode()
    # bytes of a query id that are not UTF-8 are replaced by the fast parser alone
    content = bytes([choice]) + text.decode("utf-8", "ignore").encode()
    with one_case("letor", content):
        read_letor(content, folder)


# --- rows -----------------------------------------------------------------------------------------------------------

_CELLS = st.one_of(
    st.sampled_from(
        ["", "1", "-1", "1.0", "007", "true", "False", "nan", "inf", "1e400", "9" * 25, "2024-01-13", '"', "\x00"]
    ),
    st.text(max_size=6),
)


@cases(60)
@given(rows=st.lists(st.lists(_CELLS, min_size=1, max_size=4), max_size=5), changes=byte_changes())
def test_csv_files_are_read_or_refused(folder: Path, rows: list[list[str]], changes: list[Any]) -> None:
    text = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
    for content in (text, damaged(row_file(".csv"), changes)):
        with one_case("csv", content):
            read_csv(content, folder)


@cases(60)
@given(changes=byte_changes())
def test_parquet_files_are_read_or_refused(folder: Path, changes: list[Any]) -> None:
    content = damaged(row_file(".parquet"), changes)
    with one_case("parquet", content):
        read_parquet(content, folder)


@cases(60)
@given(changes=byte_changes())
def test_arrow_files_are_read_or_refused(folder: Path, changes: list[Any]) -> None:
    content = damaged(row_file(".arrow"), changes)
    with one_case("arrow", content):
        read_arrow(content, folder)


# --- records of a service -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["segment", "message"])
@cases(60)
@given(kind=st.sampled_from(list(RECORDS)), changes=byte_changes())
def test_records_are_read_or_refused(folder: Path, name: str, kind: str, changes: list[Any]) -> None:
    content = damaged(record_stream(kind), changes)
    with one_case(name, content):
        READERS[name](content, folder)


def test_undamaged_records_are_read() -> None:
    for kind, batch in RECORDS.items():
        assert decode(Message(kind, "x", record_stream(kind))).to_pylist() == batch.to_pylist() * 2


# --- pickles --------------------------------------------------------------------------------------------------------


@cases(200)
@given(
    changes=byte_changes(),
    protocol=st.integers(0, 5),
    content=st.just(PICKLED) | st.dictionaries(st.integers() | st.text(max_size=3), hostile_values(), max_size=3),
)
def test_pickles_are_read_or_refused(folder: Path, changes: list[Any], protocol: int, content: dict[Any, Any]) -> None:
    stored = damaged(pickle.dumps(content, protocol), changes)
    with one_case("pickle", stored):
        read_pickle(stored, folder)
