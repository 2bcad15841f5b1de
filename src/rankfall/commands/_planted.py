"""The experiment behind ``rankfall demo``: one scorer, several losses, lists whose ideal order is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankfall import losses, metrics, ops

if TYPE_CHECKING:
    from collections.abc import Callable

ITEMS, FEATURES = 60, 8
SHORTEST = 30
TEST_LISTS = 400
BATCH = 32
LEARNING_RATE = 3e-3
NOISE = 1.0  # of a label, beside a utility of variance about 2
GRADE_QUANTILES = (0.8, 0.9, 0.95, 0.98)  # four of five items have grade 0, one of fifty has grade 4

METRICS: dict[str, Callable[..., Tensor]] = {
    "ndcg@10": partial(metrics.ndcg, k=10),
    "recall@20@10": partial(metrics.recall, m=20, k=10),
    "mrr": metrics.mrr,
    "opa": metrics.opa,
}

LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse_loss": losses.mse_loss,
    "ranknet_loss": losses.ranknet_loss,
    "softmax_loss": losses.softmax_loss,
    "lambda_loss": partial(losses.lambda_loss, k=10),
    "approx_ndcg_loss": losses.approx_ndcg_loss,
    "pirank_ndcg_loss": partial(losses.pirank_ndcg_loss, k=10, tau=5.0),
    "relax_loss": partial(losses.relax_loss, m=20, k=10, tau=5.0),
    "topk_bce_loss": partial(losses.topk_bce_loss, k=10, topk=ops.topk("dftopk")),
}


@dataclass(frozen=True)
class Lists:
    """Lists of 30 to 60 items: features, noisy grades, the utility behind the grades, and the real items."""

    features: Tensor
    labels: Tensor
    utility: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Outcome:
    """Held-out values of every metric: of each method (seeds, lists), of the oracle and of chance (lists)."""

    methods: dict[str, dict[str, Tensor]]
    oracle: dict[str, Tensor]
    chance: dict[str, Tensor]


def plant(lists: int, generator: torch.Generator) -> Lists:
    """Draw lists with a nonlinear utility; a label is the grade of the utility plus noise."""
    x = torch.randn(lists, ITEMS, FEATURES, generator=generator)
    utility = x[..., 0] + x[..., 1] * x[..., 2] + torch.sin(3 * x[..., 3]) - x[..., 4].abs()
    noisy = utility + NOISE * torch.randn(lists, ITEMS, generator=generator)
    borders = torch.quantile(noisy.flatten()[:100_000], torch.tensor(GRADE_QUANTILES))
    lengths = torch.randint(SHORTEST, ITEMS + 1, (lists, 1), generator=generator)
    return Lists(x, torch.bucketize(noisy, borders).float(), utility, torch.arange(ITEMS) < lengths)


def run(
    *, seed: int, seeds: int, steps: int, train_lists: int, report: Callable[[str], None] = lambda done: None
) -> Outcome:
    """Train the scorer once a loss and seed, all from the same data, and measure it on held-out lists."""
    generator = torch.Generator().manual_seed(seed)
    train, test = plant(train_lists, generator), plant(TEST_LISTS, generator)
    found: dict[str, dict[str, Tensor]] = {}
    for name, loss in LOSSES.items():
        values = []
        for run_seed in range(seed, seed + seeds):
            scorer = fit(loss, train, steps, run_seed)
            with torch.no_grad():
                values.append(measure(scorer(test.features), test))
            report(name)
        found[name] = {metric: torch.stack([value[metric] for value in values]) for metric in METRICS}
    return Outcome(found, measure(test.utility, test), measure(torch.zeros_like(test.utility), test))


def fit(loss: Callable[..., Tensor], train: Lists, steps: int, seed: int) -> nn.Module:
    """Train a small network with one loss. The seed fixes its first weights and the order of the lists."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scorer = nn.Sequential(
            nn.Linear(FEATURES, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1), nn.Flatten(-2)
        )
        batches = [torch.randint(len(train.labels), (BATCH,)) for _ in range(steps)]
    optimizer = torch.optim.Adam(scorer.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in batches:
        optimizer.zero_grad()
        scores = scorer(train.features[batch])
        torch.autograd.backward(loss(scores, train.labels[batch], mask=train.mask[batch]))
        optimizer.step()
        schedule.step()
    return scorer


def measure(scores: Tensor, test: Lists) -> dict[str, Tensor]:
    """Every metric on every held-out list."""
    return {name: metric(scores, test.labels, mask=test.mask).double() for name, metric in METRICS.items()}


def comparison(outcome: Outcome) -> dict[str, Any]:
    """What ``comparison.json`` holds: means, spread over seeds and chance levels of the methods, and tests."""
    return {
        "methods": [
            {
                "name": name,
                "metrics": {metric: _summary(values, outcome.chance[metric]) for metric, values in of.items()},
            }
            for name, of in outcome.methods.items()
        ],
        "tests": [test for metric in METRICS for test in _tests(metric, outcome)],
        "oracle": {metric: values.mean().item() for metric, values in outcome.oracle.items()},
    }


def _summary(values: Tensor, chance: Tensor) -> dict[str, Any]:
    by_seed = values.mean(-1)
    return {
        "mean": by_seed.mean().item(),
        "std": by_seed.std().item() if len(by_seed) > 1 else 0.0,
        "chance": chance.mean().item(),
        "values": by_seed.tolist(),
    }


def _tests(metric: str, outcome: Outcome) -> list[dict[str, Any]]:
    """Is a method worse than the best one? Paired over the held-out lists, with means over the seeds."""
    rows = metrics.compare({name: of[metric].mean(0) for name, of in outcome.methods.items()})
    best = next(row.name for row in rows if row.best)
    return [
        {
            "metric": metric,
            "method": row.name,
            "best": best,
            "difference": row.difference,
            "p_value": row.p_value,
            "adjusted_p_value": row.adjusted_p_value,
            "significantly_worse": row.significantly_worse,
        }
        for row in rows
    ]
