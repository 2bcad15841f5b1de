"""What is published in ARF: methods and printed numbers of its tables."""

from __future__ import annotations

import pytest

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
