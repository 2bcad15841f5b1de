"""Tests of `benchmarks.preparation`: the generated log matches its spec; all processes are measured."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest

from benchmarks import preparation as prepare
from rankfall.data.impressions.spec import validate_spec


def test_the_generated_log_matches_its_description(tmp_path: Path) -> None:
    prepare.write_rows(tmp_path, 6_000)
    rows = pl.read_parquet(tmp_path / "*.parquet")
    spec = validate_spec(prepare.spec())
    assert len(list(tmp_path.iterdir())) == prepare.DAYS
    assert (len(rows), rows.width) == (6_000, 24)
    assert sum(1 for _ in spec.features) == 17
    assert rows.group_by("request_id").len()["len"].unique().to_list() == [prepare.ITEMS]
    assert not rows.select("request_id", "video_id").is_duplicated().any()
    stages = rows.group_by("request_id", "stage").len().group_by("stage").agg(pl.col("len").unique()).sort("stage")
    assert stages["len"].to_list() == [[size] for size in prepare.STAGES.values()]


@pytest.mark.trial
def test_an_engine_is_measured_by_running_the_command() -> None:
    done: list[str] = []
    (row,) = prepare.measure(["local"], 2_000, done.append)
    assert done == ["log written", "local"]
    assert (row.engine, row.rows, row.same) == ("local", 2_000, True)
    assert row.seconds > 0


@pytest.mark.trial
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux to measure memory")
def test_memory_and_time_include_all_processes() -> None:
    # both processes hold their memory long enough to be sampled at the same time
    work = "import time; x = bytearray(80 << 20); x[::4096] = b'1' * len(x[::4096]); time.sleep(3)"
    pair = f"import subprocess, sys; code = {work!r}; other = subprocess.Popen([sys.executable, '-c', code])"
    usage = prepare._run([sys.executable, "-c", f"{pair}; exec(code); other.wait()"])
    cpu, peak, processes = usage.totals()
    assert cpu is not None
    assert cpu > 0
    assert peak is not None
    assert 160 <= peak < 400
    assert processes == 2


def test_the_error_of_a_failed_command_is_reported() -> None:
    with pytest.raises(ValueError, match="no such thing"):
        prepare._run([sys.executable, "-c", "raise SystemExit('no such thing')"])
