"""``rankfall demo``: a simulated platform whose cascade is trained stage by stage and as one network."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rankfall._config import dump
from rankfall._errors import RankfallError
from rankfall.reporting.comparison import comparison_page_blocks
from rankfall.reporting.diagnosis import advise
from rankfall.reporting.files import first_evaluations, write_report
from rankfall.reporting.html import page
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.storage.disk import copy_tree, delete_tree
from rankfall.storage.files import fresh_directory, write_file
from rankfall.studies.compare import compare_methods
from rankfall.studies.comparison_plan import ComparisonConfig
from rankfall.studies.diagnosis.diagnose import diagnose_run, diagnosis_file
from rankfall.studies.plan.plan_quotas import Costs, parse_costs, plan_run
from rankfall.training.run_directory import REPORT, read_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.reporting.diagnosis import Advice
    from rankfall.studies.results import ComparisonResult, SplitEvaluation

    # receives the current step, the amount done and the total, which may be unknown
    Progress = Callable[[str, float, float | None], None]

STAGE_BY_STAGE, AS_ONE = "bce", "lcron"
OBJECTIVES: dict[str, dict[str, Any]] = {
    STAGE_BY_STAGE: {"name": "bce", "min_depth": 0},
    AS_ONE: {"name": "lcron", "topk": {"name": "dftopk", "tau": 1.0}},
}
STAGES: list[dict[str, Any]] = [
    {"name": "retrieval", "quota": 400, "model": {"kind": "two_tower"}},
    {"name": "preranking", "quota": 150, "model": {"kind": "mlp"}},
    {"name": "ranking", "quota": 50, "model": {"kind": "din"}},
]
COSTS = ("retrieval=0", "preranking=1", "ranking=4")  # of an item: an index finds, a small and a large network score
GRID = {"retrieval": [150, 200, 250, 300, 400, 500, 600, 800]}  # quotas that the plan tries
ABOUT = (
    "A simulated platform logged, for each request, a sample of the items that its production cascade dropped at each "
    "stage, and the 10 best that it kept. A two-tower model now retrieves {retrieval} of all {catalogue:,} items, a "
    "small network keeps {preranking} of those, a deep interest network {ranking}. Joint recall is the share of the 10 "
    "best items that survive all stages, measured over all items, as in a service. It cannot come near 1: production "
    "ranked a few hundred candidates that it drew partly at random, and no model can know which ones. BCE trains each "
    "stage separately, LCRON trains all stages as one network. Both have the same untuned settings and {seeds} seeds."
)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a demonstration."""

    days: int  # the last two are for validation and test
    requests_per_day: int
    epochs: int
    batch: int
    seeds: int


FULL = Size(days=7, requests_per_day=1000, epochs=3, batch=128, seeds=3)
QUICK = Size(days=3, requests_per_day=100, epochs=1, batch=32, seeds=1)


def run(out: Path, *, size: Size, seed: int, progress: Progress = lambda *step: None) -> ComparisonResult:
    """Simulate a log, compare both methods, diagnose and plan the second one, and write the report.

    Args:
        out: Directory that gets ``log/``, the files of a comparison, ``lcron/`` (the first run of LCRON, with its
            diagnosis and plan), ``config.yaml`` and ``report.html``.
        size: Size of the log and of the training runs.
        seed: Seed of the log, and the first seed of the training runs.
        progress: Receives the current step, the amount done and the total.

    Returns:
        The result of the comparison, ``comparison.json``.
    """
    log = _simulate(out / "log", size, seed, progress)
    for earlier in ("runs", AS_ONE):
        delete_tree(out / earlier, missing_ok=True)
    result = _compare(out, log, size, seed, progress)
    chosen = out / AS_ONE
    with fresh_directory(chosen, lambda path: False) as directory:
        copy_tree(_first_run(result, out), directory)  # the names of runs in a comparison are checksums
    config = dump(read_config(chosen))
    write_file(out / "config.yaml", config)
    advice = _examine(chosen, size, progress)
    measured = first_evaluations(result, out)
    blocks = comparison_page_blocks(
        result,
        about=_about(next(iter(measured.values())), size),
        config=config,
        measured=measured,
        advice=advice,
    )
    write_file(out / "report.html", page("Cascades trained stage by stage and as one", blocks))
    return result


def _simulate(path: Path, size: Size, seed: int, progress: Progress) -> ImpressionLog:
    simulation = Simulation(preset="tiny", days=size.days, requests_per_day=size.requests_per_day, seed=seed)
    total, served = size.days * size.requests_per_day, 0

    def on_requests(count: int) -> None:
        nonlocal served
        served += count
        progress("simulating a platform", served, total)

    return simulate_log(simulation, path, force=True, on_requests=on_requests)


def _compare(out: Path, log: ImpressionLog, size: Size, seed: int, progress: Progress) -> ComparisonResult:
    runs, done = len(OBJECTIVES) * size.seeds, 0
    step = f"training {runs} cascades"

    def on_step(_: object) -> None:
        nonlocal done
        done += 1
        progress(step, done, runs)

    progress(step, 0, runs)
    jobs = min(2, os.cpu_count() or 1, runs) if size.seeds > 1 else 1
    return compare_methods(_config(log, size, seed), out, jobs=jobs, on_step=on_step)


def _config(log: ImpressionLog, size: Size, seed: int) -> ComparisonConfig:
    *training, valid, test = log.days
    return ComparisonConfig(
        data={
            "path": str(log.path.absolute()),
            "train": f"{training[0]}..{training[-1]}",
            "valid": valid,
            "test": test,
            "negatives": 40,
            "length": "all",
        },
        relevant=10,
        stages=STAGES,
        optimizer={"lr": 0.01},
        training={"epochs": size.epochs, "batch": size.batch, "validate_every": size.epochs},
        methods={name: {"objective": objective} for name, objective in OBJECTIVES.items()},
        seeds=[seed + number for number in range(size.seeds)],
    )


def _first_run(result: ComparisonResult, out: Path) -> Path:
    """Return the directory of the first run that was trained as one network.

    Raises:
        ValueError: If a run failed.
    """
    for failure in result.failed:
        raise RankfallError(f"{failure.method}, {failure.run}: {failure.message}")
    method = next(method for method in result.methods if method.name == AS_ONE)
    assert method.runs
    return out / method.runs[0].directory


def _examine(run_dir: Path, size: Size, progress: Progress) -> Advice:
    """Diagnose a run and plan its quotas, write both and the page of the run, and return what to do next."""
    diagnosis = diagnose_run(run_dir, on_step=lambda name, number, of: progress(f"diagnosing: {name}", number, of))
    diagnosis.save(diagnosis_file(run_dir, "test"))
    costs = Costs(*parse_costs(COSTS, [stage["name"] for stage in STAGES]), "given")
    plan = plan_run(
        run_dir,
        costs=costs,
        grid=GRID,
        on_step=lambda name, done, total: progress(f"planning: {name}", done, total),
    )
    write_report(run_dir)
    advice = advise(str(run_dir), diagnosis, plan)
    bundle = run_dir.parent / "bundle"
    further = [
        ("The diagnosis and the plan in full:", f"{run_dir / REPORT}"),
        ("Serve this cascade:", f"rankfall export {run_dir} --out {bundle} && rankfall serve {bundle}"),
    ]
    about = f"A diagnosis and a plan of {run_dir}, the first of {size.seeds} runs of {AS_ONE}, say:"
    return replace(advice, commands=[*advice.commands, *further], about=about)


def _about(measured: SplitEvaluation, size: Size) -> str:
    assert measured.lists
    quotas = {stage["name"]: stage["quota"] for stage in STAGES}
    return ABOUT.format(**quotas, catalogue=measured.lists.catalogue, seeds=size.seeds)
