"""``rankfall demo``: a simulated platform whose cascade is trained stage by stage and as one network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall._files import write_file
from rankfall._yaml_config import dump
from rankfall.reporting.comparison_page import comparison_page
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.studies.comparison_summary import Outcome, summarise
from rankfall.studies.evaluate import Evaluation, evaluate_run
from rankfall.studies.results import ComparisonResult
from rankfall.training.cascade_metrics import higher_is_better
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.train_cascade import train

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.training.config.cascade_config import CascadeConfig

    # receives the current step, the amount done and the total, which may be unknown
    Progress = Callable[[str, float, float | None], None]

OBJECTIVES: dict[str, dict[str, Any]] = {
    "bce": {"name": "bce", "min_depth": 0},
    "lcron": {"name": "lcron", "topk": {"name": "dftopk", "tau": 1.0}},
}
STAGES: list[dict[str, Any]] = [
    {"name": "retrieval", "quota": 30, "model": {"kind": "two_tower"}},
    {"name": "ranking", "quota": 20, "model": {"kind": "din"}},
]
ABOUT = (
    "A simulated platform of 500 users logged which items its production cascade kept at each stage. A two-tower model "
    "keeps 30 of 40 items, a deep interest network 20 of those 30; joint recall is the share of the 10 best items that "
    "survive both stages. BCE trains each stage separately on all 40 items, LCRON trains both as one network. There is "
    "one seed and one untuned setting per method, and the tests do not account for other seeds: this shows how the "
    "tool works, not which method is better."
)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a demonstration."""

    days: int  # the last two are for validation and test
    requests_per_day: int
    epochs: int
    batch: int


FULL = Size(days=7, requests_per_day=1000, epochs=3, batch=128)
QUICK = Size(days=3, requests_per_day=100, epochs=1, batch=32)


def run(out: Path, *, size: Size, seed: int, progress: Progress = lambda *step: None) -> ComparisonResult:
    """Simulate a log, train both methods, compare them and write the report.

    Args:
        out: Directory that gets ``log/``, ``runs/``, ``config.yaml`` and ``report.html``.
        size: Size of the log and of the training runs.
        seed: Seed of the log and of the training runs.
        progress: Receives the current step, the amount done and the total.

    Returns:
        The result of the comparison, ``comparison.json``.
    """
    log = _simulate(out / "log", size, seed, progress)
    evaluations: dict[str, Evaluation] = {}
    for name, objective in OBJECTIVES.items():
        config = _config(log, objective, size, seed)
        on_step = _progress_of(progress, f"training with {name}")
        train(config, out / "runs" / name, force=True, progress=on_step)
        evaluations[name] = evaluate_run(out / "runs" / name)
    result = _summary(evaluations, seed)
    config = _config(log, OBJECTIVES["lcron"], size, seed)
    text = dump(config)
    write_file(out / "config.yaml", text)
    title = "Cascades trained stage by stage and as one"
    write_file(out / "report.html", comparison_page(result, title=title, about=ABOUT, config=text))
    return result


def _simulate(path: Path, size: Size, seed: int, progress: Progress) -> ImpressionLog:
    simulation = Simulation(preset="tiny", days=size.days, requests_per_day=size.requests_per_day, seed=seed)
    total, served = size.days * size.requests_per_day, 0

    def on_requests(count: int) -> None:
        nonlocal served
        served += count
        progress("simulating a platform", served, total)

    return simulate_log(simulation, path, force=True, on_requests=on_requests)


def _progress_of(progress: Progress, description: str) -> Callable[[Any], None]:
    return lambda step: progress(description, (step.epoch - 1) * step.batches + step.batch, step.epochs * step.batches)


def _config(log: ImpressionLog, objective: Mapping[str, Any], size: Size, seed: int) -> CascadeConfig:
    *training, valid, test = log.days
    return validate_cascade(
        {
            "data": {
                "path": str(log.path.absolute()),
                "train": f"{training[0]}..{training[-1]}",
                "valid": valid,
                "test": test,
            },
            "relevant": 10,
            "stages": STAGES,
            "objective": dict(objective),
            "optimizer": {"lr": 0.01},
            "training": {"epochs": size.epochs, "batch": size.batch, "seed": seed},
        }
    )


def _summary(evaluations: Mapping[str, Evaluation], seed: int) -> ComparisonResult:
    """Return the result of a comparison with one seed and one fold."""
    first = next(iter(evaluations.values()))
    outcome = Outcome(
        values={
            method: {name: values.double().unsqueeze(0) for name, values in evaluation.values.items()}
            for method, evaluation in evaluations.items()
        },
        chance={name: values.double() for name, values in first.chance.items()},
        higher_is_better={name: higher_is_better(name) for name in first.values},
        folds=[len(first.qids)],
    )
    summary = summarise(outcome)
    return ComparisonResult(
        metrics=list(first.values),
        seeds=[seed],
        folds={"all": {}},
        unit="impressions",
        methods=summary.methods,
        tests=summary.tests,
        verdicts=summary.verdicts,
    )
