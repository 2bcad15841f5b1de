"""``rankfall tune``: search settings on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.options import (
    AsJson,
    Config,
    EngineName,
    EngineOption,
    Out,
    Overrides,
    jobs_option,
    opened_engine,
    seed_option,
)
from rankfall.commands.terminal import (
    examples,
    interruptible,
    print_error,
    print_json,
    print_message,
    print_note,
    print_result,
    progress,
    stoppable,
)
from rankfall.commands.write_figures import write_figures

if TYPE_CHECKING:
    from rankfall.studies.results import SearchResult, TrialResult
    from rankfall.studies.search_space import Search
    from rankfall.training.run_directory import Step

EXAMPLES = examples(
    "rankfall tune search.yaml --out searches/first",
    "rankfall tune search.yaml --out searches/first --trials 100 --jobs 2",
    "rankfall tune search.yaml --out searches/first --trials 100 --engine ray",
    "rankfall tune search.yaml training.epochs=3 --out searches/short --timeout 3600",
    "rankfall train searches/first/best.yaml --out runs/tuned",
)


def tune(
    config: Config,
    overrides: Overrides = None,
    *,
    out: Out,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Number of trials, including earlier ones.", show_default="that of CONFIG, or 20"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which no trial starts.", show_default="none")
    ] = None,
    jobs: Annotated[int | None, jobs_option(show_default="1; with Ray one per processor")] = None,
    engine: EngineOption = EngineName.LOCAL,
    seed: Annotated[
        int, seed_option(help="Random seed of the search; training.seed is that of the training runs.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Search hyperparameters with Optuna (TPE) by the validation metric.

    CONFIG is a training configuration with the additional keys search and trials. Test data are not read. A trial is
    pruned if it is below the median of the others after an epoch. The same command continues an interrupted search;
    several processes can work on one search. best.yaml is the configuration of the best trial. --json prints the
    content of trials.json. The exit code is 1 if no trial was completed.
    """
    from rankfall.reporting.search_table import terminal_search
    from rankfall.studies.search_space import load_search

    search = load_search(config, overrides or [])
    result = _tune(search, out, jobs, engine, trials=trials, timeout=timeout, seed=seed)
    if as_json:
        print_json(result.to_json())
    else:
        print_result(terminal_search(result))
    _draw(result, out)
    _end(result, out)


def _tune(search: Search, out: Path, jobs: int | None, engine: EngineName, **options: Any) -> SearchResult:
    from rankfall.reporting.search_table import settings_text, trial_value
    from rankfall.studies.tune import tune
    from rankfall.training.run_directory import Stopped

    with (
        interruptible(lambda: f"the same command continues the search in {out}"),
        opened_engine(engine) as opened,
        progress() as bar,
    ):
        task = bar.add_task("searching")
        done = 0

        def plan(before: int, trials: int) -> None:
            nonlocal done
            done = before
            bar.update(task, completed=done, total=trials)

        def end_trial(trial: TrialResult) -> None:
            nonlocal done
            done += 1
            outcome = f"trial {trial.trial} {trial.state} {trial_value(trial)}"
            bar.update(task, completed=done, status=f"{outcome}: {settings_text(trial.settings)}")

        def update(number: int, step: Step) -> None:
            share = ((step.epoch - 1) * step.batches + step.batch) / (step.epochs * step.batches)
            where = f"trial {number}, epoch {step.epoch}/{step.epochs}"
            bar.update(task, completed=done + share, description=where)

        def on_signal() -> None:
            if (jobs or 1) > 1 or engine is not EngineName.LOCAL:
                raise KeyboardInterrupt  # processes end, and their trials are continued from their checkpoints
            print_note(bar, "stopping after this batch; press Ctrl-C again to stop at once")

        with stoppable(on_signal) as stop:
            try:
                return tune(
                    search,
                    out,
                    jobs=jobs,
                    engine=opened,
                    on_plan=plan,
                    on_trial=end_trial,
                    on_step=update,
                    on_notice=lambda number, text: print_note(bar, f"trial {number}: {text}"),
                    stop=stop,
                    **options,
                )
            except Stopped:
                raise KeyboardInterrupt from None


def _draw(result: SearchResult, out: Path) -> None:
    """Write the figure of the search, and print which files were written."""
    from rankfall.reporting.search_table import search_figure

    files = [out / "trials.json", *([out / "best.yaml"] if result.best else [])]
    figure = search_figure(result, out.name)
    if figure is not None:
        files += write_figures({"search": figure}, out)
    print_message(f"wrote {', '.join(file.name for file in files)} to {out}")


def _end(result: SearchResult, out: Path) -> None:
    """Print failed trials and the next command, and exit with code 1 if no trial was completed."""
    from rankfall.reporting.search_table import settings_text

    failed = [trial for trial in result.trials if trial.state == "failed"]
    for trial in failed:
        print_message(f"trial {trial.trial} failed ({settings_text(trial.settings)}): {trial.error}")
    if result.best is None:
        why = f"all {len(failed)} failed" if failed else "none was finished in time"
        print_error(f"{out}: no trial was completed, {why}")
        raise typer.Exit(1)
    print_message(f"next: rankfall train {out / 'best.yaml'} --out RUN")
