"""Inverse inclusion weights: an item that was drawn for the log with a small probability stands for many others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall._yaml_config import ConfigError
from rankfall.data.inspect.impression_blocks import flat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.config.cascade_config import WeightConfig

INCLUSION = "inclusion"
MUCH_CLIPPED = 0.01  # share of the items; more is said


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
        clipped = items = 0
        for day in log.choose(days):
            for block in day.table().select([INCLUSION]).to_batches():
                inclusion = torch.from_numpy(flat(block[INCLUSION]).copy())
                items += len(inclusion)
                clipped += int((1 / inclusion > self.clip).sum())
        if clipped <= MUCH_CLIPPED * items:
            return None
        return (
            f"weight: {clipped / items:.0%} of the items were drawn with a probability below {1 / self.clip:g} and "
            "have the weight of this one; a larger weight.clip tells them apart"
        )
