"""Checks of the labels of training lists, before anything is trained: what has no order teaches no order."""

from __future__ import annotations

import inspect
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rankfall import losses, registry
from rankfall._config import ConfigError
from rankfall._errors import RankfallError
from rankfall._lists import has_order
from rankfall.data import ImpressionLoader
from rankfall.metrics.named import parse
from rankfall.models import MLP, FeatureScaling, Linear
from rankfall.models.build import is_own
from rankfall.registry.references import split_cutoffs
from rankfall.training.build import make_objective, with_depths
from rankfall.training.cascade_loaders import features_read
from rankfall.training.config.ranker_config import LinearConfig, OwnModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.lists.list_loader import Lists
    from rankfall.models import ImpressionFeatures
    from rankfall.objectives import Objective
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.ranker_config import MLPConfig
    from rankfall.training.loop import OnNotice


SAMPLED_DAYS, SAMPLED_LISTS = 8, 2048  # days and lists that are looked at before training
SHOWN_LABELS = 64  # of different labels, in the check of a loss
LEAST_INFORMATIVE = 0.01  # share of lists with an order up to which nothing useful is learned

_OF_RELEVANCE = "bce, lcron, icc, rankflow"
_GRADES = {  # by data.labels
    "full": "grades of the log",
    "published": "grades (published)",
    "rank": "ranks of the log",
    "relevance": "relevance",
}
_WEIGHT_SINGLE_ITEMS = ("bce", "lcron", "rankflow")  # all others weight pairs by their better item


@dataclass(slots=True)
class LabelSample:
    """Counts of training lists, some of every one of several days.

    Attributes:
        lists: Number of lists.
        informative: Number of lists from which the objective can learn an order, by kind of labels.
        graded: Number of lists with two different grades.
        relevant: Number of lists with a relevant item.
        all_relevant: Number of lists in which every item is relevant.
        grades: Smallest and largest grade.
        sizes: Smallest and largest relevance of relevant items; both are 0 if there are none.
    """

    lists: int = 0
    informative: dict[str, int] = field(default_factory=dict)
    graded: int = 0
    relevant: int = 0
    all_relevant: int = 0
    grades: tuple[int, int] = (0, 0)
    sizes: tuple[float, float] = (0.0, 0.0)

    def add(self, batch: Impressions, objective: Objective) -> None:
        """Count the lists of a batch."""
        labels = batch.grade.float()
        found = objective.informative(labels, relevance=batch.relevance, depth=batch.depth, mask=batch.mask)
        for kind, lists in found.items():
            self.informative[kind] = self.informative.get(kind, 0) + int(lists.sum())
        relevant = (batch.relevance > 0) & batch.mask
        self.graded += int(has_order(labels, batch.mask).sum())
        self.relevant += int(relevant.any(-1).sum())
        self.all_relevant += int((relevant == batch.mask).all(-1).sum())
        grades = batch.grade[batch.mask]
        if len(grades):
            least, most = self.grades if self.lists else (int(grades[0]), int(grades[0]))
            self.grades = min(least, int(grades.min())), max(most, int(grades.max()))
        self.sizes = with_sizes(self.sizes, batch)
        self.lists += len(batch)


def with_sizes(sizes: tuple[float, float], batch: Impressions) -> tuple[float, float]:
    """Return the smallest and largest relevance of relevant items so far, with those of another batch.

    Args:
        sizes: The smallest and largest relevance before; both are 0 if there was no relevant item.
        batch: The batch.
    """
    found = batch.relevance[(batch.relevance > 0) & batch.mask]
    if not len(found):
        return sizes
    least, most = float(found.min()), float(found.max())
    return (min(least, sizes[0]), max(most, sizes[1])) if sizes[1] else (least, most)


def sample_labels(log: ImpressionLog, config: CascadeConfig, days: Sequence[str], objective: Objective) -> LabelSample:
    """Count some lists of training days, with the labels and negatives that the configuration trains on.

    Args:
        log: The log.
        config: Configuration of the cascade.
        days: Days, and ranges of days.
        objective: The objective that learns from them.
    """
    sample = LabelSample()
    try:
        chosen = [day.name for day in log.choose(days) if len(day)]
        count = min(len(chosen), SAMPLED_DAYS)
        size = max(2, SAMPLED_LISTS // max(1, count))
        for place in np.linspace(0, len(chosen) - 1, count).astype(int).tolist():  # days that are spread over all days
            loader = ImpressionLoader(
                log,
                chosen[place],
                batch=size,
                window=size,
                shuffle=False,
                negatives=config.data.negatives,
                negatives_from="batch",  # only their labels matter, which are the same for all random items
                reads=features_read(config, training=True),
                labels=config.data.labels,
                prefetch=0,
            )
            sample.add(next(iter(loader)), objective)
    except ValueError as error:  # what the loader refuses, the configuration must not ask for
        raise ConfigError(str(error)) from None
    return sample


def check_training_labels(
    log: ImpressionLog, config: CascadeConfig, days: Sequence[str], objective: Objective, on_notice: OnNotice
) -> None:
    """Refuse training days whose labels have no order for the objective, and note what it can hardly learn from.

    Args:
        log: The log to train on.
        config: Configuration of the cascade.
        days: Training days, and ranges of days.
        objective: The objective.
        on_notice: Called with warnings.

    Raises:
        ConfigError: If at most `data.least_informative` of the lists have an order, with what to change.
    """
    sample = sample_labels(log, config, days, objective)
    problems = [  # the objective would train nothing, or nothing useful
        f"objective: {config.objective.name} learns from {_words(kind, config)}, but {_share(count, sample.lists)} "
        f"training lists give no order to learn{_found(kind, sample)}; {_advice(kind, sample, log, config)}"
        f"{'; data.least_informative=0 trains nevertheless' if count else ''}"
        for kind, count in sample.informative.items()
        if sample.lists and count <= config.data.least_informative * sample.lists
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    for kind, count in sample.informative.items():
        if count <= LEAST_INFORMATIVE * sample.lists:
            on_notice(
                f"{config.objective.name} learns from {_words(kind, config)}: {_share(count, sample.lists)} training "
                "lists give no order to learn"
            )
    notices = (
        imitates(sample, log.spec, config),
        ignored_sizes(sample.sizes, log.spec, config),
        weightless_items(config),
    )
    for notice in notices:
        if notice:
            on_notice(notice)


def _words(kind: str, config: CascadeConfig) -> str:
    if kind == "grades":
        return "grades" if config.data.labels == "full" else f"grades (data.labels: {config.data.labels})"
    if kind == "relevance":
        return "the relevance of items"
    stage = config.stages[int(kind.removeprefix("stage")) - 1]
    return f"the relevance of the items that {stage.name} sees in the log"


def _share(ordered: int, lists: int) -> str:
    return f"{1 - ordered / lists:.1%} of {lists:,}" if ordered else f"all {lists:,}"


def _found(kind: str, sample: LabelSample) -> str:
    least, most = sample.grades
    if kind == "grades" and least == most:
        return f" (all grades are {least})"
    if kind != "grades" and not sample.relevant:
        return " (no item is relevant)"
    if kind != "grades" and sample.all_relevant == sample.lists:
        return " (all items are relevant)"
    return ""


def _advice(kind: str, sample: LabelSample, log: ImpressionLog, config: CascadeConfig) -> str:
    """Return what to change."""
    some_relevant = sample.relevant > 0 and sample.all_relevant < sample.lists
    if kind == "grades":
        words = []
        if config.data.labels != "full":
            words.append("data.labels=full")
        elif some_relevant:
            words.append("data.labels=relevance")
        if some_relevant:
            words.append(f"an objective that learns from the relevance ({_OF_RELEVANCE})")
        words.append(f"prepare the log again with its stages and ranks, or another `relevant` than {_relevant(log)}")
        return "try " + ", or ".join(words)
    if not sample.relevant or sample.relevant <= LEAST_INFORMATIVE * sample.lists:
        return (
            f"`relevant` of the log is {_relevant(log)}: prepare the log again with another one, or without the "
            "requests that have no relevant item"
        )
    if kind.startswith("stage"):
        number = int(kind.removeprefix("stage")) - 1
        return f"try stages.{number}.min_depth=-1, which trains {config.stages[number].name} on all items"
    read = features_read(config, training=True)
    can_add = not any(read is None or name in read for name in log.per_request)
    if not some_relevant:
        more = "data.negatives=20, which adds items that are not relevant, or " if can_add else ""
        return f"try {more}another `relevant` in the log"
    more = "data.negatives=20 or " if can_add else ""
    return f"its lists may be too short for relevant={config.relevant}; try {more}a smaller `relevant`"


def _relevant(log: ImpressionLog) -> str:
    relevant = log.spec.relevant
    return f"the stage {relevant.stage}" if relevant.stage is not None else f"the column {relevant.column}"


def imitates(sample: LabelSample, spec: Spec, config: CascadeConfig) -> str | None:
    """Return a notice if the objective learns the order of production although a column says what is relevant."""
    of_production = config.data.labels == "full" and spec.has_funnel
    if spec.relevant.column is None or "grades" not in sample.informative or not of_production:
        return None
    return (
        f"{config.objective.name} trains on grades, the order of stages and ranks in the log, but the column "
        f"{spec.relevant.column!r} is evaluated; data.labels=relevance trains on it"
    )


def trained_labels(config: CascadeConfig) -> str | None:
    """Return which labels a built-in objective is trained on, and which are evaluated; None for other objectives."""
    if not registry.is_builtin("objective", config.objective.name):
        return None
    kinds = make_objective(with_depths(config, None))[0].informative(torch.zeros(1, 2))
    found = [_GRADES[config.data.labels]] if "grades" in kinds else []
    found += ["relevance"] if set(kinds) - {"grades"} and "relevance" not in found else []
    return f"trained on {' and '.join(found)}, evaluated on relevance"


def ignored_sizes(sizes: tuple[float, float], spec: Spec, config: CascadeConfig) -> str | None:
    """Return a notice if relevant items have sizes that the objective ignores, else None.

    Args:
        sizes: Smallest and largest relevance of relevant items.
        spec: Spec of the log.
        config: Configuration of the cascade.
    """
    least, most = sizes
    if least == most or config.weight is not None:
        return None
    labels = config.data.labels
    grades_of_relevance = labels == "relevance" or (labels == "full" and len(spec.stages) == 1)
    if grades_of_relevance and "grades" in make_objective(with_depths(config, None))[0].informative(torch.zeros(1, 2)):
        return None  # its grades are ordered by the relevance
    return (
        f"relevance has sizes {least:g} to {most:g}, which this configuration ignores: in training, an item of "
        f"relevance {most:g} counts as much as one of {least:g}. weight=relevance weights items by their relevance"
    )


def weightless_items(config: CascadeConfig) -> str | None:
    """Return a notice if items without the value of `weight` have no weight in an objective that needs them.

    Most objectives weight a pair by its better item. Those that weight every item by itself learn nothing from items of
    weight 0, which usually are those that are not relevant.

    Args:
        config: Configuration of the cascade.
    """
    weight = config.weight
    if weight is None or weight.examination is not None or weight.base > 0:
        return None
    if config.objective.name not in _WEIGHT_SINGLE_ITEMS:
        return None
    return (
        f"weight.base is {weight.base:g}, so that items without {weight.of} have no weight: {config.objective.name} "
        "does not learn to rank them lower. weight.base=1 gives them the weight 1"
    )


def check_lists(lists: Lists, name: str) -> None:
    """Refuse ranking lists of which (nearly) all have one label only: no loss can learn an order from them.

    Args:
        lists: The training lists.
        name: Name of the loss.

    Raises:
        ConfigError: If at least 99 % of the lists have one label only.
    """
    starts = lists.starts[lists.lengths > 0]
    if not len(starts):
        return
    differ = np.maximum.reduceat(lists.labels, starts) > np.minimum.reduceat(lists.labels, starts)
    ordered, count = int(differ.sum()), len(starts)
    if ordered > LEAST_INFORMATIVE * count:
        return
    labels = f" (all labels are {lists.labels[0]:g})" if lists.labels.min() == lists.labels.max() else ""
    raise ConfigError(
        f"loss: {name} learns from labels, but {_share(ordered, count)} lists of data.train give no order to learn"
        f"{labels}; try other splits, or prepare the data again from lists whose documents have different labels"
    )


def check_label_values(loss: nn.Module, lists: Lists, name: str) -> None:
    """Refuse training lists with labels that the loss refuses, before a device computes.

    There a loss can stop the device, but not name the labels. One list with different labels is enough for the check.

    Args:
        loss: The loss, on the CPU.
        lists: The training lists.
        name: Name of the loss.

    Raises:
        ConfigError: If the loss refuses the labels.
    """
    found = np.unique(lists.labels)
    found = found[np.linspace(0, len(found) - 1, min(len(found), SHOWN_LABELS)).astype(int)]
    labels = torch.from_numpy(found)[None]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            loss(torch.zeros_like(labels), labels, mask=torch.ones_like(labels, dtype=torch.bool))
    except ValueError as error:
        shown = f"{found.min():g} to {found.max():g}"
        raise ConfigError(f"loss: {name} refuses labels of data.train, which are from {shown}: {error}") from None


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
        if registry.is_own("metric", split_cutoffs(name)[0]):
            try:
                parse(name)(scores, labels, mask)
            except ValueError as error:
                raise ConfigError(str(error)) from error


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


class Ranker(nn.Module):
    """Map features of documents ``(rows, features)`` to scores ``(rows,)``, or to logits ``(rows, grades)``."""

    def __init__(self, scaling: FeatureScaling, network: nn.Module, grades: int | None) -> None:
        super().__init__()
        self.scaling = scaling
        self.network = network
        self.grades = grades

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.network(self.scaling(features))
        return output

    def score(self, features: Tensor | NDArray[Any]) -> Tensor:
        """Return scores ``(rows,)`` to rank by; with logits, the expected grade.

        Args:
            features: Features as prepared, ``(rows, features)``.
        """
        if not isinstance(features, Tensor):
            features = torch.tensor(features)
        expected = len(self.scaling.mean)
        if features.shape[-1] != expected:
            raise RankfallError(f"features must have {expected} columns, got {features.shape[-1]}")
        output = self(features)
        return losses.expected_grade(output) if self.grades else output


def make_ranker(
    config: MLPConfig | LinearConfig | OwnModelConfig, scaling: FeatureScaling, grades: int | None
) -> Ranker:
    """Build the model of a configuration, with weights from torch's global generator.

    Raises:
        ConfigError: If the model of a user refuses its options, or returns anything but scores.
    """
    features = len(scaling.mean)
    if isinstance(config, OwnModelConfig):
        return Ranker(scaling, _own_network(config, features, grades), grades)
    if isinstance(config, LinearConfig):
        return Ranker(scaling, Linear(features, grades=grades), grades)
    network = MLP(
        features,
        config.hidden,
        activation=config.activation,
        batch_norm=config.batch_norm,
        norm_momentum=config.norm_momentum,
        dropout=config.dropout[0] if len(config.dropout) == 1 else config.dropout,
        residual=config.residual,
        init=config.init,
        grades=grades,
    )
    return Ranker(scaling, network, grades)


def _own_network(config: OwnModelConfig, features: int, grades: int | None) -> nn.Module:
    component = registry.get("model", config.kind)
    takes_grades = "grades" in inspect.signature(component).parameters
    if grades is not None and not takes_grades:
        raise ConfigError(
            f"model: the loss takes one logit per label grade, but {config.kind} has no parameter `grades` for their "
            "number; add it, or choose a loss of scores"
        )
    supplied = {"grades": grades} if takes_grades and "grades" not in config.options else {}
    try:
        network: Any = component(features, **supplied, **config.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model: {config.kind} refuses its options: {error}") from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model: {config.kind} built {type(network).__name__}, expected a torch.nn.Module")
    what, scores = f"model: {config.kind}", _call(network, torch.zeros(_ROWS, features))
    expected = (_ROWS,) if grades is None else (_ROWS, grades)
    form = "(rows,)" if grades is None else "(rows, grades)"
    if not _scores(scores, expected, f"{what} returned", f"{form}, {expected} here").isfinite().all():
        raise ConfigError(f"{what} returned scores that are NaN or infinite for rows of zeros")
    if not any(True for _ in network.parameters()):
        raise ConfigError(f"{what} has no weights, so that there is nothing to train")
    return network
