"""Compare methods: train every method on every fold with every seed, and test which are worse than the best.

Settings are chosen for each method and fold by the validation metric, with the first seed. Test data are opened only
after that, by the chosen runs.

The directory of a run is named after its configuration and data. A run counts as trained once ``result.json`` exists
there, and as tested once ``values.parquet`` does; files are renamed into place when they are complete. An interrupted
comparison therefore continues where it was, and a changed comparison trains only new runs.

================================  ====================================================================================
``runs/``                         directories of the runs
``comparison.json``               the :class:`~rankfall.studies.results.ComparisonResult`
``comparison.yaml``               the configuration, to compare again
``values.parquet``                one row per method, seed and query
================================  ====================================================================================

:func:`rankfall.reporting.files.write_comparison` adds tables and a page.
"""

from __future__ import annotations

import itertools
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rankfall._engine import LOCAL
from rankfall.metrics import compare, crossed_test, holm, paired_test
from rankfall.metrics.significance import student_quantile
from rankfall.storage.disk import delete, make_directory
from rankfall.storage.files import locked, write_file
from rankfall.studies import results
from rankfall.studies.baselines import method_of
from rankfall.studies.comparison_plan import ComparisonConfig, Plan, Run, make_plan
from rankfall.studies.evaluate import evaluation_files, write_evaluation
from rankfall.studies.workers import Failure, run_tasks
from rankfall.training.cascade_metrics import CHANCE
from rankfall.training.checkpoint import Checkpoints
from rankfall.training.config.component_checks import higher_is_better, with_value
from rankfall.training.config.load_config import dump_absolute
from rankfall.training.run_directory import CHECKPOINTS, RESULT, read_json, verify_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from jaxtyping import Float
    from torch import Tensor

    from rankfall._engine import Engine
    from rankfall.metrics import TestResult

    Over = Literal["both", "seeds", "queries"]
    Pair = tuple[str, str]

LEVEL = 0.05  # of adjusted p-values
LEAST_SEEDS = 3  # two say too little about their spread for a statement about other seeds


@dataclass(frozen=True)
class Outcome:
    """Values of every method on every query, one fold after the other."""

    values: Mapping[str, Mapping[str, Float[Tensor, "seeds queries"]]]
    """By method and metric; NaN where a metric is undefined."""
    chance: Mapping[str, Mapping[str, Float[Tensor, " queries"]]]
    """Chance levels by method and metric: methods may measure other lists, or keep another number of items."""
    higher_is_better: Mapping[str, bool]
    """By metric."""
    folds: Sequence[int]
    """Number of queries of each fold."""


@dataclass(frozen=True)
class Summary:
    """Summary of an :class:`Outcome`."""

    methods: list[results.MethodResult]
    tests: list[results.MethodTest]
    """Tests of each method against the best over queries, by metric."""
    verdicts: list[results.Verdict] = field(default_factory=list)
    """Tests of each method against the reference over queries, seeds and both, by metric."""
    pairs: list[results.PairTest] = field(default_factory=list)
    """Tests of all pairs of methods over seeds and queries, by metric; none with fewer than three seeds."""


def summarise(outcome: Outcome, *, against: str | None = None) -> Summary:
    """Summarise the values of all methods, and test each method against a reference.

    The mean is taken over queries, the standard deviation over runs (seeds x folds). The confidence interval is
    Student's (1908), over queries.

    Args:
        outcome: The values.
        against: The reference of the verdicts. Default: the method with the best mean of each metric. The data then
            choose the reference, so p-values are corrected for the number of all pairs.
    """
    tests = {metric: _pair_tests(metric, outcome) for metric in outcome.higher_is_better}
    return Summary(
        methods=[
            results.MethodResult(name, {metric: _metric_summary(outcome, name, metric) for metric in metrics})
            for name, metrics in outcome.values.items()
        ],
        tests=[test for metric in outcome.higher_is_better for test in _tests(metric, outcome)],
        verdicts=[verdict for metric, found in tests.items() for verdict in _verdicts(metric, outcome, found, against)],
        pairs=[
            results.PairTest(metric, *pair, **vars(test))
            for metric, found in tests.items()
            for pair, test in _adjusted(found.get("both", {})).items()
        ],
    )


def _metric_summary(outcome: Outcome, method: str, metric: str) -> results.MetricSummary:
    values = outcome.values[method][metric]
    runs = torch.stack([fold.nanmean(-1) for fold in values.split(list(outcome.folds), -1)], -1).flatten()
    defined = runs[~runs.isnan()]
    by_query = values.mean(0)
    interval = paired_test(by_query, torch.zeros_like(by_query))
    return results.MetricSummary(
        mean=interval.difference,
        std=defined.std().item() if len(defined) > 1 else 0.0,
        chance=outcome.chance[method][metric].nanmean().item(),
        low=interval.low,
        high=interval.high,
        queries=interval.count,
        values=runs.tolist(),
    )


def _tests(metric: str, outcome: Outcome) -> list[results.MethodTest]:
    """Test whether methods are worse than the best one, paired over queries, with means over the seeds."""
    by_query = {name: metrics[metric].mean(0) for name, metrics in outcome.values.items()}
    rows = compare(by_query, higher_is_better=outcome.higher_is_better[metric])
    best = next(row.name for row in rows if row.best)
    tests = []
    for row in rows:
        # two-sided at twice the level: one end is the bound of the one-sided test
        level = 2 * LEVEL * _share(row.p_value, row.adjusted_p_value, len(rows) - 1)
        interval = paired_test(by_query[row.name], by_query[best], confidence=1 - level)
        tests.append(
            results.MethodTest(
                metric=metric,
                method=row.name,
                best=best,
                difference=row.difference,
                low=interval.low,
                high=interval.high,
                p_value=row.p_value,
                adjusted_p_value=row.adjusted_p_value,
                significantly_worse=row.significantly_worse,
            )
        )
    return tests


# --- verdicts -----------------------------------------------------------------------------------------------------


def _pair_tests(metric: str, outcome: Outcome) -> dict[Over, dict[Pair, TestResult]]:
    """Test all pairs of methods, two-sided; with fewer than three seeds over queries only."""
    values = {name: metrics[metric] for name, metrics in outcome.values.items()}
    repeated = all(len(runs) >= LEAST_SEEDS for runs in values.values())
    ways: tuple[Over, ...] = ("queries", "seeds", "both") if repeated else ("queries",)
    return {
        over: {
            (first, second): crossed_test(values[first], values[second], over=over, folds=outcome.folds)
            for first, second in itertools.combinations(values, 2)
        }
        for over in ways
    }


def _adjusted(tests: Mapping[Pair, TestResult]) -> dict[Pair, results.TestFigures]:
    """Correct p-values and intervals for the number of tests.

    Each interval has the level at which Holm's procedure tests its pair, so that it excludes 0 exactly if the adjusted
    p-value is below 5 %.
    """
    adjusted = holm([test.p_value for test in tests.values()]).tolist()
    figures = {}
    for (pair, test), p_value in zip(tests.items(), adjusted, strict=True):
        margin = (test.high - test.low) / 2
        if margin > 0:
            level = LEVEL * _share(test.p_value, p_value, len(tests))
            margin *= student_quantile(level / 2, test.freedom) / student_quantile(LEVEL / 2, test.freedom)
        low, high = test.difference - margin, test.difference + margin
        figures[pair] = results.TestFigures(test.difference, low, high, test.p_value, p_value)
    return figures


def _share(p_value: float, adjusted: float, tests: int) -> float:
    """Return the share of the level that Holm's procedure leaves to one of several tests."""
    return p_value / adjusted if 0 < adjusted < 1 else 1 / max(tests, 1)


def _verdicts(
    metric: str, outcome: Outcome, tests: Mapping[Over, Mapping[Pair, TestResult]], against: str | None
) -> list[results.Verdict]:
    """Compare every method with the reference."""
    sign = 1 if outcome.higher_is_better[metric] else -1
    best = max(outcome.values, key=lambda name: sign * float(outcome.values[name][metric].mean(0).nanmean()))
    reference = against or best
    figures: dict[str, dict[Over, results.TestFigures]] = {name: {} for name in outcome.values}
    for over, found in tests.items():
        # A reference that was named beforehand leaves one test per method. The best one is found by all pairs.
        family = {pair: test for pair, test in found.items() if against is None or against in pair}
        for (first, second), test in _adjusted(family).items():
            if first == reference:
                figures[second][over] = replace(test, difference=-test.difference, low=-test.high, high=-test.low)
            elif second == reference:
                figures[first][over] = test
        figures[reference][over] = results.TestFigures(0.0, 0.0, 0.0, 1.0, 1.0)
    return [
        results.Verdict(
            metric=metric,
            method=name,
            against=reference,
            outcome="reference" if name == reference and "both" in of else decide(of.get("both"), sign),
            over_queries=of["queries"],
            over_seeds=of.get("seeds"),
            over_both=of.get("both"),
        )
        for name, of in figures.items()
    ]


def decide(
    test: results.TestFigures | None, sign: int
) -> Literal["better", "worse", "not distinguishable", "no claim"]:
    """Return what a test says about a method; `sign` is 1 if higher values are better, else -1."""
    if test is None:
        return "no claim"
    if test.adjusted_p_value >= LEVEL:
        return "not distinguishable"
    return "better" if sign * test.difference > 0 else "worse"


COMPARISON, COMPARISON_CONFIG, VALUES, ERROR = "comparison.json", "comparison.yaml", "values.parquet", "error.txt"


@dataclass(frozen=True)
class Step:
    """Work on a run: train it, or test it. Testing trains the run first if necessary."""

    run: Run
    action: Literal["train", "test"]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.run.method

    @property
    def title(self) -> str:
        """Fold and settings of a trial, or fold and seed of a test."""
        if self.action == "test":
            return f"{self.run.fold} seed {self.run.seed}"
        return " ".join([self.run.fold, *(f"{key}={value}" for key, value in self.run.settings.items())])


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
) -> results.ComparisonResult:
    """Train, choose and test everything that `out` does not have yet, write the result to `out` and return it.

    Args:
        config: the comparison, see :func:`rankfall.studies.comparison_plan.load_comparison`.
        out: directory of the runs and results.
        jobs: runs at the same time; by default ``config.jobs``, or with Ray one per processor.
        engine: runs the steps.
        on_plan: receives the number of steps.
        on_step: receives each step when it is done, or was done before.
        on_notice: receives messages of a training run, for instance about damaged checkpoints.

    Returns:
        The result. Failed runs are in `failed`, once for each of their methods; these methods are in no test.
    """
    plan = make_plan(config, out)
    make_directory(out)
    with locked(out / ".lock", busy=f"out: another comparison is working in {out}"):
        steps = _Steps(jobs or (config.jobs if engine is LOCAL else None), engine, on_step, on_notice)
        trials = plan.trials()
        tried = sum(len(candidates) for candidates in trials.values() if len(candidates) > 1)
        on_plan(tried + len(trials) * len(config.seeds))
        steps.perform(Step(run, "train") for runs in trials.values() if len(runs) > 1 for run in runs)
        runs = plan.repeated(_choose(trials, plan.validation_metric))
        steps.perform(Step(run, "test") for run in runs)
        return _write_result(plan, runs, steps.failures)


def _choose(trials: Mapping[tuple[str, str], Sequence[Run]], metric: str) -> list[Run]:
    """Return the best trial of each method and fold on validation data; none if all of them failed."""
    sign = 1 if higher_is_better(metric) else -1
    chosen = []
    for runs in trials.values():
        values = {number: value for number, run in enumerate(runs) if (value := validation(run)) is not None}
        if len(runs) == 1:
            chosen.append(runs[0])
        elif values:
            chosen.append(runs[max(values, key=lambda number: sign * values[number])])
    return chosen


class _Steps:
    """Performs steps, and collects failures."""

    def __init__(
        self,
        jobs: int | None,
        engine: Engine,
        on_step: Callable[[Step], None],
        on_notice: Callable[[Step, str], None],
    ) -> None:
        self.jobs, self.engine = jobs, engine
        self.on_step, self.on_notice = on_step, on_notice
        self.failures: list[results.RunFailure] = []

    def perform(self, steps: Iterable[Step]) -> None:
        # Two methods with the same configuration, or two seeds of a method without random numbers, are one run.
        todo: dict[Path, dict[str, Step]] = {}  # by directory and method
        for step in steps:
            if is_done(step):
                delete(step.run.directory / ERROR, missing_ok=True)  # of an attempt that failed after its last result
                self.on_step(step)
                continue
            same = todo.setdefault(step.run.directory, {})
            if same:
                self.on_step(step)
            same.setdefault(step.method, step)
        tasks = [next(iter(same.values())) for same in todo.values()]
        for step, outcome in run_tasks(perform, tasks, jobs=self.jobs, engine=self.engine):
            if isinstance(outcome, Failure):
                same = todo[step.run.directory]
                self.failures += [results.RunFailure(one.method, one.title, outcome.message) for one in same.values()]
            else:
                for text in outcome:
                    self.on_notice(step, text)
            self.on_step(step)


# --- a run --------------------------------------------------------------------------------------------------------


def is_done(step: Step) -> bool:
    """Whether the results of a step are on disk."""
    return validation(step.run) is not None and (step.action == "train" or _is_tested(step.run))


def validation(run: Run) -> float | None:
    """Return the best validation metric of a run, or None if it is not trained."""
    if not (run.directory / RESULT).is_file():
        return None
    verify_run(run.directory, RESULT)
    content = read_json(run.directory / RESULT)
    value: float = content["best_metric"]
    return value


def perform(step: Step) -> list[str]:
    """Train a run if necessary, test it if the step is a test, and return the messages of the training run."""
    notices: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # jobs share the processor, and results must not depend on their number
    try:
        if validation(step.run) is None:
            delete(step.run.directory / ERROR, missing_ok=True)
            method_of(step.run.config).complete(step.run.directory, on_notice=notices.append)
        else:  # left over if the process was killed at the very end of the training run
            Checkpoints(step.run.directory / CHECKPOINTS, 1).clear()
        if step.action == "test":
            write_evaluation(step.run.directory, method_of(step.run.config).evaluate(step.run.directory))
        delete(step.run.directory / ERROR, missing_ok=True)  # of an earlier attempt
    except Exception:
        make_directory(step.run.directory)
        write_file(step.run.directory / ERROR, traceback.format_exc())
        raise
    finally:
        torch.set_num_threads(threads)
    return notices


def _is_tested(run: Run) -> bool:
    summary, path = evaluation_files(run.directory)
    return summary.exists() and path.exists() and set(run.config.metrics) <= set(pq.read_schema(path).names)


# --- results ------------------------------------------------------------------------------------------------------


def _write_result(plan: Plan, runs: Sequence[Run], failures: list[results.RunFailure]) -> results.ComparisonResult:
    by_method = {method: [run for run in runs if run.method == method] for method in plan.candidates}
    expected = len(plan.folds) * len(plan.config.seeds)
    tested = {
        method: of_method
        for method, of_method in by_method.items()
        if len(of_method) == expected and all(is_done(Step(run, "test")) for run in of_method)
    }
    schemas = [set(pq.read_schema(run.directory / VALUES).names) for of_method in tested.values() for run in of_method]
    metrics = with_value(plan.config.measured, schemas)
    tables = {
        method: pa.concat_tables(_values(run, metrics) for run in of_method) for method, of_method in tested.items()
    }
    evaluations = [
        results.SplitEvaluation.load(evaluation_files(run.directory)[0]) for of in tested.values() for run in of
    ]
    against = plan.config.against if plan.config.against in tables else None  # it may have failed
    summary = summarise(_outcome_of_tables(plan, tables, metrics), against=against) if tables else Summary([], [])
    result = results.ComparisonResult(
        metrics=metrics,
        seeds=plan.config.seeds,
        folds=plan.folds,
        unit="impressions" if plan.config.stages else "queries",
        methods=[_with_runs(method, plan, tested[method.name]) for method in summary.methods],
        tests=summary.tests,
        incomplete=[method for method in plan.candidates if method not in tested],
        failed=failures,
        against=against,
        verdicts=summary.verdicts,
        pairs=summary.pairs,
        warnings=list(dict.fromkeys(text for one in evaluations for text in one.warnings)),
        metric=plan.validation_metric,
    )
    result.save(plan.out / COMPARISON)
    write_file(plan.out / COMPARISON_CONFIG, dump_absolute(plan.config))
    if tables:
        names = [name for name in next(iter(tables.values())).column_names if not name.startswith(CHANCE)]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables([table.select(names) for table in tables.values()]), sink)
        write_file(plan.out / VALUES, sink.getvalue().to_pybytes())
    return result


def _values(run: Run, metrics: Sequence[str]) -> pa.Table:
    """Return the values of a tested run, one row per query."""
    columns = ["qid", *metrics, *(CHANCE + name for name in metrics)]
    # not pq.read_table: it takes a dot in a name, such as that of a file, for a nested column
    table = pq.ParquetFile(run.directory / VALUES).read(columns=columns).select(columns)
    labels = {"method": run.method, "fold": run.fold, "seed": run.seed}
    for position, (name, value) in enumerate(labels.items()):
        table = table.add_column(position, name, pa.repeat(value, len(table)))
    return table


def _with_runs(method: results.MethodResult, plan: Plan, runs: Sequence[Run]) -> results.MethodResult:
    variant, is_swept = plan.variants[method.name], any(one.point for one in plan.variants.values())
    return replace(
        method,
        of=variant.method if is_swept else None,
        point=variant.point if is_swept else None,
        settings={run.fold: run.settings for run in runs},
        runs=[
            results.MethodRun(run.fold, run.seed, str(run.directory.relative_to(plan.out)), validation(run))
            for run in runs
        ],
    )


def _outcome_of_tables(plan: Plan, tables: Mapping[str, pa.Table], metrics: Sequence[str]) -> Outcome:
    seeds = len(plan.config.seeds)

    def values(table: pa.Table, name: str) -> torch.Tensor:
        return torch.from_numpy(table.column(name).to_numpy().astype(np.float64)).view(seeds, -1)

    first = next(iter(tables.values()))
    lists = Counter(first.column("fold").to_pylist())
    return Outcome(
        values={method: {name: values(table, name) for name in metrics} for method, table in tables.items()},
        chance={
            method: {name: values(table, CHANCE + name)[0] for name in metrics} for method, table in tables.items()
        },
        higher_is_better={name: higher_is_better(name) for name in metrics},
        folds=[lists[fold] // seeds for fold in plan.folds],
    )
