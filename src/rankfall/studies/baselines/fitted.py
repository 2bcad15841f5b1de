"""The baselines: LambdaMART of LightGBM (Burges 2010; Ke et al. 2017), and ridge regression of the labels."""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch

from rankfall._config import dump
from rankfall._errors import RankfallError
from rankfall.data.arrays import Moments
from rankfall.data.lists.ranking_data import RankingData
from rankfall.metrics.named import parse
from rankfall.storage.disk import delete_tree, make_directory
from rankfall.storage.files import read_json_file, sweep, write_file
from rankfall.studies.baselines import BaselineConfig, RidgeConfig, TreesConfig
from rankfall.training.measured_lists import measure_scores as measure
from rankfall.training.methods import ListMethod
from rankfall.training.run_directory import CONFIG, RESULT, seal_run, verify_run
from rankfall.training.train_ranker import load_lists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.data.lists.list_loader import Lists
    from rankfall.training.loop import OnNotice


TREES, WEIGHTS = "model.txt", "ridge.json"
MAX_LABEL = 30  # limit of LightGBM
CHUNK_ROWS = 1 << 16  # documents in memory at the same time

Config = TypeVar("Config", bound=BaselineConfig)


class Baseline(ListMethod[Config]):
    """A method on prepared lists that is fitted as a whole and cannot be continued.

    Attributes:
        kind: Name of the baseline in comparisons.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.kind, config.metric, config.metrics)

    def complete(self, directory: Path, *, on_notice: OnNotice = warnings.warn) -> None:
        """Fit the baseline into a run directory. An unfinished run in it is deleted."""
        if directory.is_dir():
            sweep(directory)  # with a note about files of a dead process
        delete_tree(directory, missing_ok=True)
        make_directory(directory)
        write_file(directory / CONFIG, dump(self.config))
        text = json.dumps({"best_metric": self.fit(directory)}) + "\n"
        seal_run(directory, filter(Path.is_file, directory.iterdir()), later={RESULT: text})
        write_file(directory / RESULT, text)

    @abstractmethod
    def fit(self, directory: Path) -> float:
        """Fit the model, write it into a directory, and return its validation metric."""


# --- LambdaMART ---------------------------------------------------------------------------------------------------


class LambdaMART(Baseline[TreesConfig]):
    """LambdaMART by LightGBM as a method of a comparison."""

    kind: ClassVar[str] = "lightgbm"
    config: TreesConfig

    def fit(self, directory: Path) -> float:
        """Fit trees with early stopping by the validation metric of the comparison, and return its best value."""
        lightgbm = import_lightgbm()
        config = self.config
        data = RankingData.load(config.data.path)
        train, valid = load_lists(data, config.data, "train"), load_lists(data, config.data, "valid")
        metric = parse(config.metric)

        def validate(scores: NDArray[np.float64], _: object) -> tuple[str, float, bool]:
            values = measure(torch.from_numpy(scores), valid, [metric])[metric.name]
            return metric.name, float(values.nanmean()), metric.higher_is_better

        train_set = _dataset(lightgbm, train)
        booster = lightgbm.train(
            parameters(config),
            train_set,
            num_boost_round=config.n_estimators,
            valid_sets=[_dataset(lightgbm, valid, reference=train_set)],
            feval=validate,
            callbacks=[lightgbm.early_stopping(config.patience, verbose=False)] if config.patience else [],
        )
        write_file(directory / TREES, booster.model_to_string())  # up to the best number of trees
        return validate(_grown(booster, valid), None)[1]

    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of a fitted model."""
        verify_run(directory, TREES)
        booster = import_lightgbm().Booster(model_file=directory / TREES)
        return torch.from_numpy(_grown(booster, lists))


def parameters(config: TreesConfig) -> dict[str, Any]:
    """Return the parameters of LightGBM: the options of the method, and those that make results repeatable."""
    names = {"num_leaves", "learning_rate", "min_data_in_leaf", "lambda_l2", "feature_fraction", "bagging_fraction"}
    return {
        **config.model_dump(include=names | {"lambdarank_truncation_level", "seed"}),
        "objective": "lambdarank",
        "metric": "None",  # our own is passed as a function
        "bagging_freq": 1 if config.bagging_fraction < 1 else 0,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }


def import_lightgbm() -> Any:
    """Import LightGBM, which only this method needs."""
    try:
        import lightgbm
    except ImportError:
        raise RankfallError("kind: lightgbm needs LightGBM, which is not installed: pip install lightgbm") from None
    return lightgbm


def _dataset(lightgbm: Any, lists: Lists, reference: Any = None) -> Any:
    labels = lists.labels
    if np.any((labels < 0) | (labels > MAX_LABEL) | (labels != np.floor(labels))):
        raise RankfallError(
            f"kind: lightgbm takes whole labels from 0 to {MAX_LABEL}, the data have others "
            f"between {labels.min():g} and {labels.max():g}"
        )
    return lightgbm.Dataset(_unscaled(lists), label=labels, group=lists.lengths, reference=reference)


def _grown(booster: Any, lists: Lists) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = booster.predict(_unscaled(lists), num_threads=1)
    return scores


def _unscaled(lists: Lists) -> NDArray[np.float32]:
    """Return the features unscaled: trees do not depend on monotone transformations."""
    return np.concatenate([split.features for split in lists.splits])


# --- ridge regression ---------------------------------------------------------------------------------------------


class Ridge(Baseline[RidgeConfig]):
    """Ridge regression of the labels, the simplest method of a comparison."""

    kind: ClassVar[str] = "ridge"
    config: RidgeConfig

    def fit(self, directory: Path) -> float:
        """Fit a model for every penalty, keep the best on validation data, and return its validation metric."""
        config = self.config
        data = RankingData.load(config.data.path)
        train, valid = load_lists(data, config.data, "train"), load_lists(data, config.data, "valid")
        metric = parse(config.metric)
        reached = {}
        for model in _models(config, train):
            values = measure(_predict(config, model, valid), valid, [metric])[metric.name]
            reached[float(values.nanmean())] = model
        best = max(reached) if metric.higher_is_better else min(reached)
        write_file(directory / WEIGHTS, json.dumps(reached[best]) + "\n")
        return best

    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of a fitted model."""
        verify_run(directory, WEIGHTS)
        try:
            model = read_json_file(directory / WEIGHTS)
        except ValueError:
            raise RankfallError(f"{directory / WEIGHTS} is damaged: it is not JSON") from None
        return _predict(self.config, model, lists)


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


METHODS: dict[str, Any] = {baseline.kind: baseline for baseline in (LambdaMART, Ridge)}
"""The baselines by kind."""
