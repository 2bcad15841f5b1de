"""What a model sees of the values of a log, by hand."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from rankfall.data.impressions.encoding import Encoding, hash_values, to_times
from rankfall.data.impressions.spec import MISSING, Spec, validate_spec
from rankfall.encoding import BadValueError, rule_from_json


def spec_of(**item: dict[str, Any]) -> Spec:
    """A spec of a log with these item features."""
    return validate_spec(
        {
            "time": {"column": "at", "unit": "s", "zone": "Asia/Shanghai"},
            "stages": [{"name": "shown"}],
            "relevant": "shown",
            "features": {"item": item},
        }
    )


def encode(raw: pl.Series, feature: dict[str, Any], **fitted: Any) -> list[Any]:
    ids: list[Any] = Encoding(spec_of(x=feature), **fitted).encode("item", "x", raw).tolist()
    return ids


def test_numbered_ids_keep_two_rows_free() -> None:
    feature = {"kind": "categorical", "num_buckets": 10}
    assert encode(pl.Series([0, 9, 10, 10**12, None]), feature) == [2, 11, 1, 1, 0]
    assert encode(pl.Series([True, False, None]), feature) == [3, 2, 0]
    assert encode(pl.Series([None, None]), feature) == [0, 0]


def test_hashed_ids_fill_their_buckets() -> None:
    feature = {"kind": "categorical", "hash_bucket_size": 7}
    values = pl.Series([f"author {i}" for i in range(500)] + [None])
    ids = encode(values, feature)
    assert ids[:-1] == [2 + int(value) % 7 for value in hash_values(values[:-1])]
    assert set(ids[:-1]) == set(range(2, 9))
    assert ids[-1] == 0
    assert encode(pl.Series([5, None]), feature)[1] == 0


@pytest.mark.parametrize("values", [["b", "a"], [30, -4]])
def test_vocabularies_know_what_was_fitted(values: list[Any]) -> None:
    feature = {"kind": "categorical", "vocabulary": True}
    unknown: Any = "z" if isinstance(values[0], str) else 99
    fitted = {"item.x": pl.Series(values)}
    assert encode(pl.Series([values[1], unknown, None, values[0]]), feature, vocabularies=fitted) == [3, 1, 0, 2]


def test_rows_of_tables() -> None:
    spec = spec_of(
        number={"kind": "categorical", "num_buckets": 10},
        hashed={"kind": "categorical", "hash_bucket_size": 7},
        word={"kind": "categorical", "vocabulary": True, "embedding": "words"},
        hour={"kind": "time", "part": "hour"},
        age={"kind": "dense", "bucketize": [10, 20]},
        price={"kind": "dense"},
        vector={"kind": "dense", "size": 3},
    )
    features = Encoding(spec, {"words": pl.Series(["a", "b", "c"])}).features
    assert features.tables == {"item.number": 12, "item.hashed": 9, "words": 5, "item.hour": 26, "item.age": 5}
    assert [(feature.name, feature.size) for feature in features.features if feature.embedding is None] == [
        ("price", 1),
        ("vector", 3),
    ]


def test_numbers() -> None:
    raw = pl.Series([3.0, None, -7.0])
    assert encode(raw, {"kind": "dense", "missing": 5}) == [3, 5, -7]
    logs = encode(raw, {"kind": "dense", "log1p": True, "missing": 0})
    assert logs == pytest.approx([math.log(4), 0, -math.log(8)])
    fitted = {"item.x": (np.array(1.0), np.array(4.0))}
    assert encode(raw, {"kind": "dense", "missing": 1, "standardise": True}, scalings=fitted) == [0.5, 0, -2]


def test_missing_numbers_with_an_indicator() -> None:
    """A missing number is 0 before it is scaled; the last half of the numbers says which are missing."""
    raw = pl.Series([3.0, None, -7.0, math.nan, math.inf, 0.0])
    flags = [0, 1, 0, 1, 1, 0]
    found = encode(raw, {"kind": "dense", "missing": "indicator"})
    assert found == [[value, flag] for value, flag in zip([3, 0, -7, 0, 0, 0], flags, strict=True)]
    fitted = {"item.x": (np.array(1.0), np.array(4.0))}
    scaled = encode(raw, {"kind": "dense", "missing": "indicator", "standardise": True}, scalings=fitted)
    assert scaled == [[v, flag] for v, flag in zip([0.5, -0.25, -2, -0.25, -0.25, -0.25], flags, strict=True)]
    vectors = encode(pl.Series([[1.0, 2.0], [3.0, None], None]), {"kind": "dense", "size": 2, "missing": "indicator"})
    assert vectors == [[1, 2, 0, 0], [3, 0, 0, 1], [0, 0, 1, 1]]
    ids = encode(raw, {"kind": "dense", "bucketize": [0.0], "missing": "indicator"})
    assert ids == [3, MISSING, 2, MISSING, MISSING, 3]


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        ({"kind": "dense", "missing": "indicator"}, 2),
        ({"kind": "dense", "missing": "indicator", "size": 3}, 6),
        ({"kind": "dense", "missing": 0.0, "size": 3}, 3),
    ],
)
def test_indicators_are_numbers_of_the_feature(feature: dict[str, Any], expected: int) -> None:
    (found,) = Encoding(spec_of(x=feature)).features.features
    assert found.size == expected


def test_rules_without_an_indicator_have_no_such_key() -> None:
    assert "indicator" not in Encoding(spec_of(x={"kind": "dense", "missing": 0})).rule("item", "x").to_json()
    rule = Encoding(spec_of(x={"kind": "dense", "missing": "indicator"})).rule("item", "x")
    again = rule_from_json(rule.to_json(), {})
    assert again.to_json() == rule.to_json()


def test_buckets_include_their_lower_edge() -> None:
    raw = pl.Series([-1.0, 0.0, 0.5, 1.0, 9.0])
    assert encode(raw, {"kind": "dense", "bucketize": [0.0, 1.0]}) == [2, 3, 3, 4, 4]
    assert encode(raw, {"kind": "dense", "bucketize": 2}, edges={"item.x": [0.7]}) == [2, 2, 2, 3, 3]


def test_vectors() -> None:
    raw = pl.Series([[1.0, 2.0], [3.0, None], None])
    assert encode(raw, {"kind": "dense", "size": 2, "missing": -1}) == [[1, 2], [3, -1], [-1, -1]]


def test_parts_of_times_are_those_of_the_zone() -> None:
    # 2024-01-14 was a Sunday; 16:30 in London is 00:30 of Monday in Shanghai
    moment = dt.datetime(2024, 1, 14, 16, 30, tzinfo=dt.UTC)
    seconds = pl.Series([int(moment.timestamp()), None], dtype=pl.Int64)
    expected = {"weekday": 0, "hour": 0, "minute": 30, "month": 0}
    for part, value in expected.items():
        assert encode(seconds, {"kind": "time", "part": part}) == [2 + value, 0]
        assert encode(seconds * 1000, {"kind": "time", "part": part, "column": "t", "unit": "ms"}) == [2 + value, 0]
        assert encode(pl.Series([moment]), {"kind": "time", "part": part}) == [2 + value]


def test_times_without_a_zone_are_local() -> None:
    local = to_times(pl.Series(["2024-01-15 00:30:00"]), None, "Asia/Shanghai")
    assert local.dt.epoch("s").to_list() == [int(dt.datetime(2024, 1, 14, 16, 30, tzinfo=dt.UTC).timestamp())]
    assert to_times(pl.Series([dt.date(2024, 1, 15)]), None, "UTC").dt.epoch("s").to_list() == [1705276800]


def test_each_time_is_read_by_itself() -> None:
    texts = ["2024-01-13 08:30:00", "2024-01-13T00:30:00Z", "2024-01-13T08:30", "2024-01-13T01:30:00.000+01:00", None]
    times = to_times(pl.Series(texts), None, "Asia/Shanghai").dt.epoch("s").to_list()
    assert times == [1705105800] * 4 + [None]
    assert to_times(pl.Series(["2024-01-13"]), None, "UTC").dt.epoch("s").to_list() == [1705104000]
    with pytest.raises(ValueError, match="found '2024-03-99', expected times such as"):
        to_times(pl.Series("at", ["2024-03-01T00:00:00", "2024-03-99"]), None, "UTC")


@pytest.mark.parametrize(
    ("raw", "feature", "message"),
    [
        (
            [1, -4],
            {"kind": "categorical", "num_buckets": 9},
            "column 'x': found -4, expected whole numbers from 0 to 8",
        ),
        ([1.5], {"kind": "categorical", "num_buckets": 9}, "column 'x': found Float64, expected whole numbers"),
        ([1.0, math.nan], {"kind": "dense"}, r"column 'x': found nan, expected numbers \(or give `missing`\)"),
        ([1.0, None], {"kind": "dense"}, "column 'x': found nothing, expected numbers"),
        (["a"], {"kind": "dense"}, "column 'x': found String, expected numbers"),
        ([[1.0]], {"kind": "dense", "size": 2}, r"column 'x': found List\(Float64\), expected lists of 2 numbers"),
        ([1.5], {"kind": "categorical", "hash_bucket_size": 9}, "x: found Float64, expected whole numbers or strings"),
        (["soon"], {"kind": "time", "part": "hour"}, "column 'x': found 'soon', expected times such as"),
        ([1.5], {"kind": "time", "part": "hour"}, "column 'x': found Float64, expected times"),
        ([1], {"kind": "time", "part": "hour", "column": "x"}, "for which `unit` must be s, ms or us"),
    ],
)
def test_wrong_values_are_named(raw: list[Any], feature: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        encode(pl.Series("x", raw), feature)
    if isinstance(caught.value, BadValueError):
        assert caught.value.position == 1
