"""The industrial sets of ARF: one ranking stage on lists of few ads, by the metrics of its tables 3 and 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankfall.data.impressions.log import ImpressionLog
from rankfall.metrics.named import parse
from rankfall.reproductions.cascade_setup import CascadeMethod, CascadeSetup, Stage, compare
from rankfall.reproductions.published import Published, joined, table_report
from rankfall.studies.compare import higher_is_better
from rankfall.studies.comparison_summary import Outcome, summarise
from rankfall.training.train_cascade import load_run, make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.reproductions.logs import LogSet
    from rankfall.reproductions.task import Report, Task

PUBLISHED_NETWORK = [1024, 256, 256, 256]
SMALLER_NETWORK = [256, 64, 64, 64]  # for fewer impressions than the millions of the paper
MANY_IMPRESSIONS = 1_000_000
NOTE = (
    "Recall@m@k takes the k best grades, NDCG the grades as gains: ads by queue, then by the ranking model's "
    "score, the worst of an impression 0. What gain the paper has is not in our notes."
)


@dataclass(frozen=True, slots=True)
class IndustrySet:
    """A published set: of lists of `ads`, the best k shall be among the m that are kept."""

    name: str
    platform: str
    ads: int
    m: int
    k: int

    @property
    def metrics(self) -> tuple[str, ...]:
        """As published."""
        return (f"recall@{self.m}@{self.k}", f"ndcg@{self.k}", "ndcg")

    def setup(self, data: LogSet) -> CascadeSetup:
        """One stage, of the published network if there are enough impressions to train it."""
        hidden = PUBLISHED_NETWORK if data.train_impressions >= MANY_IMPRESSIONS else SMALLER_NETWORK
        network = {"kind": "mlp", "hidden": hidden, "activation": "selu", "batch_norm": True, "residual": True}
        return CascadeSetup(platform=self.platform, stages=(Stage("ranking", self.m, network),), relevant=self.k)


SETS = (IndustrySet("easy", "industry-easy", 10, 6, 2), IndustrySet("hard", "industry-hard", 20, 14, 4))


def loss(name: str, *taus: float, **options: Any) -> CascadeMethod:
    """A loss of the only stage at these temperatures, of which the first is the one without a choice."""
    section = {"name": name, **options} | ({"tau": taus[0]} if taus else {})
    return CascadeMethod({"name": "per_stage", "loss": section}, {"objective.loss.tau": taus} if taus else {})


def compare_losses(
    task: Task,
    name: str,
    title: str,
    methods: Callable[[IndustrySet], Mapping[str, CascadeMethod]],
    figures: Mapping[str, Mapping[str, tuple[float, ...]]],
    notes: Sequence[str] = (),
) -> Report:
    """Compare losses on both sets, or on the user's log by the cuts of the set whose lists are as long as its own."""
    reports = {}
    for one in _sets(task):
        data = task.log(one.platform)
        directory = f"comparison-{one.name}"
        trained = compare(task, data, one.setup(data), methods(one), directory=directory)
        result = by_grades(trained, task.out / directory, data, one.metrics)
        published = Published(title=title, metrics=one.metrics, figures={one.name: figures[one.name]})
        reports[data.name] = table_report(f"{name}-{one.name}", result, published, data, notes=[NOTE, *notes])
    return joined(reports)


def _sets(task: Task) -> Sequence[IndustrySet]:
    if task.origin.kind == "simulated":
        return SETS
    items = task.log(SETS[0].platform).items
    return [min(SETS, key=lambda one: abs(one.ads - items))]


# --- metrics ------------------------------------------------------------------------------------------------------


def by_grades(result: dict[str, Any], out: Path, data: LogSet, metrics: Sequence[str]) -> dict[str, Any]:
    """A comparison of cascades of one stage with metrics of rankings in place of those of cascades."""
    if not result["methods"]:
        return {**result, "metrics": list(metrics)}
    log = ImpressionLog.load(data.path)
    values, chance = {}, {}
    for method in result["methods"]:
        measured = [_measure(log, out / run["directory"], metrics) for run in method["runs"]]
        values[method["name"]] = {metric: torch.stack([of[metric] for of, _ in measured]) for metric in metrics}
        chance = measured[0][1]
    outcome = Outcome(
        values=values,
        chance=chance,
        higher_is_better={metric: higher_is_better(metric) for metric in metrics},
        folds=[len(next(iter(chance.values())))],
    )
    summary = summarise(outcome)
    methods = [old | new for old, new in zip(result["methods"], summary["methods"], strict=True)]
    return {**result, **summary, "metrics": list(metrics), "methods": methods}


def _measure(log: ImpressionLog, run: Path, metrics: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of every impression that is tested, the value of each metric and its chance level."""
    config, cascade = load_run(run)
    values: dict[str, list[Tensor]] = {metric: [] for metric in metrics}
    chance: dict[str, list[Tensor]] = {metric: [] for metric in metrics}
    with torch.no_grad():
        for batch in make_loader(log, config, "test"):
            (scores,) = cascade(batch)
            labels = torch.log2(1 + batch.grade.float())  # whose gain 2^y - 1 is the grade
            for metric in metrics:
                values[metric].append(parse(metric)(scores, labels, batch.mask))
                chance[metric].append(parse(metric)(torch.zeros_like(scores), labels, batch.mask))
    return _joined(values), _joined(chance)


def _joined(parts: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    return {metric: torch.cat(part).double() for metric, part in parts.items()}
