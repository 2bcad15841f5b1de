"""`Ranker`: the weights of `rankfall train`, the interface of scikit-learn, and checks of arguments."""

from __future__ import annotations

import inspect
import pickle
import runpy
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import ndcg_score
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rankfall as rf
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data import RankingData
from rankfall.training.config.ranker_config import validate
from rankfall.training.methods import train
from rankfall.training.train_ranker import load_run
from support.planted import WEIGHTS, config_for
from support.standin_device import DEVICE
from support.standin_training import on_standin

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[Any]

SIZES = [5, 9, 6, 10, 7, 8, 5, 10]


def planted(seed: int = 0) -> tuple[Array, Array, list[int]]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(sum(SIZES), len(WEIGHTS)))
    return X, np.digitize(X @ WEIGHTS, [0.0, 2.0]), SIZES


def small(**arguments: Any) -> rf.Ranker:
    return rf.Ranker(**{"loss": "softmax_loss", "model": "linear", "epochs": 3, "learning_rate": 0.1, **arguments})


def hinge_loss(scores: torch.Tensor, labels: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
    better = (labels[:, :, None] > labels[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    return ((1 - scores[:, :, None] + scores[:, None, :]).relu() * better).sum() / len(scores)


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sections"),
    [
        ({"model": "linear"}, {}),
        (
            {"hidden": (8, 4), "dropout": 0.2, "loss": {"name": "lambda_loss", "k": 5}, "random_state": 3},
            {
                "model": {"kind": "mlp", "hidden": [8, 4], "dropout": [0.2]},
                "loss": {"name": "lambda_loss", "k": 5},
                "training": {"seed": 3},
            },
        ),
        (
            {"loss": "grade_softmax_loss", "model": "linear", "log1p": True},
            {"loss": {"name": "grade_softmax_loss"}, "data": {"log1p": True}},
        ),
        (
            {"model": "linear", "optimizer": "sgd", "clip": 0.5, "max_list": 6, "patience": 1, "epochs": 6},
            {
                "optimizer": {"name": "sgd", "clip": 0.5},
                "training": {"max_list": 6, "patience": 1, "epochs": 6},
            },
        ),
        (
            {"hidden": [4], "precision": "bfloat16", "device": "cpu"},
            {"model": {"kind": "mlp", "hidden": [4]}, "training": {"precision": "bfloat16", "device": "cpu"}},
        ),
    ],
    ids=["linear", "mlp", "grades", "sgd", "bfloat16"],
)
def test_weights_are_those_of_rankfall_train(
    arguments: dict[str, Any], sections: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    content = config_for(data, **sections)
    content["data"]["train"] = ["S1"]
    result = train(validate(content), tmp_path / "run")
    _, expected = load_run(tmp_path / "run")
    first, valid = (RankingData.load(data)[name] for name in ("S1", "S3"))
    given = {"loss": "softmax_loss", "epochs": 3, "batch": 16, "learning_rate": 0.1, **arguments}
    ranker = rf.Ranker(**given).fit(
        first.features,
        first.labels,
        group=np.diff(first.offsets),
        eval_set=[(valid.features, valid.labels)],
        eval_group=[np.diff(valid.offsets)],
    )
    for name, tensor in expected.state_dict().items():
        assert torch.equal(ranker.model_.state_dict()[name], tensor), name
    assert ranker.best_iteration_ == result.best_epoch
    assert ranker.n_iter_ == result.epochs
    assert ranker.best_score_["valid_0"]["ndcg@10"] == result.best_metric


def test_without_evaluation_sets_the_last_weights_are_kept_and_patience_is_not_used() -> None:
    X, y, group = planted()
    ranker = small(epochs=6, patience=1).fit(X, y, group)
    assert (ranker.n_iter_, ranker.best_iteration_) == (6, 6)
    assert (ranker.best_score_, ranker.evals_result_) == ({}, {})
    assert len(ranker.loss_curve_) == 6
    assert ranker.loss_curve_[-1] < ranker.loss_curve_[0]
    other = small(epochs=6).fit(X, y, group, eval_set=(X, y), eval_group=group, eval_metric="arp")
    assert np.array_equal(ranker.predict(X), other.predict(X)) == (other.best_iteration_ == 6)


def test_the_planted_order_is_found_as_scikit_learn_measures_it() -> None:
    X, y, group = planted()
    scores = small(epochs=40).fit(X, y, group).predict(X)
    assert scores.dtype == np.float32
    starts = np.cumsum(group)[:-1]
    values = [
        ndcg_score([2.0**labels - 1], [own], k=10)
        for labels, own in zip(np.split(y, starts), np.split(scores, starts), strict=True)
        if labels.any()
    ]
    assert np.mean(values) > 0.98
    assert small(epochs=40).fit(X, y, group).score(X, y, group) == pytest.approx(np.mean(values), abs=1e-6)


def test_several_sets_and_metrics() -> None:
    X, y, group = planted()
    other, labels, _ = planted(1)
    ranker = small(patience=None).fit(
        X,
        y,
        group,
        eval_set=[(X, y), (other, labels)],
        eval_group=[group, group],
        eval_names=["seen", "new"],
        eval_metric=["ndcg", "mrr", "recall@3@2"],
        eval_at=(1, 5),
    )
    newer: dict[str, Any] = {
        "eval_X": (X, other),
        "eval_y": (y, labels),
        "eval_group": [group, group],
        "eval_names": ["seen", "new"],
    }
    again = small(patience=None).fit(X, y, group, **newer, eval_metric="mrr")
    assert again.evals_result_["new"]["mrr"] == ranker.evals_result_["new"]["mrr"]
    assert list(ranker.evals_result_) == ["seen", "new"]
    assert {name: len(values) for name, values in ranker.evals_result_["new"].items()} == {
        "ndcg@1": 3,
        "ndcg@5": 3,
        "mrr": 3,
        "recall@3@2": 3,
    }
    first = ranker.evals_result_["seen"]["ndcg@1"]
    assert ranker.best_iteration_ == 1 + int(np.argmax(first))
    best = {name: values[ranker.best_iteration_ - 1] for name, values in ranker.evals_result_["new"].items()}
    assert ranker.best_score_["new"] == best
    assert ranker.score(other, labels, group, metric="recall@3@2") == pytest.approx(best["recall@3@2"])


def test_weights_of_rows_act_as_in_the_loss() -> None:
    """One step of gradient descent from the same weights, computed by hand with the loss function."""
    X, y, group = planted()
    weight = np.random.default_rng(1).uniform(0, 3, len(y))
    options: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.5, "epochs": 1, "standardise": False}
    ranker = small(**options).fit(X, y, group, sample_weight=weight)
    torch.manual_seed(0)
    model = rf.models.Linear(X.shape[1])
    starts = np.cumsum(group)[:-1]
    lists = [torch.from_numpy(part) for part in np.split(X.astype(np.float32), starts)]
    terms = [
        rf.losses.softmax_loss(model(features), torch.from_numpy(labels).float(), weight=torch.from_numpy(own).float())
        for features, labels, own in zip(lists, np.split(y, starts), np.split(weight, starts), strict=True)
    ]
    torch.stack(terms).mean().backward()
    weights = model.head.out.weight
    assert weights.grad is not None
    trained = dict(ranker.model_.named_parameters())["network.head.out.weight"]
    assert torch.allclose(trained, weights.detach() - 0.5 * weights.grad, atol=1e-6)


def test_weights_of_one_change_nothing_and_a_loss_without_weights_refuses_them() -> None:
    X, y, group = planted()
    plain, ones = small().fit(X, y, group), small().fit(X, y, group, sample_weight=np.ones(len(y)))
    assert np.allclose(plain.predict(X), ones.predict(X), atol=1e-6)
    with pytest.raises(ValueError, match="sample_weight: found weights, but hinge_loss cannot be called"):
        small(loss=hinge_loss).fit(X, y, group, sample_weight=np.ones(len(y)))


def test_a_function_or_module_as_loss() -> None:
    X, y, group = planted()
    named = small(loss={"name": "lambda_loss", "k": 3}).fit(X, y, group).predict(X)
    module = rf.losses.LambdaLoss(k=3)
    assert np.array_equal(small(loss=module).fit(X, y, group).predict(X), named)
    assert small(loss=hinge_loss, epochs=30).fit(X, y, group).score(X, y, group) > 0.95
    grades = small(loss="grade_softmax_loss").fit(X, y, group).predict(X)
    for logits_loss in (rf.losses.grade_softmax_loss, rf.losses.GradeSoftmaxLoss()):
        assert np.array_equal(small(loss=logits_loss).fit(X, y, group).predict(X), grades)
    trained = rf.losses.ARFLoss(m=3, k=3)
    before = [parameter.clone() for parameter in trained.parameters()]
    small(loss=trained).fit(X, y, group)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.parameters(), strict=True))


OWN_PARTS = '''
import torch, rankfall as rf
from torch import nn

def sharpened(scores, labels, *, mask=None, sharpness: float = 1.0):
    """Softmax loss of sharper scores."""
    return rf.losses.softmax_loss(scores / (1 / sharpness), labels, mask=mask)

class Tower(nn.Module):
    """Two layers."""

    def __init__(self, features: int, width: int = 4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, rows):
        return self.layers(rows).squeeze(-1)
'''


def test_own_losses_and_models_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(OWN_PARTS)
    X, y, group = planted()
    own = small(loss={"name": "./parts.py:sharpened", "sharpness": 1.0}).fit(X, y, group)
    assert np.array_equal(own.predict(X), small().fit(X, y, group).predict(X))
    with pytest.raises(ValueError, match="has no option 'sharp', did you mean 'sharpness'"):
        small(loss={"name": "./parts.py:sharpened", "sharp": 1.0}).fit(X, y, group)
    with pytest.raises(ValueError, match=r"sharpened.*ZeroDivisionError.*parts.py"):
        small(loss={"name": "./parts.py:sharpened", "sharpness": 0.0}).fit(X, y, group)
    tower = small(model={"kind": "./parts.py:Tower", "width": 3}, epochs=40).fit(X, y, group)
    assert dict(tower.model_.named_parameters())["network.layers.0.weight"].shape == (3, 4)
    assert tower.score(X, y, group) > 0.9
    tower.save(tmp_path / "tower.safetensors")
    (tmp_path / "parts.py").write_text(OWN_PARTS + "# changed since")
    with pytest.raises(ValueError, match=r"is code that .*tower.safetensors names.*trust=True"):
        rf.Ranker.load(tmp_path / "tower.safetensors")
    loaded = rf.Ranker.load(tmp_path / "tower.safetensors", trust=True)
    assert np.array_equal(loaded.predict(X), tower.predict(X))


@pytest.mark.parametrize("state", [5, np.random.RandomState(5), np.random.default_rng(5), None])
def test_equal_states_give_equal_weights(state: Any) -> None:
    X, y, group = planted()
    found = []
    for _ in range(2):
        np.random.seed(2)
        found.append(small(random_state=pickle.loads(pickle.dumps(state))).fit(X, y, group).predict(X))
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], small(random_state=6).fit(X, y, group).predict(X))


def test_a_fit_with_weights_on_a_device_has_the_weights_of_the_cpu() -> None:
    X, y, group = planted()
    arguments: dict[str, Any] = {"sample_weight": 1 + y, "eval_X": X, "eval_y": y, "eval_group": group}
    on_cpu = small().fit(X, y, group, **arguments)
    with on_standin():
        ranker = small().fit(X, y, group, **arguments)
        assert {str(parameter.device) for parameter in ranker.model_.parameters()} == {str(DEVICE)}
        scores = ranker.predict(X)
    assert np.array_equal(scores, on_cpu.predict(X))
    assert ranker.evals_result_ == on_cpu.evals_result_


# --- inputs ---------------------------------------------------------------------------------------------------------


def test_all_kinds_of_input_give_the_same_scores() -> None:
    X, y, group = planted()
    expected = small().fit(X, y, group).predict(X)
    names = list("abcd")
    qid = np.repeat([f"q{number}" for number in range(len(group))], group)
    for table, labels, own in [
        (torch.tensor(X), torch.tensor(y), torch.tensor(group)),
        (pd.DataFrame(X, columns=names), pd.Series(y), pd.Series(group)),
        (pl.DataFrame(X, schema=names), pl.Series(y), pl.Series(group)),
        (X.tolist(), y.tolist(), group),
    ]:
        assert np.array_equal(small().fit(table, labels, own).predict(table), expected)
    for ids in (qid, pd.Series(qid), pl.Series(qid)):
        assert np.array_equal(small().fit(X, y, qid=ids).predict(X), expected)
    frame = pd.DataFrame(X, columns=names).assign(qid=qid)
    ranker = small().fit(frame, y)
    assert ranker.n_features_in_ == 4
    assert list(ranker.feature_names_in_) == names
    assert np.array_equal(ranker.predict(frame), expected)
    assert np.array_equal(ranker.predict(frame[names]), expected)
    assert ranker.score(frame, y) == small().fit(X, y, group).score(X, y, group)


# --- missing values, text and categories ----------------------------------------------------------------------------


def messy(seed: int = 0) -> tuple[dict[str, list[Any]], Array]:
    """Columns of all kinds, and labels that depend on a text and on what is missing."""
    random = np.random.default_rng(seed)
    rows = sum(SIZES)
    brand = [[None, "acme", "bolt", "core"][one] for one in random.integers(0, 4, rows)]
    price: list[Any] = [None if random.random() < 0.3 else float(one) for one in random.normal(5, 2, rows).round(2)]
    columns = {
        "brand": brand,
        "price": price,
        "device": [["phone", "tablet"][one] for one in random.integers(0, 2, rows)],
        "stock": [None if random.random() < 0.2 else int(one) for one in random.integers(0, 9, rows)],
        "new": random.integers(0, 2, rows).astype(bool).tolist(),
        "age": random.normal(size=rows).tolist(),
    }
    return columns, np.array([2 * (b == "acme") + (p is None) for b, p in zip(brand, price, strict=True)])


def in_pandas(columns: dict[str, list[Any]], **types: str) -> pd.DataFrame:
    return pd.DataFrame(columns).astype({"device": "category", "stock": "Int64", "price": "float64", **types})


def in_polars(columns: dict[str, list[Any]]) -> pl.DataFrame:
    return pl.DataFrame(columns).with_columns(pl.col("device").cast(pl.Categorical))


def encoded(columns: dict[str, list[Any]], train: dict[str, list[Any]]) -> Array:
    """The features of the columns, written out."""
    features: list[list[float]] = []
    for name, values in columns.items():
        if name in ("brand", "device"):
            texts = ["acme", "bolt", "core", None] if name == "brand" else ["phone", "tablet"]
            features += [[float(value == text) for value in values] for text in texts]
            continue
        known = [value for value in train[name] if value is not None]
        features.append([sum(known) / len(known) if value is None else float(value) for value in values])
        if len(known) < len(train[name]):
            features.append([float(value is None) for value in values])
    return np.array(features).T


def test_frames_with_missing_values_and_text_are_their_written_out_features(tmp_path: Path) -> None:
    train, y = messy()
    other, _ = messy(1)
    other["brand"][:3], other["device"][:2] = ["new brand", "acme", None], ["watch", None]  # unknown in fit
    other["age"][4] = None  # never missing in fit
    by_hand = small(epochs=9).fit(
        encoded(train, train), y, SIZES, eval_set=(encoded(other, train), y), eval_group=SIZES
    )
    expected = by_hand.predict(encoded(other, train))
    for make in (in_pandas, in_polars, partial(in_pandas, brand="category"), partial(in_pandas, brand="object")):
        ranker = small(epochs=9).fit(make(train), y, SIZES, eval_set=(make(other), y), eval_group=SIZES)
        assert ranker.n_features_in_ == 6
        assert ranker.evals_result_ == by_hand.evals_result_
        ranker.save(tmp_path / "ranker.safetensors")
        for kept in (ranker, rf.Ranker.load(tmp_path / "ranker.safetensors"), pickle.loads(pickle.dumps(ranker))):
            for table in (in_pandas(other), in_polars(other)):
                np.testing.assert_allclose(kept.predict(table), expected, rtol=1e-6, atol=1e-6)
    frame = in_pandas(train)
    assert small(epochs=20).fit(frame, y, SIZES).score(frame, y, SIZES) > 0.95
    assert small(epochs=20).fit(frame[["age"]], y, SIZES).score(frame[["age"]], y, SIZES) < 0.85


def test_missing_numbers_in_arrays_and_numbers_as_categories() -> None:
    X, y, group = planted()
    X[::3, 1] = np.nan
    filled = np.where(np.isnan(X), np.nanmean(X, 0), X)
    by_hand = np.insert(filled, 2, np.isnan(X[:, 1]), axis=1)
    expected = small().fit(by_hand, y, group).predict(by_hand)
    np.testing.assert_allclose(small().fit(X, y, group).predict(X), expected, rtol=1e-6, atol=1e-6)
    codes = pd.Series(np.resize([1, 2, 3], len(y)))
    ranker = small().fit(pd.DataFrame({"a": X[:, 0], "code": codes.astype("category")}), y, group)
    lost = pd.DataFrame({"a": X[:, 0], "code": codes.where(codes != 3).astype("Int64").astype("category")})
    again = ranker.predict(lost)  # a missing category does not change the names of the others
    whole = ranker.predict(pd.DataFrame({"a": X[:, 0], "code": codes.astype("category")}))
    assert np.array_equal(again[codes != 3], whole[codes != 3])
    assert not np.array_equal(again, whole)
    floats = pd.DataFrame({"a": X[:, 0], "code": codes.astype(float).astype("category")})  # as beside missing numbers
    assert np.array_equal(ranker.predict(floats), whole)


def test_columns_that_change_their_kind_are_refused() -> None:
    train, y = messy()
    ranker = small().fit(in_pandas(train), y, SIZES)
    frame = in_pandas(train)
    with pytest.raises(ValueError, match="X, column 'price': found text, expected numbers as in fit"):
        ranker.predict(frame.assign(price="cheap"))
    with pytest.raises(ValueError, match="X, column 'brand': found numbers, expected text as in fit"):
        ranker.predict(frame.assign(brand=1.5))
    with pytest.raises(ValueError, match="X, column 'brand': found numbers, expected text"):
        ranker.predict(np.zeros((3, 6)))
    constant = small().fit(pd.DataFrame({"a": planted()[0][:, 0], "shop": "one"}), *planted()[1:])
    with pytest.raises(ValueError, match="X, column 'shop': found numbers, expected text as in fit"):
        constant.predict(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"eval_set, X of valid_0: found the columns .* in their order"):
        small().fit(frame, y, SIZES, eval_set=(frame[frame.columns[::-1]], y), eval_group=SIZES)
    nothing = frame.assign(price=None, brand=np.nan)  # all missing, whatever their types
    assert np.isfinite(ranker.predict(nothing)).all()


def test_rare_texts_are_unknown_and_rankers_of_numbers_are_loaded(tmp_path: Path) -> None:
    X, y, group = [f"q{number}" for number in range(300)], np.arange(300) % 3, [30] * 10
    X[-40:] = ["often"] * 40
    with pytest.warns(UserWarning, match=r"column 'text' has 261 different texts: the 255 most frequent ones"):
        ranker = small().fit(pl.DataFrame({"text": X}), y, group)
    assert ranker.model_.scaling.mean.shape == (255,)
    one, two = ranker.predict(pl.DataFrame({"text": ["never seen", "q99"]}))  # q99 is the last of equally rare texts
    assert one == pytest.approx(two, abs=1e-6)
    plain = small().fit(planted()[0], *planted()[1:])
    plain.save(tmp_path / "numbers.safetensors")
    again = rf.Ranker.load(tmp_path / "numbers.safetensors")
    assert np.array_equal(again.predict(planted()[0]), plain.predict(planted()[0]))


def with_value(place: tuple[int, int], value: float) -> Array:
    X = planted()[0]
    X[place] = value
    return X


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"X": with_value((2, 0), -np.inf)},
            r"X: found -inf in row 2, column '0' \(1 in all\), expected finite numbers",
        ),
        ({"X": with_value((2, 0), 1e300)}, "X: found 1e\\+300, expected numbers that float32 can represent"),
        ({"X": planted()[0][:, 0]}, r"X: found shape \(60,\), expected \(rows, features\)"),
        ({"X": np.full((60, 2), "a")}, "X: found <U1, expected numbers"),
        ({"X": np.empty((0, 4)), "y": [], "group": [0]}, "X: found no rows"),
        ({"X": pd.DataFrame({"a": ["x", 1.5] * 30})}, "X, column 'a': found text and numbers"),
        ({"X": pd.DataFrame({"a": [[1.0]] * 60})}, "X, column 'a': found values that are neither numbers nor text"),
        ({"X": pd.DataFrame({"a": pd.date_range("2025-01-01", periods=60)})}, "X, column 'a': found datetime64"),
        ({"X": pl.DataFrame({"a": [{"b": 1}] * 60})}, "X, column 'a': found Struct"),
        ({"X": pd.DataFrame(planted()[0], columns=list("abca"))}, "X: found a column twice in a, b, c, a"),
        ({"X": pd.DataFrame(index=range(60))}, "X: found no feature column"),
        ({"y": planted()[1][:-1]}, r"y: found shape \(59,\), expected one value per row of X \(60\)"),
        ({"y": planted()[1] - 1}, "y: found -1 in row"),
        ({"y": np.zeros(60)}, "all 8 lists of X give no order to learn"),
        ({"group": [30, 31]}, "group: found sizes that add up to 61, expected 60, the number of rows of X"),
        ({"group": [59, 0, 1]}, "group: found 0, expected whole numbers of at least 1"),
        ({"group": [59.5, 0.5]}, "group: found 59.5"),
        ({"group": [[60]]}, r"group: found shape \(1, 1\), expected the size of each list"),
        ({"group": None}, "group: found neither group nor qid, expected one of them"),
        ({"qid": np.zeros(60)}, "found both"),
        ({"group": None, "qid": [0, 1] * 30}, "qid: found rows of 0 in different places"),
        ({"group": None, "qid": [0, 1]}, r"qid: found shape \(2,\)"),
        ({"sample_weight": np.full(60, -1.0)}, r"sample_weight: found -1 in row 0 \(60 in all\)"),
        ({"eval_set": [(planted()[0], planted()[1])]}, "eval_group: found neither"),
        (
            {"eval_set": [(planted()[0][:, :2], planted()[1])], "eval_group": [SIZES]},
            "eval_set, X of valid_0: found 2 features",
        ),
        ({"eval_set": [planted()[0]], "eval_group": [SIZES]}, "eval_set: found ndarray, expected pairs"),
        ({"eval_set": [(planted()[0], planted()[1])] * 2, "eval_group": [SIZES]}, "eval_group: found 1, expected one"),
        ({"eval_set": (planted()[0], np.zeros(60)), "eval_group": SIZES}, "eval_set, valid_0: ndcg@10 is undefined"),
        ({"eval_X": planted()[0]}, "eval_set: found eval_X, expected eval_set, or eval_X and eval_y"),
        ({"eval_X": planted()[0], "eval_y": (planted()[1],)}, "found a tuple for only one of eval_X and eval_y"),
        ({"eval_metric": "ndgc"}, "found 'ndgc', did you mean 'ndcg'"),
        ({"eval_at": []}, "eval_at: found nothing"),
    ],
)
def test_wrong_data_are_refused(arguments: dict[str, Any], message: str) -> None:
    X, y, group = planted()
    with pytest.raises(ValueError, match=message):
        small().fit(**{"X": X, "y": y, "group": group, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": -1.0}, "Ranker: learning_rate: found -1.0, expected greater than 0"),
        ({"loss": "lambda_los"}, "Ranker: loss: found 'lambda_los', did you mean 'lambda_loss'"),
        ({"loss": {"name": "lambda_loss", "kk": 1}}, "lambda_loss has no option 'kk', did you mean 'k'"),
        ({"loss": 3}, "loss: found 3, expected a name, a dictionary or a function"),
        ({"loss": lambda scores, labels: scores.sum()}, "got an unexpected keyword argument 'mask'"),
        ({"hidden": [4]}, "Ranker: model: unknown key 'hidden'"),
        ({"model": "mlp", "hidden": [0]}, "Ranker: hidden.0: found 0"),
        ({"epochs": 0}, "Ranker: epochs: found 0"),
        ({"device": "gpu"}, "Ranker: device: found 'gpu'"),
        pytest.param(
            {"device": "cuda"},
            "^device: found cuda, but torch",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
        ({"random_state": -1}, "Ranker: random_state: found -1"),
        ({"learning_rate": 1e30, "model": "mlp"}, "Try a smaller learning_rate than 1e\\+30, clip=1$"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    X, y, group = planted()
    with pytest.raises(ValueError, match=message):
        small(**arguments).fit(X, y, group)


def test_prediction_refuses_other_features_and_an_unfitted_ranker() -> None:
    X, y, group = planted()
    with pytest.raises(ValueError, match=r"Ranker is not fitted; call fit"):
        small().predict(X)
    frame = pd.DataFrame(X, columns=list("abcd"))
    ranker = small().fit(frame, y, group)
    with pytest.raises(ValueError, match="only one of both has x, d"):
        ranker.predict(frame.rename(columns={"d": "x"}))
    with pytest.raises(ValueError, match="expected those of fit in their order"):
        ranker.predict(frame[list("dcba")])
    with pytest.raises(ValueError, match="X: found 3 features, expected 4"):
        ranker.predict(X[:, :3])
    assert ranker.predict(X[:0]).shape == (0,)


# --- scikit-learn and files -----------------------------------------------------------------------------------------


def test_a_loaded_ranker_does_not_import_the_loss_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    X, y, group = planted()
    file, path = tmp_path / "parts.py", tmp_path / "ranker.safetensors"
    small().fit(X, y, group).save(path)
    tensors, about = read_checkpoint(path)
    file.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n{OWN_PARTS}")
    for loss in (f"{file}:sharpened", {"name": f"{file}:sharpened", "sharpness": 1.0}):
        arguments = {**about["arguments"], "loss": loss}
        results = {**about["results"], "predict": "not a method"}
        write_checkpoint(path, tensors, {"kind": about["kind"], **about, "arguments": arguments, "results": results})
        loaded = rf.Ranker.load(path)
        assert loaded.predict(X).shape == y.shape  # no other attribute comes from the file
        for ranker in (loaded, clone(loaded), pickle.loads(pickle.dumps(loaded))):
            with pytest.raises(ValueError, match=r"parts\.py.*trust=True"):
                ranker.fit(X, y, group)
        assert not (tmp_path / "mark").exists()
        assert clone(loaded).set_params(loss="softmax_loss").fit(X, y, group).loss_curve_
    trusted = rf.Ranker.load(path, trust=True).fit(X, y, group)
    assert np.array_equal(trusted.predict(X), small().fit(X, y, group).predict(X))
    assert (tmp_path / "mark").exists()


def test_clone_parameters_and_repr() -> None:
    ranker = small(hidden=None, loss={"name": "lambda_loss", "k": 3})
    copied = clone(ranker)
    assert copied.get_params() == ranker.get_params()
    assert repr(copied).startswith("Ranker(loss={'name': 'lambda_loss', 'k': 3}, model='linear', learning_rate=0.1")
    assert copied.set_params(epochs=7).epochs == 7
    with pytest.raises(ValueError, match="found 'epoch', did you mean 'epochs'"):
        copied.set_params(epoch=7)


def test_grid_search_with_a_group_splitter_and_pipelines() -> None:
    X, y, group = planted()
    qid = np.repeat(np.arange(len(group)), group)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(qid=qid)
    rates = np.array([1e-6, 0.3])
    search = GridSearchCV(small(epochs=8), {"learning_rate": rates}, cv=GroupKFold(2)).fit(frame, y, groups=qid)
    assert search.best_params_["learning_rate"] == 0.3
    by_hand = []
    for train_rows, test_rows in GroupKFold(2).split(frame, y, qid):
        fitted = small(epochs=8, learning_rate=0.3).fit(frame.iloc[train_rows], y[train_rows])
        by_hand.append(fitted.score(frame.iloc[test_rows], y[test_rows]))
    assert search.cv_results_["mean_test_score"][1] == pytest.approx(np.mean(by_hand))
    pipeline = make_pipeline(StandardScaler(), small(standardise=False))
    scores = pipeline.fit(X, y, ranker__group=group).predict(X)
    alone = small().fit(X, y, group).predict(X)
    assert np.allclose(scores - scores.mean(), alone - alone.mean(), atol=1e-4)  # rounding moves the bias


def test_save_and_load(tmp_path: Path) -> None:
    X, y, group = planted()
    frame = pd.DataFrame(X, columns=list("abcd"))
    for arguments in (
        {"loss": "grade_softmax_loss", "model": "mlp", "hidden": (6,), "log1p": True},
        {"loss": hinge_loss, "random_state": np.random.default_rng(0)},
    ):
        ranker = small(**arguments).fit(frame, y, group, eval_set=(frame, y), eval_group=group)
        ranker.save(tmp_path / "ranker.safetensors")
        loaded = rf.Ranker.load(tmp_path / "ranker.safetensors")
        assert np.array_equal(loaded.predict(frame), ranker.predict(frame))
        assert loaded.evals_result_ == ranker.evals_result_
        assert list(loaded.feature_names_in_) == list("abcd")
        assert np.array_equal(pickle.loads(pickle.dumps(ranker)).predict(frame), ranker.predict(frame))
    assert loaded.loss == f"{__name__}:hinge_loss"


def test_scikit_learn_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails from now on
    module = runpy.run_path(inspect.getfile(rf.Ranker))
    X, y, group = planted()
    ranker = module["Ranker"]("softmax_loss", model="linear", epochs=1).fit(X, y, group)
    assert ranker.predict(X).shape == y.shape
