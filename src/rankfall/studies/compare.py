"""Methods x seeds x folds: every run trained once, all of them in one table.

Settings are chosen for each method and fold on the validation metric, with the first seed. Test data are opened after
that, by the chosen runs alone.

A run has a directory that is named after its configuration and data. It is trained once ``result.json`` stands there,
and tested once ``values.parquet`` does; files get their names when their content is on disk. So a comparison that
was interrupted at any moment goes on where it was, and one that is changed trains what is new.

================================  ====================================================================================
``runs/``                         the directories of the runs
``comparison.json``               figures, tests, chosen settings, what failed
``comparison.csv``                a line for each method and metric
``comparison.md``                 the table
``comparison.yaml``               what was compared, as it can be compared again
``report.html``                   all of it to look at
``values.parquet``                a row for each method, seed and query
================================  ====================================================================================
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rankfall._engine import LOCAL
from rankfall._files import locked, write_file
from rankfall.metrics.named import parse
from rankfall.reporting.comparison_page import COMPARISON_CONFIG, write_report
from rankfall.reporting.comparison_table import csv_table, markdown_table
from rankfall.studies.baselines import method_of
from rankfall.studies.comparison_plan import (
    ComparisonConfig,
    Plan,
    Run,
    Settings,
    make_plan,
)
from rankfall.studies.comparison_summary import Outcome, summarise
from rankfall.studies.evaluate import write_evaluation
from rankfall.studies.workers import Failure, run_tasks
from rankfall.training import cascade_metrics as funnel
from rankfall.training.config.overrides import dump_absolute
from rankfall.training.run_directory import RESULT, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rankfall._engine import Engine

VALUES = "values.parquet"
ERROR = "error.txt"
CHANCE = "chance "  # before a metric's name: its value for constant scores

Chosen = dict[tuple[str, str], Settings]  # settings by method and fold


@dataclass(frozen=True)
class Step:
    """Something to do with a run. To test it includes to train it, if that was not done."""

    run: Run
    action: Literal["train", "test"]
    method: str
    title: str  # what of the method it is


# --- a comparison -------------------------------------------------------------------------------------------------


def compare_methods(
    config: ComparisonConfig,
    out: Path,
    *,
    jobs: int | None = None,
    engine: Engine = LOCAL,
    on_plan: Callable[[int], None] = lambda steps: None,
    on_step: Callable[[Step], None] = lambda step: None,
    on_notice: Callable[[Step, str], None] = lambda step, text: None,
) -> dict[str, Any]:
    """Train, choose and test whatever is not there yet, then write the results to `out` and return them.

    So many `jobs` at the same time, by default as the configuration says, and by Ray as many as it has processors.
    `on_plan` hears how many steps there are, `on_step` each that is done (or was before), `on_notice` what a training
    has to say: damaged checkpoints and the like. Runs that fail are in the result under ``failed``, for each method
    that they are of; their methods are in no test.
    """
    plan = make_plan(config, out)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", busy=f"out: another comparison is working in {out}"):
        jobs = jobs or (config.jobs if engine is LOCAL else None)
        comparison = _Comparison(plan, jobs, engine, on_step, on_notice)
        on_plan(comparison.steps())
        chosen = comparison.choose()
        comparison.test(chosen)
        return _write_results(plan, chosen, comparison.failures, out)


class _Comparison:
    """The work of a comparison and what failed of it."""

    def __init__(
        self,
        plan: Plan,
        jobs: int | None,
        engine: Engine,
        on_step: Callable[[Step], None],
        on_notice: Callable[[Step, str], None],
    ) -> None:
        self.plan = plan
        self.jobs, self.engine = jobs, engine
        self.on_step, self.on_notice = on_step, on_notice
        self.failures: list[dict[str, str]] = []

    def steps(self) -> int:
        trials = sum(len(settings) for settings in self.plan.candidates.values() if len(settings) > 1)
        return len(self.plan.folds) * (trials + len(self.plan.candidates) * len(self.plan.config.seeds))

    def choose(self) -> Chosen:
        """The settings of each method and fold that are best on validation; none if all of them failed."""
        plan, seed = self.plan, self.plan.config.seeds[0]
        sign = 1 if higher_is_better(plan.validation_metric) else -1
        trials = {
            (method, fold): [plan.run(method, fold, one, seed) for one in settings]
            for fold in plan.folds
            for method, settings in plan.candidates.items()
        }
        self._perform(
            Step(run, "train", method, f"{fold} {_spelled(one)}")
            for (method, fold), runs in trials.items()
            for run, one in zip(runs, plan.candidates[method], strict=True)
            if len(runs) > 1
        )
        chosen = {}
        for (method, fold), runs in trials.items():
            settings = plan.candidates[method]
            if len(runs) == 1:
                chosen[method, fold] = settings[0]
                continue
            reached = {number: value for number, run in enumerate(runs) if (value := validation(run)) is not None}
            if reached:
                chosen[method, fold] = settings[max(reached, key=lambda number: sign * reached[number])]
        return chosen

    def test(self, chosen: Chosen) -> None:
        self._perform(
            Step(self.plan.run(method, fold, settings, seed), "test", method, f"{fold} seed {seed}")
            for seed in self.plan.config.seeds
            for (method, fold), settings in chosen.items()
        )

    def _perform(self, steps: Iterable[Step]) -> None:
        # Two methods of the same configuration, or two seeds of one without chance, are one run.
        todo: dict[Path, dict[str, Step]] = {}  # by method
        for step in steps:
            if is_done(step):
                self.on_step(step)
                continue
            same = todo.setdefault(step.run.directory, {})
            if same:
                self.on_step(step)
            same.setdefault(step.method, step)
        tasks = [next(iter(same.values())) for same in todo.values()]
        for step, outcome in run_tasks(perform, tasks, jobs=self.jobs, engine=self.engine):
            if isinstance(outcome, Failure):
                self.failures += [
                    {"method": one.method, "run": one.title, "message": outcome.message}
                    for one in todo[step.run.directory].values()
                ]
            else:
                for text in outcome:
                    self.on_notice(step, text)
            self.on_step(step)


def _spelled(settings: Settings) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


# --- a run --------------------------------------------------------------------------------------------------------


def is_done(step: Step) -> bool:
    """Whether there is nothing left to do."""
    return validation(step.run) is not None and (step.action == "train" or _is_tested(step.run))


def validation(run: Run) -> float | None:
    """The validation metric that a run has reached, if it is trained."""
    try:
        content = read_json(run.directory / RESULT)
    except FileNotFoundError:
        return None
    value: float = content["best_metric"]
    return value


def perform(step: Step) -> list[str]:
    """Train a run, if that was not done, and test it, if that is asked for; what the training has to say."""
    notices: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # jobs share the processor, and results must not depend on their number
    try:
        if validation(step.run) is None:
            _train(step.run, notices.append)
        if step.action == "test":
            _test(step.run)
        (step.run.directory / ERROR).unlink(missing_ok=True)  # of an attempt before
    except Exception:
        step.run.directory.mkdir(parents=True, exist_ok=True)
        write_file(step.run.directory / ERROR, traceback.format_exc())
        raise
    finally:
        torch.set_num_threads(threads)
    return notices


def _train(run: Run, on_notice: Callable[[str], None]) -> None:
    (run.directory / ERROR).unlink(missing_ok=True)
    method_of(run.config).complete(run.directory, on_notice=on_notice)


def _test(run: Run) -> None:
    write_evaluation(run.directory, method_of(run.config).evaluate(run.directory))


def _is_tested(run: Run) -> bool:
    path = run.directory / VALUES
    return path.exists() and set(run.config.metrics) <= set(pq.read_schema(path).names)


def higher_is_better(metric: str) -> bool:
    """Of a metric of rankers or of cascades."""
    if metric == funnel.JOINT or "/" in metric:  # of a cascade
        return funnel.higher_is_better(metric)
    return parse(metric).higher_is_better


# --- results ------------------------------------------------------------------------------------------------------


def _write_results(plan: Plan, chosen: Chosen, failures: list[dict[str, str]], out: Path) -> dict[str, Any]:
    tables = {method: tested for method in plan.candidates if (tested := _tested(plan, method, chosen)) is not None}
    result = _result(plan, tables, chosen, failures)
    write_file(out / "comparison.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
    write_file(out / "comparison.csv", csv_table(result))
    write_file(out / "comparison.md", markdown_table(result))
    write_file(out / COMPARISON_CONFIG, dump_absolute(plan.config))
    if tables:
        metrics = [name for name in next(iter(tables.values())).column_names if not name.startswith(CHANCE)]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables([table.select(metrics) for table in tables.values()]), sink)
        write_file(out / VALUES, sink.getvalue().to_pybytes())
    write_report(out)
    return result


def _tested(plan: Plan, method: str, chosen: Chosen) -> pa.Table | None:
    """Values of all queries, fold after fold and seed after seed; nothing if a run of the method is missing."""
    parts = []
    for seed in plan.config.seeds:
        for fold in plan.folds:
            if (method, fold) not in chosen:
                return None
            run = plan.run(method, fold, chosen[method, fold], seed)
            if not is_done(Step(run, "test", method, fold)):
                return None
            columns = ["qid", *run.config.metrics, *(CHANCE + name for name in run.config.metrics)]
            table = pq.read_table(run.directory / VALUES, columns=columns)
            about = {"method": method, "fold": fold, "seed": seed}
            for position, (name, value) in enumerate(about.items()):
                table = table.add_column(position, name, pa.repeat(value, len(table)))
            parts.append(table)
    return pa.concat_tables(parts)


def _result(plan: Plan, tables: dict[str, pa.Table], chosen: Chosen, failures: list[dict[str, str]]) -> dict[str, Any]:
    """The content of ``comparison.json``."""
    metrics = plan.metrics
    result: dict[str, Any] = {"metrics": metrics, "seeds": plan.config.seeds, "folds": plan.folds}
    result["unit"] = "impressions" if plan.config.stages else "queries"
    result |= summarise(_outcome(plan, tables, metrics)) if tables else {"methods": [], "tests": []}
    for method in result["methods"]:
        name = method["name"]
        method["settings"] = {fold: chosen[name, fold] for fold in plan.folds}
        method["runs"] = [
            {
                "fold": fold,
                "seed": seed,
                "directory": str(
                    (run := plan.run(name, fold, chosen[name, fold], seed)).directory.relative_to(plan.out)
                ),
                "validation": validation(run),
            }
            for seed in plan.config.seeds
            for fold in plan.folds
        ]
    result["incomplete"] = [method for method in plan.candidates if method not in tables]
    result["failed"] = failures
    return result


def _outcome(plan: Plan, tables: dict[str, pa.Table], metrics: list[str]) -> Outcome:
    seeds = len(plan.config.seeds)

    def values(table: pa.Table, name: str) -> torch.Tensor:
        return torch.from_numpy(table.column(name).to_numpy().astype(np.float64)).view(seeds, -1)

    first = next(iter(tables.values()))
    lists = Counter(first.column("fold").to_pylist())
    return Outcome(
        values={method: {name: values(table, name) for name in metrics} for method, table in tables.items()},
        chance={name: values(first, CHANCE + name)[0] for name in metrics},
        higher_is_better={name: higher_is_better(name) for name in metrics},
        folds=[lists[fold] // seeds for fold in plan.folds],
    )
