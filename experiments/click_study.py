"""Examination curves and click-trained rankers of simulated platforms: the numbers of docs/concepts/click-bias.md.

``python -m experiments.click_study DIR`` simulates a log whose relevant items are the clicked ones, estimates
its examination curve, trains a ranking stage with and without inverse propensity weights, and measures it against
clicks and against the true relevance. It writes ``curves-PRESET.json`` and ``recall-PRESET.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.data import ImpressionLoader
from rankfall.data.impressions.log import ImpressionLog
from rankfall.examination import ExaminationCurve, ExaminationPoint, estimate_examination
from rankfall.metrics import ndcg, recall
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.simulation.world import ATTENTION
from rankfall.storage.disk import make_directory
from rankfall.storage.files import write_file
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.methods import train
from rankfall.training.train_cascade import load_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

CLICK = "effective_view"
TOP = 10  # best items by truth, and places of the ranking
OBJECTIVES: dict[str, dict[str, Any]] = {
    "softmax": {"name": "per_stage", "loss": "softmax_loss", "labels": "relevance"},
    "bce": {"name": "bce", "min_depth": 0},
}
SHOWN = {"bce, shown stage": {"name": "bce", "min_depth": 3}}  # rank_pos, whose items are shown first
WEIGHTS = ("none", "constant", "naive", "pairs", "em", "true")
CONSTANT = {"of": CLICK, "scale": 0.43}  # all clicks weigh as much as they do on average with the true curve


def study(
    directory: Path,
    *,
    preset: str,
    seeds: Sequence[int],
    days: int,
    requests: int,
    resamples: int,
    weights: Sequence[str],
    objectives: Sequence[str],
) -> dict[str, list[dict[str, Any]]]:
    """Run the study.

    Args:
        directory: Directory of logs, curves and runs; what it already has is used again.
        preset: The simulated platform.
        seeds: Seeds of platform and training.
        days: Days of the log; the last but one validates and the last one tests.
        requests: Requests per day.
        resamples: Bootstrap samples of the curves.
        weights: What clicks are weighted by: nothing, a constant, or one of the curves.
        objectives: The objectives that are trained.

    Returns:
        One row per curve and one per run. The metrics of a run are its mean and 95 % interval over test requests;
        ``more`` has those of its paired difference to the run without weights.
    """
    curves: list[dict[str, Any]] = []
    recalls: list[dict[str, Any]] = []
    for seed in seeds:
        log = _log(directory / f"{preset}-{seed}", preset, seed, days, requests)
        files = _curves(directory, log, f"{preset}-{seed}", resamples)
        curves += [_curve_row(preset, seed, name, ExaminationCurve.load(path)) for name, path in files.items()]
        for objective in objectives:
            plain: dict[str, Tensor] = {}
            for weight in weights:
                run = directory / f"run-{preset}-{seed}-{objective.replace(', ', '-').replace(' ', '-')}-{weight}"
                values = _trained(run, log, {**OBJECTIVES, **SHOWN}[objective], _weight(weight, files), seed)
                row = {"preset": preset, "seed": seed, "objective": objective, "weight": weight}
                plain = values if weight == "none" else plain
                more = {name: _summary(values[name] - value) for name, value in plain.items() if weight != "none"}
                recalls.append(row | {name: _summary(value) for name, value in values.items()} | {"more": more})
                _write(json.dumps(recalls[-1]))
    return {"curves": curves, "recall": recalls}


def _log(path: Path, preset: str, seed: int, days: int, requests: int) -> ImpressionLog:
    if path.exists():
        return ImpressionLog.load(path)
    simulation = Simulation(preset=preset, days=days, requests_per_day=requests, seed=seed)
    return simulate_log(simulation, path, truth=True, relevant=CLICK)


def _curves(directory: Path, log: ImpressionLog, name: str, resamples: int) -> dict[str, Path]:
    """Estimate the curve with all methods on the training days, and write the true one beside them."""
    files = {method: directory / f"curve-{name}-{method}.json" for method in ("naive", "pairs", "em", "true")}
    training = list(log.days)[:-2]
    for method in ("naive", "pairs", "em"):
        if not files[method].exists():
            estimate_examination(log, CLICK, method=method, days=training, resamples=resamples).save(files[method])
    naive = ExaminationCurve.load(files["naive"])
    true = [_true_point(point) for point in naive.points]
    ExaminationCurve(**{**vars(naive), "method": "true", "points": true}).save(files["true"])
    return files


def _true_point(point: ExaminationPoint) -> ExaminationPoint:
    value = float((1 + point.position) ** -ATTENTION)
    return ExaminationPoint(**{**vars(point), "examination": value, "low": value, "high": value})


def _curve_row(preset: str, seed: int, method: str, curve: ExaminationCurve) -> dict[str, Any]:
    estimates = [point.examination for point in curve.points]
    truth = [(1 + point.position) ** -ATTENTION for point in curve.points]
    inside = [point.low <= true <= point.high for point, true in zip(curve.points[1:], truth[1:], strict=True)]
    return {
        "preset": preset,
        "seed": seed,
        "method": method,
        "given": curve.given,
        "curve": estimates,
        "low": [point.low for point in curve.points],
        "high": [point.high for point in curve.points],
        "error": float(np.abs(np.subtract(estimates, truth))[1:].mean()),
        "covered": float(np.mean(inside)),
    }


def _weight(name: str, curves: dict[str, Path]) -> dict[str, Any]:
    """Return the weights of a configuration."""
    if name == "none":
        return {}
    return {"weight": CONSTANT if name == "constant" else {"examination": str(curves[name]), "of": CLICK}}


def _trained(
    run: Path, log: ImpressionLog, objective: dict[str, Any], weight: dict[str, Any], seed: int
) -> dict[str, Tensor]:
    """Train a ranking stage and return the metrics of each test request."""
    days = list(log.days)
    config = validate_cascade(
        {
            "data": {"path": str(log.path), "train": f"{days[0]}..{days[-3]}", "valid": days[-2], "test": days[-1]},
            "relevant": TOP,
            "stages": [{"name": "ranking", "quota": TOP, "model": {"kind": "din"}}],
            "objective": objective,
            "optimizer": {"lr": 0.005},
            "training": {"epochs": 1, "batch": 128, "seed": seed},
        }
        | weight
    )
    if not (run / "result.json").exists():
        train(config, run, force=True, on_notice=lambda text: _write(f"{run.name}: {text}"))
    _, cascade = load_run(run, checkpoint="last")
    loader = ImpressionLoader(log, [days[-1]], batch=512, shuffle=False)
    found: dict[str, list[Tensor]] = {}
    for batch in loader:
        with torch.no_grad():
            (scores,) = cascade(batch)
        assert batch.truth is not None
        truth = batch.truth - batch.truth.min() + 1  # metrics want labels above 0
        clicks = batch.feedback[CLICK]
        values = {
            "recall of the best by truth": recall(scores, truth, m=TOP, k=TOP, mask=batch.mask),
            "recall of clicks": _defined(recall(scores, clicks, m=TOP, k=TOP, mask=batch.mask), clicks),
            "NDCG of clicks": _defined(ndcg(scores, clicks, mask=batch.mask), clicks),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return {name: torch.cat(values) for name, values in found.items()}


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _defined(values: Tensor, labels: Tensor) -> Tensor:
    return torch.where((labels > 0).any(1), values, torch.nan)


def _summary(values: Tensor) -> list[float]:
    """Return the mean and its 95 % interval, by a bootstrap over requests."""
    kept = values[~values.isnan()].numpy()
    random = np.random.default_rng(0)
    means = [kept[random.integers(len(kept), size=len(kept))].mean() for _ in range(500)]
    return [float(kept.mean()), *map(float, np.quantile(means, (0.025, 0.975)))]


def main() -> None:
    """Run the study from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--preset", default="recflow-like")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES))
    arguments = vars(parser.parse_args())
    directory = arguments.pop("directory")
    make_directory(directory)
    for name, rows in study(directory, **arguments).items():
        write_file(directory / f"{name}-{arguments['preset']}.json", json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
