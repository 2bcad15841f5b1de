"""The temperature sweeps of ARF, tables 6 to 8: Recall@30@15 of a loss at every tau."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Lines
from rankfall.reproductions.published import shown
from rankfall.reproductions.setup import ARF, oracle, run_comparison
from rankfall.reproductions.sweep import pick
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from rankfall.reproductions.datasets import DataSet
    from rankfall.reproductions.task import Task

M, K = 30, 15
METRICS = ("recall@30@15", "ndcg@15", "ndcg")

# What the paper sweeps, and where it finds the best; the figures of the rows are not in our notes.
PUBLISHED_TAUS = (0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0)
PUBLISHED_BEST = (0.4, 1.0)
BEYOND = (20.0, 100.0)  # NeuralSort's logits grow with the list, so longer lists may want more


def sweep_tau(task: Task, name: str, title: str, loss: dict[str, Any]) -> Report:
    """Train a loss at each temperature, all else equal."""
    data = task.data(ARF.recipe)
    taus = pick((*PUBLISHED_TAUS, *BEYOND), task.size.points)
    methods = {f"tau = {tau:g}": {"loss": {**loss, "tau": tau}} for tau in taus}
    result = run_comparison(task, ARF.config(task, data, methods=methods, metrics=list(METRICS)))
    trained = {method["name"]: method["metrics"][METRICS[0]] for method in result["methods"]}
    found = {tau: trained[label] for tau, label in zip(taus, methods, strict=True) if label in trained}
    return Report(
        comparisons=[(f"{title}, {name} on {data.name}", result)],
        sheets=[_sheet(title, found)],
        plots={name: _picture(title, data, found)},
        results={
            "comparison": result,
            "best_tau": max(found, key=lambda tau: found[tau]["mean"], default=None),
            "published": {"taus": PUBLISHED_TAUS, "best": PUBLISHED_BEST},
            "oracle": oracle(data, METRICS),
            "data": data.summary(),
        },
        notes=["The published figures of the single rows are not in our notes, only the range of the best tau."],
    )


def _sheet(title: str, found: dict[float, dict[str, Any]]) -> Sheet:
    best = max(found, key=lambda tau: found[tau]["mean"], default=None)
    low, high = PUBLISHED_BEST
    rows = [
        [
            f"{tau:g}",
            f"{shown(of['mean'])}{' <' * (tau == best)}",
            "best between these" if low <= tau <= high else "" if tau in PUBLISHED_TAUS else "not swept",
        ]
        for tau, of in found.items()
    ]
    return Sheet(f"{title}: here, and in the paper", ["tau", METRICS[0], "published"], rows)


def _picture(title: str, data: DataSet, found: dict[float, dict[str, Any]]) -> Lines:
    rows = [
        {"series": data.name, "x": tau, "y": of["mean"], "low": of["low"], "high": of["high"]}
        for tau, of in found.items()
    ]
    return Lines(
        rows,
        title=f"{title} by temperature",
        subtitle="shaded: where the paper finds the best tau; band: 95 % confidence interval over queries",
        x="tau",
        y=METRICS[0],
        series="data",
        log_x=True,
        ticks=list(found),
        span=PUBLISHED_BEST,
    )
