"""Columns of a log from bodies of requests: a body is refused or not whatever other bodies are in the same part."""

from __future__ import annotations

import json
import random
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import hostile_values
from rankfall.data.sources.rows.log_state import StoredState
from rankfall.data.sources.rows.row_files import TIME
from rankfall.online import request_columns
from rankfall.online.day_rows import make_layout
from rankfall.online.request_columns import BodyColumns
from support.fuzzing import cases
from support.served_records import MIDNIGHT, prepared_log, random_request, served_spec, topic_of, write_items

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Made = tuple[dict[str, pl.Series], dict[int, str]]


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> BodyColumns:
    """Columns of a log that exists, whose types are known."""
    place = tmp_path_factory.mktemp("columns")
    return body_columns(place, StoredState(prepared_log(place / "older", place / "log")).types())


def body_columns(place: Path, types: Any) -> BodyColumns:
    layout = make_layout(served_spec(), types, place / "older" / "items.parquet", None)
    return BodyColumns(
        layout,
        lambda column, ids: [topic_of(one) if isinstance(one, int) else None for one in ids],
        lambda samples, places, ids: ids,
        lambda samples, features: None,
    )


def make(columns: BodyColumns, bodies: Sequence[str]) -> Made:
    times = pl.Series("time", [MIDNIGHT] * len(bodies), dtype=pl.Int64).cast(TIME)
    return columns.make(pl.DataFrame([times, pl.Series("body", bodies, dtype=pl.String)]))


def _body(seed: int, places: list[str], value: Any) -> str:
    """Return a valid body with some values replaced."""
    body = random_request(random.Random(seed), MIDNIGHT)
    for place in places:
        *outer, last = place.split(".")
        inner = body
        for name in outer:
            inner = inner[name] if isinstance(inner.get(name), dict) else inner
        inner[last] = value
    return json.dumps(body)


PLACES = ["user", "user.user", "user.age", "context.page", "context.place", "sequences", "sequences.history"]
EVENTS = st.lists(st.dictionaries(st.sampled_from(["item", "topic", "x"]), hostile_values(), max_size=3), max_size=3)
BODIES = st.builds(
    _body,
    st.integers(0, 99),
    st.lists(st.sampled_from([*PLACES, "context.place"]), max_size=2),
    hostile_values() | EVENTS,
)


@cases(60)
@given(bodies=st.lists(BODIES | st.text(max_size=5), min_size=1, max_size=6))
def test_a_body_is_read_alone_as_with_others(columns: BodyColumns, bodies: list[str]) -> None:
    together, refused = make(columns, bodies)
    for place, body in enumerate(bodies):
        alone, reasons = make(columns, [body])
        assert reasons.get(0) == refused.get(place)
        if not reasons:
            for name, values in alone.items():
                assert together[name].dtype == values.dtype
                assert together[name][place : place + 1].equals(values, null_equal=True), name


@pytest.mark.parametrize("types", ["of a log", "not decided yet"])
def test_many_wrong_bodies_cost_what_right_ones_cost(
    columns: BodyColumns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: str
) -> None:
    """The number of converted values grows with that of bodies, and not with its square, if every second is wrong."""
    if types != "of a log":
        prepared_log(tmp_path / "older", tmp_path / "log")
        columns = body_columns(tmp_path, None)
    converted = 0
    plain = request_columns._plain

    def counted(feature: Any, kind: Any, spec: Any, values: list[Any]) -> pl.Series:
        nonlocal converted
        converted += len(values)
        return plain(feature, kind, spec, values)

    monkeypatch.setattr(request_columns, "_plain", counted)
    count = 2000
    bodies = [_body(seed, ["user.user"] if seed % 2 else [], [7]) for seed in range(count)]
    _, refused = make(columns, bodies)
    assert sorted(refused) == list(range(1, count, 2))
    assert "user.user" in refused[1]
    assert converted < count * request_columns._BLOCK


def test_the_type_of_new_ids_is_that_of_the_bodies_that_are_not_refused(tmp_path: Path) -> None:
    prepared_log(tmp_path / "older", tmp_path / "log")
    columns = body_columns(tmp_path, None)
    numbers = [_body(seed, ["user.user"], value) for seed, value in enumerate([3, 4, [5]])]
    made, refused = make(columns, numbers)
    assert list(refused) == [2]
    assert made["user"].to_list() == [3, 4, None]
    assert made["user"].dtype == pl.Int64
    values: list[Any] = [3, "x", {}, None]
    texts = [_body(seed, ["user.user"], value) for seed, value in enumerate(values)]
    made, refused = make(columns, texts)
    assert list(refused) == [2]
    assert made["user"].to_list() == ["3", "x", None, None]


def test_times_of_clients_have_the_local_time_that_the_service_computes(tmp_path: Path) -> None:
    """Fractions of milliseconds are cut off; summer time after 2100 is not in the tables of polars."""
    features = served_spec().model_dump(mode="json", exclude_none=True)["features"]
    features["context"]["when"] = {"kind": "time", "column": "when", "part": "hour"}
    layout = make_layout(served_spec(features=features), None, write_items(tmp_path / "items.parquet"), None)
    columns = BodyColumns(
        layout, lambda column, ids: list(ids), lambda samples, places, ids: ids, lambda samples, features: None
    )
    given = [
        "2024-01-13T22:59:59.9996Z",
        "1969-12-31T23:59:59.9999Z",
        "0001-01-02T00:00:00Z",
        "1800-01-01T00:30:00Z",
        "2050-07-01T22:30:00Z",
        "9999-12-31T22:00:00Z",
        "2150-07-01T22:30:00Z",
    ]
    made, refused = make(columns, [json.dumps({"context": {"when": one}}) for one in given])
    assert set(refused) <= {6}
    expected = [datetime.fromisoformat(one).astimezone(ZoneInfo("Europe/Berlin")).hour for one in given]
    found = made["when"].dt.convert_time_zone("Europe/Berlin").dt.hour().to_list()
    assert [one for place, one in enumerate(found) if place not in refused] == expected[: len(given) - len(refused)]


def test_few_bytes_of_bodies_are_parsed_at_once(columns: BodyColumns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed bodies take far more memory than their text, and clients choose their number and length."""
    bodies = [_body(seed, ["user.age"] if seed % 7 == 3 else [], "wrong") for seed in range(40)]
    whole, of_whole = make(columns, bodies)
    parsed: list[int] = []
    of_slice = BodyColumns._make

    def counted(self: BodyColumns, samples: pl.DataFrame) -> Made:
        parsed.append(sum(map(len, samples["body"])))
        return of_slice(self, samples)

    monkeypatch.setattr(request_columns, "_PARSED_BYTES", 1_000)
    monkeypatch.setattr(BodyColumns, "_make", counted)
    found, refused = make(columns, bodies)
    assert sum(parsed) == sum(map(len, bodies))
    assert max(parsed) <= 1_000 + max(map(len, bodies))
    assert refused == of_whole
    assert sorted(refused) == [3, 10, 17, 24, 31, 38]
    assert all(found[name].equals(values) for name, values in whole.items())
