"""What is exported, and what is refused: graphs, indexes, items, and whole runs."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from support.sealing import seal_again

pytest.importorskip("onnx", reason="needs the extra serve")
pytest.importorskip("onnxscript", reason="needs the extra serve")
pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

import faiss

import rankfall.serving.export.export_run as running
import rankfall.serving.export.onnx_graphs as graphs
import rankfall.serving.export.write_bundle as writing
from rankfall.cascade import Stage
from rankfall.data import ImpressionLoader
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.spec import Feature, Features, Sequence, validate_spec
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.models import DIN
from rankfall.serving import Bundle
from rankfall.serving.bundle_files import read_file
from rankfall.serving.export.export_run import ExportOptions, export_run, recall_notes
from rankfall.serving.export.item_table import ItemTable, load_items
from rankfall.serving.export.measure_bundle import check_features, sample_requests
from rankfall.serving.export.onnx_graphs import (
    exact_search,
    feature_rule,
    request_rules,
    request_vocabularies,
    write_index,
)
from rankfall.serving.export.simulated_source import simulated_source
from rankfall.serving.export.write_bundle import DifferenceError, check
from rankfall.serving.onnx_stages import Graph, Index
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.methods import train
from rankfall.training.train_cascade import load_run
from support.bundles import DAYS, platform_bundle, platform_log, platform_run, trained
from support.cascades import content, liked_log
from support.command_line import run
from support.encoding_witness import compare_with_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.serving.export.onnx_graphs import Rules

# --- graphs -------------------------------------------------------------------------------------------------------

FEATURES = Features(
    (
        Feature("id", "user", "user.id", 20),
        Feature("taste", "user", size=3),
        Feature("hour", "context", "hour", 26),
        Feature("load", "context"),
        Feature("video", "item", "video", 30),
        Feature("author", "item", "author", 9),
        Feature("price", "item"),
        Feature("tags", "item", size=2),
    ),
    (Sequence("clicks", 6, ("video", "author")), Sequence("buys", 3, ("video",))),
)


def random_inputs(
    names: list[str], batch: int, candidates: int, length: int, clicks: int | None = None
) -> dict[str, NDArray[Any]]:
    """Inputs of a model; the sequence of clicks may have a length of its own."""
    random = np.random.default_rng(batch)
    rows = {feature.name: feature.rows for feature in FEATURES.features}
    inputs: dict[str, NDArray[Any]] = {}
    for name in names:
        group, *_, feature = name.split(".")
        events = clicks if clicks is not None and name.startswith("sequence.clicks.") else length
        shape: tuple[int, ...] = {"item": (batch, candidates), "sequence": (batch, events)}.get(group, (batch,))
        if feature == "mask":
            inputs[name] = random.random(shape) < 0.6
            inputs[name][0] = False  # nothing happened yet
        elif rows[feature]:
            inputs[name] = random.integers(0, rows[feature], shape).astype(np.int32)
        else:
            shape += {"taste": (3,), "tags": (2,)}.get(feature, ())
            inputs[name] = random.normal(size=shape).astype(np.float32)
    return inputs


@pytest.mark.slow
def test_a_graph_gives_what_its_model_gives(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DIN(
        FEATURES,
        hidden=[7, 7],
        attention=5,
        attention_activation="tanh",
        activation="gelu",
        batch_norm=True,
        residual=True,
        dropout=0.1,
        only=["item.price", "item.tags", "sequence.buys", "user.taste", "context.hour"],
    ).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):  # not what they start with
            assert module.running_mean is not None
            assert module.running_var is not None
            torch.nn.init.uniform_(module.running_mean)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    graphs.write_graph(Stage("ranking", model, 1), tmp_path / "model.onnx")
    written = (tmp_path / "model.onnx").read_bytes()
    assert b".py" not in written  # nor any other trace of this machine
    assert str(Path.cwd()).encode() not in written
    graph = Graph(read_file(tmp_path / "model.onnx"), 1)
    seen = {"context.hour", "user.taste", "item.price", "item.tags", "sequence.buys.video", "sequence.buys.mask"}
    assert set(graph.inputs) == seen | {"item.video"}  # candidates are compared with events
    for batch, candidates, length in ((1, 1, 1), (2, 7, 3), (5, 1, 6)):
        inputs = random_inputs(graph.inputs, batch, candidates, length)
        tensors = graphs.as_batch({key: torch.from_numpy(value) for key, value in inputs.items()})
        with torch.no_grad():
            np.testing.assert_allclose(graph(inputs), model(tensors), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clicks", "all-clicks"])
def test_every_sequence_has_its_own_length(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    clicks, buys = FEATURES.sequences
    features = Features(FEATURES.features, (replace(clicks, name=name), buys))
    model = DIN(features, hidden=[7], attention=5).eval()
    graphs.write_graph(Stage("ranking", model, 1), tmp_path / "model.onnx")
    graph = Graph(read_file(tmp_path / "model.onnx"), 1)
    for length, longer in ((3, 6), (1, 5), (2, 1), (4, 4)):
        names = [one.replace(f"sequence.{name}.", "sequence.clicks.") for one in graph.inputs]
        inputs = dict(zip(graph.inputs, random_inputs(names, 3, 4, length, longer).values(), strict=True))
        tensors = graphs.as_batch({key: torch.from_numpy(value) for key, value in inputs.items()})
        with torch.no_grad():
            np.testing.assert_allclose(graph(inputs), model(tensors), atol=2e-6)


# --- indexes ------------------------------------------------------------------------------------------------------


def clustered(count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Vectors of items around some centres, of all lengths, and queries."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(30, 8))
    items = (centres[random.integers(0, 30, count)] + 0.3 * random.normal(size=(count, 8))) * random.uniform(
        0.3, 2, (count, 1)
    )
    queries = centres[random.integers(0, 30, 50)] + 0.3 * random.normal(size=(50, 8))
    return items.astype(np.float32), queries.astype(np.float32)


def brute_force(items: NDArray[np.float32], queries: NDArray[np.float32], count: int) -> list[set[int]]:
    return [set(np.argsort(-(items @ query))[:count].tolist()) for query in queries]


def found_share(index: Index, queries: NDArray[np.float32], best: list[set[int]]) -> float:
    rows = index.search(queries, len(best[0]), [np.empty(0, np.int64)] * len(queries))
    return float(np.mean([len(set(row.tolist()) & of) / len(of) for row, of in zip(rows, best, strict=True)]))


def test_an_index_looks_at_as_few_lists_as_find_enough(tmp_path: Path) -> None:
    items, queries = clustered(4000)
    best = brute_force(items, queries, 20)
    about = write_index(items, queries, tmp_path, quota=20, recall=0.95, exact_below=0)
    assert (about["kind"], about["lists"]) == ("lists", int(4 * 4000**0.5))
    assert about["queries"] == 50

    index: Any = faiss.read_index(str(tmp_path / "items.faiss"))

    def lower_share(probed: int) -> float:
        index.nprobe = probed
        _, found = index.search(np.pad(queries, ((0, 0), (0, 1))), 20)
        shares = [len(set(row) & of) / 20 for row, of in zip(found.tolist(), best, strict=True)]
        return float(min(np.mean(shares[::2]), np.mean(shares[1::2])))

    assert lower_share(about["nprobe"]) == pytest.approx(about["recall"])
    assert about["recall"] >= 0.95 > lower_share(about["nprobe"] - 1)
    served = Index(read_file(tmp_path / "items.faiss"), about, 1)
    assert found_share(served, queries, best) >= about["recall"]  # it looks further if that is too few items


def test_a_recall_that_only_half_of_the_queries_reach_is_not_enough(tmp_path: Path) -> None:
    items, easy = clustered(4000)
    queries = np.random.default_rng(1).normal(size=easy.shape).astype(np.float32)
    options: dict[str, Any] = {"quota": 20, "recall": 0.9, "exact_below": 0}
    hard = write_index(items, queries, tmp_path, **options)
    queries[::2] = 3 * items[np.argsort(-(items * items).sum(axis=1))[:25]]  # one list holds what is best for these
    alone = write_index(items, queries[::2], tmp_path, **options)
    both = write_index(items, queries, tmp_path, **options)
    assert alone["nprobe"] < both["nprobe"] <= hard["nprobe"]
    assert both["recall"] >= 0.9


def test_exact_indexes(tmp_path: Path) -> None:
    items, queries = clustered(700)
    best = brute_force(items, queries, 20)
    assert [set(row.tolist()) for row in exact_search(items, queries, 20)] == best
    for options in ({"recall": 0.9}, {"recall": 1.0, "exact_below": 0}):
        about = write_index(items, queries, tmp_path, quota=20, **options)  # type: ignore[arg-type]
        assert (about["kind"], about["recall"]) == ("exact", 1.0)
        assert found_share(Index(read_file(tmp_path / "items.faiss"), about, 1), queries, best) == 1


def test_an_index_that_finds_too_little_is_refused_with_the_figures(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    items, queries = (random.normal(size=(count, 24)).astype(np.float32) for count in (3000, 40))
    with pytest.raises(ValueError, match=r"asked for 0\.99 of the 20 best.* finds 0\.\d+ with 1, .* lists.*--recall 1"):
        write_index(items, queries, tmp_path, quota=20, recall=0.99, exact_below=0)


def test_what_a_measured_recall_leaves_open_is_noted() -> None:
    index = {"kind": "lists", "queries": 512, "recall": 0.991, "asked_recall": 0.99}
    assert recall_notes({"name": "first", "index": index}) == []
    assert recall_notes({"name": "first", "index": {"kind": "exact", "recall": 1.0}}) == []
    assert recall_notes({"name": "first"}) == []  # a scorer
    assert recall_notes({"name": "first", "index": index | {"queries": 99}}) == [
        "the recall of first was measured on 99 requests only"
    ]


# --- items --------------------------------------------------------------------------------------------------------

ROWS_SPEC = {
    "request": "request",
    "item": "sku",
    "user": "user",
    "time": {"column": "time", "zone": "Europe/Berlin"},
    "stage": "stage",
    "stages": [{"name": "matched"}, {"name": "shown"}],
    "relevant": "shown",
    "feedback": ["click"],
    "features": {
        "user": {
            "user": {"kind": "categorical", "vocabulary": True},
            "age": {"kind": "dense", "missing": 30.0},
            "member": {"kind": "categorical", "vocabulary": True},
        },
        "context": {"hour": {"kind": "time", "part": "hour"}, "unused": {"kind": "dense"}},
        "item": {
            "sku": {"kind": "categorical", "vocabulary": True},
            "author": {"kind": "categorical", "hash_bucket_size": 11},
            "price": {"kind": "dense", "log1p": True, "standardise": True},
            "size": {"kind": "dense", "bucketize": 3},
        },
    },
    "sequences": {"clicks": {"max_length": 4, "features": ["sku", "size", "author"], "feedback": "click"}},
}


def raw_items(count: int = 40) -> pl.DataFrame:
    number = np.arange(count)
    return pl.DataFrame(
        {
            "sku": [f"sku-{one}" for one in number],
            "author": [f"author {one % 13}" for one in number],
            "price": number * 1.7 + 0.3,
            "size": number % 9,
        }
    )


@cache
def raw_rows() -> pl.DataFrame:
    random = np.random.default_rng(0)
    items = raw_items()
    rows = []
    for request in range(120):
        at = f"2024-0{1 + request // 40}-{1 + request % 20:02}T{request % 24:02}:10:00"
        user, age = f"user {request % 17}", None if request % 5 == 0 else 20.0 + request % 17
        for place, item in enumerate(random.choice(40, 8, replace=False)):
            stage = "shown" if place < 3 else "matched"
            key = {"request": request, "time": at, "user": user, "age": age, "member": request % 3 > 0, "stage": stage}
            rows.append({**key, "unused": 1.0, "click": int(place < 2), **items.row(int(item), named=True)})
    return pl.DataFrame(rows)


@pytest.fixture(scope="module")
def rows_log(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    """A log with text for ids, vocabularies, hashes, scalings and buckets."""
    directory: Path = tmp_path_factory.mktemp("rows")
    raw_rows().write_parquet(directory / "rows.parquet")
    return prepare_rows([directory / "rows.parquet"], directory / "log", validate_spec(ROWS_SPEC))


NAMES = ["item.sku", "item.author", "item.price", "item.size"]


def assert_same_items(one: ItemTable, other: ItemTable) -> None:
    places = one.lookup.find(other.lookup.values)
    assert (places >= 0).all()
    for name in NAMES:
        np.testing.assert_array_equal(one.features[name][places], other.features[name])


@pytest.mark.slow
def test_items_come_from_logs_and_from_files(rows_log: ImpressionLog, tmp_path: Path) -> None:
    features = rows_log.features
    of_log = load_items(rows_log.path, rows_log, features, NAMES)
    assert sorted(of_log.lookup.values.to_pylist()) == sorted(raw_items()["sku"])
    raw_items().reverse().write_parquet(tmp_path / "raw.parquet")
    assert_same_items(of_log, load_items(tmp_path / "raw.parquet", rows_log, features, NAMES))
    raw_items().write_ipc(tmp_path / "raw.arrow")
    assert_same_items(of_log, load_items(tmp_path / "raw.arrow", rows_log, features, NAMES))
    pq.write_table(rows_log.items(), tmp_path / "prepared.parquet")
    assert_same_items(of_log, load_items(tmp_path / "prepared.parquet", rows_log, features, NAMES))
    new = raw_items().with_columns(sku=pl.col("sku") + "-new")
    new.write_parquet(tmp_path / "new.parquet")
    assert set(load_items(tmp_path / "new.parquet", rows_log, features, NAMES).features["item.sku"]) == {1}


def test_items_of_another_preparation_are_refused(rows_log: ImpressionLog, tmp_path: Path) -> None:
    """Their ids are places in another vocabulary, which no column tells."""
    raw_rows().filter(pl.col("request") % 2 == 0).write_parquet(tmp_path / "rows.parquet")
    other = prepare_rows([tmp_path / "rows.parquet"], tmp_path / "other", validate_spec(ROWS_SPEC))
    for log in (rows_log, other):
        shutil.copy(log.path / "items.arrow", tmp_path / f"{log.path.name}.arrow")
    load_items(tmp_path / "log.arrow", rows_log, rows_log.features, NAMES)
    with pytest.raises(ValueError, match=r"other\.arrow: item\.sku has other ids .* so it was prepared differently"):
        load_items(tmp_path / "other.arrow", rows_log, rows_log.features, NAMES)
    # what is hashed has the same ids everywhere
    load_items(tmp_path / "other.arrow", rows_log, rows_log.features, ["item.author"])


def rules_of(log: ImpressionLog) -> Rules:
    inputs = [f"{f.group}.{f.name}" for f in log.features.features]
    return request_rules(Encoding.of_log(log), log.features, [*inputs, "sequence.clicks.sku"])


@pytest.mark.slow
def test_logs_say_what_was_hashed(rows_log: ImpressionLog, tmp_path: Path) -> None:
    assert rows_log.manifest["about"]["hashed"] == {"item.author": "text"}
    assert rules_of(rows_log)["sequences"]["clicks"]["features"]["author"]["text"] is True
    numbers = raw_rows().with_columns(author=pl.col("author").str.split(" ").list.last().cast(pl.Int16))
    numbers.write_parquet(tmp_path / "rows.parquet")
    log = prepare_rows([tmp_path / "rows.parquet"], tmp_path / "log", validate_spec(ROWS_SPEC))
    assert rules_of(log)["sequences"]["clicks"]["features"]["author"]["text"] is False


@pytest.mark.parametrize(
    ("feature", "change"),
    [
        ("hour", {"zone": "Asia/Tokyo"}),
        ("hour", {"part": "minute"}),
        ("age", {"missing": 31.0}),
        ("price", {"log1p": False}),
        ("price", {"mean": [0.0]}),
        ("size", {"edges": [2.5]}),
        ("sku", {"vocabulary": "user.user"}),
    ],
)
def test_rules_that_read_otherwise_than_the_log_are_refused(
    rows_log: ImpressionLog, feature: str, change: dict[str, Any]
) -> None:
    rules = rules_of(rows_log)
    of_events = rules["sequences"]["clicks"]["features"]
    of_events["price"] = feature_rule(Encoding.of_log(rows_log), rows_log.features.item("price")).to_json()
    vocabularies = request_vocabularies(Encoding.of_log(rows_log), rules)
    assert compare_with_log(rows_log, rules, vocabularies) > 100
    rule = {**rules["user"], **rules["context"], **of_events}[feature]
    rule.update(change)
    with pytest.raises(
        ValueError, match=rf"\.{feature}: .* is encoded differently than in the log|expected a number from"
    ):
        compare_with_log(rows_log, rules, vocabularies)


def test_ids_that_the_model_does_not_know_count_as_never_seen(rows_log: ImpressionLog) -> None:
    smaller = [replace(f, rows=12) if f.name == "sku" else f for f in rows_log.features.features]
    features = Features(tuple(smaller), rows_log.features.sequences)
    items = load_items(rows_log.path, rows_log, features, NAMES)
    assert items.features["item.sku"].max() == 11
    assert (items.features["item.sku"] == 1).sum() == 30
    assert items.notes == ["30 items have a value of item.sku that the model has no row for; it counts as unseen"]


def test_impressions_of_a_log_that_has_grown(rows_log: ImpressionLog) -> None:
    """What the model has no row for was never seen, in requests, in events and in items alike."""
    rows = {"sku": 12, "user": 7}
    smaller = [replace(f, rows=rows.get(f.name, f.rows)) for f in rows_log.features.features]
    features = Features(tuple(smaller), rows_log.features.sequences)
    items = load_items(rows_log.path, rows_log, features, NAMES)
    inputs = ["user.user", "user.age", "sequence.clicks.sku", "sequence.clicks.mask"]
    days = ["2024-03-01..2024-03-20"]
    sample, logged = sample_requests(rows_log, days, items, features, inputs, count=40, k=1)
    whole, _ = sample_requests(rows_log, days, items, rows_log.features, inputs, count=40, k=1)
    for name, most in (("user.user", 7), ("sequence.clicks.sku", 12)):
        found, before = sample.requests.arrays[name], whole.requests.arrays[name]
        assert before.max() >= most
        assert found.ravel().tolist() == [number if number < most else 1 for number in before.ravel().tolist()]
        assert found.dtype == np.int32
    np.testing.assert_array_equal(sample.requests.arrays["user.age"], whole.requests.arrays["user.age"])
    assert check_features(logged, items, per_request=()) == []


def test_days_without_impressions_are_named(rows_log: ImpressionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    items = load_items(rows_log.path, rows_log, rows_log.features, NAMES)
    monkeypatch.setattr(ImpressionLog, "choose", lambda log, days: [])
    with pytest.raises(ValueError, match=r"found no impressions on 2024-03-01, expected some"):
        sample_requests(rows_log, ["2024-03-01"], items, rows_log.features, [], count=40, k=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda items: items.drop("price"), "has no column 'price'"),
        (lambda items: pl.concat([items, items[3:4]]), "'sku-3' occurs twice"),
        (lambda items: items.with_columns(price=pl.lit(None, pl.Float64)), "found nothing, expected numbers"),
        (lambda items: items.with_columns(sku=pl.lit(None, pl.String)), "has items without sku"),
        (lambda items: items.with_columns(author=pl.lit(1.5)), "found Float64, expected whole numbers or strings"),
        (lambda items: items.with_columns(sku=pl.concat_list("sku")), "column 'sku': found .*list.*item.sku"),
        (lambda items: items[:0], "has no items"),
    ],
)
def test_bad_files_of_items(rows_log: ImpressionLog, tmp_path: Path, change: Any, message: str) -> None:
    change(raw_items()).write_parquet(tmp_path / "items.parquet")
    with pytest.raises(ValueError, match=f"items: .*items.parquet.*{message}"):
        load_items(tmp_path / "items.parquet", rows_log, rows_log.features, NAMES)


def test_what_is_no_file_of_items(rows_log: ImpressionLog, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for path, message in (
        (tmp_path, "neither a prepared log nor a file of items"),
        (tmp_path / "items.csv", "expected a prepared log or a file that ends in"),
        (tmp_path / "none.arrow", "missing, damaged or cut off"),
        (tmp_path / "broken.parquet", "missing, damaged or cut off"),
    ):
        with pytest.raises(ValueError, match=f"items: .*{message}"):
            load_items(path, rows_log, rows_log.features, NAMES)


# --- features of items that are not the items' own ------------------------------------------------------------------


def features_of_log(log: ImpressionLog, days: list[str]) -> list[str]:
    names = [f"item.{feature.name}" for feature in log.features.of("item")]
    items = load_items(log.path, log, log.features, names)
    _, logged = sample_requests(log, days, items, log.features, [], count=200, k=1)
    return check_features(logged, items, per_request=log.per_request)


def test_item_features_that_depend_on_the_request_are_refused(tmp_path: Path) -> None:
    assert features_of_log(platform_log(), list(DAYS)) == []
    liked = ImpressionLog.load(liked_log(tmp_path / "liked"))  # whose prices are drawn for each impression
    with pytest.raises(ValueError, match=r"item\.price depends on the request \(100% of the repeated.*`only`"):
        features_of_log(liked, ["2024-01-13"])
    plan = Simulation(preset="industry-easy", days=1, requests_per_day=120)
    statistics = simulate_log(plan, tmp_path / "industry")
    with pytest.raises(ValueError, match=r"item\.age_hours depends on the request"):
        features_of_log(statistics, ["2024-01-13"])


def test_item_features_that_changed_are_noted(rows_log: ImpressionLog, tmp_path: Path) -> None:
    cheaper = raw_items().with_columns(price=pl.when(pl.col("size") == 3).then(1.0).otherwise("price"))
    cheaper.write_parquet(tmp_path / "cheaper.parquet")
    items = load_items(tmp_path / "cheaper.parquet", rows_log, rows_log.features, NAMES)
    _, logged = sample_requests(rows_log, ["2024-03-01..2024-03-20"], items, rows_log.features, [], count=200, k=1)
    share = np.mean([int(str(sku).split("-")[1]) % 9 == 3 for sku in items.lookup.values.take(logged.rows).to_pylist()])
    (note,) = check_features(logged, items, per_request=())
    assert note == f"item.price: {share:.1%} of the log's values differ from those of the items now"


# --- whole runs ---------------------------------------------------------------------------------------------------


def manifest_of(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return manifest


def test_a_bundle_says_what_it_is() -> None:
    path = platform_bundle()
    manifest = manifest_of(path)
    assert manifest["format"] == "rankfall bundle"
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} - {"manifest.json"}
    assert files == {
        "items.arrow",
        "examples.json",
        "stages/retrieval/user.onnx",
        "stages/retrieval/items.faiss",
        "stages/ranking/scorer.onnx",
    }
    for name, about in manifest["files"].items():
        assert about["sha256"] == hashlib.sha256((path / name).read_bytes()).hexdigest()
    assert set(manifest["files"]) == files
    assert {"torch", "onnx", "onnxruntime", "faiss", "rankfall"} <= set(manifest["made_by"])
    assert manifest["source"]["metrics"]["training"]["best_epoch"] == 1
    assert [(stage["name"], stage["quota"]) for stage in manifest["stages"]] == [("retrieval", 25), ("ranking", 10)]
    checks = manifest["checks"]
    assert checks["requests"] == checks["same_with_candidates"] == 60
    assert checks["open_requests"] == checks["same_without"] == 60
    assert checks["largest_difference"] < 1e-5
    assert len(Bundle.load(path).examples()) == 16


@pytest.mark.slow
def test_a_stage_is_exported_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the bytes of the whole, too: exports do not depend on anything but the weights."""
    monkeypatch.setattr(writing, "write_graph", graphs.write_graph)  # traced again
    out = tmp_path / "retrieval"
    assert run("export", str(platform_run()), "--stage", "retrieval", "--out", str(out), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in report["stages"]] == ["retrieval"]
    for name in ("user.onnx", "items.faiss"):
        assert (out / "stages/retrieval" / name).read_bytes() == (
            platform_bundle() / "stages/retrieval" / name
        ).read_bytes()
    whole = Bundle.load(platform_bundle())
    request = whole.examples()[0]["request"]
    stages = whole.rank(request, explain=True).stages
    assert stages is not None
    assert Bundle.load(out).rank(request).ids == stages[0].ids


MLP_SEES = ["user.user", "user.age", "user.member", "context.hour", "sequence.clicks", *NAMES]


@pytest.mark.slow
def test_a_first_stage_that_is_no_two_tower_scores_everything(
    rows_log: ImpressionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on a log with text for ids and with every kind of feature, and a request against the model by hand."""
    monkeypatch.setattr(graphs, "_LARGEST_FILE", 0)  # as if the tables of the model were huge
    model = {"kind": "mlp", "hidden": [8], "dim": 4, "only": MLP_SEES}
    data = {"path": str(rows_log.path), "train": "2024-01-01..2024-02-20", "valid": "2024-03-01..2024-03-10"}
    path = trained(rows_log.path, tmp_path / "run", [{"name": "only", "quota": 5, "model": model}], data=data)
    exported = export_run(path, tmp_path / "bundle", ExportOptions(examples=40))
    assert exported.notes == [
        "only is not a two-tower model, so without a list of candidates it scores all 40 items for every request"
    ]
    assert "stages/only/scorer.onnx.data" in exported.manifest["files"]
    bundle = Bundle.load(tmp_path / "bundle")
    bundle.check()
    _, cascade = load_run(path)
    loader = ImpressionLoader(rows_log, "2024-03-05", batch=10, shuffle=False)
    batch = next(iter(loader))
    requests = loader.requests(batch).to_pylist()
    first = {row["request"]: row for row in raw_rows().iter_rows(named=True)}
    ids = rows_log.items()["id"].to_pylist()
    with torch.no_grad():
        (scores,) = cascade(batch)
    for place, number in enumerate(requests):
        row = first[number]
        user = {"user": row["user"], "age": row["age"], "member": row["member"]}
        assert isinstance(row["member"], bool)
        clicks = [
            {name: other[name] for name in raw_items().columns}
            for other in raw_rows().sort("time").iter_rows(named=True)
            if other["user"] == row["user"] and other["time"] < row["time"] and other["click"]
        ]
        assert len(clicks) > 4
        request: dict[str, Any] = {"time": row["time"], "user": user, "sequences": {"clicks": clicks}}
        request["context"] = {"unused": "any"}
        candidates = [ids[int(item)] for item in batch.item[place] if item >= 0]
        found = bundle.score(request, candidates)["only"]
        # events of one time are in an order that hashes decide, but both clicks of a request are among the last four
        np.testing.assert_allclose(found, scores[place, : len(candidates)], atol=1e-5)
        everything = bundle.score(request, ids)["only"]
        best = sorted(range(len(ids)), key=lambda one: -everything[one])
        assert bundle.rank(request).ids == [ids[one] for one in best[:5]]
        assert bundle.rank(request, exclude=[ids[best[0]]]).ids == [ids[one] for one in best[1:6]]


@pytest.mark.slow
def test_a_run_is_exported_with_a_log_that_has_grown(tmp_path: Path) -> None:
    """Some users and items came after the training, in requests and in sequences."""
    features = {
        "user": {"user": {"kind": "categorical", "vocabulary": True}},
        "item": {"sku": {"kind": "categorical", "vocabulary": True}},
    }
    clicks = {"clicks": {"max_length": 4, "features": ["sku"], "feedback": "click"}}
    spec = validate_spec({**ROWS_SPEC, "features": features, "sequences": clicks})
    # rarer than what was there before, so that it comes last in the vocabularies
    new = (
        raw_rows()
        .filter(pl.col("request").is_in([3, 50, 84, 85]))
        .with_columns(
            request=pl.col("request") + 1000,
            user=pl.lit("somebody new"),
            sku=pl.format("new-{}", pl.int_range(pl.len()) % 8),
        )
    )
    raw_rows().write_parquet(tmp_path / "before.parquet")
    pl.concat([raw_rows(), new]).write_parquet(tmp_path / "after.parquet")
    before, after = (prepare_rows([tmp_path / f"{one}.parquet"], tmp_path / one, spec) for one in ("before", "after"))
    model = {"kind": "mlp", "hidden": [8], "dim": 4}
    data = {"path": str(before.path), "train": "2024-01-01..2024-02-20", "valid": "2024-03-01..2024-03-20"}
    path = trained(before.path, tmp_path / "run", [{"name": "only", "quota": 5, "model": model}], data=data)
    exported = export_run(path, tmp_path / "bundle", ExportOptions(examples=64), data=after.path)
    assert "8 items have a value of item.sku that the model has no row for; it counts as unseen" in exported.notes
    bundle = Bundle.load(tmp_path / "bundle")
    strangers = [one for one in bundle.examples() if one["request"]["user"]["user"] == {"id": 1}]
    assert len(strangers) == 2
    assert strangers[0]["ids"] == bundle.rank(strangers[0]["request"] | {"user": {"user": "somebody new"}}).ids


def test_a_bundle_that_answers_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = Bundle.load(platform_bundle())
    _, cascade = load_run(platform_run())
    log = platform_log()
    names = [f"item.{feature.name}" for feature in log.features.of("item")]
    items = load_items(log.path, log, log.features, names)
    inputs = [f"{f.group}.{f.name}" for f in log.features.features if f.group != "item"]
    inputs += [f"sequence.history.{name}" for name in (*log.features.sequences[0].features, "mask")]
    sample, _ = sample_requests(log, [DAYS[2]], items, log.features, inputs, count=30, k=10)

    def compare(stages: list[Stage]) -> dict[str, Any]:
        return check(bundle, stages, items, sample.requests, vectors=None, open_requests=5)

    assert compare(cascade.stages)["same_without"] == 5
    fewer = [*cascade.stages[:1], replace(cascade.stages[1], quota=9)]
    with pytest.raises(DifferenceError, match=r"ranking: the item in row .* but the bundle keeps it"):
        compare(fewer)
    model = cascade.models["ranking"]
    assert isinstance(model, DIN)
    with torch.no_grad():
        model.head.out.bias.add_(2e-4)
    with pytest.raises(DifferenceError, match=r"ranking: ONNX Runtime scores .* where PyTorch scores .* of 0\.0001"):
        compare(cascade.stages)
    with torch.no_grad():
        model.head.out.bias.fill_(torch.nan)
    with pytest.raises(DifferenceError, match="PyTorch's scores of the log's impressions are not finite"):
        compare(cascade.stages)


def use_written_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the graphs of the platform's bundle, which takes no time."""

    def copy(stage: Stage, path: Path, *, of_users: bool = False) -> None:
        shutil.copy(platform_bundle() / "stages" / path.parent.name / path.name, path)

    monkeypatch.setattr(writing, "write_graph", copy)


def test_nothing_is_left_of_an_export_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_written_graphs(monkeypatch)

    def differs(*args: object, **options: object) -> None:
        raise DifferenceError("another score")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "check", differs)
        with pytest.raises(ValueError, match="another score"):
            export_run(platform_run(), tmp_path / "bundle")
        assert list(tmp_path.iterdir()) == []
    export_run(platform_run(), tmp_path / "bundle", ExportOptions(examples=0))
    before = (tmp_path / "bundle/manifest.json").read_bytes()
    assert Bundle.load(tmp_path / "bundle").examples() == []
    Bundle.load(tmp_path / "bundle").check()
    with monkeypatch.context() as patch:
        patch.setattr(writing, "check", differs)
        with pytest.raises(ValueError, match="another score"):
            export_run(platform_run(), tmp_path / "bundle", ExportOptions(force=True))
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert (tmp_path / "bundle/manifest.json").read_bytes() == before


def test_requests_are_read_as_the_log_was_with_or_without_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_written_graphs(monkeypatch)

    def an_hour_later(*args: Any, **options: Any) -> Any:
        sample, logged = sample_requests(*args, **options)
        return sample._replace(times=sample.times + 3_600_000), logged

    monkeypatch.setattr(running, "sample_requests", an_hour_later)
    with pytest.raises(DifferenceError, match=r"context\.\w+: requests are encoded differently than the log"):
        export_run(platform_run(), tmp_path / "bundle", ExportOptions(examples=0))


def test_a_file_is_cut_off_only_if_it_is_shorter(tmp_path: Path) -> None:
    bundle = shutil.copytree(platform_bundle(), tmp_path / "bundle")
    content = (bundle / "items.arrow").read_bytes()
    for written, why in ((content[:-1], "was cut off"), (content + b"x", "has changed since it was written")):
        (bundle / "items.arrow").write_bytes(written)
        with pytest.raises(
            ValueError, match=rf"has {len(written):,} bytes, .* says {len(content):,}; it {why}; export it again"
        ):
            Bundle.load(bundle)


@pytest.mark.slow
def test_bundles_alone_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", str(platform_run()), "--out", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("x")
    assert run(*arguments, "--force") == 1
    assert "is not what this command writes" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "out")
    shutil.copytree(platform_bundle(), tmp_path / "out")
    assert run(*arguments) == 1
    assert "exists already; --force replaces it" in capsys.readouterr().err
    assert run(*arguments, "--force") == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"next: rankfall serve {tmp_path / 'out'}"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--stage", "rankin"], 1, "has no stage 'rankin', did you mean 'ranking'"),
        (["--recall", "1.5"], 2, "found 1.5, expected more than 0 and at most 1"),
        (["--items", "nothing.parquet"], 1, "items: nothing.parquet is missing, damaged or cut off"),
        (["--data", "nowhere"], 1, "nowhere is not an impression log"),
    ],
)
def test_mistakes_get_a_message(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", str(platform_run()), "--out", str(tmp_path / "out"), *arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in " ".join(err.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_runs_that_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the directory of a run: it has no config"):
        export_run(tmp_path, tmp_path / "out")
    shutil.copytree(platform_run(), tmp_path / "demo/runs/first")
    shutil.copytree(platform_run(), tmp_path / "demo/second")
    below = "demo is not a run directory; the runs below it are .*demo/runs/first, .*demo/second$"
    with pytest.raises(ValueError, match=below):
        export_run(tmp_path / "demo", tmp_path / "out")
    shutil.copy(platform_run() / "config.yaml", tmp_path / "demo")  # what its runs were trained with
    with pytest.raises(ValueError, match=below):
        export_run(tmp_path / "demo", tmp_path / "out")
    broken = shutil.copytree(platform_run(), tmp_path / "run")
    (broken / "checkpoints/best.safetensors").unlink()
    with pytest.raises(ValueError, match=r"best\.safetensors is missing; train the run again"):
        export_run(broken, tmp_path / "out")
    seal_again(broken)
    with pytest.raises(ValueError, match="has not finished an epoch yet"):
        export_run(broken, tmp_path / "out")
    other = simulate_log(Simulation(preset="tiny", days=3, requests_per_day=20, seed=4), tmp_path / "other")
    with pytest.raises(ValueError, match="is not encoded like the log that the model was trained on"):
        export_run(platform_run(), tmp_path / "out", ExportOptions(items=other.path))
    with pytest.raises(ValueError, match="is not encoded like the log that the model was trained on"):
        export_run(platform_run(), tmp_path / "out", ExportOptions(items=other.path / "items.arrow"))
    log = liked_log(tmp_path / "log")
    train(validate_cascade(content(log, training={"epochs": 1})), tmp_path / "liked")
    with pytest.raises(ValueError, match=r"item\.price depends on the request"):
        export_run(tmp_path / "liked", tmp_path / "out")


@pytest.mark.slow
def test_many_items_get_an_index_in_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A simulated cascade: every stage is compared, and what the index misses is known."""
    source = simulated_source(5000, users=300, length=8, quotas=(50, 10), requests=100)
    again = simulated_source(5000, users=300, length=8, quotas=(50, 10), requests=100)
    np.testing.assert_array_equal(
        source.sample.requests.arrays["user.user_id"], again.sample.requests.arrays["user.user_id"]
    )
    manifest = writing.write_bundle(source, tmp_path / "bundle", recall=0.8, exact_below=1000)
    index = manifest["stages"][0]["index"]
    assert index["kind"] == "lists"
    assert 0.8 <= index["recall"] < 1
    assert index["queries"] == 100
    assert manifest["checks"]["same_with_candidates"] == 100
    assert manifest["checks"]["found_by_index"] == pytest.approx(index["recall"], abs=0.05)
    bundle = Bundle.load(tmp_path / "bundle")
    bundle.check()
    request = bundle.examples()[3]["request"]
    ranking = bundle.rank(request, explain=True)
    assert ranking.stages is not None
    everything = bundle.score(request, list(range(5000)))["retrieval"]
    expected = [everything[int(one)] for one in ranking.stages[0].ids]
    np.testing.assert_allclose(ranking.stages[0].scores, expected, atol=1e-6)


# --- attributes to show -------------------------------------------------------------------------------------------


def shown(log: ImpressionLog, path: Path | None, display: list[str] | None) -> dict[str, list[Any]]:
    """Return the attributes of the first three items by name of the item's id."""
    table = load_items(path, log, log.features, NAMES, display=display)
    ids = table.lookup.values.to_pylist()
    rows = [ids.index(f"sku-{number}") for number in (0, 1, 22)]
    return {name: [values.to_pylist()[row] for row in rows] for name, values in table.display.items()}


def test_attributes_are_raw_columns_or_decoded_features(rows_log: ImpressionLog, tmp_path: Path) -> None:
    titles = raw_items().with_columns(
        title=pl.Series([f"Title {number}" if number % 2 == 0 else None for number in range(40)]),
        weight=pl.Series([float("nan")] * 2 + [1.5] * 38),
        added=pl.lit("2024-01-02").str.to_date(),
        kind=pl.lit("shoe").cast(pl.Categorical),
    )
    titles.write_parquet(tmp_path / "items.parquet")
    chosen = shown(rows_log, tmp_path / "items.parquet", ["title", "weight", "added", "kind", "author", "price"])
    assert chosen == {
        "title": ["Title 0", None, "Title 22"],
        "weight": [None, None, 1.5],
        "added": ["2024-01-02"] * 3,
        "kind": ["shoe"] * 3,
        "author": ["author 0", "author 1", "author 9"],
        "price": pytest.approx([0.3, 2.0, 37.7]),
    }
    # a log has no raw columns: vocabularies and numbers are decoded
    of_log = shown(rows_log, None, ["sku", "item.price"])
    assert of_log["sku"] == ["sku-0", "sku-1", "sku-22"]
    assert of_log["item.price"] == pytest.approx([0.3, 2.0, 37.7], rel=1e-5)
    assert shown(rows_log, None, []) == {}
    assert shown(rows_log, None, None) == {}  # its only categories are the id and a hashed one


def test_attributes_that_cannot_be_shown_are_named_together(rows_log: ImpressionLog, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"display: .*") as caught:
        load_items(None, rows_log, rows_log.features, NAMES, display=["author", "size", "prize", "sku"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "author is hashed or in buckets" in lines[0]
    assert "size is hashed or in buckets" in lines[1]
    assert "found 'prize', did you mean 'price'; allowed are sku, author, price, size" in lines[2]
    raw_items().with_columns(tags=pl.concat_list("price", "price")).write_parquet(tmp_path / "items.parquet")
    with pytest.raises(ValueError, match=r"column 'tags': found .*list.*, expected text or numbers"):
        load_items(tmp_path / "items.parquet", rows_log, rows_log.features, NAMES, display=["tags"])


def test_a_bundle_shows_a_few_categories_by_default(tmp_path: Path) -> None:
    assert manifest_of(platform_bundle())["display"] == ["author_id", "category_level_two", "category_level_one"]
    bundle = Bundle.load(platform_bundle())
    row = platform_log().items().slice(7, 1).to_pylist()[0]
    shown_now = bundle.items.display(np.array([-1, *bundle.items.rows([row["item"]])]))
    assert shown_now == {
        name: [None, row[f"item.{name}"] - 2] for name in ("author_id", "category_level_two", "category_level_one")
    }


def test_examples_know_what_was_relevant() -> None:
    """Every relevant item and every feedback of the log, found by request time in the log itself."""
    table = platform_log().days[DAYS[2]].table().to_pylist()
    by_time = {row["time"]: row for row in table}
    assert len(by_time) == len(table)
    for example in Bundle.load(platform_bundle()).examples():
        at = dt.datetime.fromisoformat(example["request"]["time"])
        row = by_time[at if isinstance(table[0]["time"], dt.datetime) else round(at.timestamp() * 1000)]
        graded = [
            (grade, item)
            for grade, relevance, item in zip(row["grade"], row["relevance"], row["item"], strict=True)
            if relevance > 0
        ]
        assert set(example["relevant"]) == {item for _, item in sorted(graded, reverse=True)[:5]}
        likes = zip(row["item"], row["feedback.long_view"], strict=True)
        assert {item for item, _ in example["feedback"].get("long_view", [])} == {
            item for item, value in likes if value
        }
