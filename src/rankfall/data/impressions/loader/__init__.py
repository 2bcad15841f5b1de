"""Batches of tensors from impression logs.

`order` decides which impressions form a batch, `window` reads their columns from the mapped file, `negatives` adds
items, and `prefetch` prepares the next batches in a thread while the model runs.
"""

from rankfall.data.impressions.loader.batch import Impressions
from rankfall.data.impressions.loader.impression_loader import ImpressionLoader
from rankfall.data.impressions.loader.item_first_seen import FirstDays

__all__ = ["FirstDays", "ImpressionLoader", "Impressions"]
