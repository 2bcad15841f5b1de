"""What is counted in impression logs, against loops over their rows, and what each check finds."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import tracemalloc
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from rankfall.data import Recipe, prepare_letor
from rankfall.data.impressions import log_writer as log_module
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.inspect import inspect
from rankfall.data.inspect import inspect_log as count_module
from rankfall.data.inspect.checks import CHECKS, LIST_CHECKS
from support.command_line import run
from support.logs import DAYS, ITEMS, ROWS, item_columns, random_log, spec, write_log
from support.paths import ROOT
from support.sealing import edit_manifest, seal_again

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.data.inspect.inspection import Inspection
    from support.logs import Columns

    Days = dict[str, Columns]


# --- figures against loops ----------------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of seven impressions, so that small logs have many."""
    monkeypatch.setattr(log_module, "BLOCK", 7)


def messy(days: Days) -> None:
    """Lists of all lengths, missing and unseen ids, numbers that are none, labels of any kind."""
    rng = np.random.default_rng(5)
    for columns in days.values():
        for place in range(len(columns["request"])):
            kept = rng.random(len(columns["item"][place])) < rng.random()
            for column, lists in columns.items():
                if column.split(".")[0] in ("item", "depth", "rank", "relevance", "grade", "feedback"):
                    lists[place] = [value for value, keep in zip(lists[place], kept, strict=True) if keep]
            items = len(columns["item"][place])
            columns["item.video"][place] = rng.choice([0, 1, 2, 3, 41, 42, -5], items).tolist()
            columns["item.price"][place] = rng.choice([1.5, -2.0, math.nan, math.inf], items).tolist()
            columns["relevance"][place] = rng.choice([0.0, 0.5, 1.0, math.nan], items).tolist()
            columns["depth"][place] = rng.integers(-2, 4, items).tolist()
            columns["grade"][place] = rng.integers(0, 4, items).tolist()
            columns["item"][place] = rng.integers(0, ITEMS + 5, items).tolist()
            if rng.random() < 0.2:
                columns["request"][place] = 3
            columns["user.taste"][place] = [1.0, rng.choice([2.0, math.nan]), rng.normal()]
            columns["time"][place] += int(rng.integers(-4_000_000, 4_000_000))


@pytest.fixture
def log(tmp_path: Path, small_blocks: None) -> ImpressionLog:
    return random_log(tmp_path / "log", change=messy)


@pytest.fixture
def figures(log: ImpressionLog) -> Inspection:
    return inspect(log)


def rows_of(log: ImpressionLog, day: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = log.days[day].table().to_pylist()
    return rows


def all_rows(log: ImpressionLog) -> list[dict[str, Any]]:
    return [row for day in log.days for row in rows_of(log, day)]


def values_of(rows: list[dict[str, Any]], column: str) -> list[Any]:
    """The values of a column, or of its lists, one after the other."""
    values = [row[column] for row in rows]
    nested = column.split(".")[0] not in ("request", "time", "user", "context")
    return [value for one in values for value in one] if nested else values


def test_days(log: ImpressionLog, figures: Inspection) -> None:
    requests: list[int] = []
    for day in figures.days:
        rows = rows_of(log, day.name)
        lengths = [len(row["item"]) for row in rows]
        times = [round(row["time"].timestamp() * 1000) for row in rows]
        relevant = [[value > 0 for value in row["relevance"]] for row in rows]
        assert day.impressions == len(rows)
        assert day.items == sum(lengths)
        assert (day.first_time, day.last_time) == (min(times), max(times))
        assert (day.lengths.min, day.lengths.max, day.lengths.count) == (min(lengths), max(lengths), len(lengths))
        assert day.lengths.median == statistics.median(lengths)
        assert day.lengths.mean == pytest.approx(statistics.mean(lengths))
        assert day.lengths.empty == lengths.count(0)
        assert day.relevant == sum(map(sum, relevant))
        assert day.without_relevant == sum(bool(one) and not any(one) for one in relevant)
        assert day.all_relevant == sum(bool(one) and all(one) for one in relevant)
        assert day.unsorted == sum(later < earlier for earlier, later in pairwise(times))
        assert day.repeated_items == sum(len(row["item"]) - len(set(row["item"])) for row in rows)
        assert day.unknown_items == sum(item >= ITEMS for row in rows for item in row["item"])
        assert day.wrong_depths == sum(not -1 <= depth <= 2 for row in rows for depth in row["depth"])
        assert day.contradictions == sum(
            (depth >= 2) != (value > 0)
            for row in rows
            for depth, value in zip(row["depth"], row["relevance"], strict=True)
        )
        assert day.wrong_grades == sum(map(grades_contradict, rows))
        assert day.one_grade == sum(len(row["grade"]) > 1 and len(set(row["grade"])) == 1 for row in rows)
        assert day.outranked == sum(map(has_outranked_item, rows))
        for name, share in day.feedback.items():
            values = values_of(rows, f"feedback.{name}")
            assert share == pytest.approx(sum(value > 0 for value in values) / len(values))
        again = 0
        for row in rows:
            again += row["request"] in requests
            requests.append(row["request"])
        assert day.repeated_requests == again


def has_outranked_item(row: dict[str, Any]) -> bool:
    items = list(zip(row["relevance"], row["grade"], strict=True))
    return any(a[0] > 0 and not b[0] > 0 and b[1] > a[1] for a in items for b in items)


def grades_contradict(row: dict[str, Any]) -> bool:
    items = list(zip(row["depth"], row["grade"], strict=True))
    return any(a[0] < b[0] and a[1] >= b[1] for a in items for b in items)


def test_stages(log: ImpressionLog, figures: Inspection) -> None:
    samples = {-1: 2, 0: 4, 1: 3, 2: 2}
    for part, rows in [
        (figures.stages, all_rows(log)),
        *((day.stages, rows_of(log, day.name)) for day in figures.days),
    ]:
        assert [(stage.depth, stage.name) for stage in part] == [
            (-1, "random negatives"),
            (0, "dropped"),
            (1, "ranked"),
            (2, "shown"),
        ]
        for stage in part:
            counts = [row["depth"].count(stage.depth) for row in rows]
            assert stage.sample == samples[stage.depth]
            assert stage.items == sum(counts)
            assert stage.empty == counts.count(0)
            assert stage.short == sum(count < samples[stage.depth] for count in counts)
            assert stage.relevant == sum(
                depth == stage.depth and value > 0
                for row in rows
                for depth, value in zip(row["depth"], row["relevance"], strict=True)
            )


def test_ids(log: ImpressionLog, figures: Inspection) -> None:
    tables = {"user.id": "user.id", "context.hour": "context.hour", "video": "video", "author": "item.author"}
    assert [ids.column for ids in figures.ids] == [
        "user.id",
        "context.hour",
        "item.video",
        "item.author",
        "sequence.history.video",
        "sequence.history.author",
    ]
    for ids in figures.ids:
        table = tables[ids.column if ids.column in tables else ids.column.split(".")[-1]]
        values = values_of(all_rows(log), ids.column)
        inside = [value for value in values if 0 <= value < ROWS[table]]
        assert (ids.table, ids.known) == (table, ROWS[table] - 2)
        assert ids.hashed == (table == "item.author")
        assert ids.distinct == len({value for value in inside if value >= 2})
        assert ids.counts.values == len(values)
        assert ids.counts.missing == values.count(0)
        assert ids.counts.unseen == values.count(1)
        assert ids.counts.outside == len(values) - len(inside)
        for day in figures.days:
            of_day = values_of(rows_of(log, day.name), ids.column)
            assert day.features[ids.column].unseen == of_day.count(1)
            assert day.features[ids.column].missing == of_day.count(0)


def test_numbers(log: ImpressionLog, figures: Inspection) -> None:
    columns = ["user.taste", "context.load", "item.price", "relevance", "feedback.click", "feedback.like"]
    assert [numbers.column for numbers in figures.numbers] == columns
    for numbers in figures.numbers:
        rows = [np.atleast_1d(value) for value in values_of(all_rows(log), numbers.column)]
        whole = np.array([row for row in rows if np.isfinite(row).all()])
        assert numbers.size == whole.shape[1]
        assert numbers.counts.values == len(rows)
        assert numbers.counts.missing == len(rows) - len(whole)
        assert (numbers.min, numbers.max) == (whole.min(), whole.max())
        assert numbers.mean == pytest.approx(whole.mean(), abs=1e-6)
        assert numbers.deviation == pytest.approx(whole.std(), rel=1e-6)
        assert numbers.constant == sum(len(set(column)) == 1 for column in whole.T.tolist())


def test_sequences(log: ImpressionLog, figures: Inspection) -> None:
    (sequence,) = figures.sequences
    rows = all_rows(log)
    lengths = [len(row["sequence.history.video"]) for row in rows]
    assert (sequence.name, sequence.max_length) == ("history", 8)
    assert (sequence.lengths.min, sequence.lengths.max) == (min(lengths), max(lengths))
    assert sequence.lengths.mean == pytest.approx(statistics.mean(lengths))
    assert sequence.lengths.empty == lengths.count(0)
    for day in figures.days:
        of_day = [len(row["sequence.history.video"]) for row in rows_of(log, day.name)]
        assert day.sequences["history"].median == statistics.median(of_day)
    for feature in ("video", "author"):
        compared = same = 0
        for row in rows:
            relevant = {item for item, value in zip(row[f"item.{feature}"], row["relevance"], strict=True) if value > 0}
            if events := row[f"sequence.history.{feature}"]:
                compared += any(value > 0 for value in row["relevance"])
                same += events[-1] >= 2 and events[-1] in relevant
        assert sequence.newest_is_relevant[feature] == pytest.approx(same / compared)


def test_items(log: ImpressionLog, figures: Inspection) -> None:
    seen = {item for item in values_of(all_rows(log), "item") if item < ITEMS}
    assert (figures.items.rows, figures.items.seen, figures.items.unsorted) == (ITEMS, len(seen), 0)
    assert {column: counts.values for column, counts in figures.items.features.items()} == dict.fromkeys(
        ("item.video", "item.author", "item.price"), ITEMS
    )


def test_labels_of_few_values(log: ImpressionLog, figures: Inspection) -> None:
    for label in ("relevance", "grade"):
        counts = Counter(value for value in values_of(all_rows(log), label) if math.isfinite(value))
        assert [(one.low, one.high, one.count) for one in figures.labels[label]] == [
            (value, value, counts[value]) for value in sorted(counts)
        ]


@pytest.mark.parametrize("held", [1000, 30])
def test_labels_of_many_values(tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(count_module, "VALUES_HELD", held)
    rng = np.random.default_rng(1)

    def change(days: Days) -> None:
        for columns in days.values():
            columns["relevance"] = [rng.integers(0, 60, len(one)).tolist() for one in columns["relevance"]]
            columns["grade"] = [rng.integers(-3, 48, len(one)).tolist() for one in columns["grade"]]

    log = random_log(tmp_path / "log", change=change)
    figures = inspect(log)
    for label in ("relevance", "grade"):
        bins, values = figures.labels[label], values_of(all_rows(log), label)
        assert len(bins) <= 20
        assert (bins[0].low, sum(one.count for one in bins)) == (min(values), len(values))
        assert bins[-1].high >= max(values)
        for one in bins:
            last = label == "grade" or one is bins[-1]  # whole numbers include both ends
            assert one.count == sum(one.low <= value < one.high or (last and value == one.high) for value in values)
        gap = 1 if label == "grade" else 0
        assert all(later.low == earlier.high + gap for earlier, later in pairwise(bins))


def test_uneven_impressions_are_left_out(tmp_path: Path, small_blocks: None) -> None:
    def damage(days: Days) -> None:
        days[DAYS[1]]["rank"][3].pop()
        days[DAYS[1]]["feedback.like"][40].append(0.0)
        days[DAYS[2]]["sequence.history.author"][9].append(7)

    def remove(days: Days) -> None:
        for day, places in [(DAYS[1], (40, 3)), (DAYS[2], (9,))]:
            for values in days[day].values():
                for place in places:
                    del values[place]

    damaged = inspect(random_log(tmp_path / "damaged", change=damage))
    rest = inspect(random_log(tmp_path / "rest", change=remove))
    assert [day.uneven for day in damaged.days] == [0, 2, 1]
    for one, other in zip(damaged.days, rest.days, strict=True):
        assert (one.stages, one.features, one.lengths) == (other.stages, other.features, other.lengths)
    assert (damaged.ids, damaged.labels) == (rest.ids, rest.labels)


def test_blocks_do_not_matter(
    log: ImpressionLog, figures: Inspection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "BLOCK", 4096)
    whole = inspect(random_log(tmp_path / "whole", change=messy))
    assert (figures.days, figures.stages, figures.ids) == (whole.days, whole.stages, whole.ids)
    assert (figures.items, figures.labels, figures.sequences) == (whole.items, whole.labels, whole.sequences)
    assert figures.warnings == whole.warnings
    for one, other in zip(figures.numbers, whole.numbers, strict=True):
        assert (one.min, one.max, one.counts) == (other.min, other.max, other.counts)
        assert (one.mean, one.deviation) == pytest.approx((other.mean, other.deviation))


@pytest.mark.parametrize("ids", ["whole numbers", "strings"])
@pytest.mark.parametrize("at_once", [2**22, 40])
def test_repeated_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str, at_once: int) -> None:
    monkeypatch.setattr(count_module, "REQUESTS_AT_ONCE", at_once)
    rng = np.random.default_rng(3)

    def change(days: Days) -> None:
        for columns in days.values():
            columns["request"] = [
                int(one) if ids == "whole numbers" else f"request {one}"
                for one in rng.integers(0, 120, len(columns["request"]))
            ]

    log = random_log(tmp_path / "log", change=change, request=pa.int64() if ids == "whole numbers" else pa.string())
    seen: set[Any] = set()
    expected = []
    for day in log.days:
        requests = [row["request"] for row in rows_of(log, day)]
        expected.append(sum(one in seen or one in requests[:place] for place, one in enumerate(requests)))
        seen |= set(requests)
    assert [day.repeated_requests for day in inspect(log).days] == expected


def test_items_with_large_gaps(tmp_path: Path) -> None:
    """Ids that are far apart are searched for, those that are not are looked up; both find the same."""
    far = 50_000_000

    def spread(days: Days) -> None:
        for columns in days.values():
            columns["item"] = [[item * far for item in items] for items in columns["item"]]
        days[DAYS[0]]["item"][0][:3] = [1, 39 * far + 1, 5 * far - 1]

    items = item_columns()
    items["item"] = [item * far for item in items["item"]]
    figures = inspect(random_log(tmp_path / "log", change=spread, items=items))
    assert (figures.items.seen, [day.unknown_items for day in figures.days]) == (ITEMS, [3, 0, 0])


def test_some_days(tmp_path: Path) -> None:
    log = random_log(tmp_path / "log")
    heard: list[str] = []
    figures = inspect(log, days=log.choose([f"{DAYS[1]}.."]), on_day=heard.append)
    assert [day.name for day in figures.days] == heard == list(DAYS[1:])
    whole = inspect(log)
    assert figures.days == whole.days[1:]
    assert figures.impressions == sum(day.impressions for day in whole.days[1:])


def test_a_log_without_features_negatives_and_times(tmp_path: Path) -> None:
    description = spec(
        time=None,
        day="day",
        negatives=0,
        feedback=[],
        features={},
        sequences={},
        stages=[{"name": "seen"}, {"name": "bought"}],
        relevant={"column": "bought"},
    )
    columns: Columns = {
        "request": ["a", "b"],
        "time": [0, 0],
        "item": [[1, 2], [2]],
        "depth": [[0, 1], [1]],
        "rank": [[0, -1], [3]],
        "relevance": [[0.0, 1.0], [0.0]],
        "grade": [[0, 1], [0]],
        "left_out": [[], [1]],
    }
    path = tmp_path / "log"
    log = write_log(path, {"one": columns}, description=description, items={"item": [1, 2]}, request=pa.string())
    figures = inspect(log)
    assert [(stage.name, stage.sample, stage.items, stage.short) for stage in figures.stages] == [
        ("seen", None, 1, 0),
        ("bought", None, 2, 0),
    ]
    assert (figures.ids, figures.sequences, figures.timed) == ([], [], False)
    assert [warning.check for warning in figures.warnings] == ["impressions_without_relevant"]


def test_figures_are_json(figures: Inspection) -> None:
    content = json.loads(json.dumps(figures.to_json()))
    assert content["days"][0]["name"] == DAYS[0]
    assert content["labels"]["grade"][0]["count"] == figures.labels["grade"][0].count


# --- warnings -----------------------------------------------------------------------------------------------------


def each(days: Days) -> list[tuple[Columns, int]]:
    """Every impression: its day's columns and its place in them."""
    return [(columns, place) for columns in days.values() for place in range(len(columns["request"]))]


def keep_items(columns: Columns, place: int, kept: Callable[[int], bool]) -> None:
    """Keep the items of an impression whose depth passes."""
    chosen = [kept(depth) for depth in columns["depth"][place]]
    for column, lists in columns.items():
        if column.split(".")[0] in ("item", "depth", "rank", "relevance", "grade", "feedback"):
            lists[place] = [value for value, keep in zip(lists[place], chosen, strict=True) if keep]


def uneven_lists(days: Days) -> None:
    days[DAYS[1]]["rank"][3].pop()


def ids_outside(days: Days) -> None:
    days[DAYS[1]]["item.author"][3][2] = 302
    days[DAYS[1]]["item.author"][4][2] = -1


def wrong_depths(days: Days) -> None:
    place = days[DAYS[1]]["depth"][3].index(2)
    days[DAYS[1]]["depth"][3][place] = 3


def unknown_items(days: Days) -> None:
    days[DAYS[2]]["item"][3][2] = ITEMS


def repeated_items(days: Days) -> None:
    for column in ("item", "item.video", "item.author"):
        days[DAYS[1]][column][3][0] = days[DAYS[1]][column][3][1]


def repeated_requests(days: Days) -> None:
    days[DAYS[2]]["request"][3] = days[DAYS[0]]["request"][4]


def empty_impressions(days: Days) -> None:
    keep_items(days[DAYS[1]], 3, lambda depth: False)


def no_relevant_items(days: Days) -> None:
    columns = days[DAYS[1]]
    columns["relevance"] = [[0.0] * len(one) for one in columns["relevance"]]


def impressions_without_relevant(days: Days) -> None:
    columns = days[DAYS[1]]
    columns["relevance"][:4] = [[0.0] * len(one) for one in columns["relevance"][:4]]


def everything_relevant(days: Days) -> None:
    columns = days[DAYS[1]]
    columns["relevance"][:4] = [[1.0] * len(one) for one in columns["relevance"][:4]]


def empty_stages(days: Days) -> None:
    for place in range(len(days[DAYS[1]]["request"])):
        keep_items(days[DAYS[1]], place, lambda depth: depth != 0)


def short_stages(days: Days) -> None:
    for place in range(1, len(days[DAYS[1]]["request"])):
        keep_items(days[DAYS[1]], place, lambda depth: depth != 0)


def contradicting_relevance(days: Days) -> None:
    depth, relevance = days[DAYS[1]]["depth"][3], days[DAYS[1]]["relevance"][3]
    relevance[depth.index(0)] = 1.0


def contradicting_grades(days: Days) -> None:
    depth, grade = days[DAYS[1]]["depth"][3], days[DAYS[1]]["grade"][3]
    grade[depth.index(0)] = max(grade)


def degenerate_grades(days: Days) -> None:
    columns = days[DAYS[1]]
    columns["grade"][:3] = [[0] * len(one) for one in columns["grade"][:3]]


def days_out_of_order(days: Days) -> None:
    days[DAYS[1]]["time"] = [time - 3_600_000 for time in days[DAYS[1]]["time"]]


def unsorted_days(days: Days) -> None:
    times = days[DAYS[1]]["time"]
    times[3], times[4] = times[4], times[3]


def small_days(days: Days) -> None:
    for values in days[DAYS[2]].values():
        del values[10:]


def missing_features(days: Days) -> None:
    days[DAYS[1]]["user.id"] = [0] * len(days[DAYS[1]]["user.id"])


def constant_features(days: Days) -> None:
    for columns, place in each(days):
        columns["context.load"][place] = 0.25


def constant_ids(days: Days) -> None:
    for columns, place in each(days):
        columns["context.hour"][place] = 7


def constant_place_of_a_vector(days: Days) -> None:
    for columns, place in each(days):
        columns["user.taste"][place][1] = 3.0


def numbers_not_finite(days: Days) -> None:
    days[DAYS[1]]["item.price"][3][2] = math.nan


def huge_numbers(days: Days) -> None:
    days[DAYS[1]]["item.price"][3][2] = -2e9


def unseen_ids(days: Days) -> None:
    for columns, place in each(days):
        if place % 3 == 0:
            columns["user.id"][place] = 1


def growing_unseen_ids(days: Days) -> None:
    columns = days[DAYS[2]]
    columns["user.id"] = [1 if place % 3 == 0 else value for place, value in enumerate(columns["user.id"])]


def full_hash_tables(days: Days) -> None:
    rng = np.random.default_rng(2)
    for columns, place in each(days):
        columns["item.author"][place] = rng.integers(2, 302, len(columns["item"][place])).tolist()


def empty_sequences(days: Days) -> None:
    for feature in ("video", "author"):
        days[DAYS[1]][f"sequence.history.{feature}"] = [[] for _ in days[DAYS[1]]["request"]]


def long_sequences(days: Days) -> None:
    for feature in ("video", "author"):
        days[DAYS[1]][f"sequence.history.{feature}"][4] = list(range(2, 11))


def leaking_sequences(days: Days) -> None:
    for columns, place in each(days):
        shown = columns["depth"][place].index(2)
        for feature in ("video", "author"):
            if events := columns[f"sequence.history.{feature}"][place]:
                events[-1] = columns[f"item.{feature}"][place][shown]


MISTAKES: list[tuple[Callable[[Days], None], str, str]] = [
    (uneven_lists, "", rf"^impressions with lists of different lengths.*: 1 \(on {DAYS[1]}\)"),
    (ids_outside, "", rf"^item.author: 2 ids are outside .* 'item.author', which has 302 rows \(on {DAYS[1]}\)"),
    (wrong_depths, "", rf"^items with a depth .*: 1 \(on {DAYS[1]}\)"),
    (unknown_items, "", rf"^items that are not in items.arrow: 1 \(on {DAYS[2]}\)"),
    (repeated_items, "", rf"^items that occur twice in their impression: 1 \(on {DAYS[1]}\)"),
    (repeated_requests, "", rf"^impressions whose request occurs earlier in the log: 1 \(on {DAYS[2]}\)"),
    (empty_impressions, "", rf"^impressions without items: 1 \(on {DAYS[1]}\)"),
    (no_relevant_items, "", rf"^no item is relevant \(on {DAYS[1]}\)"),
    (impressions_without_relevant, "", r"^impressions without a relevant item.*: 4, 2.7% of all"),
    (everything_relevant, "", r"^impressions with relevant items only.*: 4, 2.7% of all"),
    (empty_stages, "", rf"^stage 'dropped' has no items \(on {DAYS[1]}\)"),
    (short_stages, "", rf"^stage 'dropped' has 0.1 items .* sample size of 4, which 98.0% .* \(on {DAYS[1]}\)"),
    (contradicting_relevance, "", rf"^items that contradict .* 'shown' .*: 1 \(on {DAYS[1]}\)"),
    (contradicting_grades, "", rf"^impressions with an item graded .*: 1 \(on {DAYS[1]}\)"),
    (degenerate_grades, "", r"^impressions whose items all have the same grade: 3, 2.0% of all"),
    (days_out_of_order, "", f"^day {DAYS[1]} begins before an earlier day ends"),
    (unsorted_days, "", rf"^impressions with an earlier time than the one before: 1 \(on {DAYS[1]}\)"),
    (small_days, "", f"^day {DAYS[2]} has 10 impressions, the median day 50"),
    (missing_features, "", rf"^user.id has no value \(on {DAYS[1]}\)"),
    (constant_features, "", "^context.load has the same value in all 150 places"),
    (constant_ids, "constant_features", "^context.hour has the same value in all 150 places"),
    (
        constant_place_of_a_vector,
        "constant_features",
        "^user.taste has the same value in 1 of its 3 components in all 150 places",
    ),
    (numbers_not_finite, "", rf"^item.price: 1 values are not finite, 0.1% \(on {DAYS[1]}\)"),
    (huge_numbers, "", r"^item.price ranges from -2e\+09 to "),
    (unseen_ids, "", "^user.id: 34.0% of the ids were never seen"),
    (growing_unseen_ids, "", f"^user.id: .* from 0.0% on {DAYS[0]} to 34.0% on {DAYS[2]}"),
    (full_hash_tables, "", r"^item.author: (29\d|300) of 300 hash buckets are used"),
    (empty_sequences, "", rf"^sequence 'history' is empty \(on {DAYS[1]}\)"),
    (long_sequences, "", "^sequence 'history' has up to 9 events, expected at most 8"),
    (leaking_sequences, "", r"^sequence 'history': the newest event .* in 100.0% of the impressions \(video\)"),
]
# what follows from a mistake, because it is one: items that are relevant where the stage says they are not, ...
CONSEQUENCES = {
    "wrong_depths": {"contradicting_grades"},
    "degenerate_grades": {"contradicting_grades"},
    "no_relevant_items": {"contradicting_relevance"},
    "impressions_without_relevant": {"contradicting_relevance"},
    "everything_relevant": {"contradicting_relevance"},
}


@pytest.mark.parametrize(("mistake", "check", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_each_mistake_is_found_and_nothing_else(
    tmp_path: Path, mistake: Callable[[Days], None], check: str, message: str
) -> None:
    check = check or mistake.__name__
    warnings = inspect(random_log(tmp_path / "log", change=mistake)).warnings
    (found,) = [warning.message for warning in warnings if warning.check == check]
    assert re.search(message, found), found
    assert {warning.check for warning in warnings} - {check} <= CONSEQUENCES.get(check, set())


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_log_has_no_warnings(tmp_path: Path, seed: int) -> None:
    assert inspect(random_log(tmp_path / "log", seed=seed, impressions=120)).warnings == []


def test_every_check_has_a_mistake_and_is_documented() -> None:
    names = {check.__name__ for check in CHECKS}
    assert {check or mistake.__name__ for mistake, check, _ in MISTAKES} | {
        "unsorted_items",
        "grades_of_production",
    } == names
    names |= {check.__name__ for check in LIST_CHECKS}
    page = (ROOT / "docs" / "reference" / "impression-log.md").read_text(encoding="utf-8")
    page = page.partition("## Checks of a log\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == names


def test_grades_of_production_are_found_where_relevance_is_feedback(tmp_path: Path) -> None:
    def clicked(days: Days) -> None:
        for columns, place in each(days):  # the best graded item was not clicked, another shown one was
            grade = columns["grade"][place]
            clicks = [float(value == max(grade) - 1) for value in grade]
            columns["relevance"][place] = columns["feedback.click"][place] = clicks

    log = random_log(tmp_path / "log", description=spec(relevant={"column": "click"}), change=clicked)
    (found,) = inspect(log).warnings
    assert found.check == "grades_of_production"
    assert "in 150 impressions, 100.0% of all" in found.message


def test_mistakes_in_the_table_of_items(tmp_path: Path) -> None:
    items = item_columns()
    items["item"][3:5] = [4, 3]
    items["item.video"][7] = 42
    items["item.price"][8] = math.inf
    warnings = inspect(random_log(tmp_path / "log", items=items)).warnings
    assert [warning.check for warning in warnings] == ["ids_outside", "unsorted_items", "numbers_not_finite"]
    assert warnings[0].message == "items.arrow, item.video: 1 ids are outside of their embedding"
    assert "items.arrow: 1 rows are not above the row before" in warnings[1].message
    assert warnings[2].message == "items.arrow, item.price: 1 values are not finite"


def test_days_are_named_or_counted(tmp_path: Path) -> None:
    def all_days(days: Days) -> None:
        for columns in days.values():
            columns["item"][0][0] = ITEMS

    (warning,) = inspect(random_log(tmp_path / "log", change=all_days)).warnings
    assert warning.message == "items that are not in items.arrow: 3 (on all 3 days)"


def test_a_day_before_the_one_before_it(tmp_path: Path) -> None:
    def swap(days: Days) -> None:
        days[DAYS[0]], days[DAYS[2]] = days[DAYS[2]], days[DAYS[0]]

    messages = [warning.message for warning in inspect(random_log(tmp_path / "log", change=swap)).warnings]
    assert messages == [
        f"day {DAYS[1]} follows {DAYS[0]} in the log, but all of its times are earlier",
        f"day {DAYS[2]} follows {DAYS[1]} in the log, but all of its times are earlier",
    ]


def test_a_day_without_impressions(tmp_path: Path) -> None:
    def clear(days: Days) -> None:
        for values in days[DAYS[1]].values():
            values.clear()

    figures = inspect(random_log(tmp_path / "log", change=clear))
    assert (figures.days[1].impressions, figures.days[1].first_time, figures.days[1].lengths.count) == (0, None, 0)
    assert [warning.message for warning in figures.warnings] == [f"day {DAYS[1]} has 0 impressions, the median day 50"]


def test_histories_may_begin_with_the_log(tmp_path: Path) -> None:
    def first_day(days: Days) -> None:
        for feature in ("video", "author"):
            days[DAYS[0]][f"sequence.history.{feature}"] = [[] for _ in days[DAYS[0]]["request"]]

    def all_days(days: Days) -> None:
        for columns, place in each(days):
            for feature in ("video", "author"):
                columns[f"sequence.history.{feature}"][place] = []

    assert inspect(random_log(tmp_path / "first", change=first_day)).warnings == []
    (warning,) = inspect(random_log(tmp_path / "all", change=all_days)).warnings
    assert warning.message == "sequence 'history' is empty (on all 3 days)"


# --- logs that cannot be read -------------------------------------------------------------------------------------


def cut_off(path: Path) -> None:
    file = path / "days" / DAYS[1] / "impressions.arrow"
    file.write_bytes(file.read_bytes()[:-100])


def cut_off_items(path: Path) -> None:
    file = path / "items.arrow"
    file.write_bytes(file.read_bytes()[:-100])


def no_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def no_day(path: Path) -> None:
    shutil.rmtree(path / "days" / DAYS[1])


def no_manifest_of_a_day(path: Path) -> None:
    (path / "days" / DAYS[1] / "manifest.json").unlink()


def other_version(path: Path) -> None:
    edit_manifest(path / "manifest.json", version=9)


def other_format(path: Path) -> None:
    edit_manifest(path / "manifest.json", format="a cake")


def other_count(path: Path) -> None:
    edit_manifest(path / "days" / DAYS[1] / "manifest.json", impressions=51)


def more_features(path: Path) -> None:
    content = json.loads((path / "manifest.json").read_text())
    content["spec"]["feedback"].append("share")
    edit_manifest(path / "manifest.json", spec=content["spec"])


def other_kind_of_feature(path: Path) -> None:
    content = json.loads((path / "manifest.json").read_text())
    content["spec"]["features"]["user"]["id"] = {"kind": "dense"}
    edit_manifest(path / "manifest.json", spec=content["spec"])


def offsets_beyond_the_file(path: Path) -> None:
    """The offsets of 50 lists of 11 items, somewhere in the file, replaced by ones that point anywhere."""
    file = path / "days" / DAYS[1] / "impressions.arrow"
    good = np.arange(0, 51 * 11, 11, dtype=np.int32).tobytes()
    bad = np.arange(0, 51 * 11, 11, dtype=np.int32)
    bad[7:] += 2**30
    assert good in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(good, bad.tobytes()))
    seal_again(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_off, f"{DAYS[1]}/impressions.arrow has .* bytes, its manifest states .*; the file is truncated"),
        (cut_off_items, "items.arrow has changed since it was written"),
        (no_manifest, "log is an unfinished log; expected an impression log .* or ranking data"),
        (no_day, f"{DAYS[1]} should be a day of the log but has no readable manifest.json"),
        (no_manifest_of_a_day, f"{DAYS[1]} should be a day of the log but has no readable manifest.json"),
        (other_version, "format version 9, this release reads version 1"),
        (other_format, "has a damaged manifest.json, or one of another format; expected an impression log"),
        (other_count, f"{DAYS[1]}/impressions.arrow has 50 impressions, its manifest states 51"),
        (more_features, f"{DAYS[0]}/impressions.arrow: the columns do not match .* missing: feedback.share"),
        (other_kind_of_feature, f"{DAYS[0]}/impressions.arrow: .* user.id .found int32, expected float"),
        (offsets_beyond_the_file, f"{DAYS[1]}/impressions.arrow is damaged"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_log_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], message: str
) -> None:
    random_log(tmp_path / "log")
    damage(tmp_path / "log")
    assert run("data", tmp_path / "log") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(f"^error: path: {re.escape(str(tmp_path))}.*{message}", err), err
    assert err.count("\n") == 1


def test_nulls_in_lists(tmp_path: Path) -> None:
    """The writer refuses nulls; a file made by somebody else may have them."""
    log = random_log(tmp_path / "log")
    file = log.days[DAYS[1]].path / "impressions.arrow"
    table = pa.ipc.open_file(file).read_all()
    ranks = table["rank"].to_pylist()
    ranks[3][2] = None
    place, field = table.schema.get_field_index("rank"), table.schema.field("rank")
    table = table.set_column(place, field, pa.array(ranks, field.type))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    seal_again(log.path)
    with pytest.raises(ValueError, match=r"column 'rank' has nulls"):
        inspect(ImpressionLog.load(tmp_path / "log"))


@pytest.mark.parametrize(
    ("name", "found"), [("file", "is a file"), ("nothing", "does not exist"), ("folder", "has no")]
)
def test_data_command_refuses_other_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, found: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert run("data", tmp_path / name) == 1
    assert f"{tmp_path / name} {found}" in capsys.readouterr().err


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = random_log(tmp_path / "log")
    assert run("data", tmp_path / "log", "--verify") == 0
    file = log.days[DAYS[1]].path / "impressions.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert run("data", tmp_path / "log", "--verify") == 1
    assert f"{file} has changed since it was written" in capsys.readouterr().err


# --- the command --------------------------------------------------------------------------------------------------


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_log(tmp_path / "log", change=small_days)
    assert run("data", tmp_path / "log") == 0
    out, err = capsys.readouterr()
    assert err == ""
    words = " ".join(out.split())
    assert "110 impressions, 1,210 items (40 different, 40 in the item table)" in words
    for text in (*DAYS, "random negatives", "dropped", "user.taste (3 numbers)", "sequence.history.video", "click"):
        assert text in out
    assert "2024-01-14 00:00" in out  # midnight in the zone of the log, not in UTC
    assert out.rstrip().endswith(f"warning: day {DAYS[2]} has 10 impressions, the median day 50 [small_days]")


def test_a_clean_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_log(tmp_path / "log")
    assert run("data", tmp_path / "log", "--days", DAYS[0], "--days", f"{DAYS[2]}..") == 0
    out = capsys.readouterr().out
    assert out.rstrip().endswith("No warnings.")
    assert DAYS[0] in out
    assert DAYS[1] not in out


def test_json_is_the_inspection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = random_log(tmp_path / "log", change=messy)
    assert run("data", tmp_path / "log", "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == json.loads(json.dumps(inspect(log).to_json()))


def test_unknown_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_log(tmp_path / "log")
    assert run("data", tmp_path / "log", "--days", "2024-01-16") == 1
    assert "has no day '2024-01-16'; it has 2024-01-13," in capsys.readouterr().err


def test_ranking_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "train.txt"
    source.write_text("".join(f"{label} qid:{qid} 1:{label}.5\n" for qid in range(3) for label in (0, 1)))
    data = prepare_letor({"train": [source]}, tmp_path / "ranking", Recipe())
    assert run("data", tmp_path / "ranking", "--verify") == 0
    assert re.search(r"train\s+│\s+3 │\s+6 │", capsys.readouterr().out)
    assert run("data", tmp_path / "ranking", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {**data.manifest, "warnings": []}
    assert run("data", tmp_path / "ranking", "--days", "train") == 2
    assert "is ranking data, which has no days" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_lists_from_which_nothing_can_be_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {1: (0, 1), 2: (0, 0), 3: (2, 2), 4: (2, 2, 2)}
    source = tmp_path / "train.txt"
    source.write_text("".join(f"{label} qid:{qid} 1:1\n" for qid, of in labels.items() for label in of))
    prepare_letor({"train": [source]}, tmp_path / "ranking", Recipe())
    assert run("data", tmp_path / "ranking") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 4 lists, 25.0%, have no relevant document" in out
    assert "2 of 4 lists, 50.0%, have documents of one label only" in out


def test_memory_does_not_grow_with_impressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "BLOCK", 200)
    monkeypatch.setattr(count_module, "REQUESTS_AT_ONCE", 2000)

    def peak(times: int) -> int:
        def repeat(days: Days) -> None:
            for columns in days.values():
                columns.update({column: values * times for column, values in columns.items()})

        log = random_log(tmp_path / f"log{times}", change=repeat)
        tracemalloc.start()
        inspect(log)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(4)  # what is imported and cached once
    assert peak(80) < 1.5 * peak(8)
