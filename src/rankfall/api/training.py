"""``rf.train``, ``rf.evaluate``, ``rf.diagnose``, ``rf.plan`` and ``rf.report``: runs, their figures and pages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankfall._errors import RankfallError, checked, stop_at_ctrl_c
from rankfall._tables import StoredTables
from rankfall.api import serving, shared
from rankfall.api.shared import Progress, issue, override_words, reported, warn
from rankfall.storage.disk import make_directory
from rankfall.storage.files import checksum
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall._config import ConfigLike
    from rankfall.api.shared import EngineName, OnNotice, Overrides, PathLike, ProgressLike, RunLike
    from rankfall.option_types import Count, Seconds, Seed
    from rankfall.studies.diagnosis.diagnosis_result import Diagnosis
    from rankfall.studies.plan.plan_quotas import Costs
    from rankfall.studies.plan.plan_result import PlanResult
    from rankfall.studies.results import SplitEvaluation
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.run_directory import Step, TrainResult


TIMEOUT = 600.0  # seconds; longer than the first process takes to write a checkpoint


@dataclass(frozen=True, repr=False)
class TrainedRun(StoredTables):
    """A finished training run.

    Attributes:
        config: The validated configuration, with all defaults.
        result: Best validation metric, its epoch, and the cost of training.
        metric: Name of the validation metric.
        warnings: What a reader of the validation figures has to know.
    """

    config: TrainConfig
    result: TrainResult
    metric: str
    warnings: list[str] = field(default_factory=list)
    _directory: Path | None = None

    @classmethod
    @checked
    def open(cls, directory: PathLike, *, trust: bool = False) -> TrainedRun:
        """Return a finished run from its directory.

        Args:
            directory: Run directory.
            trust: Import code that the stored configuration names.

        Raises:
            ValueError: If the directory has no finished run, or its configuration names code that is not trusted.
        """
        from rankfall.training.run_directory import is_finished, read_config, read_result

        path = Path(directory)
        config = read_config(path, trust=trust)
        if not is_finished(path):
            raise RankfallError(f"{path} is a run that did not finish; continue it with resume=True")
        return cls(config, read_result(path), config.training.metric, [], path)

    def evaluate(self, split: str = "test", **options: Any) -> SplitEvaluation:
        """Evaluate the run; see :func:`rankfall.evaluate`."""
        return evaluate(self, split, **options)

    def diagnose(self, split: str = "test", **options: Any) -> Diagnosis:
        """Find out where and why the cascade loses relevant items; see :func:`rankfall.diagnose`."""
        return diagnose(self, split, **options)

    def plan(self, split: str = "test", **options: Any) -> PlanResult:
        """Find the quotas that keep most for their cost; see :func:`rankfall.plan`."""
        return plan(self, split, **options)

    def export(self, out: PathLike, **options: Any) -> Any:
        """Write the run as a bundle that can be served; see :func:`rankfall.export`."""
        return serving.export(self, out, **options)

    def to_json(self) -> dict[str, Any]:
        """Return what ``rankfall train --json`` prints."""
        return {**asdict(self.result), "metric": self.metric, "run": str(self.directory), "warnings": self.warnings}

    def best_validation(self) -> dict[str, float]:
        """Return all metrics of the best validation."""
        from rankfall.training.run_directory import read_lines

        lines = read_lines(self.directory)
        best: dict[str, Any] = next((line for line in lines if line["epoch"] == self.result.best_epoch), {})
        return {**best.get("validation", {}), self.metric: self.result.best_metric}

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `epochs`, one per epoch: losses, metrics on validation data, times."""
        from rankfall._config import leaves
        from rankfall.training.run_directory import read_lines

        lines = [leaves(line, separator="/") for line in read_lines(self.directory)]
        names = dict.fromkeys(name for line in lines for name in line)
        return {"epochs": [{name: line.get(name) for name in names} for line in lines]}


@checked
def train(
    config: ConfigLike,
    out: PathLike,
    *,
    overrides: Overrides = (),
    seed: Seed | None = None,
    force: bool = False,
    resume: bool = False,
    engine: EngineName = "local",
    workers: Count | None = None,
    timeout: Seconds = TIMEOUT,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    stop: Callable[[], object] | None = None,
) -> TrainedRun:
    """Train a cascade on a log, or a ranker on prepared lists, and write a run directory.

    The same configuration and data give the same weights, also after an interruption. Ctrl-C ends the run after the
    current batch with a checkpoint and raises KeyboardInterrupt; ``resume=True`` continues it. Under torchrun, all
    processes call this function with the same arguments.

    Args:
        config: Path of a YAML file, a dictionary with its content, or a validated configuration.
        out: Run directory.
        overrides: Values that replace those of `config`: strings such as ``"loss.tau=0.5"``, or a dictionary by dotted
            keys.
        seed: Short for the override ``training.seed``.
        force: Replace a run in `out`.
        resume: Continue a run in `out`.
        engine: ``"local"`` trains in this process, ``"ray"`` in several processes that Ray starts.
        workers: Number of processes that Ray starts. Default: one per processor.
        timeout: Seconds that processes wait for each other under torchrun or Ray.
        verify: Compare the data with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress` after each batch.
        on_notice: Receives notices. Default: they are issued as :class:`~rankfall.RankfallWarning`.
        stop: Called after each batch; a true value ends the run. With it, Ctrl-C is left to the caller.

    Raises:
        ConfigError: If the configuration is wrong, or does not fit the data or the run in `out`.
        TrainingError: If training cannot continue, for example because the loss became NaN.
        Stopped: If `stop` returned a true value. The run can be resumed.
        KeyboardInterrupt: At Ctrl-C. The run can be resumed.
        ValueError: If arguments exclude each other, or `out` holds something else.
    """
    if force and resume:
        raise RankfallError("found with `resume`; a run is either replaced or continued", "force")
    if workers is not None and engine != "ray":
        raise RankfallError(f"found {workers} with the engine {engine}, expected the engine ray", "workers")
    if engine == "ray" and "WORLD_SIZE" in os.environ:
        raise RankfallError("processes are started either by torchrun or by Ray", "engine")
    from rankfall.training.config.load_config import load_config

    words = [*override_words(overrides), *([] if seed is None else [f"training.seed={seed}"])]
    read: Callable[[], TrainConfig] = partial(load_config, config, words)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # several processes read it together, which needs torch
        settings = read()
        read = lambda: settings  # noqa: E731
    work = partial(_train_by_ray, workers=workers) if engine == "ray" else _train_here
    from rankfall.training.run_directory import Stopped

    first = os.environ.get("RANK", "0") == "0"
    options: dict[str, Any] = {"force": force, "resume": resume, "timeout": timeout, "on_notice": on_notice}
    with (
        stop_at_ctrl_c(stop) as stopping,
        verification(verify, on_notice if first else _ignore),
        reported(progress if first else False) as report,
    ):
        try:
            run, first = work(read, Path(out), report, stop=stopping, **options)
        except Stopped as stopped:
            if stop is not None:
                raise
            raise KeyboardInterrupt(str(stopped)) from None
    if first:
        issue(run.warnings, on_notice)
    return run


def _ignore(text: str) -> None:
    """Receive the notes of processes other than the first, which notes the same."""


def _train_here(
    read: Callable[[], TrainConfig],
    out: Path,
    report: Callable[[Progress], object],
    *,
    timeout: float,
    force: bool,
    **options: Any,
) -> tuple[TrainedRun, bool]:
    """Return the run, and whether this is the process that reports it."""
    report(Progress("loading torch"))
    from rankfall.training.distributed.group import is_first_start, joined
    from rankfall.training.methods import train
    from rankfall.training.run_directory import mark_for_replacement

    if force and is_first_start():
        mark_for_replacement(out)
    with joined(timeout) as group:
        report(Progress("opening the data"))
        with group.together():
            settings = read()
        progress = _step_report(report, settings)
        result = train(settings, out, group=group, progress=progress, force=force, **options)
        warnings = _warnings(settings, report) if group.first else []
    return TrainedRun(settings, result, settings.training.metric, warnings, out), group.first


def _train_by_ray(
    read: Callable[[], TrainConfig], out: Path, report: Callable[[Progress], object], **options: Any
) -> tuple[TrainedRun, bool]:
    from rankfall._engine import open_ray
    from rankfall.training.distributed.ray_backend import train_by_ray

    settings = read()
    with open_ray() as ray:
        report(Progress("opening the data"))
        result = train_by_ray(settings, out, ray, progress=_step_report(report, settings), **options)
        warnings = _warnings(settings, report)
    return TrainedRun(settings, result, settings.training.metric, warnings, out), True


def _warnings(settings: TrainConfig, report: Callable[[Progress], object]) -> list[str]:
    from rankfall.training.methods import method_of

    report(Progress("counting the items of the log"))
    return method_of(settings).validation_warnings()


# --- progress -----------------------------------------------------------------------------------------------------


def _step_report(report: Callable[[Progress], object], settings: TrainConfig) -> Callable[[Step], None]:
    """Return a function that reports the steps of a training run."""
    from rankfall.training.methods import method_of

    metric, unit = settings.training.metric, method_of(settings).unit
    stages = [stage.name for stage in getattr(settings, "stages", [])]

    def on_step(step: Step) -> None:
        doing = "validating" if step.batch == step.batches else f"{step.per_second:,.0f} {unit}/s"
        report(
            Progress(
                f"epoch {step.epoch}/{step.epochs}, {doing}",
                (step.epoch - 1) * step.batches + step.batch,
                step.epochs * step.batches,
                step_status(step, metric, stages),
            )
        )

    return on_step


def step_status(step: Step, metric: str, stages: Sequence[str] = ()) -> str:
    """Return the loss and its terms, with the names of the stages, and the metrics of the last validation."""
    names = {f"stage{number}": name for number, name in enumerate(stages, 1)}
    terms = {name: name.partition("/") for name in step.parts}
    parts = " + ".join(
        f"{names.get(stage, stage)}{slash}{term} {step.parts[name]:.4f}" for name, (stage, slash, term) in terms.items()
    )
    if len(step.parts) > 1:
        parts = f"loss {sum(step.parts.values()):.4f} = {parts}"
    if not step.validation:
        return parts
    return f"{parts}\nvalidation: {', '.join(validation_texts(step.validation, metric))}"


def validation_texts(values: Mapping[str, float], metric: str) -> list[str]:
    """Return the validation metric and the recall of every stage."""
    from rankfall.training.config.component_checks import shown_name

    shown = [metric, *(name for name in values if name.endswith("/recall") and name != metric)]
    return [f"{shown_name(name)} {values[name]:.4f}" for name in shown]


@checked
def evaluate(
    run: RunLike,
    split: str = "test",
    *,
    overrides: Overrides = (),
    data: PathLike | None = None,
    out: PathLike | None = None,
    trust: bool = False,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = shared.warn,
) -> SplitEvaluation:
    """Evaluate the best weights of a run.

    The result of a run's own configuration and data is written to its directory, with the page ``report.html``. A
    result with `overrides` or other data is written to `out`, or not at all.

    Args:
        run: Run directory, or what :func:`rankfall.train` returned.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a split or day.
        overrides: What is measured differently, such as ``{"data.length": "all"}``: a dictionary by dotted keys, or
            ``"key=value"`` strings.
        data: Path of the prepared data, if it was moved. Default: the path used for training.
        out: Directory of the result. Default: the run directory, or none.
        trust: Import code that the stored configuration names.
        verify: Compare the data and the run with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they are issued as :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If there is no run, or the split, the data or an override do not fit it.
    """
    from rankfall.reporting.files import shown_in, write_evaluation_report, write_report
    from rankfall.studies.evaluate import evaluate_run, result_directory
    from rankfall.studies.results import SplitEvaluation
    from rankfall.training.run_directory import CONFIG, RESULT

    path, words = shared.run_directory(run), shared.override_words(overrides)
    moved, target = None if data is None else str(data), shared.optional_path(out)
    if (path / CONFIG).exists() and not (path / RESULT).exists():
        on_notice(f"the training run {path} did not finish; its best weights so far are evaluated")
    with verification(verify, on_notice), shared.reported(progress) as report:
        report(shared.Progress("evaluating"))
        evaluation = evaluate_run(
            path,
            split,
            data=moved,
            overrides=words,
            out=target,
            trust=trust,
            on_impressions=shared.counter(report, "evaluating"),
            on_notice=on_notice,
        )
        directory = result_directory(path, data=moved, overrides=words, out=target)
        if directory == path:
            write_report(path, trust=trust)
        elif directory is not None:
            write_evaluation_report(path, directory, trust=trust)
        summary = SplitEvaluation(**vars(evaluation.summary()), split=split, overrides=words or None)
    shared.issue(summary.warnings, on_notice)
    return shown_in(summary, directory)


@checked
def diagnose(
    run: RunLike,
    split: str = "test",
    *,
    overrides: Overrides = (),
    data: PathLike | None = None,
    out: PathLike | None = None,
    trust: bool = False,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = shared.warn,
) -> Diagnosis:
    """Find out where and why a cascade loses relevant items.

    The result is written as ``diagnosis.json`` to the directory that :func:`rankfall.evaluate` writes to.

    Args:
        run: Run directory of a cascade, or what :func:`rankfall.train` returned.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        overrides: What is measured differently, as for :func:`rankfall.evaluate`.
        data: Path of the prepared data, if it was moved. Default: the path used for training.
        out: Directory of the result. Default: the run directory, or none.
        trust: Import code that the stored configuration names.
        verify: Compare the data and the run with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they are issued as :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If it is not the run of a cascade, or no request has a relevant item.
    """
    from rankfall.reporting.files import shown_in
    from rankfall.studies.diagnosis.diagnose import diagnose_run, diagnosis_file
    from rankfall.studies.evaluate import result_directory
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.run_directory import read_config_as

    path, words = shared.run_directory(run), shared.override_words(overrides)
    moved = None if data is None else str(data)
    with verification(verify, on_notice), shared.reported(progress) as report:
        read_config_as(CascadeConfig, path, trust=trust)  # refuses the run of a ranker before anything else
        directory = result_directory(path, data=moved, overrides=words, out=shared.optional_path(out))
        report(shared.Progress("scoring"))
        diagnosis = diagnose_run(
            path,
            split,
            data=moved,
            overrides=words,
            trust=trust,
            on_impressions=shared.counter(report, "scoring"),
            on_notice=on_notice,
            on_step=lambda name, number, of: shared.stepper(report)(f"diagnosing: {name}", number, of),
        )
    if directory is not None:
        make_directory(directory)
        diagnosis.save(diagnosis_file(directory, split))
    return shown_in(diagnosis, directory)


@checked
def plan(
    run: RunLike,
    split: str = "test",
    *,
    costs: Mapping[str, str | float] | Sequence[str] | None = None,
    bundle: PathLike | None = None,
    budget: str | float | None = None,
    recall: float | None = None,
    metric: Literal["joint_recall", "joint_value"] = "joint_recall",
    grid: Mapping[str, Sequence[int]] | Sequence[str] | None = None,
    overrides: Overrides = (),
    data: PathLike | None = None,
    out: PathLike | None = None,
    trust: bool = False,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = shared.warn,
) -> PlanResult:
    """Find the quotas of a cascade that keep most of the relevant items for their cost.

    Args:
        run: Run directory of a cascade, or what :func:`rankfall.train` returned.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        costs: Cost of an item that enters a stage, by stage: a number, or a text such as ``"8us"`` or ``"0.2ms+8us"``
            with a cost per request. Default: costs of the kinds of models, with a notice.
        bundle: Measure the costs as CPU time on this bundle of the run.
        budget: Largest cost of a request, such as 5ms: find the best quotas. Default: the cost of the current quotas.
        recall: Smallest value of the metric: find the cheapest quotas.
        metric: The metric to plan for.
        grid: Quotas to try, by stage. Default: from the last quota to four times the current one.
        overrides: What is measured differently, as for :func:`rankfall.evaluate`.
        data: Path of the prepared data, if it was moved. Default: the path used for training.
        out: Directory of ``plan.json`` and of a page. Default: the run directory.
        trust: Import code that the stored configuration names.
        verify: Compare the data and the run with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they are issued as :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If it is not the run of a cascade, or costs, budget, recall and grid do not fit it.
    """
    from rankfall.reporting.files import shown_in, write_evaluation_report, write_report
    from rankfall.studies.evaluate import evaluation_files
    from rankfall.studies.plan import plan_quotas
    from rankfall.studies.plan.quota_search import parse_grid
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.run_directory import read_config_as

    if costs and bundle is not None:
        raise RankfallError("found with `costs`, expected one of them", "bundle")
    if budget is not None and recall is not None:
        raise RankfallError("found with `budget`, expected one of them", "recall")
    if recall is not None and not 0 < recall <= 1:
        raise RankfallError(f"found {recall:g}, expected more than 0 and at most 1", "recall")
    if metric not in plan_quotas.METRICS:
        raise RankfallError(f"found {metric!r}, expected one of {', '.join(plan_quotas.METRICS)}", "metric")
    path, words, directory = shared.run_directory(run), shared.override_words(overrides), shared.optional_path(out)
    with verification(verify, on_notice), shared.reported(progress) as report:
        current = plan_quotas.current_quotas(path, words, trust=trust)
        tried = parse_grid(_stage_words(grid), list(current))
        if costs:
            priced = plan_quotas.Costs(*plan_quotas.parse_costs(_stage_words(costs), list(current)), "given")
        elif bundle is not None:
            priced = _measured_costs(path, Path(bundle), current, tried, report, on_notice)
        else:
            stages = read_config_as(CascadeConfig, path, trust=trust).stages
            priced = plan_quotas.Costs.defaults({stage.name: str(stage.model.get("kind")) for stage in stages})
        limit = None if budget is None else plan_quotas.parse_budget(str(budget), priced.unit)
        report(shared.Progress("scoring"))
        result = plan_quotas.plan_run(
            path,
            split,
            costs=priced,
            target=plan_quotas.Target(limit, recall),
            metric=metric,
            grid=tried,
            data=None if data is None else str(data),
            overrides=words,
            out=directory,
            trust=trust,
            on_impressions=shared.counter(report, "scoring"),
            on_notice=on_notice,
            on_step=shared.stepper(report),
        )
        if directory is None:
            write_report(path, trust=trust)
        elif evaluation_files(directory)[0].is_file():
            write_evaluation_report(path, directory, trust=trust)
    shared.issue(result.warnings, on_notice)
    return shown_in(result, directory or path)


def _stage_words(given: Mapping[str, Any] | Sequence[str] | None) -> list[str]:
    """Return values of stages as strings ``STAGE=VALUE``."""
    if not isinstance(given, Mapping):
        return list(given or ())
    texts = {
        stage: value if isinstance(value, str | float | int) else ",".join(map(str, value))
        for stage, value in given.items()
    }
    return [f"{stage}={text}" for stage, text in texts.items()]


def _measured_costs(
    run: Path,
    path: Path,
    current: Mapping[str, int],
    grid: Mapping[str, Sequence[int]],
    report: Callable[[shared.Progress], object],
    on_notice: OnNotice,
) -> Costs:
    from rankfall.studies.plan.plan_quotas import Costs, largest_quotas

    with shared.requires_extra("plan --bundle", "serve"):
        from rankfall.benchmarks.serve import requests_like_examples
        from rankfall.serving import Bundle
        from rankfall.studies.plan.stage_costs import REQUESTS, measure_costs
    bundle, stages = Bundle.load(path), list(current)
    if bundle.names != stages:
        raise RankfallError(
            f"bundle: found the stages {', '.join(bundle.names)} in {path}, expected {', '.join(stages)} as in the run"
        )
    source = bundle.manifest["source"]
    if source.get("checkpoint") != checksum(run / "checkpoints" / "best.safetensors"):
        on_notice(f"{path} was exported from other weights (run {source.get('run')}); its costs are measured anyway")
    first, *others = largest_quotas(current, grid)
    measured = measure_costs(
        bundle,
        requests_like_examples(bundle, REQUESTS),
        [first, first, *others[:-1]],
        on_step=shared.stepper(report),
    )
    return Costs(measured, "s", "measured")


@checked
def report(
    directory: RunLike,
    out: PathLike | None = None,
    *,
    figures: PathLike | None = None,
    trust: bool = False,
    verify: bool = True,
    on_notice: OnNotice = shared.warn,
) -> Path:
    """Write the page of a run, a comparison or a stream as one HTML file, and return its path.

    Args:
        directory: Directory of the run, the comparison or the stream, or what :func:`rankfall.train` returned.
        out: File to write. Default: ``report.html`` in the directory.
        figures: Also write every figure of the page to this directory, as SVG and PNG.
        trust: Import code that the stored configuration names.
        verify: Compare the files of a run with their checksums.
        on_notice: Receives notices. Default: they are issued as :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If the directory has no result, or `out` is another file.
    """
    from rankfall.reporting.files import write_report

    path = shared.run_directory(directory)
    with verification(verify, on_notice):
        page = write_report(path, shared.optional_path(out), trust=trust)
        if figures is not None:
            page_figures(path, Path(figures), trust=trust, on_notice=on_notice)
    return page


def page_figures(directory: Path, out: Path, *, trust: bool = False, on_notice: OnNotice = shared.warn) -> list[Path]:
    """Write all figures of the page of a run, a comparison or a stream, and return their files."""
    from rankfall.reporting.files import figures_of

    return shared.write_figures(figures_of(directory, trust=trust), out, on_notice)
