"""Cascade ranking in PyTorch.

:mod:`rankfall.ops` holds soft sorts and soft top-k, :mod:`rankfall.losses` the losses on one list of scores
and :mod:`rankfall.metrics` the exact metrics. Each works on the last dimension; leading dimensions are batch.
:mod:`rankfall.data` reads full-stage logs, :mod:`rankfall.models` scores them, a :class:`Cascade` puts models in order
and :mod:`rankfall.objectives` trains it; :mod:`rankfall.serving` answers requests with what was trained.

>>> import torch, rankfall as rf
>>> scores = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
>>> rf.losses.softmax_loss(scores, torch.tensor([0.0, 0.0, 1.0]))
tensor(1.4076, grad_fn=...)
>>> rf.metrics.ndcg(scores, torch.tensor([0.0, 0.0, 1.0]))
tensor(0.6309)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankfall import data, losses, metrics, models, objectives, ops
    from rankfall import serving as serving
    from rankfall.cascade import Cascade, Stage

__all__ = ["Cascade", "Stage", "data", "losses", "metrics", "models", "objectives", "ops"]
__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker that saw this function would accept any attribute

    def __getattr__(name: str) -> object:
        # The parts need torch, which takes seconds to import; `rankfall --help` must not wait for it.
        if name in ("Cascade", "Stage"):
            return getattr(import_module("rankfall.cascade"), name)
        if name in __all__ or name == "serving":  # which needs an extra, so that a star must not import it
            return import_module(f"rankfall.{name}")
        raise AttributeError(f"module 'rankfall' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "serving", "__version__"]
