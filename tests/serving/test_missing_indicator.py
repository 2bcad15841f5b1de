"""Missing numbers with an indicator, from rows to the answer of a bundle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra serve")
pytest.importorskip("onnxscript", reason="needs the extra serve")
pytest.importorskip("onnxruntime", reason="needs the extra serve")

import torch

from rankfall.data import ImpressionLoader
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.inspect import inspect
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.serving import Bundle
from rankfall.serving.export.export_run import export_run
from rankfall.studies.diagnosis.attributes import RawValues
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.methods import train
from rankfall.training.train_cascade import load_run

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog

INDICATOR = {"kind": "dense", "missing": "indicator"}
SPEC = validate_spec(
    {
        "request": "request",
        "item": "item",
        "day": "day",
        "relevant": {"column": "clicked"},
        "features": {
            "user": {"age": INDICATOR | {"standardise": True}},
            "context": {"load": INDICATOR | {"bucketize": [0.5]}},
            "item": {"item": {"kind": "categorical", "vocabulary": True}, "price": INDICATOR | {"log1p": True}},
        },
    }
)
Row = dict[str, str]


def rows_of_log() -> list[Row]:
    """Rows of three days, in which some ages, loads and prices are missing."""
    draw, rows = random.Random(0), list[Row]()
    prices = [draw.choice(["", "1", "2.5"]) for _ in range(12)]
    for request in range(30):
        age, load = draw.choice(["", "20", "40"]), draw.choice(["", "0.1", "0.9"])
        for place, item in enumerate(draw.sample(range(12), 4)):
            values = [request, request // 10, item, int(place == 0), age, load, prices[item]]
            rows.append(dict(zip(COLUMNS, map(str, values), strict=True)))
    return rows


COLUMNS = ["request", "day", "item", "clicked", "age", "load", "price"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    folder = tmp_path_factory.mktemp("log")
    lines = [",".join(COLUMNS), *(",".join(row.values()) for row in rows_of_log())]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return prepare_rows([folder / "log.csv"], folder / "log", SPEC)


def test_missing_numbers_are_counted(log: ImpressionLog) -> None:
    rows = rows_of_log()
    of_requests = {row["request"]: row for row in rows}.values()
    ages, loads = (sum(row[name] == "" for row in of_requests) for name in ("age", "load"))
    prices = sum(row["price"] == "" for row in rows)
    counts = log.manifest["about"]["counts"]
    assert counts["numbers"] == {"user.age": 30, "context.load": 30, "item.price": 120}
    assert counts["missing_numbers"] == {"user.age": ages, "context.load": loads, "item.price": prices}
    shares = {numbers.column: numbers.replaced for numbers in inspect(log).numbers}
    assert shares == {"user.age": ages / 30, "item.price": prices / 120, "relevance": None}


def test_raw_values_are_read_back(log: ImpressionLog) -> None:
    known = {row["request"]: row["age"] for row in rows_of_log()}
    for day in log.days.values():
        table = day.table()
        found = RawValues(log).texts("user", "age", np.array(table["user.age"].to_pylist()))
        assert found == [known[str(request)] or "missing" for request in table["request"].to_pylist()]


@pytest.mark.slow
def test_a_missing_number_is_encoded_alike_in_logs_and_requests(log: ImpressionLog, tmp_path: Path) -> None:
    model = {"kind": "mlp", "hidden": [4], "dim": 2, "activation": "tanh"}
    content: dict[str, Any] = {
        "data": {"path": str(log.path), "train": 0, "valid": 1, "test": 2},
        "relevant": 1,
        "stages": [{"name": "rank", "quota": 3, "model": model}],
        "objective": {"name": "bce"},
        "training": {"epochs": 1, "batch": 5},
    }
    train(validate_cascade(content), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    known = {row["request"]: row for row in rows_of_log()}
    table = log.days["2"].table()
    requests = [known[str(request)] for request in table["request"].to_pylist()]
    asked = [{"user": number("age", row), "context": number("load", row)} for row in requests]
    (batch,) = ImpressionLoader(log, ["2"], batch=10, shuffle=False)
    _, cascade = load_run(tmp_path / "run")
    with torch.no_grad():
        (scores,) = (stage.model(batch) for stage in cascade.stages)
    answers = bundle.rank(asked, k=[3] * 10, candidates=batch.item.tolist())
    assert any(row["age"] == "" for row in requests)
    for answer, items, expected in zip(answers, batch.item.tolist(), scores.tolist(), strict=True):
        of_item = dict(zip(items, expected, strict=True))
        assert answer.scores == pytest.approx(sorted(expected, reverse=True)[:3], abs=1e-5)
        assert answer.scores == pytest.approx([of_item[item] for item in answer.ids if isinstance(item, int)], abs=1e-5)


def number(name: str, row: Row) -> dict[str, float]:
    """A feature of a request; a missing number is left out."""
    return {name: float(row[name])} if row[name] else {}
