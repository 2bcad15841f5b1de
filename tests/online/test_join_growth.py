"""Joined days may give new values of vocabularies ids of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from rankfall.data import ImpressionLog
from rankfall.data.sources.rows.prepare_rows import append_rows, prepare_rows
from support.join_kills import copy_of, joined
from support.join_witness import rows_frame, witness_join
from support.served_records import older_rows, random_traffic, served_spec, write_items, write_segments

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("grow", [False, True])
def test_a_joined_log_grows_as_an_appended_one(tmp_path: Path, grow: bool) -> None:
    older = tmp_path / "older"
    older.mkdir()
    write_items(older / "items.parquet")
    known = older_rows().filter(pl.col("item") < 10)  # others are new to the log
    known.write_parquet(older / "rows.parquet")
    prepare_rows([older / "rows.parquet"], older / "log", served_spec(), items=older / "items.parquet")
    before = ImpressionLog.load(older / "log").features.tables
    traffic = random_traffic(0)
    write_segments(tmp_path / "records", traffic)
    joined(tmp_path / "records", copy_of(older, tmp_path / "log"), older, grow=grow)
    files = []
    for day, made in witness_join(traffic, after="2024-01-14").items():
        files.append(tmp_path / f"{day}.parquet")
        rows_frame(made.rows).write_parquet(files[-1])
    append_rows(files, copy_of(older, tmp_path / "witness"), items=older / "items.parquet", grow=grow)
    ours, theirs = (ImpressionLog.load(tmp_path / name) for name in ("log", "witness"))
    assert ours.features.tables == theirs.features.tables
    assert (ours.features.tables["item"] > before["item"]) == grow
    assert list(ours.days) == list(theirs.days)
    for day in list(ours.days)[2:]:
        assert ours.days[day].table().equals(theirs.days[day].table())
