"""Nothing in the package changes a file system except through ``_disk``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = sorted((ROOT / "src" / "rankfall").rglob("*.py"))
METHODS = {  # of paths, arrays and libraries
    *("write_text", "write_bytes", "mkdir", "rmdir", "unlink", "touch", "symlink_to", "hardlink_to", "chmod"),
    *("tofile", "write_csv", "write_parquet", "write_ipc", "write_json", "write_ndjson", "to_csv", "to_parquet"),
    *("save_model", "save_file", "sink_csv", "sink_ipc", "sink_parquet"),
}
FUNCTIONS = {  # by module
    "os": {
        *("remove", "unlink", "rename", "replace", "mkdir", "makedirs", "rmdir", "removedirs", "truncate", "ftruncate"),
        *("link", "symlink", "write", "pwrite", "mkfifo", "fsync"),
    },
    "shutil": {"rmtree", "copy", "copy2", "copyfile", "copytree", "move", "make_archive", "unpack_archive"},
    "tempfile": {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile"},
    "torch": {"save"},
    "onnx": {"save"},
    "np": {"save", "savez", "savetxt", "memmap"},
    "pq": {"write_table", "ParquetWriter"},
    "pa": {"OSFile", "create_memory_map"},
}
ALLOWED = {  # where, and why
    "storage/disk.py": "the one place",
    "storage/files.py:chmod": "a temporary directory gets the permissions of an ordinary one before it gets its name",
    "data/sources/rows/portions.py:pa.OSFile": "reads",
    "data/sources/letor/prepare_letor.py:np.save": "into a file of open_new",
    "reproductions/data.py:np.savetxt": "into a string",
    "serving/export/onnx_graphs.py:onnx.save": "into a file of open_new; graphs above 2 GB into a fresh directory",
    "serving/export/write_bundle.py:np.memmap": "maps a file whose blocks were allocated",
    "studies/compare.py:pq.write_table": "into a buffer",
    "studies/evaluate.py:pq.write_table": "into a buffer",
    "studies/stream/day_learner.py:pq.write_table": "into a file of open_new",
    "serving/service/service_recording.py:unlink": "in the scratch directory of the workers",
    "serving/service/bundle_slots.py:shutil.rmtree": "the scratch directory of the workers, after a kill",
    "commands/bench.py:tempfile.TemporaryDirectory": "scratch of a benchmark",
    "benchmarks/": "scratch of benchmarks; their results are written by write_file",
}


def changes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call that may change a file system."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            if called.attr in FUNCTIONS.get(called.value.id, ()):
                yield node.lineno, f"{called.value.id}.{called.attr}"
                continue
            if called.value.id == "_disk":
                continue
        if isinstance(called, ast.Attribute) and called.attr in METHODS:
            yield node.lineno, called.attr
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in ("open", "fdopen") and any(
            _writes(one) for one in [*node.args, *(key.value for key in node.keywords)]
        ):
            yield node.lineno, "open"


def _writes(argument: ast.expr) -> bool:
    """Return whether an argument is the mode of a file that is written."""
    value = argument.value if isinstance(argument, ast.Constant) else None
    return (
        isinstance(value, str) and len(value) <= 3 and bool(set(value) & set("wax+")) and set(value) <= set("rwaxbt+")
    )


def is_allowed(name: str, call: str) -> bool:
    return any(
        f"{name}:{call}" == place or name == place or (place[-1] == "/" and name.startswith(place)) for place in ALLOWED
    )


@pytest.fixture(scope="module")
def found() -> list[tuple[str, int, str]]:
    """File, line and name of each call in the package that may change a file system."""
    names = {str(path.relative_to(ROOT / "src" / "rankfall")): path for path in SOURCES}
    return [(name, *call) for name, path in names.items() for call in changes(ast.parse(path.read_text()))]


def test_files_are_written_through_one_module(found: list[tuple[str, int, str]]) -> None:
    assert [f"{name}:{line} {call}" for name, line, call in found if not is_allowed(name, call)] == []


def test_every_exception_is_still_needed(found: list[tuple[str, int, str]]) -> None:
    used = {
        place
        for name, _, call in found
        for place in ALLOWED
        if f"{name}:{call}" == place or name == place or (place.endswith("/") and name.startswith(place))
    }
    assert used == ALLOWED.keys()


@pytest.mark.parametrize(
    "line", ['path.open("w")', 'open(path, mode="ab")', "path.write_text(x)", "shutil.rmtree(x)", "os.replace(a, b)"]
)
def test_writing_is_found(line: str) -> None:
    assert list(changes(ast.parse(line)))


@pytest.mark.parametrize("line", ['path.open("rb")', "open(path)", "table.rename(x)", "text.replace(a, b)"])
def test_reading_is_not_found(line: str) -> None:
    assert not list(changes(ast.parse(line)))
