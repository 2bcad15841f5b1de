"""Benchmark of sample building: time and memory of ``rankfall prepare rows`` on a raw full-stage log, per engine.

The log resembles RecFlow: requests of 100 items over 5 days, one Parquet file per day, 24 columns of integers. Its spec
has 17 features, among them two vocabularies, a standardised and a bucketized number, and a sequence of 50 built from
feedback; it keeps 10 items from each of four stages. The command runs in a separate process, as users run it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks import parse_settings, print_report, show_step
from rankfall.storage.files import checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

DAYS, ITEMS = 5, 100  # items per request
# items per request, by their deepest stage
STAGES = {"prerank_neg": 60, "coarse_neg": 24, "rank_neg": 10, "rank_pos": 6}
SAMPLE = 10
USERS, CATALOGUE = 20_000, 100_000
FIRST_DAY = 1_705_075_200_000  # 2024-01-13 in Shanghai, in milliseconds
DAY = 86_400_000
_CHUNK = 2_000  # requests generated at once
_INTERVAL = 0.1  # seconds between two samples of the processes
SETTING = f"requests of {ITEMS} items in {DAYS} days, 24 columns, 17 features, a sequence of 50"


@dataclass(frozen=True)
class Row:
    """Resources that one engine needs for the whole command."""

    engine: str
    rows: int
    seconds: float
    cpu_seconds: float | None  # of all processes; available on Linux only
    peak_mb: float | None  # of all processes; shared memory counts once
    processes: int | None  # number of processes at the peak
    same: bool  # whether the files equal those of the first engine, byte for byte


def measure(engines: Sequence[str], rows: int, report: Callable[[str], None]) -> list[Row]:
    """Write a raw log, then measure its preparation with each engine.

    Args:
        engines: Names of engines, for example "local" and "ray".
        rows: Number of rows of the raw log.
        report: Called with a description after each step.

    Returns:
        One row per engine.
    """
    measured: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        raw, spec_file = Path(scratch, "raw"), Path(scratch, "spec.yaml")
        raw.mkdir()
        write_rows(raw, rows)
        spec_file.write_text(yaml.safe_dump(spec()))
        report("log written")
        first = ""
        for engine in engines:
            out = Path(scratch, "impressions")
            options = ["--spec", str(spec_file), "--out", str(out), "--engine", engine, "--force", "--json"]
            usage = _run([sys.executable, "-m", "rankfall", "prepare", "rows", str(raw), *options])
            digest = _digest(out)
            first = first or digest
            measured.append(Row(engine, rows, usage.seconds, *usage.totals(), digest == first))
            report(engine)
    return measured


def _digest(directory: Path) -> str:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    content = "".join(f"{path.relative_to(directory)} {checksum(path)}" for path in files)
    return hashlib.sha256(content.encode()).hexdigest()


# --- the processes of a command -----------------------------------------------------------------------------------


class _ProcessUsage:
    """CPU time and peak memory of a process and its descendants."""

    def __init__(self, process: int) -> None:
        self.seconds = 0.0
        self._process = process
        self._ticks: dict[int, int] = {}  # CPU clock ticks by process
        self._peak = self._count = 0

    def sample(self) -> None:
        """Record the time and memory of the processes that are running."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()  # the name may contain spaces
            except OSError:
                continue  # the process has ended
            parents[int(path.name)] = int(stat[1])
            ticks[int(path.name)] = int(stat[11]) + int(stat[12])
        family = [number for number in parents if self._is_descendant(number, parents)]
        self._ticks |= {number: ticks[number] for number in family}
        memory = sum(map(_proportional_memory, family))
        if memory > self._peak:
            self._peak, self._count = memory, len(family)

    def totals(self) -> tuple[float | None, float | None, int | None]:
        """Return the CPU seconds, the peak memory in megabytes, and the number of processes at the peak."""
        if not self._ticks:
            return None, None, None
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK"), self._peak / 2**20, self._count

    def _is_descendant(self, number: int, parents: dict[int, int]) -> bool:
        while number not in (0, self._process):
            number = parents.get(number, 0)
        return number == self._process


def _proportional_memory(process: int) -> int:
    """Return the bytes in memory, where memory shared by n processes counts 1/n for each."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _run(command: list[str]) -> _ProcessUsage:
    with tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        usage = _ProcessUsage(process.pid)
        try:
            while process.poll() is None:
                usage.sample()
                time.sleep(_INTERVAL)
        finally:
            process.terminate()
            process.wait()
        usage.seconds = time.perf_counter() - start
        if process.returncode:
            errors.seek(0)
            raise ValueError(f"{' '.join(command[1:5])}: {errors.read().strip()}")
        return usage


# --- the log ------------------------------------------------------------------------------------------------------


def spec() -> dict[str, Any]:
    """Return the spec of the log."""
    item: dict[str, Any] = {
        "video_id": {"kind": "categorical", "vocabulary": {"min_count": 2}},
        "author_id": {"kind": "categorical", "hash_bucket_size": 50_000},
        "category_level_one": {"kind": "categorical", "num_buckets": 50},
        "category_level_two": {"kind": "categorical", "num_buckets": 400},
        "upload_type": {"kind": "categorical", "num_buckets": 10},
        "upload_hour": {"kind": "time", "part": "hour", "column": "upload_timestamp", "unit": "ms"},
        "upload_weekday": {"kind": "time", "part": "weekday", "column": "upload_timestamp", "unit": "ms"},
        "duration": {"kind": "dense", "log1p": True, "standardise": True},
        "duration_bucket": {"kind": "dense", "column": "duration", "bucketize": 16},
    }
    user: dict[str, Any] = {
        "user_id": {"kind": "categorical", "vocabulary": True},
        "device_id": {"kind": "categorical", "hash_bucket_size": 50_000},
        "age": {"kind": "categorical", "num_buckets": 10},
        "gender": {"kind": "categorical", "num_buckets": 3},
        "province": {"kind": "categorical", "num_buckets": 35},
    }
    context = {part: {"kind": "time", "part": part} for part in ("hour", "weekday", "minute")}
    shown = ["video_id", "author_id", "category_level_two"]
    return {
        "request": "request_id",
        "item": "video_id",
        "user": "user_id",
        "time": {"column": "request_timestamp", "unit": "ms", "zone": "Asia/Shanghai"},
        "stage": "stage",
        "rank": "rank",
        "stages": [{"name": name, "sample": SAMPLE} for name in STAGES],
        "relevant": "rank_pos",
        "feedback": ["effective_view", "long_view", "like", "follow", "forward", "comment"],
        "features": {"user": user, "context": context, "item": item},
        "sequences": {"views": {"max_length": 50, "features": shown, "feedback": "effective_view"}},
    }


def write_rows(directory: Path, rows: int) -> None:
    """Write a raw log of about `rows` rows, one file per day; popular items and active users are more likely."""
    rng = np.random.default_rng(0)
    requests = max(rows // ITEMS // DAYS, 1)  # per day
    items = _items(rng)
    for day in range(DAYS):
        writer: pq.ParquetWriter | None = None
        for first in range(0, requests, _CHUNK):
            numbers = np.arange(first, min(first + _CHUNK, requests))
            times = FIRST_DAY + day * DAY + numbers * (DAY // requests)
            chunk = pa.table(_rows(rng, items, day * requests + numbers, times))
            writer = writer or pq.ParquetWriter(directory / f"day{day}.parquet", chunk.schema)
            writer.write_table(chunk)
        if writer is not None:
            writer.close()


def _items(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        "author_id": rng.integers(30_000, size=CATALOGUE),
        "category_level_one": rng.integers(50, size=CATALOGUE, dtype=np.int32),
        "category_level_two": rng.integers(400, size=CATALOGUE, dtype=np.int32),
        "upload_type": rng.integers(10, size=CATALOGUE, dtype=np.int32),
        "upload_timestamp": FIRST_DAY - rng.integers(30 * DAY, size=CATALOGUE),
        "duration": rng.lognormal(10, 1, CATALOGUE).astype(np.int64),
    }


def _rows(
    rng: np.random.Generator, items: dict[str, NDArray[Any]], requests: NDArray[np.int64], times: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    count = len(requests)
    # one item from each of ITEMS spans of the catalogue, so that a request has no duplicates; early spans are narrow
    spans = (np.arange(ITEMS) + rng.random((count, ITEMS))) / ITEMS
    item = (spans**2 * CATALOGUE).astype(np.int64)[:, rng.permutation(ITEMS)]
    stage = np.repeat(np.arange(len(STAGES)), list(STAGES.values()))
    rank = np.concatenate([np.arange(1, size + 1) for size in STAGES.values()])
    user = (rng.random(count) ** 2 * USERS).astype(np.int64)
    shown = stage == len(STAGES) - 1
    request_columns: dict[str, NDArray[Any]] = {
        "request_id": requests,
        "request_timestamp": times,
        "user_id": user,
        "device_id": user * 7919 % 30_011,
        "age": (user % 8).astype(np.int32),
        "gender": (user % 3).astype(np.int32),
        "province": (user % 34).astype(np.int32),
    }
    chances = {"effective_view": 0.4, "long_view": 0.2, "like": 0.05, "follow": 0.01, "forward": 0.01, "comment": 0.02}
    return {
        **{name: np.repeat(values, ITEMS) for name, values in request_columns.items()},
        "video_id": item.ravel(),
        **{name: values[item].ravel() for name, values in items.items()},
        "stage": np.tile(stage, count),
        "rank": np.tile(rank, count),
        "price": rng.integers(1000, size=count * ITEMS, dtype=np.int32),  # two columns that the spec does not use
        "position": rng.integers(10, size=count * ITEMS, dtype=np.int32),
        **{
            name: ((rng.random((count, ITEMS)) < chance) & shown).astype(np.int32).ravel()
            for name, chance in chances.items()
        },
    }


# --- the program --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """Extent of the measurement."""

    rows: int = 10**7  # of the raw log


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all installed engines."""
    settings, _ = parse_settings(__doc__, Settings, arguments)
    engines = ["local", *(["ray"] if find_spec("ray") is not None else [])]
    rows = measure(engines, settings.rows, lambda done: show_step(done, 0, None))
    problems = [f"the files of {row.engine} differ from those of {rows[0].engine}" for row in rows if not row.same]
    return print_report({"what": SETTING, "rows": [asdict(row) for row in rows], "problems": problems})


if __name__ == "__main__":
    sys.exit(main())
