"""`Ranker`: train and score in the style of scikit-learn, on arrays and data frames.

The argument names of `fit` are those of LightGBM's ``LGBMRanker``. scikit-learn is not needed; with it, ``clone``,
``GridSearchCV`` and ``Pipeline`` work.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from rankfall._config import ConfigError, leaves
from rankfall._errors import RankfallError, checked, did_you_mean
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data.lists.arrays import QID, TableEncoding, eval_pairs, per_set, split_of, to_column, to_offsets
from rankfall.data.lists.list_loader import Lists
from rankfall.data.lists.ranking_data import RankingData
from rankfall.losses import GradeSoftmaxLoss
from rankfall.metrics.named import forms, parse
from rankfall.models import FeatureScaling
from rankfall.registry.references import is_reference
from rankfall.storage.files import scratch_directory
from rankfall.storage.trust import stored_code
from rankfall.training.build import LossFunction, check_loss, classifies, make_loss
from rankfall.training.checks import check_lists, make_ranker
from rankfall.training.config.ranker_config import LossConfig, RankerConfig, validate
from rankfall.training.device import placement_of, seeded
from rankfall.training.loop import BEST, train_in
from rankfall.training.measured_lists import measure_scores as measure
from rankfall.training.measured_lists import score
from rankfall.training.run_directory import CHECKPOINTS, TrainingError, own_code
from rankfall.training.train_ranker import (
    ListLearner,
    ListLoop,
    WeightedLoss,
    count_grades,
    fit_scaling,
    mean_over_lists,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import NDArray

    from rankfall.data.lists.ranking_data import RankingSplit
    from rankfall.metrics.named import NamedMetric
    from rankfall.training.run_directory import TrainResult
    from rankfall.training.train_ranker import BuiltLoss, Epoch

    Loss = str | Mapping[str, Any] | Callable[..., Tensor]

TRAINING = "training"
NOT_VALIDATED = "none"
FORMAT = "rankfall ranker"
_RESULTS = ("n_iter_", "best_iteration_", "best_score_", "evals_result_", "loss_curve_")

# Keys of a configuration and the arguments that set them, for error messages. Longer keys come first.
_ARGUMENTS = {
    "optimizer.weight_decay": "weight_decay",
    "optimizer.clip": "clip",
    "optimizer.name": "optimizer",
    "optimizer.lr": "learning_rate",
    "training.precision": "precision",
    "training.patience": "patience",
    "training.compile": "compile",
    "training.device": "device",
    "training.max_list": "max_list",
    "training.threads": "n_jobs",
    "training.metric": "eval_metric",
    "training.epochs": "epochs",
    "training.batch": "batch",
    "training.seed": "random_state",
    "data.standardise": "standardise",
    "data.log1p": "log1p",
    "data.train": "X",
    "model.activation": "activation",
    "model.batch_norm": "batch_norm",
    "model.dropout": "dropout",
    "model.hidden": "hidden",
    "model.kind": "model",
    "loss.name": "loss",
}


class _Fitted:
    """What `fit` sets."""

    n_features_in_: int
    feature_names_in_: NDArray[Any]
    n_iter_: int
    best_iteration_: int
    best_score_: dict[str, dict[str, float]]
    evals_result_: dict[str, dict[str, list[float]]]
    loss_curve_: list[float]
    _encoding: TableEncoding
    _loaded: _Loaded | None = None


@dataclass(eq=False, repr=False)
class Ranker(_Fitted):
    """A neural ranker with the interface of scikit-learn.

    It trains as ``rankfall train`` does: the same data, options and seed give the same weights, bit for bit.

    Args:
        loss: Name of a loss; its name and options, such as ``{"name": "lambda_loss", "k": 10}``; a reference such as
            ``"./my_loss.py:focal"``; or a function or module called with `scores` and `labels` ``(lists, n)`` and the
            keyword `mask`.
        model: ``"mlp"``, ``"linear"``, or the section ``model`` of a configuration as a dictionary.
        hidden: Widths of the hidden layers. Default: 256 and 128.
        activation: Activation of the hidden layers. Default: ``"relu"``.
        batch_norm: Whether to normalise hidden layers over the rows of a batch. Default: True.
        dropout: Dropout rate of the hidden layers. Default: 0.
        standardise: Whether to scale features to mean 0 and variance 1, as in the training data.
        log1p: Whether to replace a feature v by sign(v) log(1 + abs(v)) before that.
        optimizer: ``"adam"``, ``"adamw"``, ``"adagrad"`` or ``"sgd"``.
        learning_rate: Learning rate of the optimizer.
        weight_decay: Weight decay of the optimizer.
        clip: Largest norm of the gradient. Default: no limit.
        epochs: Largest number of passes over the training lists.
        batch: Lists per batch.
        patience: Stop after this many epochs without a better value of the first metric on the first set of
            `eval_set`. None: train all epochs. Not used without `eval_set`.
        max_list: Train on a new random sample of this size of each longer list in every epoch. Default: whole lists.
        random_state: Seed of the initial weights, of the order of the data and of all noise. A NumPy generator, or
            None for NumPy's global generator, draws one.
        n_jobs: CPU threads; -1 for one per processor. The same number gives the same weights.
        device: ``"auto"`` for a GPU if there is one, ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``.
        precision: ``"float32"``, or ``"bfloat16"`` for a model that computes with half the digits in training.
        compile: Whether to compile the model for training.
        verbose: Whether to write one line per epoch to standard error.

    Attributes:
        n_features_in_: Number of columns of `X`.
        feature_names_in_: Names of the columns, if `X` was a data frame.
        n_iter_: Number of epochs trained.
        best_iteration_: Epoch of the weights that `predict` uses; the first is 1.
        best_score_: Metrics of that epoch, by evaluation set; empty without `eval_set`.
        evals_result_: Metrics of all epochs, by evaluation set.
        loss_curve_: Mean training loss of each epoch.
        model_: The trained module, which maps features ``(rows, features)`` to scores ``(rows,)``. A column of text or
            with missing values has several features.

    Examples:
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> X = random.normal(size=(60, 3))
        >>> y = (X[:, 0] > 0.5).astype(int)
        >>> ranker = Ranker("softmax_loss", hidden=[8], learning_rate=0.02).fit(X, y, group=[20, 20, 20])
        >>> ranker.predict(X).shape
        (60,)
        >>> ranker.score(X, y, group=[20, 20, 20]) > 0.9
        True
    """

    loss: Loss = "lambda_loss"
    _: KW_ONLY
    model: str | Mapping[str, Any] = "mlp"
    hidden: Sequence[int] | None = None
    activation: str | None = None
    batch_norm: bool | None = None
    dropout: float | Sequence[float] | None = None
    standardise: bool = True
    log1p: bool = False
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    clip: float | None = None
    epochs: int = 30
    batch: int = 64
    patience: int | None = 5
    max_list: int | None = None
    random_state: Any = 0
    n_jobs: int | None = 1
    device: str = "auto"
    precision: str = "float32"
    compile: bool = False
    verbose: bool = False

    # --- training -----------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,  # noqa: N803 (the name in scikit-learn)
        y: Any,
        group: Any = None,
        *,
        qid: Any = None,
        sample_weight: Any = None,
        eval_set: Any = None,
        eval_names: Sequence[str] | None = None,
        eval_group: Any = None,
        eval_qid: Any = None,
        eval_metric: str | Sequence[str] | None = None,
        eval_at: int | Sequence[int] = (10,),
        eval_X: Any = None,  # noqa: N803
        eval_y: Any = None,
    ) -> Self:
        """Train on lists. With `eval_set`, keep the weights of the best epoch, otherwise those of the last.

        Args:
            X: Features ``(rows, features)``: NumPy array, torch tensor, pandas or polars data frame. Numbers may be
                missing (NaN): they are replaced by the mean of their column, and a feature says which ones were
                missing. A column of text or categories becomes one feature for each of its 255 most frequent values;
                in `predict` values that are not among them count as unknown. A column named ``qid`` has the query of
                each row.
            y: Labels ``(rows,)``, from 0 on; larger is more relevant.
            group: Sizes of consecutive lists: ``[3, 2]`` means that the first three rows are a list, the next two
                another one.
            qid: Query of each row, instead of `group`. Rows of a query are next to each other.
            sample_weight: Weight of each row, from 0 on.
            eval_set: Pairs ``(X, y)`` to measure after every epoch. The first decides which epoch is the best.
            eval_names: Names of these sets. Default: ``valid_0``, ``valid_1``, ...
            eval_group: `group` of each set.
            eval_qid: `qid` of each set.
            eval_metric: Metrics, the first of which decides: ``"ndcg"``, ``"ndcg@10"``, ``"mrr"``, ... Default:
                ``"ndcg"``.
            eval_at: Cutoffs of the metrics that are named without one and may have one.
            eval_X: Features of the set to measure, or a tuple of the features of several, instead of `eval_set`.
            eval_y: Labels of these sets.

        Returns:
            The ranker itself.

        Raises:
            ValueError: If an argument is wrong, or training fails, for example because the loss became NaN.
        """
        encoding, features = TableEncoding.fit(X)
        train, weights = self._split(TRAINING, X, features, y, group, qid, sample_weight)
        sets = eval_pairs(eval_set, eval_X, eval_y)
        evaluated = self._eval_splits(encoding, sets, eval_names, eval_group, eval_qid)
        metrics = [parse(name) for name in _metric_names(eval_metric, eval_at)]
        stored = self._loaded  # the file of a loaded ranker whose loss or model is still the one of that file
        named = stored is not None and any(stored.names(name, getattr(self, name)) for name in ("loss", "model"))
        code = stored_code(stored.path, trust=stored.trust) if stored is not None and named else nullcontext()
        with code, _naming_arguments():
            config = self._config(metrics[0].name, next(iter(evaluated), NOT_VALIDATED))
            with own_code(config, trains=True):
                built = self._build_loss(config, weights)
                learner, result = self._train(config, built, train, evaluated, metrics, weights)
        self.model_ = learner.model.eval()
        self.n_iter_, self.best_iteration_ = result.epochs, result.best_epoch
        self.evals_result_ = learner.results
        self.best_score_ = {
            name: {metric: values[result.best_epoch - 1] for metric, values in of_set.items()}
            for name, of_set in learner.results.items()
        }
        self.loss_curve_ = learner.losses
        self._keep_encoding(encoding)
        return self

    def _keep_encoding(self, encoding: TableEncoding) -> None:
        self._encoding, self.n_features_in_ = encoding, len(encoding.columns)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if encoding.named:
            self.feature_names_in_ = np.array(encoding.names, dtype=object)

    def _split(
        self,
        name: str,
        table: Any,
        features: NDArray[np.float32],
        labels: Any,
        group: Any,
        qid: Any,
        weight: Any = None,
        *,
        where: str = "",
    ) -> tuple[RankingSplit, Tensor | None]:
        """Check lists, and return them and the weights of their rows."""
        if not len(features):
            raise RankfallError(f"{where}X: found no rows, expected at least one list")
        if qid is None and QID in map(str, getattr(table, "columns", ())):
            qid = table[QID]
        offsets, qids = to_offsets(len(features), group=group, qid=qid, where=where)
        column = to_column(labels, len(features), where=f"{where}y")
        weights = None if weight is None else torch.from_numpy(to_column(weight, len(features), where="sample_weight"))
        return split_of(name, features, column, offsets, qids), weights

    def _eval_splits(
        self, encoding: TableEncoding, sets: Sequence[Any], names: Sequence[str] | None, group: Any, qid: Any
    ) -> dict[str, RankingSplit]:
        names = [f"valid_{number}" for number in range(len(sets))] if names is None else list(names)
        groups, qids = per_set(group, len(sets), "eval_group"), per_set(qid, len(sets), "eval_qid")
        if len(names) != len(sets) or len(set(names)) < len(names) or TRAINING in names:
            raise RankfallError(
                f"eval_names: found {names}, expected {len(sets)} different names other than {TRAINING!r}"
            )
        found = {}
        for name, pair, one_group, one_qid in zip(names, sets, groups, qids, strict=True):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise RankfallError(f"eval_set: found {type(pair).__name__}, expected pairs (X, y)")
            table, labels = pair
            features = encoding.encode(table, where=f"eval_set, X of {name}")
            found[name], _ = self._split(name, table, features, labels, one_group, one_qid, where="eval_")
        return found

    def _config(self, metric: str, valid: str) -> RankerConfig:
        """Return the configuration with which ``rankfall train`` would train the same weights."""
        if not isinstance(self.model, str | Mapping):
            raise TypeError(f"model: found {self.model!r:.200}, expected a name or a dictionary")
        loss = {"name": self.loss} if isinstance(self.loss, str) else self.loss
        content: dict[str, dict[str, Any]] = {
            "data": {"path": "memory", "train": TRAINING, "valid": valid},
            "model": {"kind": self.model} if isinstance(self.model, str) else dict(self.model),
            "loss": loss if isinstance(loss, dict) else {"name": "softmax_loss"},  # not used for a function
            "optimizer": {},
            "training": {"metric": metric, "checkpoint_every": 1e9},  # seconds: never, since a fit cannot be resumed
        }
        for key, argument in _ARGUMENTS.items():
            section, _, option = key.partition(".")
            value = getattr(self, argument, None)
            if section == "model" and argument == option and value is not None:
                content["model"][option] = value
            elif section in ("data", "optimizer", "training"):
                content[section].setdefault(option, value)
        content["training"] |= {"seed": _seed(self.random_state), "threads": _threads(self.n_jobs)}
        if valid == NOT_VALIDATED:
            content["training"]["patience"] = None
        return validate(_plain(content), where="Ranker")

    def _shown(self, config: RankerConfig) -> RankerConfig:
        """Return the configuration for error messages: a function has no name that a configuration could have."""
        if isinstance(self.loss, str | dict):
            return config
        return config.model_copy(update={"loss": LossConfig.model_construct(name=_name(self.loss))})

    def _build_loss(self, config: RankerConfig, weights: Tensor | None) -> BuiltLoss:
        loss = self.loss
        if isinstance(loss, str | dict):
            built = make_loss(config.loss)
            check_loss(built[0], config.loss)
        elif callable(loss):
            # fit must not change the arguments of the ranker
            built = copy.deepcopy(loss) if isinstance(loss, nn.Module) else LossFunction(loss), []
            self._probe(built[0], config)
        else:
            raise RankfallError(f"loss: found {loss!r}, expected a name, a dictionary or a function")
        if weights is None:
            return built
        self._probe(built[0], config, weight=torch.ones(1, 3))
        return WeightedLoss(built[0]), built[1]

    def _probe(self, loss: nn.Module, config: RankerConfig, **weight: Tensor) -> None:
        """Call a loss on one list, so that it refuses wrong arguments before training."""
        scores = torch.zeros(1, 3, 2) if self._classifies(config) else torch.tensor([[0.0, 1.0, 2.0]])
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                loss(scores, torch.tensor([[1.0, 0.0, 0.0]]), mask=torch.ones(1, 3, dtype=torch.bool), **weight)
        except TypeError as error:
            what = "sample_weight: found weights, but" if weight else "loss:"
            raise RankfallError(f"{what} {self._shown(config).loss.name} cannot be called: {error}") from None

    def _classifies(self, config: RankerConfig) -> bool:
        """Return whether the loss takes logits of the label grades instead of scores."""
        loss: Any = self.loss
        if isinstance(loss, str | dict):
            return classifies(config.loss)
        if isinstance(loss, GradeSoftmaxLoss):
            return True
        return "logits" in inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters

    def _train(
        self,
        config: RankerConfig,
        built: BuiltLoss,
        train: RankingSplit,
        evaluated: Mapping[str, RankingSplit],
        metrics: Sequence[NamedMetric],
        weights: Tensor | None,
    ) -> tuple[ListLearner, TrainResult]:
        recipe = {"log1p": False, "standardise": False}
        splits = {TRAINING: train, **evaluated}
        about = {name: {"lists": len(split)} for name, split in splits.items()}
        manifest = {"recipe": recipe, "features": {"columns": train.features.shape[1]}, "splits": about}
        data = RankingData(Path("memory"), manifest, opened=splits)
        lists = Lists([train])
        check_lists(lists, self._shown(config).loss.name)
        # The loop of `rankfall train` writes the best weights to a directory.
        with scratch_directory("rankfall-ranker") as scratch:
            out = scratch / "run"  # the loop locks its directory, and the scratch directory is locked already
            with seeded(config.training.seed, config.training.threads, placement_of(config.training).device):
                grades = count_grades(lists, self._shown(config).loss.name) if self._classifies(config) else None
                model = make_ranker(config.model, fit_scaling(data, config.data), grades)
                learner = ListLearner(self._shown(config), out, model, built, lists, evaluated, metrics, weights)

                def on_epoch(epoch: Epoch, _: object) -> None:
                    if self.verbose:
                        sys.stderr.write(f"epoch {epoch.epoch}: loss {epoch.loss:.5g}, metric {epoch.metric:.5g}\n")

                loop = ListLoop(learner, config, out, data={}, on_epoch=on_epoch)
                result = train_in(loop, {}, resume=False, on_notice=warnings.warn)
            learner.load_best(out / CHECKPOINTS / BEST)
        return learner, result

    # --- scoring ------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Return the scores of rows ``(rows,)``; larger is better, and only the order within a list has a meaning.

        Args:
            X: Features as in `fit`, with the columns of `fit` in their order. A column ``qid`` is ignored.

        Raises:
            ValueError: If the ranker is not fitted, or the features differ from those of `fit`.
        """
        self._check_fitted()
        features = self._encoding.encode(X)
        split = split_of("predict", features, np.zeros(len(features), np.float32), np.array([0, len(features)]), ["0"])
        if not len(features):
            return np.empty(0, np.float32)
        return self._scores(split).numpy()

    def _scores(self, split: RankingSplit) -> Tensor:
        with seeded(0, _threads(self.n_jobs)):
            return score(self.model_, split)

    def score(
        self,
        X: Any,  # noqa: N803
        y: Any,
        group: Any = None,
        *,
        qid: Any = None,
        metric: str = "ndcg@10",
    ) -> float:
        """Return the mean of a metric over lists. Lists on which it is undefined do not count.

        Args:
            X: Features as in `fit`; a column ``qid`` has the query of each row.
            y: Labels ``(rows,)``.
            group: Sizes of consecutive lists.
            qid: Query of each row, instead of `group`.
            metric: Name of the metric.

        Raises:
            ValueError: If the metric is undefined on all lists.
        """
        self._check_fitted()
        split, _ = self._split("score", X, self._encoding.encode(X), y, group, qid)
        named = parse(metric)
        return mean_over_lists(measure(self._scores(split), split, [named])[named.name], metric, "y")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("Ranker is not fitted; call fit(X, y, group) first")

    # --- files --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted ranker to one file: weights as safetensors, arguments and results as JSON in its header.

        Args:
            path: File to write, usually with the suffix ``.safetensors``. A loss that is a function is stored by name.
        """
        self._check_fitted()
        arguments = self.get_params(deep=False)
        if not isinstance(self.loss, str | dict):
            arguments["loss"] = f"{self.loss.__module__}:{getattr(self.loss, '__qualname__', _name(self.loss))}"
        if not isinstance(self.random_state, int | None):
            arguments["random_state"] = None
        about = {
            "kind": FORMAT,
            "arguments": _plain(arguments),
            "features": self.n_features_in_,
            "names": self._encoding.names if self._encoding.named else None,
            "columns": self._encoding.to_json(),
            "grades": self.model_.grades,
            "results": {name: getattr(self, name) for name in _RESULTS},
        }
        write_checkpoint(Path(path), self.model_.state_dict(), about)

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> Self:
        """Load a ranker that :meth:`save` wrote.

        Args:
            path: The file.
            trust: Whether to import the code of a model that the file names by reference, and that of its loss if the
                ranker is fitted again. Built-in models and losses need none.

        Raises:
            ValueError: If the file is damaged, holds something else, or names code and `trust` is False.
        """
        tensors, about = read_checkpoint(Path(path))
        if about.get("kind") != FORMAT:
            raise RankfallError(f"{path}: found a checkpoint of training, expected a file of Ranker.save")
        ranker = cls(**about["arguments"])
        # weights do not depend on the loss, whose code is not imported
        draft = cls(**{**about["arguments"], "loss": "softmax_loss"})
        named = about["names"] is not None
        encoding = TableEncoding.load(about["columns"], named=named)
        with stored_code(path, trust=trust), torch.random.fork_rng(devices=[]):  # initial weights are replaced
            config = draft._config("ndcg", NOT_VALIDATED)
            scaling = FeatureScaling.identity(encoding.width, log1p=config.data.log1p)
            ranker.model_ = make_ranker(config.model, scaling, about["grades"]).eval()
        ranker.model_.load_state_dict(tensors)
        ranker._keep_encoding(encoding)
        vars(ranker).update({name: about["results"][name] for name in _RESULTS})
        ranker._loaded = _Loaded(path, trust, dict(about["arguments"]))
        return ranker

    # --- scikit-learn -------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor by name.

        Args:
            deep: For compatibility with scikit-learn; there are no estimators inside.
        """
        return {name: getattr(self, name) for name in _argument_names()}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor and return the ranker.

        Raises:
            ValueError: If an argument does not exist.
        """
        allowed = _argument_names()
        for name in params:
            if name not in allowed:
                raise RankfallError(f"found {name!r}{did_you_mean(name, allowed)}; allowed are {', '.join(allowed)}")
        vars(self).update(params)
        return self

    def __repr__(self) -> str:
        """Arguments that differ from their defaults."""
        defaults = inspect.signature(type(self)).parameters
        given = {name: value for name, value in self.get_params().items() if value is not defaults[name].default}
        given = {name: value for name, value in given.items() if value != defaults[name].default}
        return f"Ranker({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the ranker is fitted."""
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks estimators about. Only scikit-learn calls it."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            input_tags=InputTags(allow_nan=True, categorical=True),
            non_deterministic=False,
        )

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy. Code that a file names needs the same trust as before."""
        copied = type(self)(**copy.deepcopy(self.get_params()))
        copied._loaded = self._loaded
        return copied


@dataclass(frozen=True)
class _Loaded:
    """The file that a ranker was loaded from, and whether the code that it names may be imported."""

    path: str | Path
    trust: bool
    arguments: Mapping[str, Any]

    def names(self, argument: str, value: Any) -> bool:
        """Return whether the value of an argument is that of the file, and names code."""
        return bool(value == self.arguments.get(argument)) and any(map(is_reference, leaves({"": value}).values()))


class NotFittedError(ValueError, AttributeError):
    """A ranker that is not fitted was used; a ValueError and AttributeError as scikit-learn's class of the name."""


@contextmanager
def _naming_arguments() -> Generator[None]:
    """Replace keys of configurations in error messages by the arguments of `Ranker`."""
    try:
        yield
    except (ConfigError, TrainingError) as error:
        text = str(error)
        for key, argument in _ARGUMENTS.items():
            text = text.replace(key, argument)
        raise type(error)(text) from None


def _argument_names() -> list[str]:
    return list(inspect.signature(Ranker).parameters)


def _name(loss: object) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))


def _metric_names(metric: str | Sequence[str] | None, at: int | Sequence[int]) -> list[str]:
    """Return the names of metrics with their cutoffs."""
    given = ["ndcg"] if metric is None else [metric] if isinstance(metric, str) else list(metric)
    cutoffs = [at] if isinstance(at, int | np.integer) else list(at)
    if not given or not cutoffs:
        raise RankfallError(f"{'eval_at' if given else 'eval_metric'}: found nothing, expected at least one")
    found = []
    for name in given:
        found += [f"{name}@{cutoff}" for cutoff in cutoffs] if f"{name}@k" in forms() else [name]
    return list(dict.fromkeys(found))


def _seed(state: Any) -> int:
    if isinstance(state, int | np.integer):
        return int(state)
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**31))
    if state is not None and not isinstance(state, np.random.RandomState):
        raise TypeError(f"random_state: found {state!r:.200}, expected an integer, None or a generator of NumPy")
    drawn: int = (np.random.mtrand._rand if state is None else state).randint(2**31)
    return drawn


@checked
def _threads(n_jobs: int | None) -> int:
    return 1 if n_jobs is None else (os.cpu_count() or 1) if n_jobs == -1 else n_jobs


def _plain(value: Any) -> Any:
    """Return a value with lists and Python numbers instead of tuples, arrays and NumPy numbers."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
