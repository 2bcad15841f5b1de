"""Training and evaluation on the stand-in device."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from rankfall.training import device as device_module
from rankfall.training.learner import Learner
from support.standin_device import DEVICE, standin_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.standin_device import StandinDevice

_LAUNCH = Learner.launch


@contextmanager
def on_standin(*, synchronises: bool = False, **options: Any) -> Iterator[StandinDevice]:
    """Train and evaluate on the stand-in device whatever the configuration says.

    Args:
        synchronises: Whether a training step may wait for the device, as the optimizers of sparse tables do.
        **options: Options of the stand-in device.
    """

    def launch(learner: Learner[Any], *args: Any) -> Any:
        with device.without_synchronisation():
            return _LAUNCH(learner, *args)

    # PyTorch lists the devices that have fused optimizers by name.
    fused = {"_get_fused_kernels_supported_devices": mock.Mock(return_value=["cpu", DEVICE.type])}
    with (
        standin_device(**options) as device,
        mock.patch.multiple(sys.modules["torch.optim.optimizer"], **fused),
        mock.patch.object(device_module, "resolve", return_value=DEVICE),
        mock.patch.object(Learner, "launch", _LAUNCH if synchronises else launch),
    ):
        yield device
