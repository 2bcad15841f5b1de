"""Methods: one interface to training and evaluation, whatever a configuration describes.

>>> from rankfall.training.config.load_config import validate_any
>>> config = validate_any({"data": {"path": "x", "train": "S1", "valid": "S2"}, "loss": {"name": "softmax_loss"}})
>>> method_of(config).title, method_of(config).unit
('softmax_loss', 'lists')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.ranker_config import RankerConfig
from rankfall.training.methods.cascade_method import CascadeMethod
from rankfall.training.methods.method import Funnel, Method, TrainingMethod
from rankfall.training.methods.ranker_method import ListMethod, RankerMethod

if TYPE_CHECKING:
    from rankfall.training.config.load_config import TrainConfig

__all__ = ["CascadeMethod", "Funnel", "ListMethod", "Method", "RankerMethod", "TrainingMethod", "method_of"]

_METHODS: dict[type[TrainConfig], type[TrainingMethod[Any, Any]]] = {
    RankerConfig: RankerMethod,
    CascadeConfig: CascadeMethod,
}


def method_of(config: TrainConfig) -> TrainingMethod[Any, Any]:
    """Return the method of a training configuration. Nothing else asks which kind of configuration it is."""
    return _METHODS[type(config)](config)
