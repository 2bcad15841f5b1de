"""What comes in: ranking files and the prepared data they become.

:func:`prepare_letor` turns ranking text into a directory, :meth:`RankingData.load` opens it::

    data = rf.data.RankingData.load("mslr")
    train = data["train"]
    scaling = data.scaling(["train"])  # fitted on the training split alone
    features = scaling(train.features[train.offsets[0] : train.offsets[1]])  # the first list
"""

from rankfall.data.letor.prepare import prepare_letor
from rankfall.data.letor.recipe import Recipe
from rankfall.data.ranking import Moments, RankingData, RankingSplit, Scaling

__all__ = ["Moments", "RankingData", "RankingSplit", "Recipe", "Scaling", "prepare_letor"]
