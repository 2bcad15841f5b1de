"""Impressions from rows: what is put together, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.items import impression_schema, item_schema, item_table
from rankfall.data.impressions.spec import validate_spec

ROWS = {
    "request_id": [7, 7, 7, 3, 3],
    "item_id": [10, 11, 12, 11, 13],
    "user_id": [1, 1, 1, 0, 0],
    "at": [86_400_000, 86_400_000, 86_400_000, 86_399_999, 86_399_999],  # the first moment of a day, the last before
    "stage": ["drop", "show", "show", "drop", "drop"],
    "rank": [4, 1, 0, 9, 2],
    "view": [0, 1, 0, 0, 0],
    "color": ["red", "blue", "red", "green", "red"],
    "size": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [3.0, 4.0], [9.0, 9.0]],
}


def content(**changes: Any) -> dict[str, Any]:
    return {
        "user": "user_id",
        "time": {"column": "at", "unit": "ms"},
        "stage": "stage",
        "rank": "rank",
        "stages": [{"name": "drop"}, {"name": "show"}],
        "relevant": "show",
        "feedback": ["view"],
        "features": {
            "user": {"user_id": {"kind": "categorical", "num_buckets": 5}},
            "item": {
                "color": {"kind": "categorical", "vocabulary": True},
                "size": {"kind": "dense", "size": 2},
            },
        },
        **changes,
    }


def encoding_of(**changes: Any) -> Encoding:
    return Encoding(validate_spec(content(**changes)), {"item.color": pl.Series(["red", "blue"])})


def rows(**changes: Any) -> pl.DataFrame:
    return pl.DataFrame({**ROWS, **changes})


def by_item(impression: dict[str, Any], column: str) -> dict[int, Any]:
    return dict(zip(impression["item"], impression[column], strict=True))


def test_rows_become_impressions() -> None:
    days, counts = assemble(rows(), encoding_of())
    assert [(day, len(table)) for day, table in days] == [("1970-01-01", 1), ("1970-01-02", 1)]
    (third,), (seventh,) = (table.to_pylist() for _, table in days)
    assert (third["request"], third["user.user_id"]) == (3, 2)
    assert (seventh["request"], seventh["user.user_id"]) == (7, 3)
    assert by_item(seventh, "depth") == {10: 0, 11: 1, 12: 1}
    assert by_item(seventh, "rank") == {10: 4, 11: 1, 12: 0}
    assert by_item(seventh, "grade") == {10: 0, 11: 1, 12: 2}
    assert by_item(seventh, "relevance") == {10: 0, 11: 1, 12: 1}
    assert by_item(seventh, "feedback.view") == {10: 0, 11: 1, 12: 0}
    assert by_item(seventh, "item.color") == {10: 2, 11: 3, 12: 2}
    assert by_item(seventh, "item.size") == {10: [1, 2], 11: [3, 4], 12: [5, 6]}
    assert by_item(third, "item.color") == {11: 1, 13: 2}  # green was never seen
    assert by_item(third, "grade") == {11: 0, 13: 1}
    assert counts.to_json() == {
        "rows": 5,
        "requests": 2,
        "without_relevant": 1,
        "logged": {"drop": 3, "show": 2},
        "kept": {"drop": 3, "show": 2},
        "short": {},
        "negatives": 0,
        "values": {"user.user_id": 2, "item.color": 5},
        "missing": {"user.user_id": 0, "item.color": 0},
        "unseen": {"user.user_id": 0, "item.color": 1},
        "numbers": {"item.size": 5},
        "missing_numbers": {"item.size": 0},
    }
    assert days[0][1].schema == impression_schema(encoding_of().spec, request=pa.int64())


def test_positions_of_shown_items() -> None:
    shown = rows(place=[None, 1, 0, -1, 2])
    table = item_table(rows().unique("item_id", keep="last"), encoding_of())
    for negatives in (0, 1):
        days, _ = assemble(shown, encoding_of(position="place", negatives=negatives), items=table)
        third, seventh = (by_item(day.to_pylist()[0], "position") for _, day in days)
        assert third == {11: -1, 13: 2} | {item: -1 for item in third if item not in (11, 13)}
        assert seventh == {10: -1, 11: 1, 12: 0} | {item: -1 for item in seventh if item > 12}
        assert len(third) == 2 + negatives
    without, _ = assemble(shown, encoding_of())
    assert "position" not in without[0][1].column_names


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([0, -2, 1, 2, 3], r"column 'place': found -2, expected a whole number from 0 on, or -1 for none \(request 7"),
        ([0.0, 0.5, 1.0, 2.0, 3.0], "column 'place': found Float64, expected whole numbers"),
    ],
)
def test_wrong_positions(places: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assemble(rows(place=places), encoding_of(position="place"))


def test_the_order_of_rows_does_not_matter() -> None:
    expected = assemble(rows(), encoding_of())
    for seed in range(5):
        shuffled = assemble(rows().sample(fraction=1, shuffle=True, seed=seed), encoding_of())
        assert shuffled.counts == expected.counts
        assert all(a[1].equals(b[1]) for a, b in zip(shuffled.days, expected.days, strict=True))


def test_requests_alone_are_as_requests_together() -> None:
    together = assemble(rows(), encoding_of(stages=[{"name": "drop", "sample": 1}, {"name": "show", "sample": 1}]))
    for day, table in together.days:
        request = table["request"][0].as_py()
        alone = assemble(
            rows().filter(pl.col("request_id") == request),
            encoding_of(stages=[{"name": "drop", "sample": 1}, {"name": "show", "sample": 1}]),
        )
        assert alone.days[0][0] == day
        assert alone.days[0][1].equals(table)


def test_flags_and_numbers_say_the_same_as_names() -> None:
    expected = assemble(rows(), encoding_of())
    numbered = assemble(rows(stage=[0, 1, 1, 0, 0]), encoding_of())
    assert numbered.days[1][1].equals(expected.days[1][1])
    flags = content(stages=[{"name": "drop", "flag": "dropped"}, {"name": "show", "flag": "shown"}])
    del flags["stage"]
    encoding = Encoding(validate_spec(flags), {"item.color": pl.Series(["red", "blue"])})
    # the deepest flag counts, so it does not matter that shown items were in the first stage too
    flagged = assemble(rows(dropped=[1, 1, 0, 1, 1], shown=[0, 1, 1, None, 0]), encoding)
    assert flagged.days[1][1].equals(expected.days[1][1])
    nans = [0.0, 1.0, 1.0, float("nan"), float("nan")]  # which are no marks
    assert assemble(rows(dropped=[1, 1, 0, 1, 1], shown=nans), encoding).days[0][1].equals(expected.days[0][1])


def test_days_may_have_names() -> None:
    days, _ = assemble(rows(part=["S2", "S2", "S2", "S1", "S1"]), encoding_of(day="part"))
    assert [(day, table["request"].to_pylist()) for day, table in days] == [("S1", [3]), ("S2", [7])]


def test_relevance_may_be_a_column() -> None:
    days, counts = assemble(rows(score=[0.0, 2.0, -1.0, None, 0.5]), encoding_of(relevant={"column": "score"}))
    assert by_item(days[1][1].to_pylist()[0], "relevance") == {10: 0, 11: 2, 12: 0}
    assert by_item(days[0][1].to_pylist()[0], "relevance") == {11: 0, 13: 0.5}
    assert counts.without_relevant == 0


@pytest.mark.parametrize("stages", [{}, {"stages": [{"name": "shown"}]}])
def test_grades_of_logs_without_a_funnel_come_from_relevance(stages: dict[str, Any]) -> None:
    described = content(relevant={"column": "score"}, rank=None, stage=None) | stages
    if not stages:
        del described["stages"]
    encoding = Encoding(validate_spec(described), {"item.color": pl.Series(["red", "blue"])})
    days, _ = assemble(rows(score=[0.0, 2.0, -1.0, None, 0.5]), encoding)
    assert by_item(days[1][1].to_pylist()[0], "grade") == {10: 0, 11: 1, 12: 0}
    assert by_item(days[0][1].to_pylist()[0], "grade") == {11: 0, 13: 1}
    assert by_item(days[1][1].to_pylist()[0], "depth") == {10: 0, 11: 0, 12: 0}


def test_ranks_order_items_of_equal_relevance_in_logs_without_a_funnel() -> None:
    encoding = encoding_of(relevant={"column": "score"}, stage=None, stages=[{"name": "shown"}])
    days, _ = assemble(rows(score=[1.0, 1.0, 0.0, 0.0, 0.0]), encoding)
    assert by_item(days[1][1].to_pylist()[0], "grade") == {10: 1, 11: 2, 12: 0}  # ranks 4, 1, 0
    assert by_item(days[0][1].to_pylist()[0], "grade") == {11: 0, 13: 1}  # ranks 9, 2


def test_relevant_items_beyond_the_sample_are_noted() -> None:
    stages = [{"name": "drop"}, {"name": "show", "sample": 1}]
    for seed in range(5):
        days, _ = assemble(rows(), encoding_of(stages=stages), seed=seed)
        (third,), (seventh,) = (table.to_pylist() for _, table in days)
        assert third["left_out"] == []
        assert 10 in seventh["item"]
        assert len(seventh["left_out"]) == 1
        assert {*seventh["item"], *seventh["left_out"]} == {10, 11, 12}
    days, _ = assemble(rows(), encoding_of())  # without a sample nothing is left out
    assert [table["left_out"].to_pylist() for _, table in days] == [[[]], [[]]]


def test_relevant_items_beyond_the_sample_are_those_of_the_column() -> None:
    # one item of each stage is kept: of request 3 that is 11, which is not relevant, or 13, which is
    encoding = encoding_of(
        stages=[{"name": "drop", "sample": 1}, {"name": "show", "sample": 1}], relevant={"column": "score"}
    )
    score = [0.0, 2.0, -1.0, None, 0.5]
    names = {"item_id": ["ten", "eleven", "twelve", "eleven", "more"]}
    table = item_table(rows(**names).unique("item_id", keep="first"), encoding)  # eleven, more, ten, twelve
    third, seventh = set(), set()
    for seed in range(20):
        days, _ = assemble(rows(score=score), encoding, seed=seed)
        named, _ = assemble(rows(score=score, **names), encoding, seed=seed, items=table)
        for found, eleven, thirteen in ((days, 11, 13), (named, 0, 1)):
            one, other = (table.to_pylist()[0] for _, table in found)
            assert one["left_out"] == ([] if thirteen in one["item"] else [thirteen])
            assert other["left_out"] == ([] if eleven in other["item"] else [eleven])
            third.add(len(one["left_out"]))
            seventh.add(len(other["left_out"]))
    assert third == seventh == {0, 1}


def test_relevant_items_beyond_the_sample_are_sorted() -> None:
    encoding = encoding_of(stages=[{"name": "drop", "sample": 1}, {"name": "show"}], relevant="drop")
    many = pl.concat(
        [rows(item_id=[10, 40 - i, 12, 11, 40 - i]).filter(stage="drop", item_id=40 - i) for i in range(9)]
    )
    ((_, table),), _ = assemble(many, encoding)
    (impression,) = table.to_pylist()
    assert impression["left_out"] == [item for item in range(32, 41) if item not in impression["item"]]
    assert len(impression["left_out"]) == 8


def test_random_negatives_and_items_left_out_are_different() -> None:
    stages = [{"name": "drop"}, {"name": "show", "sample": 1}]
    encoding = encoding_of(stages=stages, negatives=9)
    table = item_table(rows().unique("item_id", keep="first"), encoding)
    (seventh,) = assemble(rows(), encoding, items=table).days[1][1].to_pylist()
    assert sorted([*seventh["item"], *seventh["left_out"]]) == [10, 11, 12, 13]


def test_requests_bring_sequences() -> None:
    sequences = {"history": {"max_length": 2, "features": ["color"], "feedback": "view"}}
    extra = pl.DataFrame({"request_id": [7, 3], "sequence.history.color": [["red", "black", "blue"], None]})
    days, counts = assemble(rows(), encoding_of(sequences=sequences), requests=extra)
    assert [table["sequence.history.color"].to_pylist() for _, table in days] == [[[]], [[1, 3]]]
    assert (counts.values["sequence.history.color"], counts.unseen["sequence.history.color"]) == (2, 1)


def test_columns_of_requests_may_be_called_anything() -> None:
    features = content()["features"]
    names = ["day", "time", "hash", "row", "key"]
    features["context"] = {name: {"kind": "categorical", "num_buckets": 9} for name in names}
    extra = pl.DataFrame({"request_id": [7, 3], **{name: [4, 5] for name in names}})
    days, _ = assemble(rows(), encoding_of(features=features), requests=extra)
    for name in names:
        assert [table[f"context.{name}"].to_pylist() for _, table in days] == [[7], [6]]


def test_rows_may_bring_sequences() -> None:
    sequences = {"history": {"features": ["color"], "columns": {"color": "past"}}}
    past = [["red"], ["red"], ["red"], [], []]
    days, _ = assemble(rows(past=past), encoding_of(sequences=sequences))
    assert [table["sequence.history.color"].to_pylist() for _, table in days] == [[[]], [[2]]]


def test_random_negatives_come_from_the_table() -> None:
    encoding = encoding_of(negatives=2)
    table = item_table(
        pl.DataFrame(
            {
                "item_id": [13, 12, 11, 10, 20],
                "color": ["red", "red", "blue", "red", "blue"],
                "size": [[9.0, 9.0], [5.0, 6.0], [3.0, 4.0], [1.0, 2.0], [7.0, 8.0]],
            }
        ),
        encoding,
    )
    assert table.schema == item_schema(encoding.spec)
    assert table["item"].to_pylist() == [10, 11, 12, 13, 20]
    days, counts = assemble(rows(), encoding, items=table)
    (seventh,) = days[1][1].to_pylist()
    assert sorted(seventh["item"]) == [10, 11, 12, 13, 20]  # the only two that are left
    assert by_item(seventh, "depth") == {10: 0, 11: 1, 12: 1, 13: -1, 20: -1}
    assert by_item(seventh, "grade") == {10: 1, 11: 2, 12: 3, 13: 0, 20: 0}
    assert by_item(seventh, "relevance")[20] == by_item(seventh, "feedback.view")[20] == 0
    assert by_item(seventh, "item.color") == {10: 2, 11: 3, 12: 2, 13: 2, 20: 3}
    assert by_item(seventh, "item.size")[20] == [7, 8]
    assert counts.negatives == 4


def test_ids_that_are_no_numbers_are_given_out() -> None:
    names = {"item_id": ["ten", "eleven", "twelve", "eleven", "more"]}
    encoding = encoding_of()
    table = item_table(rows(**names).unique("item_id", keep="first", maintain_order=True), encoding)
    assert table["id"].to_pylist() == ["eleven", "more", "ten", "twelve"]
    assert table["item"].to_pylist() == [0, 1, 2, 3]
    days, _ = assemble(rows(**names), encoding, items=table)
    assert by_item(days[1][1].to_pylist()[0], "depth") == {2: 0, 0: 1, 3: 1}
    large = {"item_id": [2**40, 5, 6, 5, 7]}
    table = item_table(rows(**large).unique("item_id", keep="first", maintain_order=True), encoding)
    assert table["id"].to_pylist() == [5, 6, 7, 2**40]


def test_truth_goes_along() -> None:
    truth = np.arange(5, dtype=np.float32)
    days, _ = assemble(rows(true=truth), encoding_of(truth="true"))
    assert by_item(days[1][1].to_pylist()[0], "truth") == {10: 0, 11: 1, 12: 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item_id": [10, 10, 12, 11, 13]}, r"an item occurs twice in a request \(request 7, item 10\)"),
        ({"request_id": [7, 7, None, 3, 3]}, "column 'request_id': found null"),
        ({"at": [1, 2, 1, 0, 0]}, "request 7 has rows with more than one value of 'at'"),
        ({"user_id": [1, 1, 2, 0, 0]}, "request 7 has rows with more than one value of 'user_id'"),
        ({"at": [None, None, None, 0, 0]}, "column 'at': found null, expected a time"),
        (
            {"stage": ["drop", "shown", "show", "drop", "drop"]},
            r"found 'shown', expected one of drop, show \(request 7, item 11\)",
        ),
        ({"stage": [0, 1, 2, 0, 0]}, r"found 2, expected one of 0 to 1 \(drop, show\) \(request 7, item 12\)"),
        ({"stage": [0.5, 1, 2, 0, 0]}, "column 'stage': found Float64, expected names or indices of stages"),
        ({"user_id": [-1, -1, -1, 0, 0]}, r"found -1, expected whole numbers from 0 to 4 \(request 7\)"),
        ({"size": [[1.0, 2.0], [3.0, None], [5.0, 6.0], [3.0, 4.0], [9.0, 9.0]]}, r"column 'size': .* \(request 7\)"),
        (
            {"rank": [0, 2**31, 2, 3, 4]},
            r"column 'rank': found 2147483648, expected a whole number from 0 on, or -1 for none \(request 7",
        ),
        (
            {"rank": [0, -4, 2, 3, 4]},
            r"column 'rank': found -4, expected a whole number from 0 on, or -1 for none \(request 7",
        ),
        (
            {"view": [0.0, 1.0, float("inf"), 0.0, 0.0]},
            r"found inf, expected finite numbers \(request 7, item 12\)",
        ),
        ({"rank": [0.5, 1, 2, 3, 4]}, "column 'rank': found Float64, expected whole numbers"),
        ({"item_id": ["a", "b", "c", "d", "e"]}, "item ids that are not int32 need an item table"),
    ],
)
def test_wrong_rows_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assemble(pl.DataFrame({**ROWS, **changes}, strict=False), encoding_of())


def test_sequences_of_different_lengths_are_refused() -> None:
    features = content()["features"]
    features["item"]["brand"] = {"kind": "categorical", "num_buckets": 3}
    encoding = encoding_of(
        features=features, sequences={"history": {"features": ["color", "brand"], "feedback": "view"}}
    )
    extra = pl.DataFrame(
        {
            "request_id": [7, 3],
            "sequence.history.color": [["red"], ["red"]],
            "sequence.history.brand": [[1], [1, 2]],
        }
    )
    with pytest.raises(ValueError, match=r"sequences.history: the features of request 3 have different numbers"):
        assemble(rows().with_columns(brand=0), encoding, requests=extra)
