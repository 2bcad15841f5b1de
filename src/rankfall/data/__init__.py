"""Logs of cascades and ranking files, and the prepared data that training reads.

An impression log is a directory; :meth:`ImpressionLog.load` opens it and :class:`ImpressionLoader` loads batches::

    log = rf.data.ImpressionLog.load("log")
    for batch in rf.data.ImpressionLoader(log, "2024-01-13..2024-02-02", batch=1024):
        scores = model(batch)

:func:`prepare_letor` converts ranking text into a directory of lists, which :meth:`RankingData.load` opens::

    data = rf.data.RankingData.load("mslr")
    train = data["train"]
    scaling = data.scaling(["train"])  # fitted on the training split alone
    features = scaling(train.features[train.offsets[0] : train.offsets[1]])  # the first list

``sources`` reads raw data, ``impressions`` and ``lists`` hold prepared data, ``inspect`` counts and checks a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.data.arrays import Moments, Scaling
from rankfall.data.impressions.log import ImpressionLog, appending
from rankfall.data.impressions.spec import Features as Features  # what models are built for
from rankfall.data.lists.ranking_data import RankingData, RankingSplit
from rankfall.data.sources.letor.parse import Recipe
from rankfall.data.sources.letor.prepare_letor import prepare_letor

if TYPE_CHECKING:
    from rankfall.data.impressions.loader import ImpressionLoader, Impressions

__all__ = [
    "ImpressionLoader",
    "ImpressionLog",
    "Impressions",
    "Moments",
    "RankingData",
    "RankingSplit",
    "Recipe",
    "Scaling",
    "appending",
    "prepare_letor",
]

if not TYPE_CHECKING:  # a type checker that saw this function would accept any attribute

    def __getattr__(name: str) -> Any:
        # The loader needs torch, which takes seconds to import; preparing data does not.
        if name in ("ImpressionLoader", "Impressions"):
            from rankfall.data.impressions import loader

            return getattr(loader, name)
        raise AttributeError(f"module 'rankfall.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
