"""Tests of `rankfall bench loader`: the reference loop returns the batches of the loader; reports and claims."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks import claims
from rankfall.benchmarks import loader as bench
from rankfall.data import ImpressionLoader
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from rankfall.data import Impressions


def tensors_by_column(batch: Impressions) -> dict[str, Tensor]:
    """Return the tensors of a batch under the names that the loop uses."""
    found = {f"user.{name}": tensor for name, tensor in batch.user.items()}
    found |= {f"item.{name}": tensor for name, tensor in batch.items.items()}
    found |= {f"sequence.history.{name}": tensor for name, tensor in batch.sequences["history"].items()}
    found |= {f"feedback.{name}": tensor for name, tensor in batch.feedback.items()}
    found |= {name: getattr(batch, name) for name in ("item", "depth", "rank", "relevance", "grade", "mask")}
    return found | {"sequence_mask": batch.sequence_mask["history"]}


def test_the_loop_returns_the_batches_of_the_loader(tmp_path: Path) -> None:
    log = bench.write_log(tmp_path, 50)
    loop, loader = claims.RequestLoop(log), ImpressionLoader(log, bench.DAY, batch=20, prefetch=0)
    for batch in loader:
        ours, theirs = tensors_by_column(batch), loop.batch(loader.requests(batch).to_pylist())
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name].to(tensor.dtype), rtol=0, atol=0, msg=name)


def test_the_setting_is_the_published_one(tmp_path: Path) -> None:
    log = bench.write_log(tmp_path, 30)
    (batch,) = ImpressionLoader(log, bench.DAY, prefetch=0)
    assert len(batch.user) + len(batch.items) == 13
    assert batch.item.shape == (30, 40)
    assert {tensor.shape for tensor in batch.sequences["history"].values()} == {(30, 50)}
    assert len(batch.sequences["history"]) == 5
    assert batch.relevance.sum(1).tolist() == [10.0] * 30


@pytest.mark.slow
def test_bench_loader_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "loader", "--quick", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in found["rows"]]
    assert found["what"] == "loader"
    assert {"file order", "shuffled", bench.COPY} < set(names)
    assert sum("25 negatives" in name for name in names) == 2
    assert all(row["impressions_per_second"] > 0 and row["megabytes_per_second"] > 0 for row in found["rows"])


@pytest.mark.slow
def test_bench_loader_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "loader", "--quick") == 0
    out = capsys.readouterr().out
    assert "impressions per second" in out
    assert bench.COPY in out


def test_bench_loader_has_no_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "loader", "--sizes", "100") == 2
    assert "--sizes" in capsys.readouterr().err


def test_the_claim_is_about_shuffled_batches() -> None:
    claim = claims.loader_claim({"shuffled": 1e5, "file order": 1e6, claims.LOOP: 4e3})
    assert claim.met
    assert claim.value == 25
    assert not claims.loader_claim({"shuffled": 1e5, claims.LOOP: 1e5 / 24}).met


def test_the_loop_is_measured_beside_the_loader(tmp_path: Path) -> None:
    speeds = claims.loader_speeds(bench.write_log(tmp_path, bench.BATCH), seconds=0.0)
    assert {"shuffled", claims.LOOP, bench.COPY} < speeds.keys()
    assert all(speed > 0 for speed in speeds.values())
