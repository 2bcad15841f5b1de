"""``rankfall tune``: search settings on validation data."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.engine_option import EngineName, EngineOption, opened
from rankfall.commands.pictures import draw
from rankfall.commands.terminal import (
    Folded,
    examples,
    fail,
    interruptible,
    note,
    progress,
    say,
    show,
    show_json,
    stoppable,
)
from rankfall.commands.train import Overrides  # noqa: TC001 (typer reads the annotations)

if TYPE_CHECKING:
    from rich.table import Table

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
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="YAML: a training configuration with search and trials.", show_default=False
        ),
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option(help="Directory; a search in it goes on.", show_default=False)],
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="In all, with those of before.", show_default="the file's, or 20"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which no trial begins.", show_default="none")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Trials at the same time.", show_default="1; with Ray as many as processors"),
    ] = None,
    engine: EngineOption = EngineName.LOCAL,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws; training.seed is that of the trainings.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of trials.json.")] = False,
) -> None:
    """Try settings, learn from the trials which others to try, and keep the best by the validation metric.

    Test data are not read. A trial that is worse after an epoch than half of the others were is ended early. The same
    command goes on with a search that was interrupted; several at the same time work on one search. best.yaml
    is the configuration of the best trial. Exit code 1 if no trial came to an end.
    """
    from rankfall.studies.search_space import load_search

    search = load_search(config, overrides or [])
    result = _tune(search, out, jobs, engine, trials=trials, timeout=timeout, seed=seed)
    if as_json:
        show_json(result)
    else:
        show(Folded(_table(result)))
    _draw(result, out)
    _end(result, out)


def _tune(search: Search, out: Path, jobs: int | None, engine: EngineName, **options: Any) -> dict[str, Any]:
    from rankfall.studies.tune import tune
    from rankfall.training.run_directory import Stopped

    with (
        interruptible(lambda: f"the same command goes on with the search in {out}"),
        opened(engine) as found,
        progress() as bar,
    ):
        task = bar.add_task("searching")
        done = 0

        def plan(before: int, trials: int) -> None:
            nonlocal done
            done = before
            bar.update(task, completed=done, total=trials)

        def ended(trial: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            reached = f"trial {trial['trial']} {trial['state']} {_figure(trial['value'])}"
            bar.update(task, completed=done, status=f"{reached}: {_spelled(trial['settings'])}")

        def heard(number: int, step: Step) -> None:
            share = ((step.epoch - 1) * step.batches + step.batch) / (step.epochs * step.batches)
            where = f"trial {number}, epoch {step.epoch}/{step.epochs}"
            bar.update(task, completed=done + share, description=where)

        def asked() -> None:
            if (jobs or 1) > 1 or engine is not EngineName.LOCAL:
                raise KeyboardInterrupt  # processes are ended, and their trials continued from their checkpoints
            note(bar, "stopping after this batch; Ctrl-C again does not wait")

        with stoppable(asked) as stop:
            try:
                return tune(
                    search,
                    out,
                    jobs=jobs,
                    engine=found,
                    on_plan=plan,
                    on_trial=ended,
                    on_step=heard,
                    on_notice=lambda number, text: note(bar, f"trial {number}: {text}"),
                    stop=stop,
                    **options,
                )
            except Stopped:
                raise KeyboardInterrupt from None


def _table(result: dict[str, Any]) -> Table:
    """The trials, the best first, then those that were ended early or failed."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.show_edge, table.pad_edge, table.padding = False, False, (0, 2, 0, 0)
    keys = list(result["search"])
    for column in ("trial", "state", result["metric"], *keys):
        table.add_column(column)
    for trial in _ordered(result):
        is_best = result["best"] is not None and trial["trial"] == result["best"]["trial"]
        value = _figure(trial["value"]) + (" <" if is_best else "")
        settings = [_word(trial["settings"].get(key)) for key in keys]
        style = "bold" if is_best else "" if trial["state"] == "complete" else "red" if trial["error"] else "dim"
        table.add_row(*(Text(cell) for cell in (str(trial["trial"]), trial["state"], value, *settings)), style=style)
    return table


def _ordered(result: dict[str, Any]) -> list[dict[str, Any]]:
    sign = -1 if result["higher_is_better"] else 1
    states = ["complete", "pruned", "running", "failed"]
    return sorted(result["trials"], key=lambda trial: (states.index(trial["state"]), sign * (trial["value"] or 0.0)))


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _spelled(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={_word(value)}" for key, value in settings.items())


def _word(value: Any) -> str:
    """A setting as YAML has it, numbers with as many digits as are worth reading."""
    from rankfall.reporting.html import flow

    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else flow(value).removesuffix("\n...")


def _draw(result: dict[str, Any], out: Path) -> None:
    """Draw the search; its table is of use without a picture."""
    from rankfall.reporting.figures import SearchHistory

    files = [out / "trials.json", *([out / "best.yaml"] if result["best"] else [])]
    if any(trial["value"] is not None for trial in result["trials"]):
        count = len(result["trials"])
        early = sum(trial["state"] == "pruned" for trial in result["trials"])
        plot = SearchHistory(
            rows=result["trials"],
            title=f"Search in {out.name}",
            subtitle=f"{count} trial{'s' * (count != 1)}, {early} of them ended early",
            metric=f"validation {result['metric']}",
            higher_is_better=result["higher_is_better"],
            logarithmic=[key for key, one in result["search"].items() if isinstance(one, dict) and one.get("log")],
        )
        files += draw({"search": plot}, out)
    say(f"wrote {', '.join(file.name for file in files)} to {out}")


def _end(result: dict[str, Any], out: Path) -> None:
    failed = [trial for trial in result["trials"] if trial["state"] == "failed"]
    for trial in failed:
        say(f"trial {trial['trial']} failed ({_spelled(trial['settings'])}): {trial['error']}")
    if result["best"] is None:
        why = f"all {len(failed)} failed" if failed else "none was finished in time"
        fail(f"{out}: no trial came to an end, {why}")
        raise typer.Exit(1)
    say(f"next: rankfall train {out / 'best.yaml'} --out RUN")
