"""Columns that are used in several ways, and columns without a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.data.sources.rows.raw_log import find_columns

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog

DENSE = {"kind": "dense"}
VOCABULARY = {"kind": "categorical", "vocabulary": True}


def prepared(tmp_path: Path, text: str, **spec: Any) -> ImpressionLog:
    (tmp_path / "log.csv").write_text(text)
    content = {"request": "request", "item": "item", "time": "time", "relevant": {"column": "place"}, **spec}
    return prepare_rows([tmp_path / "log.csv"], tmp_path / "out", validate_spec(content))


def item_rows(log: ImpressionLog, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of the items of all impressions, sorted."""
    tables = [pl.from_arrow(day.table().select(list(columns))) for day in log.days.values()]
    frames = [frame.explode(columns) for frame in tables if isinstance(frame, pl.DataFrame)]
    return sorted(pl.concat(frames).rows())


LOG = """\
request,time,item,place
07,2024-01-13T08:30:00,0101,0
07,2024-01-13T08:30:00,0102,1
08,2024-01-14T09:30:00,0101,0
"""


def test_an_id_is_a_key_a_category_and_a_number(tmp_path: Path) -> None:
    """As a key 0101 is text, as a number 101."""
    features = {"item": VOCABULARY, "number": DENSE | {"column": "item"}}
    log = prepared(tmp_path, LOG, features={"item": features})
    assert log.vocabulary("item.item").to_pylist() == ["0101", "0102"]
    assert item_rows(log, "item.item", "item.number") == [(2, 101.0), (2, 101.0), (3, 102.0)]
    assert log.spec.features.item["number"].column == "item"  # the spec is stored as it was given


def test_a_place_is_a_rank_a_position_a_label_and_a_feature(tmp_path: Path) -> None:
    features = {"place": DENSE, "category": VOCABULARY | {"column": "place"}}
    log = prepared(tmp_path, LOG, rank="place", position="place", feedback=["place"], features={"item": features})
    columns = ["rank", "position", "relevance", "feedback.place", "item.place", "item.category"]
    assert item_rows(log, *columns) == [(0, 0, 0.0, 0.0, 0.0, 2)] * 2 + [(1, 1, 1.0, 1.0, 1.0, 3)]


def test_the_time_of_a_request_is_also_its_id(tmp_path: Path) -> None:
    text = "time,item,place\n1705134600,1,1\n1705134600,2,0\n1705138200,1,1\n"
    features = {"hour": {"kind": "time", "part": "hour"}, "seconds": DENSE | {"column": "time"}}
    log = prepared(tmp_path, text, request="time", time={"column": "time", "unit": "s"}, features={"context": features})
    (day,) = log.days.values()
    table = day.table().to_pydict()
    assert table["request"] == [1_705_134_600, 1_705_138_200]
    assert table["context.hour"] == [2 + 8, 2 + 9]
    assert table["context.seconds"] == pytest.approx([1_705_134_600, 1_705_138_200], rel=1e-6)


def test_a_time_is_also_the_day(tmp_path: Path) -> None:
    """The hour of the time is not lost, although days are dates."""
    frame = pl.DataFrame({"request": [1, 2], "item": [1, 1], "place": [1, 1]})
    frame = frame.with_columns(time=pl.Series(["2024-01-13T08:30", "2024-01-14T09:30"]).str.to_datetime())
    frame.write_parquet(tmp_path / "log.parquet")
    hour = {"hour": {"kind": "time", "part": "hour"}}
    content = {"request": "request", "item": "item", "time": "time", "day": "time", "relevant": {"column": "place"}}
    spec = validate_spec({**content, "features": {"context": hour}})
    log = prepare_rows([tmp_path / "log.parquet"], tmp_path / "out", spec)
    assert list(log.days) == ["2024-01-13", "2024-01-14"]
    assert [day.table()["context.hour"].to_pylist() for day in log.days.values()] == [[2 + 8], [2 + 9]]


@pytest.mark.parametrize("header", ["", "Unnamed: 0"], ids=["of a CSV", "of pandas"])
def test_a_column_without_a_name(tmp_path: Path, header: str) -> None:
    """It is ignored, or used by the name that pandas gives it; other columns without a name have their own number."""
    lines = [f"{10 * number},{line},x" for number, line in enumerate(LOG.splitlines()[1:])]
    text = "\n".join([f"{header},{LOG.splitlines()[0]},", *lines]) + "\n"
    assert item_rows(prepared(tmp_path, text), "item") == [(0,), (0,), (1,)]
    (tmp_path / "again").mkdir()
    log = prepared(tmp_path / "again", text, features={"item": {"index": DENSE | {"column": "Unnamed: 0"}}})
    assert item_rows(log, "item.index") == [(0.0,), (10.0,), (20.0,)]


def test_names_are_needed_only_for_ways_that_differ() -> None:
    content = {"item": "i", "request": "r", "day": "d", "relevant": {"column": "p"}, "rank": "p", "position": "p"}
    item = {
        "i": VOCABULARY,
        "n": DENSE | {"column": "i"},
        "b": {"kind": "categorical", "num_buckets": 9, "column": "i"},
    }
    found = find_columns(validate_spec(content | {"features": {"item": item}}), {"log": ["i", "r", "d", "p"]}, {})
    assert found.stored == {"i (as number)": "i"}
    assert [feature.column for _, _, feature in found.spec.features] == [None, "i (as number)", "i"]
