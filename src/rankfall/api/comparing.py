"""``rf.compare`` and ``rf.tune``: several training runs on the same data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._engine import open_engine
from rankfall._errors import checked, stop_at_ctrl_c
from rankfall.api.shared import Progress, issue, override_words, reported, warn, write_figures
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall._config import ConfigLike
    from rankfall.api.shared import EngineName, OnNotice, Overrides, PathLike, ProgressLike
    from rankfall.option_types import Count, Seconds, Seed
    from rankfall.studies.compare import Step
    from rankfall.studies.results import ComparisonResult, RunFailure, SearchResult, TrialResult
    from rankfall.training.run_directory import Step as TrainingStep


@checked
def compare(
    config: ConfigLike,
    out: PathLike,
    *,
    overrides: Overrides = (),
    against: str | None = None,
    jobs: Count | None = None,
    engine: EngineName = "local",
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> ComparisonResult:
    """Train several methods on the same data, and test which are worse than the best one.

    Finished runs in `out` are not repeated, so the same call continues an interrupted comparison. A run that fails does
    not end the comparison; it is in `failed` of the result.

    Args:
        config: Path of a YAML file, a dictionary with its content, or a validated comparison.
        out: Directory of the runs and results.
        overrides: Values that replace those of `config`: ``"key=value"`` strings, or a dictionary by dotted keys.
        against: Test whether each method is better or worse than this one. Default: that of `config`, or the method
            with the best mean.
        jobs: Training runs at the same time. Default: that of `config`, or 1; with Ray one per processor.
        engine: ``"local"`` or ``"ray"``.
        verify: Compare the data and the run with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they, the warnings of the result and failed runs are issued as
            :class:`~rankfall.RankfallWarning`.

    Raises:
        ConfigError: If a run cannot be trained as configured.
        ValueError: If the data do not have the named splits or days, or another process works in `out`.
    """
    from rankfall.studies.comparison_plan import load_comparison

    named = [] if against is None else [f"against={json.dumps(against)}"]
    comparison = load_comparison(config, [*override_words(overrides), *named])
    # after the configurations, whose errors need no torch
    from rankfall.reporting.files import shown_in, write_comparison
    from rankfall.studies.compare import compare_methods

    directory, steps = Path(out), _Steps()
    with verification(verify, on_notice), open_engine(engine) as opened, reported(progress) as report:
        report(Progress("comparing"))

        def on_step(step: Step) -> None:
            steps.done += 1
            report(Progress(f"{step.method}, {step.title}", steps.done, steps.total))

        result = compare_methods(
            comparison,
            directory,
            jobs=jobs,
            engine=opened,
            on_plan=steps.plan,
            on_step=on_step,
            on_notice=lambda step, text: on_notice(f"{step.method}, {step.title}: {text}"),
        )
    write_comparison(result, directory)
    issue([*result.warnings, *failure_texts(result.failed)], on_notice)
    return shown_in(result, directory)


class _Steps:
    """Number of finished steps and of all."""

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None

    def plan(self, total: int) -> None:
        self.total = total


def failure_texts(failures: list[RunFailure]) -> list[str]:
    """Return a sentence for each failed run."""
    return [f"{failure.method}, {failure.run} failed: {failure.message}" for failure in failures]


@checked
def tune(
    config: ConfigLike,
    out: PathLike,
    *,
    overrides: Overrides = (),
    trials: Count | None = None,
    timeout: Seconds | None = None,
    jobs: Count | None = None,
    engine: EngineName = "local",
    seed: Seed = 0,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    stop: Callable[[], object] | None = None,
) -> SearchResult:
    """Search hyperparameters with Optuna by the validation metric.

    The same call continues an interrupted search. ``best.yaml`` in `out` is the configuration of the best trial.

    Args:
        config: Path of a YAML file with the keys ``search`` and ``trials``, or a dictionary with its content.
        out: Directory of the search.
        overrides: Values that replace those of `config`: ``"key=value"`` strings, or a dictionary by dotted keys.
        trials: Number of trials, including earlier ones. Default: that of `config`, or 20.
        timeout: Seconds after which no trial starts. Default: none.
        jobs: Trials at the same time. Default: 1; with Ray one per processor.
        engine: ``"local"`` or ``"ray"``.
        seed: Random seed of the search.
        verify: Compare the data with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they and failed trials are issued as
            :class:`~rankfall.RankfallWarning`.
        stop: Called after each batch of a search with one job; a true value ends it. With it, Ctrl-C is left to the
            caller.

    Raises:
        ConfigError: If the configuration or the space is wrong.
        ValueError: If `out` holds another search or other files.
        KeyboardInterrupt: At Ctrl-C, or if `stop` returned a true value.
    """
    from rankfall.studies.search_space import load_search

    search, directory = load_search(config, override_words(overrides)), Path(out)
    from rankfall.reporting.files import shown_in  # after the configuration, whose errors need no torch
    from rankfall.reporting.inspection import search_chart

    options: dict[str, Any] = {"trials": trials, "timeout": timeout, "seed": seed, "jobs": jobs}
    in_this_process = jobs in (None, 1) and engine == "local"
    with (
        verification(verify, on_notice),
        open_engine(engine) as opened,
        reported(progress) as report,
        stop_at_ctrl_c(stop if in_this_process or stop is not None else lambda: False) as stopping,
    ):
        result = _search(search, directory, report, on_notice, engine=opened, stop=stopping, **options)
    write_figures({"search": search_chart(result, directory.name)}, directory, on_notice)
    failed = [f"trial {trial.trial} failed: {trial.error}" for trial in result.trials if trial.state == "failed"]
    issue([*failed, *(["no trial was completed"] if result.best is None else [])], on_notice)
    return shown_in(result, directory)


def _search(
    search: Any, out: Path, report: Callable[[Progress], object], on_notice: OnNotice, **options: Any
) -> SearchResult:
    from rankfall.reporting.inspection import settings_text, trial_value
    from rankfall.studies.tune import tune
    from rankfall.training.run_directory import Stopped

    steps, status = _Steps(), ""
    report(Progress("searching"))

    def on_plan(before: int, trials: int) -> None:
        steps.done, steps.total = before, trials
        report(Progress("searching", steps.done, steps.total))

    def on_trial(trial: TrialResult) -> None:
        nonlocal status
        steps.done += 1
        status = f"trial {trial.trial} {trial.state} {trial_value(trial)}: {settings_text(trial.settings)}"
        report(Progress("searching", steps.done, steps.total, status))

    def on_step(number: int, step: TrainingStep) -> None:
        share = ((step.epoch - 1) * step.batches + step.batch) / (step.epochs * step.batches)
        where = f"trial {number}, epoch {step.epoch}/{step.epochs}"
        report(Progress(where, steps.done + share, steps.total, status))

    try:
        return tune(
            search,
            out,
            on_plan=on_plan,
            on_trial=on_trial,
            on_step=on_step,
            on_notice=lambda number, text: on_notice(f"trial {number}: {text}"),
            **options,
        )
    except Stopped:
        raise KeyboardInterrupt(f"the same call continues the search in {out}") from None
