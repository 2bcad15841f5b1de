"""Comparisons: the plan, the runs on disk, the statistics, the files, the command."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
import json
import math
import shutil
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from scipy import stats

from rankfall._config import ConfigError
from rankfall.data import RankingData, Recipe, prepare_letor
from rankfall.metrics import holm
from rankfall.reporting.comparison import csv_table, markdown_table, pivot_table, sweep_chart
from rankfall.reporting.files import figures_of, first_evaluations, write_comparison
from rankfall.studies import compare as comparing
from rankfall.studies.baselines import TreesConfig
from rankfall.studies.baselines.fitted import LambdaMART
from rankfall.studies.compare import Outcome, Step, compare_methods, perform, summarise, validation
from rankfall.studies.comparison_plan import load_comparison, make_plan
from rankfall.studies.results import ComparisonResult
from rankfall.studies.workers import Failure, run_tasks
from rankfall.training.config.ranker_config import DataConfig
from rankfall.training.run_directory import seal_run
from rankfall.training.train_ranker import load_lists
from support.cascades import content as cascade_content
from support.cascades import liked_log
from support.command_line import run as run_command
from support.fork_tasks import counted
from support.forks import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from support.forks import Forks

FEATURES = 4
METRICS = ["ndcg@3", "mrr"]
FOLDS = {
    "one": {"train": ["A"], "valid": ["B"], "test": ["C"]},
    "two": {"train": ["B"], "valid": ["C"], "test": ["A"]},
}


# --- data and configurations --------------------------------------------------------------------------------------


def ranking_text(lists: int, seed: int, first_qid: int) -> str:
    """Lists of 4 to 9 documents whose grade follows the first two features, with noise."""
    rng = np.random.default_rng(seed)
    lines = []
    for qid in range(first_qid, first_qid + lists):
        for _ in range(int(rng.integers(4, 10))):
            values = rng.normal(size=FEATURES)
            grade = int(np.clip(round(values[0] + values[1] + 0.5 * rng.normal()), 0, 2))
            lines.append(f"{grade} qid:{qid} " + " ".join(f"{i + 1}:{value:.5f}" for i, value in enumerate(values)))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of three splits."""
    folder = tmp_path_factory.mktemp("data")
    sources = {}
    for number, name in enumerate("ABC"):
        path = folder / f"{name}.txt"
        path.write_text(ranking_text(20 + number, seed=number, first_qid=100 * number))
        sources[name] = [path]
    prepare_letor(sources, folder / "prepared", Recipe())
    return folder / "prepared"


def content(data: Path, /, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": {"path": str(data)},
        "model": {"kind": "mlp", "hidden": [4], "batch_norm": False},
        "optimizer": {"lr": 0.01},
        "training": {"epochs": 2, "batch": 8, "metric": "ndcg@3"},
        "metrics": METRICS,
        "folds": FOLDS,
        "seeds": [0, 1],
        "methods": {"softmax": {"loss": {"name": "softmax_loss"}}, "ridge": {"kind": "ridge"}},
    }
    return base | changes


@pytest.fixture
def write(data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a configuration with changes to its top level."""

    def to_file(**changes: Any) -> Path:
        path = tmp_path / "comparison.yaml"
        path.write_text(yaml.safe_dump(content(data, **changes), sort_keys=False))
        return path

    return to_file


@pytest.fixture
def compare(write: Callable[..., Path], tmp_path: Path) -> Callable[..., ComparisonResult]:
    """Run a comparison with changes to the configuration's top level."""

    def run(out: str = "out", **changes: Any) -> ComparisonResult:
        result = compare_methods(load_comparison(write(**changes)), tmp_path / out)
        write_comparison(result, tmp_path / out)
        return result

    return run


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


# --- statistics ---------------------------------------------------------------------------------------------------


def outcome_of(values: dict[str, Tensor], folds: list[int], higher: bool = True) -> Outcome:
    queries = next(iter(values.values())).shape[-1]
    return Outcome(
        values={name: {"m": value} for name, value in values.items()},
        chance={name: {"m": torch.full((queries,), 0.25)} for name in values},
        higher_is_better={"m": higher},
        folds=folds,
    )


def test_figures_of_a_method_by_hand() -> None:
    values = torch.tensor([[0.0, 1.0, 0.5, 0.5, 1.0], [1.0, 1.0, 0.5, 1.5, 2.0]])  # folds of 2 and 3 queries
    figures = summarise(outcome_of({"a": values}, [2, 3])).methods[0].metrics["m"]
    assert figures.values == pytest.approx([0.5, 2 / 3, 1.0, 4 / 3])
    assert figures.std == pytest.approx(np.std([0.5, 2 / 3, 1.0, 4 / 3], ddof=1))
    by_query = [0.5, 1.0, 0.5, 1.0, 1.5]
    assert figures.mean == pytest.approx(0.9)
    margin = stats.t.ppf(0.975, 4) * np.std(by_query, ddof=1) / math.sqrt(5)
    assert (figures.low, figures.high) == pytest.approx((0.9 - margin, 0.9 + margin))
    assert (figures.chance, figures.queries) == (0.25, 5)


def test_undefined_queries_count_nowhere() -> None:
    nan = math.nan
    values = torch.tensor([[0.2, nan, 0.4, nan]])
    figures = summarise(outcome_of({"a": values}, [2, 1, 1])).methods[0].metrics["m"]
    assert figures.mean == pytest.approx(0.3)
    assert figures.queries == 2
    assert figures.values == pytest.approx([0.2, 0.4, nan], nan_ok=True)


@pytest.mark.parametrize("higher", [True, False])
def test_marks_are_those_of_one_sided_tests_with_holm(higher: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(2, 40, generator=generator, dtype=torch.double)
    shifts = {"best": 0.0, "near": -0.01, "mid": -0.06, "far": -0.3}
    sign = 1 if higher else -1
    values = {
        name: base + sign * shift + 0.15 * torch.randn(2, 40, generator=generator, dtype=torch.double)
        for name, shift in shifts.items()
    }
    result = summarise(outcome_of(values, [40], higher))
    by_query = {name: of.mean(0).numpy() for name, of in values.items()}
    best = max(by_query, key=lambda name: sign * by_query[name].mean())
    p_values = {
        name: stats.ttest_rel(of, by_query[best], alternative="less" if higher else "greater").pvalue
        for name, of in by_query.items()
        if name != best
    }
    adjusted, largest = {}, 0.0
    for position, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - position)))
        adjusted[name] = largest
    assert len({value < 0.05 for value in adjusted.values()}) == 2  # some are marked, some are not
    for test in result.tests:
        assert test.best == best
        if test.method != best:
            assert test.adjusted_p_value == pytest.approx(adjusted[test.method])
            assert test.significantly_worse == (adjusted[test.method] < 0.05)


def seeded(seeds: int, *, spread: float = 0.01, queries: int = 60) -> dict[str, Tensor]:
    """Values of four methods; a common shift of each run makes seeds differ by `spread`."""
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(queries, generator=generator, dtype=torch.double)
    shifts = {"best": 0.0, "near": -0.005, "mid": -0.04, "far": -0.3}
    noise = torch.randn(len(shifts), seeds, queries + 1, generator=generator, dtype=torch.double)
    return {
        name: base + shift + spread * of[:, :1] + 0.02 * of[:, 1:]
        for (name, shift), of in zip(shifts.items(), noise, strict=True)
    }


def welch_p_value(a: Tensor, b: Tensor) -> float:
    return float(stats.ttest_ind(a.mean(1), b.mean(1), equal_var=False).pvalue)


@pytest.mark.parametrize("higher", [True, False])
def test_verdicts_on_the_best_are_corrected_for_all_pairs(higher: bool) -> None:
    values = {name: of if higher else -of for name, of in seeded(3).items()}
    result = summarise(outcome_of(values, [60], higher))
    p_values = {pair: welch_p_value(values[pair[0]], values[pair[1]]) for pair in itertools.combinations(values, 2)}
    ranked = sorted(p_values, key=lambda pair: p_values[pair])
    adjusted = {
        pair: max(p_values[one] * (6 - i) for i, one in enumerate(ranked[: ranked.index(pair) + 1])) for pair in ranked
    }
    assert [verdict.method for verdict in result.verdicts] == list(values)
    for verdict in result.verdicts:
        assert verdict.against == "best"
        assert verdict.over_seeds is not None
        if verdict.method != "best":
            pair = ("best", verdict.method)
            assert verdict.over_seeds.p_value == pytest.approx(p_values[pair])
            assert verdict.over_seeds.adjusted_p_value == pytest.approx(min(1.0, adjusted[pair]))
            difference = float((values[verdict.method] - values["best"]).mean())
            assert verdict.over_seeds.difference == pytest.approx(difference)
            assert verdict.over_seeds.low < difference < verdict.over_seeds.high
    outcomes = {verdict.method: verdict.outcome for verdict in result.verdicts}
    assert outcomes == {"best": "reference", "near": "not distinguishable", "mid": "worse", "far": "worse"}
    assert [(pair.first, pair.second) for pair in result.pairs] == list(p_values)
    both = {(pair.first, pair.second): pair for pair in result.pairs}
    verdict = next(one for one in result.verdicts if one.method == "mid")
    assert verdict.over_both is not None
    assert verdict.over_both.adjusted_p_value == both["best", "mid"].adjusted_p_value
    assert verdict.over_both.low == -both["best", "mid"].high


def test_verdicts_against_a_named_method_are_corrected_for_its_tests_only() -> None:
    values = seeded(3)
    result = summarise(outcome_of(values, [60]), against="near")
    p_values = [welch_p_value(values[name], values["near"]) for name in ("best", "mid", "far")]
    adjusted = holm(p_values).tolist()
    found = [verdict.over_seeds for verdict in result.verdicts if verdict.method != "near"]
    assert [test.adjusted_p_value for test in found if test] == pytest.approx(adjusted)
    outcomes = {verdict.method: verdict.outcome for verdict in result.verdicts}
    assert outcomes == {"best": "not distinguishable", "near": "reference", "mid": "worse", "far": "worse"}
    against = {
        verdict.method: verdict.outcome for verdict in summarise(outcome_of(values, [60]), against="far").verdicts
    }
    assert against["best"] == "better"


def test_a_difference_of_seeds_is_no_difference_of_methods() -> None:
    """Runs that differ by luck: a test over queries sees methods apart, the verdict does not."""
    result = summarise(outcome_of(seeded(3, spread=0.2), [60]))
    assert any(test.significantly_worse for test in result.tests)
    verdicts = [verdict for verdict in result.verdicts if verdict.outcome != "reference"]
    assert all(verdict.over_queries.adjusted_p_value < 0.01 for verdict in verdicts)
    assert {verdict.outcome for verdict in verdicts} == {"not distinguishable"}


def test_equal_methods_are_rarely_called_different() -> None:
    """The best of several equal methods is chosen by the same data; the correction for all pairs allows for that."""
    generator = torch.Generator().manual_seed(0)
    repeats, methods, seeds, queries = 80, 4, 5, 40
    false = false_over_queries = 0
    for _ in range(repeats):
        noise = torch.randn(methods, seeds, queries + 1, generator=generator, dtype=torch.double)
        values = {str(number): 0.15 * of[:, :1] + 0.5 * of[:, 1:] for number, of in enumerate(noise)}
        result = summarise(outcome_of(values, [queries]))
        false += any(verdict.outcome == "worse" for verdict in result.verdicts)
        false_over_queries += any(test.significantly_worse for test in result.tests)
    assert false <= repeats * 0.05 + 3 * (repeats * 0.05 * 0.95) ** 0.5
    assert false_over_queries > 0.3 * repeats


def test_an_interval_excludes_zero_exactly_if_the_verdict_says_so() -> None:
    """P-values are corrected for the number of tests; an uncorrected interval would contradict some verdicts."""
    contradicted = 0
    for spread in (0.005, 0.01, 0.02, 0.05):
        for against in (None, "near"):
            result = summarise(outcome_of(seeded(3, spread=spread), [60]), against=against)
            tests = [test for one in result.verdicts for test in (one.over_queries, one.over_seeds, one.over_both)]
            for test in [test for test in tests if test is not None and test.difference != 0] + list(result.pairs):
                significant = test.adjusted_p_value < 0.05
                assert significant != (test.low <= 0 <= test.high)
                contradicted += (test.p_value < 0.05) != significant
            for one in result.verdicts:
                assert one.over_both is not None
                if one.method != one.against:
                    assert (one.outcome in ("better", "worse")) == (not one.over_both.low <= 0 <= one.over_both.high)
            for worse in result.tests:
                assert worse.significantly_worse == (worse.high < 0)
    assert contradicted > 3


def test_an_interval_has_the_level_that_holm_leaves_to_its_test() -> None:
    values = seeded(3, spread=0.0)
    result = summarise(outcome_of(values, [60]), against="best")
    names = ("near", "mid", "far")
    p_values = [float(stats.ttest_rel(values[name].mean(0), values["best"].mean(0)).pvalue) for name in names]
    for name, one in zip(names, result.verdicts[1:], strict=True):
        tests = len(names) - sorted(p_values).index(p_values[names.index(name)])  # that Holm has not decided yet
        difference = (values[name] - values["best"]).mean(0)
        witness = stats.ttest_1samp(difference, 0).confidence_interval(1 - 0.05 / tests)
        assert (one.over_queries.low, one.over_queries.high) == pytest.approx((witness.low, witness.high))


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_or_two_seeds_have_tests_over_queries_and_no_verdict(seeds: int) -> None:
    result = summarise(outcome_of(seeded(seeds), [60]))
    assert {verdict.outcome for verdict in result.verdicts} == {"no claim"}
    assert all(verdict.over_seeds is verdict.over_both is None for verdict in result.verdicts)
    assert result.verdicts[-1].over_queries.p_value < 1e-6
    assert result.pairs == []


def test_runs_of_a_fold_are_compared_with_each_other() -> None:
    """Folds of different difficulty do not make runs differ."""
    values = seeded(3)
    harder = torch.cat([torch.zeros(30), torch.full((30,), -0.5)]).double()
    easy, hard = (
        {test.method: test.over_both for test in summarise(outcome_of(of, [30, 30])).verdicts}
        for of in (values, {name: of + harder for name, of in values.items()})
    )
    for name, test in easy.items():
        other = hard[name]
        assert test is not None
        assert other is not None
        assert test.p_value == pytest.approx(other.p_value)


def table_of(values: dict[str, Tensor]) -> ComparisonResult:
    seeds, queries = next(iter(values.values())).shape
    summary = summarise(outcome_of(values, [queries]))
    return ComparisonResult(
        ["m"],
        list(range(seeds)),
        {"all": {}},
        methods=summary.methods,
        tests=summary.tests,
        incomplete=["broken"],
        verdicts=summary.verdicts,
    )


def test_table_marks_the_best_and_the_close() -> None:
    noise = torch.linspace(0.0, 0.4, 400, dtype=torch.double).expand(3, -1)
    result = table_of({"best": noise + 0.5, "close": noise.flip(1) + 0.499, "far": noise + 0.1})
    text = markdown_table(result)
    assert "| best | **.700±.000** |" in text
    assert "| close | .699±.000 \\* |" in text
    assert "| far | .300±.000 |" in text
    assert "| broken | failed |" in text
    assert "| chance | .250 |" in text
    assert [row[0] for row in csv.reader(csv_table(result).splitlines())] == ["method", "best", "close", "far"]


def test_few_queries_get_intervals() -> None:
    values = torch.tensor([[0.4, 0.6, 0.5]])
    margin = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert f"[.{1000 * (0.5 - margin):.0f}, .{1000 * (0.5 + margin):.0f}]" in markdown_table(table_of({"a": values}))


# --- a comparison -------------------------------------------------------------------------------------------------


def test_table_follows_from_the_values_of_queries(compare: Callable[..., ComparisonResult], tmp_path: Path) -> None:
    result = compare()
    rows = rows_of(tmp_path / "out" / "values.parquet")
    assert len(rows) == 2 * 2 * (22 + 20)  # methods, seeds, queries of the test splits C and A
    for method in result.methods:
        for metric, figures in method.metrics.items():
            of = [row for row in rows if row["method"] == method.name and not math.isnan(row[metric])]
            queries: dict[str, list[float]] = {}
            runs: dict[tuple[int, str], list[float]] = {}
            for row in of:
                queries.setdefault(row["qid"], []).append(row[metric])
                runs.setdefault((row["seed"], row["fold"]), []).append(row[metric])
            means = [sum(values) / len(values) for values in queries.values()]
            assert figures.mean == pytest.approx(sum(means) / len(means))
            assert figures.values == pytest.approx([sum(values) / len(values) for values in runs.values()])
            assert figures.std == pytest.approx(np.std(figures.values, ddof=1))
    assert [(run.seed, run.fold) for run in result.methods[0].runs or []] == [
        (0, "one"),
        (0, "two"),
        (1, "one"),
        (1, "two"),
    ]
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == result.to_json()
    lines = list(csv.DictReader((tmp_path / "out" / "comparison.csv").read_text().splitlines()))
    expected = {(m.name, name): f.mean for m in result.methods for name, f in m.metrics.items()}
    assert {(line["method"], line["metric"]): float(line["mean"]) for line in lines} == expected


def test_runs_are_not_repeated(
    compare: Callable[..., ComparisonResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = compare()
    done: list[str] = []

    def noted(step: Step) -> list[str]:
        done.append(step.method)
        return perform(step)

    monkeypatch.setattr(comparing, "perform", noted)
    assert compare() == first
    assert done == []

    methods = {"softmax": {"loss": {"name": "softmax_loss"}}, "mse": {"loss": {"name": "mse_loss"}}}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("*/result.json")}
    changed = compare(methods=methods, metrics=[*METRICS, "opa"])
    assert sorted(done) == ["mse"] * 4 + ["softmax"] * 4  # those of softmax were tested with one metric more
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert changed.methods[0].metrics["mrr"] == first.methods[0].metrics["mrr"]


def test_further_stage_metrics_test_again_without_training_again(tmp_path: Path) -> None:
    content = cascade_content(liked_log(tmp_path / "log"), training={"epochs": 1, "batch": 32})
    content |= {"methods": {"bce": {"objective": {"name": "bce"}}}}
    path = tmp_path / "comparison.yaml"
    path.write_text(yaml.safe_dump(content))
    before = compare_methods(load_comparison(path), tmp_path / "out")
    (run,) = (tmp_path / "out" / "runs").iterdir()
    trained = (run / "checkpoints" / "best.safetensors").stat().st_mtime_ns
    (run / "checkpoints" / "step-000000001.safetensors").touch()  # of a process killed at the end of the training run
    path.write_text(yaml.safe_dump(content | {"stage_metrics": ["ndcg_linear@3", "arp"]}))
    after = compare_methods(load_comparison(path), tmp_path / "out")
    assert (run / "checkpoints" / "best.safetensors").stat().st_mtime_ns == trained
    assert not list((run / "checkpoints").glob("step-*"))
    further = [
        "retrieval/alone/ndcg_linear@3",
        "retrieval/alone/arp",
        "ranking/alone/ndcg_linear@3",
        "ranking/alone/arp",
    ]
    assert set(after.metrics) - set(before.metrics) == set(further)
    for metric in before.metrics:
        assert after.methods[0].metrics[metric] == before.methods[0].metrics[metric]
    path.write_text(yaml.safe_dump(content | {"methods": {"bce": {"stage_metrics": ["opa"]}}}))
    with pytest.raises(ConfigError, match=r"methods\.bce\.stage_metrics: unknown"):
        make_plan(load_comparison(path), tmp_path / "other")


def test_names_of_runs_follow_from_what_decides_the_weights(write: Callable[..., Path], tmp_path: Path) -> None:
    plan = make_plan(load_comparison(write()), tmp_path)
    run = next(runs[0] for (method, _), runs in plan.trials().items() if method == "softmax")
    content = run.config.model_dump(mode="json")
    content.pop("metrics")
    content["data"].pop("path")
    for key in ("checkpoint_every", "keep", "track", "mlflow", "device", "compile"):
        content["training"].pop(key)
    text = json.dumps([content, plan.data_checksum], sort_keys=True)
    assert run.directory.name == f"softmax_loss-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def test_other_data_are_another_run(write: Callable[..., Path], tmp_path: Path) -> None:
    plan = make_plan(load_comparison(write()), tmp_path)
    names = []
    for seed in (0, 1):
        text = tmp_path / f"{seed}.txt"
        text.write_text(ranking_text(9, seed=seed, first_qid=0))
        sources = {"A": [text], "B": [text], "C": [text]}
        prepare_letor(sources, tmp_path / f"prepared{seed}", Recipe())
        other = make_plan(load_comparison(write(data={"path": str(tmp_path / f"prepared{seed}")})), tmp_path)
        names.append(other.run("softmax", "one", {}, 0).directory)
    assert len({*names, plan.run("softmax", "one", {}, 0).directory}) == 3


def test_half_of_a_run_is_done_again(compare: Callable[..., ComparisonResult], tmp_path: Path) -> None:
    whole = compare()
    victims = sorted((tmp_path / "out" / "runs").glob("softmax*"))
    (victims[0] / "result.json").unlink()  # killed while it trained
    (victims[1] / "values.parquet").unlink()  # killed before it was tested
    (victims[0] / "checkpoints" / "best.safetensors").write_bytes(b"half")
    assert compare() == whole


@pytest.mark.slow
@pytest.mark.xdist_group("forks")
@pytest.mark.filterwarnings("ignore::rankfall.storage.files.LeftoverWarning")  # a kill may leave a temporary file
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_comparison_goes_on(
    forks: Forks,
    write: Callable[..., Path],
    compare: Callable[..., ComparisonResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
) -> None:
    methods = {name: {"loss": {"name": f"{name}_loss"}} for name in ("softmax", "mse")}
    path, log, runs = write(methods=methods), tmp_path / "log", tmp_path / "killed" / "runs"
    process = forks.start(path, tmp_path / "killed", log, str(jobs), call="support.fork_tasks:compare_counted")
    deadline = time.monotonic() + DEADLINE
    while len(list(runs.glob("*/result.json"))) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    process.kill()
    process.communicate()
    while process.survivors():  # workers notice when their run is done
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kept = {result.parent.name for result in runs.glob("*/result.json")}
    assert 3 <= len(kept) < 8
    marks = {name: (runs / name / "result.json").stat().st_mtime_ns for name in kept}
    tested = {path.parent.name for path in runs.glob("*/values.parquet")}
    log.unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(comparing, "perform", partial(counted, log))
        interrupted = compare("killed", methods=methods)
    assert {name: (runs / name / "result.json").stat().st_mtime_ns for name in kept} == marks
    assert not interrupted.failed
    performed = [line.removeprefix("test ") for line in log.read_text().splitlines()]
    assert len(performed) == len(set(performed)) <= 8 - len(tested)
    assert not tested & set(performed)  # what was done before is not done again
    for name in ("result.json", "values.parquet"):
        assert len(list(runs.glob(f"*/{name}"))) == 8
    assert interrupted == compare("whole", methods=methods)


def test_only_one_comparison_works_in_a_directory(
    compare: Callable[..., ComparisonResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "perform", lambda step: compare())
    assert {failure.message for failure in compare().failed} == {
        f"out: another comparison is working in {tmp_path / 'out'}"
    }


@pytest.mark.slow
def test_jobs_change_nothing(write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither what comes of a comparison, nor that what a training has to say is shown with its run."""
    path, results = write(), []
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        run = make_plan(load_comparison(path), out).run("softmax", "two", {}, 0)
        perform(Step(run, "train"))
        (run.directory / "result.json").unlink()
        assert run_command("compare", str(path), "--out", str(out), "--jobs", str(jobs)) == 0
        notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
        assert notes == [f"note: softmax, two seed 0: {run.directory} has no checkpoint yet: training starts again"]
        results.append(json.loads((out / "comparison.json").read_text()))
    assert results[0] == results[1]


def test_parts_of_a_split_make_folds(data: Path) -> None:
    whole = RankingData.load(data)["C"]
    parts = [RankingData.load(data)[f"C:{number}/4"] for number in range(1, 5)]
    assert [len(part) for part in parts] == [5, 6, 5, 6]
    assert np.array_equal(np.concatenate([part.features for part in parts]), whole.features)
    assert np.array_equal(np.concatenate([part.labels for part in parts]), whole.labels)
    assert [qid for part in parts for qid in part.qids.to_pylist()] == whole.qids.to_pylist()
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    assert np.array_equal(lengths, np.diff(whole.offsets))
    assert np.allclose(RankingData.load(data).scaling(["C:1/4"]).mean, parts[0].features.mean(0), atol=1e-6)
    for name in ("C:0/4", "C:5/4", "C:1", "C:1/23", "C:a/b", "D:1/2"):
        with pytest.raises(ValueError, match="split: "):
            RankingData.load(data)[name]


# --- tuning -------------------------------------------------------------------------------------------------------

TUNED = {
    "tune": {"optimizer.lr": [0.0001, 0.3]},
    "methods": {
        "softmax": {"loss": {"name": "softmax_loss"}},
        "trees": {
            "kind": "lightgbm",
            "n_estimators": 5,
            "min_data_in_leaf": 2,
            "tune": {"num_leaves": [2, 5]},
        },
        "ridge": {"kind": "ridge"},
    },
}


def test_settings_are_those_best_on_validation(
    compare: Callable[..., ComparisonResult], write: Callable[..., Path], tmp_path: Path
) -> None:
    result = compare(**TUNED)
    plan = make_plan(load_comparison(write(**TUNED)), tmp_path / "out")
    for method in result.methods:
        for fold, chosen in (method.settings or {}).items():
            reached = [validation(plan.run(method.name, fold, one, 0)) for one in plan.candidates[method.name]]
            best = max(value for value in reached if value is not None)
            assert reached[plan.candidates[method.name].index(chosen)] == best
    assert [len(settings) for settings in plan.candidates.values()] == [2, 2, 1]
    # trials with the first seed are runs as well: 2 folds x (2 + 2 trials, 1 + 1 second seeds, 1 ridge)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 14


def test_tuning_never_sees_test(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every trial of every kind runs with a test split whose rows cannot be read."""
    plan = make_plan(load_comparison(write(**TUNED)), tmp_path)
    load = RankingData.load

    def without_test(path: str | Path, **options: Any) -> RankingData:
        whole = load(path, **options)
        splits = dict(whole.splits)
        splits["C"] = dataclasses.replace(
            splits["C"],
            features=np.full_like(splits["C"].features, np.nan),
            labels=np.full_like(splits["C"].labels, np.nan),
        )
        return RankingData(whole.path, whole.manifest, opened=splits)

    steps = [
        Step(plan.run(method, "one", settings, 0), "train")
        for method, candidates in plan.candidates.items()
        for settings in candidates
    ]
    for step in steps:
        perform(step)
    kept = [validation(step.run) for step in steps]
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(RankingData, "load", without_test)
    for step in steps:
        perform(step)
    assert [validation(step.run) for step in steps] == kept
    assert not list((tmp_path / "runs").glob("*/values.parquet"))
    with pytest.raises(ValueError, match="NaN"):
        perform(dataclasses.replace(steps[0], action="test"))


def test_test_labels_do_not_change_the_choice(write: Callable[..., Path], tmp_path: Path) -> None:
    """The same training and validation lists with another test split: the same models, whatever is tested."""
    weights = []
    for seed in (1, 2):
        sources = {}
        for name, lists in (("A", 0), ("B", 10), ("C", 10 + seed)):
            path = tmp_path / f"{name}{seed}.txt"
            path.write_text(ranking_text(20, seed=lists, first_qid=100 * lists))
            sources[name] = [path]
        prepared = tmp_path / f"prepared{seed}"
        prepare_letor(sources, prepared, Recipe())
        changes = {**TUNED, "data": {"path": str(prepared)}, "folds": {"one": FOLDS["one"]}, "seeds": [0]}
        out = tmp_path / f"out{seed}"
        result = compare_methods(load_comparison(write(**changes)), out)
        runs = {method.name: out / (method.runs or [])[0].directory for method in result.methods}
        files = ("softmax", "checkpoints/best.safetensors"), ("trees", "model.txt"), ("ridge", "ridge.json")
        weights.append(
            [
                [method.settings for method in result.methods],
                *((runs[name] / file).read_bytes() for name, file in files),
            ]
        )
    assert weights[0] == weights[1]


def test_budget_draws_equally_many_settings(write: Callable[..., Path], tmp_path: Path) -> None:
    methods = {
        "small": {"loss": {"name": "softmax_loss"}},
        "large": {"loss": {"name": "approx_ndcg_loss"}, "tune": {"loss.tau": [0.1, 1.0, 10.0]}},
    }
    changes: dict[str, Any] = {"methods": methods, "tune": {"optimizer.lr": [0.1, 0.2, 0.3]}}
    with pytest.raises(ConfigError, match=r"small 3, large 9.*budget: 3"):
        make_plan(load_comparison(write(**changes)), tmp_path)
    plan = make_plan(load_comparison(write(**changes, budget=3)), tmp_path)
    assert [len(plan.candidates[name]) for name in methods] == [3, 3]
    assert len({json.dumps(one) for one in plan.candidates["large"]}) == 3
    with pytest.raises(ConfigError, match=r"methods\.small.tune: its grid has 3 points, the budget is 4"):
        make_plan(load_comparison(write(**changes, budget=4)), tmp_path)


def test_a_method_with_given_settings_is_not_tuned(write: Callable[..., Path], tmp_path: Path) -> None:
    methods = {
        "given": {"loss": {"name": "softmax_loss"}, "tune": {}},
        "tuned": {"loss": {"name": "softmax_loss"}},
    }
    changes: dict[str, Any] = {"methods": methods, "tune": {"optimizer.lr": [0.1, 0.2, 0.3]}}
    for budget in ({}, {"budget": 2}):
        plan = make_plan(load_comparison(write(**changes, **budget)), tmp_path)
        assert plan.candidates["given"] == [{}]
        assert len(plan.candidates["tuned"]) == budget.get("budget", 3)


# --- baselines ----------------------------------------------------------------------------------------------------


def trees_config(data: Path, **options: Any) -> TreesConfig:
    section = DataConfig(path=str(data), train=["A"], valid=["B"], test=["C"])
    return TreesConfig(data=section, metric="ndcg@3", metrics=METRICS, seed=3, min_data_in_leaf=2, **options)


def test_lambdamart_is_lightgbm(data: Path, tmp_path: Path) -> None:
    config = trees_config(data, n_estimators=7, num_leaves=5, learning_rate=0.2, patience=None)
    LambdaMART(config).fit(tmp_path)
    seal_run(tmp_path, [tmp_path / "model.txt"])
    splits = RankingData.load(data)
    scores = LambdaMART(config).score(tmp_path, load_lists(splits, config.data, "test"))
    ranker = lightgbm.LGBMRanker(
        n_estimators=7, num_leaves=5, learning_rate=0.2, min_child_samples=2, random_state=3, n_jobs=1, verbosity=-1
    )
    ranker.fit(np.array(splits["A"].features), splits["A"].labels, group=np.diff(splits["A"].offsets))
    expected = ranker.predict(np.array(splits["C"].features))
    assert np.allclose(scores.numpy(), np.asarray(expected), atol=1e-12)


@pytest.mark.slow
def test_lambdamart_stops_at_the_best_validation(data: Path, tmp_path: Path) -> None:
    config = trees_config(data, n_estimators=60, num_leaves=7, learning_rate=0.5, patience=60)
    reached = LambdaMART(config).fit(tmp_path)
    lists = load_lists(RankingData.load(data), config.data, "valid")
    booster = lightgbm.Booster(model_file=tmp_path / "model.txt")
    values = []
    for trees in range(1, 60):
        shorter = config.model_copy(update={"n_estimators": trees, "patience": None})
        values.append(LambdaMART(shorter).fit(tmp_path))
    assert reached == max(values)
    assert booster.num_trees() == values.index(max(values)) + 1
    assert len(lists) == 21


def test_ridge_minimises_its_objective(data: Path, compare: Callable[..., ComparisonResult], tmp_path: Path) -> None:
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    methods = {"ridge": {"kind": "ridge", "alphas": [3.0]}}
    result = compare(methods=methods, folds={"one": FOLDS["one"]}, seeds=[0])
    model = json.loads((tmp_path / "out" / (result.methods[0].runs or [])[0].directory / "ridge.json").read_text())
    train = RankingData.load(data)["A"]
    scaler = StandardScaler().fit(np.array(train.features, np.float64))
    expected = Ridge(alpha=3.0).fit(scaler.transform(np.array(train.features, np.float64)), train.labels)
    assert model["weights"] == pytest.approx(expected.coef_.tolist(), rel=1e-6)
    assert model["mean"] == pytest.approx(scaler.mean_.tolist())


@pytest.mark.slow
@pytest.mark.xdist_group("forks")
def test_lightgbm_is_not_imported_unless_asked_for(forks: Forks, write: Callable[..., Path], tmp_path: Path) -> None:
    done = forks.start(write(seeds=[0]), tmp_path / "out", call="support.fork_tasks:compare_without_lightgbm")
    _, err = done.communicate()
    assert done.returncode == 0, err


def test_missing_lightgbm_says_how_to_install_it(
    write: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    path = write(methods={"trees": {"kind": "lightgbm"}, "ridge": {"kind": "ridge"}}, seeds=[0])
    assert run_command("compare", str(path), "--out", str(tmp_path / "out")) == 1
    assert "pip install lightgbm" in capsys.readouterr().err


# --- failures and wrong configurations ----------------------------------------------------------------------------


def test_a_failing_method_does_not_lose_the_others(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {
        "good": {"loss": {"name": "softmax_loss"}},
        "bad": {"loss": {"name": "mse_loss"}, "optimizer": {"name": "sgd", "lr": 1e30}},
        "ridge": {"kind": "ridge"},
    }
    path = write(methods=methods, seeds=[0])
    assert run_command("compare", str(path), "--out", str(tmp_path / "out"), "--json") == 1
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert [method["name"] for method in result["methods"]] == ["good", "ridge"]
    assert result["incomplete"] == ["bad"]
    assert {failure["run"] for failure in result["failed"]} == {"one seed 0", "two seed 0"}
    assert "error: bad, one seed 0: mse_loss" in err
    assert "Traceback" not in err


def test_a_run_that_two_methods_share_fails_for_both(compare: Callable[..., ComparisonResult]) -> None:
    bad = {"loss": {"name": "mse_loss"}, "optimizer": {"name": "sgd", "lr": 1e30}}
    result = compare(methods={"one": bad, "two": bad, "ridge": {"kind": "ridge"}}, seeds=[0, 1])
    failed = [(failure.method, failure.run) for failure in result.failed]
    runs = [f"{fold} seed {seed}" for seed in (0, 1) for fold in FOLDS]
    assert failed == [(method, run) for run in runs for method in ("one", "two")]
    assert result.incomplete == ["one", "two"]


def test_a_traceback_goes_with_its_cause(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(load_comparison(write()), tmp_path)
    step = Step(plan.run("softmax", "one", {}, 0), "test")
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "write_evaluation", lambda directory, evaluation: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            perform(step)
    assert "ZeroDivisionError" in (step.run.directory / "error.txt").read_text()
    perform(step)
    assert not (step.run.directory / "error.txt").exists()


def test_a_trial_that_fails_is_not_chosen(compare: Callable[..., ComparisonResult]) -> None:
    methods = {"mse": {"loss": {"name": "mse_loss"}, "optimizer": {"name": "sgd"}}}
    result = compare(methods=methods, tune={"optimizer.lr": [1e30, 0.01]})
    assert {failure.run for failure in result.failed} == {
        "one optimizer.lr=1e+30",
        "two optimizer.lr=1e+30",
    }
    assert result.methods[0].settings == {"one": {"optimizer.lr": 0.01}, "two": {"optimizer.lr": 0.01}}


# --- sweeps -------------------------------------------------------------------------------------------------------

PIRANK = {"loss": {"name": "pirank_ndcg_loss", "k": 3}}
RELAX = {"loss": {"name": "relax_loss"}}
RIDGE = {"kind": "ridge"}


def test_a_sweep_trains_what_methods_written_by_hand_train(compare: Callable[..., ComparisonResult]) -> None:
    methods = {"PiRank": PIRANK, "softmax": {"loss": {"name": "softmax_loss"}, "sweep": {}}, "ridge": RIDGE}
    sweep = {"loss.tau": [0.5, 5], "optimizer.lr": [0.01, 0.02]}
    by_hand: dict[str, Any] = {
        f"PiRank loss.tau={tau} optimizer.lr={lr}": {"loss": {**PIRANK["loss"], "tau": tau}, "optimizer": {"lr": lr}}
        for tau in (0.5, 5)
        for lr in (0.01, 0.02)
    }
    swept = compare(methods=methods, sweep=sweep, against="ridge", seeds=[0])
    plain = compare(
        methods={**by_hand, "softmax": {"loss": {"name": "softmax_loss"}}, "ridge": RIDGE}, against="ridge", seeds=[0]
    )
    assert [method.name for method in swept.methods] == [method.name for method in plain.methods]
    assert swept.to_json()["verdicts"] == plain.to_json()["verdicts"]
    for ours, theirs in zip(swept.methods, plain.methods, strict=True):
        assert ours.metrics == theirs.metrics
        assert ours.runs == theirs.runs  # the same directories: nothing was trained twice
    assert [method.of for method in swept.methods] == [*["PiRank"] * 4, "softmax", "ridge"]
    assert swept.methods[1].point == {"loss.tau": 0.5, "optimizer.lr": 0.02}
    assert swept.methods[-1].point == {}
    assert ComparisonResult.from_json(swept.to_json()) == swept
    assert "point" not in plain.to_json()["methods"][0]


def test_named_points_change_several_keys_and_methods_have_their_own(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    own = {"cut": {"2@1": {"loss.k": 1}, "3@2": {"loss.k": 2}}}
    path = write(
        methods={"relax": RELAX, "LambdaLoss": {"loss": {"name": "lambda_loss"}, "sweep": own}, "ridge": RIDGE},
        sweep={"cut": {"2@1": {"loss.m": 2, "loss.k": 1}, "3@2": {"loss.m": 3, "loss.k": 2}}},
    )
    plan = make_plan(load_comparison(path), tmp_path)
    names = ["relax cut=2@1", "relax cut=3@2", "LambdaLoss cut=2@1", "LambdaLoss cut=3@2", "ridge"]
    assert list(plan.candidates) == names
    losses = [plan.run_config(name, "one", {}, 0).model_dump()["loss"] for name in names[:-1]]
    assert [(loss.get("m"), loss["k"]) for loss in losses] == [(2, 1), (3, 2), (None, 1), (None, 2)]


def test_points_of_a_sweep_are_tuned(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(methods={"PiRank": PIRANK}, sweep={"loss.tau": [1, 2]}, tune={"optimizer.lr": [0.01, 0.02, 0.03]})
    assert [len(grid) for grid in make_plan(load_comparison(path), tmp_path).candidates.values()] == [3, 3]


def test_a_pivot_has_a_column_for_each_value(
    compare: Callable[..., ComparisonResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = compare(
        methods={"PiRank": PIRANK, "ridge": RIDGE}, sweep={"loss.tau": [0.5, 50, 5]}, folds={"one": FOLDS["one"]}
    )
    pivot = pivot_table(result, "ndcg@3")
    assert pivot.head == ["method", "0.5", "50", "5"]
    cells = [[cell.text for cell in row] for _, row in pivot.cells()]
    mean = {method.name: f"{method.metrics['ndcg@3'].mean:.3f}".lstrip("0") for method in result.methods}
    assert cells[0] == ["PiRank", *(mean[f"PiRank loss.tau={tau}"] for tau in (0.5, 50, 5))]
    assert cells[1] == ["ridge", *[mean["ridge"]] * 3]
    assert cells[2][0] == "chance"
    rows = result.to_polars("sweep").filter(metric="mrr")
    assert rows["method"].to_list() == [*["PiRank"] * 3, "ridge"]
    assert rows["loss.tau"].to_list() == [0.5, 50, 5, None]
    with (tmp_path / "out" / "comparison.csv").open() as file:
        assert [row["loss.tau"] for row in csv.DictReader(file) if row["metric"] == "mrr"] == ["0.5", "50", "5", ""]
    assert "ndcg@3 by loss.tau" in (tmp_path / "out" / "comparison.md").read_text()
    chart = sweep_chart(result, "ndcg@3")
    assert chart is not None
    assert chart.name == "ndcg-3-by-loss-tau"
    assert chart.name in figures_of(tmp_path / "out")
    assert run_command("compare", str(tmp_path / "out" / "comparison.yaml"), "--out", str(tmp_path / "out")) == 0
    assert "ndcg@3 by loss.tau" in capsys.readouterr().out


def test_two_keys_of_a_cascade_are_a_heat_map_with_their_own_chance_levels(tmp_path: Path) -> None:
    content = cascade_content(liked_log(tmp_path / "log"), training={"epochs": 1, "batch": 32})
    content |= {
        "methods": {"bce": {"objective": {"name": "bce"}}},
        "sweep": {"stages.0.quota": [4, 6], "optimizer.lr": [0.01, 0.1]},
    }
    result = compare_methods(load_comparison(content), tmp_path / "out")
    kept = [method.metrics["retrieval/alone/recall"].chance for method in result.methods]
    assert kept == pytest.approx([4 / 11, 4 / 11, 6 / 11, 6 / 11])
    pivot = pivot_table(result, "joint_recall")
    assert [row[0] for row in pivot.rows] == ["bce stages.0.quota=4", "bce stages.0.quota=6"]
    chart = sweep_chart(result, "joint_recall")
    assert chart is not None
    drawn = chart.svg()
    for method in result.methods:
        assert f">{method.metrics['joint_recall'].mean:.3f}<".replace("0.", ".", 1) in drawn
    means = {method.name: method.metrics["joint_recall"].mean for method in result.methods}
    assert set(first_evaluations(result, tmp_path / "out")) == set(means)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, "seed"),
        ({"methods": {}}, "methods"),
        ({"methods": {"a": {"loss": {"name": "soft_loss"}}}}, "softmax_loss"),
        ({"methods": {"a": {"kind": "forest"}}}, "methods.a.kind: found 'forest', expected ranker, lightgbm or ridge"),
        ({"methods": {"a": {"kind": "lightgbm", "leaves": 3}}}, "methods.a.leaves: unknown, did you mean 'num_leaves'"),
        ({"methods": {"a": {"metrics": ["mrr"]}}}, "methods.a.metrics: unknown"),
        ({"methods": {"ridge": {"kind": "ridge", "alphas": ["x"]}}}, "alphas"),
        (
            {"methods": {"a": {"loss": {"name": "mse_loss"}, "training": {"metric": "mrr"}}}},
            "that of all methods, ndcg@3",
        ),
        ({"metrics": ["ndgc"]}, "ndcg"),
        ({"seeds": [1, 1]}, "contain a seed twice"),
        ({"against": "rigde"}, "against: found 'rigde', did you mean 'ridge'; the methods are"),
        ({"data": {}}, "data.path"),
        ({"folds": None}, "train is missing"),
        ({"folds": {"one": {"train": ["A"], "valid": ["B"], "test": ["Z"]}}}, "no split 'Z'"),
        ({"folds": {"x": FOLDS["one"], "y": FOLDS["one"]}}, "both test on C"),
        ({"tune": {"optimizer.rate": [1]}}, "optimizer: unknown key 'rate'"),
        ({"tune": {"optimizer.lr": []}}, "tune.optimizer.lr"),
        ({"budget": 5}, "methods.softmax.tune: its grid has 1 point, the budget is 5"),
        ({"sweep": {"loss.tau": 3}}, "sweep: loss.tau: found 3, expected a list of values, or named points"),
        ({"sweep": {"optimizer.lr": [1, 1]}}, "sweep: optimizer.lr: found [1, 1], expected different values"),
        ({"sweep": {"optimizer.rate": [1]}}, "methods.softmax optimizer.rate=1: optimizer: unknown key 'rate'"),
        ({"sweep": {"metrics": [["mrr"]]}}, "sweep.metrics: unknown"),
        ({"sweep": {"training.seed": [1, 2]}}, "sweep: found training.seed, whose values are those of seeds"),
        (
            {"sweep": {"optimizer.lr": [1, 2]}, "tune": {"optimizer.lr": [1]}},
            "sweep: found optimizer.lr, whose values are those of tune",
        ),
        ({"sweep": {"optimizer.lr": [*range(1, 102)], "training.batch": [*range(1, 102)]}}, "a sweep of 10,201 points"),
        (
            {"sweep": {"optimizer.lr": [0.1]}, "against": "softmax"},
            "the methods are 'softmax optimizer.lr=0.1', 'ridge'",
        ),
        ({"methods": {"a": {"sweep": [1]}}}, "methods.a.sweep: found [1], expected keys with lists of values"),
        ({"methods": {"a": {"sweep": {"loss.tau": []}}}}, "methods.a.sweep: loss.tau: found []"),
    ],
)
def test_wrong_configurations_say_where(
    changes: dict[str, Any],
    message: str,
    write: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command("compare", str(write(**changes)), "--out", str(tmp_path / "out")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert not (tmp_path / "out").exists()


def test_command_tests_against_a_named_method(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(seeds=[0, 1, 2]), tmp_path / "out"
    assert run_command("compare", str(path), "--out", str(out)) == 0
    best = json.loads((out / "comparison.json").read_text())
    assert "against" not in best
    capsys.readouterr()
    assert run_command("compare", str(path), "--out", str(out), "--against", "ridge") == 0
    assert "= reference, ridge" in capsys.readouterr().out
    found = json.loads((out / "comparison.json").read_text())
    assert found["against"] == "ridge"
    assert {verdict["against"] for verdict in found["verdicts"]} == {"ridge"}
    assert found["tests"] == best["tests"]
    assert run_command("compare", str(out / "comparison.yaml"), "--out", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out) == found  # the configuration keeps the reference


def test_command_prints_the_table(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("compare", str(write()), "seeds=[4]", "--out", str(tmp_path / "out")) == 0
    out, _ = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if "±." in line] == ["softmax", "ridge"]
    assert "chance" in out
    assert "NO CLAIM about which is better: one seed is too few" in out
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["seeds"] == [4]


# --- parallel processes -------------------------------------------------------------------------------------------


WORK = """
import os, sys
def half(number):
    if number == 3:
        os._exit(7)
    if number % 2:
        raise KeyError(number)
    return number // 2

if __name__ == "__main__":
    from rankfall.studies.workers import run_tasks
    for task, outcome in sorted(run_tasks(half, range(7), jobs=2)):
        print(task, getattr(outcome, "message", outcome))
"""


def test_dead_process_fails_only_its_task(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORK)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" (rankfall.")[0] for line in done.stdout.splitlines()]
    assert lines == [
        "0 0",
        "1 KeyError: 1",
        "2 1",
        "3 its process ended with exit code 7",
        "4 2",
        "5 KeyError: 5",
        "6 3",
    ]


def test_tasks_in_this_process() -> None:
    (_, failure), done = run_tasks(lambda number: 6 // number, [0, 2])
    assert done == (2, 3)
    assert isinstance(failure, Failure)
    assert failure.message.startswith("ZeroDivisionError: integer division or modulo by zero (rankfall.studies.workers")
    assert "this is a bug in rankfall" in failure.message
