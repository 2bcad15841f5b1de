"""Weights of items in the objective, from the relevance, feedback, a number of the item, or how it was drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rankfall._config import ConfigError
from rankfall._errors import did_you_mean
from rankfall.data.impressions.spec import Dense
from rankfall.data.inspect.inspection import flat
from rankfall.examination import ExaminationCurve
from rankfall.storage.files import checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.data import ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.config.cascade_config import CascadeConfig, WeightConfig


INCLUSION = "inclusion"
MUCH_CLIPPED = 0.01  # share of the items; more is said


def _clipped(
    log: ImpressionLog, days: Sequence[str], column: str, weigh: Callable[[NDArray[Any]], NDArray[Any]], clip: float
) -> float:
    """Return the share of the items with a value above 0 whose weight is above `clip`."""
    clipped = items = 0
    for day in log.choose(days):
        for block in day.table().select([column]).to_batches():
            values = flat(block[column])
            values = values[values > 0]
            items += len(values)
            clipped += int((weigh(values) > clip).sum())
    return clipped / items if items else 0.0


class InclusionWeights:
    r"""Weights of the items of a batch: 1 / inclusion, at most `clip`, divided by their mean over the list.

    .. math:: w_i = \frac{v_i}{\frac{1}{n} \sum_j v_j}, \qquad v_i = \min(1 / \pi_i, c)

    where :math:`\pi_i` is the probability with which item i was drawn, 1 for items without a draw and for random items
    that the loader adds, and n the length of the list without padding. The mean weight of a list is 1, so that lists of
    which less was drawn do not have more influence, and learning rates stay as they are without weights.

    Args:
        config: The largest weight before the division.
        log: The log that batches come from.

    Raises:
        ConfigError: If the log has no probabilities, or `config` a base or a scale.
    """

    def __init__(self, config: WeightConfig, log: ImpressionLog) -> None:
        if log.spec.inclusion is None:
            raise ConfigError(
                f"weight: {log.path} has no probabilities of draws; prepare it with 'inclusion: COLUMN' in its "
                "description"
            )
        if (config.base, config.scale) != (1.0, 1.0) or config.clip <= 1:
            raise ConfigError(
                f"weight: found base {config.base:g}, scale {config.scale:g} and clip {config.clip:g} with inclusion, "
                "expected no base, no scale and a clip above 1"
            )
        self.clip = config.clip

    def __call__(self, batch: Impressions) -> Tensor:
        """Return the weights ``(B, N)`` of the items of a batch, 0 in padding."""
        assert batch.inclusion is not None  # the log has probabilities
        weight = (1 / batch.inclusion).clamp(max=self.clip) * batch.mask
        mean = weight.sum(-1, keepdim=True) / batch.mask.sum(-1, keepdim=True).clamp(min=1)
        return weight / mean.clamp(min=1.0)  # no weight is below 1 before, so only empty lists are affected

    def describe(self, log: ImpressionLog, days: Sequence[str]) -> str | None:
        """Return a sentence if many weights are clipped, which makes draws of unequal probability equal."""
        clipped = _clipped(log, days, INCLUSION, lambda inclusion: 1 / inclusion, self.clip)
        if clipped <= MUCH_CLIPPED:
            return None
        return (
            f"weight: {clipped:.0%} of the items were drawn with a probability below {1 / self.clip:g} and "
            "have the weight of this one; a larger weight.clip tells them apart"
        )


class PropensityWeights:
    """Weights of the items of a batch: 1 / examination of its position, at most `clip`, for clicked items, else 1.

    Args:
        config: The curve, the feedback that counts as a click, and the largest weight.
        log: The log that batches come from.

    Raises:
        ConfigError: If the curve cannot be read, or if the log has no positions or no such feedback.
    """

    def __init__(self, config: WeightConfig, log: ImpressionLog) -> None:
        assert config.examination is not None  # other weights do not come from a curve
        self.feedback, self.clip = config.of, config.clip
        if log.spec.position is None:
            raise ConfigError(
                f"weight.examination: {log.path} has no positions; prepare it with 'position: COLUMN' in its "
                "description"
            )
        if config.of not in log.spec.feedback:
            raise ConfigError(
                f"weight.of: found {config.of!r}{did_you_mean(config.of, log.spec.feedback)}, expected feedback of "
                f"{log.path}: {', '.join(log.spec.feedback) or 'it has none'}"
            )
        self.curve = _read_curve(config.examination)

    def __call__(self, batch: Impressions) -> Tensor:
        """Return the weights ``(B, N)`` of the items of a batch."""
        assert batch.position is not None  # the log has positions
        return self.weigh(batch.position, batch.feedback[self.feedback])

    def weigh(self, position: Tensor, feedback: Tensor) -> Tensor:
        """Return the weights of items with these positions and this feedback."""
        weight = (1 / self.curve.propensities(position.clamp(min=0))).clamp(max=self.clip)
        return weight.masked_fill(~((position >= 0) & (feedback > 0)), 1.0)

    def describe(self, log: ImpressionLog, days: Sequence[str]) -> str:
        """Return a sentence about the weights of the clicks of some days: their size and what they cost."""
        clicks, unseen = torch.zeros(0), 0
        for day in log.choose(days):
            table = day.table().select(["position", f"feedback.{self.feedback}"])
            for block in table.to_batches():
                position, feedback = (torch.from_numpy(flat(block[name]).copy()) for name in table.column_names)
                clicked = feedback > 0
                unseen += int((clicked & (position < 0)).sum())
                clicked &= position >= 0
                clicks = torch.cat([clicks, self.weigh(position[clicked], feedback[clicked])])
        if not len(clicks):
            raise ConfigError(f"weight.of: no shown item of the training days has {self.feedback} above 0")
        weights = clicks.double()
        effective = float(weights.sum() ** 2 / weights.square().sum())
        clipped = float((weights >= self.clip).double().mean())
        text = (
            f"the curve of {self.curve.feedback} in {self.curve.log} gives inverse propensity weights of "
            f"{len(weights):,} clicks ({self.feedback}): mean {weights.mean():.2f}, "
            f"largest {weights.max():.2f}, {clipped:.1%} clipped at {self.clip:g}; "
            f"effective sample size {effective:,.0f} ({effective / len(weights):.0%})"
        )
        return text + (f"; {unseen:,} clicks on items without a position have weight 1" if unseen else "")


def curve_checksum(path: str) -> str:
    """Return the checksum of a curve, which must be valid."""
    _read_curve(path)
    return checksum(Path(path))


def _read_curve(path: str) -> ExaminationCurve:
    if not Path(path).is_file():
        raise ConfigError(
            f"weight.examination: found no file {path}; 'rankfall examination LOG --out {path}' writes it"
        )
    try:
        curve = ExaminationCurve.load(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"weight.examination: {error}; 'rankfall examination LOG --out {path}' writes it") from None
    bad = [point.position for point in curve.points if not point.examination > 0]
    if bad or not curve.points:
        where = f"no examination above 0 at the positions {', '.join(map(str, bad))}" if bad else "no positions"
        raise ConfigError(f"weight.examination: {path} has {where}; estimate it with fewer --positions or more days")
    return curve


RELEVANCE = "relevance"
# share of the items with a value; more is said


class ItemWeights:
    """Weights of the items of a batch: `base` + `scale` * value, at least 0 and at most `clip`.

    Values are those of the raw log: of a feature that the log stores as a logarithm or standardised, this is undone.

    Args:
        config: Which value is the weight, and how.
        log: The log that batches come from.

    Raises:
        ConfigError: If the log has no such value.
    """

    def __init__(self, config: WeightConfig, log: ImpressionLog) -> None:
        self.config = config
        self._is_feedback = config.of in log.spec.feedback
        self._feature: Dense | None = None
        self._mean, self._deviation = 0.0, 1.0
        if config.of == RELEVANCE or self._is_feedback:
            return
        numbers = _numbers(log)
        if config.of not in numbers:
            allowed = [RELEVANCE, INCLUSION, *log.spec.feedback, *numbers]
            raise ConfigError(
                f"weight: found {config.of!r}{did_you_mean(config.of, allowed)}; this log allows relevance, feedback "
                f"({', '.join(log.spec.feedback) or 'it has none'}) and item features that are single numbers "
                f"({', '.join(numbers) or 'it has none'})"
            )
        self._feature = numbers[config.of]
        if self._feature.standardise:
            scaling = log.manifest["about"].get("scalings", {}).get(f"item.{config.of}")
            if scaling is None:
                raise ConfigError(f"weight: {log.path} does not say how {config.of} was standardised; prepare it again")
            self._mean, self._deviation = (float(torch.tensor(scaling[key])) for key in ("mean", "deviation"))

    def __call__(self, batch: Impressions) -> Tensor:
        """Return the weights ``(B, N)`` of the items of a batch."""
        weight = self.config.base + self.config.scale * self.values(batch)
        return weight.clamp(min=0.0, max=self.config.clip)

    def describe(self, log: ImpressionLog, days: Sequence[str]) -> str | None:
        """Return a sentence if many weights of feedback or relevance are clipped, which makes unequal values equal."""
        if self._feature is not None:
            return None
        of, clip = self.config.of, self.config.clip
        column = f"feedback.{of}" if self._is_feedback else of
        clipped = _clipped(log, days, column, lambda values: self.config.base + self.config.scale * values, clip)
        if clipped <= MUCH_CLIPPED:
            return None
        return (
            f"weight: {clipped:.0%} of the items with {of} above 0 would have a weight above clip={clip:g} and "
            f"have this weight, whatever their {of}; a smaller weight.scale or a larger weight.clip tells them apart"
        )

    def values(self, batch: Impressions) -> Tensor:
        """Return the values ``(B, N)`` that weights are made of."""
        if self._is_feedback:
            return batch.feedback[self.config.of]
        if self._feature is None:
            return batch.relevance
        numbers = batch.items[self.config.of] * self._deviation + self._mean
        return numbers.sign() * numbers.abs().expm1() if self._feature.log1p else numbers


Weights = ItemWeights | PropensityWeights | InclusionWeights


def item_weights(config: CascadeConfig, log: ImpressionLog) -> Weights | None:
    """Return the item weights of a configuration, or None if it has none.

    Raises:
        ConfigError: If the log has no such value.
    """
    if config.weight is None:
        return None
    if config.weight.examination is not None:
        return PropensityWeights(config.weight, log)
    is_other = config.weight.of in (*log.spec.feedback, *_numbers(log))
    return (InclusionWeights if config.weight.of == INCLUSION and not is_other else ItemWeights)(config.weight, log)


def _numbers(log: ImpressionLog) -> dict[str, Dense]:
    """Return the item features of a log that are single numbers."""
    features = log.spec.features.item
    return {
        name: feature
        for name, feature in features.items()
        if isinstance(feature, Dense) and feature.bucketize is None and feature.width == 1
    }
