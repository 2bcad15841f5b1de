"""What is published in ARF: methods and printed numbers of its tables, and its equations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rankfall import losses, ops
from rankfall.reproductions.paper_schema import LossComparison, LossSweep
from support.reproductions import load

DATA = ("MSLR-WEB30K", "Istella")
METRICS = ("recall@30@15", "ndcg@15", "ndcg")


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


@pytest.mark.witness("derivation", "arf", "relax_loss", "sort_cross_entropy_loss")
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
