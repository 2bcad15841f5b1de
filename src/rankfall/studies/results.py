"""Results of the studies as frozen dataclasses, each with one JSON form.

=====================  ==============================================  =================================
class                  returned by                                     file
=====================  ==============================================  =================================
ComparisonResult       :func:`rankfall.studies.compare.compare_methods`  ``comparison.json``
StreamResult           :func:`rankfall.studies.stream.run_stream.stream_methods`  ``stream.json``
SearchResult           :func:`rankfall.studies.tune.tune`              ``trials.json``
EvaluationSummary      :meth:`rankfall.studies.evaluate.Evaluation.summary`  ``evaluation.json``
=====================  ==============================================  =================================

:mod:`rankfall._config` defines the JSON form.

>>> failure = RunFailure(method="LCRON", run="seed 0", message="the loss became NaN")
>>> failure.to_json()
{'method': 'LCRON', 'run': 'seed 0', 'message': 'the loss became NaN'}
>>> RunFailure.from_json(failure.to_json()) == failure
True
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from rankfall._config import Number, Result, ResultError
from rankfall._tables import Tables
from rankfall.training.cascade_metrics import Estimate, ListFigures, StageFigures
from rankfall.training.config.component_checks import shown_name
from rankfall.training.evaluation import EvaluationSummary

__all__ = [
    "ComparisonResult",
    "DayResult",
    "Estimate",
    "EvaluationSummary",
    "ListFigures",
    "MethodResult",
    "MethodRun",
    "MethodTable",
    "MethodTest",
    "MetricSummary",
    "PairTest",
    "ResultError",
    "RunFailure",
    "SearchResult",
    "Settings",
    "SplitEvaluation",
    "StageFigures",
    "StreamResult",
    "StreamRunSummary",
    "TestFigures",
    "TrialResult",
    "Verdict",
]

Settings = dict[str, Any]  # values by dotted key


# --- shared by comparisons and streams ----------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricSummary(Result):
    """One metric of one method."""

    mean: Number
    """Mean over queries."""
    std: Number
    """Standard deviation over runs (seeds x folds)."""
    chance: Number
    """Mean for constant scores."""
    low: Number
    """Lower end of the 95 % confidence interval of the mean over queries."""
    high: Number
    queries: int
    """Number of queries on which the metric is defined."""
    values: list[Number]
    """Mean of each run: all folds of the first seed, then of the second. NaN if undefined on all queries."""


@dataclass(frozen=True)
class MethodTest(Result):
    """One-sided test over queries whether a method is worse than the best one on a metric, with the weights at hand.

    It says nothing about other seeds, see :class:`Verdict`. The interval belongs to the adjusted p-value: it excludes 0
    exactly if the method is significantly worse.
    """

    metric: str
    method: str
    best: str
    difference: Number
    low: Number
    high: Number
    p_value: Number
    adjusted_p_value: Number
    significantly_worse: bool


@dataclass(frozen=True)
class TestFigures(Result):
    """A two-sided test of the difference to a reference, with its 95 % confidence interval.

    Interval and adjusted p-value are corrected alike: the interval excludes 0 exactly if the p-value is below 5 %.
    """

    __test__ = False  # or pytest would collect it as a test class

    difference: Number
    low: Number
    high: Number
    p_value: Number
    adjusted_p_value: Number
    """Corrected for the number of comparisons (Holm)."""


@dataclass(frozen=True)
class Verdict(Result):
    """What a comparison says about a method and a reference on a metric.

    A verdict is the result of the test over seeds and queries. With fewer than three seeds there is none: "no claim".
    """

    metric: str
    method: str
    against: str
    """The reference: a method that the user named, or the one with the best mean."""
    outcome: Literal["better", "worse", "not distinguishable", "no claim", "reference"]
    """What holds for the method; "reference" for the reference itself, unless there is no claim."""
    over_queries: TestFigures
    """With the weights at hand."""
    over_seeds: TestFigures | None = None
    """On the queries at hand (Welch). None if there are fewer than three seeds."""
    over_both: TestFigures | None = None
    """For other seeds and other queries (mixed model). None if there are fewer than three seeds."""

    @property
    def shown(self) -> TestFigures:
        """The test that tables show: over seeds and queries, or else over queries."""
        return self.over_both or self.over_queries


@dataclass(frozen=True)
class PairTest(Result):
    """Test of a pair of methods on a metric, over seeds and queries, with the 95 % interval of the difference.

    Interval and adjusted p-value are corrected alike, see :class:`TestFigures`.
    """

    metric: str
    first: str
    second: str
    difference: Number
    """Mean of the first minus mean of the second."""
    low: Number
    high: Number
    p_value: Number
    adjusted_p_value: Number
    """Corrected for the number of pairs (Holm)."""


@dataclass(frozen=True)
class MethodRun(Result):
    """A run of a comparison."""

    fold: str
    seed: int
    directory: str
    """Relative to the directory of the comparison."""
    validation: float | None
    """Best validation metric of the run."""


@dataclass(frozen=True)
class MethodResult(Result):
    """One method: its metrics and, in a comparison, its settings and runs."""

    name: str
    metrics: dict[str, MetricSummary]
    settings: dict[str, Settings] | None = None
    """Settings chosen on validation data, by fold."""
    runs: list[MethodRun] | None = None
    of: str | None = None
    """The method of which this is a point, if the comparison has a sweep."""
    point: Settings | None = None
    """Its values of the swept keys; empty for a method without a sweep."""


@dataclass(frozen=True)
class RunFailure(Result):
    """A run that failed, and why."""

    method: str
    run: str
    message: str


# --- one class per study ------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ComparisonResult(Tables, Result):
    """Result of a comparison (``comparison.json``)."""

    metrics: list[str]
    seeds: list[int]
    folds: dict[str, dict[str, Any]]
    """Splits of each fold; ``{"all": {}}`` without folds."""
    unit: str = "queries"
    methods: list[MethodResult] = field(default_factory=list)
    tests: list[MethodTest] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    """Methods of which a run is missing."""
    failed: list[RunFailure] = field(default_factory=list)
    against: str | None = None
    """The method that the user named as the reference of the verdicts."""
    verdicts: list[Verdict] = field(default_factory=list)
    pairs: list[PairTest] = field(default_factory=list)
    """Tests of all pairs of methods; none with fewer than three seeds."""
    warnings: list[str] = field(default_factory=list)
    """What a reader of the figures has to know."""
    metric: str | None = None
    """The metric that chose settings and weights on validation data (``training.metric``)."""

    @property
    def swept(self) -> list[str]:
        """The swept keys, or names of named points; none without a sweep."""
        return list(dict.fromkeys(key for method in self.methods for key in method.point or ()))

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `methods` (method and metric), `runs`, `pairs`, `failed` and `sweep`.

        The rows of `sweep` are those of `methods` with the method that was swept and a column for each swept key.
        """
        swept = {
            one.name: {"method": one.of} | {key: (one.point or {}).get(key) for key in self.swept}
            for one in self.methods
        }
        rows = _method_rows(self.methods, self.metrics, self.verdicts)
        return {
            "methods": rows,
            "sweep": [{**row, **swept[row["method"]]} for row in rows] if self.swept else [],
            "runs": [_run_row(method, run) for method in self.methods for run in method.runs or ()],
            "pairs": [pair.to_json() | {"metric": shown_name(pair.metric)} for pair in self.pairs],
            "failed": [failure.to_json() for failure in self.failed],
        }


def _method_rows(methods: list[MethodResult], metrics: list[str], verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """Return one row per method and metric, with the verdict and the test that it comes from."""
    known = {(verdict.method, verdict.metric): verdict for verdict in verdicts}
    rows = []
    for method in methods:
        for name in metrics:
            if (found := method.metrics.get(name)) is not None:
                verdict = known.get((method.name, name))
                rows.append(
                    {
                        "method": method.name,
                        "metric": shown_name(name),
                        **{key: getattr(found, key) for key in ("mean", "std", "chance", "low", "high", "queries")},
                        **{key: getattr(verdict, key, None) for key in ("outcome", "against")},
                        **{
                            key: getattr(verdict and verdict.shown, key, None)
                            for key in ("difference", "adjusted_p_value")
                        },
                    }
                )
    return rows


def _run_row(method: MethodResult, run: MethodRun) -> dict[str, Any]:
    return {
        "method": method.name,
        **{key: getattr(run, key) for key in ("fold", "seed", "validation")},
        "settings": (method.settings or {}).get(run.fold, {}),
        "directory": run.directory,
    }


@dataclass(frozen=True)
class DayResult(Result):
    """Result of one day of a stream, measured before the day was trained on."""

    day: str
    impressions: int
    methods: list[MethodResult]
    tests: list[MethodTest]
    verdicts: list[Verdict] = field(default_factory=list)
    mean_length: float | None = None
    """Mean number of items of a list."""
    mean_relevant: float | None = None
    """Mean number of relevant items of a list."""


@dataclass(frozen=True)
class StreamRunSummary(Result):
    """A run of a stream."""

    method: str
    seed: int
    directory: str
    """Relative to the directory of the stream."""
    days: int
    """Number of days that the run has been trained on."""
    seconds: float


@dataclass(frozen=True, repr=False)
class StreamResult(Tables, Result):
    """Result of a stream (``stream.json``)."""

    metric: str
    """Metric of the curves and of the table of days."""
    metrics: list[str]
    seeds: list[int]
    learned: list[str]
    """Days that have been trained on, in order."""
    unit: str
    """Unit of `methods` and `tests`: days, or impressions while only one day has been measured."""
    methods: list[MethodResult]
    tests: list[MethodTest]
    days: list[DayResult]
    runs: list[StreamRunSummary]
    incomplete: list[str]
    failed: list[RunFailure]
    refused: list[RunFailure] = field(default_factory=list)
    """Steps after a day, such as exporting a bundle, that failed."""
    verdicts: list[Verdict] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What a reader of the figures has to know."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `methods` (method and metric), `days` (day, method and metric), `runs` and `failed`."""
        return {
            "methods": _method_rows(self.methods, self.metrics, self.verdicts),
            "days": [
                {"day": day.day, "impressions": day.impressions, **row}
                for day in self.days
                for row in _method_rows(day.methods, self.metrics, day.verdicts)
            ],
            "runs": [run.to_json() for run in self.runs],
            "failed": [failure.to_json() for failure in (*self.failed, *self.refused)],
        }


MethodTable: TypeAlias = ComparisonResult | StreamResult
"""Methods by metrics, with tests and verdicts."""


@dataclass(frozen=True)
class TrialResult(Result):
    """One trial of a search."""

    trial: int
    state: str
    """complete, pruned, failed or running."""
    value: float | None
    settings: Settings
    best_epoch: int | None
    seconds: float | None
    error: str | None
    directory: str
    """Relative to the directory of the search."""


@dataclass(frozen=True, repr=False)
class SearchResult(Tables, Result):
    """Result of a search (``trials.json``)."""

    metric: str
    higher_is_better: bool
    search: dict[str, Any]
    """The space: values or a range by dotted key."""
    best: TrialResult | None
    trials: list[TrialResult]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `trials`: one per trial, with one column per key of the search."""
        return {
            "trials": [
                {
                    **{key: getattr(trial, key) for key in ("trial", "state", "value")},
                    **{key: trial.settings.get(key) for key in self.search},
                    **{key: getattr(trial, key) for key in ("best_epoch", "seconds", "error", "directory")},
                }
                for trial in self.trials
            ]
        }


@dataclass(frozen=True, repr=False)
class SplitEvaluation(EvaluationSummary):
    """An evaluation of one split, as a run directory stores it (``evaluation.json``)."""

    split: str = "test"
    overrides: list[str] | None = None
    """What was measured differently from the configuration of the run; such results are never in a run directory."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, the split first."""
        return {"split": self.split, **super().to_json()}
