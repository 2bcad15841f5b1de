"""How a cascade is trained: functions of the scores of all stages on one impression.

An objective takes a list of T tensors ``(..., n)``, one a stage, and the full-stage grades ``(..., n)`` of the items:
deeper in the funnel is better, then the better logged rank. It needs no data classes, so it works in any training
loop; those with trained weights are modules whose parameters go to the optimiser with the models'.

relevance: above 0 for the relevant items, of which the ``relevant`` best grades are the ground truth; without it
  the best grades above 0 are. depth: the deepest logged stage of each item, for objectives that let a stage see
  only what reached it. mask: True for real items.

>>> import torch, rankfall as rf
>>> objective = rf.objectives.LCRON(relevant=1, topk=rf.ops.topk("dftopk"))
>>> scores = [torch.tensor([2.0, 0.0, 1.0], requires_grad=True), torch.tensor([1.0, 0.5, 0.0], requires_grad=True)]
>>> objective(scores, torch.tensor([2.0, 0.0, 1.0])).backward()
>>> sorted(objective.parts(scores, torch.tensor([2.0, 0.0, 1.0])))
['e2e', 'stage1/single', 'stage2/single']
"""

from rankfall.objectives._stages import Objective
from rankfall.objectives.icc import ICC
from rankfall.objectives.independent import ARF, BCE, ARFv2, FSLambdaLoss, FSRankNet, PerStage, SortCE
from rankfall.objectives.lcron import LCRON
from rankfall.objectives.rankflow import RankFlow

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
