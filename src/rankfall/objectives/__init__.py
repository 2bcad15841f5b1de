"""Objectives: losses of a whole cascade, functions of the scores of all stages.

An objective takes a list of T tensors ``(..., n)``, one per stage, and the full-stage grades ``(..., n)`` of the items:
an item that got deeper into the funnel has a higher grade, and among items of the same depth the one with the better
logged rank. Objectives need no data classes, so they work in any training loop. Some of them train weights: pass
``objective.parameters()`` to the optimizer together with the parameters of the models.

All objectives are called with the same arguments:

- `scores`: one tensor ``(..., n)`` per stage.
- `labels`: full-stage grades ``(..., n)``.
- `relevance`: above 0 for relevant items. The ground truth consists of the `relevant` most relevant items; of equally
  relevant ones, those with the best grades. By default, all items with a grade above 0 are equally relevant.
- `depth`: the deepest logged stage of each item, for objectives that let a stage see only the items that reached it.
- `mask`: True for real items.
- `weight`: weights ``(..., n)`` of the items. A weight multiplies every term of its item: a pair has the weight of the
  item with the better grade, a row of a soft sort that of the item which belongs there. The counts by which terms are
  divided do not change, so twice the weights give twice the gradient. Terms without an item, such as the logarithms of
  trained weights, have no weight.

Examples:
    >>> import torch, rankfall as rf
    >>> objective = rf.objectives.LCRON(relevant=1, topk=rf.ops.topk("dftopk"))
    >>> scores = [torch.tensor([2.0, 0.0, 1.0], requires_grad=True), torch.tensor([1.0, 0.5, 0.0], requires_grad=True)]
    >>> objective(scores, torch.tensor([2.0, 0.0, 1.0])).backward()
    >>> sorted(objective.parts(scores, torch.tensor([2.0, 0.0, 1.0])))
    ['e2e', 'stage1/single', 'stage2/single']
"""

from rankfall.objectives._stages import Impression as Impression  # the argument of `terms`, for your own objectives
from rankfall.objectives._stages import Objective
from rankfall.objectives.independent import BCE, ICC, FSLambdaLoss, FSRankNet, PerStage, RankFlow
from rankfall.objectives.lcron import LCRON
from rankfall.objectives.soft_sorts import ARF, ARFv2, SortCE

__all__ = [
    "ARF",
    "BCE",
    "ICC",
    "LCRON",
    "ARFv2",
    "FSLambdaLoss",
    "FSRankNet",
    "Objective",
    "PerStage",
    "RankFlow",
    "SortCE",
]
