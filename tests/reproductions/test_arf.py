"""What is published in ARF: methods and printed numbers of its tables, and its equations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rankfall import losses, ops
from rankfall.data import RankingData
from rankfall.reproductions.catalogue import DIRECTORY, papers, run
from rankfall.reproductions.costs import Training
from rankfall.reproductions.data import DataSource
from rankfall.reproductions.paper_schema import ListStatistics, LossComparison, LossCost, LossSweep
from rankfall.reproductions.task import Size, Task
from rankfall.reproductions.transfers import summary_of
from support.reproductions import load, panels_of

if TYPE_CHECKING:
    from pathlib import Path

DATA = ("MSLR-WEB30K", "Istella")
METRICS = ("recall@30@15", "ndcg@15", "ndcg")
GENERATED = DataSource("generated", "generated", {})
TINY = Size(test_lists=1, generated_lists=12, epochs=1, patience=1, seeds=1, tune=False, points=2)


@pytest.mark.parametrize(
    ("table", "method", "loss"),
    [(6, "ARF", "arf"), (7, "L_Relax", "relax_loss"), (8, "NeuralSort (L_Global)", "sort_cross_entropy_loss")],
)
def test_temperatures_are_swept_for_the_method_of_the_table(table: int, method: str, loss: str) -> None:
    sweep = load(LossSweep, f"arf-table{table}")
    assert [(one.name, one.config["loss"]["name"]) for one in sweep.methods] == [(method, loss)]
    assert sweep.published is not None
    assert sweep.published.values.keys() == set(DATA)
    for by_method in sweep.published.values.values():
        assert list(by_method) == [method]
        assert tuple(by_method[method]) == METRICS


@pytest.mark.parametrize(
    ("table", "source", "metric", "tau", "printed"),
    [
        (6, "MSLR-WEB30K", "recall@30@15", 0.8, 0.446),
        (6, "Istella", "ndcg", 8.0, 0.684),
        (7, "MSLR-WEB30K", "ndcg@15", 8.0, 0.397),
        (7, "Istella", "recall@30@15", 0.4, 0.644),
        (8, "Istella", "ndcg@15", 0.2, 0.303),
        (8, "MSLR-WEB30K", "ndcg", 0.4, 0.756),
    ],
)
def test_published_sweeps_are_as_printed(table: int, source: str, metric: str, tau: float, printed: float) -> None:
    published = load(LossSweep, f"arf-table{table}").published
    assert published is not None
    ((_, curve),) = published.figures(source, metric).items()
    assert curve[tau] == printed


@pytest.mark.parametrize("table", [6, 7, 8])
def test_the_best_of_a_sweep_is_in_table_2(table: int) -> None:
    """Table 2 shows each method at its best temperature, a relation that a wrong row would break."""
    sweep, main = load(LossSweep, f"arf-table{table}").published, load(LossComparison, "arf-table2").published
    assert sweep is not None
    for source in DATA:
        for metric in METRICS:
            ((method, curve),) = sweep.figures(source, metric).items()
            assert main.figures(source)[method][metric] == max(curve.values())


# --- drivers ----------------------------------------------------------------------------------------------------


def test_a_sweep_is_shown_beside_both_published_sets(tmp_path: Path) -> None:
    sweep = load(LossSweep, "arf-table8")
    report = run(sweep, Task(out=tmp_path, source=GENERATED, size=TINY, jobs=1))
    assert [sheet.title for sheet in report.sheets] == [
        f"ARF, table 8, {metric} by tau: here (generated), and as published (MSLR-WEB30K, Istella)"
        for metric in METRICS
    ]
    sheet, method = report.sheets[1], sweep.methods[0].name
    printed_points = [f"{point:g}" for point in sweep.published.points]
    assert list(sheet.head) == ["tau", *printed_points, "100"]  # those of the paper, and the last one of ours
    rows = {row[0]: dict(zip(sheet.head, row, strict=True)) for row in sheet.rows if row}
    here, *printed = (rows[f"{method}, {source}"] for source in ("here", *(f"published, {name}" for name in DATA)))
    assert (here["0.4"], [row["0.4"] for row in printed]) == ("", [".4860 <", ".3850"])
    assert (here["0.8"], [row["0.8"] for row in printed]) == ("", [".4490", ".5190 <"])
    assert [row["100"] for row in printed] == ["", ""]
    assert here["0.2"] != ""
    assert panels_of(report, "arf-table8") == ["generated", "published, MSLR-WEB30K", "published, Istella"]
    stored = report.results["published"]["sources"]["Istella"]["ndcg@15"][method]
    assert stored[3] == {"at": 0.8, "value": 0.519}


def test_heat_maps_in_numbers() -> None:
    values = {("a", "a"): 0.5, ("a", "b"): 0.7, ("b", "a"): 0.6, ("b", "b"): 0.9}
    assert summary_of(values) == pytest.approx(
        {
            "mean of the map": 0.675,
            "mean of the diagonal": 0.7,
            "best - diagonal": 0.05,  # .1 in the first column, 0 in the second
            "best - worst": 0.15,
            "best on the diagonal": 1,
        }
    )


def test_statistics_are_those_of_the_lists(tmp_path: Path) -> None:
    table = load(ListStatistics, "arf-table1")
    task = Task(out=tmp_path, source=GENERATED, size=TINY, jobs=1)
    report = run(table, task)
    data = RankingData.load(task.lists(table.protocol).path)
    lengths = np.concatenate([np.diff(data[name].offsets) for name in ("train", "test")])
    assert list(report.results["measured"].values()) == [
        data["train"].rows,
        data["test"].rows,
        lengths.min(),
        lengths.max(),
        0,
        4,
    ]
    assert report.sheets[0].rows[-1] == ["Istella", "5,600,000", "1,400,000", "40", "200", "1", "5"]


def test_a_step_has_whole_lists_and_trains_the_loss(tmp_path: Path) -> None:
    table = load(LossCost, "arf-table9")
    data = Task(out=tmp_path, source=GENERATED, size=TINY, jobs=1).lists(table.protocol)
    splits = next(iter(data.folds.values()))
    lengths = np.diff(RankingData.load(data.path)["train"].offsets)
    content = {"data": {"path": str(data.path), **splits}, "model": {"hidden": [4]}, **table.methods[-1].config}
    training = Training(content, int(lengths[0]) + 1)
    assert training.batches == pytest.approx(lengths.sum() / lengths[:2].sum())
    assert Training(content, 10**9).batches == 1
    before = [parameter.detach().clone() for parameter in training.parameters()]
    training.step()
    assert all((one != other).any() for one, other in zip(before, training.parameters(), strict=True))


# --- equations --------------------------------------------------------------------------------------------------


def soft_permutation(values: list[float], tau: float) -> list[list[float]]:
    """Rows of eq. 10, in plain Python."""
    n = len(values)
    spread = [sum(abs(one - other) for other in values) for one in values]
    rows = []
    for i in range(1, n + 1):
        exponents = [((n + 1 - 2 * i) * value - away) / tau for value, away in zip(values, spread, strict=True)]
        powers = [math.exp(one - max(exponents)) for one in exponents]
        rows.append([power / sum(powers) for power in powers])
    return rows


def printed_losses(s: list[float], v: list[float], m: int, k: int, tau: float) -> tuple[float, float]:
    """L_Relax (eq. 11) and L_Global (eq. 12, whose second minus sign is a slip), in plain Python."""
    of_scores, of_labels = soft_permutation(s, tau), soft_permutation(v, tau)
    n = len(s)
    relaxed = -sum(
        sum(row[j] for row in of_labels[:k]) * math.log(sum(row[j] for row in of_scores[:m]) / m) for j in range(n)
    )
    whole = -sum(of_labels[i][j] * math.log(of_scores[i][j]) for i in range(n) for j in range(n))
    return relaxed, whole


@pytest.mark.witness("derivation", "ARFLoss", "relax_loss", "sort_cross_entropy_loss")
def test_published_variants_are_the_printed_equations() -> None:
    s, v = [0.3, -0.7, 1.1, 0.2, -1.5, 0.9], [1.0, 0.0, 2.0, 2.0, 0.0, 4.0]
    scores, labels = torch.tensor(s, dtype=torch.float64), torch.tensor(v, dtype=torch.float64)
    for tau in (0.4, 0.8, 6.0):
        relaxed, whole = printed_losses(s, v, 3, 2, tau)
        options: dict[str, Any] = {"m": 3, "k": 2, "tau": tau, "variant": "published", "positive_only": False}
        assert losses.relax_loss(scores, labels, **options).item() == pytest.approx(relaxed)
        ordered = losses.sort_cross_entropy_loss(scores, labels, tau=tau, variant="published")
        assert ordered.item() == pytest.approx(whole)
        balanced = losses.ARFLoss(**options)
        with torch.no_grad():
            balanced.alpha.fill_(-2.0)
        # eq. 13
        assert balanced(scores, labels).item() == pytest.approx(relaxed + whole / 8 + math.log(2.0))


def test_published_targets_of_another_sort_are_its_soft_permutation_too() -> None:
    scores, labels = torch.tensor([0.3, -0.7, 1.1]), torch.tensor([0.0, 2.0, 1.0])
    target = ops.diff_sort(labels)
    expected = -(target * ops.diff_sort(scores).log()).sum()
    found = losses.sort_cross_entropy_loss(scores, labels, sort=ops.diff_sort, variant="published")
    torch.testing.assert_close(found, expected)


# --- completeness -----------------------------------------------------------------------------------------------


def test_every_table_and_figure_of_the_paper_has_an_entry() -> None:
    (paper,) = (one for one in papers() if one.name == "ARF")
    tables, figures = range(1, 10), range(2, 7)  # figure 1 is a drawing of a cascade
    expected = {f"arf-table{number}" for number in tables} | {f"arf-figure{number}" for number in figures}
    assert {one.id for one in paper.reproductions} == expected


def test_every_equation_is_stated() -> None:
    (paper,) = (one for one in papers() if one.name == "ARF")
    places = {one.place for one in paper.statements}
    assert {f"eq. {number}" for number in range(1, 14)} <= places
    assert {f"appendix B.{number}" for number in range(1, 5)} <= places


def test_nothing_printed_is_called_unknown() -> None:
    text = (DIRECTORY / "arf.yaml").read_text()
    assert not [word for word in ("not transcribed", "our notes", "null") if word in text]
