"""Batches of tensors from impression logs.

The modules in the order of the flow: `order` decides which impressions form a batch, `window` reads their columns from
the mapped file, `item_first_seen` finds the items known on a day, `negatives` draws items from them, `day_catalogue`
holds all of them, `label_schemes` changes grades, `batch` holds the tensors, `prefetch` prepares the next batches in a
thread, and `impression_loader` combines them.
"""

from rankfall.data.impressions.loader.impression_loader import Catalogue, ImpressionLoader, ItemFirstSeen
from rankfall.data.impressions.loader.window import Impressions

__all__ = ["Catalogue", "ImpressionLoader", "Impressions", "ItemFirstSeen"]
