"""Made-up results of comparisons and streams of any size, to look at their pages."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import torch

from rankfall.studies.compare import Outcome, Summary, summarise
from rankfall.studies.results import (
    ComparisonResult,
    DayResult,
    MethodResult,
    MethodRun,
    RunFailure,
    StreamResult,
    StreamRunSummary,
)
from rankfall.training.config.component_checks import JOINT, higher_is_better

if TYPE_CHECKING:
    from collections.abc import Sequence

STAGES = ("retrieval", "preranking", "ranking")
METHODS = ("BCE", "LCRON, DFTopK", "LCRON, NeuralSort, tau 0.5, both terms", "FS-LambdaLoss w/o_weights_of_any_kind")
FAILED = RunFailure("wild", "seed 0", "the scores of retrieval became NaN in epoch 1")


def compared(*, stages: Sequence[str] = STAGES, methods: Sequence[str] = METHODS, seeds: int = 3) -> ComparisonResult:
    """A comparison without folds and without tuning, of which one more method failed."""
    summary = _summary(stages, methods, seeds, torch.Generator().manual_seed(0))
    return ComparisonResult(
        metrics=list(summary.methods[0].metrics),
        seeds=list(range(seeds)),
        folds={"all": {}},
        unit="impressions",
        methods=[
            MethodResult(one.name, one.metrics, {"all": {}}, [MethodRun("all", 0, "runs/one", 0.5)])
            for one in summary.methods
        ],
        tests=summary.tests,
        incomplete=["wild"],
        failed=[FAILED],
        verdicts=summary.verdicts,
        pairs=summary.pairs,
    )


def streamed(*, days: int = 40, methods: Sequence[str] = METHODS, seeds: int = 3) -> StreamResult:
    """A stream of two stages, whose days repeat three different summaries; one more method failed at once."""
    rng = torch.Generator().manual_seed(0)
    learned = [str(date(2024, 1, 13) + timedelta(number)) for number in range(days)]
    summary = _summary(STAGES[::2], methods, seeds, rng)
    found = [_summary(STAGES[::2], methods, seeds, rng) for _ in range(3)]
    return StreamResult(
        metric=JOINT,
        metrics=list(summary.methods[0].metrics),
        seeds=list(range(seeds)),
        learned=learned,
        unit="days",
        methods=summary.methods,
        tests=summary.tests,
        days=[
            DayResult(
                day,
                20,
                list(found[number % 3].methods),
                list(found[number % 3].tests),
                list(found[number % 3].verdicts),
            )
            for number, day in enumerate(learned[1:])
        ],
        runs=[
            StreamRunSummary(method, seed, f"runs/{number}-{seed}", days, 1.0)
            for number, method in enumerate(methods)
            for seed in range(seeds)
        ],
        incomplete=["wild"],
        failed=[FAILED],
        verdicts=summary.verdicts,
    )


def _summary(stages: Sequence[str], methods: Sequence[str], seeds: int, rng: torch.Generator) -> Summary:
    """Metrics and tests; joint recall and the shares that stages lose sum to 1."""
    values = {}
    for method in methods:
        shares = torch.rand(1 + len(stages), seeds, 20, generator=rng, dtype=torch.float64)
        joint, *lost = shares / shares.sum(0)
        metrics = {JOINT: joint}
        for stage, share in zip(stages, lost, strict=True):
            metrics |= {f"{stage}/alone/recall": 1 - share, f"{stage}/alone/ndcg": joint, f"{stage}/lost": share}
        values[method] = metrics
    first = values[methods[0]]
    chance = {name: of.mean(0) for name, of in first.items()}
    directions = {name: higher_is_better(name) for name in first}
    return summarise(Outcome(values, dict.fromkeys(values, chance), directions, folds=[20]))
