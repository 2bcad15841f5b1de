"""How the papers on cascades trained, as far as their texts say, and comparisons of objectives in that way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankfall.reproductions.setup import run_comparison
from rankfall.studies.comparison_plan import ComparisonConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.logs import LogSet
    from rankfall.reproductions.task import Task

RATES = [0.003, 0.005, 0.01, 0.02]  # tried for a method that has nothing else to choose
FEWER_RATES = [0.005, 0.01]  # tried with two values of something else: as many trials for every method

# Batches are a published number of impressions divided by this, for logs with at least so many to train on: the
# published logs had millions, and a pass over fewer in batches as large would be too few steps to learn anything.
SMALLER_BATCHES = {1_000_000: 1, 20_000: 8, 0: 32}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a published cascade."""

    name: str
    quota: int
    model: Mapping[str, Any]
    min_depth: int | None = None  # what it sees in training by bce, as far as the log tells so many stages apart

    def section(self, data: LogSet) -> dict[str, Any]:
        """What a configuration says of the stage. Where there are no sequences, an MLP does what DIN would."""
        model = dict(self.model) if data.sequences or self.model["kind"] != "din" else {"kind": "mlp"}
        section = {"name": self.name, "quota": self.quota, "model": model}
        return section if self.min_depth is None else section | {"min_depth": min(self.min_depth, data.depths - 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeSetup:
    """What a paper says about the cascade and its training."""

    platform: str  # that is simulated, if the user has no log
    stages: Sequence[Stage]
    relevant: int
    batch: int = 1024  # as published
    rate: float = 0.01  # of methods for which none is chosen

    def config(
        self,
        data: LogSet,
        methods: Mapping[str, Mapping[str, Any]],
        *,
        seeds: Sequence[int],
        lists: Mapping[str, Any] | None = None,
    ) -> ComparisonConfig:
        """A comparison on the data; `lists` says how long test lists are and what is added to training ones."""
        lists = lists or {}
        self._check(data, lists.get("length"))
        content = {
            "data": {"path": str(data.path), **data.roles, **lists},
            "relevant": self.relevant,
            "stages": [stage.section(data) for stage in self.stages],
            "optimizer": {"lr": self.rate},
            "training": {"epochs": 1, "batch": self.batch_for(data)},
            "methods": methods,
            "seeds": seeds,
        }
        return ComparisonConfig.model_validate(content)

    def batch_for(self, data: LogSet) -> int:
        """Impressions of a batch, on a log of this size."""
        divisor = next(divisor for least, divisor in SMALLER_BATCHES.items() if data.train_impressions >= least)
        return max(1, self.batch // divisor)

    def _check(self, data: LogSet, length: int | None) -> None:
        first = self.stages[0]
        if (length or data.items) <= first.quota:
            raise ValueError(
                f"{data.path} has lists of {data.items:.4g} items, of which {first.name} would keep {first.quota}; "
                f"expected lists of more than {first.quota} (such as those of the platform {self.platform})"
            )


_RETRIEVAL, _RANKING = {"kind": "two_tower"}, {"kind": "din"}

TWO_STAGES = CascadeSetup(
    platform="recflow-like",
    stages=(Stage("retrieval", 30, _RETRIEVAL), Stage("ranking", 20, _RANKING, min_depth=2)),
    relevant=10,
)
THREE_STAGES = CascadeSetup(
    platform="recflow-like-3",
    stages=(
        Stage("retrieval", 40, _RETRIEVAL),
        Stage("preranking", 30, {"kind": "mlp", "hidden": [128, 64, 32]}, min_depth=1),
        Stage("ranking", 20, _RANKING, min_depth=2),
    ),
    relevant=10,
)


@dataclass(frozen=True, slots=True)
class CascadeMethod:
    """An objective with the options it has without a choice, and what is tried for it besides the learning rate."""

    objective: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def section(self, *, tune: bool) -> dict[str, Any]:
        """What a comparison says of the method."""
        section: dict[str, Any] = {"objective": dict(self.objective)}
        if not tune:
            return section
        rates = FEWER_RATES if self.grid else RATES
        return section | {"tune": {"optimizer.lr": rates, **{key: list(values) for key, values in self.grid.items()}}}


def lcron(
    operator: str, *taus: float, temperature: str = "tau", gradient: str | None = None, **options: Any
) -> CascadeMethod:
    """LCRON with an operator at these temperatures, of which the first is the one without a choice."""
    topk = {"name": operator, temperature: taus[0]} | ({"gradient": gradient} if gradient else {})
    return CascadeMethod({"name": "lcron", "topk": topk, **options}, {f"objective.topk.{temperature}": taus})


def compare(
    task: Task,
    data: LogSet,
    setup: CascadeSetup,
    methods: Mapping[str, CascadeMethod],
    *,
    tune: bool | None = None,
    seeds: Sequence[int] | None = None,
    lists: Mapping[str, Any] | None = None,
    directory: str = "comparison",
) -> dict[str, Any]:
    """Train and test the methods, each tuned by the same number of trials, or none; by default as the task says."""
    sections = {name: method.section(tune=task.size.tune if tune is None else tune) for name, method in methods.items()}
    config = setup.config(data, sections, seeds=seeds or task.cascade_seeds, lists=lists)
    return run_comparison(task, config, directory)
