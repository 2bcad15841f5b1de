"""Ridge regression of the labels, the simplest baseline of a comparison."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from rankfall.data.arrays import Moments
from rankfall.data.lists.ranking_data import RankingData
from rankfall.metrics.named import parse
from rankfall.storage.files import read_json_file, write_file
from rankfall.studies.baselines.baseline import Baseline
from rankfall.studies.baselines.configs import RidgeConfig
from rankfall.training.measured_lists import measure_scores as measure
from rankfall.training.run_directory import verify_run
from rankfall.training.train_ranker import load_lists

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.data.lists.list_loader import Lists

MODEL_FILE = "ridge.json"
CHUNK_ROWS = 1 << 16  # documents in memory at the same time


class Ridge(Baseline[RidgeConfig]):
    """Ridge regression of the labels as a method of a comparison."""

    kind: ClassVar[str] = "ridge"
    config: RidgeConfig

    def fit(self, directory: Path) -> float:
        """Fit all penalties, and return the validation metric of the best one."""
        return fit(self.config, directory)

    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of all documents by the weights of a run."""
        return score(self.config, directory, lists)


def fit(config: RidgeConfig, directory: Path) -> float:
    """Fit a model for every penalty, keep the best on validation data, and return its validation metric."""
    data = RankingData.load(config.data.path)
    train, valid = load_lists(data, config.data, "train"), load_lists(data, config.data, "valid")
    metric = parse(config.metric)
    reached = {}
    for model in _models(config, train):
        values = measure(_predict(config, model, valid), valid, [metric])[metric.name]
        reached[float(values.nanmean())] = model
    best = max(reached) if metric.higher_is_better else min(reached)
    write_file(directory / MODEL_FILE, json.dumps(reached[best]) + "\n")
    return best


def score(config: RidgeConfig, directory: Path, lists: Lists) -> Tensor:
    """Return the scores ``(rows,)`` of a fitted model."""
    verify_run(directory, MODEL_FILE)
    try:
        model = read_json_file(directory / MODEL_FILE)
    except ValueError:
        raise ValueError(f"{directory / MODEL_FILE} is damaged: it is not JSON") from None
    return _predict(config, model, lists)


def _models(config: RidgeConfig, train: Lists) -> list[dict[str, Any]]:
    """Return a model for each penalty alpha: the weights w that minimise |y - X w|^2 + alpha |w|^2."""
    parts = [Moments.of(chunk) for chunk in _chunks(config, train)]
    scaling = sum(parts[1:], start=parts[0]).scaling()
    labels = train.labels - train.labels.mean(dtype=np.float64)
    squares, products, row = np.zeros((train.features, train.features)), np.zeros(train.features), 0
    for chunk in _chunks(config, train):
        scaled = (chunk - scaling.mean) / scaling.deviation
        squares += scaled.T @ scaled
        products += scaled.T @ labels[row : row + len(scaled)]
        row += len(scaled)
    # X'X = V diag(e) V' is the same for all penalties: w = V (V' X'y / (e + alpha)).
    values, vectors = np.linalg.eigh(squares)
    rotated = vectors.T @ products
    return [
        {
            "alpha": alpha,
            "weights": (vectors @ (rotated / (values.clip(min=0) + alpha))).tolist(),
            "mean": scaling.mean.tolist(),
            "deviation": scaling.deviation.tolist(),
        }
        for alpha in config.alphas
    ]


def _predict(config: RidgeConfig, model: dict[str, Any], lists: Lists) -> Tensor:
    weights = np.array(model["weights"]) / np.array(model["deviation"])
    scores = [(chunk - np.array(model["mean"])) @ weights for chunk in _chunks(config, lists)]
    return torch.from_numpy(np.concatenate(scores))


def _chunks(config: RidgeConfig, lists: Lists) -> Iterator[NDArray[np.float64]]:
    for chunk in lists.chunks(CHUNK_ROWS):
        features = chunk.double()
        yield (torch.copysign(features.abs().log1p(), features) if config.data.log1p else features).numpy()
