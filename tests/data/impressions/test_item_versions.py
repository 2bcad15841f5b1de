"""Item features as of a day: what is drawn for a request shows nothing of its day or of later days."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.api.studies import _items_after
from rankfall.data import ImpressionLoader
from rankfall.data.impressions.compatibility import log_warnings
from rankfall.data.impressions.items import items_on
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.log_writer import write_table
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.rows.prepare_rows import append_rows, prepare_rows
from rankfall.storage.files import checksum
from rankfall.training.cascade_loaders import checksums
from rankfall.training.config.cascade_config import validate_cascade
from support.fuzzing import cases
from support.row_logs import DAY, START, logs, write_rows
from support.rows_witness import Row, Witness
from support.sealing import edit_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.data.impressions.spec import Spec

    Value = Callable[[Row, random.Random], float]

ITEMS, LENGTH, REQUESTS = 60, 6, 120  # of the catalogue, of a list, of a day
NAMES = ["2024-01-12", "2024-01-13", "2024-01-14", "2024-01-15"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


# --- against a loop -----------------------------------------------------------------------------------------------


@cases(12)
@given(st.data())
def test_items_on_a_day_are_those_of_a_loop_over_rows(folder: Path, data: st.DataObject) -> None:
    """An item has its last row before the day; one that is new on the day, or later, its first row."""
    rows, spec = data.draw(logs())
    shutil.rmtree(folder)
    folder.mkdir()
    log = prepare_rows([write_rows(rows, folder / "log.parquet")], folder / "log", spec, fit_days=1)
    witness = Witness(rows, spec, fit_days=1)
    for day in [*witness.days, "later"]:
        seen: dict[Any, Row] = {}
        for row in witness.rows:
            if row[spec.item] not in seen or day == "later" or witness.day(row) < day:
                seen[row[spec.item]] = row
        table = log.items_on(day)
        assert table.schema == log.items().schema
        assert table["item"].to_pylist() == sorted(witness.numbers[item] for item in seen)
        places = {number: place for place, number in enumerate(table["item"].to_pylist())}
        for name in spec.features.item:
            values = table[f"item.{name}"].to_pylist()
            for item, row in seen.items():
                expected = witness.encode("item", name, row[witness.column("item", name)])
                assert values[places[witness.numbers[item]]] == pytest.approx(expected, rel=1e-5, abs=1e-6)


# --- planted leaks ------------------------------------------------------------------------------------------------


def spec_for(**changes: Any) -> Spec:
    features = {"value": {"kind": "dense"}, "size": {"kind": "dense"}}
    content: dict[str, Any] = {
        "request": "request",
        "item": "item",
        "time": {"column": "time", "unit": "ms"},
        "relevant": {"column": "clicked"},
        "features": {"item": features, "context": {"page": {"kind": "categorical", "num_buckets": 3}}},
    }
    return validate_spec(content | changes)


def rows_with(feature: Value, days: int = 4) -> list[Row]:
    """Requests of some days, in the order of time, whose items are all equally likely; each row gets a feature."""
    chance = random.Random(7)
    rows: list[Row] = []
    for request in range(days * REQUESTS):
        time = START + request // REQUESTS * DAY + request % REQUESTS * 1000
        for item in chance.sample(range(ITEMS), LENGTH):
            row: Row = {"request": request, "time": time, "item": item, "page": request % 3, "size": float(item % 7)}
            row |= {"day": request // REQUESTS, "clicked": int(chance.random() < 0.2)}
            rows.append(row | {"value": float(feature(row, chance))})
    return rows


def counter(amount: Callable[[Row], float]) -> Value:
    """A feature that counts something of an item over all rows before."""
    counts: Counter[int] = Counter()

    def count(row: Row, chance: random.Random) -> float:
        before = counts[row["item"]]
        counts[row["item"]] += amount(row)  # type: ignore[assignment]
        return before

    return count


def click_rate() -> Value:
    clicks, views = counter(lambda row: row["clicked"]), counter(lambda row: 1)
    return lambda row, chance: (1 + clicks(row, chance)) / (5 + views(row, chance))


def auc(positive: Any, negative: Any) -> float:
    """Probability that a positive value is larger than a negative one, counting ties half."""
    one, other = np.asarray(positive)[:, None], np.asarray(negative)[None]
    return float((one > other).mean() + (one == other).mean() / 2)


def prepared(folder: Path, rows: list[Row], spec: Spec | None = None, **options: Any) -> ImpressionLog:
    names = ["request", "time", "item", "page", "size", "clicked", "value"]
    file = write_rows([{name: row[name] for name in names} for row in rows], folder / "log.parquet")
    return prepare_rows([file], folder / "log", spec or spec_for(), **options)


def values_of(loader: ImpressionLoader) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the feature of the logged items and that of the random ones."""
    found: tuple[list[float], list[float]] = ([], [])
    for batch in loader:
        for kind, chosen in zip(found, (batch.depth >= 0, batch.depth < 0), strict=True):
            kind += batch.items["value"][chosen & batch.mask].tolist()
    return np.array(found[0]), np.array(found[1])


def test_labels_that_a_feature_shows_on_later_days_are_not_seen(tmp_path: Path) -> None:
    clicked = {(row["day"], row["item"]) for row in rows_with(lambda row, chance: 0.0) if row["clicked"]}
    rows = rows_with(lambda row, chance: float((row["day"] - 1, row["item"]) in clicked))
    log = prepared(tmp_path, rows)
    by_day = {(row["day"], row["item"]): row["value"] for row in rows}
    for number, day in enumerate(NAMES):
        expected = np.array([by_day[max(number - 1, 0), item] for item in range(ITEMS)])  # every item is in every day
        catalogue = ImpressionLoader(log, day, length="all").catalogue(day)
        assert catalogue.features["value"].tolist() == expected.tolist()
        for batch in ImpressionLoader(log, day, negatives=20):
            assert (batch.items["value"].numpy() == expected[batch.item.numpy()])[batch.mask.numpy()].all()
            assert (batch.items["size"] == batch.item % 7)[batch.mask].all()
    assert log.items()["item.value"].to_pylist() == [by_day[3, item] for item in range(ITEMS)]  # for serving
    lists = next(iter(ImpressionLoader(log, NAMES[2], batch=REQUESTS, shuffle=False)))  # as logged
    assert sorted(lists.items["value"].flatten().tolist()) == sorted(row["value"] for row in rows if row["day"] == 2)


@pytest.mark.parametrize("drawn", ["by the loader", "by prepare"])
def test_counters_do_not_tell_random_items_from_logged_ones(tmp_path: Path, drawn: str) -> None:
    """All items are equally likely in lists, so a counter tells nothing, unless values are of different times."""
    prepares = drawn == "by prepare"
    log = prepared(tmp_path, rows_with(counter(lambda row: 1)), spec_for(negatives=30) if prepares else None)
    for day in NAMES:
        logged, random_items = values_of(ImpressionLoader(log, day, negatives=0 if prepares else 30))
        assert len(random_items) == 30 * REQUESTS
        assert auc(logged, random_items) == pytest.approx(0.5, abs=0.04)
    assert log.per_request == []


def test_a_log_that_grew_after_it_was_opened_shows_nothing_new(tmp_path: Path) -> None:
    rows = rows_with(counter(lambda row: row["clicked"]))
    opened = prepared(tmp_path, [row for row in rows if row["day"] < 2], fit_days=1)
    before = ImpressionLoader(opened, NAMES[1], length="all").catalogue(NAMES[1])
    old = opened.items()
    append_rows([write_rows([row for row in rows if row["day"] >= 2], tmp_path / "new.parquet")], opened.path)
    after = ImpressionLoader(opened, NAMES[1], length="all").catalogue(NAMES[1])
    assert after.features["value"].tolist() == before.features["value"].tolist()
    versions = opened.item_versions()  # newer than the table that was mapped before
    assert items_on(old, versions, NAMES[1]).equals(ImpressionLog.load(opened.path).items_on(NAMES[1]))
    assert ImpressionLog.load(opened.path, verify=True).item_versions() is not None
    exported = _items_after(ImpressionLog.load(opened.path), NAMES[1])  # by a stream that is behind
    assert exported is not None
    assert exported.equals(old)


def test_versions_that_are_only_announced_are_none_yet(tmp_path: Path) -> None:
    """An appending process may end between the announcement of the first versions and their file."""
    log = prepared(tmp_path, rows_with(lambda row, chance: row["item"] / 3))
    edit_manifest(log.path / "manifest.json", items=log.manifest["items"] | {"versions": {"next": "0" * 64}})
    opened = ImpressionLog.load(log.path, verify=True)
    assert opened.item_versions() is None
    assert opened.checksum == log.checksum
    stages = [{"name": "first", "quota": 3, "model": {"kind": "two_tower"}}]
    data = {"path": str(log.path), "train": NAMES[0], "valid": NAMES[1], "negatives": 3}
    config = validate_cascade({"data": data, "relevant": 1, "stages": stages, "objective": {"name": "bce"}})
    assert checksums(opened, config) == checksums(log, config)


def test_logs_whose_items_do_not_change_have_no_versions(tmp_path: Path) -> None:
    log = prepared(tmp_path, rows_with(lambda row, chance: row["item"] / 3))
    assert log.item_versions() is None
    assert not (log.path / "item_versions.arrow").exists()
    assert set(log.manifest["items"]) == {"count", "sha256"}


def test_damaged_versions_are_refused(tmp_path: Path) -> None:
    log = prepared(tmp_path, rows_with(counter(lambda row: 1)))
    file = log.path / "item_versions.arrow"
    content = file.read_bytes()
    table = pa.ipc.open_file(content).read_all()
    sealed = [table.replace_schema_metadata(about) for about in (None, {b"days": b"{"}, {b"days": b"7"})]
    for other in [*sealed, table[:0], table[::-1]]:
        write_table(file, other)
        edited = log.manifest["items"] | {"versions": {"count": len(other), "sha256": checksum(file)}}
        edit_manifest(log.path / "manifest.json", items=edited)
        with pytest.raises(ValueError, match=r"item_versions\.arrow has no names of days or is not sorted"):
            ImpressionLoader(ImpressionLog.load(log.path), NAMES[0], negatives=3)
    edit_manifest(log.path / "manifest.json", items=log.manifest["items"])
    file.write_bytes(content)
    for damaged in (content[:-1], content.replace(b"2024-01-13", b"2024-01-18", 1), None):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"item_versions\.arrow"):
            ImpressionLoader(ImpressionLog.load(log.path), NAMES[0], negatives=3)
        with pytest.raises(ValueError, match=r"item_versions\.arrow"):
            ImpressionLog.load(log.path, verify=True)
        file.write_bytes(content)


# --- features of the request ----------------------------------------------------------------------------------------

OWN: dict[str, Callable[[], Value]] = {
    "constant": lambda: lambda row, chance: float(row["item"]),
    "of the day": lambda: lambda row, chance: row["item"] * 10 + row["day"],
    "views": lambda: counter(lambda row: 1),
    "clicks": lambda: counter(lambda row: row["clicked"]),
    "click rate": click_rate,
    "now and then another": lambda: lambda row, chance: row["item"] + 5 * (chance.random() < 0.1),
}
OF_REQUEST: dict[str, Callable[[], Value]] = {
    "noise": lambda: lambda row, chance: chance.random(),
    "flag": lambda: lambda row, chance: float(chance.random() < 0.1),
    "distance": lambda: lambda row, chance: abs(row["item"] - row["request"] * 37 % ITEMS),
    "match": lambda: lambda row, chance: float(row["item"] % 3 == row["page"]),
}


@pytest.mark.parametrize("name", [*OWN, *OF_REQUEST])
def test_features_that_depend_on_the_request_are_marked(tmp_path: Path, name: str) -> None:
    rows = rows_with((OWN | OF_REQUEST)[name]())
    log = prepared(tmp_path, rows, fit_days=1, portion_rows=50)
    marked = ["item.value"] if name in OF_REQUEST else []
    assert log.per_request == marked
    assert [text for text in log_warnings(log.manifest["about"]) if "depends on the request" in text] == [
        f"{feature} depends on the request: lists cannot be extended by other items (data.negatives, data.length). "
        "What production decided, such as a position, is no feature: a model would see the answer in it"
        for feature in marked
    ]


def test_items_are_not_added_to_lists_whose_features_depend_on_the_request(tmp_path: Path) -> None:
    rows = rows_with(OF_REQUEST["distance"]())
    log = prepared(tmp_path, rows)
    wanted: list[dict[str, Any]] = [
        {"negatives": 5},
        {"negatives": 5, "negatives_from": "batch"},
        {"length": 20},
        {"length": "all"},
        {"length": "all", "reads": ["item.size", "item.value"]},
    ]
    for options in wanted:
        with pytest.raises(ValueError, match=rf"^{next(iter(options))}: item\.value depends on the request.*`only`"):
            ImpressionLoader(log, NAMES[0], **options)
        ImpressionLoader(log, NAMES[0], **options | {"reads": ["item.size", "context.page"]})
    assert ImpressionLoader(log, NAMES[0]).catalogue_size() is None  # so that nothing recommends data.length=all
    with pytest.raises(ValueError, match=r"^negatives: item\.value depends on the request"):
        prepared(tmp_path / "log", rows, spec_for(negatives=5))
    assert not (tmp_path / "log" / "log").exists()
