"""``rankfall tune``: search settings on validation data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import (
    MAX_NUMBER,
    MAX_SECONDS,
    AsJson,
    Config,
    EngineName,
    EngineOption,
    NoVerify,
    Out,
    Overrides,
    announce,
    finite,
    jobs_option,
    seed_option,
)
from rankfall.commands.terminal import (
    examples,
    interruptible,
    print_error,
    print_json,
    print_message,
    print_result,
    stoppable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.studies.results import SearchResult

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
        typer.Option(
            min=1,
            max=MAX_NUMBER,
            help="Number of trials, including earlier ones.",
            show_default="that of CONFIG, or 20",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, max=MAX_SECONDS, callback=finite, help="Seconds after which no trial starts.", show_default="none"
        ),
    ] = None,
    jobs: Annotated[int | None, jobs_option(show_default="1; with Ray one per processor")] = None,
    engine: EngineOption = EngineName.LOCAL,
    seed: Annotated[
        int, seed_option(help="Random seed of the search; training.seed is that of the training runs.")
    ] = 0,
    no_verify: NoVerify = False,
    as_json: AsJson = False,
) -> None:
    """Search hyperparameters with Optuna (TPE) by the validation metric.

    CONFIG is a training configuration with the additional keys search and trials. Test data are not read. A trial is
    pruned if it is below the median of the others after an epoch. The same command continues an interrupted search;
    several processes can work on one search. best.yaml is the configuration of the best trial. --json prints the
    content of trials.json. The exit code is 1 if no trial was completed.
    """
    announce(engine)
    in_this_process = (jobs or 1) == 1 and engine is EngineName.LOCAL
    with interruptible(lambda: f"the same command continues the search in {out}"), Display() as display:

        def on_signal() -> None:
            if not in_this_process:
                raise KeyboardInterrupt  # processes end, and their trials are continued from their checkpoints
            display.note("stopping after this batch; press Ctrl-C again to stop at once")

        with stoppable(on_signal) as stop:
            result = api.tune(
                config,
                out,
                overrides=overrides or (),
                trials=trials,
                timeout=timeout,
                jobs=jobs,
                engine=engine.value,
                seed=seed,
                verify=not no_verify,
                progress=display.show,
                on_notice=display.note,
                stop=stop,
            )
    if as_json:
        print_json(result.to_json())
    else:
        from rankfall.reporting.inspection import search_blocks
        from rankfall.reporting.terminal import show

        print_result(show(search_blocks(result)))
    files = ("trials.json", "best.yaml", "search.png", "search.svg")
    print_message(f"wrote {', '.join(name for name in files if (out / name).is_file())} to {out}")
    _end(result, out)


def _end(result: SearchResult, out: Path) -> None:
    """Print failed trials and the next command, and exit with code 1 if no trial was completed."""
    from rankfall.reporting.inspection import settings_text

    failed = [trial for trial in result.trials if trial.state == "failed"]
    for trial in failed:
        print_message(f"trial {trial.trial} failed ({settings_text(trial.settings)}): {trial.error}")
    if result.best is None:
        why = f"all {len(failed)} failed" if failed else "none was finished in time"
        print_error(f"{out}: no trial was completed, {why}")
        raise typer.Exit(1)
    print_message(f"next: rankfall train {out / 'best.yaml'} --out RUN")
