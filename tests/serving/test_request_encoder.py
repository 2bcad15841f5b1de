"""The values of requests against the encoding of a log, and everything that can be wrong with them."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, strategies

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.spec import validate_spec
from rankfall.encoding import BadValueError, Lookup, plain_values, rule_from_json
from rankfall.serving import RequestError
from rankfall.serving.request_encoder import RequestEncoder, request_schema
from rankfall.serving.value_encoders import Encoders, make_encoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.data.impressions.spec import Spec

RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the log, and of the bundle
    "numbers": ({"kind": "categorical", "num_buckets": 10}, {"kind": "categorical", "ids": "numbers", "rows": 12}),
    **{
        kind: (
            {"kind": "categorical", "hash_bucket_size": 7},
            {"kind": "categorical", "ids": "hash", "rows": 9, "text": text},
        )
        for kind, text in (("hash", None), ("hash of text", True), ("hash of numbers", False))
    },
    "text": (
        {"kind": "categorical", "vocabulary": True},
        {"kind": "categorical", "ids": "vocabulary", "vocabulary": "text", "rows": 5, "text": True},
    ),
    "whole": (
        {"kind": "categorical", "vocabulary": True},
        {"kind": "categorical", "ids": "vocabulary", "vocabulary": "whole", "rows": 5, "text": False},
    ),
    "boolean": (
        {"kind": "categorical", "vocabulary": True},
        {"kind": "categorical", "ids": "vocabulary", "vocabulary": "boolean", "rows": 4, "text": False},
    ),
    **{
        part: (
            {"kind": "time", "part": part, "column": "x", "unit": "s"},
            {"kind": "time", "rows": 70, "part": part, "unit": "s", "zone": "Europe/Berlin", "of_request": False},
        )
        for part in ("month", "weekday", "hour", "minute")
    },
    "number": ({"kind": "dense"}, {}),
    "log": ({"kind": "dense", "log1p": True, "missing": -1.0}, {"log1p": True, "missing": -1.0}),
    "scaled": (
        {"kind": "dense", "standardise": True, "missing": 2.0},
        {"missing": 2.0, "mean": [3.0], "deviation": [4.0]},
    ),
    "vector": ({"kind": "dense", "size": 2, "missing": 0.5}, {"size": 2, "missing": 0.5}),
    "buckets": ({"kind": "dense", "bucketize": [0.0, 1.5], "missing": 9.0}, {"edges": [0.0, 1.5], "missing": 9.0}),
    "indicator": (
        {"kind": "dense", "standardise": True, "missing": "indicator"},
        {"missing": 0.0, "indicator": True, "mean": [3.0], "deviation": [4.0]},
    ),
    "vector with indicators": (
        {"kind": "dense", "size": 2, "log1p": True, "missing": "indicator"},
        {"size": 2, "log1p": True, "missing": 0.0, "indicator": True},
    ),
    "buckets with an indicator": (
        {"kind": "dense", "bucketize": [0.0, 1.5], "missing": "indicator"},
        {"edges": [0.0, 1.5], "missing": 0.0, "indicator": True},
    ),
}
DENSE = {"kind": "dense", "rows": 5, "size": 1, "log1p": False, "missing": None, "mean": None, "deviation": None}
VALUES: dict[str, list[Any]] = {"text": ["b", "a", "true"], "whole": [30, -4, 1], "boolean": [True, False]}
COLUMNS: list[tuple[str, list[Any]]] = [
    ("numbers", [0, 9, 10, 10**12, None]),
    ("numbers", [True, False]),
    ("hash", [5, -3, None, 2**62]),
    ("hash", ["author 1", "", None, "été"]),
    ("hash of text", ["author 1", "", None, "7"]),
    ("hash of numbers", [5, -3, None, 2**62]),
    ("text", ["a", "zz", None, "b", ""]),
    ("text", [True, False, None]),
    ("whole", [30, 1, None, -4, 2**60]),
    ("whole", [True, False, None]),
    ("boolean", [True, None, False]),
    *[
        (part, values)
        for part in ("month", "weekday", "hour", "minute")
        for values in (
            [0, 1_705_118_400, -1, None],
            ["2024-01-13T08:30:00", "2024-07-01", "2024-01-13T23:59:59Z", "2024-12-31 23:30:00+05:00", None],
        )
    ],
    ("number", [1, 2.5, -1e9]),
    ("log", [0, 10.0, -10.0, None]),
    ("scaled", [3, 7.0, None]),
    ("vector", [[1, 2.5], None]),
    ("buckets", [-1, 0, 0.5, 1.5, 2, None]),
    ("indicator", [3, 0.0, None, 7.0]),
    ("vector with indicators", [[1, 2.5], None, [None, 4.0]]),
    ("buckets with an indicator", [-1, 0, 2, None]),
]


def encoder(kind: str) -> Callable[[list[Any]], Any]:
    rule = RULES[kind][1]
    if rule.get("kind") is None:
        rule = DENSE | {"edges": None} | rule
    lookups = {name: Lookup.of(plain_values(pa.array(values)), name=name) for name, values in VALUES.items()}
    return make_encoder(rule_from_json(rule, lookups)).encode


@pytest.mark.parametrize(("kind", "values"), COLUMNS)
def test_values_are_read_as_the_log_was(kind: str, values: list[Any]) -> None:
    spec = validate_spec(
        {
            "time": {"column": "at", "unit": "s", "zone": "Europe/Berlin"},
            "stages": [{"name": "shown"}],
            "relevant": "shown",
            "features": {"item": {"x": RULES[kind][0]}},
        }
    )
    log = Encoding(
        spec,
        {"item.x": pl.Series(VALUES[kind])} if kind in VALUES else {},
        {"item.x": (np.array([3.0]), np.array([4.0]))},
    )
    expected = log.encode("item", "x", pl.Series("x", values, strict=False))
    found = encoder(kind)(values)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    each = [encoder(kind)([value])[0] for value in values]
    np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize(
    ("kind", "value", "same_as"),
    [
        ("numbers", 7.0, 7),
        ("numbers", np.int32(7), 7),
        ("whole", 30.0, 30),
        ("text", True, "true"),
        ("boolean", np.bool_(True), 1),
        ("boolean", False, 0),
        ("hash", 5.0, 5),
        ("hash of text", 5, "5"),
        ("hash of text", -5.0, "-5"),
        ("hash of text", True, "true"),
        ("hash of numbers", "5", 5),
        ("hash of numbers", "-123456789012345678", -123456789012345678),
        ("hash of numbers", True, 1),
        ("hour", dt.datetime(2024, 1, 13, 8, 30), "2024-01-13T08:30:00"),
        ("number", np.float32(0.5), 0.5),
        ("vector", (1, 2), [1.0, 2.0]),
    ],
)
def test_values_that_mean_the_same(kind: str, value: object, same_as: object) -> None:
    np.testing.assert_array_equal(encoder(kind)([value]), encoder(kind)([same_as]))


@pytest.mark.parametrize("kind", ["numbers", "hash", "text", "hour", "buckets"])
def test_encoded_id_is_accepted(kind: str) -> None:
    usual = {"numbers": 3, "hash": 3, "text": "a", "hour": 3, "buckets": 1.0}[kind]
    assert encoder(kind)([usual, {"id": 4}, {"id": 0}]).tolist()[1:] == [4, 0]
    for bad in ({"id": 70}, {"id": -1}, {"id": "4"}, {"id": 4, "x": 1}, {}):
        with pytest.raises(BadValueError, match=r"expected .*id") as error:
            encoder(kind)([usual, bad])
        assert error.value.position == 1


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        *(("numbers", bad) for bad in (-1, 1.5, "7", 2**63, math.nan, math.inf, [1], b"7")),
        *(("hash", bad) for bad in (1.5, 2**64, [1], "\ud800")),
        *(("hash of text", bad) for bad in (1.5, [1], "\ud800")),
        *(("hash of numbers", bad) for bad in (1.5, 2**64, [1], "x", "07", "-0", "1.0", " 1", "", "1" * 30)),
        *(("text", bad) for bad in (1.5, [1], "\ud800", [10**5000])),
        *(("whole", bad) for bad in ("7", 1.5, 10**30)),
        *(pytest.param(kind, 10**5000, id=f"{kind}-huge") for kind in ("text", "whole", "hash", "hour", "number")),
        ("boolean", "true"),
        *(("hour", bad) for bad in ("noon", 1.5, 10**30, "2024-03-31T02:30:00", "2024-13-01", [1])),
        *(("number", bad) for bad in (None, math.nan, math.inf, -math.inf, "1", [1], 10**400, 1e39)),
        *(("log", bad) for bad in (math.nan, math.inf, "1")),
        *(("vector", bad) for bad in ([1], [1, 2, 3], 1, [1, "2"], [1, math.nan], [[1], 2], "12", [1, 1e39])),
        *(("buckets", bad) for bad in (math.nan, "1")),
    ],
)
def test_invalid_values_are_refused(kind: str, bad: object) -> None:
    good = {
        "hash": "a",
        "hash of text": "a",
        "text": "a",
        "whole": 7,
        "boolean": True,
        "hour": 0,
        "vector": [0, 0],
    }.get(kind, 1)
    with pytest.raises(BadValueError, match=r"found .*, expected ") as error:
        encoder(kind)([good, good, bad, good])
    assert error.value.position == 2


@pytest.mark.parametrize(
    ("kind", "good", "bad", "expected"),
    [
        ("number", -1e10, -1.1e10, "a number from -1e+10 to 1e+10"),
        ("scaled", 40_003, 40_004, "a number from -39997 to 40003"),  # 1e4 deviations of 4 around 3
        ("scaled", -39_997, -1e10, "a number from -39997 to 40003"),
        ("indicator", 40_003, 40_004, "a number from -39997 to 40003"),
        ("vector", [0, 1e10], [1, 1.1e10], "a number from -1e+10 to 1e+10 at place 2 of the list"),
    ],
)
def test_numbers_beyond_the_limit_are_refused_and_the_limits_named(
    kind: str, good: Any, bad: Any, expected: str
) -> None:
    assert np.isfinite(encoder(kind)([good, None] if kind != "number" else [good])).all()
    with pytest.raises(BadValueError) as error:
        encoder(kind)([good, bad])
    assert str(error.value) == f"found {bad}, expected {expected}"


def test_limits_are_those_before_the_logarithm_and_missing_values_have_none() -> None:
    rule = DENSE | {"edges": None, "log1p": True, "missing": 5.0, "mean": [1.0], "deviation": [2e-4]}
    encode = make_encoder(rule_from_json(rule, {})).encode
    assert encode([1.0, None])[1] == 20_000
    with pytest.raises(BadValueError, match=r"found -2, expected a number from -1\.71828 to 19\.0855"):
        encode([-2])


WHOLE = strategies.integers(-2, 20) | strategies.sampled_from([2**63, 2.0, 2.5, True, None, "7"])
SOME = WHOLE | strategies.fixed_dictionaries({"id": strategies.integers(-1, 30)})


@given(
    columns=strategies.integers(0, 5).flatmap(
        lambda n: strategies.lists(strategies.lists(SOME, min_size=n, max_size=n), min_size=3, max_size=3)
    )
)
def test_joint_encoding_equals_encoding_each_feature(columns: list[list[Any]]) -> None:
    rules = {name: {"kind": "categorical", "ids": "numbers", "rows": rows} for name, rows in (("a", 4), ("b", 12))}
    rules["c"] = RULES["hash"][1]
    parsed = {name: rule_from_json(rule, {}) for name, rule in rules.items()}
    given = dict(zip(rules, columns, strict=True))
    alone: dict[str, Any] = {}
    wrong: list[tuple[str, int]] = []
    for name, values in given.items():
        try:
            alone[name] = make_encoder(parsed[name]).encode(values)
        except BadValueError as error:
            wrong.append((name, error.position))
    if not wrong:
        found = Encoders(parsed).encode(given, lambda name, error: error)
        for name, expected in alone.items():
            np.testing.assert_array_equal(found[name], expected)
            assert found[name].dtype == np.int32
        return
    with pytest.raises(KeyError) as raised:
        Encoders(parsed).encode(given, lambda name, error: KeyError(name, error.position))
    assert raised.value.args == wrong[0]


def test_lookup_returns_positions_and_minus_one() -> None:
    random = np.random.default_rng(0)
    numbers = random.permutation(10_000) - 5000
    lookup = Lookup.of(pa.array(numbers), name="numbers")
    np.testing.assert_array_equal(lookup.find(pa.array(numbers)), np.arange(10_000))
    assert (lookup.find(pa.array([5000, 2**40, -(2**63)])) == -1).all()
    assert len(lookup.find(pa.array([], pa.int64()))) == 0
    few = [lookup.find(pa.array(numbers[start : start + 100])) for start in range(0, 10_000, 100)]  # by their hashes
    np.testing.assert_array_equal(np.concatenate(few), np.arange(10_000))
    many = np.concatenate([numbers, numbers + 10_000])  # by a hash table
    assert lookup.find(pa.array(many)).tolist() == [*range(10_000), *[-1] * 10_000]
    assert Lookup(pa.array(numbers)).find(pa.array([numbers[7]])).tolist() == [7]
    text = Lookup.of(pa.array([f"item {number}" for number in numbers], pa.large_string()), name="text")
    assert text.find(pa.array(["item 7", "item 07"], pa.large_string())).tolist() == [numbers.tolist().index(7), -1]
    with pytest.raises(ValueError, match="numbers: 4 occurs twice"):
        Lookup.of(pa.array([1, 4, 2, 4]), name="numbers")


def test_the_schema_names_what_events_need() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    dense = DENSE | {"edges": [1.0]}
    features = {"price": dense, "size": dense | {"missing": 0.0}, "author": RULES["hash of numbers"][1]}
    rules: dict[str, Any] = {"time": None, "user": {}, "context": {}, "ignored": []}
    rules["sequences"] = {"clicks": {"max_length": 3, "features": features, "ignored": ["colour"]}}
    encoder = RequestEncoder(rules, {})
    check = jsonschema.Draft202012Validator(request_schema(rules))
    for clicks, good in (
        ([{"price": 2.5}], True),
        ([{"price": 2.5, "author": "7", "colour": "red"}], True),
        ([{"size": 2.5}], False),
        ([{"price": 2.5}, {}], False),
        ([{"price": None}], False),
        ([{"price": 2.5, "author": "x"}], False),
        ({"price": [2.5]}, True),
        ({"price": [2.5], "colour": ["red"]}, True),
        ({"size": [2.5]}, False),
        ({"price": [2.5], "colour": 3}, False),
        ({}, True),
        ([], True),
    ):
        request = {"sequences": {"clicks": clicks}}
        assert check.is_valid(request) == good
        try:
            encoder.encode([request], name=str)
        except RequestError:
            assert not good
        else:
            assert good


ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "Australia/Lord_Howe")
FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
OFFSETS = ("", "Z", "+00:00", "-03:30", "+05:45")


@given(
    zone=strategies.sampled_from(ZONES),
    part=strategies.sampled_from(["month", "weekday", "hour", "minute"]),
    moment=strategies.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2037, 12, 31)),
    form=strategies.sampled_from(FORMATS),
    offset=strategies.sampled_from(OFFSETS),
)
def test_text_of_a_time_is_read_as_in_a_log(zone: str, part: str, moment: dt.datetime, form: str, offset: str) -> None:
    """Times are parsed by polars in logs and by Python in requests: the only step that they do not share."""
    text = moment.strftime(form) + (offset if "%M" in form else "")
    spec = time_spec(zone, part)
    read = make_encoder(rule_from_json(Encoding(spec).rule("item", "x").to_json(), {})).encode
    try:
        expected = Encoding(spec).encode("item", "x", pl.Series("x", [text]))
    except ValueError:
        with pytest.raises(BadValueError, match="expected a time"):
            read([text])
    else:
        assert read([text]).tolist() == expected.tolist()


@given(
    zone=strategies.sampled_from(ZONES),
    part=strategies.sampled_from(["month", "weekday", "hour", "minute"]),
    unit=strategies.sampled_from(["s", "ms", "us"]),
    seconds=strategies.lists(strategies.integers(-(10**9), 2 * 10**9), min_size=1),
)
def test_the_number_of_a_time_is_read_as_in_a_log(zone: str, part: str, unit: str, seconds: list[int]) -> None:
    values = [second * {"s": 1, "ms": 1000, "us": 10**6}[unit] for second in seconds]
    encoding = Encoding(time_spec(zone, part, unit))
    read = make_encoder(encoding.rule("item", "x")).encode
    assert read(values).tolist() == encoding.encode("item", "x", pl.Series("x", values)).tolist()


def time_spec(zone: str, part: str, unit: str | None = None) -> Spec:
    return validate_spec(
        {
            "time": {"column": "at", "zone": zone},
            "stages": [{"name": "shown"}],
            "relevant": "shown",
            "features": {"item": {"x": {"kind": "time", "part": part, "column": "x", "unit": unit}}},
        }
    )
