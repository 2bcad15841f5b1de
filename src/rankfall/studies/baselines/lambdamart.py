"""LambdaMART of LightGBM as a method of a comparison (Burges 2010; Ke et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from rankfall.data.lists.ranking_data import RankingData
from rankfall.metrics.named import parse
from rankfall.storage.files import write_file
from rankfall.studies.baselines.baseline import Baseline
from rankfall.studies.baselines.configs import TreesConfig
from rankfall.training.measured_lists import measure_scores as measure
from rankfall.training.run_directory import verify_run
from rankfall.training.train_ranker import load_lists

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.data.lists.list_loader import Lists

MODEL_FILE = "model.txt"
MAX_LABEL = 30  # limit of LightGBM


class LambdaMART(Baseline[TreesConfig]):
    """LambdaMART by LightGBM as a method of a comparison."""

    kind: ClassVar[str] = "lightgbm"
    config: TreesConfig

    def fit(self, directory: Path) -> float:
        """Grow trees, and return the validation metric of the best number of them."""
        return fit(self.config, directory)

    def score(self, directory: Path, lists: Lists) -> Tensor:
        """Return the scores ``(rows,)`` of all documents by the trees of a run."""
        return score(self.config, directory, lists)


def fit(config: TreesConfig, directory: Path) -> float:
    """Fit trees with early stopping by the validation metric of the comparison, and return its best value."""
    lightgbm = import_lightgbm()
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
    write_file(directory / MODEL_FILE, booster.model_to_string())  # up to the best number of trees
    return validate(_predict(booster, valid), None)[1]


def score(config: TreesConfig, directory: Path, lists: Lists) -> Tensor:
    """Return the scores ``(rows,)`` of a fitted model."""
    verify_run(directory, MODEL_FILE)
    booster = import_lightgbm().Booster(model_file=directory / MODEL_FILE)
    return torch.from_numpy(_predict(booster, lists))


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
        raise ValueError("kind: lightgbm needs LightGBM, which is not installed: pip install lightgbm") from None
    return lightgbm


def _dataset(lightgbm: Any, lists: Lists, reference: Any = None) -> Any:
    labels = lists.labels
    if np.any((labels < 0) | (labels > MAX_LABEL) | (labels != np.floor(labels))):
        raise ValueError(
            f"kind: lightgbm takes whole labels from 0 to {MAX_LABEL}, the data have others "
            f"between {labels.min():g} and {labels.max():g}"
        )
    return lightgbm.Dataset(_features(lists), label=labels, group=lists.lengths, reference=reference)


def _predict(booster: Any, lists: Lists) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = booster.predict(_features(lists), num_threads=1)
    return scores


def _features(lists: Lists) -> NDArray[np.float32]:
    """Return the features unscaled: trees do not depend on monotone transformations."""
    return np.concatenate([split.features for split in lists.splits])
