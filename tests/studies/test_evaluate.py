"""Evaluation of runs, and metrics by name."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import ndcg_score

from rankfall import metrics
from rankfall.data import RankingData
from rankfall.data.lists.list_loader import Lists
from rankfall.metrics.named import parse
from rankfall.studies.evaluate import evaluate_run
from rankfall.training.config.ranker_config import validate
from rankfall.training.evaluation import evaluate
from rankfall.training.measured_lists import measure_scores as measure
from rankfall.training.measured_lists import score
from rankfall.training.methods import train
from rankfall.training.train_ranker import load_run
from support.command_line import run
from support.planted import config_for
from support.sealing import seal_again

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    train(validate(config_for(data)), directory)
    return directory


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


# --- metrics by name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function", "options"),
    [
        ("ndcg", metrics.ndcg, {}),
        ("ndcg@3", metrics.ndcg, {"k": 3}),
        ("recall@4@2", metrics.recall, {"m": 4, "k": 2}),
        ("opa", metrics.opa, {}),
        ("mrr", metrics.mrr, {}),
        ("map", metrics.average_precision, {}),
        ("precision@3", metrics.precision, {"k": 3}),
        ("hit_rate@2", metrics.hit_rate, {"k": 2}),
        ("arp", metrics.arp, {}),
    ],
)
def test_a_name_means_its_metric(name: str, function: object, options: dict[str, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 7, generator=generator)
    labels = torch.randint(0, 3, (5, 7), generator=generator).float()
    labels[:, :2] = torch.tensor([2.0, 0.0])  # a pair to compare in every list
    labels[2] = 0.0
    mask = torch.arange(7) < torch.tensor([[7], [5], [3], [6], [4]])
    found = parse(name)(scores, labels, mask)
    assert found[2].isnan()
    assert callable(function)
    expected = function(scores, labels, mask=mask, **options)
    defined = [0, 1, 3, 4]
    assert torch.equal(found[defined], expected[defined])
    assert parse(name).higher_is_better == (name != "arp")


@pytest.mark.parametrize("name", ["", "ndcg@", "ndcg@-1", "ndcg@1.5", "ndcg@5@5", "recall", "recall@5", "mrr@3", "MRR"])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"allowed are|expected"):
        parse(name)


# --- runs ---------------------------------------------------------------------------------------------------------


def test_values_are_those_of_another_library(data: Path, run_dir: Path) -> None:
    found = evaluate_run(run_dir)
    split = RankingData.load(data)["S4"]
    scores = score(load_run(run_dir)[1], split).numpy()
    for number, (start, stop) in enumerate(zip(split.offsets[:-1], split.offsets[1:], strict=True)):
        gain = 2 ** split.labels[start:stop] - 1
        if gain.any():
            expected = ndcg_score(gain[None], scores[None, start:stop], k=5)
            assert found.values["ndcg@5"][number].item() == pytest.approx(expected, abs=1e-6)
        else:
            assert found.values["ndcg@5"][number].isnan()
    assert found.qids == split.qids.to_pylist()


def test_chance_is_what_random_scores_get(data: Path) -> None:
    lists = Lists([RankingData.load(data)["S4"]])
    chance = evaluate(torch.zeros(lists.rows), lists, ["ndcg@5", "mrr"]).chance
    generator = torch.Generator().manual_seed(0)
    for name, values in chance.items():
        draws = torch.stack(
            [measure(torch.rand(lists.rows, generator=generator), lists, [parse(name)])[name] for _ in range(200)]
        )
        error = draws.nanmean(1).std() / 200**0.5
        assert abs(draws.nanmean() - values.nanmean()) < 4 * error


def test_what_is_written_is_what_is_returned(run_dir: Path) -> None:
    evaluation = evaluate_run(run_dir)
    summary = json.loads((run_dir / "evaluation.json").read_text())
    assert summary == {"split": "test", **evaluation.summary().to_json()}
    assert summary["impressions"] == 40
    table = pq.read_table(run_dir / "values.parquet")
    assert table["qid"].to_pylist() == evaluation.qids
    for name, values in evaluation.values.items():
        assert np.array_equal(table[name].to_numpy(), values.numpy(), equal_nan=True)
        assert np.array_equal(table[f"chance {name}"].to_numpy(), evaluation.chance[name].numpy(), equal_nan=True)
        assert summary["metrics"][name] == pytest.approx(np.nanmean(values.numpy()), abs=1e-6)


def test_another_split_gets_files_of_its_own(run_dir: Path) -> None:
    test = evaluate_run(run_dir)
    before = (run_dir / "evaluation.json").read_bytes()
    valid = evaluate_run(run_dir, "valid")
    named = evaluate_run(run_dir, "S3")
    assert (run_dir / "evaluation.json").read_bytes() == before
    assert (run_dir / "evaluation-valid.json").exists()
    assert valid.qids == named.qids != test.qids


def test_validation_during_training_is_the_evaluation(run_dir: Path) -> None:
    best = json.loads((run_dir / "result.json").read_text())["best_metric"]
    assert evaluate_run(run_dir, "valid").summary().metrics["ndcg@10"] == pytest.approx(best, abs=1e-6)


def test_a_run_can_be_evaluated_from_anywhere_and_with_moved_data(
    data: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = evaluate_run(run_dir).summary()
    moved = shutil.copytree(data, tmp_path / "moved")
    assert evaluate_run(run_dir, data=str(moved)).summary() == expected


def test_scores_must_fit_the_lists(data: Path) -> None:
    with pytest.raises(ValueError, match=r"scores must be one for each of the \d+ documents, got \(3,\)"):
        measure(torch.zeros(3), RankingData.load(data)["S4"], [parse("mrr")])


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_prints_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(run_dir), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {"metrics", "chance", "impressions"} <= set(report)
    assert report["metrics"]["ndcg"] > report["chance"]["ndcg"]


def test_the_command_prints_a_table(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(run_dir), "--split", "valid") == 0
    out, _ = capsys.readouterr()
    assert all(word in out for word in ("recall@20@10", "chance", "20 lists"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere is not the directory of a run"),
        (("RUN", "--split", "S9"), "has no split 'S9'; it has S1, S2, S3, S4"),
        (("RUN", "--data", "nowhere"), "nowhere is not prepared ranking data"),
        (("BROKEN",), "best.safetensors cannot be read as a checkpoint"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_1(
    arguments: tuple[str, ...], message: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = shutil.copytree(run_dir, tmp_path / "broken")
    (broken / "checkpoints" / "best.safetensors").write_bytes(b"no checkpoint")
    seal_again(broken)
    words = {"RUN": str(run_dir), "BROKEN": str(broken)}
    assert run("evaluate", *(words.get(word, word) for word in arguments)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
