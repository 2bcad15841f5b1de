"""Weights of items in the objective, from the relevance, feedback, a number of the item, or how it was drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import ConfigError
from rankfall.data.impressions.spec import Dense
from rankfall.data.inspect.impression_blocks import flat
from rankfall.training.inclusion_weights import INCLUSION, InclusionWeights
from rankfall.training.propensity_weights import PropensityWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.config.cascade_config import CascadeConfig, WeightConfig

RELEVANCE = "relevance"
MUCH_CLIPPED = 0.01  # share of the items with a value; more is said


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
        clipped = items = 0
        for day in log.choose(days):
            for block in day.table().select([column]).to_batches():
                values = flat(block[column])
                values = values[values > 0]
                items += len(values)
                clipped += int((self.config.base + self.config.scale * values > clip).sum())
        if clipped <= MUCH_CLIPPED * items:
            return None
        return (
            f"weight: {clipped / items:.0%} of the items with {of} above 0 would have a weight above clip={clip:g} and "
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
