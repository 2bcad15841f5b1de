"""``rf.train`` and its result."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._errors import RankfallError, checked, stop_at_ctrl_c
from rankfall._tables import StoredTables
from rankfall.api import exporting, measuring
from rankfall.api.shared import Progress, issue, override_words, reported, warn
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall._config import ConfigLike
    from rankfall.api.shared import EngineName, OnNotice, Overrides, PathLike, ProgressLike
    from rankfall.option_types import Count, Seconds, Seed
    from rankfall.studies.diagnosis.diagnosis_result import Diagnosis
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
        return measuring.evaluate(self, split, **options)

    def diagnose(self, split: str = "test", **options: Any) -> Diagnosis:
        """Find out where and why the cascade loses relevant items; see :func:`rankfall.diagnose`."""
        return measuring.diagnose(self, split, **options)

    def plan(self, split: str = "test", **options: Any) -> PlanResult:
        """Find the quotas that keep most for their cost; see :func:`rankfall.plan`."""
        return measuring.plan(self, split, **options)

    def export(self, out: PathLike, **options: Any) -> Any:
        """Write the run as a bundle that can be served; see :func:`rankfall.export`."""
        return exporting.export(self, out, **options)

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
