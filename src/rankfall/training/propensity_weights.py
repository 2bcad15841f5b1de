"""Inverse propensity weights: clicks at positions that are seldom examined count more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rankfall._files import checksum
from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import ConfigError
from rankfall.data.inspect.impression_blocks import flat
from rankfall.examination.curve import ExaminationCurve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.config.cascade_config import WeightConfig


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
