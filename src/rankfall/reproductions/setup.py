"""How the papers trained, as far as their texts say, and comparisons in that way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rankfall.data import RankingData, Recipe
from rankfall.data.lists.list_loader import Lists
from rankfall.metrics.named import parse
from rankfall.studies.compare import compare_methods
from rankfall.studies.comparison_plan import ComparisonConfig
from rankfall.training.scoring import measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.datasets import DataSet
    from rankfall.reproductions.task import Task
    from rankfall.studies.compare import Step

MANY_LISTS = 5000  # from here on a paper's own network is trained; it would learn smaller sets by heart
SMALL_NETWORK = {"hidden": [128, 64]}
BATCH = 16  # lists

LEARNING_RATE = 3e-3
RATES = [3e-4, 1e-3, 3e-3, 1e-2]  # tried for a method that has no temperature
RATES_WITH_TAU = [1e-3, 3e-3]  # tried with two temperatures each: as many trials for every method


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a paper says about data, network and training."""

    recipe: Recipe
    network: dict[str, Any]
    metric: str  # that validation looks at
    epochs: int | None = None  # at most, on data as large as the paper's

    def config(self, task: Task, data: DataSet, **sections: Any) -> ComparisonConfig:
        """A comparison on the data; `sections` are methods, metrics and whatever else it says."""
        large = data.train_lists >= MANY_LISTS
        epochs = min(task.size.epochs, self.epochs) if large and self.epochs else task.size.epochs
        training = {"epochs": epochs, "patience": task.size.patience, "batch": BATCH, "metric": self.metric}
        content = {
            "data": {"path": str(data.path)},
            "model": self.network if large else SMALL_NETWORK,
            "optimizer": {"lr": LEARNING_RATE},
            "training": training | sections.pop("training", {}),
            "seeds": task.seeds,
            "folds": data.folds,
            **sections,
        }
        return ComparisonConfig.model_validate(content)


ARF = Setup(
    recipe=Recipe(min_list=41, max_list=200, keep_positives=15, log1p=True),
    network={"hidden": [1024, 512, 256]},
    metric="recall@30@15",
    epochs=6,
)
LAMBDALOSS = Setup(
    recipe=Recipe(log1p=True),
    network={"hidden": [1024, 512, 256], "dropout": [0.5, 0.5, 0.8], "norm_momentum": 0.001},
    metric="ndcg@5",
)
PIRANK = Setup(recipe=Recipe(log1p=True), network={"hidden": [1024, 512, 256]}, metric="ndcg@10")


@dataclass(frozen=True, slots=True)
class Method:
    """A loss with its options, and the temperatures that are tried for it; the first is the one without a choice."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    taus: tuple[float, ...] = ()

    def section(self, *, tune: bool) -> dict[str, Any]:
        """What a comparison says of the method."""
        loss = {"name": self.name, **self.options}
        if self.taus:
            loss["tau"] = self.taus[0]
        if not tune:
            return {"loss": loss}
        grid: dict[str, Any] = {"optimizer.lr": RATES_WITH_TAU if self.taus else RATES}
        if self.taus:
            grid["loss.tau"] = list(self.taus)
        return {"loss": loss, "tune": grid}


def compare(
    task: Task, data: DataSet, setup: Setup, methods: Mapping[str, Method], metrics: Sequence[str], **sections: Any
) -> dict[str, Any]:
    """Train and test the methods, each tuned by the same number of trials, or none if the task says so."""
    config = setup.config(
        task,
        data,
        methods={name: method.section(tune=task.size.tune) for name, method in methods.items()},
        metrics=list(metrics),
        **sections,
    )
    return run_comparison(task, config)


def run_comparison(task: Task, config: ComparisonConfig, directory: str = "comparison") -> dict[str, Any]:
    """Train and test what is not there yet, in that directory of the task, which hears of every step."""
    total = done = 0

    def plan(steps: int) -> None:
        nonlocal total
        total = steps

    def step(one: Step) -> None:
        nonlocal done
        done += 1
        task.progress(f"{one.method}, {one.title}", done, total)

    return compare_methods(
        config,
        task.out / directory,
        jobs=task.jobs,
        on_plan=plan,
        on_step=step,
        on_notice=lambda one, text: task.on_notice(f"{one.method}, {one.title}: {text}"),
    )


def oracle(data: DataSet, metrics: Sequence[str]) -> dict[str, float] | None:
    """What the order by the planted utility gets on the test lists, if the data are generated."""
    if data.planted is None:
        return None
    lists = Lists([RankingData.load(data.path)["test"]])
    values = measure(torch.from_numpy(data.planted.utility).float(), lists, [parse(name) for name in metrics])
    return {name: float(value.double().nanmean()) for name, value in values.items()}
