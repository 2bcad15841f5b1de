"""Readers of files and bodies that come from other people, as functions of bytes.

Each function passes bytes to a reader. It returns if they are read or refused with an error that names the file, and it
compares what is read with an independent reader. Everything else is a finding: another exception, a difference, a
process that ends. Hypothesis, atheris and the replay of the corpus call the same functions.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall.data.sources.letor.parse import Rules, parse_block, parse_line
from rankfall.data.sources.rows.row_files import ROW, RowFile, text_type, to_type, used_type
from rankfall.data.sources.safe_pickle import read_dict
from rankfall.online.window_records import read_batches
from rankfall.serving.recording.record_segments import (
    EVENT_SCHEMA,
    EVENTS,
    SAMPLES,
    BadMessageError,
    Message,
    decode,
    encode,
    sample_schema,
    segments,
)
from rankfall.serving.service.http_io import ApiError, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rankfall.data.sources.rows.raw_log import Role


@contextmanager
def refused_by_name(where: object) -> Iterator[None]:
    """Context of code that may refuse its input; the error has to name what it refuses."""
    try:
        yield
    except (ValueError, OSError) as error:
        if str(where) not in str(error):
            raise AssertionError(f"the error does not name {where}") from error


# --- bodies of requests ---------------------------------------------------------------------------------------------

_CERTAINLY_ALLOWED = 2000  # bytes: below all limits of the service, if the body is not nested
_MAX_NAMES = 400  # in a body, more than one of that size has


def read_json(content: bytes, folder: Path) -> None:
    """Compare the reader of bodies with Python's own reader of JSON."""
    expected = _python_json(content)
    try:
        found = parse_json(content, max_names=_MAX_NAMES)
    except ApiError as error:
        _check_refusal(error)
        nested = content.count(b"{") + content.count(b"[") > 30
        assert not isinstance(expected, dict) or nested or len(content) > _CERTAINLY_ALLOWED, "a valid body was refused"
        return
    assert found == expected


def _check_refusal(error: ApiError) -> None:
    assert error.status_code in (400, 422)
    assert error.detail.startswith("body")


def _python_json(content: bytes) -> Any:
    """Return the content of valid JSON without duplicate keys, lone surrogates and infinite numbers, otherwise None."""
    try:
        read = json.loads(
            content.decode("utf-8"),
            parse_constant=_refuse,
            parse_int=_whole_number,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
        json.dumps(read, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return read


def _refuse(word: str) -> None:
    raise ValueError(word)


def _whole_number(text: str) -> int | float:
    """Return a number of 64 bits as it is, and larger ones as floats, as most readers of JSON do."""
    value = _finite(text)
    return int(text) if abs(value) < 1e20 and -(2**63) <= int(text) < 2**64 else value


def _finite(text: str) -> float:
    value = float(text)
    if not np.isfinite(value):
        raise ValueError(text)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate")
    return dict(pairs)


# --- ranking text ---------------------------------------------------------------------------------------------------


def read_letor(content: bytes, folder: Path) -> None:
    """Compare the parser of blocks with the parser of lines. The first byte chooses the rules."""
    choice, text = (content[0] if content else 0), content[1:]
    rules = Rules(with_qid=not choice & 1, missing=bool(choice & 2), log1p=bool(choice & 4))
    block = parse_block(text, rules)
    good, bad = [], []
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n")):
        try:
            parsed = parse_line(line, rules)
        except ValueError as error:
            bad.append((number, str(error)))
        else:
            if parsed is not None:
                good.append((number, parsed))
    assert list(block.bad) == bad
    assert block.lines.tolist() == [number for number, _ in good]
    assert block.labels.tolist() == [np.float32(line.label) for _, line in good]
    assert block.counts.tolist() == [len(line.ids) for _, line in good]
    assert block.ids.tolist() == [i for _, line in good for i in line.ids]
    expected = np.array([value for _, line in good for value in line.values], np.float32)
    assert np.array_equal(np.isnan(block.values), np.isnan(expected))
    np.testing.assert_array_max_ulp(block.values[~np.isnan(expected)], expected[~np.isnan(expected)], 1)


# --- rows -----------------------------------------------------------------------------------------------------------

_ROLES: list[set[Role]] = [{"id"}, {"number"}]


def read_csv(content: bytes, folder: Path) -> None:
    """Read a CSV file, decide the types of its columns, and convert every value to the type of its column."""
    frame = _all_rows(_written(folder / "rows.csv", content))
    for values in [] if frame is None else frame.drop(ROW):
        for roles in _ROLES:
            kind = text_type(values, pl.Null(), roles)
            used = used_type(kind, roles)
            if kind == pl.String() and used != kind:
                continue  # text where a number is expected
            found = to_type(values, used, "UTC")
            assert found.null_count() == values.null_count()
            if used == pl.String():
                assert found.equals(values)


def read_parquet(content: bytes, folder: Path) -> None:
    """Read a Parquet file."""
    _all_rows(_written(folder / "rows.parquet", content))


def read_arrow(content: bytes, folder: Path) -> None:
    """Read an Arrow file."""
    _all_rows(_written(folder / "rows.arrow", content))


def _written(path: Path, content: bytes) -> Path:
    path.unlink(missing_ok=True)  # a file that is mapped into memory must not be changed in place
    path.write_bytes(content)
    return path


def _all_rows(path: Path) -> pl.DataFrame | None:
    """Return all rows with their numbers, None if the file is refused."""
    rows = None
    with refused_by_name(path):
        file = RowFile(path)
        names = [*file.columns(), ROW]
        frames = list(file.batches(names))
        rows = pl.concat(frames) if frames else None
        assert rows is None or rows[ROW].to_list() == list(range(len(rows)))
    return rows


@cache
def row_frame() -> pl.DataFrame:
    """Return rows of all types that the readers of rows know."""
    return pl.DataFrame(
        {
            "request": [1, 1, 2, 2, 3],
            "item": ["a", "b", None, "007", "é"],
            "price": [0.5, None, -1e300, 3.0, float("nan")],
            "clicked": [True, False, None, True, False],
            "time": [datetime(2024, 1, 13, hour, tzinfo=UTC) for hour in range(5)],
            "events": [[1, 2], [], None, [3], [4, 5, 6]],
        }
    )


@cache
def row_file(suffix: str) -> bytes:
    """Return these rows as a file."""
    file = io.BytesIO()
    if suffix == ".csv":
        row_frame().drop("events").write_csv(file)
    elif suffix == ".parquet":
        row_frame().write_parquet(file)
    else:
        row_frame().write_ipc(file)
    return file.getvalue()


# --- records of a service -------------------------------------------------------------------------------------------


def read_segment(content: bytes, folder: Path) -> None:
    """Read a file as a segment of samples and of events; its name has the checksum of the content."""
    for kind in RECORDS:
        name = f"1705100400000-0000000a-000000-{hashlib.sha256(content).hexdigest()[:16]}.arrows"
        path = _written(folder / name, content)
        try:
            (segment,) = segments(folder)
            with refused_by_name(path):
                for frame in read_batches(segment, kind):
                    assert frame.to_arrow().num_rows == len(frame)
        finally:
            path.unlink()


def read_message(content: bytes, folder: Path) -> None:
    """Read a message of a broker as samples and as events; what is read is sent and read again."""
    for kind in RECORDS:
        try:
            batch = decode(Message(kind, "x", content))
        except BadMessageError:
            continue
        assert len(batch)
        ((payload, count),) = encode(batch, 2**30)
        assert count == len(batch)
        again = decode(Message(kind, "x", payload))
        assert again.schema == batch.schema
        assert pl.DataFrame(again).equals(pl.DataFrame(batch))  # in which NaN equals NaN


@cache
def record_stream(kind: str) -> bytes:
    """Return records as a service writes and sends them."""
    file = io.BytesIO()
    batch = RECORDS[kind]
    with pa.ipc.new_stream(file, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    return file.getvalue()


_TIMES = dict.fromkeys(("time", "received"), datetime(2024, 1, 13, 8, tzinfo=UTC))
RECORDS = {
    EVENTS: pa.RecordBatch.from_pylist(
        [
            {"id": "a", "request": "r1", "item": "7", "kind": "click", "value": 1.0, **_TIMES},
            {"id": "b", "request": "é", "item": "x", "kind": "view", "value": -2.5, **_TIMES},
        ],
        EVENT_SCHEMA,
    ),
    SAMPLES: pa.RecordBatch.from_pylist(
        [
            {
                "request": "r1",
                **_TIMES,
                "sampled": True,
                "model": "m",
                "bundle": "b",
                "body": "{}",
                "item": [1, 2],
                "stage": [2, 0],
                "rank": [0, -1],
                "score": [0.5, -1.0],
                "inclusion": [1.0, 0.25],
            },
            {"request": "r2", "sampled": False, **_TIMES},
        ],
        sample_schema(pa.int64()),
    ),
}


# --- pickles --------------------------------------------------------------------------------------------------------


def read_pickle(content: bytes, folder: Path) -> None:
    """Compare the reader of pickles with Python's own, which gets only files that the reader accepts."""
    path = folder / "found.pkl"
    path.write_bytes(content)
    with refused_by_name(path):
        found = read_dict(path)
        try:
            expected = _Restricted(io.BytesIO(content), encoding="latin-1").load()
        except pickle.UnpicklingError as error:  # frames that are too short, which the reader need not notice
            if "frame" not in str(error):
                raise
            return
        assert _same(found, expected)


_NAMES = {"_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype", "encode", "bytes"}
_MODULES = {"numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric"}


class _Restricted(pickle.Unpickler):
    """Python's reader with the names of NumPy's arrays only."""

    def find_class(self, module: str, name: str) -> Any:
        assert module in _MODULES | {"_codecs", "builtins", "__builtin__"}, f"{module}.{name} was accepted"
        assert name in _NAMES, f"{module}.{name} was accepted"
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _same(found: Any, expected: Any) -> bool:
    """Return whether two results of pickles are equal; numbers of NumPy are read as numbers of Python."""
    if isinstance(found, np.ndarray):
        same_type = found.dtype.newbyteorder("=") == expected.dtype.newbyteorder(
            "="
        )  # NumPy changes the order of bytes
        return same_type and np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")
    if isinstance(found, dict):
        return list(found) == list(expected) and all(_same(value, expected[key]) for key, value in found.items())
    if isinstance(found, list | tuple):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected or (found != found and expected != expected))


PICKLED: dict[Any, Any] = {
    1: np.arange(6).reshape(2, 3),
    "a": [1, (2.5, None), "é"],
    2: {"x": np.int64(3), "y": np.ones(2, ">f4")},
}

COVERAGE_GUIDED = {"json": read_json, "letor": read_letor, "csv": read_csv, "pickle": read_pickle}
READERS = COVERAGE_GUIDED | {
    "parquet": read_parquet,
    "arrow": read_arrow,
    "segment": read_segment,
    "message": read_message,
}
