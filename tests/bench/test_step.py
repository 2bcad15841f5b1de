"""Tests of `rankfall bench step`: measured steps equal the objectives; batches, predictions and reports."""

from __future__ import annotations

import json

import pytest
import torch

from rankfall import ops
from rankfall.benchmarks import step
from rankfall.benchmarks.step import BASELINE, OBJECTIVE, OBJECTIVE_OPERATORS, STEPS, build_objective, prepare
from rankfall.benchmarks.timing import WARM_UP, Clock, CostLimit, Shape, cpu_spread, measure_cases, peak_bytes
from rankfall.objectives import BCE, LCRON
from support.command_line import run


def test_every_operator_is_measured_inside_the_objective() -> None:
    measured = {name.split()[0] for name in OBJECTIVE_OPERATORS}
    public = {name for name in ops.__all__ if name.endswith(("_sort", "topk"))}
    # topk() wraps any of them; a hard top-k has no gradient to train with
    assert public - measured == {"topk", "hard_topk"}
    assert measured <= public


@pytest.mark.parametrize("name", STEPS)
def test_a_step_computes_the_objective_on_two_stages(name: str) -> None:
    first, second = torch.randn(2, 3, 30, generator=torch.Generator().manual_seed(0))
    grades = torch.rand(3, 30, generator=torch.Generator().manual_seed(1))
    objective = BCE(relevant=5) if name == BASELINE else LCRON(relevant=5, topk=OBJECTIVE_OPERATORS[name].make(30))
    value = STEPS[name].run(torch.stack([first, second]), grades, 5)
    torch.testing.assert_close(value, objective([first, second], grades))


@pytest.mark.parametrize("sort", ["neural_sort", "soft_sort"])
def test_both_gradients_of_a_sort_belong_to_the_same_value(sort: str) -> None:
    scores, grades = torch.randn(2, 3, 30).unbind(), torch.rand(3, 30)
    values = [build_objective(name, 30, 5)(scores, grades) for name in (sort, f"{sort} (one_minus)")]
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("n", step.SIZES)
def test_batches_are_as_large_as_the_work_limit_allows(n: int) -> None:
    found = {name: shape for shape, names in step.shapes(n).items() for name in names}
    assert found.keys() == OBJECTIVE_OPERATORS.keys()
    for name, shape in found.items():
        assert (shape.n, shape.k) == (n, 10)
        assert shape.lists == 128 or n > 200
        assert n <= 200 or shape.lists == 1 or OBJECTIVE_OPERATORS[name].work(shape) <= step.WORK
    assert found["dftopk"].lists == 128


def test_time_is_predicted_from_the_work_of_an_operator() -> None:
    limit, short, long = CostLimit(), Shape(1, 40, 10), Shape(1, 4000, 10)
    for name in ("dftopk", "neural_sort"):
        limit.note(name, short, seconds=0.01)
    assert limit.reason("dftopk", STEPS["dftopk"], long) == ""  # 100 times 10 ms
    assert limit.reason("neural_sort", STEPS["neural_sort"], long) == "would take 100 s"
    assert limit.reason("diff_sort", STEPS["diff_sort"], Shape(1, 20_000, 10)) == "needs 60 GB"


def test_a_skipped_operator_has_a_reason() -> None:
    limit = CostLimit()
    limit.note("soft_sort", Shape(2, 20, 10), seconds=1e6)
    cases = {name: STEPS[name] for name in (BASELINE, "dftopk", "soft_sort")}
    rows = measure_cases(cases, Shape(2, 20, 10), 0.0, limit, floors=[BASELINE], prepare=None)
    assert [row.name for row in rows] == [BASELINE, "dftopk", "soft_sort"]
    assert [row.cpu_ms is None for row in rows] == [False, False, True]
    assert rows[-1].left_out == "would take 1,000,000 s"


def test_the_spread_is_half_the_interquartile_range() -> None:
    assert cpu_spread(Clock(cpu=[4.0, 1.0, 2.0, 3.0, 5.0])) == pytest.approx(1.5 / 3)  # quartiles 1.5 and 4.5
    assert cpu_spread(Clock(cpu=[2.0, 2.0])) == 0
    assert cpu_spread(Clock(cpu=[2.0])) is None


def test_a_whole_step_trains_both_models() -> None:
    torch.manual_seed(0)
    whole = step.WholeStep("dftopk", Shape(2, 12, 10))
    before = {name: value.clone() for name, value in whole.cascade.state_dict().items()}
    whole()
    changed = {name for name, value in whole.cascade.state_dict().items() if not value.equal(before[name])}
    assert {name.split(".")[1] for name in changed} == {"retrieval", "ranking"}
    assert any("attention" in name for name in changed)


@pytest.mark.parametrize("name", ["neural_sort", "soft_sort"])
def test_no_square_matrix_is_allocated(name: str) -> None:
    n = 4000
    assert (
        peak_bytes(prepare, small=(name, WARM_UP), full=(name, Shape(1, n, 10))) < 4 * n**2 / 2
    )  # bytes of half a matrix


@pytest.mark.slow
def test_bench_step_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "step", "--quick", "--sizes", "20", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["what"] == "step"
    assert [row["name"] for row in found["rows"]] == [row["name"] for row in found["whole"]] == list(STEPS)
    assert {(row["lists"], row["n"]) for row in found["rows"]} == {(128, 20)}
    for row in found["rows"]:
        assert row["ns_per_item"] * 128 * 20 == pytest.approx(row["cpu_ms"] * 1e6)
        assert row["ratios"] == {BASELINE: pytest.approx(row["cpu_ms"] / found["rows"][0]["cpu_ms"])}
    for row in found["whole"]:
        assert row["ratios"][BASELINE] == pytest.approx(row["cpu_ms"] / found["whole"][0]["cpu_ms"])
        assert row["ratios"][OBJECTIVE] > 1


@pytest.mark.slow
def test_bench_step_prints_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "sweep_models", lambda *args, **options: [])
    assert run("bench", "step", "--quick", "--sizes", "20,24") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in (*STEPS, "128", "20", "24", "/bce"))
