"""Scorers: features of documents in, scores out. They know nothing of lists or losses.

>>> import torch
>>> MLP(3, [8, 4])(torch.zeros(5, 3)).shape
torch.Size([5])
"""

from rankfall.models.features import FeatureScaling
from rankfall.models.mlp import ACTIVATIONS, MLP, Linear

__all__ = ["ACTIVATIONS", "MLP", "FeatureScaling", "Linear"]
