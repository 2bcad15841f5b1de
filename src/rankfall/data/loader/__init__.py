"""Impression logs into batches of tensors.

:mod:`~rankfall.data.loader.order` says which impressions a batch has, :mod:`~rankfall.data.loader.window` brings their
columns from the mapped file, :mod:`~rankfall.data.loader.negatives` adds items,
:mod:`~rankfall.data.loader.ahead` works while the model does.
"""

from rankfall.data.loader.batch import Impressions
from rankfall.data.loader.known import FirstDays
from rankfall.data.loader.loader import ImpressionLoader

__all__ = ["FirstDays", "ImpressionLoader", "Impressions"]
