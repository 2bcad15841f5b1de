"""Checks of users' models and metrics on a few impressions or documents, before anything is trained."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall._yaml_config import ConfigError
from rankfall.data import ImpressionLoader
from rankfall.metrics.named import parse
from rankfall.models.build import is_own
from rankfall.registry.metric_names import split_cutoffs
from rankfall.training.config import component_checks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.models import ImpressionFeatures
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.loop import OnNotice

_IMPRESSIONS, _ROWS = 2, 3  # of the check


def check_models(cascade: Cascade, config: CascadeConfig, log: ImpressionLog, on_notice: OnNotice) -> None:
    """Call the models of users on the first impressions of a log.

    Args:
        cascade: The cascade.
        config: Its configuration.
        log: The log to train on.
        on_notice: Called with a warning for a model without weights.

    Raises:
        ConfigError: If a model returns anything but finite scores ``(B, N)``, or no stage has weights.
    """
    own = {stage.name: stage.model["kind"] for stage in config.stages if is_own(cascade.models[stage.name])}
    if not own:
        return
    batch = first_impressions(log)
    features = ServedFeatures(batch)
    for name, kind in own.items():
        model, what = cascade.models[name], f"stages: the model of {name}, {kind},"
        scores = _call(model, features)
        expected = tuple(batch.mask.shape)
        checked = _scores(scores, expected, f"{what} returned", f"(B, N), {expected} here: a score for each item")
        if not checked[batch.mask].isfinite().all():
            raise ConfigError(f"{what} returned scores that are NaN or infinite before any training")
        if not any(True for _ in model.parameters()):
            on_notice(f"{what} has no weights, so that training does not change it")
    if not any(True for _ in cascade.parameters()):
        raise ConfigError("stages: no model has weights, so that there is nothing to train")


def first_impressions(log: ImpressionLog) -> Impressions:
    """Return the first impressions of a log as a small batch."""
    loader = ImpressionLoader(log, list(log.days)[:1], batch=_IMPRESSIONS, window=_IMPRESSIONS, shuffle=False)
    with closing(iter(loader)) as batches:
        return next(batches)


class ServedFeatures:
    """What a model may read of a batch: the features that a service knows, without labels and feedback."""

    names = ("user", "context", "sequences", "sequence_mask", "items", "mask")

    def __init__(self, batch: ImpressionFeatures) -> None:
        self.__dict__.update({name: getattr(batch, name) for name in self.names})

    def __getattr__(self, name: str) -> None:
        raise AttributeError(f"a batch has no {name!r} for models, which read {', '.join(self.names)}")


def check_metrics(names: Iterable[str]) -> None:
    """Call the metrics of users on two lists, so that an error in them does not end a run after its training.

    Args:
        names: Names of metrics with their cutoffs. Built-in ones are not called.

    Raises:
        ConfigError: If a metric returns anything but one value per list.
    """
    scores = torch.tensor([[0.9, 0.2, 0.5, 0.1], [0.3, 0.7, 0.6, 0.0]])
    labels = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 1.0, 0.0]])
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    for name in dict.fromkeys(names):
        if component_checks.is_own("metric", split_cutoffs(name)[0]):
            try:
                parse(name)(scores, labels, mask)
            except ValueError as error:
                raise ConfigError(str(error)) from error


def check_network(network: nn.Module, kind: str, features: int, grades: int | None) -> None:
    """Call the network of a ranker on rows of zeros.

    Args:
        network: The network, which maps rows of numbers to scores.
        kind: Its name in the configuration.
        features: Number of features of a row.
        grades: Number of logits of a row, or None for one score.

    Raises:
        ConfigError: If it returns anything but finite scores ``(rows,)``, or has no weights.
    """
    what = f"model: {kind}"
    scores = _call(network, torch.zeros(_ROWS, features))
    expected = (_ROWS,) if grades is None else (_ROWS, grades)
    form = "(rows,)" if grades is None else "(rows, grades)"
    if not _scores(scores, expected, f"{what} returned", f"{form}, {expected} here").isfinite().all():
        raise ConfigError(f"{what} returned scores that are NaN or infinite for rows of zeros")
    if not any(True for _ in network.parameters()):
        raise ConfigError(f"{what} has no weights, so that there is nothing to train")


def _call(model: nn.Module, given: object) -> object:
    """Call a model in evaluation mode, without any effect on later random numbers."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model(given)
    finally:
        model.train(was_training)


def _scores(scores: object, expected: tuple[int, ...], found: str, form: str) -> Tensor:
    if not isinstance(scores, Tensor):
        raise ConfigError(f"{found} {type(scores).__name__}, expected a tensor {form}")
    if tuple(scores.shape) != expected:
        raise ConfigError(f"{found} the shape {tuple(scores.shape)}, expected {form}")
    if not scores.is_floating_point():
        raise ConfigError(f"{found} {scores.dtype}, expected floating-point numbers {form}")
    return scores
