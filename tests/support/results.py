"""Results of comparisons and streams that nobody trained for, as large as one likes, to look at their pages."""

from __future__ import annotations

from copy import deepcopy
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import torch

from rankfall.studies.comparison_summary import Outcome, summarise
from rankfall.training.cascade_metrics import JOINT, higher_is_better

if TYPE_CHECKING:
    from collections.abc import Sequence

STAGES = ("retrieval", "preranking", "ranking")
METHODS = ("BCE", "LCRON, DFTopK", "LCRON, NeuralSort, tau 0.5, both terms", "FS-LambdaLoss w/o_weights_of_any_kind")
FAILED = {"method": "wild", "run": "seed 0", "message": "the scores of retrieval became NaN in epoch 1"}


def compared(*, stages: Sequence[str] = STAGES, methods: Sequence[str] = METHODS, seeds: int = 2) -> dict[str, Any]:
    """A comparison without folds, nothing tuned, of which one more method failed."""
    result = _measured(stages, methods, seeds, torch.Generator().manual_seed(0))
    for method in result["methods"]:
        method |= {"settings": {"all": {}}, "runs": [{"fold": "all", "seed": 0, "validation": 0.5}]}
    about = {"seeds": list(range(seeds)), "folds": {"all": {}}, "unit": "impressions"}
    return result | about | {"incomplete": ["wild"], "failed": [FAILED]}


def streamed(*, days: int = 40, methods: Sequence[str] = METHODS, seeds: int = 2) -> dict[str, Any]:
    """A stream of two stages over days of which few differ; one more method failed at once."""
    rng = torch.Generator().manual_seed(0)
    learned = [str(date(2024, 1, 13) + timedelta(number)) for number in range(days)]
    result = _measured(STAGES[::2], methods, seeds, rng) | {"unit": "days", "seeds": list(range(seeds))}
    result |= {"metric": JOINT, "learned": learned, "refused": [], "incomplete": ["wild"], "failed": [FAILED]}
    found = [_measured(STAGES[::2], methods, seeds, rng) for _ in range(3)]
    result["days"] = [{"day": day, **deepcopy(found[number % 3])} for number, day in enumerate(learned[1:])]
    return result


def _measured(stages: Sequence[str], methods: Sequence[str], seeds: int, rng: torch.Generator) -> dict[str, Any]:
    """Figures of which joint recall and what stages lose sum to 1, and tests."""
    values = {}
    for method in methods:
        shares = torch.rand(1 + len(stages), seeds, 20, generator=rng, dtype=torch.float64)
        joint, *lost = shares / shares.sum(0)
        metrics = {JOINT: joint}
        for stage, share in zip(stages, lost, strict=True):
            metrics |= {f"{stage}/recall": 1 - share, f"{stage}/ndcg": joint, f"{stage}/lost": share}
        values[method] = metrics
    first = values[methods[0]]
    chance = {name: of.mean(0) for name, of in first.items()}
    told = {name: higher_is_better(name) for name in first}
    return {"metrics": list(first), **summarise(Outcome(values, chance, told, folds=[20]))}
