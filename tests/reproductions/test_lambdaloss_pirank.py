"""LambdaLoss@K and PiRank: what the printed tables say, their protocols, and the drivers of their figures."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall.losses import pirank_ndcg_loss
from rankfall.metrics.named import parse
from rankfall.models import MLP
from rankfall.ops import pirank_sort
from rankfall.reproductions import textbook
from rankfall.reproductions.catalogue import find_reproduction, papers, run
from rankfall.reproductions.costs import generate_queries
from rankfall.reproductions.costs import network_step as training_step
from rankfall.reproductions.data import DataSource
from rankfall.reproductions.operator_properties import STEP, kept_values, push
from rankfall.reproductions.paper_schema import GradientSigns, LossComparison, Marks, Method, PublishedTable, SortTree
from rankfall.reproductions.protocols import MANY_LISTS, deviations, is_tuned, list_config
from rankfall.reproductions.published import mark, marks_sheet, reference_of
from rankfall.reproductions.task import QUICK, Size, Task
from rankfall.reproductions.transfers import find_patterns, gains, tau_at
from rankfall.studies.results import ComparisonResult, MethodTest, TestFigures, Verdict
from support.reproductions import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall.reproductions.data import ListData

GENERATED = DataSource("generated", "generated", {})
TINY = Size(test_lists=1, generated_lists=12, epochs=1, patience=1, seeds=1, tune=False, points=2, longest=5**3)


# --- what is printed ------------------------------------------------------------------------------------------


def printed(name: str) -> dict[str, dict[str, dict[str, float]]]:
    table = load(LossComparison, name).published
    return {data: table.figures(data) for data in table.values}


def marks_of(name: str) -> Marks:
    marks = load(LossComparison, name).published.marks
    assert marks is not None
    return marks


@pytest.mark.parametrize("name", ["lambdaloss-table1", "lambdaloss-table2", "pirank-table1"])
def test_every_cell_has_a_number_and_a_mark(name: str) -> None:
    table = load(LossComparison, name).published
    assert table.marks is not None
    assert None not in [cell.printed for cell in table.cells()]
    assert {data: list(rows) for data, rows in table.values.items()} == {
        data: list(rows) for data, rows in table.marks.values.items()
    }


def test_nothing_is_left_out() -> None:
    for paper in papers():
        if paper.name in ("LambdaLoss@K", "PiRank"):
            assert not [one.id for one in paper.reproductions if "transcribed" in " ".join(one.notes)]


def test_marks_agree_with_the_printed_numbers() -> None:
    for name in ("lambdaloss-table1", "lambdaloss-table2"):
        marks, metrics = marks_of(name), load(LossComparison, name).published.metrics
        for data, rows in marks.values.items():
            for row, text in rows.items():
                for metric, sign in zip(metrics, text, strict=True):
                    one, other = (printed(name)[data][which][metric] for which in (row, marks.against))
                    assert sign == "." or (sign == "^") == (one > other)


def test_the_best_of_a_column_is_bold_in_pirank() -> None:
    metrics = load(LossComparison, "pirank-table1").published.metrics
    for data, rows in printed("pirank-table1").items():
        for position, metric in enumerate(metrics):
            sign = 1 if parse(metric).higher_is_better else -1
            best = max(rows, key=lambda row: sign * rows[row][metric])
            assert marks_of("pirank-table1").values[data][best][position] == "b"


def test_pirank_leads_on_thirteen_of_sixteen_metrics_and_alone_on_nine() -> None:
    bold = [
        {row for row, text in rows.items() if text[position] == "b"}
        for rows in marks_of("pirank-table1").values.values()
        for position in range(8)
    ]
    assert sum("PiRank-NDCG" in rows for rows in bold) == 13
    assert bold.count({"PiRank-NDCG"}) == 9


def test_claims_of_lambdaloss_that_its_tables_do_not_support() -> None:
    """The statements in lambdaloss.yaml quote these cells."""
    one, two = printed("lambdaloss-table1"), printed("lambdaloss-table2")
    baselines = ("Pairwise (RankNet)", "Softmax", "Gumbel ApproxNDCG")

    def first(data: str, metric: str) -> str:
        return max(baselines, key=lambda row: one[data][row][metric])

    cells = list(product(one, ("ndcg@1", "ndcg@5")))
    assert [cell for cell in cells if first(*cell) != "Gumbel ApproxNDCG"] == [("Yahoo", "ndcg@5")]
    assert {first(data, "ndcg") for data in one} == {"Softmax"}
    new = {data: max(rows["LambdaLoss@1"]["ndcg"], rows["LambdaLoss@5"]["ndcg"]) for data, rows in one.items()}
    assert [data for data in one if not new[data] > one[data]["LambdaLoss"]["ndcg"]] == ["Yahoo"]
    truncated = [data for data, rows in two.items() if rows["LambdaRank@5"]["ndcg@5"] > rows["LambdaRank"]["ndcg@5"]]
    assert truncated == ["Istella", "Yahoo"]
    for rows in two.values():
        assert min(rows["LambdaLoss@1"]["ndcg@5"], rows["LambdaLoss@5"]["ndcg@5"]) > rows["LambdaRank"]["ndcg@5"]
    ahead = {
        k: sum(rows[f"LambdaLoss@{k}"]["ndcg@5"] > rows["LambdaLoss"]["ndcg@5"] for rows in two.values())
        for k in (1, 5)
    }
    assert ahead == {1: 2, 5: 1}


def test_marks_have_one_character_per_column() -> None:
    content: dict[str, Any] = {"columns": ["ndcg", "mrr"], "values": {"data": {"a": [0.5, 0.5]}}}
    for rows, message in (({"a": "^"}, "found 1 values, expected 2"), ({"b": "^v"}, "found the row 'b'")):
        marks = {"against": "a", "test": "t", "values": {"data": rows}}
        with pytest.raises(ValueError, match=message):
            PublishedTable.model_validate(content | {"marks": marks})


# --- marks of a comparison --------------------------------------------------------------------------------------


def comparison(verdicts: Sequence[Verdict], tests: Sequence[MethodTest] = (), *, seeds: int = 2) -> ComparisonResult:
    return ComparisonResult(
        metrics=["ndcg", "arp"], seeds=list(range(seeds)), folds={}, verdicts=list(verdicts), tests=list(tests)
    )


def verdict(method: str, metric: str, outcome: Any, difference: float, p_value: float) -> Verdict:
    figures = TestFigures(difference, difference - 1, difference + 1, p_value, min(1.0, 2 * p_value))
    return Verdict(metric, method, "base", outcome, figures)


def test_marks_over_queries_are_uncorrected_and_follow_the_direction_of_the_metric() -> None:
    marks = Marks(against="base", test="t", values={})
    result = comparison(
        [
            verdict("a", "ndcg", "not distinguishable", 0.1, 0.04),
            verdict("a", "arp", "worse", 2.0, 0.01),
            verdict("base", "ndcg", "reference", 0.0, 1.0),
            verdict("b", "ndcg", "no claim", -0.1, 0.06),
        ]
    )
    found = {
        (method, metric): "".join(mark(result, marks, method, metric, over_seeds=over) for over in (False, True))
        for method, metric in (("a", "ndcg"), ("a", "arp"), ("base", "ndcg"), ("b", "ndcg"), ("missing", "ndcg"))
    }
    assert found == {
        ("a", "ndcg"): "^.",
        ("a", "arp"): "vv",
        ("base", "ndcg"): "..",
        ("b", "ndcg"): ".?",
        ("missing", "ndcg"): "??",
    }


def test_bold_is_the_best_or_not_significantly_worse() -> None:
    marks = Marks(against="best", test="t", values={})
    test = MethodTest("ndcg", "a", "base", -0.1, -0.2, 0.0, 0.03, 0.06, significantly_worse=False)
    result = comparison(
        [verdict("a", "ndcg", "not distinguishable", -0.1, 0.06), verdict("base", "ndcg", "reference", 0.0, 1.0)],
        [test],
    )
    assert mark(result, marks, "a", "ndcg", over_seeds=False) == "."  # one-sided and without correction
    assert mark(result, marks, "a", "ndcg", over_seeds=True) == "b"
    assert mark(result, marks, "base", "ndcg", over_seeds=False) == "b"


def test_the_reference_is_the_method_of_the_printed_row() -> None:
    methods = [Method(name="ours", config={}, row="base"), Method(name="a", config={})]
    content = {"columns": ["ndcg"], "values": {"data": {"base": [0.5], "a": [0.4]}}}
    marks = {"against": "base", "test": "t", "values": {"data": {"a": "v"}}}
    assert reference_of(PublishedTable.model_validate(content | {"marks": marks}), methods) == "ours"
    assert (
        reference_of(PublishedTable.model_validate(content | {"marks": marks | {"against": "best"}}), methods) is None
    )
    assert reference_of(PublishedTable.model_validate(content), methods) is None
    assert marks_sheet(PublishedTable.model_validate(content), comparison([]), methods) == []


@pytest.mark.slow
def test_lambdaloss_tests_against_lambdaloss_over_seeds(tmp_path: Path) -> None:
    task = Task(out=tmp_path, source=GENERATED, size=replace(TINY, seeds=3), jobs=1)
    report = run(find_reproduction("lambdaloss-table1"), task)
    assert {one["against"] for one in report.results["comparison"]["verdicts"]} == {"LambdaLoss"}
    sheet = report.sheets[-1]
    assert sheet.head[:3] == ["method", "over queries", "over seeds and queries"]
    assert not any("?" in str(cell) for row in sheet.rows for cell in row)


# --- protocols ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ListData:
    task = Task(out=tmp_path_factory.mktemp("lists"), source=GENERATED, size=TINY)
    return task.lists(load(LossComparison, "pirank-table1").protocol)


def test_pirank_trains_100000_steps_of_its_network_on_large_data(tmp_path: Path, small: ListData) -> None:
    protocol = load(LossComparison, "pirank-table1").protocol
    large = replace(small, train_lists=MANY_LISTS)
    task = Task(out=tmp_path, source=GENERATED)
    config = list_config(protocol, task, large, {"a": {"loss": {"name": "softmax_loss"}}})
    assert config.training["epochs"] * MANY_LISTS == 100_000 * 16
    assert config.training["patience"] is None
    assert config.optimizer == {"lr": 0.001}
    assert config.model["hidden"] == [1024, 512, 256]
    assert not is_tuned(protocol, task, large)
    assert deviations(protocol, task, large) == []


def test_deviations_on_small_data_are_stated(tmp_path: Path, small: ListData) -> None:
    protocol = load(LossComparison, "pirank-table1").protocol
    full, quick = (Task(out=tmp_path, source=GENERATED, size=size) for size in (Size(), QUICK))
    assert is_tuned(protocol, full, small)
    assert list_config(protocol, quick, small, {"a": {"loss": {"name": "softmax_loss"}}}).optimizer == {"lr": 0.003}
    network, training, rate = deviations(protocol, quick, small)
    assert network.startswith("Network: 128-64 instead of 1024-512-256, since there are 12 training lists")
    assert "10 epochs, that is 10 steps of 16 lists, instead of 100,000 steps" in training
    assert rate == "Learning rate: 0.003, instead of 0.001."
    assert "tuned on validation lists" in deviations(protocol, full, small, tuned=True)[-1]


def test_lambdaloss_tunes_the_published_learning_rates(tmp_path: Path, small: ListData) -> None:
    protocol = load(LossComparison, "lambdaloss-table1").protocol
    task = Task(out=tmp_path, source=GENERATED, size=QUICK)
    config = list_config(protocol, task, small, {"a": {"loss": {"name": "softmax_loss"}}})
    assert config.optimizer == {"name": "adagrad", "lr": 0.1}
    assert "those of the paper, 0.01, 0.1, 1, 10" in deviations(protocol, task, small)[-1]


# --- figures --------------------------------------------------------------------------------------------------


def test_lambdarank_ignores_relevant_items_below_k_only_if_the_first_k_are_relevant() -> None:
    figure = load(GradientSigns, "pirank-figure1")
    pushes = {
        (name, loss): push(labels, options)
        for name, labels in figure.lists.items()
        for loss, options in figure.losses.items()
    }
    below = {
        key: [value for value, label in zip(values, figure.lists[key[0]], strict=True) if label][-2:]
        for key, values in pushes.items()
    }
    assert below["two relevant items first", "LambdaRank@2"] == [0.0, 0.0]
    assert all(value > 0 for key, values in below.items() for value in values if key[1] == "PiRank-NDCG@2")
    assert all(value > 0 for value in below["an irrelevant item first", "LambdaRank@2"])


def test_pushes_are_minus_the_derivative() -> None:
    labels, step = [0, 1, 0, 1], 1e-6
    scores = -STEP * torch.arange(4, dtype=torch.float64)

    def loss(values: torch.Tensor) -> float:
        return float(pirank_ndcg_loss(values, torch.tensor(labels, dtype=torch.float64), k=2, tau=1.0))

    expected = [
        -(loss(scores + step * unit) - loss(scores - step * unit)) / (2 * step)
        for unit in torch.eye(4, dtype=torch.float64)
    ]
    assert push(labels, {"name": "pirank_ndcg_loss", "k": 2, "tau": 1.0}) == pytest.approx(expected, abs=1e-7)


def test_the_straight_through_loss_has_the_gradient_of_the_soft_one() -> None:
    """The loss is linear in the rows of the permutation, so that both train the same weights."""
    scores = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([[0, 1, 2, 0, 4, 0, 1, 3]] * 3, dtype=torch.float64)
    soft, hard = (pirank_ndcg_loss(scores, labels, k=3, tau=2.0, straight_through=through) for through in (False, True))
    assert not torch.isclose(soft, hard)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (soft, hard)))


def test_the_tree_of_figure_4_keeps_what_it_shows() -> None:
    figure = load(SortTree, "pirank-figure4")
    scores = torch.tensor(figure.scores, dtype=torch.float64)
    groups, root = kept_values(scores, figure.branches, figure.k, min(figure.taus))
    assert groups.tolist() == [pytest.approx([0.5, 0.3], abs=1e-3), pytest.approx([0.7, 0.4], abs=1e-3)]
    for tau in figure.taus:  # the values of the root are the rows of the operator times the scores
        *_, root = kept_values(scores, figure.branches, figure.k, tau)
        rows = pirank_sort(scores, k=figure.k, tau=tau, branches=figure.branches)
        torch.testing.assert_close(rows @ scores, root.squeeze(0))


def test_the_matrices_of_figure_3_are_as_stated() -> None:
    doubly_stochastic = torch.tensor([[0, 0.9, 0.1], [0.5, 0.01, 0.49], [0.5, 0.09, 0.41]])
    unimodal = torch.tensor([[0.8, 0.2, 0], [0.2, 0.3, 0.5], [0.25, 0.6, 0.15]])
    ones = torch.ones(3)
    torch.testing.assert_close(doubly_stochastic.sum(0), ones)
    for matrix in (doubly_stochastic, unimodal):
        torch.testing.assert_close(matrix.sum(1), ones)
    assert doubly_stochastic.argmax(1).tolist() == [1, 0, 0]
    assert unimodal.argmax(1).tolist() == [0, 2, 1]
    assert not torch.allclose(unimodal.sum(0), ones)


def test_gains_are_relative_to_the_shortest_lists() -> None:
    lengths = [10, 20]
    values = {("ndcg@1", train, test): 0.4 + 0.1 * (train == 20) for train in lengths for test in lengths}
    gained = gains(values, 10)
    assert gained["ndcg@1", 20, 10] == pytest.approx(0.25)
    assert gained["ndcg@1", 10, 10] == 0


def test_patterns_are_counted() -> None:
    lengths, metrics = [10, 20, 40], ["ndcg@1", "ndcg@5", "mrr", "arp"]
    # longer training lists are better, more so for small k and on longer tests; ARP is the other way round
    factor = {"ndcg@1": 2.0, "ndcg@5": 1.0, "mrr": 1.0, "arp": 1.0}
    values = {
        (metric, train, test): 1 + factor[metric] * train * test / 1e4
        for metric, train, test in product(metrics, lengths, lengths)
    }
    found = {one.claim.split(" (")[0]: (one.holds, one.of) for one in find_patterns(values, gains(values, 10), lengths)}
    assert found == {
        "a longer training list is better, at every test length and k": (12, 12),
        "the gain decreases with k": (6, 6),
        "the gain increases with the test length": (8, 8),
        "the gain is largest for the longest lists at the smallest k": (1, 1),
        "MRR: a longer training list is better": (6, 6),
        "ARP: a longer training list is better": (0, 6),
    }


def test_annealed_temperatures_are_those_of_training() -> None:
    schedule = {"start": 100.0, "end": 1.0, "schedule": "exponential"}
    assert [tau_at(schedule, share) for share in (0.0, 0.5, 1.0)] == pytest.approx([100, 10, 1])
    assert tau_at(5.0, 0.3) == 5


def test_generated_queries_have_the_labels_of_their_weights() -> None:
    features, labels = generate_queries(3, 50, 2, 4, seed=0)
    assert features.shape == (3, 50, 6)
    assert labels.min() == 0
    assert labels.max() <= 5
    for query in range(3):
        weights, documents = features[query, 0, :2], features[query, :, 2:]
        fits = [
            bool(
                (
                    (weights[0] * documents[:, i] + weights[1] * documents[:, j]).floor().clamp(0, 5) == labels[query]
                ).all()
            )
            for i, j in product(range(4), range(4))
            if i != j
        ]
        assert sum(fits) == 1


def test_a_training_step_with_the_textbook_sort_is_that_of_depth_one() -> None:
    """Lists that are processed one after the other give the same gradient as all at once."""
    features, labels = (tensor.double() for tensor in generate_queries(4, 20, 2, 3, seed=1))
    losses: list[tuple[Any, int]] = [
        (partial(textbook.pirank_ndcg_loss, k=3), 1),
        (partial(pirank_ndcg_loss, k=3, sort=partial(pirank_sort, depth=1), reduction="none"), 4),
    ]
    network = MLP(5, [8], batch_norm=False).double()
    gradients = []
    for loss, at_once in losses:
        copy = deepcopy(network)
        training_step(copy, loss, features, labels, at_once)()
        gradients.append(torch.cat([p.grad.flatten() for p in copy.parameters() if p.grad is not None]))
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[0], gradients[1])
