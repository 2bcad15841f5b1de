"""Temperatures of losses, objectives and their operators that change over a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankfall.training.config.component_checks import TEMPERATURES, read_schedule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Temperature:
    """A temperature that changes over a training run. Losses and operators hold its tensor `value`."""

    value: Tensor
    start: float
    end: float
    schedule: str

    def set(self, share: float) -> None:
        """Set the temperature for a share of the training run, from 0 to 1."""
        if self.schedule == "linear":
            now = self.start + (self.end - self.start) * share
        else:
            now = self.start * (self.end / self.start) ** share
        self.value.fill_(now)


def scheduled(name: str, value: Any, temperatures: list[Temperature]) -> Any:
    """Return the value of an option. A temperature with a schedule becomes a tensor, and joins the list."""
    if name not in TEMPERATURES or not isinstance(value, dict):
        return value
    schedule = read_schedule(name, value)
    temperature = Temperature(torch.tensor(schedule.start), *schedule)
    temperatures.append(temperature)
    return temperature.value
