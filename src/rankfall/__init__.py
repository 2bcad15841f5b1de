"""Cascade ranking in PyTorch.

- :mod:`rankfall.ops`: differentiable sorting and top-k selection.
- :mod:`rankfall.losses`: ranking losses on one list of scores.
- :mod:`rankfall.metrics`: exact ranking metrics and significance tests.
- :mod:`rankfall.data`: full-stage logs. :mod:`rankfall.models`: models that score them.
- :class:`Cascade`: models in order. :mod:`rankfall.objectives`: losses of a whole cascade.
- :class:`Ranker`: one ranker in the style of scikit-learn.
- :mod:`rankfall.serving`: answers to requests from a trained cascade.
- :mod:`rankfall.api`: :func:`train`, :func:`evaluate`, :func:`compare` and the other functions behind the commands.

Functions of lists work on the last dimension; leading dimensions are batch dimensions.

Examples:
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
    from rankfall import api, data, losses, metrics, models, objectives, ops, option_types, register
    from rankfall import serving as serving
    from rankfall._config import ConfigError, ResultError
    from rankfall._errors import RankfallError
    from rankfall.api import (
        RankfallWarning,
        clean,
        collect,
        compare,
        diagnose,
        evaluate,
        export,
        join,
        plan,
        prepare,
        report,
        reproduce,
        simulate,
        stream,
        train,
        tune,
    )
    from rankfall.cascade import Cascade, Stage
    from rankfall.ranker import Ranker
    from rankfall.training.run_directory import Stopped, TrainingError

__all__ = [
    "Cascade",
    "ConfigError",
    "Ranker",
    "RankfallError",
    "RankfallWarning",
    "ResultError",
    "Stage",
    "Stopped",
    "TrainingError",
    "api",
    "clean",
    "collect",
    "compare",
    "data",
    "diagnose",
    "evaluate",
    "export",
    "join",
    "losses",
    "metrics",
    "models",
    "objectives",
    "ops",
    "option_types",
    "plan",
    "prepare",
    "register",
    "report",
    "reproduce",
    "simulate",
    "stream",
    "train",
    "tune",
]
__version__ = "0.1.0"

_MODULES = ("api", "data", "losses", "metrics", "models", "objectives", "ops", "option_types", "register", "serving")
_PLACES = {  # modules of names that are neither modules nor attributes of rankfall.api
    "Cascade": "cascade",
    "ConfigError": "_config",
    "Ranker": "ranker",
    "RankfallError": "_errors",
    "ResultError": "_config",
    "Stage": "cascade",
    "Stopped": "training.run_directory",
    "TrainingError": "training.run_directory",
}

if not TYPE_CHECKING:  # a type checker that saw this function would accept any attribute

    def __getattr__(name: str) -> object:
        # The submodules need torch, which takes seconds to import; `rankfall --help` must not wait for it.
        if name in _MODULES:
            return import_module(f"rankfall.{name}")
        if name in __all__:
            return getattr(import_module(f"rankfall.{_PLACES.get(name, 'api')}"), name)
        raise AttributeError(f"module 'rankfall' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "serving", "__version__"]
